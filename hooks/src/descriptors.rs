//! Descriptors that pinyard keeps open. A program may close what it does not know, as one that becomes
//! a daemon does (close_range(2)), and give the number to a file of its own.
#![allow(unsafe_code)]

/// Descriptors from here on are out of the way, where the limit allows that many.
const HIGH: u64 = 960;

/// Which open file a descriptor is (`st_dev` and `st_ino`, fstat(2)). Linux 5.12 tells userfaultfds from
/// each other, 5.16 io_urings; before, all of these are one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The file of `fd`; `None` where it is closed. Allocates nothing and locks nothing.
    ///
    /// ```
    /// use pinyard_hooks::descriptors::Identity;
    /// assert_eq!(Identity::of(-1), None);
    /// assert_eq!(Identity::of(0).is_some(), unsafe { libc::fcntl(0, libc::F_GETFD) } >= 0);
    /// ```
    pub fn of(fd: i32) -> Option<Identity> {
        // SAFETY: all-zero is a valid stat buffer, and fstat fills it.
        unsafe {
            let mut stat: libc::stat = core::mem::zeroed();
            (libc::fstat(fd, &raw mut stat) == 0)
                .then_some(Identity { device: stat.st_dev, inode: stat.st_ino })
        }
    }

    /// The number of its file.
    pub fn inode(self) -> u64 {
        self.inode
    }
}

/// A second descriptor of `fd`'s file, at a number that a program's own files seldom have: 960 or above, and
/// where RLIMIT_NOFILE allows fewer in the last sixteenth of what it allows. The kernel gives the lowest that
/// is free. Closed by execve(2). `None` where the limit is used up.
pub fn duplicate(fd: i32) -> Option<i32> {
    // SAFETY: getrlimit fills the struct it is given; fcntl takes a number.
    unsafe {
        let mut limit: libc::rlimit = core::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return None;
        }
        let from = HIGH.min(limit.rlim_cur - limit.rlim_cur / 16);
        let high = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, from as libc::c_int);
        (high >= 0).then_some(high)
    }
}

/// Moves a descriptor of the caller's as [`duplicate`] does. It stays where there is no place.
pub fn moved_up(fd: i32) -> i32 {
    let Some(high) = duplicate(fd) else { return fd };
    // SAFETY: the caller's to close.
    unsafe { libc::close(fd) };
    high
}

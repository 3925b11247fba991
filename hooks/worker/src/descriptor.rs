//! A descriptor that stays open for long.
#![allow(unsafe_code)]

use pinyard_hooks::descriptors::{Identity, moved_up};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// A descriptor that the program may close behind our back, as one that becomes a daemon closes what it
/// does not know: it stands where the program's own seldom do, and is neither used nor closed once its
/// number is another file's.
///
/// ```
/// use pinyard_worker::Descriptor;
/// use std::io::Read;
/// let kept = Descriptor::new(std::fs::File::open("/dev/zero")?);
/// let mut byte = [1];
/// (&*kept.file()?).read_exact(&mut byte)?;
/// assert_eq!(byte, [0]);
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Descriptor {
    fd: RawFd,
    identity: Option<Identity>,
}

impl Descriptor {
    /// Takes the descriptor, and moves it up.
    pub fn new(fd: impl Into<OwnedFd>) -> Descriptor {
        let fd = moved_up(fd.into().into_raw_fd());
        Descriptor { fd, identity: Identity::of(fd) }
    }

    fn is_ours(&self) -> bool {
        self.identity.is_some() && Identity::of(self.fd) == self.identity
    }

    /// The file, borrowed.
    ///
    /// # Errors
    /// EBADF, where the program has closed it.
    pub fn file(&self) -> io::Result<impl Deref<Target = File>> {
        if !self.is_ours() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: open, by the look above; not closed, as it is not dropped.
        Ok(ManuallyDrop::new(unsafe { File::from_raw_fd(self.fd) }))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: ours, by the look above, and nobody uses it afterwards.
            drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
    }
}

impl io::Write for Descriptor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.file()?).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRawFd for Descriptor {
    /// Its number, which may be another file's by now.
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_number_that_is_another_files_is_neither_used_nor_closed() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut kept = Descriptor::new(writer);
        let fd = kept.as_raw_fd();
        assert_eq!(kept.write(b"x").unwrap(), 1);
        // SAFETY: takes a number that this test has.
        let mut own = unsafe {
            libc::close(fd);
            assert_eq!(kept.write(b"x").unwrap_err().raw_os_error(), Some(libc::EBADF));
            let (mut reader, writer) = io::pipe().unwrap();
            assert_eq!(libc::dup2(reader.as_raw_fd(), fd), fd);
            drop(writer);
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
            File::from_raw_fd(fd)
        };
        assert_eq!(kept.write(b"x").unwrap_err().raw_os_error(), Some(libc::EBADF));
        drop(kept);
        assert_eq!(own.read(&mut [0]).unwrap(), 0, "the other file is still open");
    }

    #[test]
    fn it_stands_out_of_the_way_and_is_closed() {
        let kept = Descriptor::new(File::open("/dev/null").unwrap());
        let fd = kept.as_raw_fd();
        let the_programs_next = File::open("/dev/null").unwrap();
        assert!(fd > the_programs_next.as_raw_fd() + 1, "{fd}");
        drop(kept);
        assert_eq!(Identity::of(fd), None);
    }
}

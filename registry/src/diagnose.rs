//! From an errno to its cause: what a failed registration is compared with.
//! Cold: reads /proc.

use crate::access::Access;
use crate::backend::BackendError;
use crate::error::GetError;
use crate::range::PageRange;

/// One line of /proc/self/maps.
struct Mapping {
    range: PageRange,
    writable: bool,
}

fn mappings() -> Vec<Mapping> {
    let parse = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let at = |hex| usize::from_str_radix(hex, 16).ok();
        let range = PageRange { start: at(start)?, end: at(end)? };
        Some(Mapping { range, writable: rest.as_bytes().get(1) == Some(&b'w') })
    };
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(parse).collect()
}

/// The first address of `range` that nothing is mapped at.
fn first_hole(range: PageRange) -> Option<usize> {
    let mut covered = range.start;
    for mapping in mappings() {
        if mapping.range.start <= covered && covered < mapping.range.end {
            covered = mapping.range.end;
        }
    }
    (covered < range.end).then_some(covered)
}

/// The first address of `range` in a mapping without write permission.
pub(crate) fn first_read_only(range: PageRange) -> Option<usize> {
    let read_only = |mapping: &Mapping| !mapping.writable && mapping.range.overlaps(range);
    mappings().iter().find(|mapping| read_only(mapping)).map(|mapping| mapping.range.start.max(range.start))
}

/// The soft RLIMIT_MEMLOCK in bytes; `None` where there is no limit.
#[allow(unsafe_code)]
pub(crate) fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the struct it is given.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Half of the machine's memory, in bytes.
#[allow(unsafe_code)]
pub(crate) fn half_of_memory() -> usize {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).unwrap_or(0).max(2) / 2 * pinyard_hooks::PAGE_SIZE
}

/// Whether RLIMIT_MEMLOCK does not bind this process (CAP_IPC_LOCK).
fn may_lock_anything() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    bits >> CAP_IPC_LOCK & 1 == 1
}

/// The error that names why `source` happened.
pub(crate) fn explain(range: PageRange, access: Access, pinned: usize, source: BackendError) -> GetError {
    let source = Box::new(source);
    if matches!(source.errno, libc::EFAULT | libc::ENOMEM | libc::EINVAL | libc::EACCES | libc::EPERM) {
        if let Some(hole) = first_hole(range) {
            return GetError::Unmapped { range, hole, source };
        }
        if matches!(source.errno, libc::EFAULT | libc::EACCES)
            && let Some(at) = first_read_only(range)
        {
            let remedy = if access.writes() {
                "map it writable, or ask for Access::LOCAL_READ where the backend has read-only registrations"
            } else {
                "this backend pins for writing whatever the access: map it writable or copy it"
            };
            return GetError::ReadOnly { range, at, remedy, source };
        }
    }
    match memlock_limit() {
        Some(limit)
            if matches!(source.errno, libc::ENOMEM | libc::EPERM | libc::EAGAIN) && !may_lock_anything() =>
        {
            GetError::Memlock { range, limit, pinned, source }
        }
        _ => GetError::Backend { range, source },
    }
}

/// What to do about a refused io_uring call.
pub(crate) fn io_uring_refusal(errno: i32) -> String {
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    match (errno, sysctl.trim()) {
        (libc::EPERM, value @ ("1" | "2")) => format!(
            "io_uring is disabled by the administrator: sysctl kernel.io_uring_disabled is {value}; set it to 0, or use another backend"
        ),
        (libc::EPERM | libc::EACCES | libc::ENOSYS, _) => {
            "the kernel has no io_uring or a seccomp filter (as container runtimes install) blocks it; allow io_uring_setup, io_uring_enter and io_uring_register, or use another backend".to_owned()
        }
        (libc::ENOMEM, _) => match memlock_limit() {
            Some(limit) => format!("RLIMIT_MEMLOCK is {limit} bytes: raise `ulimit -l`"),
            None => "the machine is out of memory".to_owned(),
        },
        (libc::EMFILE | libc::ENFILE, _) => "close files, or raise `ulimit -n`".to_owned(),
        (libc::EINVAL, _) => "sparse buffer tables need Linux 5.19 or newer".to_owned(),
        _ => "see io_uring_setup(2)".to_owned(),
    }
}

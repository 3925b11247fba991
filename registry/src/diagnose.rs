//! From an errno to its cause: what a failed registration is compared with.
//! Cold: reads /proc.

use crate::access::Access;
use crate::backend::BackendError;
use crate::error::GetError;
use crate::limits::may_lock_anything;
use crate::machine::{memlock_limit, soft_limit};
use crate::maps;
use crate::range::PageRange;

/// The first address of `range` that nothing is mapped at.
fn first_hole(range: PageRange) -> Option<usize> {
    let maps = maps::read().unwrap_or_default();
    let mut covered = range.start;
    for mapping in maps::mappings(&maps) {
        if mapping.range.contains(&covered) {
            covered = mapping.range.end;
        }
    }
    (covered < range.end).then_some(covered)
}

/// The first address of `range` in a mapping without write permission.
pub(crate) fn first_read_only(range: PageRange) -> Option<usize> {
    let maps = maps::read().unwrap_or_default();
    let mut read_only = maps::mappings(&maps).filter(|mapping| !mapping.is_writable);
    read_only.find_map(|mapping| Some(mapping.pages().intersection(range)?.start))
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
        (libc::ENOMEM, _) => {
            let limit = |resource, name: &str, option| {
                soft_limit(resource).map(|limit| format!("{name} is {limit} bytes: raise `ulimit -{option}`"))
            };
            // A ring is mapped; before Linux 5.12 its memory counts as locked.
            let limits = [limit(libc::RLIMIT_AS, "RLIMIT_AS", 'v'), limit(libc::RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", 'l')];
            let limits: Vec<String> = limits.into_iter().flatten().collect();
            if limits.is_empty() { "the machine is out of memory".to_owned() } else { limits.join("; ") }
        }
        (libc::EMFILE | libc::ENFILE, _) => "close files, or raise `ulimit -n`".to_owned(),
        (libc::EINVAL, _) => "tables of fixed buffers that change need Linux 5.13 or newer".to_owned(),
        _ => "see io_uring_setup(2)".to_owned(),
    }
}

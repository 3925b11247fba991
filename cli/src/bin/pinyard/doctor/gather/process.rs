//! What this process may do: tried, not read.

use crate::doctor::facts::{Facility, Facts, Hooks};
use pinyard::hooks::{Owner, Report, Seen};
use pinyard_registry::backend::IoUring;
use rustix::process::{Resource, getrlimit};
use std::io;

/// A ring of its own, closed again.
pub(super) fn io_uring() -> Facility {
    match IoUring::new(1) {
        Ok(_) => Facility::Works,
        Err(error) => Facility::Refused(error.to_string()),
    }
}

/// As a registry starts it: the descriptor, its events, and the thread that reads them.
pub(super) fn userfaultfd() -> Facility {
    pinyard::hooks::userfaultfd::start().map_or_else(
        |why| Facility::Refused(format!("{}: {}", why.call, io::Error::from_raw_os_error(why.errno))),
        |()| Facility::Works,
    )
}

/// What `/proc` would have said, as far as the kernel is asked otherwise.
pub(super) fn without_proc(facts: &mut Facts) {
    let system = rustix::system::uname();
    facts.host = system.nodename().to_string_lossy().split('.').next().unwrap_or_default().to_owned();
    facts.kernel.release = system.release().to_string_lossy().into_owned();
    let memory = rustix::system::sysinfo();
    facts.limits.memory = memory.totalram as u64 * u64::from(memory.mem_unit);
    let effective = rustix::thread::capabilities(None).map(|sets| sets.effective);
    facts.limits.may_lock_anything =
        effective.is_ok_and(|set| set.contains(rustix::thread::CapabilitySet::IPC_LOCK));
}

/// The soft and the hard RLIMIT_MEMLOCK in bytes; none: unlimited.
pub(super) fn memlock() -> (Option<u64>, Option<u64>) {
    let limit = getrlimit(Resource::Memlock);
    (limit.current, limit.maximum)
}

pub(super) fn processors() -> u64 {
    std::thread::available_parallelism().map_or(0, |number| number.get() as u64)
}

/// Installs them and tests them.
pub(super) fn hooks() -> Hooks {
    summary(&pinyard::hooks::install())
}

fn summary(report: &Report) -> Hooks {
    let mut hooks = Hooks {
        complete: report.is_complete(),
        functions: report.functions.len() as u64,
        ..Hooks::default()
    };
    for line in &report.functions {
        let owner = match &line.owner {
            Owner::Pinyard => "pinyard",
            Owner::Libc => "libc",
            Owner::Module(name) => name.as_str(),
            Owner::Absent => "absent",
        };
        *hooks.owners.entry(owner.to_owned()).or_default() += 1;
        hooks.owner_of.insert(line.function.name().to_owned(), owner.to_owned());
        if matches!(line.seen, Seen::No(_)) {
            hooks.unseen.push(line.to_string());
        }
    }
    hooks
}

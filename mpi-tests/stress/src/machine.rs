//! The machine that a rank runs on, and the limit that it may lower.
#![allow(unsafe_code)]

use pinyard_cli::stress::record::Machine;
use std::fs;
use std::io;

/// This machine.
pub(crate) fn here() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |path: &str, name: &str| -> Option<String> {
        let line = read(path).lines().find(|line| line.starts_with(name)).map(str::to_owned)?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let kilobytes =
        value("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    Machine {
        host: read("/proc/sys/kernel/hostname").trim().to_owned(),
        system: format!(
            "{} {}",
            read("/proc/sys/kernel/ostype").trim(),
            read("/proc/sys/kernel/osrelease").trim()
        ),
        processor: value("/proc/cpuinfo", "model name").unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u64),
        memory: kilobytes.unwrap_or(0) << 10,
        memlock: memlock().map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes")),
    }
}

/// The soft RLIMIT_MEMLOCK; `None` where there is none.
fn memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the struct.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Raises RLIMIT_MEMLOCK as far as the process may, so that lowering it is what binds.
pub(crate) fn raise_memlock() -> Result<(), String> {
    let none = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads the struct. Refused without CAP_SYS_RESOURCE.
    match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) } {
        0 => Ok(()),
        _ => lower_memlock(libc::RLIM_INFINITY),
    }
}

/// Lowers the soft RLIMIT_MEMLOCK of the process.
pub(crate) fn lower_memlock(bytes: u64) -> Result<(), String> {
    let failed = |call: &str| format!("{call}(RLIMIT_MEMLOCK, {bytes}): {}", io::Error::last_os_error());
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the struct.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } != 0 {
        return Err(failed("getrlimit"));
    }
    limit.rlim_cur = bytes.min(limit.rlim_max);
    // SAFETY: reads the struct.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
        return Err(failed("setrlimit"));
    }
    Ok(())
}

/// Gives up CAP_IPC_LOCK, which root has and under which RLIMIT_MEMLOCK does not bind.
/// For the calling thread and those that it starts (capabilities(7)).
pub(crate) fn give_up_ipc_lock() -> Result<(), String> {
    const CAP_IPC_LOCK: u32 = 14;
    const VERSION_3: u32 = 0x2008_0522;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    let failed = |call: &str| format!("{call}: {}", io::Error::last_os_error());
    // SAFETY: version 3 fills two structs.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } != 0 {
        return Err(failed("capget"));
    }
    data[0].effective &= !(1 << CAP_IPC_LOCK);
    data[0].permitted &= !(1 << CAP_IPC_LOCK);
    // SAFETY: version 3 reads two structs.
    if unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) } != 0 {
        return Err(failed("capset"));
    }
    Ok(())
}

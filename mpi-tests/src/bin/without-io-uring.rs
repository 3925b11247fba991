//! Runs a command in a process where io_uring_setup is refused, as container
//! runtimes do: `without-io-uring [--enosys] COMMAND [ARGUMENT...]`.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    let errno = match arguments.next_if(|argument| argument == "--enosys") {
        Some(_) => libc::ENOSYS,
        None => libc::EPERM,
    };
    let Some(command) = arguments.next() else {
        eprintln!("usage: without-io-uring [--enosys] COMMAND [ARGUMENT...]");
        return ExitCode::from(2);
    };
    if let Err(error) = refuse_io_uring(errno) {
        eprintln!("without-io-uring: seccomp filter: {error}");
        return ExitCode::from(2);
    }
    let error = Command::new(&command).args(arguments).exec();
    eprintln!("without-io-uring: exec {}: {error}", command.display());
    ExitCode::from(2)
}

/// Makes every later io_uring_setup of this process and its children fail with `errno`.
fn refuse_io_uring(errno: i32) -> io::Result<()> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    let number = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let arch = std::mem::offset_of!(libc::seccomp_data, arch) as u32;
    let load = |at| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: at }; // BPF_LD | BPF_W | BPF_ABS
    let unless_equal_skip = |k, jf| libc::sock_filter { code: 0x15, jt: 0, jf, k }; // BPF_JMP | BPF_JEQ | BPF_K
    let answer = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k }; // BPF_RET | BPF_K
    let mut filter = [
        load(arch),
        unless_equal_skip(AUDIT_ARCH_X86_64, 3),
        load(number),
        unless_equal_skip(libc::SYS_io_uring_setup as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | errno as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl reads its integer arguments only; the second call reads the
    // filter, which lives until it returns.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

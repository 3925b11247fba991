//! Whether the environment may be heeded.
#![allow(unsafe_code)]

/// Whether the process has rights that whoever started it has not: a set-user-ID or
/// set-group-ID program, or one with file capabilities (AT_SECURE, getauxval(3)). Every
/// `PINYARD_` variable is ignored there, as ld.so(8) ignores LD_PRELOAD.
///
/// Reads what the kernel put beside the environment when the program began: no system
/// call, no allocation; any thread.
pub fn is_privileged() -> bool {
    // Miri has no auxiliary vector.
    // SAFETY: reads the auxiliary vector.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

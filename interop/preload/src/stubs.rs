//! The functions of libfabric and UCX that this library exports.
//!
//! libfabric's exist in several versions, one for each layout of its structures, and
//! a process may hold several libfabrics. Each stub hands on where it was called
//! from, so that `caller.rs` finds what the caller would have got without us.
//!
//! Each begins at a multiple of 16 bytes and fills the last 16 that it begins: a patcher
//! writes up to 13 over the entry of a function, and nothing of its neighbour's.

use crate::{libfabric, ucx, ucx_cache};

/// A function of up to seven integer or pointer arguments, of which it has its own.
pub(crate) type Seven = extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;

/// `$name(…)` becomes `$body(first … seventh argument, return address)`.
macro_rules! stub {
    ($($name:ident -> $body:path)*) => {$(
        /// # Safety
        /// As the function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[cfg(target_arch = "x86_64")]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // The seventh argument, or whatever lies there in the caller's frame.
                "mov rax, [rsp]",
                "mov r10, [rsp + 8]",
                "sub rsp, 8",
                "push rax",
                "push r10",
                "call {body}",
                "add rsp, 24",
                "ret",
                // Of the section too, which begins with the stub.
                ".balign 16, 0xcc",
                body = sym $body,
            );
        }

        /// # Safety
        /// As above.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[cfg(target_arch = "aarch64")]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!("hint 34", "mov x7, x30", "b {body}", ".balign 16", body = sym $body);
        }
    )*};
}

stub! {
    fi_getinfo -> libfabric::getinfo
    fi_getparams -> libfabric::getparams
    fi_fabric -> libfabric::fabric
    fi_fabric2 -> libfabric::fabric2
    fi_open -> libfabric::open
    ucm_set_event_handler -> ucx::set_event_handler
    ucm_unset_event_handler -> ucx_cache::unset_event_handler
    ucs_rcache_create -> ucx_cache::create
    ucs_rcache_get -> ucx_cache::get
}

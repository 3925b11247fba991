//! The functions that this library exports under libc's names: a jump through the
//! function's place in the hooks' table. See `pinyard_hooks::interpose`.

use pinyard_hooks::listener::{self, Listener};
use pinyard_hooks::{Function, interpose};

macro_rules! wrappers {
    ($($function:ident: $name:ident $(, $other:ident)*;)*) => {
        $(wrappers!(@one $function $name); $(wrappers!(@one $function $other);)*)*

        fn address_of(function: Function) -> usize {
            match function {
                $(Function::$function => $name as *const () as usize,)*
                Function::Mprotect | Function::DlDebugState => 0,
            }
        }
    };
    (@one $function:ident $name:ident) => {
        /// # Safety
        /// As libc's function of this name.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[cfg(target_arch = "x86_64")]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "jmp qword ptr [rip + {targets} + {at}]",
                targets = sym interpose::TARGETS,
                at = const Function::$function as usize * size_of::<usize>(),
            );
        }

        /// # Safety
        /// As above.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        #[cfg(target_arch = "aarch64")]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "hint 34",
                "adrp x16, {targets}",
                "add x16, x16, :lo12:{targets}",
                "ldr x16, [x16, {at}]",
                "br x16",
                targets = sym interpose::TARGETS,
                at = const Function::$function as usize * size_of::<usize>(),
            );
        }
    };
}

wrappers! {
    Munmap: munmap;
    Mmap: mmap, mmap64;
    Mremap: mremap;
    Madvise: madvise;
    Brk: brk;
    Sbrk: sbrk;
    Shmdt: shmdt;
    ProcessMadvise: process_madvise;
    Syscall: syscall;
    Shmat: shmat;
    RemapFilePages: remap_file_pages;
    Ftruncate: ftruncate, ftruncate64;
    Truncate: truncate, truncate64;
    Fallocate: fallocate, fallocate64;
}

/// At load: lead on to libc's own, or to another interposer's behind us.
pub(crate) fn lead_on() {
    // SAFETY: NUL-terminated names; asked from this library, which is the one that
    // RTLD_NEXT counts from.
    interpose::lead_on(|name| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) });
}

/// From now on they are hooks.
pub(crate) fn become_hooks() {
    interpose::begin(address_of);
}

/// For registries of another copy of pinyard in this process (`PINYARD_HOOKS=preload`):
/// makes the exported functions hooks and has every change that they see told to
/// `listener`. False where there is no room.
///
/// # Safety
/// As [`listener::listen`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pinyard_preload_listen(listener: Listener) -> bool {
    become_hooks();
    // SAFETY: passed on to the caller.
    unsafe { listener::listen(listener) }
}

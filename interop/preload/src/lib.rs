//! `libpinyard_preload.so`: pinyard in programs that nobody rebuilds.
//!
//! At start it makes no system call, patches nothing and starts no thread. It
//! exports the functions through which a program comes to libfabric (`fi_getinfo`,
//! `fi_getparams`, `fi_fabric`, `fi_fabric2`, `fi_open`) and through which UCX comes to its hooks
//! (`ucm_set_event_handler`): the first call of one is when work begins. The loader
//! binds calls to a preloaded library before any other, also those from objects that
//! were opened with `RTLD_LOCAL`, as Open MPI opens its components.
//!
//! ```text
//! first call   -> settings.rs: what the environment says; say.rs: what is said of it
//! fi_getinfo … -> libfabric.rs -> pinyard_hooks::install, pinyard_libfabric::import_monitor_into
//!              -> libfabric's own fi_getinfo (caller.rs: of which copy, in which version)
//!              -> providers that it has loaded from files of their own
//!              -> unattached.rs: is the monitor asked at all?
//! ucm_set_event_handler -> ucx.rs -> UCX's own; from then on UCX is told where its hooks do not hear
//! ucs_rcache_… -> ucx_cache.rs -> UCX's own cache, which hears only of what it may hold
//! ```
#![allow(unsafe_code)]

mod caller;
mod elf;
mod libfabric;
mod loader;
mod object;
mod pages;
mod process;
mod providers;
mod say;
mod settings;
mod stubs;
mod ucx;
mod ucx_cache;
mod unattached;

/// Does what must not end the program, whatever happens in it. The thread is not cancelled meanwhile.
fn guarded(work: impl FnOnce()) {
    let _uncancelled = pinyard_hooks::Uncancelled::now();
    // What std's panic hook has printed is all that is said.
    let _ = pinyard_worker::caught(work);
}

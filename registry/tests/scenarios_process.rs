//! What happens to the whole process while the cache is in use: fork, exec, exit
//! from any thread, programs started, libraries unloaded, registries made and
//! dropped without end. Most cases are a child's; one that hangs is killed.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, Fault, Faulty, IoUring, Mlock};
use pinyard_registry::{Access, Budget, BuildError, Explanation, GetError, MemoryKey, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::Duration;

/// Keeps a thread inside the registry, mostly under its lock, until `done`.
fn in_the_cache(registry: &Registry, pages: &Pages, done: &AtomicBool) {
    for round in 0.. {
        drop(registry.get(pages.part(2 * (round % 30), 2), Access::LOCAL_READ));
        registry.invalidate(pages.part(2 * (round % 30), 1)).unwrap();
        if done.load(SeqCst) {
            return;
        }
    }
}

/// The same on threads that nobody waits for.
fn leave_threads_in_the_cache(count: usize) -> Registry {
    let registry = registry_over(Mlock::new());
    let pages: &'static Pages = Box::leak(Box::new(Pages::new(64)));
    for _ in 0..count {
        let registry = registry.clone();
        std::thread::spawn(move || in_the_cache(&registry, pages, &AtomicBool::new(false)));
    }
    std::thread::sleep(Duration::from_millis(20));
    registry
}

/// Case g, and UCX's purge at fork: children forked while other threads hold the
/// lock change mappings, allocate, and ask the registry in every way, and none hangs.
#[test]
fn a_child_forked_while_others_hold_the_lock_does_not_hang() {
    const REGIONS: usize = 10_000;
    let device = Device::new();
    let registry = registry_over(device.backend());
    let (pages, done) = (Pages::new(64), AtomicBool::new(false));
    let many = Pages::new(2 * REGIONS);
    (0..REGIONS).for_each(|number| drop(read(&registry, many.part(2 * number, 1))));
    std::thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| in_the_cache(&registry, &pages, &done));
        // Looks at all regions under the lock, and so has it nearly always.
        scope.spawn(|| {
            while !done.load(SeqCst) {
                registry.regions_in_use();
            }
        });
        for _ in 0..100 {
            let before = device.counts();
            let status = forked(|| {
                let counted = device.counts();
                pages.advise(libc::MADV_DONTNEED);
                drop(Pages::new(4));
                let refused = matches!(registry.get(&pages, Access::LOCAL_READ), Err(GetError::Forked));
                let unfound = registry.lookup(pages.part(0, 1), Access::LOCAL_READ).is_none();
                let part = pages.part(0, 1);
                let refuses =
                    [registry.flush(), registry.invalidate(part), registry.invalidate_then(part, || ())];
                let refuses = refuses.iter().all(|answer| matches!(answer, Err(GetError::Forked)));
                let explains = matches!(registry.explain(part, Access::LOCAL_READ), Explanation::Forked);
                let nothing = registry.stats().regions == 0 && registry.regions_in_use() == 0;
                drop(registry.clone());
                refused && unfound && refuses && explains && nothing && device.counts() == counted
            });
            assert_eq!(status, 0, "{before:?}");
        }
    });
    registry.flush().unwrap();
    assert_eq!(device.counts().0, device.counts().1, "the parent's own are as they were");
}

/// A lease that is held across a fork belongs to the parent: the child drops it,
/// and its registry, and takes nothing back.
#[test]
fn a_child_drops_leases_and_registry_without_taking_anything_back() {
    let device = Device::new();
    let registry = registry_over(device.backend());
    let pages = Pages::new(2);
    let held = read(&registry, &pages).into_owned();
    let (mut held, mut ours) = (Some(held), Some(registry));
    let status = forked(|| {
        drop(held.take());
        drop(ours.take());
        device.counts() == (1, 0)
    });
    assert_eq!(status, 0);
    let registry = ours.unwrap();
    assert_eq!(read(&registry, &pages).key(), held.unwrap().key());
}

/// The child of a fork may have a registry of its own, that hears of its changes.
#[test]
fn a_child_makes_a_registry_of_its_own() {
    let parents = registry_over(Device::new().backend());
    let pages = Pages::new(2);
    drop(read(&parents, &pages));
    let status = forked(|| {
        let ring = Arc::new(IoUring::new(16).unwrap());
        let own = registry_over(ring.clone());
        let mut pages = Pages::apart(2);
        (1..20).all(|version| {
            pages.map_over();
            pages.fill(version);
            through(&ring, read(&own, &pages).key(), pages.at) == version
        })
    });
    assert_eq!(status, 0);
}

/// Children forked while another thread looks at the loaded objects, of which the
/// loader says again and again that there are others.
#[test]
fn a_child_forked_during_a_look_at_the_objects_looks_for_itself() {
    let _parents = registry_over(Device::new().backend());
    // SAFETY: an empty function of the loader's, which it calls after each change.
    let changed = unsafe {
        let at = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_debug_state".as_ptr());
        assert!(!at.is_null());
        std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(at)
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| {
            while !done.load(Relaxed) {
                changed();
                pinyard_registry::raw_callers();
            }
        });
        for round in 0..100 {
            let status = forked(|| {
                let own = Registry::builder().backend(Device::new().backend()).events(events()).build();
                let own = own.unwrap();
                drop(read(&own, &Pages::new(1)));
                pinyard_registry::raw_callers();
                own.stats().registrations == 1
            });
            assert_eq!(status, 0, "child {round}");
        }
    });
}

/// A budget that a child inherits is all its own: the parent's registries hold
/// nothing of it there, and are not asked for anything, whoever had their locks.
#[test]
fn a_child_has_all_of_its_parents_budget() {
    let budget = Budget::new(8 * PAGE);
    let device = Device::new();
    let parents = builder_over(device.backend()).budget(budget.clone()).build().unwrap();
    let (pages, busy, done) = (Pages::new(8), Pages::new(64), AtomicBool::new(false));
    drop(read(&parents, &pages));
    std::thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| in_the_cache(&parents, &busy, &done));
        for _ in 0..20 {
            let status = forked(|| {
                let counted = device.counts();
                let own = builder_over(Device::new().backend()).budget(budget.clone()).build().unwrap();
                let held = read(&own, &pages);
                // Asks every registry of the budget, and names them all.
                let refused = own.get(busy.part(0, 1), Access::LOCAL_READ).is_err();
                held.len() == 8 * PAGE
                    && refused
                    && budget.holdings().len() == 1
                    && device.counts() == counted
            });
            assert_eq!(status, 0);
        }
    });
    parents.flush().unwrap();
    assert_eq!((device.counts().0, budget.pinned()), (device.counts().1, 0));
}

#[test]
fn exec_from_any_thread_while_others_are_in_the_cache() {
    if !is_child() {
        return exits_with(in_child("exec_from_any_thread_while_others_are_in_the_cache"), 7);
    }
    or_be_killed();
    let registry = leave_threads_in_the_cache(2);
    let exec = move || {
        let (shell, option, script) = (c"/bin/sh", c"-c", c"exit 7");
        let arguments = [shell.as_ptr(), option.as_ptr(), script.as_ptr(), std::ptr::null()];
        let _held = read(&registry, &Pages::new(1));
        // SAFETY: a null-terminated list of strings that outlive the call.
        unsafe { libc::execv(shell.as_ptr(), arguments.as_ptr()) };
    };
    std::thread::spawn(exec).join().unwrap();
    unreachable!("exec failed: {}", std::io::Error::last_os_error());
}

#[test]
fn exit_from_any_thread_while_others_are_in_the_cache() {
    if !is_child() {
        for _ in 0..5 {
            exits_with(in_child("exit_from_any_thread_while_others_are_in_the_cache"), 9);
        }
        return;
    }
    or_be_killed();
    let registry = leave_threads_in_the_cache(2);
    let exit = move || {
        let _held = read(&registry, &Pages::new(1));
        std::process::exit(9);
    };
    std::thread::spawn(exit).join().unwrap();
    unreachable!("exit returned");
}

/// Handlers of exit change mappings after everything else has gone.
#[test]
fn mappings_change_in_exit_handlers() {
    static AT: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn unmap() {
        let at = AT.load(SeqCst);
        // SAFETY: the test's own pages, that nobody else unmaps.
        let code = unsafe { libc::munmap(at as *mut _, PAGE) };
        assert_eq!(code, 0);
    }
    if !is_child() {
        return exits_with(in_child("mappings_change_in_exit_handlers"), 3);
    }
    or_be_killed();
    let registry = leave_threads_in_the_cache(1);
    let pages = std::mem::ManuallyDrop::new(Pages::new(1));
    drop(read(&registry, &*pages));
    AT.store(pages.at, SeqCst);
    // SAFETY: a function that lives as long as the program.
    assert_eq!(unsafe { libc::atexit(unmap) }, 0);
    std::process::exit(3);
}

/// What posix_spawn and vfork do beside threads that hold the lock.
#[test]
fn programs_are_started_while_others_are_in_the_cache() {
    let device = Device::new();
    let registry = registry_over(device.backend());
    let (pages, done) = (Pages::new(64), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| in_the_cache(&registry, &pages, &done));
        for _ in 0..20 {
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
        }
    });
    assert!(registry.stats().registrations > 0);
}

/// `malloc_hook.cc`'s `in_thread` and `ucm_events`: hooks are installed while
/// threads hammer the functions that are patched.
#[test]
fn hooks_are_installed_while_threads_change_mappings() {
    if !is_child() {
        for _ in 0..10 {
            passes(in_child("hooks_are_installed_while_threads_change_mappings"));
        }
        return;
    }
    or_be_killed();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _finally = Finally(&done);
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    let mut pages = Pages::new(2);
                    pages.fill(7).advise(libc::MADV_DONTNEED);
                    assert_eq!(pages.bytes()[0], 0);
                }
            });
        }
        let ring = Arc::new(IoUring::new(16).unwrap());
        let registry = Registry::builder().backend(ring.clone()).build().unwrap();
        for version in 1..50 {
            let mut pages = Pages::new(1);
            pages.fill(version);
            assert_eq!(through(&ring, read(&registry, &pages).key(), pages.at), version);
        }
    });
}

/// A library is loaded and unloaded again and again while its neighbourhood is
/// registered. Its own segments are the linker's, whose calls no hook sees: the loader's
/// word to debuggers says that they go.
#[test]
fn a_library_that_is_unloaded_is_noticed() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = registry_over(ring.clone());
    for version in 1..20 {
        // SAFETY: a library of libc's own without constructors; its data page is
        // written where nothing reads it: the byte is put back before it is used.
        unsafe {
            let library = libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null(), "dlopen failed");
            let symbol = libc::dlsym(library, c"__ctype_get_mb_cur_max".as_ptr());
            assert!(!symbol.is_null());
            let mut found: libc::Dl_info = std::mem::zeroed();
            assert_ne!(libc::dladdr(symbol, &mut found), 0);
            let base = found.dli_fbase as usize;
            let data = writable_page_of(base).expect("a data page");
            let lease = read(&registry, (data as *const u8, PAGE));
            assert_eq!(through(&ring, lease.key(), data), (data as *const u8).read_volatile());
            drop(lease);
            let before = registry.stats();
            assert_eq!(libc::dlclose(library), 0);
            let after = registry.stats();
            let taken_out = after.invalidations - before.invalidations + after.flushes - before.flushes;
            assert!(taken_out > 0 || before.uncached > 0, "{before:?} and then {after:?}");
        }
        let mut pages = Pages::new(16);
        pages.fill(version);
        assert_eq!(through(&ring, read(&registry, &pages).key(), pages.at), version);
    }
    eventually(|| registry.stats().pinned_bytes == 0);
}

/// UCX's `dlopen` tests: libraries that are loaded after the hooks unmap by their own calls,
/// one itself and one through a library that it depends on (its RPATH), loaded by two
/// threads at a time.
#[test]
fn what_a_library_loaded_later_unmaps_is_noticed() {
    let registry = registry_over(Device::new().backend());
    let folder = std::env::temp_dir().join(format!("pinyard-later-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let compile = |name: &str, source: &str, needs: &[&str]| {
        let (library, text) = (folder.join(format!("lib{name}.so")), folder.join(format!("{name}.c")));
        std::fs::write(&text, source).unwrap();
        let mut command = std::process::Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&text).arg("-L").arg(&folder);
        command.args(needs).arg(format!("-Wl,-rpath,{}", folder.display()));
        assert!(command.status().expect("cc").success(), "{command:?}");
        std::ffi::CString::new(library.into_os_string().into_encoded_bytes()).unwrap()
    };
    let direct = "#include <sys/mman.h>\nint direct(void *at, unsigned long n) { return munmap(at, n); }";
    let indirect = "int direct(void *, unsigned long);\nint indirect(void *at, unsigned long n) { return direct(at, n); }";
    let paths = [compile("direct", direct, &[]), compile("indirect", indirect, &["-ldirect"])];
    let kept = AtomicUsize::new(0);
    at_once(2, &|thread| {
        for _ in 0..20 {
            let pages = Pages::new(4);
            drop(read(&registry, &pages));
            // What the other thread's loader does nearby may have taken it out.
            kept.fetch_add(usize::from(cached(&registry, &pages).is_some()), Relaxed);
            // SAFETY: a library of this test's own, with this function; nobody uses the
            // pages after it, and unmapping them again does nothing.
            let unmapped = unsafe {
                let library = libc::dlopen(paths[thread].as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
                assert!(!library.is_null(), "dlopen({:?}) failed", paths[thread]);
                let function = libc::dlsym(library, [c"direct", c"indirect"][thread].as_ptr());
                assert!(!function.is_null());
                let function: extern "C" fn(*const u8, usize) -> i32 = std::mem::transmute(function);
                let (at, len) = pages.all();
                let unmapped = function(at, len);
                assert!(registry.lookup(&pages, Access::LOCAL_READ).is_none(), "stale");
                std::mem::forget(pages);
                libc::dlclose(library);
                unmapped
            };
            assert_eq!(unmapped, 0);
        }
    });
    assert!(kept.into_inner() >= 20, "hardly any page was registered when it was unmapped");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// UCX's `malloc_hook.cc`: libc's allocating functions work on under the hooks, what they gave
/// before is given back after, and what a registered block gives back is noticed.
#[test]
fn memory_of_before_the_hooks_is_given_back_after_them() {
    const NAME: &str = "memory_of_before_the_hooks_is_given_back_after_them";
    const LARGE: usize = 4 << 20;
    if !is_child() {
        return passes(in_child(NAME));
    }
    // SAFETY: each pointer is written within its size and freed once.
    unsafe {
        let small: Vec<_> = (1..200).map(|size| libc::malloc(size * 8)).collect();
        let large = libc::malloc(LARGE).cast::<u8>();
        let text = libc::strdup(c"from before".as_ptr());
        let mut aligned = std::ptr::null_mut();
        assert_eq!(libc::posix_memalign(&mut aligned, 1 << 16, LARGE), 0);
        assert_eq!(libc::setenv(c"WRITTEN_BEFORE".as_ptr(), c"the hooks".as_ptr(), 1), 0);
        large.write_bytes(1, LARGE);

        let registry = registry_over(Device::new().backend());
        let block = (large.cast_const(), LARGE);
        drop(read(&registry, block));
        assert!(cached(&registry, block).is_some());
        libc::free(large.cast());
        assert!(registry.lookup(block, Access::LOCAL_READ).is_none(), "free unmapped it");
        small.into_iter().for_each(|pointer| libc::free(pointer));
        let longer = libc::realloc(text.cast(), LARGE).cast::<libc::c_char>();
        assert_eq!(std::ffi::CStr::from_ptr(longer), c"from before");
        libc::free(longer.cast());
        libc::free(aligned);
        assert_eq!(std::ffi::CStr::from_ptr(libc::getenv(c"WRITTEN_BEFORE".as_ptr())), c"the hooks");

        // Mapped by malloc each time, as free does not raise the threshold any more.
        assert_eq!(libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20), 1);
        for _ in 0..20 {
            let block = (libc::malloc(16 * LARGE).cast::<u8>().cast_const(), LARGE);
            drop(read(&registry, block));
            assert!(cached(&registry, block).is_some());
            libc::free(block.0.cast_mut().cast());
            assert!(registry.lookup(block, Access::LOCAL_READ).is_none(), "free unmapped it");
        }
    }
}

/// The first writable page that is mapped from the object at `base`.
fn writable_page_of(base: usize) -> Option<usize> {
    let maps = pinyard_registry::maps::read().unwrap();
    let from_base = pinyard_registry::maps::mappings(&maps).skip_while(|mapping| mapping.range.start != base);
    from_base.take(8).find(|mapping| mapping.is_writable).map(|mapping| mapping.range.start)
}

/// `test_rcache::create_fail`: a registry that cannot be made leaves nothing, and
/// one that is dropped makes room.
#[test]
fn registries_beyond_the_limit_are_refused_and_their_places_come_back() {
    if !is_child() {
        return passes(in_child("registries_beyond_the_limit_are_refused_and_their_places_come_back"));
    }
    or_be_killed();
    assert!(matches!(Registry::builder().build(), Err(BuildError::NoBackend)));
    let build = || Registry::builder().backend(Device::new().backend()).build();
    for _ in 0..3 {
        let mut all = Vec::new();
        let refused = loop {
            match build() {
                Ok(registry) => all.push(registry),
                Err(error) => break error,
            }
        };
        let BuildError::TooManyRegistries { limit } = refused else { panic!("{refused}") };
        assert_eq!(all.len(), limit);
        all.pop();
        all.push(build().expect("a place came back"));
        let pages = Pages::new(1);
        all.iter().for_each(|registry| drop(read(registry, &pages)));
        pages.advise(libc::MADV_DONTNEED);
        for registry in &all {
            drop(read(registry, &pages));
            assert_eq!(registry.stats().registrations, 2, "each hears of it");
        }
    }
}

/// `test_rcache::create_destroy`, without end: threads and memory stay flat.
#[test]
fn registries_made_and_dropped_leave_nothing_behind() {
    if !is_child() {
        return passes(in_child("registries_made_and_dropped_leave_nothing_behind"));
    }
    or_be_killed();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let pages = Pages::new(16);
    let round = |_| {
        let device = Device::new();
        let registry = registry_over(device.backend());
        (0..8).for_each(|index| drop(read(&registry, pages.part(2 * index, 1))));
        drop(registry);
        // The reaper may be the last to let go.
        eventually(|| device.counts() == (8, 8));
    };
    (0..50).for_each(round);
    let before = (threads(), resident());
    (0..500).for_each(round);
    eventually(|| threads() == before.0);
    let grown = resident().saturating_sub(before.1);
    assert!(grown < 1 << 20, "resident memory grew by {grown} bytes");
}

/// UCX frees a region in use when its cache goes; here the last lease keeps it.
#[test]
fn a_registry_that_goes_while_threads_hold_leases() {
    let device = Device::new();
    let backend =
        Faulty::over(device.backend()).deregistering(|_| Some(Fault::Stall(Duration::from_millis(1))));
    let registry = registry_over(backend);
    let pages = Pages::new(20);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let lease = read(&registry, pages.part(5 * thread, 2)).into_owned();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                assert_eq!(lease.len(), 2 * PAGE);
            });
        }
        pages.advise(libc::MADV_DONTNEED);
        drop(registry);
        assert_eq!(device.counts(), (4, 0));
    });
    eventually(|| device.counts() == (4, 4));
    // A custom backend goes with its registry.
    let flag = Arc::new(());
    let token = flag.clone();
    let keep = move |_, _| {
        let _alive = &token;
        Ok(MemoryKey::default())
    };
    drop(registry_over(Custom::new("counted", keep, |_, _| Ok(()))));
    assert_eq!(Arc::strong_count(&flag), 1);
}

unsafe extern "C" {
    /// fork without the handlers of pthread_atfork(3) (glibc 2.34).
    fn _Fork() -> libc::pid_t;
}

/// A child in which no handler has run is refused all the same, from its first `get` on,
/// and may have a registry of its own. Of a process of its own: the child would find malloc's
/// locks as other threads had them.
#[test]
fn a_child_without_handlers_is_refused_and_may_have_its_own() {
    const NAME: &str = "a_child_without_handlers_is_refused_and_may_have_its_own";
    if !is_child() {
        return passes(in_child(NAME));
    }
    let device = Device::new();
    let registry = registry_over(device.backend());
    let pages = Pages::new(2);
    drop(read(&registry, &pages));
    let refused_with_its_own = || {
        let unfound = registry.lookup(&pages, Access::LOCAL_READ).is_none();
        let refused = matches!(registry.get(&pages, Access::LOCAL_READ), Err(GetError::Forked));
        let ring = Arc::new(IoUring::new(16).unwrap());
        let own = registry_over(ring.clone());
        let mut pages = Pages::apart(2);
        let works = (1..20).all(|version| {
            pages.map_over();
            pages.fill(version);
            through(&ring, read(&own, &pages).key(), pages.at) == version
        });
        unfound && refused && works && device.counts() == (1, 0)
    };
    // SAFETY: the child does what a child of fork may, and ends itself.
    unsafe {
        let pid = _Fork();
        if pid == 0 {
            libc::alarm(20);
            libc::_exit(if refused_with_its_own() { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        assert_eq!(status, 0);
    }
}

//! From creation to destruction: hits, changes, leases, forks, beginning and end.

use super::*;

#[test]
fn a_hit_a_change_and_a_new_registration() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pages = Pages::new(4);
    let mut first = held(registry, pages.0, 100);
    let mut second = held(registry, pages.0, 100);
    assert_eq!((first.key, first.base), (second.key, second.base));
    assert_eq!((first.key.lkey, first.key.rkey, first.length), (100, 7, PAGE as u64));
    assert!(
        explained(registry, pages.0).starts_with("a hit: registered as 0x"),
        "{}",
        explained(registry, pages.0)
    );
    let mut key = pny_key::default();
    // SAFETY: a key of the test's own.
    done(unsafe { pny_lookup(registry, pages.0, 100, 0, &raw mut key) });
    assert_eq!(key, first.key);
    done(put(&mut first));
    assert_eq!(first.ticket, 0);
    // SAFETY: the test's own page, replaced by another one.
    unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert_eq!(libc::mmap(pages.0, PAGE, protection, flags | libc::MAP_FIXED, -1, 0), pages.0);
        refused(pny_lookup(registry, pages.0, 100, 0, &raw mut key), PNY_ERR_NOT_FOUND, &["no cached"]);
    }
    let mut third = held(registry, pages.0, 100);
    assert_eq!(third.key.lkey, 101, "not what the second lease still holds");
    done(put(&mut second));
    // SAFETY: compared, not accessed.
    done(unsafe { pny_invalidate(registry, pages.0, PAGE) });
    done(put(&mut third));
    // SAFETY: nobody destroys it.
    done(unsafe { pny_flush(registry) });
    let now = counts(registry);
    assert_eq!((now.hits, now.misses, now.registrations, now.deregistrations), (1, 2, 2, 2));
    assert_eq!((now.pinned_bytes, now.regions, now.graveyard), (0, 0, 0));
    destroy(registry);
    assert_eq!((device.released.load(SeqCst), device.left.load(SeqCst)), (1, 0));
}

#[test]
fn what_was_given_back_is_given_back_once() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pages = Pages::new(2);
    let mut lease = held(registry, pages.0, PAGE);
    let mut copy = lease;
    done(put(&mut lease));
    refused(put(&mut lease), PNY_ERR_STALE, &["pny_put: the lease was given back before"]);
    refused(put(&mut copy), PNY_ERR_STALE, &["given back before"]);
    // The place is used again: the old ticket is as stale as before.
    let mut next = held(registry, pages.0, PAGE);
    refused(put(&mut copy), PNY_ERR_STALE, &["given back before"]);
    let mut invented = pny_lease { ticket: next.ticket ^ 1 << 33, ..next };
    refused(put(&mut invented), PNY_ERR_STALE, &["never was one"]);
    for round in 0..500 {
        let copies = [next, next];
        let start = &std::sync::Barrier::new(2);
        let good = std::thread::scope(|scope| {
            let threads = copies.map(|mut copy| {
                scope.spawn(move || {
                    start.wait();
                    (put(&mut copy) == PNY_OK) as u32
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>()
        });
        assert_eq!(good, 1, "round {round}");
        next = held(registry, pages.0, PAGE);
    }
    done(put(&mut next));
    destroy(registry);
    // SAFETY: a handle that is none any more is only compared.
    unsafe {
        refused(
            pny_registry_destroy(registry),
            PNY_ERR_STALE,
            &["is no pny_registry, or one that was destroyed"],
        );
        refused(pny_flush(registry), PNY_ERR_STALE, &["destroyed"]);
    }
    refused(get(registry, pages.0, 8, 0).0, PNY_ERR_STALE, &["pny_get: ", "destroyed"]);
    assert_eq!(device.released.load(SeqCst), 1);
}

#[test]
fn a_registry_that_is_in_use_stays() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pages = Pages::new(5);
    let at = |page: usize| pages.0.wrapping_byte_add(page * PAGE);
    let mut leases = [
        held(registry, at(0), 1),
        held(registry, at(0), 1),
        held(registry, at(2), 1),
        held(registry, at(4), 1),
    ];
    // One of them is found by nobody else any more, and held all the same.
    // SAFETY: compared, not accessed.
    done(unsafe { pny_invalidate(registry, at(4), PAGE) });
    for (lease, regions) in leases.iter_mut().zip([3, 3, 2, 1]) {
        let words = format!(
            "leases of {regions} region{} of backend bench are held; give them back with pny_put",
            if regions == 1 { "" } else { "s" }
        );
        // SAFETY: the test's only thread.
        refused(unsafe { pny_registry_destroy(registry) }, PNY_ERR_BUSY, &[&words]);
        assert_eq!(device.released.load(SeqCst), 0);
        done(put(lease));
    }
    destroy(registry);
    assert_eq!((device.released.load(SeqCst), device.left.load(SeqCst)), (1, 0));
}

/// Waits for a child; its exit status.
pub(super) fn in_child(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs what a forked child may run here, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            libc::_exit(work());
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    }
}

#[test]
fn a_forked_child_has_the_handle_and_not_the_registrations() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pages = Pages::new(2);
    let mut lease = held(registry, pages.0, PAGE);
    let status = in_child(|| {
        let mut key = pny_key::default();
        let (got, _) = get(registry, pages.0, PAGE, 0);
        let said = last_error();
        // SAFETY: the child's only thread.
        let (looked, flushed, destroyed, again) = unsafe {
            let looked = pny_lookup(registry, pages.0, PAGE, 0, &raw mut key);
            let flushed = pny_flush(registry);
            (looked, flushed, pny_registry_destroy(registry), pny_registry_destroy(registry))
        };
        let released = device.released.load(SeqCst) + device.deregistered.load(SeqCst);
        let own = create(&config(&ops, &device));
        let mut lease_of_own = held(own, pages.0, PAGE);
        let put_both = (put(&mut lease_of_own), put(&mut lease));
        destroy(own);
        i32::from(
            (got, looked, flushed) != (PNY_ERR_FORKED, PNY_ERR_NOT_FOUND, PNY_ERR_FORKED)
                || (destroyed, again, released) != (PNY_OK, PNY_ERR_STALE, 0)
                || put_both != (PNY_OK, PNY_ERR_STALE)
                || !said.contains("make a registry after forking")
                || device.released.load(SeqCst) != 1,
        )
    });
    assert_eq!(status, 0);
    done(put(&mut lease));
    let mut again = held(registry, pages.0, PAGE);
    assert_eq!(again.key.lkey, 100, "the parent's is as it was");
    done(put(&mut again));
    destroy(registry);
    assert_eq!((device.released.load(SeqCst), device.left.load(SeqCst)), (1, 0));
}

/// A library that ends while another one, which never began, uses what it has made.
#[test]
fn the_last_finalize_leaves_others_alone() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device)).addr();
    let pages = Pages::new(64);
    let (at, stop) = (pages.0.addr(), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let registry = core::ptr::without_provenance_mut(registry);
            let mut turns = 0;
            while stop.load(SeqCst) == 0 || turns < 1000 {
                let page = core::ptr::with_exposed_provenance_mut(at + turns % 64 * PAGE);
                done(put(&mut held(registry, page, PAGE)));
                turns += 1;
            }
        });
        done(pny_init());
        let ends: Vec<pny_status> = (0..1000).map(|_| pny_finalize()).collect();
        stop.store(1, SeqCst);
        other.join().unwrap();
        assert_eq!(ends, [PNY_ERR_BUSY; 1000]);
    });
    destroy(core::ptr::without_provenance_mut(registry));
    done(pny_finalize());
    refused(pny_finalize(), PNY_ERR_NOT_READY, &["there was no pny_init"]);
}

#[test]
fn beginning_and_end_come_in_pairs() {
    let (device, ops) = (Device::default(), ops());
    refused(pny_finalize(), PNY_ERR_NOT_READY, &["there was no pny_init"]);
    for _ in 0..3 {
        done(pny_init());
        done(pny_init());
        let registry = create(&config(&ops, &device));
        let pages = Pages::new(1);
        let mut lease = held(registry, pages.0, PAGE);
        done(pny_finalize());
        // Whoever made it, and may be using it: nothing is taken from them.
        let name = format!("not destroyed: pny_registry {registry:p}");
        refused(pny_finalize(), PNY_ERR_BUSY, &[&name]);
        assert_eq!(in_child(|| pny_finalize() as i32), 0, "what is left is the parent's");
        done(put(&mut lease));
        refused(pny_finalize(), PNY_ERR_BUSY, &[&name]);
        lease = held(registry, pages.0, PAGE);
        done(put(&mut lease));
        destroy(registry);
        done(pny_finalize());
        refused(pny_finalize(), PNY_ERR_NOT_READY, &["there was no pny_init"]);
    }
    assert_eq!(device.released.load(SeqCst), 3);
    let mut text = [0; 400];
    let mut length = 0;
    // SAFETY: the capacity is the array's.
    done(unsafe { pny_hooks_report(text.as_mut_ptr(), text.len(), &raw mut length) });
    assert!(text_of(text.as_ptr()).contains("munmap") && length > 100);
    assert_eq!(text_of(pny_version()), env!("CARGO_PKG_VERSION"));
    done(pny_hooks_verify());
}
#[test]
fn more_registries_than_there_can_be() {
    let (device, ops) = (Device::default(), ops());
    let mut config = config(&ops, &device);
    config.max_regions = 8;
    let mut made = Vec::new();
    let refusal = loop {
        let mut registry = null_mut();
        // SAFETY: a configuration of its size, and a place for the handle.
        match unsafe { pny_registry_create(&config, &raw mut registry) } {
            PNY_OK => made.push(registry),
            status => break status,
        }
        assert!(made.len() <= 1024);
    };
    refused(refusal, PNY_ERR_RESOURCES, &["registries exist in this process", "share one"]);
    assert_eq!(device.released.load(SeqCst), 0, "the one that was refused owes nothing");
    let count = made.len() as u32;
    made.into_iter().for_each(destroy);
    assert_eq!(device.released.load(SeqCst), count);
}

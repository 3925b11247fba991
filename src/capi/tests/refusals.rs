//! What must be refused: each refusal has its status and a text that says what to do.

use super::*;

#[test]
fn null_pointers() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let (none, mut lease, mut key) = (null_mut(), pny_lease::default(), pny_key::default());
    let here = (&raw const device).cast();
    let missing = "pny_registry is null; pny_registry_create makes one";
    // SAFETY: what is not null is the test's own.
    unsafe {
        let mut handle = null_mut();
        refused(pny_registry_create(null(), &raw mut handle), PNY_ERR_INVALID, &["config is a null pointer"]);
        let config = config(&ops, &device);
        refused(pny_registry_create(&config, null_mut()), PNY_ERR_INVALID, &["registry is a null pointer"]);
        refused(pny_registry_destroy(none), PNY_ERR_INVALID, &[missing]);
        refused(pny_get(none, here, 8, 0, &raw mut lease), PNY_ERR_INVALID, &[missing]);
        refused(pny_get(registry, here, 8, 0, null_mut()), PNY_ERR_INVALID, &["lease is a null pointer"]);
        refused(
            pny_get(registry, null(), 8, 0, &raw mut lease),
            PNY_ERR_INVALID,
            &["null pointer with a length of 8"],
        );
        refused(pny_put(null_mut()), PNY_ERR_INVALID, &["pny_put: lease is a null pointer"]);
        refused(pny_put(&raw mut lease), PNY_ERR_STALE, &["given back before"]);
        refused(pny_lookup(none, here, 8, 0, &raw mut key), PNY_ERR_INVALID, &[missing]);
        refused(pny_lookup(registry, here, 8, 0, null_mut()), PNY_ERR_INVALID, &["key is a null pointer"]);
        refused(pny_lookup(registry, null(), 8, 0, &raw mut key), PNY_ERR_NOT_FOUND, &[]);
        refused(pny_invalidate(none, here, 8), PNY_ERR_INVALID, &[missing]);
        refused(pny_invalidate(registry, null(), 8), PNY_ERR_INVALID, &["null pointer with a length of 8"]);
        refused(pny_flush(none), PNY_ERR_INVALID, &[missing]);
        refused(pny_registry_stats(registry, null_mut()), PNY_ERR_INVALID, &["counts is a null pointer"]);
        refused(pny_explain(none, here, 8, 0, null_mut(), 0, null_mut()), PNY_ERR_INVALID, &[missing]);
        refused(
            pny_explain(registry, here, 8, 0, null_mut(), 1, null_mut()),
            PNY_ERR_INVALID,
            &["text is a null pointer"],
        );
        done(pny_explain(registry, null(), 8, 0, null_mut(), 0, null_mut()));
        refused(pny_hooks_report(null_mut(), 1, null_mut()), PNY_ERR_INVALID, &["text is a null pointer"]);
        refused(pny_libfabric_monitor_stats(null_mut()), PNY_ERR_INVALID, &["counts is a null pointer"]);
    }
    pny_notify_unmapped(null(), 0);
    destroy(registry);
}

#[test]
fn ranges_and_access_that_cannot_be() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pages = Pages::new(1);
    let all: [(*const c_void, usize, u32, pny_status, &str); 5] = [
        (pages.0, 0, 0, PNY_ERR_INVALID, "empty range"),
        (pages.0, usize::MAX, 0, PNY_ERR_INVALID, "wraps around"),
        ((1usize << 62) as *const c_void, PAGE, 0, PNY_ERR_INVALID, "above"),
        (pages.0, PAGE, 16, PNY_ERR_INVALID, "access 0x10 has a bit that is none of PNY_LOCAL_WRITE"),
        (pages.0, PAGE, u32::MAX, PNY_ERR_INVALID, "access 0xffffffff"),
    ];
    for (at, length, access, status, words) in all {
        let (got, lease) = get(registry, at, length, access);
        refused(got, status, &["pny_get: ", words]);
        assert_eq!((lease.ticket, lease.length), (0, 0));
    }
    assert_eq!(device.registered.load(SeqCst), 0);
    destroy(registry);
}

#[test]
fn configurations_that_contradict_themselves() {
    let (device, good) = (Device::default(), ops());
    let base = config(&good, &device);
    let with = |change: fn(&mut pny_registry_config)| {
        let mut config = base;
        change(&mut config);
        config
    };
    let invalid = |change, words: &[&str]| no_registry(&with(change), PNY_ERR_INVALID, words);
    invalid(
        |config| config.size = 0,
        &["pny_registry_config: size is 0, and must be 88 to 4096; set it to sizeof"],
    );
    invalid(|config| config.size = 87, &["size is 87"]);
    invalid(|config| config.size = 1 << 40, &["size is 1099511627776"]);
    invalid(|config| config.flags = 16, &["flags 0x10 has bits that are no flag"]);
    invalid(
        |config| (config.backend, config.ops) = (6, null()),
        &["backend is 6, which is no PNY_BACKEND_ constant"],
    );
    invalid(|config| config.ops = null(), &["backend is PNY_BACKEND_OPS, and ops is null"]);
    invalid(
        |config| config.backend = PNY_BACKEND_MLOCK,
        &["ops is set, and backend is 1, not PNY_BACKEND_OPS"],
    );
    invalid(|config| config.port = 1, &["are for PNY_BACKEND_VERBS"]);
    invalid(|config| config.flags = PNY_ON_DEMAND, &["are for PNY_BACKEND_VERBS"]);
    invalid(|config| config.device = c"x".as_ptr(), &["device is for PNY_BACKEND_VERBS and"]);
    invalid(|config| config.device = c"\xff".as_ptr(), &["device is not UTF-8"]);
    invalid(|config| config.reserved = 1, &["reserved is 1, and must be 0"]);
    no_registry(
        &with(|config| config.share_budget_of = 0x1234 as pny_registry),
        PNY_ERR_STALE,
        &["share_budget_of: 0x1234 is no pny_registry"],
    );
    let other = create(&base);
    let mut both = with(|config| config.budget = 1);
    both.share_budget_of = other;
    no_registry(&both, PNY_ERR_INVALID, &["budget and share_budget_of are both set"]);
    destroy(other);
    for (change, words) in [
        (
            (|ops| ops.size = 63) as fn(&mut pny_backend_ops),
            "pny_backend_ops: size is 63, and must be 64 to 4096",
        ),
        (|ops| ops.register_memory = None, "register_memory or deregister_memory of ops is a null pointer"),
        (|ops| ops.deregister_memory = None, "register_memory or deregister_memory of ops is a null pointer"),
        (|ops| ops.name = c"\xff".as_ptr(), "ops->name is not UTF-8"),
        (|ops| ops.reserved = 9, "reserved is 9, and must be 0"),
    ] {
        let mut ops = good;
        change(&mut ops);
        no_registry(&config(&ops, &device), PNY_ERR_INVALID, &[words]);
    }
    assert_eq!(device.released.load(SeqCst), 1, "of the registry that there was, and of no other");
}

#[test]
fn a_newer_header_is_understood_where_it_asks_for_nothing_new() {
    #[repr(C)]
    struct Newer {
        config: pny_registry_config,
        wish: u64,
    }
    let (device, ops) = (Device::default(), ops());
    let mut newer = Newer { config: config(&ops, &device), wish: 0 };
    newer.config.size = size_of::<Newer>();
    let mut registry = null_mut();
    // SAFETY: readable for the size that it says.
    unsafe {
        done(pny_registry_create((&raw const newer).cast(), &raw mut registry));
        destroy(registry);
        newer.wish = 1;
        let status = pny_registry_create((&raw const newer).cast(), &raw mut registry);
        refused(status, PNY_ERR_INVALID, &["88 bytes of 96", "older than the header"]);
    }
    // Where members were added, the first size stays what programs have.
    assert_eq!((size_of::<pny_registry_config>(), size_of::<pny_backend_ops>()), (88, 64));
    assert_eq!((size_of::<pny_registry_counts>(), size_of::<pny_libfabric_monitor_counts>()), (176, 64));
    assert_eq!((size_of::<pny_lease>(), size_of::<pny_key>(), size_of::<pny_status>()), (48, 24, 4));
}

#[test]
fn functions_that_fail() {
    let (device, ops) = (Device::default(), ops());
    let mut small = config(&ops, &device);
    small.max_regions = 2;
    let registry = create(&small);
    let pages = Pages::new(6);
    let at = |page: usize| pages.0.wrapping_byte_add(page * PAGE);
    for (errno, status, said) in [
        (libc::EIO, PNY_ERR_BACKEND, "errno 5"),
        (-libc::EIO, PNY_ERR_BACKEND, "errno 5"),
        (libc::ENOMEM, PNY_ERR_LIMIT, "errno 12"),
        (c_int::MIN, PNY_ERR_BACKEND, "failed"),
    ] {
        device.errno.store(errno, SeqCst);
        let (got, lease) = get(registry, at(0), PAGE, 0);
        let got = if errno == libc::ENOMEM && got == PNY_ERR_BACKEND { PNY_ERR_LIMIT } else { got };
        refused(got, status, &["bench's register_memory(0x", "4096 bytes) failed", said]);
        assert_eq!(lease.ticket, 0);
    }
    device.errno.store(0, SeqCst);
    let (mut one, mut two) = (held(registry, at(0), PAGE), held(registry, at(2), PAGE));
    let (status, _) = get(registry, at(4), PAGE, 0);
    refused(status, PNY_ERR_LIMIT, &["all 2 regions", "give leases back"]);
    device.deregister_errno.store(libc::EBUSY, SeqCst);
    done(put(&mut one));
    done(put(&mut two));
    // SAFETY: nobody destroys it.
    done(unsafe { pny_flush(registry) });
    assert_eq!(counts(registry).failed_deregistrations, 2);
    destroy(registry);
    assert_eq!(
        (device.registered.load(SeqCst), device.deregistered.load(SeqCst)),
        (2, 2),
        "each asked for once"
    );
    assert_eq!(device.released.load(SeqCst), 1);
}

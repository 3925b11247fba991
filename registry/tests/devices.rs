//! The backends that open a library and a device: what they share with their callers,
//! with a forked child, and what they say where something is missing.
//!
//! What needs a device that can be spoiled runs in the emulated cluster
//! (`mpi-tests/cluster`), where each case's script sets the machine up and names it in
//! `PINYARD_TEST_SPOILED`.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::BackendError;
use pinyard_registry::backend::{Backend, DeviceMemory, DmaBuf, Libfabric, OpenError, Ucx, Verbs};
use pinyard_registry::{Access, GetError, PageRange, Registry};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

fn verbs() -> Option<Verbs> {
    opened("verbs", Verbs::open())
}

fn ucx() -> Option<Ucx> {
    let transports = std::env::var("PINYARD_TEST_UCX").unwrap_or("tcp,posix,self".to_owned());
    opened("ucx", Ucx::options().set("TLS", transports).open())
}

fn provider() -> String {
    std::env::var("PINYARD_TEST_LIBFABRIC").unwrap_or("tcp;ofi_rxm".to_owned())
}

fn libfabric() -> Option<Libfabric> {
    opened("libfabric", Libfabric::options().provider(provider()).open())
}

fn works(backend: impl Backend + 'static) {
    let registry = Registry::builder().backend(backend).build().unwrap();
    let pages = Pages::new(3);
    drop(registry.get(&pages, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap());
    assert_eq!(registry.stats().regions, 1);
    registry.flush().unwrap();
    assert_eq!((registry.stats().deregistrations, registry.stats().failed_deregistrations), (1, 0));
}

// ---- Borrowed handles ----

/// The borrower leaves the handle open.
#[test]
fn a_borrowed_protection_domain_stays_its_owners() {
    let Some(own) = verbs() else { return };
    // SAFETY: `own` outlives the borrower, which `works` drops.
    works(unsafe { Verbs::options().borrow(own.pd()) }.unwrap());
    works(own);
}

#[test]
fn a_borrowed_ucx_context_stays_its_owners() {
    let Some(own) = ucx() else { return };
    // SAFETY: as above.
    match unsafe { Ucx::options().borrow(own.context()) } {
        Ok(borrowed) => works(borrowed),
        // A UCX that was built without --enable-mt.
        Err(error) => {
            assert!(matches!(&error, OpenError::Unsupported { what: "several threads", .. }), "{error}");
            eprintln!("skipped: {error}");
        }
    }
    works(own);
}

#[test]
fn a_borrowed_domain_stays_its_owners() {
    let Some(own) = libfabric() else { return };
    let options = Libfabric::options().provider(provider()).first_key(1 << 20);
    // SAFETY: as above.
    works(unsafe { options.borrow(own.domain()) }.unwrap());
    works(own);
}

/// Two that choose their own keys in one domain meet, and the second one goes on.
#[test]
fn a_key_that_is_taken_is_not_the_end() {
    let Some(own) = libfabric() else { return };
    // SAFETY: the owner lives in the Arc that is dropped last.
    let borrowed = unsafe { Libfabric::options().provider(provider()).borrow(own.domain()) }.unwrap();
    let own = Arc::new(own);
    let first = Registry::builder().backend(own.clone()).build().unwrap();
    let second = Registry::builder().backend(borrowed).build().unwrap();
    let pages = Pages::new(4);
    let all = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let held = [0, 2].map(|page| first.get(pages.part(page, 1), all).unwrap());
    let other = second.get(pages.part(3, 1), all).unwrap();
    assert!(held.iter().all(|lease| lease.key().rkey != other.key().rkey));
    drop((held, other));
    drop(second);
    drop(first);
}

// ---- Keys ----

#[test]
fn a_verbs_key_is_the_regions() {
    let Some(verbs) = verbs() else { return };
    let registry = Registry::builder().backend(verbs).build().unwrap();
    let pages = Pages::new(1);
    let key = registry.get(&pages, Access::REMOTE_WRITE).unwrap().key();
    // `struct ibv_mr`: context, pd, addr, length, handle, lkey, rkey.
    let region = key.handle as *const u64;
    // SAFETY: the region stands while it is cached.
    let (at, len, keys) = unsafe { (*region.add(2), *region.add(3), *region.cast::<[u32; 11]>()) };
    assert_eq!((at, len), (pages.at as u64, pages.len as u64));
    assert_eq!((u64::from(keys[9]), u64::from(keys[10])), (key.lkey, key.rkey));
}

#[test]
fn a_ucx_key_has_a_packed_remote_key() {
    let Some(ucx) = ucx() else { return };
    let ucx = Arc::new(ucx);
    let registry = Registry::builder().backend(ucx.clone()).build().unwrap();
    let pages = Pages::new(1);
    let lease = registry.get(&pages, Access::REMOTE_READ).unwrap();
    assert_ne!(lease.key().lkey, 0);
    // SAFETY: the lease is held.
    let packed = unsafe { ucx.packed_rkey(lease.key()) };
    // A map of memory domains and a memory type come first in every version.
    assert!((9..4096).contains(&packed.len()), "{} bytes", packed.len());
}

// ---- Nothing is kept pinned below ----

/// KiB of this process that devices have pinned.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// KiB that stay pinned after the registry has given back a registration of 1 MiB.
fn left_by(backend: impl Backend + 'static) -> usize {
    let registry = Registry::builder().backend(backend).build().unwrap();
    let (pages, before) = (Pages::new(256), pinned());
    drop(registry.get(&pages, Access::LOCAL_WRITE).unwrap());
    assert!(pinned() - before >= 1024, "{} KiB are pinned", pinned() - before);
    registry.flush().unwrap();
    pinned() - before
}

/// UCX, and libfabric's verbs, have a cache of their own under the calls that these
/// backends make. With it, what was given back stays pinned.
#[test]
fn no_cache_below_keeps_what_was_given_back() {
    if !in_cluster() {
        eprintln!("skipped: needs a device that pins");
        return;
    }
    let transports = std::env::var("PINYARD_TEST_UCX").unwrap();
    let ucx = || Ucx::options().set("TLS", &transports);
    // Each version has its cache under one of these.
    let caches = [("RCACHE_ENABLE", "y"), ("REG_METHODS", "rcache,direct")];
    let naive = caches.map(|(name, value)| ucx().set(name, value).open().map_or(0, left_by));
    assert!(naive.iter().any(|&left| left >= 1024), "UCX's cache gave its registration back");
    assert_eq!(left_by(ucx().open().unwrap()), 0);
    assert_eq!(left_by(libfabric().unwrap()), 0);
    assert_eq!(left_by(verbs().unwrap()), 0);
}

// ---- fork ----

/// A child that drops what it inherited takes nothing from its parent.
fn survives_a_fork(backend: impl Backend + 'static) {
    let registry = Registry::builder().backend(backend).build().unwrap();
    let pages = Pages::new(2);
    drop(registry.get(pages.part(0, 1), Access::LOCAL_WRITE).unwrap());
    // The kernel itself keeps a protection domain that has regions.
    registry.flush().unwrap();
    let mut kept = Some(registry);
    let status = forked(|| {
        let registry = kept.take().unwrap();
        let refused = matches!(registry.get(pages.part(1, 1), Access::LOCAL_READ), Err(GetError::Forked));
        drop(registry);
        refused
    });
    assert_eq!(status, 0);
    let registry = kept.unwrap();
    drop(registry.get(pages.part(1, 1), Access::LOCAL_WRITE).unwrap());
    registry.flush().unwrap();
    assert_eq!(registry.stats().failed_deregistrations, 0);
}

#[test]
fn a_forked_child_leaves_the_parents_device_alone() {
    if let Some(verbs) = verbs() {
        survives_a_fork(verbs);
    }
    if let Some(ucx) = ucx() {
        survives_a_fork(ucx);
    }
    if let Some(libfabric) = libfabric() {
        survives_a_fork(libfabric);
    }
}

// ---- What is missing ----

/// A library of our own making, in a folder of the test's.
struct Stub(PathBuf);

impl Stub {
    fn of(source: &str) -> Stub {
        // A library that was opened stays: each has a name of its own.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (pid, made) = (std::process::id(), MADE.fetch_add(1, Relaxed));
        let folder = std::env::temp_dir().join(format!("pinyard-stub-{pid}-{made}"));
        std::fs::create_dir_all(&folder).unwrap();
        let (code, library) = (folder.join("stub.c"), folder.join("stub.so"));
        std::fs::write(&code, source).unwrap();
        let cc =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&code).output().unwrap();
        assert!(cc.status.success(), "{}", String::from_utf8_lossy(&cc.stderr));
        Stub(folder)
    }

    fn library(&self) -> PathBuf {
        self.0.join("stub.so")
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Word for word: what the user sees.
fn says(error: &OpenError, expected: &str) {
    assert_eq!(error.to_string(), expected);
}

fn refusals(library: &std::path::Path) -> [OpenError; 3] {
    [
        Verbs::options().library(library).open().err().unwrap(),
        Ucx::options().library(library).open().err().unwrap(),
        Libfabric::options().library(library).open().err().unwrap(),
    ]
}

#[test]
fn an_absent_library_is_named_with_the_loaders_words() {
    for error in refusals("/nowhere/lib.so.1".as_ref()) {
        assert!(matches!(&error, OpenError::Absent { .. }), "{error}");
    }
    let packages = ["libibverbs1 ibverbs-providers", "libucx0", "libfabric1"];
    for (error, package) in refusals("/nowhere/lib.so.1".as_ref()).iter().zip(packages) {
        says(
            error,
            &format!(
                "/nowhere/lib.so.1 cannot be opened: /nowhere/lib.so.1: cannot open shared object file: \
                 No such file or directory; install it (Debian: {package}), or name its file"
            ),
        );
    }
    for error in refusals("/proc/self/status".as_ref()) {
        assert!(matches!(&error, OpenError::Absent { loader, .. } if !loader.is_empty()), "{error}");
    }
}

#[test]
fn a_library_without_the_functions_is_another_version() {
    if in_cluster() {
        return eprintln!("skipped: a node of the emulated cluster has no compiler");
    }
    let stub = Stub::of("int nothing_that_is_asked_for;");
    for error in refusals(&stub.library()) {
        assert!(matches!(&error, OpenError::Symbol { .. }), "{error}");
        assert!(error.to_string().contains("stub.so has no "), "{error}");
    }
}

#[test]
fn a_library_of_another_version_is_refused() {
    if in_cluster() {
        return eprintln!("skipped: a node of the emulated cluster has no compiler");
    }
    let functions = |names: &[&str]| {
        names.iter().map(|name| format!("int {name}(void) {{ return 1; }}\n")).collect::<String>()
    };
    let ucp = functions(&[
        "ucp_config_read",
        "ucp_config_modify",
        "ucp_config_release",
        "ucp_init_version",
        "ucp_cleanup",
        "ucp_context_query",
        "ucp_mem_map",
        "ucp_mem_unmap",
        "ucp_rkey_pack",
        "ucp_rkey_buffer_release",
    ]) + "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 2; *b = 0; *c = 1; }";
    let stub = Stub::of(&ucp);
    let error = Ucx::options().library(stub.library()).open().err().unwrap();
    assert!(matches!(&error, OpenError::Version { found, .. } if found == "2.0.1"), "{error}");
    says(&error, "UCX is version 2.0.1; 1.8 or newer, below 2 is needed");
    drop(stub);
    let fabric = functions(&["fi_getinfo", "fi_freeinfo", "fi_dupinfo", "fi_fabric", "fi_strerror"])
        + "unsigned fi_version(void) { return 1 << 16 | 8; }";
    let stub = Stub::of(&fabric);
    let error = Libfabric::options().library(stub.library()).open().err().unwrap();
    assert!(matches!(&error, OpenError::Version { found, .. } if found == "1.8"), "{error}");
    says(&error, "libfabric is version 1.8; 1.9 or newer is needed");
}

#[test]
fn a_provider_that_is_not_there_is_named_with_those_that_are() {
    if libfabric().is_none() {
        return;
    }
    let error = Libfabric::options().provider("carrier-pigeon").open().err().unwrap();
    let OpenError::NoProvider { there, .. } = &error else { panic!("{error}") };
    assert!(there.contains(&provider()), "{there:?}");
    let there = there.join(", ");
    says(&error, &format!("libfabric has no provider \"carrier-pigeon\" here; there are {there}"));
    let error = Libfabric::options().provider("a\0b").open().err().unwrap();
    assert!(matches!(&error, OpenError::Call(call) if call.errno == libc::EINVAL), "{error}");
}

#[test]
fn a_setting_that_ucx_does_not_have_is_refused() {
    if ucx().is_none() {
        return;
    }
    let error = Ucx::options().set("TLS", "carrier-pigeon").open().err().unwrap();
    assert!(matches!(&error, OpenError::Call(call) if call.call.contains("ucp_init")), "{error}");
    assert!(error.to_string().contains("UCX says"), "{error}");
    let error = Ucx::options().set("MAX_EAGER_LANES", "many").open().err().unwrap();
    assert!(matches!(&error, OpenError::Call(call) if call.call.contains("MAX_EAGER_LANES")), "{error}");
}

#[test]
fn no_device_is_said_with_what_the_kernel_has() {
    if std::path::Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut entries| entries.next().is_some())
    {
        // Below, such a node's devices are taken away.
        return eprintln!("skipped: there are RDMA devices, of this machine or node of the emulated cluster");
    }
    match Verbs::open() {
        Err(error @ OpenError::NoDevice { .. }) => {
            assert!(error.to_string().contains("load the NIC's driver"), "{error}")
        }
        Err(error @ OpenError::Absent { .. }) => eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
        Ok(verbs) => panic!("{}", verbs.device_name()),
    }
}

// ---- With a device ----

#[test]
fn a_device_and_a_port_that_are_not_there_are_named() {
    let Some(verbs) = verbs() else { return };
    let error = Verbs::options().device("mlx9_9").open().err().unwrap();
    let OpenError::NoSuchDevice { name, there } = &error else { panic!("{error}") };
    assert_eq!(name, "mlx9_9");
    assert!(there.iter().any(|name| name == verbs.device_name()), "{there:?}");
    let error = Verbs::options().device(verbs.device_name()).port(200).open().err().unwrap();
    assert!(matches!(&error, OpenError::NoSuchPort { port: 200, .. }), "{error}");
    drop(Verbs::options().device(verbs.device_name()).port(1).open().unwrap());
}

#[test]
fn relaxed_ordering_registers() {
    if verbs().is_some() {
        works(Verbs::options().relaxed_ordering(true).open().unwrap());
    }
}

/// Registered on demand, or refused because the device says that it cannot.
#[test]
fn on_demand_paging_is_as_the_device_says() {
    let Some(verbs) = verbs() else { return };
    match (verbs.on_demand_paging(), Verbs::options().on_demand(true).open()) {
        (Some(_), Ok(backend)) => {
            assert!(!backend.locks_memory());
            works(backend);
        }
        (None, Err(error)) => {
            assert!(matches!(&error, OpenError::Unsupported { what: "on-demand paging", .. }), "{error}");
            eprintln!("skipped: {error}");
        }
        (says, Ok(_)) => panic!("the device says {says:?} and is opened"),
        (says, Err(error)) => panic!("the device says {says:?}: {error}"),
    }
}

/// Device memory of a kind that no driver takes: a file.
struct NoGpu;

impl DeviceMemory for NoGpu {
    fn device_of(&self, range: PageRange) -> Result<Option<i32>, BackendError> {
        Ok((range.len() == 2 * PAGE).then_some(0))
    }

    fn export(&self, _: PageRange) -> Result<DmaBuf, BackendError> {
        // SAFETY: a file without a name.
        let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"buffer".as_ptr(), 0)) };
        Ok(DmaBuf { fd, offset: 0 })
    }
}

/// Soft-RoCE takes no dma-buf.
#[test]
fn device_memory_is_refused_where_the_device_takes_none() {
    let Some(verbs) = verbs() else { return };
    if !verbs.device_name().starts_with("rxe") {
        eprintln!("skipped: {} may take a dma-buf", verbs.device_name());
        return;
    }
    let registry =
        Registry::builder().backend(Verbs::options().device_memory(NoGpu).open().unwrap()).build().unwrap();
    let pages = Pages::new(3);
    let error = registry.get(pages.part(0, 2), Access::LOCAL_WRITE).unwrap_err();
    let GetError::Backend { source, .. } = &error else { panic!("{error}") };
    assert!(source.is_unsupported(), "{error}");
    assert!(
        error.to_string().contains("ibv_reg_dmabuf_mr") && error.to_string().contains("dma-buf;"),
        "{error}"
    );
    drop(registry.get(pages.part(2, 1), Access::LOCAL_WRITE).unwrap());
}

// ---- Spoiled machines, each set up by mpi-tests/cluster ----

fn spoiled(how: &str) -> bool {
    let yes = std::env::var("PINYARD_TEST_SPOILED").is_ok_and(|spoiled| spoiled == how);
    if !yes {
        eprintln!("skipped: needs a node of the emulated cluster with its {how} spoiled");
    }
    yes
}

fn in_cluster() -> bool {
    std::env::var_os("PINYARD_TEST_REQUIRE").is_some()
}

#[test]
fn spoiled_port_down() {
    if !spoiled("port") {
        return;
    }
    let device = std::env::var("PINYARD_TEST_VERBS").unwrap();
    let error = Verbs::options().device(&device).open().err().unwrap();
    assert!(matches!(&error, OpenError::PortDown { .. }), "{error}");
    says(
        &error,
        "RDMA device rxe1 has no active port (port 1 is DOWN); see `ibv_devinfo -d rxe1` and `ip link`",
    );
    // The other device of the node works, and is what is chosen.
    assert_ne!(Verbs::open().unwrap().device_name(), device);
}

#[test]
fn spoiled_no_permission() {
    if !spoiled("permission") {
        return;
    }
    let error = Verbs::options().device("rxe0").open().err().unwrap();
    assert!(matches!(&error, OpenError::Denied { errno: libc::EACCES, .. }), "{error}");
    says(
        &error,
        "RDMA device rxe0: opening /dev/infiniband/uverbs0 is not permitted (errno 13); see its owner and mode, \
         the udev rules of rdma-core, and in a container its device cgroup",
    );
    // Unasked, each of the node's devices is tried, and each says why not.
    let error = Verbs::open().err().unwrap();
    let OpenError::NoneUsable(each) = &error else { panic!("{error}") };
    assert!(each.len() == 2 && each.iter().all(|error| matches!(error, OpenError::Denied { .. })), "{error}");
    let said = error.to_string();
    assert!(
        said.starts_with("none of the RDMA devices is usable: RDMA device rxe") && said.contains("uverbs1"),
        "{said}"
    );
}

#[test]
fn spoiled_no_device() {
    if !spoiled("device") {
        return;
    }
    let error = Verbs::open().err().unwrap();
    assert!(matches!(&error, OpenError::NoDevice { .. }), "{error}");
    says(
        &error,
        "no RDMA device: the kernel's RDMA core is loaded but has no device; load the NIC's driver, \
         or `rdma link add rxe0 type rxe netdev eth0`",
    );
}

#[test]
fn spoiled_device_file_missing() {
    if !spoiled("file") {
        return;
    }
    let error = Verbs::open().err().unwrap();
    assert!(matches!(&error, OpenError::NoDevice { .. }), "{error}");
    says(
        &error,
        "no RDMA device: the kernel has rxe0, rxe1, but libibverbs opens none; pass /dev/infiniband into the \
         container, load ib_uverbs, and install the provider's driver (ibverbs-providers)",
    );
}

/// RLIMIT_MEMLOCK of 64 KiB, without CAP_IPC_LOCK: within it a registration works, then
/// what is only cached makes room, and beyond it the error names the limit.
#[test]
fn spoiled_memlock() {
    if !spoiled("memlock") {
        return;
    }
    let limit = 64 << 10;
    // The default budget heeds the limit; a larger one meets the kernel's refusal.
    for budget in [None, Some(1 << 30)] {
        let builder = Registry::builder().backend(Verbs::open().unwrap());
        let registry = match budget {
            Some(bytes) => builder.budget(bytes).build().unwrap(),
            None => builder.build().unwrap(),
        };
        let pages = Pages::new(64);
        for page in 0..60 {
            drop(registry.get(pages.part(page, 1), Access::LOCAL_WRITE).unwrap());
        }
        assert!(registry.stats().pinned_bytes <= limit);
        let error = registry.get(pages.part(0, 32), Access::LOCAL_WRITE).unwrap_err();
        match (&error, budget) {
            (GetError::Budget { budget: 65536, .. }, None) => {}
            (GetError::Memlock { limit: 65536, .. }, Some(_)) => {}
            _ => panic!("{error}"),
        }
        let said = error.to_string();
        assert!(said.contains("RLIMIT_MEMLOCK") && said.contains("ulimit -l"), "{said}");
        drop(registry.get(pages.part(0, 4), Access::LOCAL_WRITE).unwrap());
    }
}

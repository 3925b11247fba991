use super::*;
use crate::doctor::facts::{Gpu, Version};
use crate::doctor::made_up::{self, good_node, gpu_node, library, mpi};

fn set(facts: &mut Facts, name: &str, value: &str) {
    assert!(settings::is_looked_at(name), "{name} is looked at");
    facts.environment.insert(name.to_owned(), value.to_owned());
}

/// The findings about a subject.
fn about(facts: &Facts, subject: &str) -> Vec<Finding> {
    judge(facts).into_iter().filter(|finding| finding.subject == subject).collect()
}

fn mends(facts: &Facts) -> Vec<String> {
    judge(facts).into_iter().filter(|one| one.weight == Weight::Mend).map(|one| one.what).collect()
}

#[test]
fn good_nodes_have_nothing_to_mend() {
    for facts in [good_node(), gpu_node()] {
        assert_eq!(mends(&facts), [""; 0]);
        assert!(!to_mend(&judge(&facts)));
    }
}

#[test]
fn a_machine_with_nothing_installed_has_nothing_to_mend() {
    let bare = Facts { mpi: vec![], libfabric: vec![], ucx: vec![], nics: vec![], ..good_node() };
    assert_eq!(judge(&bare), []);
    assert_eq!(judge(&Facts::default()), []);
}

#[test]
fn little_locked_memory_is_to_be_mended_by_whom_it_can_be() {
    let mut facts = good_node();
    facts.limits.memlock = Some(64 << 10);
    facts.limits.memlock_hard = Some(64 << 10);
    facts.under_slurm = true;
    let [finding] = &about(&facts, subject::MEMLOCK)[..] else { panic!("one") };
    assert_eq!(finding.weight, Weight::Mend);
    assert_eq!(finding.what, "RLIMIT_MEMLOCK is 64 KiB");
    assert!(finding.remedy.contains("LimitMEMLOCK=infinity in slurmd's unit"), "{finding:?}");
    facts.under_slurm = false;
    assert!(about(&facts, subject::MEMLOCK)[0].remedy.contains("limits.conf"));
    facts.limits.memlock_hard = None;
    assert!(about(&facts, subject::MEMLOCK)[0].remedy.starts_with("ulimit -l"));
    // Enough to begin with, and less than the default budget.
    facts.limits.memlock = Some(1 << 30);
    assert_eq!(about(&facts, subject::MEMLOCK)[0].weight, Weight::Note);
    facts.limits.may_lock_anything = true;
    assert_eq!(about(&facts, subject::MEMLOCK), []);
}

#[test]
fn a_libfabric_before_2_6_hangs_until_it_is_preloaded_or_does_not_cache() {
    let mut facts = good_node();
    let path = "/usr/lib/libfabric.so.1";
    facts.libfabric = vec![library(path, Version(1, 18, 0))];
    let hang = |facts: &Facts| {
        let mut findings = about(facts, path).into_iter();
        findings.find(|one| one.what.contains("#13149") && one.weight == Weight::Mend)
    };
    assert_eq!(hang(&facts).unwrap().remedy, "LD_PRELOAD=libpinyard_preload.so");
    facts.preload = Some("/opt/lib/libpinyard_preload.so".to_owned());
    assert_eq!(hang(&facts).unwrap().remedy, "LD_PRELOAD=/opt/lib/libpinyard_preload.so");
    for (name, value) in [("LD_PRELOAD", "/opt/lib/libpinyard_preload.so"), ("FI_MR_CACHE_MAX_COUNT", "0")] {
        let mut cured = facts.clone();
        set(&mut cured, name, value);
        assert_eq!(hang(&cured), None, "{name}");
    }
    for version in [Version(2, 5, 0), Version(1, 13, 0)] {
        facts.libfabric[0].version = Some(version);
        assert!(hang(&facts).is_some(), "{version}");
    }
    for version in [Version(2, 6, 0), Version(1, 12, 0)] {
        facts.libfabric[0].version = Some(version);
        assert_eq!(hang(&facts), None, "{version}");
    }
    facts.libfabric[0].version = Some(Version(1, 18, 0));
    facts.nics.clear();
    assert_eq!(hang(&facts), None, "its providers of TCP and shared memory have no cache");
}

#[test]
fn the_variable_that_an_import_overrides_does_not_do_what_it_says() {
    let mut facts = good_node();
    facts.libfabric = vec![library("/usr/lib/libfabric.so.1", Version(1, 18, 0))];
    set(&mut facts, settings::MONITOR, "disabled");
    let finding = &about(&facts, settings::MONITOR)[0];
    assert_eq!(finding.remedy, "unset FI_MR_CACHE_MONITOR");
    assert!(finding.consequence.contains("overridden by what Open MPI imports"), "{finding:?}");
    // Told not to import, and libfabric told to hear of changes from the kernel: a cure.
    let mut told = facts.clone();
    set(&mut told, settings::MONITOR, "userfaultfd");
    assert!(mends(&told).iter().any(|what| what.contains("#13149")), "{:?}", mends(&told));
    set(&mut told, "OMPI_MCA_memory", "^patcher");
    assert_eq!(about(&told, settings::MONITOR), []);
    assert_eq!(mends(&told).iter().find(|what| what.contains("#13149")), None);
    // Without the monitor libfabric patches as well.
    told.environment.remove(settings::MONITOR);
    assert!(mends(&told).iter().any(|what| what.contains("#13149")), "{:?}", mends(&told));
    // It keeps the preload library out as well.
    set(&mut facts, "LD_PRELOAD", "libpinyard_preload.so");
    assert!(mends(&facts).iter().any(|what| what.contains("#13149")), "{:?}", mends(&facts));
    // Without Open MPI and the library it is what libfabric does.
    facts.mpi = vec![mpi("/usr/lib/libmpich.so.12", "MPICH 4.0.2")];
    facts.environment.remove("LD_PRELOAD");
    assert_eq!(about(&facts, settings::MONITOR), []);
}

#[test]
fn settings_of_the_caches_are_shown_whether_their_effect_is_known_or_not() {
    let unknown = ["FI_EFA_MR_CACHE_ENABLE", "FI_MR_ROCR_CACHE_MONITOR_ENABLED", "UCX_IB_REG_METHODS"];
    for name in
        unknown.into_iter().chain(["UCX_MEMTYPE_CACHE", "UCX_MEM_MALLOC_HOOKS", "UCX_IB_RCACHE_MEM_PRIO"])
    {
        assert!(settings::is_looked_at(name), "{name}");
        assert!(settings::effect(&good_node(), name, "y").ends_with("not judged"), "{name}");
    }
    for name in ["FI_LOG_LEVEL", "UCX_LOG_LEVEL", "PATH", "FI_PROVIDER_PATH", "UCX_MAX_RNDV_RAILS"] {
        assert!(!settings::is_looked_at(name), "{name}");
    }
}

#[test]
fn ucx_whose_queue_grows() {
    let mut facts = good_node();
    for (version, grows) in [((1, 13, 1), false), ((1, 17, 0), true), ((1, 20, 1), true), ((1, 21, 0), false)]
    {
        facts.ucx = vec![library("/usr/lib/libucp.so.0", Version(version.0, version.1, version.2))];
        assert_eq!(mends(&facts).iter().any(|what| what.contains("#24264")), grows, "{version:?}");
    }
}

#[test]
fn the_wheel_that_corrupts() {
    let mut facts = good_node();
    facts.mpi = vec![mpi("/venv/lib/libmpi.so.40", "Open MPI v5.0.11rc1")];
    facts.libfabric = vec![library("/venv/lib/libfabric.so.1", Version(2, 6, 0))];
    assert_eq!(about(&facts, "/venv/lib/libmpi.so.40")[0].remedy, "UCX_MEM_MMAP_HOOK_MODE=reloc");
    set(&mut facts, "UCX_MEM_MMAP_HOOK_MODE", "reloc");
    assert_eq!(about(&facts, "/venv/lib/libmpi.so.40"), []);
}

#[test]
fn io_uring_matters_where_there_is_no_nic() {
    let mut facts = good_node();
    facts.kernel.io_uring =
        Facility::Refused("io_uring is disabled: sysctl kernel.io_uring_disabled is 2".into());
    assert_eq!(about(&facts, subject::IO_URING)[0].weight, Weight::Note);
    facts.nics.clear();
    assert_eq!(about(&facts, subject::IO_URING)[0].weight, Weight::Mend);
    assert_eq!(about(&facts, subject::IO_URING)[0].remedy, "sysctl -w kernel.io_uring_disabled=0");
    facts.kernel.io_uring = Facility::Refused("io_uring_setup: Operation not permitted".into());
    facts.kernel.seccomp = true;
    assert!(about(&facts, subject::IO_URING)[0].remedy.contains("seccomp"));
}

#[test]
fn hooks_that_miss_calls_stop_registries_where_nothing_else_watches() {
    let mut facts = good_node();
    facts.hooks.complete = false;
    facts.hooks.unseen = vec!["munmap: mprotect (errno 13)".to_owned()];
    assert_eq!(about(&facts, subject::HOOKS)[0].weight, Weight::Note);
    facts.kernel.userfaultfd = Facility::Refused("EPERM".to_owned());
    assert_eq!(about(&facts, subject::HOOKS)[0].weight, Weight::Mend);
    assert!(about(&facts, subject::HOOKS)[0].what.contains("mprotect"));
}

#[test]
fn ports_and_files_of_nics() {
    let mut facts = good_node();
    facts.nics[0].ports[0].state = "DOWN".to_owned();
    assert_eq!(mends(&facts), ["mlx5_0: port 1 is DOWN"]);
    let second = crate::doctor::facts::Port { state: "ACTIVE".to_owned(), ..facts.nics[0].ports[0].clone() };
    facts.nics[0].ports.push(second);
    assert_eq!(mends(&facts), [""; 0], "one of two is a note");
    facts.nics[1].verbs =
        Facility::Refused("open(/dev/infiniband/uverbs1): Permission denied (os error 13)".into());
    let findings = about(&facts, "mlx5_1");
    assert!(findings[0].remedy.starts_with("read and write for the user"), "{findings:?}");
}

#[test]
fn a_nic_reaches_gpu_memory_by_one_of_two_ways() {
    let mut facts = gpu_node();
    facts.gpus.devices.iter_mut().for_each(|gpu| gpu.dma_buf = Some(false));
    assert_eq!(about(&facts, subject::PEER)[0].remedy, "modprobe nvidia-peermem");
    facts.gpus.peer_memory = true;
    assert_eq!(about(&facts, subject::PEER), []);
    facts.gpus.peer_memory = false;
    facts.gpus.devices.iter_mut().for_each(|gpu| gpu.dma_buf = None);
    assert_eq!(about(&facts, subject::PEER), [], "not asked, not judged");
}

#[test]
fn a_gpu_without_a_nic_on_its_node_is_noted() {
    let mut facts = gpu_node();
    assert_eq!(about(&facts, "0000:be:00.0"), []);
    facts.nics.pop();
    assert_eq!(about(&facts, "0000:be:00.0")[0].weight, Weight::Note);
    facts.gpus.devices.push(Gpu::default());
    assert_eq!(mends(&facts), [""; 0], "a GPU of which nothing is known");
}

#[test]
fn gpus_and_what_cannot_reach_them() {
    let mut facts = gpu_node();
    facts.mpi = made_up::good_node().mpi;
    assert!(about(&facts, "/usr/lib/libmpi.so.40")[0].what.ends_with("was built without CUDA"));
    facts.gpus.cuda = Facility::Refused("the CUDA driver refuses: cuInit(0) failed".to_owned());
    assert_eq!(about(&facts, subject::CUDA)[0].weight, Weight::Mend);
    facts.environment.clear();
    assert!(mends(&facts).iter().any(|what| what.contains("#9003")), "{:?}", mends(&facts));
}

#[test]
fn the_heaviest_comes_first() {
    let mut facts = good_node();
    facts.kernel.transparent_huge_pages = Some("never".to_owned());
    facts.nics[1].ports[0].state = "INIT".to_owned();
    let weights: Vec<Weight> = judge(&facts).iter().map(|finding| finding.weight).collect();
    assert!(weights.is_sorted_by(|one, other| one >= other) && weights.len() > 2, "{weights:?}");
}

#[test]
fn bytes_read_well() {
    for (number, text) in
        [(0, "0 bytes"), (65536, "64 KiB"), (8 << 20, "8 MiB"), (3 << 29, "1.5 GiB"), (10 << 30, "10 GiB")]
    {
        assert_eq!(bytes(number), text);
    }
}

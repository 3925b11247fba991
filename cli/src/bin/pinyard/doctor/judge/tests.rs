use super::*;
use crate::doctor::facts::{Gpu, Limits, Mpi, Version};
use crate::doctor::made_up::{self, good_node, gpu_node, library, mpi};
use std::collections::BTreeSet;

fn set(facts: &mut Facts, name: &str, value: &str) {
    assert!(settings::is_looked_at(name), "{name} is looked at");
    facts.environment.insert(name.to_owned(), value.to_owned());
}

/// The findings about a subject.
fn about(facts: &Facts, subject: &str) -> Vec<Finding> {
    judge(facts).into_iter().filter(|finding| finding.subject == subject).collect()
}

fn fixes(facts: &Facts) -> Vec<String> {
    judge(facts).into_iter().filter(|one| one.weight == Weight::Fail).map(|one| one.what).collect()
}

#[test]
fn good_nodes_have_nothing_to_fix() {
    for facts in [good_node(), gpu_node()] {
        assert_eq!(fixes(&facts), [""; 0]);
        assert!(!to_fix(&judge(&facts)));
    }
}

#[test]
fn a_machine_with_nothing_installed_has_nothing_to_fix() {
    let bare = Facts { mpi: vec![], libfabric: vec![], ucx: vec![], nics: vec![], ..good_node() };
    assert_eq!(judge(&bare), []);
    assert_eq!(judge(&Facts::default()), []);
}

#[test]
fn little_locked_memory_is_to_be_fixed_by_whom_it_can_be() {
    let mut facts = good_node();
    facts.limits.memlock = Some(64 << 10);
    facts.limits.memlock_hard = Some(64 << 10);
    facts.under_slurm = true;
    let [finding] = &about(&facts, subject::MEMLOCK)[..] else { panic!("one") };
    assert_eq!(finding.weight, Weight::Fail);
    assert_eq!(finding.what, "RLIMIT_MEMLOCK is 64 KiB");
    assert!(finding.remedy.contains("LimitMEMLOCK=infinity in slurmd's unit"), "{finding:?}");
    facts.under_slurm = false;
    assert!(about(&facts, subject::MEMLOCK)[0].remedy.contains("limits.conf"));
    facts.limits.memlock_hard = None;
    assert!(about(&facts, subject::MEMLOCK)[0].remedy.starts_with("ulimit -l"));
    // Enough to begin with, and less than the default budget.
    facts.limits.memlock = Some(1 << 30);
    assert_eq!(about(&facts, subject::MEMLOCK)[0].weight, Weight::Warn);
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
        findings.find(|one| one.what.contains("#13149") && one.weight == Weight::Fail)
    };
    assert_eq!(hang(&facts).unwrap().remedy, "FI_MR_CACHE_MAX_COUNT=0");
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
    assert!(fixes(&told).iter().any(|what| what.contains("#13149")), "{:?}", fixes(&told));
    set(&mut told, "OMPI_MCA_memory", "^patcher");
    assert_eq!(about(&told, settings::MONITOR), []);
    assert_eq!(fixes(&told).iter().find(|what| what.contains("#13149")), None);
    // Without the monitor libfabric patches as well.
    told.environment.remove(settings::MONITOR);
    assert!(fixes(&told).iter().any(|what| what.contains("#13149")), "{:?}", fixes(&told));
    // It keeps the preload library out as well.
    set(&mut facts, "LD_PRELOAD", "libpinyard_preload.so");
    assert!(fixes(&facts).iter().any(|what| what.contains("#13149")), "{:?}", fixes(&facts));
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
        assert_eq!(fixes(&facts).iter().any(|what| what.contains("#24264")), grows, "{version:?}");
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
    assert_eq!(about(&facts, subject::IO_URING)[0].weight, Weight::Warn);
    facts.nics.clear();
    assert_eq!(about(&facts, subject::IO_URING)[0].weight, Weight::Fail);
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
    assert_eq!(about(&facts, subject::HOOKS)[0].weight, Weight::Warn);
    facts.kernel.userfaultfd = Facility::Refused("EPERM".to_owned());
    assert_eq!(about(&facts, subject::HOOKS)[0].weight, Weight::Fail);
    assert!(about(&facts, subject::HOOKS)[0].what.contains("mprotect"));
}

#[test]
fn a_thread_that_cannot_be_made_has_a_remedy_of_its_own() {
    let mut facts = good_node();
    facts.kernel.userfaultfd = Facility::Refused("pthread_create(the thread): Resource unavailable".into());
    let finding = &about(&facts, subject::USERFAULTFD)[0];
    assert!(finding.what.contains("pthread_create") && finding.remedy.contains("ulimit -u"), "{finding:?}");
}

#[test]
fn ports_and_files_of_nics() {
    let mut facts = good_node();
    facts.nics[0].ports[0].state = "DOWN".to_owned();
    assert_eq!(fixes(&facts), ["mlx5_0: port 1 is DOWN"]);
    let second = crate::doctor::facts::Port { state: "ACTIVE".to_owned(), ..facts.nics[0].ports[0].clone() };
    facts.nics[0].ports.push(second);
    assert_eq!(fixes(&facts), [""; 0], "one of two is a note");
    facts.nics[1].verbs =
        Facility::Refused("open(/dev/infiniband/uverbs1): Permission denied (os error 13)".into());
    let findings = about(&facts, "mlx5_1");
    assert!(findings[0].remedy.starts_with("chmod a+rw /dev/infiniband"), "{findings:?}");
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
    assert_eq!(about(&facts, "0000:be:00.0")[0].weight, Weight::Warn);
    facts.gpus.devices.push(Gpu::default());
    assert_eq!(fixes(&facts), [""; 0], "a GPU of which nothing is known");
}

#[test]
fn gpus_and_what_cannot_reach_them() {
    let mut facts = gpu_node();
    facts.mpi = made_up::good_node().mpi;
    assert!(about(&facts, "/usr/lib/libmpi.so.40")[0].what.ends_with("was built without CUDA"));
    facts.gpus.cuda = Facility::Refused("the CUDA driver refuses: cuInit(0) failed".to_owned());
    assert_eq!(about(&facts, subject::CUDA)[0].weight, Weight::Fail);
    facts.environment.clear();
    assert!(fixes(&facts).iter().any(|what| what.contains("#9003")), "{:?}", fixes(&facts));
}

/// Machines on which everything is wrong that can be, each in a way of its own.
fn wrong_in_every_way() -> Vec<Facts> {
    let refused = |why: &str| Facility::Refused(why.to_owned());
    let mut all = gpu_node();
    all.limits = Limits { memlock: Some(64 << 10), cgroup_memory: Some(1 << 20), ..all.limits };
    all.kernel.io_uring = refused("io_uring_setup: Operation not permitted");
    all.kernel.userfaultfd = refused("userfaultfd: Operation not permitted");
    all.kernel.transparent_huge_pages = Some("never".to_owned());
    (all.hooks.complete, all.hooks.unseen) = (false, vec!["munmap: mprotect (errno 13)".to_owned()]);
    let silent = |path: &str| Library { path: path.to_owned(), silent: Some("no".into()), version: None };
    all.mpi = vec![
        Mpi { path: "/lib/libmpi.so".to_owned(), silent: Some("no".into()), ..Mpi::default() },
        mpi("/venv/lib/libmpi.so.40", "Open MPI v5.0.11"),
    ];
    let old = |path: &str, version| library(path, version);
    all.libfabric = vec![
        silent("/lib/libfabric.so"),
        old("/lib/libfabric.so.1", Version(1, 18, 0)),
        old("/lib/libfabric.so.2", Version(2, 0, 0)),
    ];
    all.ucx = vec![silent("/lib/libucp.so"), old("/lib/libucp.so.0", Version(1, 18, 0))];
    all.environment.clear();
    for (name, value) in [("UCX_MEM_EVENTS", "n"), (settings::MONITOR, "memhooks")] {
        set(&mut all, name, value);
    }
    all.gpus.cuda = refused("the CUDA driver refuses: cuInit(0) failed");
    all.gpus.devices.iter_mut().for_each(|gpu| gpu.dma_buf = Some(false));
    all.nics[0].verbs = refused("open(/dev/infiniband/uverbs0): Permission denied (os error 13)");
    all.nics[1].ports[0].state = "DOWN".to_owned();
    let with = |change: fn(&mut Facts)| {
        let mut facts = all.clone();
        change(&mut facts);
        facts
    };
    vec![
        with(|facts| facts.kernel.seccomp = true),
        with(|facts| facts.under_slurm = true),
        with(|facts| facts.nics.clear()),
        with(|facts| facts.limits.memlock_hard = Some(64 << 10)),
        with(|facts| facts.preload = Some("/opt/lib/libpinyard_preload.so".to_owned())),
        with(|facts| facts.gpus.cuda = Facility::Refused("dlopen(libcuda.so.1): no file".to_owned())),
        with(|facts| facts.nics[0].verbs = Facility::Refused("mlx5_0 has no uverbs device: is".to_owned())),
        with(|facts| facts.nics[0].ports[0].state = "INIT".to_owned()),
        with(|facts| {
            facts.environment.remove(settings::MONITOR);
            set(facts, settings::MEMORY, "^patcher");
        }),
        all,
    ]
}

#[test]
fn whatever_is_wrong_has_a_remedy() {
    let mut fixed = BTreeSet::new();
    for facts in wrong_in_every_way() {
        for Finding { weight, subject, remedy, .. } in judge(&facts) {
            assert!(!remedy.trim().is_empty(), "{subject}: {facts:?}");
            // A bare name is found only where the loader looks.
            assert!(!remedy.contains("LD_PRELOAD=") || remedy.contains("LD_PRELOAD=/opt/"), "{remedy}");
            if weight == Weight::Fail {
                fixed.insert(subject);
            }
        }
    }
    let all = [
        subject::MEMLOCK,
        subject::IO_URING,
        subject::HOOKS,
        subject::CUDA,
        subject::PEER,
        settings::MONITOR,
        "/venv/lib/libmpi.so.40",
        "/lib/libfabric.so.1",
        "/lib/libucp.so.0",
        "mlx5_0",
        "mlx5_1",
    ];
    let missed: Vec<_> = all.iter().filter(|subject| !fixed.contains(**subject)).collect();
    assert!(missed.is_empty(), "{missed:?} of {fixed:?}");
}

#[test]
fn a_setting_that_is_to_mend_something_does() {
    for preload in [None, Some("/opt/lib/libpinyard_preload.so".to_owned())] {
        let mut facts = gpu_node();
        facts.environment.clear();
        facts.preload = preload;
        facts.mpi = vec![mpi("/venv/lib/libmpi.so.40", "Open MPI v5.0.11")];
        facts.libfabric = vec![library("/lib/libfabric.so.1", Version(2, 5, 0))];
        facts.ucx = vec![library("/lib/libucp.so.0", Version(1, 18, 0))];
        set(&mut facts, settings::MONITOR, "memhooks");
        // Twice, as what hides a fault is among what is to be fixed.
        for _ in 0..2 {
            let to_fix = judge(&facts).into_iter().filter(|one| one.weight == Weight::Fail);
            for Finding { remedy, .. } in to_fix {
                match (remedy.strip_prefix("unset "), remedy.split_once('=')) {
                    (Some(name), _) => drop(facts.environment.remove(name)),
                    (None, Some((name, value))) => set(&mut facts, name, value),
                    (None, None) => panic!("no setting: {remedy}"),
                }
            }
        }
        assert_eq!(fixes(&facts), [""; 0], "{:?}", facts.environment);
        assert!(!facts.environment.is_empty());
    }
}

#[test]
fn what_is_set_and_hangs_all_the_same_is_noted() {
    let mut facts = good_node();
    set(&mut facts, settings::MEMORY, "^patcher");
    assert_eq!(about(&facts, settings::MEMORY), [], "libfabric 2.6 does not hang");
    facts.libfabric = vec![library("/usr/lib/libfabric.so.1", Version(1, 18, 0))];
    let finding = &about(&facts, settings::MEMORY)[0];
    assert_eq!((finding.weight, &finding.remedy[..]), (Weight::Warn, "FI_MR_CACHE_MONITOR=userfaultfd"));
    assert!(finding.consequence.contains("hangs the same"), "{finding:?}");
    set(&mut facts, settings::MONITOR, "userfaultfd");
    assert_eq!(about(&facts, settings::MEMORY), []);
    facts.environment.remove(settings::MONITOR);
    set(&mut facts, "LD_PRELOAD", "/opt/lib/libpinyard_preload.so");
    assert_eq!(about(&facts, settings::MEMORY), []);
}

#[test]
fn the_heaviest_comes_first() {
    let mut facts = good_node();
    facts.kernel.transparent_huge_pages = Some("never".to_owned());
    facts.nics[1].ports[0].state = "INIT".to_owned();
    let weights: Vec<Weight> = judge(&facts).iter().map(|finding| finding.weight).collect();
    assert!(weights.is_sorted_by(|one, other| one >= other) && weights.len() > 2, "{weights:?}");
}

/// A registry fails with such a value: doctor, which made none, must say so.
#[test]
fn a_value_that_pinyard_refuses_is_a_failure() {
    for (name, value) in [
        ("PINYARD_HOOKS", "banana"),
        ("PINYARD_PRELOAD", "maybe"),
        ("PINYARD_MPI_CHUNKS", "65"),
        ("PINYARD_MPI_CHUNKS", ""),
        ("PINYARD_POOL_LIMIT", "much"),
        ("PINYARD_TRACE_MIB", "0"),
        ("PINYARD_DRIVER", "amd"),
    ] {
        let mut facts = good_node();
        set(&mut facts, name, value);
        let findings = about(&facts, name);
        assert_eq!(findings[0].weight, Weight::Fail, "{name}={value}");
        assert!(findings[0].what.starts_with(&format!("{name} is {value:?}: it must be ")), "{findings:?}");
    }
    for (name, value) in [
        ("PINYARD_HOOKS", "entry"),
        ("PINYARD_HOOKS", ""),
        ("PINYARD_POOL_LIMIT", "80%"),
        ("PINYARD_PREFIX", "/opt"),
    ] {
        let mut facts = good_node();
        set(&mut facts, name, value);
        assert_eq!(about(&facts, name), [], "{name}={value}");
    }
}

#[test]
fn a_name_that_pinyard_does_not_know_is_told_with_the_nearest() {
    for (name, nearest) in [
        ("PINYARD_HOOK", Some("PINYARD_HOOKS")),
        ("PINYARD_LIBFABRICS", Some("PINYARD_LIBFABRIC")),
        ("PINYARD_MPI_CHUNK", Some("PINYARD_MPI_CHUNKS")),
        ("PINYARD_POOL_LIMITS", Some("PINYARD_POOL_LIMIT")),
        ("PINYARD_HOST_POOL_LIMITS", Some("PINYARD_HOST_POOL_LIMIT")),
        ("PINYARD_TRACE_FILE", Some("PINYARD_TRACE_MIB")),
        ("PINYARD_COMPLETELY_MADE_UP_NAME", None),
    ] {
        let mut facts = good_node();
        set(&mut facts, name, "1");
        let findings = about(&facts, name);
        // With such names device pools, host pools and registries fail.
        let refused = ["PINYARD_POOL_", "PINYARD_HOST_POOL_", "PINYARD_TRACE"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        assert_eq!(findings[0].weight == Weight::Fail, refused, "{name}");
        match nearest {
            Some(nearest) => assert_eq!(findings[0].remedy, format!("{nearest} in its place")),
            None => assert!(!findings[0].what.contains("nearest"), "{findings:?}"),
        }
    }
}

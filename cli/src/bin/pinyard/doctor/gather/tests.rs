//! Against folders that look like `/proc` and `/sys` of other machines.

use super::*;
use crate::doctor::facts::Facility;
use crate::doctor::nearness::{Nearness, pairs};
use std::os::unix::fs::symlink;

/// A root with these files, which goes with the value.
struct Made(tempfile::TempDir);

impl Made {
    fn new(files: &[(&str, &str)]) -> Made {
        let made = Made(tempfile::tempdir().unwrap());
        for (path, text) in files {
            made.file(path, text);
        }
        made
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.root().path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// `to` is a path below the root as well.
    fn link(&self, path: &str, to: &str) {
        let (path, to) = (self.root().path(path), self.root().path(to));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::create_dir_all(&to).unwrap();
        symlink(to, path).unwrap();
    }

    fn root(&self) -> Root {
        Root::of(self.0.path())
    }

    fn facts(&self) -> Facts {
        of_files(&self.root())
    }
}

#[test]
fn an_empty_root_has_no_facts_and_no_errors() {
    let made = Made::new(&[]);
    let facts = made.facts();
    assert_eq!((facts.nics.len(), facts.gpus.devices.len()), (0, 0));
    assert_eq!(facts.limits.cgroup_memory, None);
    assert!(!has_gpus(&made));
    assert_eq!(
        libraries::find(&made.root(), &libraries::folders(&made.root(), none(), none()), &["libmpi.so."]),
        [""; 0]
    );
}

fn has_gpus(made: &Made) -> bool {
    devices::has_gpus(&made.root())
}

fn none() -> impl Iterator<Item = PathBuf> {
    std::iter::empty()
}

#[test]
fn the_machine() {
    let made = Made::new(&[
        ("/proc/sys/kernel/hostname", "n7.cluster.org\n"),
        ("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n"),
        ("/proc/meminfo", "MemTotal:       263856136 kB\nMemFree: 1 kB\n"),
        ("/proc/thread-self/status", "Name:\tx\nCapEff:\t0000000000004000\nSeccomp:\t2\n"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ("/sys/devices/system/node/node0/distance", "10 21\n"),
        ("/sys/devices/system/node/node1/distance", "21 10\n"),
        ("/sys/devices/system/node/possible", "0-1\n"),
    ]);
    let facts = made.facts();
    assert_eq!((facts.host.as_str(), facts.kernel.release.as_str()), ("n7", "6.1.0-18-amd64"));
    assert_eq!(facts.limits.memory, 263_856_136 << 10);
    assert!(facts.limits.may_lock_anything && facts.kernel.seccomp);
    assert_eq!(facts.kernel.transparent_huge_pages.as_deref(), Some("never"));
    assert_eq!((facts.limits.nodes, facts.gpus.distances), (2, vec![vec![10, 21], vec![21, 10]]));
    // In a user namespace the capability is worth nothing to the kernel's limit.
    made.file("/proc/thread-self/uid_map", "         0       1000          1\n");
    assert!(!made.facts().limits.may_lock_anything);
    made.file("/proc/thread-self/uid_map", "         0          0 4294967295\n");
    assert!(made.facts().limits.may_lock_anything);
}

#[test]
fn the_lowest_limit_of_the_cgroups_above_counts() {
    let made = Made::new(&[
        ("/proc/thread-self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0\n"),
        ("/proc/thread-self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n"),
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", "8589934592\n"),
        ("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max", "max\n"),
    ]);
    assert_eq!(made.facts().limits.cgroup_memory, Some(8 << 30));
    made.file("/proc/thread-self/cgroup", "7:cpu:/x\n4:memory:/slurm/job_7\n");
    made.file(
        "/proc/thread-self/mountinfo",
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    );
    made.file("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "4294967296\n");
    made.file("/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(made.facts().limits.cgroup_memory, Some(4 << 30));
}

/// A NIC and two GPUs: one below its switch, one on the other socket.
fn cluster_node() -> Made {
    let (near, far) =
        ("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "/sys/devices/pci0000:ba/0000:ba:00.0");
    let nic = format!("{near}/0000:3c:04.0/0000:3d:00.0");
    let made = Made::new(&[
        (&format!("{nic}/numa_node"), "0\n"),
        (&format!("{nic}/infiniband_verbs/uverbs0/dev"), "231:192\n"),
        (&format!("{near}/0000:3c:08.0/0000:3e:00.0/numa_node"), "0\n"),
        (&format!("{far}/0000:bb:00.0/numa_node"), "1\n"),
        ("/sys/devices/system/node/node0/distance", "10 21"),
        ("/sys/devices/system/node/node1/distance", "21 10"),
        (
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54\nGCC",
        ),
        ("/proc/driver/nvidia/gpus/0000:3E:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 7\n"),
        ("/proc/driver/nvidia/gpus/0000:BB:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 8\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"),
        ("/sys/class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n"),
        ("/dev/infiniband/uverbs0", ""),
        ("/sys/module/nvidia_peermem/refcnt", "0\n"),
    ]);
    made.link("/sys/class/infiniband/mlx5_0/device", &nic);
    made.link(&format!("{nic}/driver"), "/sys/bus/pci/drivers/mlx5_core");
    made.link("/sys/bus/pci/devices/0000:3e:00.0", &format!("{near}/0000:3c:08.0/0000:3e:00.0"));
    made.link("/sys/bus/pci/devices/0000:bb:00.0", &format!("{far}/0000:bb:00.0"));
    made
}

#[test]
fn nics_and_their_ports() {
    let made = cluster_node();
    let facts = made.facts();
    let [nic] = &facts.nics[..] else { panic!("{:?}", facts.nics) };
    assert_eq!((nic.name.as_str(), nic.driver.as_deref()), ("mlx5_0", Some("mlx5_core")));
    assert_eq!((nic.place.pci.as_deref(), nic.place.node), (Some("0000:3d:00.0"), Some(0)));
    assert_eq!(nic.verbs, Facility::Works);
    let states: Vec<_> = nic.ports.iter().map(|port| (port.number, port.state.as_str())).collect();
    assert_eq!(states, [(1, "ACTIVE"), (2, "DOWN")]);
    assert_eq!(
        (nic.ports[0].link.as_str(), nic.ports[0].rate.as_str()),
        ("InfiniBand", "200 Gb/sec (4X HDR)")
    );
    fs::remove_file(made.root().path("/dev/infiniband/uverbs0")).unwrap();
    let Facility::Refused(why) = &made.facts().nics[0].verbs else { panic!("it is gone") };
    assert!(why.starts_with("open(/dev/infiniband/uverbs0): No such file"), "{why}");
}

#[test]
fn a_software_nic_is_found_by_its_name() {
    let made = Made::new(&[
        ("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
        ("/sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0\n"),
        ("/dev/infiniband/uverbs3", ""),
    ]);
    let nic = &made.facts().nics[0];
    assert_eq!((nic.verbs.clone(), nic.place.pci.clone()), (Facility::Works, None));
}

#[test]
fn gpus_and_the_way_to_the_nic() {
    let made = cluster_node();
    let facts = made.facts();
    assert!(has_gpus(&made) && facts.gpus.peer_memory);
    assert_eq!(
        facts.gpus.kernel_module.as_deref(),
        Some("NVIDIA UNIX Open Kernel Module for x86_64  550.54")
    );
    assert_eq!(facts.gpus.devices[0].name, "NVIDIA H200");
    let found: Vec<_> =
        pairs(&facts).iter().map(|pair| (pair.nic.name.clone(), pair.port, pair.nearness)).collect();
    let nic = || "mlx5_0".to_owned();
    assert_eq!(found, [(nic(), 1, Nearness::Switch), (nic(), 1, Nearness::Nodes(21))]);
}

#[test]
fn what_the_driver_adds() {
    let made = cluster_node();
    let seen = |name: &str| Gpu {
        name: name.to_owned(),
        memory: Some(1 << 37),
        dma_buf: Some(true),
        ..Gpu::default()
    };
    let mut gpus = made.facts().gpus;
    devices::add_cuda(&mut gpus, Ok(vec![seen("one"), seen("two")]));
    assert_eq!((gpus.devices[1].memory, gpus.devices[1].place.node), (Some(1 << 37), Some(1)));
    devices::add_cuda(&mut gpus, Ok(vec![seen("only")]));
    assert_eq!((gpus.devices.len(), gpus.devices[0].place.clone()), (1, Default::default()));
    devices::add_cuda(&mut gpus, Err("no".to_owned()));
    assert_eq!(gpus.cuda, Facility::Refused("no".to_owned()));
}

use crate::doctor::facts::Gpu;

#[test]
fn libraries_are_found_where_the_loader_looks_each_once() {
    let made = Made::new(&[
        ("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n"),
        ("/etc/ld.so.conf.d/site.conf", "# of the site\n/opt/site/lib\n"),
        ("/opt/site/lib/libfabric.so.1", ""),
        ("/opt/mpi/bin/mpirun", ""),
        ("/opt/mpi/lib/libmpi.so.40", ""),
        ("/opt/mpi/lib/libmpi.so.40.30.4", "another name of it"),
        ("/opt/mpi/lib/libmpi_cxx.so.40", ""),
        ("/home/user/lib/libfabric.so.1", ""),
    ]);
    made.link("/usr/lib64", "/opt/site/lib");
    let root = made.root();
    let path = ["/opt/mpi/bin", "/usr/bin"].map(PathBuf::from).into_iter();
    let folders = libraries::folders(&root, [PathBuf::from("/home/user/lib")].into_iter(), path);
    let find = |prefix| libraries::find(&root, &folders, &[prefix]);
    assert_eq!(find("libmpi.so."), ["/opt/mpi/lib/libmpi.so.40"]);
    assert_eq!(find("libfabric.so."), ["/home/user/lib/libfabric.so.1", "/opt/site/lib/libfabric.so.1"]);
    assert_eq!(find("libucp.so."), [""; 0]);
}

#[test]
fn names_of_mpis_are_cut_where_the_rest_begins() {
    let open = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4";
    assert_eq!(libraries::short(open), "Open MPI v4.1.4");
    assert_eq!(
        libraries::short("Intel(R) MPI Library 2021.9 for Linux* OS\n\n"),
        "Intel(R) MPI Library 2021.9 for Linux* OS"
    );
    assert_eq!(libraries::short(""), "");
}

#[test]
fn every_function_of_the_hooks_has_an_owner() {
    let hooks = process::hooks();
    assert!(hooks.functions > 0 && hooks.owner_of.contains_key("munmap"), "{hooks:?}");
    assert_eq!(hooks.owner_of.len() as u64, hooks.functions);
    for (owner, functions) in &hooks.owners {
        assert_eq!(hooks.owner_of.values().filter(|of| *of == owner).count() as u64, *functions, "{owner}");
    }
}

//! Facts of machines that are not there, for tests.

use super::Answer;
use super::facts::*;
use super::judge::judge;

/// A node with nothing to fix: two NICs, Open MPI, libfabric 2.6 and UCX 1.21.
pub(crate) fn good_node() -> Facts {
    let nic = |name: &str, pci: &str, node| Nic {
        name: name.to_owned(),
        driver: Some("mlx5_core".to_owned()),
        place: place(pci, node),
        ports: vec![Port {
            number: 1,
            state: "ACTIVE".to_owned(),
            rate: "200 Gb/sec (4X HDR)".to_owned(),
            link: "InfiniBand".to_owned(),
        }],
        verbs: Facility::Works,
    };
    Facts {
        host: "n1".to_owned(),
        pinyard: "0.1.0".to_owned(),
        kernel: Kernel {
            release: "6.1.0-18-amd64".to_owned(),
            machine: "x86_64".to_owned(),
            io_uring: Facility::Works,
            userfaultfd: Facility::Works,
            transparent_huge_pages: Some("madvise".to_owned()),
            seccomp: false,
        },
        limits: Limits { memory: 256 << 30, processors: 64, nodes: 2, ..Limits::default() },
        hooks: Hooks {
            complete: true,
            functions: 16,
            owners: [("pinyard".to_owned(), 15), ("absent".to_owned(), 1)].into(),
            owner_of: [("munmap", "pinyard"), ("process_madvise", "absent")]
                .map(|(function, owner)| (function.to_owned(), owner.to_owned()))
                .into(),
            unseen: Vec::new(),
        },
        mpi: vec![mpi("/usr/lib/libmpi.so.40", "Open MPI v4.1.4")],
        libfabric: vec![library("/usr/lib/libfabric.so.1", Version(2, 6, 0))],
        ucx: vec![library("/usr/lib/libucp.so.0", Version(1, 21, 0))],
        nics: vec![nic("mlx5_0", "0000:3d:00.0", 0), nic("mlx5_1", "0000:bd:00.0", 1)],
        ..Facts::default()
    }
}

/// That, with a GPU beside each NIC.
pub(crate) fn gpu_node() -> Facts {
    let gpu = |pci: &str, node| Gpu {
        name: "NVIDIA H200".to_owned(),
        minor: None,
        place: place(pci, node),
        memory: Some(141 << 30),
        dma_buf: Some(true),
    };
    let gpus = Gpus {
        kernel_module: Some("NVIDIA UNIX Open Kernel Module".to_owned()),
        devices: vec![gpu("0000:3e:00.0", 0), gpu("0000:be:00.0", 1)],
        cuda: Facility::Works,
        peer_memory: false,
        distances: vec![vec![10, 21], vec![21, 10]],
    };
    // The CUDA monitor of libfabric is off: its fault #9003 has no version without it.
    let environment = [("FI_MR_CUDA_CACHE_MONITOR_ENABLED".to_owned(), "0".to_owned())].into();
    let mpi = vec![Mpi { cuda: CudaAware::Yes, ..mpi("/usr/lib/libmpi.so.40", "Open MPI v4.1.4") }];
    Facts { gpus, environment, mpi, ..good_node() }
}

/// That, with both InfiniBand NICs far from the first GPU, and one for storage beside it.
pub(crate) fn mixed_node() -> Facts {
    let mut facts = gpu_node();
    facts.nics[0].place = place("0000:9d:00.0", 1);
    facts.nics.insert(
        0,
        Nic {
            name: "mlx5_storage".to_owned(),
            place: place("0000:3d:00.0", 0),
            ports: vec![Port {
                rate: "100 Gb/sec (4X EDR)".to_owned(),
                link: "Ethernet".to_owned(),
                ..facts.nics[0].ports[0].clone()
            }],
            ..facts.nics[0].clone()
        },
    );
    facts
}

pub(crate) fn mpi(path: &str, name: &str) -> Mpi {
    Mpi { path: path.to_owned(), name: Some(name.to_owned()), silent: None, cuda: CudaAware::No }
}

pub(crate) fn library(path: &str, version: Version) -> Library {
    Library { path: path.to_owned(), version: Some(version), silent: None }
}

/// Below a switch of its own: `0000:3d:00.0` and `0000:3e:00.0` are below the same one.
pub(crate) fn place(pci: &str, node: u32) -> Place {
    let bus = &pci[..6];
    let above = [format!("pci{bus}a"), format!("{bus}a:00.0"), format!("{bus}b:00.0")];
    Place { pci: Some(pci.to_owned()), above: above.into(), node: Some(node) }
}

/// What the node would say.
pub(crate) fn answer(facts: Facts) -> Answer {
    let findings = judge(&facts);
    Answer { schema: super::SCHEMA.to_owned(), facts, findings }
}

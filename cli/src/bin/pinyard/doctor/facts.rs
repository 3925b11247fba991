//! What is known of a machine: gathered by [`super::gather`], judged by [`super::judge`],
//! shown by [`super::show`], sent from node to node as a line of JSON.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One machine, as one process of a user's sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Its name.
    pub(crate) host: String,
    /// The version of this command.
    pub(crate) pinyard: String,
    pub(crate) kernel: Kernel,
    pub(crate) limits: Limits,
    pub(crate) hooks: Hooks,
    /// MPI libraries, in the order in which the loader would find them.
    pub(crate) mpi: Vec<Mpi>,
    /// What `pinyard probe` has tried with MPI libraries, a line each.
    #[serde(default)]
    pub(crate) tried: Vec<String>,
    pub(crate) libfabric: Vec<Library>,
    pub(crate) ucx: Vec<Library>,
    /// `libpinyard_preload.so` where it was installed with this command.
    pub(crate) preload: Option<String>,
    /// The variables of [`super::settings`] that are set.
    pub(crate) environment: BTreeMap<String, String>,
    /// In a job of Slurm's.
    pub(crate) under_slurm: bool,
    pub(crate) nics: Vec<Nic>,
    pub(crate) gpus: Gpus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kernel {
    /// `uname -r`.
    pub(crate) release: String,
    /// `uname -m`.
    pub(crate) machine: String,
    pub(crate) io_uring: Facility,
    pub(crate) userfaultfd: Facility,
    /// The chosen word of `/sys/kernel/mm/transparent_hugepage/enabled`.
    pub(crate) transparent_huge_pages: Option<String>,
    /// A seccomp filter is on this process, as in most containers.
    pub(crate) seccomp: bool,
}

/// Something of the kernel's that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", content = "why", rename_all = "snake_case")]
pub(crate) enum Facility {
    #[default]
    Untried,
    Works,
    /// The failed call with its error.
    Refused(String),
}

/// Bytes, of this process unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// The soft RLIMIT_MEMLOCK; none: unlimited.
    pub(crate) memlock: Option<u64>,
    /// The hard one, to which the user may raise it.
    pub(crate) memlock_hard: Option<u64>,
    /// CAP_IPC_LOCK: the limit does not bind.
    pub(crate) may_lock_anything: bool,
    /// The lowest memory limit of the cgroup and those above it.
    pub(crate) cgroup_memory: Option<u64>,
    /// The machine's memory.
    pub(crate) memory: u64,
    /// Processors that the process may run on.
    pub(crate) processors: u64,
    /// NUMA nodes.
    pub(crate) nodes: u64,
}

/// What the hooks' self-test found in this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hooks {
    /// Every function's calls are seen.
    pub(crate) complete: bool,
    /// How many functions were examined.
    pub(crate) functions: u64,
    /// Who owns how many of them.
    pub(crate) owners: BTreeMap<String, u64>,
    /// Whose code runs when a function is called: function to owner.
    #[serde(default)]
    pub(crate) owner_of: BTreeMap<String, String>,
    /// A line for each that is not seen, with the reason.
    pub(crate) unseen: Vec<String>,
}

/// A library that was found, and asked in a process of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Library {
    pub(crate) path: String,
    /// Its own answer.
    pub(crate) version: Option<Version>,
    /// Why it gave none.
    pub(crate) silent: Option<String>,
}

/// Major, minor, patch; libfabric tells no patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.2 {
            0 => write!(f, "{}.{}", self.0, self.1),
            patch => write!(f, "{}.{}.{patch}", self.0, self.1),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mpi {
    pub(crate) path: String,
    /// What it calls itself, its first words: `Open MPI v4.1.4`.
    pub(crate) name: Option<String>,
    /// Why it gave no name.
    pub(crate) silent: Option<String>,
    /// Whether it says that it was built for CUDA.
    pub(crate) cuda: CudaAware,
}

/// A library's own word, before MPI_Init. It is no test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CudaAware {
    Yes,
    No,
    /// It has nothing that could be asked, or its answer before MPI_Init means nothing.
    #[default]
    Unknown,
}

/// A device of `/sys/class/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Nic {
    /// `mlx5_0`.
    pub(crate) name: String,
    /// What `driver` of its PCI device leads to; none for a software device.
    pub(crate) driver: Option<String>,
    pub(crate) place: Place,
    pub(crate) ports: Vec<Port>,
    /// Opening its `uverbs` device for reading and writing.
    pub(crate) verbs: Facility,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) number: u32,
    /// `ACTIVE`, `DOWN`, `INIT`…
    pub(crate) state: String,
    /// `100 Gb/sec (4X EDR)`.
    pub(crate) rate: String,
    /// `InfiniBand` or `Ethernet`.
    pub(crate) link: String,
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.link == "InfiniBand"
    }

    /// Its rate in Gbit/s; 0 where it says none.
    pub(crate) fn gigabits(&self) -> f64 {
        let number = self.rate.split(' ').next().and_then(|number| number.parse().ok());
        number.filter(|rate: &f64| rate.is_finite()).unwrap_or_default()
    }
}

/// Where a device is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// `0000:3b:00.0`.
    pub(crate) pci: Option<String>,
    /// The bridges above it, the outermost first: `pci0000:3a`, `0000:3a:00.0`.
    pub(crate) above: Vec<String>,
    pub(crate) node: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gpus {
    /// The first line of `/proc/driver/nvidia/version`.
    pub(crate) kernel_module: Option<String>,
    /// In the order of their PCI addresses, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    pub(crate) devices: Vec<Gpu>,
    /// The CUDA driver's answer; untried where there is no GPU.
    pub(crate) cuda: Facility,
    /// The kernel module that lets a NIC reach GPU memory by its address is loaded.
    pub(crate) peer_memory: bool,
    /// Distances between NUMA nodes, as the firmware gives them: `[from][to]`.
    pub(crate) distances: Vec<Vec<u32>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) name: String,
    /// N of its `/dev/nvidiaN`, by which Slurm counts.
    #[serde(default)]
    pub(crate) minor: Option<u32>,
    pub(crate) place: Place,
    /// Bytes; by the driver.
    pub(crate) memory: Option<u64>,
    /// Its memory can be exported as a dma-buf; by the driver.
    pub(crate) dma_buf: Option<bool>,
}

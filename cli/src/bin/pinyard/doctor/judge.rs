//! What is wrong with the facts, what comes of it, and what fixes it. Pure.

mod variables;

use super::facts::{CudaAware, Facility, Facts, Library, Nic, Port};
use super::known::{self, Of};
use super::nearness::{Nearness, pairs};
use super::settings;
use pinyard::hooks::userfaultfd;
use pinyard_cli::text::bytes;
use serde::{Deserialize, Serialize};

/// Whether something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Weight {
    /// Worth knowing.
    Warn,
    /// To be fixed.
    Fail,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) weight: Weight,
    /// The line of the screen that it is about.
    pub(crate) subject: String,
    /// What is so.
    pub(crate) what: String,
    /// What comes of it.
    pub(crate) consequence: String,
    /// The one command or setting that fixes it, or the step that comes first.
    pub(crate) remedy: String,
}

/// The subjects that are not names of devices, variables or files.
pub(crate) mod subject {
    pub(crate) const MEMLOCK: &str = "locked memory";
    pub(crate) const CGROUP: &str = "memory limit";
    pub(crate) const IO_URING: &str = "io_uring";
    pub(crate) const USERFAULTFD: &str = "userfaultfd";
    pub(crate) const HUGE_PAGES: &str = "huge pages";
    pub(crate) const HOOKS: &str = "hooks";
    pub(crate) const CUDA: &str = "CUDA driver";
    pub(crate) const PEER: &str = "NIC to GPU";
}

/// Below this, no program that registers its buffers gets far.
const LITTLE_MEMLOCK: u64 = 64 << 20;
/// Half of it is the default budget of all registries.
const LITTLE_MEMORY: u64 = 512 << 20;

/// Everything, the heaviest first.
pub(crate) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    memory(facts, &mut findings);
    kernel(facts, &mut findings);
    hooks(facts, &mut findings);
    libraries(facts, &mut findings);
    variables::others(facts, &mut findings);
    variables::pinyards(facts, &mut findings);
    facts.nics.iter().for_each(|nic| network(nic, &mut findings));
    devices(facts, &mut findings);
    findings.0.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    findings.0
}

/// Whether there is something to fix.
pub(crate) fn to_fix(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.weight == Weight::Fail)
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        weight: Weight,
        subject: impl Into<String>,
        what: impl Into<String>,
        consequence: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding {
            weight,
            subject: subject.into(),
            what: what.into(),
            consequence: consequence.into(),
            remedy: remedy.into(),
        });
    }
}

fn memory(facts: &Facts, findings: &mut Findings) {
    let limits = &facts.limits;
    if let Some(limit) = limits.memlock.filter(|_| !limits.may_lock_anything) {
        let weight = if limit < LITTLE_MEMLOCK {
            Some(Weight::Fail)
        } else {
            (limit < limits.memory / 2).then_some(Weight::Warn)
        };
        let raisable = limits.memlock_hard.is_none_or(|hard| hard > limit);
        let remedy = match (raisable, facts.under_slurm) {
            (true, _) => "ulimit -l \"$(ulimit -H -l)\" in the job, before the program starts",
            (false, true) => {
                "LimitMEMLOCK=infinity in slurmd's unit, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
            }
            (false, false) => {
                "a line \"* - memlock unlimited\" in /etc/security/limits.conf, and a new login"
            }
        };
        if let Some(weight) = weight {
            findings.add(
                weight,
                subject::MEMLOCK,
                format!("RLIMIT_MEMLOCK is {}", bytes(limit)),
                "registrations beyond it are refused: MPI over a NIC ends with \"Cannot allocate memory\" or falls \
                 back to copies, and pinyard's budget is no larger",
                remedy,
            );
        }
    }
    if let Some(limit) = limits.cgroup_memory.filter(|limit| *limit < LITTLE_MEMORY) {
        findings.add(
            Weight::Warn,
            subject::CGROUP,
            format!("the cgroup allows {}", bytes(limit)),
            "pinned memory counts in it, and pinyard's default budget is half of it",
            "more memory for the job, such as --mem=8G",
        );
    }
}

const USERFAULTFD_IN_CONTAINER: &str =
    "userfaultfd and close_range allowed in the container's seccomp profile";

fn kernel(facts: &Facts, findings: &mut Findings) {
    let kernel = &facts.kernel;
    let verbs = facts.nics.iter().any(|nic| nic.verbs == Facility::Works);
    if let Facility::Refused(why) = &kernel.io_uring {
        let remedy = if why.contains("ulimit") {
            "the limit raised that is named"
        } else if why.contains("io_uring_disabled") {
            "sysctl -w kernel.io_uring_disabled=0"
        } else if kernel.seccomp {
            "io_uring_setup, io_uring_enter and io_uring_register allowed in the container's seccomp profile"
        } else {
            "Linux 5.1 or newer; until then the backend mlock in the program"
        };
        findings.add(
            if verbs { Weight::Warn } else { Weight::Fail },
            subject::IO_URING,
            why,
            "without a NIC there is no backend that pins for a device: only mlock",
            remedy,
        );
    }
    if let Facility::Refused(why) = &kernel.userfaultfd {
        findings.add(
            Weight::Warn,
            subject::USERFAULTFD,
            why,
            "changes of code that calls the kernel past libc (Go, rustix) go unseen: a registry refuses to start beside it",
            userfaultfd::remedy(why).unwrap_or(if kernel.seccomp {
                USERFAULTFD_IN_CONTAINER
            } else {
                "Linux 5.11 or newer with CONFIG_USERFAULTFD"
            }),
        );
    }
    if kernel.transparent_huge_pages.as_deref() == Some("never") {
        findings.add(
            Weight::Warn,
            subject::HUGE_PAGES,
            "transparent huge pages are off",
            "slabs of pools are of small pages: registering them takes longer, and the NIC keeps more entries",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
}

fn hooks(facts: &Facts, findings: &mut Findings) {
    let hooks = &facts.hooks;
    if hooks.complete || hooks.functions == 0 {
        return;
    }
    let watched = facts.kernel.userfaultfd == Facility::Works;
    findings.add(
        if watched { Weight::Warn } else { Weight::Fail },
        subject::HOOKS,
        format!("calls are not seen: {}", hooks.unseen.join("; ")),
        if watched {
            "registries let the kernel watch their ranges instead, which is slower"
        } else {
            "a registry refuses to start"
        },
        match (watched, facts.kernel.seccomp) {
            (true, _) => "PINYARD_HOOKS=userfaultfd, to say so",
            (false, true) => USERFAULTFD_IN_CONTAINER,
            (false, false) => "setsebool -P selinuxuser_execmod on, where SELinux keeps programs from writing to libc's text",
        },
    );
}

/// For a library that does not load: what it lacks is in the loader's list.
fn to_load(path: &str) -> String {
    format!("LD_LIBRARY_PATH with the folders of what ldd {path} calls \"not found\"")
}

fn libraries(facts: &Facts, findings: &mut Findings) {
    for mpi in &facts.mpi {
        if let Some(why) = &mpi.silent {
            findings.add(
                Weight::Warn,
                &mpi.path,
                format!("{}: {why}", mpi.path),
                "programs that are linked with it do not start either",
                to_load(&mpi.path),
            );
        }
        if mpi.cuda == CudaAware::No && !facts.gpus.devices.is_empty() {
            findings.add(
                Weight::Warn,
                &mpi.path,
                format!("{} was built without CUDA", mpi.name.as_deref().unwrap_or(&mpi.path)),
                "a program that gives it a pointer to GPU memory crashes",
                "buffers through the host, or an MPI that was built --with-cuda",
            );
        }
    }
    for (which, found) in [(Of::Libfabric, &facts.libfabric), (Of::Ucx, &facts.ucx)] {
        found.iter().for_each(|library| faults(facts, which, library, findings));
    }
    corruption_of_5_0_11(facts, findings);
}

fn faults(facts: &Facts, which: Of, library: &Library, findings: &mut Findings) {
    let name = if which == Of::Libfabric { "libfabric" } else { "UCX" };
    let Some(version) = library.version else {
        let why = library.silent.as_deref().unwrap_or("no answer");
        findings.add(
            Weight::Warn,
            &library.path,
            format!("{}: {why}", library.path),
            format!("programs that use this {name} do not start either, or it is not known what they do"),
            to_load(&library.path),
        );
        return;
    };
    for fault in known::of(which, version).filter(|fault| (fault.bites)(facts) && !(fault.cured)(facts)) {
        let remedy = match &facts.preload {
            Some(path) if fault.preload => format!("LD_PRELOAD={path}"),
            _ => fault.remedy.to_owned(),
        };
        findings.add(
            if fault.can_be_fixed { Weight::Fail } else { Weight::Warn },
            &library.path,
            format!("{name} {version}: {}", fault.incident),
            fault.what,
            remedy,
        );
    }
}

/// Seen with PyPI's wheel, whose libfabric has its verbs provider in a file of its own.
fn corruption_of_5_0_11(facts: &Facts, findings: &mut Findings) {
    let wheel = facts
        .mpi
        .iter()
        .find(|mpi| mpi.name.as_deref().is_some_and(|name| name.contains("Open MPI v5.0.11")));
    let both = facts.libfabric.iter().any(|library| library.version.is_some_and(|version| version.0 == 2))
        && !facts.ucx.is_empty();
    let cured = settings::preloaded(facts)
        || settings::is(facts, "UCX_MEM_MMAP_HOOK_MODE", &["reloc"])
        || settings::is(facts, "UCX_RCACHE_ENABLE", &["n", "no", "0"])
        || settings::is(facts, "OMPI_MCA_btl", &["^ofi"]);
    if let Some(mpi) = wheel.filter(|_| both && !cured && !facts.nics.is_empty()) {
        findings.add(
            Weight::Fail,
            &mpi.path,
            "Open MPI 5.0.11 starts UCX, and then libfabric, which writes over UCX's hooks",
            "wrong data without a message, in programs that free and allocate buffers between messages",
            "UCX_MEM_MMAP_HOOK_MODE=reloc",
        );
    }
}

fn network(nic: &Nic, findings: &mut Findings) {
    let name = &nic.name;
    if let Facility::Refused(why) = &nic.verbs {
        findings.add(
            Weight::Fail,
            name,
            why,
            format!("no program of this user reaches {name}; MPI falls back to TCP without a word"),
            if why.contains("Permission") {
                "chmod a+rw /dev/infiniband/uverbs* as root: the mode that the kernel gives them"
            } else if why.contains("no uverbs device") {
                "modprobe ib_uverbs"
            } else {
                "docker run --device=/dev/infiniband"
            },
        );
    }
    let down: Vec<String> = nic
        .ports
        .iter()
        .filter(|port| !port.is_active())
        .map(|port| format!("port {} is {}", port.number, port.state))
        .collect();
    let some = nic.ports.iter().any(Port::is_active);
    if !down.is_empty() {
        findings.add(
            if some { Weight::Warn } else { Weight::Fail },
            name,
            format!("{name}: {}", down.join(", ")),
            if some {
                "half of it is idle"
            } else {
                "MPI falls back to another NIC or to TCP without a word"
            },
            if down.iter().any(|port| port.ends_with("INIT")) {
                "systemctl start opensm on one node of the fabric, if sminfo finds no subnet manager"
                    .to_owned()
            } else {
                format!("a cable, and a switch's port, with which ibstat {name} says Active")
            },
        );
    }
}

fn devices(facts: &Facts, findings: &mut Findings) {
    let gpus = &facts.gpus;
    if let Facility::Refused(why) = &gpus.cuda {
        let no_library = why.contains("libcuda.so");
        let remedy = match (no_library, facts.kernel.seccomp, facts.under_slurm) {
            (_, true, _) => "docker run --gpus=all, of the NVIDIA container toolkit",
            (true, false, _) => "apt-get install libcuda1, in the version of /proc/driver/nvidia/version",
            (false, false, true) => "#SBATCH --gpus-per-node=1",
            (false, false, false) => "nvidia-modprobe -u -c=0 as root, which makes the missing files of /dev",
        };
        findings.add(Weight::Fail, subject::CUDA, why, "no program of this user reaches a GPU", remedy);
    }
    if gpus.devices.is_empty() || facts.nics.is_empty() {
        return;
    }
    let dma_buf = gpus.devices.iter().any(|gpu| gpu.dma_buf == Some(true));
    let answered = gpus.devices.iter().any(|gpu| gpu.dma_buf.is_some());
    if !gpus.peer_memory && !dma_buf && answered {
        findings.add(
            Weight::Fail,
            subject::PEER,
            "neither nvidia_peermem nor dma-buf",
            "no NIC can register GPU memory: every message goes through the host",
            "modprobe nvidia-peermem",
        );
    }
    for pair in pairs(facts) {
        if let Nearness::Nodes(_) = pair.nearness {
            let address = pair.gpu.place.pci.as_deref().unwrap_or(&pair.gpu.name);
            findings.add(
                Weight::Warn,
                address,
                format!("GPU {address} has no NIC of the fabric on its NUMA node"),
                "its messages cross the link between the sockets",
                "eval \"$(pinyard doctor bind)\" in each rank, which takes the nearest there is",
            );
        }
    }
}

#[cfg(test)]
mod tests;

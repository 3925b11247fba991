//! The facts as lines of a screen: what [`super::show`] prints and [`super::compare`]
//! holds beside another node's. Pure.

use super::facts::{CudaAware, Facility, Facts, Gpu, Hooks, Library, Mpi, Nic, Version};
use super::judge::{Finding, Weight, subject};
use super::known::{self, Of};
use super::nearness::{distance, pairs};
use super::settings;
use pinyard_cli::text::{bytes, counted};

/// How a line begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Fine,
    /// It is not there, and need not be.
    Absent,
    Warn,
    Fail,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) mark: Mark,
    pub(crate) label: String,
    pub(crate) value: String,
    /// Where it is, or what it is made of.
    pub(crate) detail: String,
}

/// Lines under a title.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// All lines. `findings` are those of the same facts.
pub(crate) fn lines(facts: &Facts, findings: &[Finding]) -> Vec<Section> {
    let page = Page { facts, findings };
    let sections = [
        ("Machine", page.machine()),
        ("Libraries", page.libraries()),
        ("Environment", page.environment()),
        ("NICs and GPUs", page.devices()),
    ];
    let sections = sections.into_iter().map(|(title, lines)| Section { title, lines });
    sections.filter(|section| !section.lines.is_empty()).collect()
}

struct Page<'a> {
    facts: &'a Facts,
    findings: &'a [Finding],
}

impl Page<'_> {
    fn line(&self, about: &str, label: &str, value: impl Into<String>, detail: impl Into<String>) -> Line {
        let heaviest = self.findings.iter().filter(|one| one.subject == about).map(|one| one.weight).max();
        let mark = match heaviest {
            Some(Weight::Fail) => Mark::Fail,
            Some(Weight::Warn) => Mark::Warn,
            None => Mark::Fine,
        };
        Line { mark, label: label.to_owned(), value: value.into(), detail: detail.into() }
    }

    fn machine(&self) -> Vec<Line> {
        let Facts { kernel, limits, .. } = self.facts;
        let plain = |label, value: String| self.line("", label, value, "");
        let own = |label, value: String| self.line(label, label, value, "");
        let memlock = match (limits.memlock, limits.may_lock_anything) {
            (None, _) => "unlimited".to_owned(),
            (Some(limit), true) => format!("{}, which does not bind: CAP_IPC_LOCK", bytes(limit)),
            (Some(limit), false) => match limits.memlock_hard {
                Some(hard) if hard == limit => bytes(limit),
                Some(hard) => format!("{}; the user may raise it to {}", bytes(limit), bytes(hard)),
                None => format!("{}; the user may raise it", bytes(limit)),
            },
        };
        let cgroup = limits.cgroup_memory.map_or_else(|| "none in the cgroup".to_owned(), bytes);
        let seccomp = if kernel.seccomp { ", under a seccomp filter" } else { "" };
        vec![
            plain("kernel", format!("Linux {} {}{seccomp}", kernel.release, kernel.machine)),
            plain(
                "size",
                format!(
                    "{}, {:.0} GiB, {}",
                    counted(limits.processors, "processor"),
                    limits.memory as f64 / f64::from(1 << 30),
                    counted(limits.nodes.max(1), "NUMA node"),
                ),
            ),
            own(subject::MEMLOCK, memlock),
            own(subject::CGROUP, cgroup),
            own(subject::IO_URING, words(&kernel.io_uring)),
            own(subject::USERFAULTFD, words(&kernel.userfaultfd)),
            own(
                subject::HUGE_PAGES,
                kernel.transparent_huge_pages.clone().unwrap_or_else(|| "not in this kernel".to_owned()),
            ),
            self.hooks(),
        ]
    }

    fn hooks(&self) -> Line {
        let hooks = &self.facts.hooks;
        let owners: Vec<String> = hooks
            .owners
            .iter()
            .map(|(owner, functions)| match others(hooks, owner) {
                names if names.is_empty() => format!("{owner} {functions}"),
                names => format!("{owner} {functions} ({})", names.join(" ")),
            })
            .collect();
        let unseen = hooks.unseen.len();
        let value = match hooks.functions {
            0 => "not tried".to_owned(),
            all if hooks.complete => format!("installed: {all} functions, no call goes unseen"),
            all => format!("calls of {unseen} of {all} functions go unseen"),
        };
        let detail = if owners.is_empty() { String::new() } else { format!("owners: {}", owners.join(", ")) };
        self.line(subject::HOOKS, subject::HOOKS, value, detail)
    }

    fn libraries(&self) -> Vec<Line> {
        let facts = self.facts;
        let mut lines: Vec<Line> = facts.mpi.iter().map(|mpi| self.mpi(mpi)).collect();
        lines.extend(facts.tried.iter().map(|line| self.line("", "MPI, tried", line, "")));
        lines.extend(facts.libfabric.iter().map(|library| self.library(Of::Libfabric, "libfabric", library)));
        lines.extend(facts.ucx.iter().map(|library| self.library(Of::Ucx, "UCX", library)));
        for (label, none) in [
            ("MPI", facts.mpi.is_empty()),
            ("libfabric", facts.libfabric.is_empty()),
            ("UCX", facts.ucx.is_empty()),
        ] {
            if none {
                lines.push(absent(label));
            }
        }
        lines
    }

    fn mpi(&self, mpi: &Mpi) -> Line {
        let cuda = match mpi.cuda {
            CudaAware::Yes => "CUDA-aware by its own word",
            CudaAware::No => "not CUDA-aware",
            CudaAware::Unknown => "CUDA-aware or not: it does not say before MPI_Init",
        };
        let value = match (&mpi.name, &mpi.silent) {
            (Some(name), _) => format!("{name}, {cuda}"),
            (None, Some(why)) => format!("does not load: {why}"),
            (None, None) => "does not say what it is".to_owned(),
        };
        self.line(&mpi.path, "MPI", value, &mpi.path)
    }

    fn library(&self, which: Of, label: &str, library: &Library) -> Line {
        let value = match (library.version, &library.silent) {
            (Some(version), _) => self.faults(which, version),
            (None, Some(why)) => format!("does not load: {why}"),
            (None, None) => "does not say what it is".to_owned(),
        };
        self.line(&library.path, label, value, &library.path)
    }

    /// The version and what it has, with what of it cannot happen here.
    fn faults(&self, which: Of, version: Version) -> String {
        let mut text = version.to_string();
        let (mut open, mut cured, mut elsewhere) = (Vec::new(), Vec::new(), 0);
        for fault in known::of(which, version) {
            match ((fault.bites)(self.facts), (fault.cured)(self.facts)) {
                (false, _) => elsewhere += 1,
                (true, true) => cured.push(fault.incident),
                (true, false) => open.push(fault.incident),
            }
        }
        let kinds = [("known faults", open), ("known faults that what is set cures", cured)];
        for (words, faults) in kinds.iter().filter(|(_, faults)| !faults.is_empty()) {
            text += &format!("; {words}: {}", faults.join("; "));
        }
        if elsewhere > 0 {
            let faults = counted(elsewhere, "known fault");
            text += &format!("; {faults} with other hardware or programs: the book's page Incidents");
        }
        text
    }

    fn environment(&self) -> Vec<Line> {
        let facts = self.facts;
        let line = |(name, value): (&String, &String)| {
            self.line(name, name, value, settings::effect(facts, name, value))
        };
        facts.environment.iter().map(line).collect()
    }

    fn devices(&self) -> Vec<Line> {
        let facts = self.facts;
        let mut lines: Vec<Line> = facts.nics.iter().map(|nic| self.nic(nic)).collect();
        if lines.is_empty() {
            lines.push(absent("NIC"));
        }
        let gpus = &facts.gpus;
        lines.extend(gpus.devices.iter().enumerate().map(|(at, gpu)| self.gpu(at, gpu)));
        if gpus.devices.is_empty() {
            lines.push(absent("GPU"));
            if gpus.kernel_module.is_none() && gpus.cuda == Facility::Untried {
                return lines;
            }
        }
        let module = gpus.kernel_module.clone().unwrap_or_default();
        lines.push(self.line(subject::CUDA, subject::CUDA, words(&gpus.cuda), module));
        if !facts.nics.is_empty() && !gpus.devices.is_empty() {
            let dma_buf = match gpus.devices.iter().find_map(|gpu| gpu.dma_buf) {
                Some(true) => "dma-buf",
                Some(false) => "no dma-buf",
                None => "dma-buf not asked for",
            };
            let peer = if gpus.peer_memory { "nvidia_peermem" } else { "no nvidia_peermem" };
            lines.push(self.line(subject::PEER, subject::PEER, format!("{peer}, {dma_buf}"), ""));
        }
        for pair in pairs(facts) {
            let address = pair.gpu.place.pci.clone().unwrap_or_default();
            let value = format!("{}:{} ({})", pair.nic.name, pair.port, pair.nearness);
            let distances = distances(facts, pair.gpu);
            lines.push(self.line(&address, "GPU's NIC", format!("{address} to {value}"), distances));
        }
        lines
    }

    fn nic(&self, nic: &Nic) -> Line {
        let ports: Vec<String> = nic
            .ports
            .iter()
            .map(|port| format!("port {} {} {} {}", port.number, port.state, port.link, port.rate))
            .collect();
        let access = if nic.verbs == Facility::Works { "" } else { "; not open to this user" };
        let mut place = nic.driver.clone().unwrap_or_else(|| "software device".to_owned());
        if let Some(pci) = &nic.place.pci {
            place += &format!(", {pci}");
        }
        if let Some(node) = nic.place.node {
            place += &format!(", NUMA node {node}");
        }
        self.line(&nic.name, &nic.name, format!("{}{access}", ports.join("; ")), place)
    }

    fn gpu(&self, at: usize, gpu: &Gpu) -> Line {
        let mut value = gpu.name.clone();
        if let Some(memory) = gpu.memory {
            value += &format!(", {}", bytes(memory));
        }
        let mut place = gpu.place.pci.clone().unwrap_or_default();
        if let Some(node) = gpu.place.node {
            place += &format!(", NUMA node {node}");
        }
        let about = gpu.place.pci.clone().unwrap_or_default();
        self.line(&about, &format!("GPU {at}"), value, place)
    }
}

/// The functions of an owner who is not pinyard.
fn others<'a>(hooks: &'a Hooks, owner: &str) -> Vec<&'a str> {
    let own = hooks.owner_of.iter().filter(|(_, of)| *of == owner && owner != "pinyard");
    own.map(|(function, _)| function.as_str()).collect()
}

/// How far every NIC is from the GPU, as the firmware counts between NUMA nodes.
fn distances(facts: &Facts, gpu: &Gpu) -> String {
    let of = |nic: &Nic| {
        let distance = distance(&gpu.place, &nic.place, &facts.gpus.distances)?;
        Some(format!("{} {distance}", nic.name))
    };
    let all: Vec<String> = facts.nics.iter().filter_map(of).collect();
    if all.is_empty() { String::new() } else { format!("NUMA distances: {}", all.join(", ")) }
}

fn absent(label: &str) -> Line {
    Line {
        mark: Mark::Absent,
        label: label.to_owned(),
        value: "none found".to_owned(),
        detail: String::new(),
    }
}

fn words(facility: &Facility) -> String {
    match facility {
        Facility::Works => "works".to_owned(),
        Facility::Untried => "not tried".to_owned(),
        Facility::Refused(why) => why.clone(),
    }
}

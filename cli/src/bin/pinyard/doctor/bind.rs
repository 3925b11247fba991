//! `pinyard doctor bind`: which GPU a rank should use, and which NIC is next to it.

use super::facts::{Facts, Gpu};
use super::gather;
use super::nearness::pairs;
use crate::terminal::print;
use std::process::ExitCode;

/// Arguments of `pinyard doctor bind`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: for srun, a script of  set -a; eval \"$(pinyard doctor bind)\"; exec \"$@\""
)]
pub(crate) struct Options {
    /// The rank's number on its node [default: what Slurm, Open MPI or MPICH says]
    #[arg(long, value_name = "N")]
    local_rank: Option<u32>,
}

/// Where launchers put the rank's number on its node: Slurm, Open MPI, MPICH and Intel MPI.
const LOCAL_RANK: [&str; 3] = ["SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"];
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The GPUs of the step on this node, by their numbers on the node (srun(1)).
const STEP: &str = "SLURM_STEP_GPUS";
/// UCX takes its NICs from this, with a port each.
const NET: &str = "UCX_NET_DEVICES";
/// The verbs provider of libfabric takes its NIC from this (fi_verbs(7)), which compares as many
/// letters as the name has: mlx5_1 is mlx5_10 as well.
const VERBS: &str = "FI_VERBS_DEVICE_NAME";
/// Each with what says that the user has chosen.
const NICS: [(&str, &[&str]); 2] = [(NET, &[NET]), (VERBS, &[VERBS, "FI_VERBS_IFACE"])];

/// What a job has been given, as the environment says.
#[derive(Default)]
struct Given {
    /// The values of CUDA_VISIBLE_DEVICES.
    visible: Option<Vec<String>>,
    /// The numbers of SLURM_STEP_GPUS.
    step: Option<Vec<usize>>,
    /// Of [`NICS`], those of which the user has chosen.
    chosen: Vec<&'static str>,
}

impl Given {
    fn of(variable: impl Fn(&str) -> Option<String>) -> Given {
        let words = |name: &str| {
            let text = variable(name)?;
            Some(text.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect())
        };
        let numbers = |words: Vec<String>| words.iter().map(|one| one.parse().ok()).collect();
        let chosen = |by: &[&str]| by.iter().any(|name| variable(name).is_some());
        Given {
            visible: words(VISIBLE),
            step: words(STEP).and_then(numbers),
            chosen: NICS.iter().filter(|(_, by)| chosen(by)).map(|(name, _)| *name).collect(),
        }
    }

    /// The device that CUDA opens for a value of CUDA_VISIBLE_DEVICES, where that is certain.
    /// Without a limit by cgroup Slurm puts the node's numbers there, which CUDA takes for places
    /// among all devices. With one (ConstrainDevices) it puts those in the step, since a process
    /// sees no other devices.
    fn device<'a>(&self, facts: &'a Facts, gpu: &str) -> Option<&'a Gpu> {
        let value: usize = gpu.parse().ok()?;
        let all = &facts.gpus.devices;
        let visible: Option<Vec<usize>> =
            self.visible.as_ref().map(|values| values.iter().filter_map(|one| one.parse().ok()).collect());
        let Some(step) = &self.step else {
            return all.get(value).filter(|_| visible.is_none_or(|visible| visible.len() == all.len()));
        };
        let number = |(at, gpu): (usize, &Gpu)| gpu.minor.map_or(at, |minor| minor as usize);
        let of_step: Vec<&Gpu> =
            all.iter().enumerate().filter(|&one| step.contains(&number(one))).map(|(_, gpu)| gpu).collect();
        let visible = visible.unwrap_or_default();
        let by_node = all.get(value).filter(|_| visible.iter().all(|one| step.contains(one)));
        let by_step = of_step.get(value).filter(|_| visible.iter().all(|&one| one < step.len())).copied();
        match (by_node, by_step) {
            (Some(one), Some(other)) => Some(one).filter(|_| std::ptr::eq(one, other)),
            (one, other) => one.or(other),
        }
    }
}

/// Prints `NAME=value` lines; none for what is not there, or is the user's own choice.
pub(super) fn run(options: &Options) -> ExitCode {
    let variable = |name: &str| std::env::var(name).ok();
    let told = || LOCAL_RANK.iter().find_map(|name| variable(name)?.parse().ok());
    let Some(rank) = options.local_rank.or_else(told) else {
        return super::refuse(&format!(
            "no rank's number on its node: none of {} is set; name it with --local-rank",
            LOCAL_RANK.join(", ")
        ));
    };
    let lines = settings(&gather::devices(), rank, &Given::of(variable));
    if let Some(line) = lines.iter().find(|line| !is_plain(line)) {
        return super::refuse(&format!(
            "{line:?} would have a shell run more than a setting: letters, digits and _ - . : / alone are \
             names of devices; set {VISIBLE} to such"
        ));
    }
    lines.into_iter().for_each(print);
    ExitCode::SUCCESS
}

/// Whether a shell that evaluates the line sets a variable and does nothing else. Numbers, UUIDs and
/// MIG's names of devices are such, and the kernel's names of NICs.
fn is_plain(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:/=".contains(&byte))
}

/// For a local rank: the devices are dealt out in turn. A part of the node's devices has
/// numbers of its own; no NIC is chosen where Slurm does not say which devices those are.
fn settings(facts: &Facts, rank: u32, given: &Given) -> Vec<String> {
    let all = facts.gpus.devices.len();
    let own = given.visible.clone().unwrap_or_else(|| (0..all).map(|at| at.to_string()).collect());
    if own.is_empty() {
        return Vec::new();
    }
    let gpu = &own[rank as usize % own.len()];
    let mut lines = vec![format!("CUDA_DEVICE_ORDER=PCI_BUS_ID"), format!("{VISIBLE}={gpu}")];
    let address = given.device(facts, gpu).and_then(|gpu| gpu.place.pci.clone());
    let pair = address
        .and_then(|pci| pairs(facts).into_iter().find(|pair| pair.gpu.place.pci.as_ref() == Some(&pci)));
    if let Some(pair) = pair {
        let names = [(NET, format!("{}:{}", pair.nic.name, pair.port)), (VERBS, pair.nic.name.clone())];
        let free = names.iter().filter(|(name, _)| !given.chosen.contains(name));
        lines.extend(free.map(|(name, value)| format!("{name}={value}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::made_up;

    fn given(variables: &[(&str, &str)]) -> Given {
        Given::of(|name| variables.iter().find(|one| one.0 == name).map(|one| one.1.to_owned()))
    }

    /// The GPU and, if one was chosen, the NIC.
    fn chosen(facts: &Facts, rank: u32, variables: &[(&str, &str)]) -> Vec<String> {
        let lines = settings(facts, rank, &given(variables));
        assert!(lines.is_empty() || lines[0] == "CUDA_DEVICE_ORDER=PCI_BUS_ID", "{lines:?}");
        let value = |line: &String| line.split_once('=').map(|(_, value)| value.to_owned());
        lines.iter().skip(1).filter_map(value).collect()
    }

    #[test]
    fn ranks_get_the_gpus_in_turn_and_the_nic_next_to_each() {
        let facts = made_up::gpu_node();
        assert_eq!(
            settings(&facts, 0, &Given::default()),
            [
                "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES=0",
                "UCX_NET_DEVICES=mlx5_0:1",
                "FI_VERBS_DEVICE_NAME=mlx5_0"
            ]
        );
        assert_eq!(chosen(&facts, 1, &[]), ["1", "mlx5_1:1", "mlx5_1"]);
        assert_eq!(chosen(&facts, 2, &[]), chosen(&facts, 0, &[]));
    }

    #[test]
    fn a_nic_for_storage_does_not_shut_the_fabric_out() {
        let facts = made_up::mixed_node();
        assert_eq!(chosen(&facts, 0, &[]), ["0", "mlx5_0:1", "mlx5_0"]);
        assert_eq!(chosen(&facts, 1, &[]), ["1", "mlx5_1:1", "mlx5_1"]);
    }

    #[test]
    fn what_the_job_was_given_and_what_the_user_chose_is_kept() {
        let facts = made_up::gpu_node();
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "1,0")]), ["1", "mlx5_1:1", "mlx5_1"]);
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "1,0"), (NET, "mlx5_0:1")]), ["1", "mlx5_1"]);
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "1,0"), ("FI_VERBS_IFACE", "ib0")]), ["1", "mlx5_1:1"]);
        assert_eq!(chosen(&facts, 0, &[(NET, "mlx5_0:1"), (VERBS, "mlx5_0")]), ["0"]);
        // One of two, and nobody says which.
        assert_eq!(chosen(&facts, 3, &[(VISIBLE, "0")]), ["0"]);
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "GPU-5d5ba0d6")]), ["GPU-5d5ba0d6"]);
        assert!(settings(&Facts::default(), 0, &Given::default()).is_empty());
    }

    /// What is printed is for `eval`: a variable must not have it run a command.
    #[test]
    fn a_shell_runs_nothing_of_what_is_printed() {
        let plain = |value: &str| {
            let lines = settings(&made_up::gpu_node(), 0, &given(&[(VISIBLE, value)]));
            lines.iter().all(|line| is_plain(line))
        };
        for value in ["0", "GPU-5d5ba0d6-0b1c", "MIG-GPU-5d5ba0d6/1/0"] {
            assert!(plain(value), "{value}");
        }
        for value in ["$(id)", "`id`", "0;id", "0\nid", "0 id", "0'", "0|id", "0&", "é"] {
            assert!(!plain(value), "{value:?}");
        }
    }

    #[test]
    fn slurm_says_which_part_of_the_node_the_step_has() {
        let facts = made_up::gpu_node();
        // By its number on the node, and by that in the step.
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "1"), (STEP, "1")]), ["1", "mlx5_1:1", "mlx5_1"]);
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "0"), (STEP, "1")]), ["0", "mlx5_1:1", "mlx5_1"]);
        assert_eq!(chosen(&facts, 1, &[(VISIBLE, "0,1"), (STEP, "0,1")]), ["1", "mlx5_1:1", "mlx5_1"]);
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "7"), (STEP, "7")]), ["7"], "no such device");
        assert_eq!(
            chosen(&facts, 0, &[(VISIBLE, "0,5"), (STEP, "1")]),
            ["0"],
            "neither of the step nor of the node"
        );
    }

    #[test]
    fn slurm_counts_by_files_and_cuda_by_addresses() {
        let mut facts = made_up::gpu_node();
        (facts.gpus.devices[0].minor, facts.gpus.devices[1].minor) = (Some(1), Some(0));
        // All that a process of the step sees is /dev/nvidia1, the first by its address.
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "0"), (STEP, "1")]), ["0", "mlx5_0:1", "mlx5_0"]);
        // The first by its address without a limit, /dev/nvidia0 with one.
        assert_eq!(chosen(&facts, 0, &[(VISIBLE, "0"), (STEP, "0")]), ["0"]);
    }

    #[test]
    fn a_number_that_may_mean_two_devices_means_none() {
        let mut facts = made_up::gpu_node();
        let mut third = facts.gpus.devices[0].clone();
        third.place.pci = Some("0000:ff:00.0".to_owned());
        facts.gpus.devices.push(third);
        let of = |visible, step, gpu| {
            let device = given(&[(VISIBLE, visible), (STEP, step)]).device(&facts, gpu)?;
            facts.gpus.devices.iter().position(|one| one == device)
        };
        assert_eq!(of("1", "1,2", "1"), None);
        assert_eq!(of("2", "1,2", "2"), Some(2));
        assert_eq!(of("0", "1,2", "0"), Some(1));
        assert_eq!(of("1,2", "1,2", "1"), Some(1));
        assert_eq!(of("0,1", "1,2", "1"), Some(2));
    }
}

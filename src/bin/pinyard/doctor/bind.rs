//! `pinyard doctor bind`: which GPU a rank should use, and which NIC is next to it.

use super::facts::Facts;
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
const NET: &str = "UCX_NET_DEVICES";

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
    for line in settings(&gather::devices(), rank, variable(VISIBLE).as_deref(), variable(NET).is_some()) {
        print(line);
    }
    ExitCode::SUCCESS
}

/// For a local rank: the devices are dealt out in turn. `visible` is what the job has
/// been given; a part of the node's devices has numbers of its own, by which no NIC is found.
fn settings(facts: &Facts, rank: u32, visible: Option<&str>, net_is_set: bool) -> Vec<String> {
    let all = facts.gpus.devices.len();
    let own: Vec<String> = match visible {
        Some(list) => {
            list.split(',').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
        }
        None => (0..all).map(|at| at.to_string()).collect(),
    };
    if own.is_empty() {
        return Vec::new();
    }
    let gpu = &own[rank as usize % own.len()];
    let mut lines = vec![format!("CUDA_DEVICE_ORDER=PCI_BUS_ID"), format!("{VISIBLE}={gpu}")];
    let number = gpu.parse::<usize>().ok().filter(|_| own.len() == all && !net_is_set);
    let address = number.and_then(|number| facts.gpus.devices.get(number)?.place.pci.clone());
    let pair = address
        .and_then(|pci| pairs(facts).into_iter().find(|pair| pair.gpu.place.pci.as_ref() == Some(&pci)));
    if let Some(pair) = pair {
        lines.push(format!("{NET}={}:{}", pair.nic.name, pair.port));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::made_up;

    #[test]
    fn ranks_get_the_gpus_in_turn_and_the_nic_next_to_each() {
        let facts = made_up::gpu_node();
        let of = |rank| settings(&facts, rank, None, false);
        assert_eq!(
            of(0),
            ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=0", "UCX_NET_DEVICES=mlx5_0:1"]
        );
        assert_eq!(of(1)[1..], ["CUDA_VISIBLE_DEVICES=1", "UCX_NET_DEVICES=mlx5_1:1"]);
        assert_eq!(of(2), of(0));
    }

    #[test]
    fn what_the_job_was_given_and_what_the_user_chose_is_kept() {
        let facts = made_up::gpu_node();
        assert_eq!(
            settings(&facts, 0, Some("1,0"), false)[1..],
            ["CUDA_VISIBLE_DEVICES=1", "UCX_NET_DEVICES=mlx5_1:1"]
        );
        assert_eq!(settings(&facts, 0, Some("1,0"), true)[1..], ["CUDA_VISIBLE_DEVICES=1"]);
        // One of two: its number is the job's own.
        assert_eq!(settings(&facts, 3, Some("0"), false)[1..], ["CUDA_VISIBLE_DEVICES=0"]);
        assert_eq!(
            settings(&facts, 0, Some("GPU-5d5ba0d6"), false)[1..],
            ["CUDA_VISIBLE_DEVICES=GPU-5d5ba0d6"]
        );
        assert!(settings(&Facts::default(), 0, None, false).is_empty());
    }
}

//! Whether MPI sees the ranks that its launcher has started. Where the two do not fit, each
//! rank is a world of its own, and all would go well for each.

/// What a launcher tells each rank, how many it has started, whose it is, and the remedy.
const LAUNCHERS: [(&str, &str, &str); 3] = [
    (
        "SLURM_STEP_NUM_TASKS",
        "srun",
        "name what this MPI understands with srun --mpi=… (Open MPI: pmix; MPICH: pmi2; srun --mpi=list has all)",
    ),
    (
        "OMPI_COMM_WORLD_SIZE",
        "Open MPI's mpirun",
        "use the mpirun of the MPI that pinyard-stress is linked with",
    ),
    ("PMI_SIZE", "MPICH's mpirun", "use the mpirun of the MPI that pinyard-stress is linked with"),
];

/// Why the ranks cannot work together, if so. `under_srun`: whether a step of Slurm may be
/// this rank's launcher, and not that of who has started it.
pub(crate) fn disagrees(
    world: i32,
    mpi: &str,
    under_srun: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    if world != 1 {
        return None;
    }
    LAUNCHERS.iter().filter(|(_, who, _)| under_srun || *who != "srun").find_map(|(name, who, remedy)| {
        let started: u64 = variable(name)?.parse().ok()?;
        let text = || format!("{who} started {started} ranks ({name}), but to {mpi} each is alone; {remedy}");
        (started > 1).then(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(name: &'static str, ranks: &'static str) -> impl Fn(&str) -> Option<String> {
        move |asked| (asked == name).then(|| ranks.to_owned())
    }

    #[test]
    fn ranks_that_are_alone_among_others_are_told() {
        for (name, who, _) in LAUNCHERS {
            let why = disagrees(1, "MPICH 4.0.2", true, under(name, "4")).unwrap();
            assert!(why.contains(who) && why.contains("4 ranks") && why.contains("MPICH 4.0.2"), "{why}");
            assert_eq!(disagrees(1, "MPICH 4.0.2", true, under(name, "1")), None);
            assert_eq!(disagrees(4, "MPICH 4.0.2", true, under(name, "4")), None);
        }
        assert_eq!(disagrees(1, "MPICH 4.0.2", true, |_| None), None);
        assert_eq!(disagrees(1, "MPICH 4.0.2", false, under("SLURM_STEP_NUM_TASKS", "4")), None);
    }
}

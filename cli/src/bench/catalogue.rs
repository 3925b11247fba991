//! Every benchmark of the project, and how one is named on a command line.

use glob::Pattern;
use thiserror::Error;

/// Who measures it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `pinyard-bench`, a process for each benchmark.
    Bench,
    /// `gpu-bandwidth`, by mpirun.
    Mpi,
}

/// A benchmark.
#[derive(Debug)]
pub struct Benchmark {
    /// Group and name, as on the command line.
    pub name: &'static str,
    /// What is measured, in a line.
    pub measures: &'static str,
    /// What it is compared with, where that is installed.
    pub peers: &'static str,
    /// What it cannot do without; empty where that is nothing.
    pub needs: &'static str,
    /// Who measures it.
    pub program: Program,
}

const fn bench(
    name: &'static str,
    measures: &'static str,
    peers: &'static str,
    needs: &'static str,
) -> Benchmark {
    Benchmark { name, measures, peers, needs, program: Program::Bench }
}

const CACHES: &str = "UCX, libfabric";
const DEVICE: &str = "PyTorch, RMM, CUB, cuMemAllocAsync";

/// All of them, in the order in which they run.
pub const ALL: &[Benchmark] = &[
    bench("cache.hit", "a get and release, and a lookup, among 1 to 100,000 regions", CACHES, ""),
    bench("cache.beside", "hits while another thread registers", CACHES, ""),
    bench("cache.event", "an invalidation, and the first get after many of them", CACHES, ""),
    bench("cache.insert", "a miss, with and without an eviction", CACHES, ""),
    bench("cache.strided", "registrations for 4096 small buffers at a stride", CACHES, ""),
    bench("cache.memory", "bytes of a region, and growth under maps and unmaps", CACHES, ""),
    bench("hooks.calls", "what mmap, madvise and munmap take with hooks", "no hooks, UCX, libfabric", ""),
    bench("hooks.watched", "the same where userfaultfd watches", "patched entries alone", "io_uring"),
    bench("backends.register", "a registration of 4 KiB to 64 MiB, and a hit of it", "io_uring, mlock", ""),
    bench(
        "pools.host",
        "a block of the host pool, allocated and freed",
        "malloc, jemalloc, mimalloc, tcmalloc",
        "",
    ),
    bench("pools.same-size", "a device block, allocated and freed", DEVICE, ""),
    bench("pools.workloads", "traces of training and of random use", DEVICE, ""),
    bench("pools.calls", "calls of the driver for 1,000 allocations and frees", DEVICE, ""),
    bench("pools.random", "random use in RMM's manner, up to 1, 64 and 1024 MiB", DEVICE, ""),
    bench("pools.streams", "random use by 4 to 64 streams", DEVICE, ""),
    bench("pools.holes", "a block among thousands of free ones that are too small", DEVICE, ""),
    bench(
        "pools.shortage",
        "a large block where memory is short, and beside long work",
        "PyTorch, RMM, CUB",
        "",
    ),
    bench("pools.threads", "threads with a stream each", DEVICE, ""),
    bench("pools.registered", "registrations of blocks that a NIC uses", "", ""),
    bench("pools.copies", "pinned blocks, freed while they are copied to the device", "PyTorch", ""),
    bench("pools.pinned", "16 GiB of new pinned memory", "cuMemHostAlloc", "a GPU"),
    Benchmark {
        name: "mpi.gpu",
        measures: "Bcast and Allreduce of device memory, 4 B to 1 GiB",
        peers: "MPI on copies, MPI on device pointers, NCCL",
        needs: "two GPUs, an MPI, gpu-bandwidth",
        program: Program::Mpi,
    },
    bench("instructions", "instructions of each hot path, counted", "", "valgrind"),
];

/// Why a name stands for no benchmark.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// It is like none, or like one of them.
    #[error("there is no benchmark {0:?}{1}; pinyard bench --list has all of them")]
    Unknown(String, String),
    /// It is no pattern.
    #[error("{0:?} is no pattern: {1}; * stands for any characters")]
    Pattern(String, String),
}

/// The benchmarks that `names` stand for, each once, in the order of [`ALL`]; all, where
/// no name is given. A name is a benchmark's (`cache.hit`), a group's (`cache`) or a
/// pattern (`*.memory`).
///
/// # Errors
/// A name that stands for none.
pub fn find(names: &[String]) -> Result<Vec<&'static Benchmark>, NameError> {
    let mut wanted = vec![names.is_empty(); ALL.len()];
    for name in names {
        let pattern =
            Pattern::new(name).map_err(|error| NameError::Pattern(name.clone(), error.msg.to_owned()))?;
        let group = format!("{name}.");
        let stands_for =
            |benchmark: &Benchmark| pattern.matches(benchmark.name) || benchmark.name.starts_with(&group);
        if !ALL.iter().any(stands_for) {
            return Err(NameError::Unknown(name.clone(), suggestion(name)));
        }
        ALL.iter().zip(&mut wanted).for_each(|(benchmark, wanted)| *wanted |= stands_for(benchmark));
    }
    Ok(ALL.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(benchmark, _)| benchmark).collect())
}

/// The name or the group that `name` is most like, as a question.
fn suggestion(name: &str) -> String {
    let groups = ALL.iter().filter_map(|benchmark| benchmark.name.split_once('.')).map(|(group, _)| group);
    let names = ALL.iter().map(|benchmark| benchmark.name).chain(groups);
    let likeness = |other: &&str| strsim::jaro(name, other);
    let best = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|best| likeness(best) > 0.7).map_or_else(String::new, |best| format!(", but {best:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(wanted: &[&str]) -> Vec<&'static str> {
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        find(&wanted).unwrap().iter().map(|benchmark| benchmark.name).collect()
    }

    #[test]
    fn names_groups_and_patterns_are_found_once_each() {
        assert_eq!(names(&[]).len(), ALL.len());
        assert_eq!(names(&["hooks"]), ["hooks.calls", "hooks.watched"]);
        assert_eq!(names(&["hooks.watched", "cache.hit", "cache.h*"]), ["cache.hit", "hooks.watched"]);
        assert_eq!(names(&["*memory"]), ["cache.memory"]);
    }

    #[test]
    fn a_typo_gets_a_suggestion_and_a_strange_word_does_not() {
        let error = |name: &str| find(&[name.to_owned()]).unwrap_err().to_string();
        assert!(error("cache.hits").contains("but \"cache.hit\""), "{}", error("cache.hits"));
        assert!(error("pool").contains("but \"pools\""), "{}", error("pool"));
        assert!(!error("qqqq").contains("but"), "{}", error("qqqq"));
        assert!(error("[").contains("no pattern"), "{}", error("["));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|benchmark| benchmark.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}

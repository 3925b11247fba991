//! Every environment variable that a part of pinyard reads, by one table: what
//! `pinyard info`, the manual and the book print, and what a program's own `--help` may.
//!
//! The tables of pools and traces are those that are read; the others describe what other
//! crates read, and the book's builder compares them with the source. A program that runs
//! with more rights than its caller (`AT_SECURE`, getauxval(3)) reads none of them.

use crate::allocator::config::{self, Overrides, Pools};
use crate::registry::{MECHANISM_VARIABLE, Mechanism};
use std::borrow::Cow;

/// The launcher of `pinyard demo`, `pinyard stress` and `pinyard bench`.
pub const MPIRUN: &str = "PINYARD_MPIRUN";
/// The folder of their programs.
pub const PROGRAMS: &str = "PINYARD_PROGRAMS";

/// A variable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it sets, in a line.
    pub meaning: &'static str,
    /// Which values it may have; words are separated by `|`.
    pub allowed: Cow<'static, str>,
    /// What holds where it is not set.
    pub default: &'static str,
    /// The file of pinyard's sources that reads it; empty where another program does too.
    pub source: &'static str,
}

impl Variable {
    /// Why pinyard does not take `value`, which is not empty; `None` where it does. A path or a
    /// command is taken as it is: whether it is there shows where it is used.
    ///
    /// # Example
    /// ```
    /// let groups = pinyard::environment::groups();
    /// let hooks = &groups[0].variables[0];
    /// assert_eq!(hooks.refusal("entry"), None);
    /// assert!(hooks.refusal("banana").unwrap().starts_with("PINYARD_HOOKS is \"banana\": "));
    /// ```
    pub fn refusal(&self, value: &str) -> Option<String> {
        // Those of pools and traces are judged by what reads them.
        let pair = || [(self.name.into(), value.into())];
        let refused = if self.name.starts_with(config::HOST_PREFIX) {
            Overrides::from_variables(Pools::Host, pair()).is_err()
        } else if self.name.starts_with(config::PREFIX) {
            Overrides::from_variables(Pools::Device, pair()).is_err()
        } else if self.name.starts_with(pinyard_trace::settings::PREFIX) {
            pinyard_trace::settings::Settings::from_variables(pair()).is_err()
        } else {
            !is_allowed(&self.allowed, value)
        };
        refused.then(|| format!("{} is {value:?}: it must be {}", self.name, self.allowed.replace('|', ", ")))
    }
}

/// Whether `value` is what `allowed` says: a number of a range ("2 to 64"), one of several words
/// ("on|off", "0 or 1", "a, b or c"), or anything ("a folder").
fn is_allowed(allowed: &str, value: &str) -> bool {
    let bounds = allowed.split_once(" to ").map(|(least, most)| (least.parse::<u64>(), most.parse()));
    if let Some((Ok(least), Ok(most))) = bounds {
        return value.parse().is_ok_and(|number: u64| (least..=most).contains(&number));
    }
    let words = allowed.replace(", ", "|").replace(" or ", "|");
    !words.contains('|') || words.split('|').any(|word| word == value)
}

/// Variables of one part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Group {
    /// The part, as a heading.
    pub title: &'static str,
    /// When they are read, and what a value does that is not allowed.
    pub rule: &'static str,
    /// Whether an empty value counts as none; elsewhere it is a value, and mostly not allowed.
    pub empty_is_unset: bool,
    /// Its variables.
    pub variables: Vec<Variable>,
}

/// All of them, part by part.
pub fn groups() -> Vec<Group> {
    vec![registries(), preload(), mpi(), devices(), pools(), host_pools(), traces(), command(), jobs()]
}

const fn variable(
    source: &'static str,
    name: &'static str,
    allowed: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable { name, meaning, allowed: Cow::Borrowed(allowed), default, source }
}

fn registries() -> Group {
    let names: Vec<&str> = Mechanism::ALL.into_iter().map(Mechanism::name).collect();
    let hooks = Variable {
        name: MECHANISM_VARIABLE,
        meaning: "the only mechanism that tells of changes; libpinyard_preload.so has entry alone",
        allowed: names.join("|").into(),
        default: "pinyard chooses",
        source: "registry/src/trust/mechanism.rs",
    };
    let title = "Registries";
    let rule = "Read when a registry is made, which fails where the value is not allowed.";
    Group { title, rule, empty_is_unset: true, variables: vec![hooks] }
}

fn preload() -> Group {
    let of = |name, allowed, default, meaning| {
        variable("interop/preload/src/settings.rs", name, allowed, default, meaning)
    };
    let switch = "1|on|yes|0|off|no";
    let variables = vec![
        of("PINYARD_PRELOAD", switch, "on", "whether the library does anything"),
        of("PINYARD_LIBFABRIC", switch, "on", "whether libfabric gets pinyard's monitor"),
        of(
            "PINYARD_UCX",
            "auto|1|on|0|off",
            "auto",
            "of which changes UCX hears: those it misses, all but truncations, or none",
        ),
        of("PINYARD_LOG", "off|error|info|debug", "error", "what the library says on stderr"),
        Variable {
            name: "FI_MR_CACHE_MONITOR",
            meaning: "libfabric's own: where it is set, pinyard's monitor is not imported",
            allowed: "as libfabric says".into(),
            default: "pinyard's monitor may be imported",
            source: "",
        },
    ];
    let title = "libpinyard_preload.so";
    let rule = "Read when the library finds libfabric or UCX. A value that is not allowed is ignored, \
                with a line on stderr.";
    Group { title, rule, empty_is_unset: true, variables }
}

fn mpi() -> Group {
    let of =
        |name, allowed, default, meaning| variable("mpi/src/settings.rs", name, allowed, default, meaning);
    let variables = vec![
        of(
            "PINYARD_MPI_PATH",
            "auto, direct, ipc, staged or ipc+staged",
            "auto",
            "how device memory travels; refused with the reason where it cannot",
        ),
        of(
            "PINYARD_MPI_CHUNK_BYTES",
            "4096 to 1073741824",
            "1048576",
            "bytes of a pinned chunk, at most; shorter transfers are cut into eight",
        ),
        of("PINYARD_MPI_CHUNKS", "2 to 64", "4", "chunks of a ring"),
        of(
            "PINYARD_MPI_CHECKS",
            "0 or 1",
            "0",
            "compares every Bcast, and collectives of parts, between ranks before anything moves",
        ),
        of(
            "PINYARD_MPI_RANKS_PER_NODE",
            "1 to 1048576",
            "found out",
            "takes so many ranks that follow each other for a node",
        ),
        Variable {
            source: "mpi/src/awareness.rs",
            ..of(
                "PINYARD_CUDA_AWARE",
                "0 or 1",
                "what was tried, or MPI says",
                "whether MPI takes device pointers",
            )
        },
    ];
    let title = "MPI on GPU buffers";
    let rule = "Read when a communicator is made, which fails where a value is not allowed.";
    Group { title, rule, empty_is_unset: false, variables }
}

fn devices() -> Group {
    let driver = variable(
        "registry/driver/src/chosen.rs",
        "PINYARD_DRIVER",
        "cuda or simulated",
        "cuda",
        "the driver of the plugged pools and of MPI in C: simulated is a device of 1 GiB in host memory",
    );
    let title = "Devices";
    let rule = "Read by the first call, which fails where the value is not allowed.";
    Group { title, rule, empty_is_unset: false, variables: vec![driver] }
}

fn host_pools() -> Group {
    let variable = |setting: &config::Setting| {
        let host = setting.host.as_ref()?;
        Some(Variable {
            name: host.name,
            meaning: host.meaning,
            allowed: setting.allowed().into(),
            default: host.default,
            source: "allocator/src/config/table.rs",
        })
    };
    let title = "Host and pinned pools";
    let rule = "Read when such a pool is made, as the settings of device pools. The pinned pool of a `Gpu`, \
                which has MPI's chunks, is not told.";
    Group {
        title,
        rule,
        empty_is_unset: false,
        variables: config::TABLE.iter().filter_map(variable).collect(),
    }
}

fn pools() -> Group {
    let variables = config::TABLE.iter().map(|setting| Variable {
        name: setting.name,
        meaning: setting.meaning,
        allowed: setting.allowed().into(),
        default: setting.default,
        source: "allocator/src/config/table.rs",
    });
    let title = "Device pools";
    let rule = "Read when a device pool is made, which fails where a name or a value is not allowed; \
                they go before what the program says, unless it calls `ignore_environment`.";
    Group { title, rule, empty_is_unset: false, variables: variables.collect() }
}

fn traces() -> Group {
    let variables = pinyard_trace::settings::TABLE.iter().map(|setting| Variable {
        name: setting.name,
        meaning: setting.meaning,
        allowed: setting.allowed.into(),
        default: setting.default,
        source: "registry/trace/src/settings.rs",
    });
    let title = "Traces";
    let rule = "Read when the first registry or device pool is made, which fails where a name or a value \
                is not allowed.";
    Group { title, rule, empty_is_unset: false, variables: variables.collect() }
}

fn command() -> Group {
    let shim = |name, default, meaning| {
        variable("benches/src/bench/pools/shim.rs", name, "a file", default, meaning)
    };
    let variables = vec![
        variable(
            "src/environment.rs",
            MPIRUN,
            "a command",
            "mpirun, from PATH",
            "mpirun of `demo`, `stress` and `bench`",
        ),
        variable(
            "src/environment.rs",
            PROGRAMS,
            "a folder",
            "the command's own folder, or libexec/pinyard",
            "where the programs of `demo`, `stress`, `probe` and `bench` lie",
        ),
        shim("PINYARD_BENCH_TORCH", "PyTorch takes no part", "shim over PyTorch for `bench`"),
        shim(
            "PINYARD_BENCH_TORCH_HOST",
            "PyTorch takes no part in `pools.copies`",
            "shim over PyTorch's pinned memory for `bench`",
        ),
        shim("PINYARD_BENCH_RMM", "RMM takes no part", "shim over RMM for `bench`"),
        shim("PINYARD_BENCH_CUB", "CUB and Thrust take no part", "shim over CUB and Thrust for `bench`"),
        variable(
            "benches/src/bench/pools/calls.rs",
            "PINYARD_BENCH_CALLS",
            "a file",
            "calls of the driver are counted where they go through pinyard",
            "shim over CUPTI for `bench`",
        ),
    ];
    let title = "The command";
    let rule = "Options of the command line go before them.";
    Group { title, rule, empty_is_unset: true, variables }
}

fn jobs() -> Group {
    let of = |name, default, meaning| variable("slurm/env.sh", name, "a folder", default, meaning);
    let variables = vec![
        of("PINYARD_PREFIX", "the templates', or that of PATH", "where pinyard is installed"),
        Variable {
            source: "slurm/host.sbatch",
            ..of("PINYARD_SLURM", "the template's own folder", "where `env.sh` of the job templates lies")
        },
    ];
    let title = "Job templates";
    let rule = "Read by the templates of `slurm/`; the others that they read are in `slurm/README.md`.";
    Group { title, rule, empty_is_unset: true, variables }
}

/// A table for each part, as the book has it.
pub fn markdown() -> String {
    let mut text = String::new();
    for Group { title, rule, variables, .. } in groups() {
        text += &format!("### {title}\n\n{rule}\n\n");
        text += "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n";
        for Variable { name, meaning, allowed, default, .. } in variables {
            // A bar would end the cell.
            let allowed = allowed.replace('|', ", ");
            text += &format!("| `{name}` | {allowed} | {default} | {meaning} |\n");
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What is shown as allowed is taken, and what nobody would mean is not, wherever there is a
    /// choice.
    #[test]
    fn each_variable_takes_what_it_shows_and_nothing_else() {
        for variable in groups().iter().flat_map(|group| &group.variables) {
            let Variable { name, allowed, .. } = variable;
            let free = ["a ", "as libfabric"].iter().any(|start| allowed.starts_with(start));
            assert_eq!(variable.refusal("banana split").is_none(), free, "{name}: {allowed}");
            if allowed.contains('|') {
                assert!(allowed.split('|').all(|word| variable.refusal(word).is_none()), "{name}: {allowed}");
            }
        }
        let of = |name: &str, value: &str| {
            let groups = groups();
            let mut variables = groups.iter().flat_map(|group| &group.variables);
            variables.find(|variable| variable.name == name).unwrap().refusal(value)
        };
        for (name, good, bad) in [
            ("PINYARD_MPI_CHUNKS", "64", "65"),
            ("PINYARD_MPI_CHECKS", "1", "2"),
            ("PINYARD_MPI_PATH", "ipc+staged", "ipc,staged"),
            ("PINYARD_DRIVER", "simulated", "Cuda"),
            ("PINYARD_POOL_LIMIT", "80%", "800%"),
            ("PINYARD_HOST_POOL_SLAB_BYTES", "64M", "64X"),
            ("PINYARD_TRACE_EVENTS", "1024", "1023"),
        ] {
            assert_eq!(of(name, good), None);
            let text = of(name, bad).unwrap();
            assert!(text.starts_with(&format!("{name} is {bad:?}: it must be ")), "{text}");
        }
    }

    #[test]
    fn each_variable_is_listed_once_and_fits_a_table() {
        let mut names = BTreeSet::new();
        for Variable { name, meaning, allowed, default, .. } in
            groups().iter().flat_map(|group| &group.variables)
        {
            assert!(names.insert(*name), "{name} twice");
            assert!(!meaning.is_empty() && !allowed.is_empty() && !default.is_empty(), "{name}");
            assert!(!meaning.contains('|') && !default.contains('|'), "{name}");
        }
        assert!(names.contains("PINYARD_DRIVER") && names.contains("PINYARD_POOL_LIMIT"), "{names:?}");
        let text = markdown();
        assert!(names.iter().all(|name| text.contains(&format!("| `{name}` |"))), "{text}");
    }
}

//! What is wrong with variables of the environment.

use super::super::facts::Facts;
use super::super::{known, settings};
use super::{Findings, Weight};
use pinyard::allocator::config;
use pinyard::environment::groups;

/// What other libraries' variables do not do.
pub(super) fn others(facts: &Facts, findings: &mut Findings) {
    // Where no libfabric is found, the program may still have one.
    let hangs = facts.libfabric.is_empty()
        || facts.libfabric.iter().any(|one| one.version.is_none_or(known::hangs_by_patches));
    if let Some(value) = facts.environment.get(settings::MONITOR)
        && (settings::preloaded(facts) || settings::imports(facts))
    {
        findings.add(
            Weight::Fail,
            settings::MONITOR,
            format!("{}={value} does not do what it says", settings::MONITOR),
            settings::effect(facts, settings::MONITOR, value),
            format!("unset {}", settings::MONITOR),
        );
    }
    if settings::patched_by_libfabric(facts) && hangs {
        findings.add(
            Weight::Warn,
            settings::MEMORY,
            format!("{} does not end the hang of Open MPI #13149", settings::MEMORY),
            settings::effect(facts, settings::MEMORY, "^patcher"),
            facts
                .preload
                .as_ref()
                .map_or("FI_MR_CACHE_MONITOR=userfaultfd".to_owned(), |path| format!("LD_PRELOAD={path}")),
        );
    }
    if settings::is(facts, "UCX_MEM_EVENTS", &["n", "no", "0"]) {
        findings.add(
            Weight::Warn,
            "UCX_MEM_EVENTS",
            "UCX's memory events are off",
            "UCX registers anew for each transfer",
            "unset UCX_MEM_EVENTS",
        );
    }
}

/// How like a name must be to one of pinyard's that it is taken for it misspelt, of 1.
const ALIKE: f64 = 0.7;

/// Pinyard's own variables: a value that is refused where it is read, a name that nothing reads.
pub(super) fn pinyards(facts: &Facts, findings: &mut Findings) {
    let groups = groups();
    let all =
        || groups.iter().flat_map(|group| group.variables.iter().map(move |variable| (group, variable)));
    for (name, value) in facts.environment.iter().filter(|(name, _)| settings::is_pinyards(name)) {
        let Some((group, variable)) = all().find(|(_, variable)| variable.name == name) else {
            unknown(name, all().map(|(_, variable)| variable.name), findings);
            continue;
        };
        if let Some(why) = variable.refusal(value).filter(|_| !(value.is_empty() && group.empty_is_unset)) {
            findings.add(
                Weight::Fail,
                name,
                why,
                group.rule,
                format!("unset {name}, or one of these values"),
            );
        }
    }
}

/// Names that begin so are settings of pools and traces, which refuse those that they do not know.
const REFUSED: [&str; 3] = [config::PREFIX, config::HOST_PREFIX, pinyard::trace::settings::PREFIX];

fn unknown(name: &str, known: impl Iterator<Item = &'static str>, findings: &mut Findings) {
    let nearest = known
        .map(|one| (one, strsim::normalized_damerau_levenshtein(name, one)))
        .filter(|(_, likeness)| *likeness >= ALIKE)
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map(|(one, _)| one);
    let is_refused = REFUSED.iter().any(|prefix| name.starts_with(prefix));
    findings.add(
        if is_refused { Weight::Fail } else { Weight::Warn },
        name,
        match nearest {
            Some(nearest) => format!("pinyard has no variable {name}; {nearest} is the nearest name"),
            None => format!("pinyard has no variable {name}"),
        },
        if is_refused {
            "the pools, or the registries, that read such names refuse it when they are made"
        } else {
            "it has no effect"
        },
        match nearest {
            Some(nearest) => format!("{nearest} in its place"),
            None => format!("unset {name}; pinyard info lists all variables"),
        },
    );
}

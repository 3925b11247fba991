//! The process's hooks, and the words for them.

use crate::settings::{Hooks, settings};
use crate::wrappers;
use pinyard_hooks::{Owner, Report, Seen};

/// Installs the hooks, or says how they are. Not from a hook.
pub(crate) fn hooks() -> Report {
    if settings().hooks == Hooks::Preload {
        wrappers::become_hooks();
    }
    pinyard_hooks::install()
}

/// What operators want to know of a report, in a line.
pub(crate) fn in_words(report: &Report) -> String {
    if let Some(line) = report.missed().next() {
        let why = match line.seen {
            Seen::No(why) | Seen::NotExercised(why) => why.to_string(),
            Seen::Yes => String::new(),
        };
        return format!("hooks: calls of {} escape ({why})", line.function.name());
    }
    let seen = report.functions.iter().filter(|line| line.seen == Seen::Yes).count();
    if let Some(who) = report.passes_by() {
        return format!("hooks: interposed, {seen} functions seen, but not {who}");
    }
    let others = report.functions.iter().filter(|line| matches!(line.owner, Owner::Module(_))).count();
    match others {
        0 => format!("hooks: entries, {seen} functions seen"),
        _ => format!("hooks: entries, {seen} functions seen, {others} through another library's hooks"),
    }
}

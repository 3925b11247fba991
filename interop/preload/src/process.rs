//! The process's hooks, and the words for them.

use pinyard_hooks::{Owner, Report, Seen};

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
    let others = report.functions.iter().filter(|line| matches!(line.owner, Owner::Module(_))).count();
    match others {
        0 => format!("hooks: entries, {seen} functions seen"),
        _ => format!("hooks: entries, {seen} functions seen, {others} through another library's hooks"),
    }
}

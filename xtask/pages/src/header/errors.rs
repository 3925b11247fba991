//! Every function that returns a status says which: by name, or as another one that does.
//! And every status that a comment names is one.

use std::collections::{HashMap, HashSet};

/// What a header has undocumented, or `Ok`. `statuses` is the header that declares them.
pub(crate) fn check(header: &str, statuses: &str) -> Result<(), String> {
    let comments = comments(header);
    let declared: HashSet<&str> =
        statuses.lines().filter_map(|line| line.trim().split_once(" = ")).map(|(name, _)| name).collect();
    for (function, comment) in &comments {
        for name in words(comment).filter(|word| word.starts_with("PNY_ERR_")) {
            if !declared.contains(name) {
                return Err(format!("{function}: {name} is no status"));
            }
        }
        let handle = taken(header, function);
        for name in ["PNY_ERR_INVALID", "PNY_ERR_STALE"].into_iter().filter(|_| handle.is_some()) {
            if !resolves(function, &comments, name) {
                let handle = handle.unwrap_or_default();
                return Err(format!(
                    "{function} takes a {handle}, so it may return {name}: its comment must say when"
                ));
            }
        }
        if !says(function, &comments, &mut HashSet::new()) {
            return Err(format!(
                "{function} returns a pny_status: its comment names each PNY_ERR_ that it may be, or says \
                 \"Errors: as\" which function that does"
            ));
        }
    }
    Ok(())
}

/// The handle that a function takes first.
fn taken<'h>(header: &'h str, function: &str) -> Option<&'h str> {
    let (_, rest) = header.split_once(&format!("pny_status {function}("))?;
    let (of, _) = rest.split_once(' ')?;
    ["pny_pool", "pny_stream", "pny_registry", "pny_mpi_comm"].contains(&of).then_some(of)
}

/// The comment of each function that returns a status.
pub(crate) fn comments(header: &str) -> HashMap<&str, &str> {
    let mut found = HashMap::new();
    for (at, declaration) in header.match_indices("\npny_status ") {
        let name = header[at + declaration.len()..].split('(').next().unwrap_or_default();
        let comment = header[..at].strip_suffix("*/").and_then(|before| before.rsplit_once("/*"));
        found.insert(name, comment.map_or("", |(_, comment)| comment));
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// Whether a function's comment, or that of the one which it refers to, names `status`.
pub(crate) fn resolves(function: &str, comments: &HashMap<&str, &str>, status: &str) -> bool {
    let (mut at, mut asked) = (function, HashSet::new());
    while let Some(comment) = comments.get(at).filter(|_| asked.insert(at)) {
        if words(comment).any(|word| word == status) {
            return true;
        }
        let Some(other) = comment.split_once("Errors: as ").and_then(|(_, rest)| words(rest).next()) else {
            return false;
        };
        at = other;
    }
    false
}

/// Whether a function's comment, or that of the one which it refers to, names a status.
fn says<'h>(function: &'h str, comments: &HashMap<&str, &'h str>, asked: &mut HashSet<&'h str>) -> bool {
    let Some(comment) = comments.get(function).filter(|_| asked.insert(function)) else { return false };
    let referred = comment.split_once("Errors: as ").and_then(|(_, rest)| words(rest).next());
    comment.contains("PNY_ERR_") || referred.is_some_and(|other| says(other, comments, asked))
}

#[cfg(test)]
mod tests {
    use super::check;

    const STATUSES: &str =
        "typedef enum pny_status {\n\tPNY_OK = 0,\n\tPNY_ERR_INVALID = 1,\n} pny_status;\n";

    fn of(comment: &str) -> Result<(), String> {
        let other = "/*\n * PNY_ERR_INVALID: null.\n */\npny_status pny_other(void);\n";
        check(&format!("\n{other}\n{comment}pny_status pny_it(int a,\n\t\tint b);\n"), STATUSES)
    }

    #[test]
    fn a_status_is_named_or_referred_to() {
        assert_eq!(of("/*\n * Does it.\n *\n * PNY_ERR_INVALID  null\n */\n"), Ok(()));
        assert_eq!(of("/* Does it. Errors: as pny_other. */\n"), Ok(()));
        for silent in ["", "/* Does it. */\n", "/* Errors: as pny_it. */\n", "/* Errors: as pny_gone. */\n"] {
            assert!(of(silent).is_err_and(|problem| problem.starts_with("pny_it ")), "{silent}");
        }
        assert!(of("/* PNY_ERR_INVALD */\n").is_err_and(|problem| problem.contains("PNY_ERR_INVALD")));
    }
}

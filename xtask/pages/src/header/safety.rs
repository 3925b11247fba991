//! Who may call a function, in the words of attributes(7), as the last line of its comment.

use crate::errors::{comments, resolves};

/// The one function for signal handlers and for the inside of malloc.
const SIGNAL_SAFE: &str = "pny_notify_unmapped";

/// The header with such a line for each function.
pub(crate) fn with_lines(header: &str, of_mpi: bool) -> String {
    let known = comments(header);
    let mut written = String::new();
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let name = lines.peek().and_then(|next| function(next));
        match (name, line.strip_prefix("/* ").and_then(|line| line.strip_suffix(" */"))) {
            (Some(name), Some(text)) => {
                written.push_str(&format!("/*\n * {text}\n *\n * {}\n */\n", of(name, text, of_mpi, false)));
            }
            (Some(name), None) if line == " */" => {
                let comment = known.get(name).copied().unwrap_or_default();
                let refused = resolves(name, &known, "PNY_ERR_FORKED");
                written.push_str(&format!(" *\n * {}\n */\n", of(name, comment, of_mpi, refused)));
            }
            _ => written.push_str(&format!("{line}\n")),
        }
    }
    written
}

/// The name, where a line begins a function's declaration.
fn function(line: &str) -> Option<&str> {
    let begins = line.starts_with(|letter: char| letter.is_ascii_lowercase()) && !line.starts_with("typedef");
    let name = line.split('(').next().filter(|_| begins && line.contains('('))?.rsplit([' ', '*']).next()?;
    name.starts_with("pny_").then_some(name)
}

fn of(name: &str, comment: &str, of_mpi: bool, refused: bool) -> String {
    let threads = match (of_mpi, name.ends_with("_destroy")) {
        (true, _) if name == "pny_mpi_last_error" => "MT-Safe",
        (true, _) => "MT-Unsafe: one thread at a time in a communicator",
        (false, true) => "MT-Safe but for its object",
        (false, false) => "MT-Safe",
    };
    let signals = if name == SIGNAL_SAFE { "AS-Safe" } else { "AS-Unsafe" };
    let words = comment.split_whitespace().filter(|word| *word != "*").collect::<Vec<_>>().join(" ");
    let fork = match (words.contains("orked child"), refused) {
        (true, _) => "; in a forked child as said above",
        (_, true) => "; refused in a forked child",
        _ => "; a forked child may call it",
    };
    format!("{threads}; {signals}{fork}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_a_line() {
        let header = "/* It. */\nconst char *pny_it(void);\n\n/*\n * PNY_ERR_FORKED: a child.\n */\npny_status pny_one(pny_h a,\n\t\tint b);\n\n\
                      /*\n * Errors: as pny_one.\n */\npny_status pny_two_destroy(pny_h a);\n\n/* No function. */\ntypedef int (*pny_f)(void);\n";
        let written = with_lines(header, false);
        let lines: Vec<&str> = written.lines().filter(|line| line.contains("MT-")).collect();
        let expected = [
            " * MT-Safe; AS-Unsafe; a forked child may call it.",
            " * MT-Safe; AS-Unsafe; refused in a forked child.",
            " * MT-Safe but for its object; AS-Unsafe; refused in a forked child.",
        ];
        assert_eq!(lines, expected);
        assert!(written.contains("/* No function. */\ntypedef int (*pny_f)(void);\n"));
        assert!(written.contains("/*\n * It.\n *\n * MT-Safe;"));
    }

    #[test]
    fn a_signal_handler_may_call_one() {
        assert!(of(SIGNAL_SAFE, "", false, false).contains("; AS-Safe;"));
        assert_eq!(
            of("pny_x", "In a\n * forked child it says that.", false, true),
            "MT-Safe; AS-Unsafe; in a forked child as said above."
        );
    }
}

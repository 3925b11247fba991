//! For tests: the screens that the book shows, against what the command prints.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// What a command prints in the root of the tree, such as `xtask/ci/block.sh PAGE NAME`.
pub(crate) fn page(command: &str) -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = Command::new("sh").args(["-c", command]).current_dir(root).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Each line that is shown is printed, in this order. `...` at the end of one stands for the
/// rest of it, and alone for any lines; what is printed between two need not be shown.
pub(crate) fn assert_printed(shown: &str, printed: &str) {
    let mut left = printed.lines().map(str::trim_end);
    for line in shown.lines().map(str::trim_end).filter(|line| !matches!(line.trim(), "" | "...")) {
        let found = match line.strip_suffix("...") {
            Some(beginning) => {
                left.any(|printed| printed == beginning.trim_end() || printed.starts_with(beginning))
            }
            None => left.any(|printed| printed == line),
        };
        assert!(found, "shown, and not printed there: {line}\nprinted is:\n{printed}");
    }
}

#[test]
fn what_is_not_printed_is_noticed() {
    let printed = "one  1\ntwo  2\nthree  3\n";
    for shown in ["one  1\n...\nthree  3\n", "two ...\n", "one  1\n\ntwo  2\n"] {
        assert_printed(shown, printed);
    }
    for shown in ["one 1\n", "two  2\none  1\n", "tw  ...\n", "two  2\ntwo  2\n"] {
        assert!(std::panic::catch_unwind(|| assert_printed(shown, printed)).is_err(), "{shown}");
    }
}

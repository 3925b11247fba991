//! Blocks of code in the pages: each is compiled or run by somebody, and says by whom.
//!
//! ```text
//! rust              a documentation test: its page is included by a crate;
//!                   by= and as= of a program of its own, as below: rustdoc makes no test of that
//! c, cpp            compiled by xtask/ci/book-commands.sh; file=NAME leaves it for commands
//! sh, console       run        by xtask/ci/book-commands.sh, `$ ` before each command of console;
//!                   run same   what is shown must be printed, but for numbers
//!                   by=SCRIPT as=NAME
//!                              by that script, which reads it out of the page:
//!                              `xtask/ci/block.sh PAGE NAME`
//! python, cmake,
//! toml              by= and as=, likewise
//! text              drawing   of how something works; or what a command prints, by= and as= of
//!                             who compares it with that
//! ```

use crate::files::{Page, pages, read};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// How a line of a command begins.
const COMMANDS: [&str; 15] = [
    "$",
    "make",
    "cargo",
    "cc",
    "gcc",
    "mpicc",
    "gfortran",
    "srun",
    "sbatch",
    "mpirun",
    "bpftrace",
    "ln",
    "git",
    "apt-get",
    "pkg-config",
];
/// Files whose documentation tests are pages.
const INCLUDERS: [&str; 2] = ["src/lib.rs", "mpi/src/lib.rs"];

/// A fenced block.
struct Block {
    /// The page, from the root.
    page: String,
    /// Where its fence is: `FILE:LINE`.
    place: String,
    language: String,
    marks: Vec<String>,
    text: String,
}

/// The blocks of all pages, in their order.
fn blocks(root: &Path, problems: &mut Vec<String>) -> Vec<Block> {
    let mut found = Vec::new();
    for Page { name: page, lines, .. } in pages(root, problems) {
        let mut open: Option<Block> = None;
        for (place, line) in lines {
            match (line.strip_prefix("```"), &mut open) {
                (Some(""), Some(_)) => found.extend(open.take()),
                (Some(info), None) => {
                    let mut words = info.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned);
                    let language = words.next().unwrap_or_default();
                    let (page, marks) = (page.clone(), words.collect());
                    open = Some(Block { page, place, language, marks, text: String::new() });
                }
                (_, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) => {}
            }
        }
        problems.extend(open.map(|Block { place, .. }| format!("{place}: the block does not end")));
    }
    found
}

/// Blocks that nobody compiles or runs.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let includers = INCLUDERS.map(|file| read(&root.join(file), &mut problems)).concat();
    let found = blocks(root, &mut problems);
    problems.extend(found.iter().filter_map(|block| {
        let cause = block.mistake(root, &includers)?;
        Some(format!("{}: {cause}", block.place))
    }));
    let mut names = BTreeSet::new();
    for block in &found {
        if let Some(name) = block.mark("as").filter(|name| !names.insert((&block.page, name.to_owned()))) {
            problems.push(format!("{}: the page has another block as={name}", block.place));
        }
    }
    problems
}

impl Block {
    fn mark(&self, name: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix(name)?.strip_prefix('='))
    }

    fn has(&self, mark: &str) -> bool {
        self.marks.iter().any(|one| one == mark)
    }

    /// What is wrong with it.
    fn mistake(&self, root: &Path, includers: &str) -> Option<String> {
        match self.language.as_str() {
            "rust" if self.has("ignore") => Some("Rust that is not compiled: use no_run".to_owned()),
            // rustdoc reads no block whose marks have a `=`.
            "rust" if self.marks.iter().any(|mark| mark.contains('=')) => self.without_runner(root),
            "rust" => {
                let included = includers.contains(&format!("{}\")]", self.page));
                (!included)
                    .then(|| format!("Rust that no test compiles: include the page in {}", INCLUDERS[0]))
            }
            "c" | "cpp" => None,
            "sh" | "console" => (!self.has("run")).then(|| self.without_runner(root)).flatten(),
            "python" | "cmake" | "toml" => self.without_runner(root),
            "text" => {
                let command = self
                    .text
                    .lines()
                    .find(|line| line.split_whitespace().next().is_some_and(|word| COMMANDS.contains(&word)));
                let looks = command.map(|line| format!("text that looks like a command, for `sh`: {line}"));
                looks.or_else(|| (!self.has("drawing")).then(|| self.without_runner(root)).flatten())
            }
            other => Some(format!("a block of {other:?}, which nothing compiles or runs")),
        }
    }

    /// What is wrong with who runs it.
    fn without_runner(&self, root: &Path) -> Option<String> {
        match (self.mark("by"), self.mark("as")) {
            (Some(script), Some(name)) => match fs::read_to_string(root.join(script)) {
                Ok(text) if reads(&text, &self.page, name) => None,
                Ok(_) => Some(format!(
                    "by={script}, which does not run it: no xtask/ci/block.sh {} {name} there",
                    self.page
                )),
                Err(error) => Some(format!("by={script}: {error}")),
            },
            (Some(script), None) => Some(format!("by={script} without as=NAME, by which it finds it")),
            (None, _) if self.language == "text" => {
                Some("neither a drawing nor by=SCRIPT as=NAME, where it is compared".to_owned())
            }
            (None, _) => Some("neither run nor by=SCRIPT as=NAME".to_owned()),
        }
    }
}

/// Whether a script reads the block out of the page, in a line that is no comment.
fn reads(script: &str, page: &str, name: &str) -> bool {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(|line| line.split("xtask/ci/block.sh").skip(1)).any(|rest| {
        let mut words = rest
            .trim_start_matches('"')
            .split([' ', ')', '"', ';', '|', '`'])
            .filter(|word| !word.is_empty());
        words.next() == Some(page) && words.next() == Some(name)
    })
}

/// Writes each block to a file of `folder`, and a line for each to `list`: page, place,
/// language, marks (`-` for none) and file, apart by tabs. Of a console the commands; what they print is
/// in a file of its own.
pub(crate) fn write(root: &Path, folder: &Path) -> Vec<String> {
    let mut problems = check(root);
    let found = blocks(root, &mut problems);
    let mut list = String::new();
    let mut put = |name: &str, text: &str| {
        let path = folder.join(name);
        problems.extend(fs::write(&path, text).err().map(|error| format!("{}: {error}", path.display())));
    };
    for (number, block) in found.iter().enumerate().filter(|(_, block)| block.language != "text") {
        let Block { page, place, language, marks, text } = block;
        let name = format!("{number:03}.{language}");
        if language == "console" {
            let (commands, printed) = session(text);
            put(&name, &commands);
            put(&format!("{name}.printed"), &printed);
        } else {
            put(&name, text);
        }
        let marks = if marks.is_empty() { "-".to_owned() } else { marks.join(" ") };
        list += &format!("{page}\t{place}\t{language}\t{marks}\t{name}\n");
    }
    put("list", &list);
    problems
}

/// Commands, with `> ` before the lines that go on, and what they print.
fn session(text: &str) -> (String, String) {
    let (mut commands, mut printed, mut goes_on) = (String::new(), String::new(), false);
    for line in text.lines() {
        let command = line.strip_prefix("$ ").or(line.strip_prefix("> ").filter(|_| goes_on));
        goes_on = command.is_some();
        let (to, line) = command.map_or((&mut printed, line), |command| (&mut commands, command));
        *to += &format!("{line}\n");
    }
    (commands, printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(info: &str, text: &str) -> Option<String> {
        let mut words = info.split([',', ' ']).map(str::to_owned);
        let language = words.next().unwrap_or_default();
        let (page, marks, text) = ("docs/src/x.md".to_owned(), words.collect(), text.to_owned());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Block { page, place: String::new(), language, marks, text }
            .mistake(&root, "include_str!(\"../docs/src/x.md\")]")
    }

    #[test]
    fn a_block_is_compiled_or_run() {
        for info in ["rust", "rust,no_run", "c", "sh run", "console run same"] {
            assert_eq!(mistake(info, ""), None, "{info}");
        }
        for info in [
            "",
            "rust,ignore",
            "rust as=x",
            "rust by=xtask/ci/unit.sh as=x",
            "sh",
            "console",
            "sh needs=luck",
            "sh as=x",
            "sh by=xtask/ci/unit.sh",
            "sh by=xtask/ci/none.sh as=x",
            "sh by=xtask/ci/unit.sh as=x",
            "go",
            "python",
        ] {
            assert!(mistake(info, "").is_some(), "{info}");
        }
        assert!(mistake("text", "first\nmake demo\n").is_some());
        assert!(mistake("text", "pinyard 0.1.0 on n7\n").is_some());

        assert_eq!(mistake("text drawing", "a picture\n  -> makes sense\n"), None);
    }

    #[test]
    fn a_block_is_run_by_who_reads_it_out_of_the_page() {
        for script in [
            "xtask/ci/block.sh a/b.md first | bash",
            "x=$(xtask/ci/block.sh a/b.md first)",
            "\"$root/xtask/ci/block.sh\" a/b.md first",
        ] {
            assert!(reads(script, "a/b.md", "first"), "{script}");
        }
        for script in [
            "# xtask/ci/block.sh a/b.md first",
            "xtask/ci/block.sh a/b.md first-of-all",
            "xtask/ci/block.sh a/c.md first",
            "a/b.md first",
        ] {
            assert!(!reads(script, "a/b.md", "first"), "{script}");
        }
    }

    #[test]
    fn a_session_is_commands_and_what_they_print() {
        let (commands, printed) = session("$ a \\\n> b\n1 > 0\n> 2\n$ c\n");
        assert_eq!((commands.as_str(), printed.as_str()), ("a \\\nb\nc\n", "1 > 0\n> 2\n"));
    }
}

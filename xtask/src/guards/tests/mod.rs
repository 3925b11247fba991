//! The guards of a made-up tree: a package with one guarding line, and one that it depends on.

mod choices;
mod trials;

use super::git;
use super::list::{Guard, List};
use super::run::Folders;
use clap::Parser;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LIMIT: &str = "
/// At most ten more.
pub fn add(to: u32, more: u32) -> u32 {
    let more = more.min(10);
    base::sum(to, more)
}

/// The vector's length is read before the vector is borrowed.
pub fn push_length(all: &mut Vec<usize>) {
    let length = all.len();
    let last = all.last_mut().unwrap();
    *last += length;
}

#[cfg(test)]
mod inside {
    #[test]
    fn adds_one() {
        assert_eq!(super::add(1, 1), 2);
    }
}
";

const SCRIPT: &str = "#!/bin/sh
[ \"$1\" != skip ] || { echo 'skipped: the weather' && exit; }
grep -q 'min(10)' tiny/src/lib.rs || echo 'FAILED  no limit, none'
";

/// A test notices that the line is gone.
const NOTICED: &str = "line = 'more.min(10)'\nreplacement = 'more'\nnoticed_by = { package = 'tiny', test = '--test adds at_most' }";

struct Tree {
    folder: tempfile::TempDir,
    folders: Folders,
}

/// The tree with these guards: a name, and what follows the file.
fn tree(guards: &[(&str, &str)]) -> Tree {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tree");
    let list = guards
        .iter()
        .map(|(name, rest)| format!("[[guard]]\nname = '{name}'\nfile = 'tiny/src/lib.rs'\n{rest}\n"));
    let counted = folder.path().join("builds-of-base");
    for (path, text) in [
        (".gitignore", "/target\n"),
        ("Cargo.toml", "[workspace]\nmembers = ['tiny', 'base']\nresolver = '3'\n"),
        ("base/Cargo.toml", "[package]\nname = 'base'\nedition = '2024'\n"),
        ("base/src/lib.rs", "pub fn sum(a: u32, b: u32) -> u32 {\n    a + b\n}\n"),
        (
            "base/build.rs",
            &format!(
                "use std::io::Write;\nfn main() {{\n    std::fs::File::options().create(true).append(true).open({counted:?}).unwrap().write_all(b\"x\").unwrap();\n}}\n"
            ),
        ),
        (
            "tiny/Cargo.toml",
            "[package]\nname = 'tiny'\nedition = '2024'\n[dependencies]\nbase = { path = '../base' }\n",
        ),
        ("tiny/src/lib.rs", LIMIT),
        ("tiny/tests/adds.rs", "#[test]\nfn at_most_ten() {\n    assert_eq!(tiny::add(1, 20), 11);\n}\n"),
        ("check.sh", SCRIPT),
        ("ci/guards.toml", &list.collect::<String>()),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::set_permissions(root.join("check.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let person = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    for arguments in [&["init", "--quiet"][..], &["add", "."], &["commit", "--quiet", "-m", "first"]] {
        git(&root, &[&person, arguments].concat()).unwrap();
    }
    Tree { folders: Folders { target: root.join("target"), root }, folder }
}

impl Tree {
    fn root(&self) -> &Path {
        &self.folders.root
    }

    fn list(&self) -> Result<List, String> {
        List::read(self.root())
    }

    /// `cargo xtask guards ARGUMENTS`: whether it succeeds, and what it says.
    fn guards(&self, arguments: &[&str]) -> (bool, String) {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: super::Arguments,
        }
        let line = Line::try_parse_from([&["guards"], arguments].concat()).unwrap();
        let mut said = Vec::new();
        let ok = super::within(&self.folders, &line.arguments, &mut said).unwrap();
        (ok, String::from_utf8(said).unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.root().join(path), text).unwrap();
    }
}

fn names<'a>(guards: &[&'a Guard]) -> Vec<&'a str> {
    guards.iter().map(|guard| guard.name.as_str()).collect()
}

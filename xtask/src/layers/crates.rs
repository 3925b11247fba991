//! The crates of the workspace, and whom they use.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) folder: PathBuf,
    /// The first files of its library and its programs.
    pub(super) mains: Vec<PathBuf>,
    /// The crates of the workspace that it uses, those of its tests left out.
    pub(super) uses: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
    #[serde(default)]
    optional: bool,
}

/// As cargo lists them.
pub(super) fn of_workspace(root: &Path) -> Result<Vec<Crate>, String> {
    let call = "cargo metadata --no-deps --format-version 1";
    let output = Command::new("cargo").args(call.split(' ').skip(1)).current_dir(root).output();
    let output = output.map_err(|error| format!("{call}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{call}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{call}: {error}"))?;
    Ok(metadata.packages.into_iter().map(Crate::from).collect())
}

impl From<Package> for Crate {
    fn from(package: Package) -> Crate {
        let is_ours = |target: &&Target| {
            target
                .kind
                .iter()
                .any(|kind| matches!(kind.as_str(), "lib" | "rlib" | "cdylib" | "bin" | "proc-macro"))
        };
        let uses =
            |each: &&Dependency| each.path.is_some() && each.kind.as_deref() != Some("dev") && !each.optional;
        Crate {
            folder: package.manifest_path.parent().unwrap_or(Path::new("")).to_owned(),
            mains: package.targets.iter().filter(is_ours).map(|target| target.src_path.clone()).collect(),
            uses: package.dependencies.iter().filter(uses).map(|each| each.name.clone()).collect(),
            name: package.name,
        }
    }
}

/// Who uses a crate that is not below it, or has no row.
pub(super) fn wrong(crates: &[Crate], rows: &[Vec<String>], tools: &[String]) -> Vec<String> {
    let row = |name: &str| rows.iter().position(|row| row.iter().any(|other| other == name));
    let is_tool = |name: &str| tools.iter().any(|tool| tool == name);
    let mut wrong = Vec::new();
    for each in crates {
        let Some(own) = row(&each.name) else {
            if !is_tool(&each.name) {
                wrong.push(format!("{} has neither a row nor is it a tool", each.name));
            }
            continue;
        };
        for used in each.uses.iter().filter(|used| row(used).is_none_or(|row| row >= own)) {
            wrong.push(format!("{} uses {used}, which is not below it", each.name));
        }
    }
    let known = |name: &&String| !crates.iter().any(|each| each.name == **name);
    wrong.extend(
        rows.iter().flatten().chain(tools).filter(known).map(|name| format!("there is no crate {name}")),
    );
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(name: &str, uses: &[&str]) -> Crate {
        let uses = uses.iter().map(|name| (*name).to_owned()).collect();
        Crate { name: name.to_owned(), folder: PathBuf::new(), mains: Vec::new(), uses }
    }

    #[test]
    fn only_what_is_below_may_be_used() {
        let rows =
            [vec!["low".to_owned()], vec!["mid".to_owned(), "beside".to_owned()], vec!["high".to_owned()]];
        let tools = ["tool".to_owned()];
        let good = [
            each("low", &[]),
            each("mid", &["low"]),
            each("beside", &[]),
            each("high", &["mid", "low"]),
            each("tool", &["high"]),
        ];
        assert_eq!(wrong(&good, &rows, &tools), Vec::<String>::new());
        let bad = [
            each("low", &["mid"]),
            each("mid", &["beside", "tool"]),
            each("beside", &[]),
            each("new", &[]),
            each("tool", &[]),
        ];
        assert_eq!(
            wrong(&bad, &rows, &tools),
            [
                "low uses mid, which is not below it",
                "mid uses beside, which is not below it",
                "mid uses tool, which is not below it",
                "new has neither a row nor is it a tool",
                "there is no crate high"
            ]
        );
    }
}

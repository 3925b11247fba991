//! The tree that `cargo xtask` was called in, and what git knows of it.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where it is, and what builds go into.
pub(crate) struct Folders {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Folders {
    /// The root is the folder above this package's: cargo says where that is.
    pub(crate) fn of_cargo() -> Result<Folders, String> {
        let package =
            env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set: call `cargo xtask`")?;
        let above = Path::new(&package).parent();
        let root = above.ok_or_else(|| format!("{} has no folder above it", package.display()))?.to_owned();
        let target = root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
        Ok(Folders { root, target })
    }
}

/// The paths that differ between the revision and the working tree, untracked ones as well.
pub(crate) fn changed(root: &Path, base: &str) -> Result<BTreeSet<String>, String> {
    let differ = git(root, &["diff", "--name-only", "--no-renames", "-z", base, "--"])?;
    Ok(names(&differ).chain(untracked(root)?).collect())
}

/// The files that git neither knows nor ignores.
pub(crate) fn untracked(root: &Path) -> Result<BTreeSet<String>, String> {
    git(root, &["ls-files", "--others", "--exclude-standard", "-z"]).map(|output| names(&output).collect())
}

/// The names in output of git's with `-z`.
fn names(output: &str) -> impl Iterator<Item = String> {
    output.split('\0').filter(|path| !path.is_empty()).map(str::to_owned)
}

/// The commit of HEAD.
pub(crate) fn head(root: &Path) -> Result<String, String> {
    git(root, &["rev-parse", "HEAD"]).map(|hash| hash.trim().to_owned())
}

/// What git says there.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let call = || format!("git {}", arguments.join(" "));
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let output = output.map_err(|error| format!("{}: {error}", call()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}: {}", call(), output.status, words.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{}: {error}", call()))
}

/// Where a name comes in the seed's order, which differs from commit to commit (FNV-1a).
pub(crate) fn place(seed: &str, name: &str) -> u64 {
    let bytes = seed.bytes().chain([0]).chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

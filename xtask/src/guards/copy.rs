//! A copy of the tree, in which only files that differ are written: a build there stays fresh.

use crate::tree::git;
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::Path;

/// Makes the copy one of what git tracks and does not ignore, as the files are now.
pub(crate) fn bring_up_to_date(copy: &Path, root: &Path) -> Result<(), String> {
    let paths = git(root, &["ls-files", "--cached", "--others", "--exclude-standard", "-z"])?;
    // A file that was removed is listed until git knows it.
    let exists = |path: &&str| fs::symlink_metadata(root.join(path)).is_ok_and(|file| !file.is_dir());
    let paths: BTreeSet<_> = paths.split('\0').filter(|path| !path.is_empty()).filter(exists).collect();
    let keep = |path: &Path| {
        path.strip_prefix(copy).is_ok_and(|path| path.to_str().is_some_and(|path| paths.contains(path)))
    };
    fs::create_dir_all(copy)
        .and_then(|()| remove(copy, &keep))
        .map_err(|error| format!("clear {}: {error}", copy.display()))?;
    for path in &paths {
        copy_if_other(&root.join(path), &copy.join(path)).map_err(|error| format!("copy {path}: {error}"))?;
    }
    Ok(())
}

/// Removes the files that are not kept, and folders that are empty then.
fn remove(folder: &Path, keep: &impl Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_dir() {
            remove(&path, keep)?;
            match fs::remove_dir(&path) {
                Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => return Err(error),
                _ => {}
            }
        } else if !keep(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

fn copy_if_other(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    match fs::symlink_metadata(to) {
        Ok(there) if is_same(from, &metadata, to, &there)? => return Ok(()),
        Ok(_) => fs::remove_file(to)?,
        Err(_) => fs::create_dir_all(to.parent().unwrap_or(to))?,
    }
    if metadata.is_symlink() { symlink(fs::read_link(from)?, to) } else { fs::copy(from, to).map(drop) }
}

fn is_same(from: &Path, one: &Metadata, to: &Path, other: &Metadata) -> io::Result<bool> {
    if one.file_type() != other.file_type() || one.permissions() != other.permissions() {
        return Ok(false);
    }
    Ok(if one.is_symlink() {
        fs::read_link(from)? == fs::read_link(to)?
    } else {
        fs::read(from)? == fs::read(to)?
    })
}

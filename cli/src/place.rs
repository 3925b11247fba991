//! Files that a run leaves: their owner's alone (0600) unless another user's program is to read
//! them, and no symbolic link is followed that somebody put in their place.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// How the name of a file ends that is not whole yet.
pub(crate) const UNFINISHED: &str = ".unfinished";

/// Puts a file that `fill` writes at `path`, whole or not at all. What is there is replaced.
///
/// # Errors
/// Those of `fill`, and of making the file beside its place and renaming it.
pub fn put_in_place(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    put(path, 0o600, fill)
}

/// The same for a file that a program of another user reads, such as node_exporter: mode 0644,
/// less what the umask forbids. It must say nothing that only its owner may know.
///
/// # Errors
/// Those of [`put_in_place`].
pub fn publish_in_place(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    put(path, 0o644, fill)
}

fn put(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut file = tempfile::Builder::new()
        .prefix(name)
        .suffix(UNFINISHED)
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder)?;
    let mut buffered = BufWriter::new(file.as_file_mut());
    fill(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// A new file at `path`, for what others read while it grows. What is there is removed.
///
/// # Errors
/// The old file could not be removed or the new one not made; `EEXIST` where somebody else
/// makes one there at this moment.
pub fn new_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // O_EXCL follows no link.
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes `path` and the folders above it, as far as they are not there: their owner's alone.
///
/// # Errors
/// One could not be made.
pub fn new_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_its_owner_s_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (somebodys, place) = (folder.path().join("somebodys"), folder.path().join("report.html"));
        let ways: [fn(&Path) -> io::Result<()>; 2] = [
            |path| put_in_place(path, |file| file.write_all(b"ours")),
            |path| new_file(path)?.write_all(b"ours"),
        ];
        for write in ways {
            fs::write(&somebodys, "theirs").unwrap();
            let _ = fs::remove_file(&place);
            symlink(&somebodys, &place).unwrap();
            // Over a link, and over a file of an earlier run.
            for _ in 0..2 {
                write(&place).unwrap();
                assert_eq!(fs::read(&somebodys).unwrap(), b"theirs");
                let written = fs::symlink_metadata(&place).unwrap();
                assert!(written.is_file() && written.permissions().mode() & 0o777 == 0o600);
                assert_eq!(fs::read(&place).unwrap(), b"ours");
            }
            assert_eq!(write(&folder.path().join("none/a")).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
    }

    #[test]
    fn what_others_read_is_whole_at_any_moment() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("pinyard.prom");
        publish_in_place(&page, |file| file.write_all(b"first")).unwrap();
        // What the umask leaves of 0644, as a file has it that this process makes with that mode.
        let made = folder.path().join("made");
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(&made).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&page), mode(&made));
        let interrupted = publish_in_place(&page, |file| {
            file.write_all(b"second")?;
            file.flush()?;
            assert_eq!(fs::read(&page)?, b"first", "what was there stays until the end");
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(interrupted.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&page).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left beside");
    }
}

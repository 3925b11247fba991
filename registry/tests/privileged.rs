//! What a process with more rights than its caller (`AT_SECURE`, getauxval(3)) does not open:
//! a library in the working directory. This program is run again from there, plainly and as
//! a set-user-ID copy.
#![allow(clippy::unwrap_used)]
#![cfg(not(loom))]

use pinyard_registry::backend::{Libfabric, OpenError, Ucx, Verbs};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Set in the copies: whether they are set-user-ID.
const COPY: &str = "TEST_COPY_IS_SET_USER_ID";
/// Whose the set-user-ID copy is; anybody but root.
const SOMEBODY: u32 = 65534;

#[test]
fn nothing_is_opened_from_the_working_directory() {
    match std::env::var(COPY).as_deref() {
        Err(_) => run_copies(),
        Ok(set_user_id) => opens_nothing_relative(set_user_id == "true"),
    }
}

fn run_copies() {
    let folder = std::env::temp_dir().join(format!("pinyard-privileged-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join("library.so"), "no ELF file").unwrap();
    for set_user_id in [false, true] {
        let copy = folder.join(format!("copy-{set_user_id}"));
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        if set_user_id && chown(&copy, Some(SOMEBODY), None).is_err() {
            eprintln!("skipped: set-user-ID: only root gives files away");
            continue;
        }
        let mode = if set_user_id { 0o4755 } else { 0o755 };
        fs::set_permissions(&copy, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&copy);
        command.args(["--exact", "nothing_is_opened_from_the_working_directory", "--nocapture"]);
        let done = command.env(COPY, set_user_id.to_string()).current_dir(&folder).output().unwrap();
        assert!(
            done.status.success(),
            "set-user-ID {set_user_id}: {}",
            String::from_utf8_lossy(&done.stdout)
        );
        let said = String::from_utf8_lossy(&done.stderr);
        said.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| eprintln!("{line}"));
    }
    fs::remove_dir_all(&folder).unwrap();
}

fn opens_nothing_relative(set_user_id: bool) {
    if set_user_id && !pinyard_hooks::is_privileged() {
        return eprintln!("skipped: set-user-ID does not count here");
    }
    assert_eq!(pinyard_hooks::is_privileged(), set_user_id);
    for path in ["./library.so", "../library.so", "a/library.so"] {
        for error in opened(Path::new(path)) {
            assert_eq!(matches!(error, OpenError::Relative { .. }), set_user_id, "{path}: {error}");
            assert!(error.to_string().contains(path), "{error}");
        }
    }
    // Sonames and files from / are the system's and the program's.
    for path in ["libthere-is-none.so.7", "/there/is/none.so"] {
        for error in opened(Path::new(path)) {
            assert!(matches!(error, OpenError::Absent { .. }), "{path}: {error}");
        }
    }
}

fn opened(library: &Path) -> [OpenError; 3] {
    [
        Ucx::options().library(library).open().err().unwrap(),
        Libfabric::options().library(library).open().err().unwrap(),
        Verbs::options().library(library).open().err().unwrap(),
    ]
}

//! The report is complete on this machine, and tells the truth about the entries.

#![allow(clippy::disallowed_macros)]

use pinyard_hooks::{Function, Owner, Seen, install, report, verify};

#[test]
fn every_function_is_seen() {
    assert!(!verify(), "nothing is verified before the first install");
    let installed = install();
    println!("{installed}");
    assert!(installed.is_complete(), "calls escape:\n{installed}");
    assert_eq!(report(), Some(installed));
    for line in installed.functions {
        match line.function {
            // libc's own code, which calls brk's patched entry.
            Function::Sbrk => assert_eq!(line.owner, Owner::Libc),
            Function::ProcessMadvise if line.owner == Owner::Absent => {}
            _ => {
                assert_eq!((line.owner, line.seen), (Owner::Pinyard, Seen::Yes), "{line}");
            }
        }
    }
    assert!(verify());
    let again = install();
    assert!(again.is_complete(), "a second install keeps what the first did:\n{again}");
}

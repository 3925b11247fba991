//! What `pinyard-mpi-probe` says of itself, before any MPI is initialised.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn probe(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pinyard-mpi-probe")).args(words).output().unwrap()
}

#[test]
fn the_help_has_examples_of_every_use() {
    for asked in ["--help", "-h", "help"] {
        let output = probe(&[asked]);
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{asked}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, examples) = text.split_once("Examples:\n").unwrap();
        for word in ["--launch \"", "--plan --launch \"", "probe show\n"] {
            assert!(examples.contains(word), "{word}: {text}");
        }
    }
}

#[test]
fn what_it_does_not_take_is_named_with_the_help() {
    let output = probe(&["--lanch", "mpirun"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]));
    assert!(told.starts_with("pinyard-mpi-probe: not its arguments: --lanch mpirun\n"), "{told}");
    assert!(told.contains("Usage: pinyard-mpi-probe") && told.contains("Examples:"), "{told}");
}

//! The checks, one file per kind of operation.

mod broadcast;
mod foreign;
mod immediate;
mod locks;
mod messages;
mod parts;
mod progress;
mod reductions;
mod refusals;
mod shares;
mod told;
mod windows;

pub(crate) use self::refusals::after_finalize;
pub(crate) use self::told::{heard, says};
use crate::bench::Bench;

/// Which form of an operation is checked.
#[derive(Clone, Copy, Debug)]
enum Form {
    Blocking,
    /// One that does not block, and is waited for.
    Immediate,
}

const FORMS: [Form; 2] = [Form::Blocking, Form::Immediate];

/// Lengths in bytes around what one message carries and what chunks do.
fn lengths(chunk: usize) -> Vec<usize> {
    let mut lengths =
        vec![0, 1, 1951, 1952, 1953, chunk - 1, chunk, chunk + 1, 3 * chunk + 17, 11 * chunk + 5];
    lengths.dedup();
    lengths
}

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    told::all(bench)?;
    broadcast::all(bench)?;
    foreign::all(bench)?;
    progress::all(bench)?;
    messages::all(bench)?;
    reductions::all(bench)?;
    shares::all(bench)?;
    parts::all(bench)?;
    windows::all(bench)?;
    locks::all(bench)?;
    immediate::all(bench)?;
    refusals::all(bench)
}

//! The checks, one file per kind of operation.

mod broadcast;
mod foreign;
mod immediate;
mod locks;
mod messages;
mod node_first;
mod parts;
mod progress;
mod reductions;
mod refusals;
mod refused_by_mpi;
mod shares;
mod told;
mod unpaired;
mod windows;

pub(crate) use self::refusals::after_finalize;
pub(crate) use self::told::{heard, says};
use crate::bench::Bench;
use pinyard_mpi::{DeviceCommunicator, Error, SettledMut, scope};

/// Which form of an operation is checked.
#[derive(Clone, Copy, Debug)]
enum Form {
    Blocking,
    /// One that does not block, and is waited for.
    Immediate,
}

const FORMS: [Form; 2] = [Form::Blocking, Form::Immediate];

/// A broadcast of bytes in either form.
fn bcast(bench: &Bench, form: Form, root: usize, into: &mut SettledMut<'_, u8>) -> Result<(), Error> {
    bcast_by(&bench.ranks, form, root as i32, into)
}

/// The same by other ranks.
fn bcast_by(
    ranks: &DeviceCommunicator,
    form: Form,
    root: i32,
    into: &mut SettledMut<'_, u8>,
) -> Result<(), Error> {
    match form {
        Form::Blocking => ranks.broadcast_into(root, into),
        Form::Immediate => scope(|scope| ranks.immediate_broadcast_into(scope, root, into)?.wait()),
    }
}

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
    unpaired::all(bench)?;
    reductions::all(bench)?;
    node_first::all(bench)?;
    shares::all(bench)?;
    parts::all(bench)?;
    windows::all(bench)?;
    locks::all(bench)?;
    immediate::all(bench)?;
    refusals::all(bench)?;
    refused_by_mpi::all(bench)
}

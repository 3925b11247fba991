//! A communicator that a panic drops while an operation of it is under way: what was lent or
//! given to the operation is nobody else's before it ends.

use super::bytes;
use crate::bench::{Bench, text};
use mpi::topology::SimpleCommunicator;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu, scope};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

const TAG: i32 = 3;
/// After the panic, so that the operation is under way at it; within the scope's patience.
const LATE: Duration = Duration::from_millis(50);

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    if bench.size() == 1 {
        return Ok(());
    }
    // Of its own: slabs that others may have open stay for good.
    let gpu = match bench.simulated {
        Some(_) => Gpu::simulated(64 << 20).map_err(text)?,
        None => bench.gpu.clone(),
    };
    for length in [500, 5 * bench.chunk + 1] {
        lent(bench, &gpu, length)?;
        given(bench, &gpu, length)?;
    }
    Ok(())
}

fn filled(gpu: &Gpu, elements: &[u8]) -> Result<DeviceBuf<u8>, String> {
    let stream = gpu.stream().map_err(text)?;
    let mut buffer = gpu.alloc(elements.len(), &stream).map_err(text)?;
    buffer.write(elements).map_err(text)?;
    Ok(buffer)
}

/// Runs `body`, which panics (`Never`) unless it says why not.
fn panics(body: impl FnOnce() -> Result<Never, String>) -> Result<(), String> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Err(text)) => Err(text),
        Ok(Ok(never)) => match never {},
        Err(_) => Ok(()),
    }
}

enum Never {}

/// To the first rank, when that one has panicked.
fn send_late(bench: &Bench, gpu: &Gpu, ranks: &DeviceCommunicator, what: &[u8]) -> Result<(), String> {
    if bench.rank() != 1 {
        return Ok(());
    }
    let buffer = filled(gpu, what)?;
    let settled = buffer.settle().map_err(text)?;
    std::thread::sleep(LATE);
    ranks.send(0, TAG, &settled).map_err(text)
}

/// The communicator is made, and dropped by the panic, within the scope.
fn lent(bench: &Bench, gpu: &Gpu, length: usize) -> Result<(), String> {
    let mut buffer = filled(gpu, &vec![0; length])?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    panics(|| {
        scope(|scope| {
            panics_with_ranks(gpu, |ranks| match bench.rank() {
                0 => ranks.immediate_receive_into(scope, 1, TAG, &mut settled).map(drop).map_err(text),
                _ => send_late(bench, gpu, ranks, &bytes(9, length)),
            })
        })
    })?;
    let expected = if bench.rank() == 0 { bytes(9, length) } else { vec![0; length] };
    bench.check(buffer.to_vec().map_err(text)? == expected, || {
        format!("a receive of {length} in a scope that a panic ended")
    })
}

/// With a communicator, which the panic drops.
fn panics_with_ranks(
    gpu: &Gpu,
    body: impl FnOnce(&DeviceCommunicator) -> Result<(), String>,
) -> Result<Never, String> {
    let ranks = DeviceCommunicator::builder(gpu).build(&SimpleCommunicator::world()).map_err(text)?;
    body(&ranks)?;
    // The program's hook is not asked.
    resume_unwind(Box::new("on purpose"))
}

/// The request is waited for when the communicator is gone.
fn given(bench: &Bench, gpu: &Gpu, length: usize) -> Result<(), String> {
    let mut begun = None;
    let buffer = filled(gpu, &vec![0; length])?;
    let at = buffer.ptr();
    panics(|| {
        panics_with_ranks(gpu, |ranks| {
            if bench.rank() == 0 {
                begun = Some(ranks.immediate_receive(1, TAG, buffer).map_err(text)?);
            }
            send_late(bench, gpu, ranks, &bytes(7, length))
        })
    })?;
    let Some(request) = begun else { return Ok(()) };
    let (buffer, came) = request.wait();
    bench.check(matches!(came, Ok(count) if count == length) && buffer.ptr() == at, || {
        format!("{came:?} after a panic")
    })?;
    bench.check(buffer.to_vec().map_err(text)? == bytes(7, length), || {
        format!("a receive of {length} into a buffer that was given, after a panic")
    })
}

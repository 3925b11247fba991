//! Whether ranks of a node can open each other's device memory: they try.
#![allow(unsafe_code)]

use crate::buffers::{DeviceBuf, Gpu};
use crate::calls::{Answer, Comm};
use crate::communicator::State;
use crate::error::BufferError;
use crate::nodes::Nodes;
use crate::paths::Exported;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const BYTES: usize = 4096;

/// Every rank reads what every other of its node has written on its own device. `Err`
/// names a rank that could not. The same at every rank.
pub(crate) fn ipc(
    gpu: &Gpu,
    whole: &Comm,
    nodes: &Nodes,
    state: &mut State,
    token: &DriverToken,
) -> Answer<Result<(), String>> {
    let (rank, here) = (whole.rank(), &nodes.here);
    let prepared = prepare(gpu, rank, state, token);
    let mut told = [0; Exported::BYTES];
    prepared.as_ref().map_or(&Exported::NONE, |(_, _, exported)| exported).write(&mut told);
    let all = here.gather_all(&told)?;
    let result = prepared.map_err(|error| error.to_string()).and_then(|(_mine, mut scratch, _)| {
        for (place, told) in all.chunks_exact(Exported::BYTES).enumerate() {
            let theirs = nodes.rank(nodes.of(rank), place as Rank);
            if theirs != rank {
                read(theirs, &Exported::read(told), &mut scratch, state, token)?;
            }
        }
        Ok(())
    });
    if let Err(reason) = &result {
        tracing::warn!(rank, reason, "no copies between the devices of a node");
    }
    // After it nobody reads any more: the blocks may go.
    let [worst] = whole.largest([result.as_ref().map_or(rank as u64 + 1, |()| 0)])?;
    Ok(match (worst, result) {
        (0, _) => Ok(()),
        (_, Err(reason)) => Err(format!("rank {rank} could not copy from another's device: {reason}")),
        (worst, Ok(())) => {
            Err(format!("rank {} could not copy from another's device: see its log", worst - 1))
        }
    })
}

type Prepared = (DeviceBuf<u8>, DeviceBuf<u8>, Exported);

/// A block with this rank's pattern, one to copy into, and what the others are told.
fn prepare(gpu: &Gpu, rank: Rank, state: &mut State, token: &DriverToken) -> Result<Prepared, BufferError> {
    let stream = gpu.own_stream()?;
    let mut block = gpu.alloc::<u8>(BYTES, &stream)?;
    block.write(&[pattern(rank); BYTES])?;
    let scratch = gpu.alloc::<u8>(BYTES, &stream)?;
    let place = block.settle()?.place();
    let exported = state.imports.export(place.ptr, place.slab, token)?;
    Ok((block, scratch, exported))
}

fn pattern(rank: Rank) -> u8 {
    (rank % 251) as u8 + 1
}

fn read(
    theirs: Rank,
    exported: &Exported,
    scratch: &mut DeviceBuf<u8>,
    state: &mut State,
    token: &DriverToken,
) -> Result<(), String> {
    if exported.is_none() {
        return Err(format!("rank {theirs} has none to open"));
    }
    let from = state.imports.find(theirs, exported, token).map_err(|error| error.to_string())?;
    // SAFETY: a block of these bytes lies there, which its rank does not write before all
    // have told how it went; ours is borrowed mutably.
    unsafe { state.ring.copy_across(scratch.ptr(), from, BYTES, token) }
        .map_err(|error| error.to_string())?;
    let bytes = scratch.to_vec().map_err(|error| error.to_string())?;
    if bytes.iter().any(|&byte| byte != pattern(theirs)) {
        return Err(format!("rank {theirs}'s memory does not read as it wrote it"));
    }
    Ok(())
}

//! Whether ranks of a node can open each other's device memory: they try.
#![allow(unsafe_code)]

use crate::buffers::{DeviceBuf, Gpu};
use crate::calls::{Answer, Comm};
use crate::communicator::State;
use crate::error::BufferError;
use crate::nodes::Nodes;
use crate::words::word;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;

const BYTES: usize = 4096;
/// Handle, slab, place in it, and whether there is one.
const TOLD: usize = 64 + 8 + 8 + 1;

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
    let mut told = [0; TOLD];
    if let Ok((_, _, words)) = &prepared {
        told = *words;
    }
    let all = here.gather_all(&told)?;
    let result = prepared.map_err(|error| error.to_string()).and_then(|(_mine, mut scratch, _)| {
        for (place, told) in all.chunks_exact(TOLD).enumerate() {
            let theirs = nodes.rank(nodes.of(rank), place as Rank);
            if theirs != rank {
                read(theirs, told, &mut scratch, state, token)?;
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

type Prepared = (DeviceBuf<u8>, DeviceBuf<u8>, [u8; TOLD]);

/// A block with this rank's pattern, one to copy into, and what the others are told.
fn prepare(gpu: &Gpu, rank: Rank, state: &mut State, token: &DriverToken) -> Result<Prepared, BufferError> {
    let stream = gpu.own_stream()?;
    let mut block = gpu.alloc::<u8>(BYTES, &stream)?;
    block.write(&[pattern(rank); BYTES])?;
    let scratch = gpu.alloc::<u8>(BYTES, &stream)?;
    let place = block.settle()?.place();
    let mut told = [0; TOLD];
    if let Some((start, bytes)) = place.slab {
        told[..64].copy_from_slice(&state.imports.export((start, bytes), token)?);
        told[64..72].copy_from_slice(&start.0.to_le_bytes());
        told[72..80].copy_from_slice(&(place.ptr.0 - start.0).to_le_bytes());
        told[80] = 1;
    }
    Ok((block, scratch, told))
}

fn pattern(rank: Rank) -> u8 {
    (rank % 251) as u8 + 1
}

fn read(
    theirs: Rank,
    told: &[u8],
    scratch: &mut DeviceBuf<u8>,
    state: &mut State,
    token: &DriverToken,
) -> Result<(), String> {
    if told[80] == 0 {
        return Err(format!("rank {theirs} has none to open"));
    }
    let mut handle = [0; 64];
    handle.copy_from_slice(&told[..64]);
    let slab = DevicePtr(word(told, 64));
    let opened = state.imports.open(theirs, slab, handle, token).map_err(|error| error.to_string())?;
    let from = DevicePtr(opened.0 + word(told, 72));
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

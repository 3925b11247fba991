//! As it is meant. The refused cases differ from this by what their names say.
#![allow(dead_code, clippy::unwrap_used)]

use mpi::traits::*;
use pinyard_mpi::{CudaAware, DeviceBuf, DeviceCommunicator, PinnedBuf, Reduction};

fn through_ours(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) {
    ranks.broadcast_into(0, &mut buffer.settle_mut().unwrap()).unwrap();
    ranks.all_reduce_in_place(&mut buffer.settle_mut().unwrap(), Reduction::Sum).unwrap();
    let mut settled = buffer.settle_mut().unwrap();
    let (first, mut second) = settled.split_at_mut(1);
    ranks.exchange(0, &first.as_settled(), 0, &mut second, 1).unwrap();
}

fn through_rsmpi(root: &impl Root, buffer: &mut DeviceBuf<f32>, aware: &CudaAware) {
    root.broadcast_into(&mut buffer.settle_mut().unwrap().direct_mut(aware));
    let mut settled = buffer.settle_mut().unwrap();
    let mut direct = settled.direct_mut(aware);
    mpi::request::scope(|scope| {
        root.immediate_broadcast_into(scope, &mut direct).wait_without_status();
    });
}

fn pinned(root: &impl Root, buffer: &mut PinnedBuf<f32>) {
    root.broadcast_into(&mut buffer.settle_mut().unwrap());
}

//! As it is meant. The refused cases differ from this by what their names say.
#![allow(dead_code, unsafe_code, clippy::unwrap_used)]

use mpi::traits::*;
use pinyard_mpi::{CudaAware, DeviceBuf, DeviceCommunicator, HostBuf, Lock, PinnedBuf, Reduction};

fn through_ours(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) {
    ranks.broadcast_into(0, &mut buffer.settle_mut().unwrap()).unwrap();
    ranks.all_reduce_in_place(&mut buffer.settle_mut().unwrap(), Reduction::Sum).unwrap();
    let mut settled = buffer.settle_mut().unwrap();
    let (first, mut second) = settled.split_at_mut(1);
    ranks.exchange(0, &first.as_settled(), 0, &mut second, 1).unwrap();
}

fn through_a_window(ranks: &DeviceCommunicator, part: &mut DeviceBuf<f32>, mine: &DeviceBuf<f32>) {
    let from = mine.settle().unwrap();
    let mut window = ranks.window(part.settle_mut().unwrap()).unwrap();
    let mut epoch = window.epoch();
    epoch.put(1, 0, &from).unwrap();
    epoch.close().unwrap();
    ranks.send(1, 0, &window.local()).unwrap();
}

fn through_a_window_of_the_host(
    ranks: &DeviceCommunicator,
    part: &mut PinnedBuf<f32>,
    mine: &mut HostBuf<f32>,
) {
    let mut settled = part.settle_mut().unwrap();
    let mut window = ranks.window(&mut settled[..]).unwrap();
    let mut epoch = window.epoch();
    epoch.put(1, 0, mine).unwrap();
    epoch.close().unwrap();
    let mut epoch = window.epoch();
    epoch.get(1, 0, mine).unwrap();
    epoch.close().unwrap();
    let _: f32 = window.local()[0];
}

fn through_a_locked_part(ranks: &DeviceCommunicator, part: DeviceBuf<f32>, host: HostBuf<f32>) {
    let mut window = ranks.lock_window(host).unwrap();
    let mut got = [0.0; 4];
    let mut locked = window.lock(1, Lock::Exclusive).unwrap();
    locked.get(0, &mut got[..]).unwrap();
    let mut locked = locked.flush().unwrap();
    // Flushed, so it is there, and nobody's.
    got[0] += 1.0;
    locked.put(0, &got[..]).unwrap();
    locked.unlock().unwrap();
    window.lock_own().unwrap().elements_mut().fill(0.0);
    let _: HostBuf<f32> = window.close().unwrap();

    let mut window = ranks.lock_window(part).unwrap();
    let mut own = window.lock_own().unwrap();
    ranks.send(1, 0, &own.settle_mut().unwrap().as_settled()).unwrap();
    own.unlock().unwrap();
}

fn through_rsmpi(root: &impl Root, buffer: &mut DeviceBuf<f32>, aware: &CudaAware) {
    let mut settled = buffer.settle_mut().unwrap();
    // SAFETY: moved, and not reduced, by an MPI that takes device pointers.
    let mut direct = unsafe { settled.direct_mut(aware) };
    root.broadcast_into(&mut direct);
    mpi::request::scope(|scope| {
        root.immediate_broadcast_into(scope, &mut direct).wait_without_status();
    });
}

fn pinned(root: &impl Root, buffer: &mut PinnedBuf<f32>) {
    root.broadcast_into(&mut buffer.settle_mut().unwrap());
}

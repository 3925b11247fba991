//! As it is meant. The refused cases differ from this by what their names say.
#![allow(dead_code, clippy::unwrap_used, unsafe_code)]

use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use pinyard_mpi::{
    CudaBuf, DeviceBuf, DeviceCommunicator, Gpu, HostBuf, Lend, LendMut, PinnedBuf, Reduction, scope,
};
use std::sync::Arc;

fn copied_and_broadcast(ranks: &DeviceCommunicator, stream: &Arc<CudaStream>, grid: &mut CudaBuf<f32>) {
    stream.memcpy_htod(&[1.0; 8], grid).unwrap();
    stream.memset_zeros(&mut grid.slice_mut(2..4)).unwrap();
    ranks.broadcast_into(0, &mut grid.settle_mut().unwrap()).unwrap();
    let _: Vec<f32> = stream.clone_dtoh(&grid.slice(..4)).unwrap();
}

/// One type, whatever the stream: what takes a `DeviceBuf` takes one of cudarc's.
fn begun_after_another_stream(
    ranks: &DeviceCommunicator,
    other: &Arc<CudaStream>,
    mut grid: DeviceBuf<f32, Arc<CudaStream>>,
) {
    scope(|scope| {
        let lent = grid.after_mut(other).unwrap();
        ranks.immediate_broadcast_into(scope, 0, lent).unwrap().wait().unwrap();
    });
    let (mut grid, result) = ranks.immediate_broadcast(0, grid).unwrap().wait();
    result.unwrap();
    other.memset_zeros(&mut grid).unwrap();
}

fn host_memory(
    stream: &Arc<CudaStream>,
    grid: &mut CudaBuf<f32>,
    pinned: &mut PinnedBuf<f32>,
    host: &mut HostBuf<f32>,
) {
    stream.memcpy_htod(pinned, grid).unwrap();
    stream.memcpy_dtoh(grid, pinned).unwrap();
    stream.memcpy_htod(host, grid).unwrap();
    stream.memcpy_dtoh(grid, host).unwrap();
    pinned.copy_from(grid).unwrap();
    pinned.copy_to(grid).unwrap();
}

fn launched_and_summed(
    ranks: &DeviceCommunicator,
    stream: &Arc<CudaStream>,
    kernel: &CudaFunction,
    from: &CudaBuf<f32>,
    to: &mut CudaBuf<f32>,
) {
    let elements = from.len() as u64;
    // SAFETY: a kernel of these arguments, on the buffers' stream.
    unsafe {
        let mut launch = stream.launch_builder(kernel);
        launch.arg(from).arg(&mut *to).arg(&elements).launch(LaunchConfig::for_num_elems(8)).unwrap();
    }
    ranks.all_reduce_in_place(&mut to.settle_mut().unwrap(), Reduction::Sum).unwrap();
}

fn slices_of_cudarc(ranks: &DeviceCommunicator, gpu: &Gpu, mine: &CudaSlice<f32>, all: &mut CudaSlice<f32>) {
    let sent = mine.slice(..4);
    ranks.send(1, 0, &sent.lend(gpu).unwrap()).unwrap();
    ranks.receive_into(1, 0, &mut all.slice_mut(..4).lend_mut(gpu).unwrap()).unwrap();
    ranks.all_reduce_into(&mine.lend(gpu).unwrap(), &mut all.lend_mut(gpu).unwrap(), Reduction::Max).unwrap();
}

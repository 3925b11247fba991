use cudarc::driver::CudaStream;
use pinyard_mpi::{CudaBuf, DeviceCommunicator};
use std::sync::Arc;

pub fn broadcast(ranks: &DeviceCommunicator, stream: &Arc<CudaStream>, grid: &mut CudaBuf<f32>) {
    let mut settled = grid.settle_mut().unwrap();
    stream.memset_zeros(grid).unwrap();
    let _ = ranks.broadcast_into(0, &mut settled);
}

fn main() {}

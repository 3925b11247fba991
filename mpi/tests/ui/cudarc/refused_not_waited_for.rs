use cudarc::driver::CudaStream;
use pinyard_mpi::{CudaBuf, DeviceCommunicator};
use std::sync::Arc;

pub fn broadcast(ranks: &DeviceCommunicator, stream: &Arc<CudaStream>, grid: &mut CudaBuf<f32>) {
    stream.memcpy_htod(&[1.0; 8], grid).unwrap();
    let _ = ranks.broadcast_into(0, grid);
}

fn main() {}

use cudarc::driver::CudaSlice;
use pinyard_mpi::DeviceCommunicator;

pub fn broadcast(ranks: &DeviceCommunicator, slice: &mut CudaSlice<f32>) {
    let _ = ranks.broadcast_into(0, slice);
}

fn main() {}

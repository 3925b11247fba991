use pinyard_mpi::{DeviceBuf, DeviceCommunicator};

pub fn reduce(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) {
    let _ = ranks.all_reduce_in_place(&mut buffer.settle_mut().unwrap(), |a: f32, b: f32| a * b);
}

fn main() {}

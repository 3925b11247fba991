use pinyard_mpi::{DeviceBuf, DeviceCommunicator};

pub fn broadcast(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) {
    let mut settled = buffer.settle_mut().unwrap();
    buffer.write(&[1.0]).unwrap();
    let _ = ranks.broadcast_into(0, &mut settled);
}

fn main() {}

use mpi::traits::*;
use pinyard_mpi::DeviceBuf;

pub fn broadcast(root: &impl Root, buffer: &mut DeviceBuf<f32>) {
    root.broadcast_into(buffer);
}

fn main() {}

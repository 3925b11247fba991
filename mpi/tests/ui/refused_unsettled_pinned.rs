use mpi::traits::*;
use pinyard_mpi::PinnedBuf;

pub fn broadcast(root: &impl Root, buffer: &mut PinnedBuf<f32>) {
    root.broadcast_into(buffer);
}

fn main() {}

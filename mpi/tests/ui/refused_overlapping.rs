use pinyard_mpi::{DeviceBuf, DeviceCommunicator};

pub fn exchange(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) {
    let mut settled = buffer.settle_mut().unwrap();
    let first = settled.slice_mut(..8);
    let mut second = settled.slice_mut(4..);
    let _ = ranks.exchange(0, &first.as_settled(), 0, &mut second, 1);
}

fn main() {}

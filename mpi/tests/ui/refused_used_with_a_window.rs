use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Error};

pub fn written(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) -> Result<(), Error> {
    let settled = buffer.settle_mut().map_err(|_| Error::Finalized { rank: 0 })?;
    let mut window = ranks.window(settled)?;
    let _ = buffer.write(&[1.0]);
    window.epoch().close()
}

fn main() {}

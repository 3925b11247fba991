use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Error};

pub fn used_under_way(ranks: &DeviceCommunicator, buffer: &mut DeviceBuf<f32>) -> Result<(), Error> {
    let mut settled = buffer.settle_mut().map_err(|_| Error::Finalized { rank: 0 })?;
    pinyard_mpi::scope(|scope| {
        let request = ranks.immediate_broadcast_into(scope, 0, &mut settled)?;
        ranks.broadcast_into(0, &mut settled)?;
        request.wait()
    })
}

fn main() {}

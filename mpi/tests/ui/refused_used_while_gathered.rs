use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Error};

pub fn used(
    ranks: &DeviceCommunicator,
    mine: &DeviceBuf<f32>,
    all: &mut DeviceBuf<f32>,
) -> Result<(), Error> {
    let failed = |_| Error::Finalized { rank: 0 };
    let (mine, mut all) = (mine.settle().map_err(failed)?, all.settle_mut().map_err(failed)?);
    pinyard_mpi::scope(|scope| {
        let root = (ranks.rank() == 0).then_some(&mut all);
        let request = ranks.immediate_gather_into(scope, 0, &mine, root)?;
        ranks.broadcast_into(0, &mut all)?;
        request.wait()
    })
}

fn main() {}

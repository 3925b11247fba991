use pinyard_mpi::{DeviceCommunicator, Error, Gpu};

pub fn freed_under_way(ranks: &DeviceCommunicator, gpu: &Gpu) -> Result<(), Error> {
    pinyard_mpi::scope(|scope| {
        let stream = gpu.stream().map_err(|_| Error::Finalized { rank: 0 })?;
        let mut buffer = gpu.alloc::<f32>(10, &stream).map_err(|_| Error::Finalized { rank: 0 })?;
        let lent = buffer.after_mut(&stream).map_err(|_| Error::Finalized { rank: 0 })?;
        std::mem::forget(ranks.immediate_broadcast_into(scope, 0, lent)?);
        Ok(())
    })
}

fn main() {}

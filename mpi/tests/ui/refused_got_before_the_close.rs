use pinyard_mpi::{DeviceBuf, Error, Window};

pub fn got(window: &mut Window<'_, f32>, buffer: &mut DeviceBuf<f32>) -> Result<(), Error> {
    let mut into = buffer.settle_mut().map_err(|_| Error::Finalized { rank: 0 })?;
    let mut epoch = window.epoch();
    epoch.get(0, 0, &mut into)?;
    let _ = buffer.to_vec();
    epoch.close()
}

fn main() {}

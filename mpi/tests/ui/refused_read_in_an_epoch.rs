use pinyard_mpi::{Error, Window};

pub fn read(window: &mut Window<'_, f32>) -> Result<(), Error> {
    let epoch = window.epoch();
    let _ = window.local();
    epoch.close()
}

fn main() {}

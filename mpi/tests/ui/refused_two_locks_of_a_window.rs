use pinyard_mpi::{Error, HostBuf, Lock, LockWindow};

pub fn both(window: &mut LockWindow<'_, HostBuf<f32>>) -> Result<(), Error> {
    let first = window.lock(0, Lock::Exclusive)?;
    let second = window.lock(1, Lock::Exclusive)?;
    first.unlock()?;
    second.unlock()
}

fn main() {}

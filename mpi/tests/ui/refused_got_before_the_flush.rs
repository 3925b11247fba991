use pinyard_mpi::{Error, HostBuf, Lock, LockWindow};

pub fn read(window: &mut LockWindow<'_, HostBuf<f32>>) -> Result<f32, Error> {
    let mut got = [0.0; 4];
    let mut locked = window.lock(1, Lock::Shared)?;
    locked.get(0, &mut got[..])?;
    let first = got[0];
    locked.unlock()?;
    Ok(first)
}

fn main() {}

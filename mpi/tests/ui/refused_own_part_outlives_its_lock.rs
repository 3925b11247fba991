use pinyard_mpi::{Error, HostBuf, Lock, LockWindow};

pub fn written(window: &mut LockWindow<'_, HostBuf<f32>>) -> Result<(), Error> {
    let mut own = window.lock_own()?;
    let elements = own.elements_mut();
    own.unlock()?;
    elements[0] = 1.0;
    window.lock(1, Lock::Shared)?.unlock()
}

fn main() {}

//! Proof that no lock of a pool is held.

use std::marker::PhantomData;

/// Proof that the calling thread holds no lock of a pool.
///
/// A pool's lock borrows it mutably for as long as it is held, so a call of the
/// driver under the lock does not compile. It stays on its thread.
#[derive(Debug)]
pub struct DriverToken(PhantomData<*const ()>);

impl DriverToken {
    /// For the entry points of an interface, which hold no lock. Inside, the token is
    /// handed down, never made again: a second one would prove nothing.
    #[inline]
    pub fn at_entry() -> DriverToken {
        DriverToken(PhantomData)
    }
}

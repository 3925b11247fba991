//! Streams as pools know them.
#![allow(unsafe_code, non_camel_case_types)]

use super::callbacks::may_destroy;
use super::pools::{Memory, POOLS, Pooled, pny_pool};
use super::sized;
use super::status::{Failure, at_boundary, failed, pny_status, pny_status::*};
use core::ffi::c_void;
use pinyard_allocator::device::PoolStream;
use pinyard_boundary::{Handles, from_pointer, to_pointer};
use pinyard_driver::{Driver, DriverToken, Stream};
use std::sync::Arc;

/// A stream as a pool knows it. Only its address is used, as a name.
pub struct pny_stream_object {
    _private: [u8; 0],
}

/// Handle of a stream that device memory is allocated on. Any thread may use it; whoever
/// destroys it makes sure that no other thread is inside a call with it.
pub type pny_stream = *mut pny_stream_object;

pub(super) static STREAMS: Handles<Streamed> = Handles::new(3, "pny_stream");

/// A stream that C has a handle of.
pub(super) struct Streamed {
    pub(super) stream: PoolStream,
    /// The handle of its pool, which is not destroyed before it.
    pool: u64,
    /// Of the simulated driver, which made it.
    made: Option<Arc<dyn Driver>>,
    /// The fork generation of the process that made it.
    forks: u32,
}

impl Streamed {
    fn is_forked(&self) -> bool {
        self.forks != pinyard_hooks::fork_generation()
    }

    /// The stream's work so far is the last that counts.
    pub(super) fn end(self) -> Result<(), Failure> {
        if self.is_forked() {
            std::mem::forget(self);
            return Ok(());
        }
        let (native, number) = (self.stream.stream(), self.stream.id());
        let retired = self.stream.retire();
        if let Some(driver) = self.made {
            // SAFETY: made by `pny_stream_create`, which alone knows it.
            unsafe { driver.stream_destroy(native, &DriverToken::at_entry()) }.map_err(failed)?;
        }
        if let Ok(pool) = POOLS.get_held(self.pool) {
            pool.streams().retain(|&id| id != number);
        }
        retired.map_err(failed)
    }
}

/// The stream of a device pool's call; of another pool's there is none.
pub(super) fn of(
    pool: &Pooled,
    number: u64,
    stream: pny_stream,
) -> Result<Option<&'static PoolStream>, Failure> {
    match (&pool.memory, stream.is_null()) {
        (Memory::Host(_), true) => Ok(None),
        (Memory::Host(_), false) => {
            Err(Failure::new(PNY_ERR_INVALID, "stream is set, and the pool's memory is not a device's"))
        }
        (Memory::Device { .. }, _) => {
            let known = STREAMS.get(from_pointer(stream))?;
            match known.pool == number {
                true => Ok(Some(&known.stream)),
                false => Err(Failure::new(PNY_ERR_INVALID, "the stream is another pool's")),
            }
        }
    }
}

/// The pool's handle of a stream, stored in `*made`: of the `CUstream` `native`, which
/// stays the caller's, null for the context's default stream; of the simulated driver a
/// new one, `native` being null.
///
/// PNY_ERR_INVALID    null, the per-thread default stream (another stream in every
///                    thread), or the pool's memory is not a device's
/// PNY_ERR_STALE      not a pool
/// PNY_ERR_FORKED     the pool is the parent process's
/// PNY_ERR_BUSY       the pool has a handle of that stream
/// PNY_ERR_BACKEND    the driver does not know the stream
/// PNY_ERR_RESOURCES  as many handles as there can be
///
/// # Safety
/// `native` is null or a stream of the pool's device and context that is not
/// destroyed before pny_stream_destroy; `made` is writable. Nobody destroys the pool
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_stream_create(
    pool: pny_pool,
    native: *mut c_void,
    made: *mut pny_stream,
) -> pny_status {
    at_boundary("pny_stream_create", || {
        sized::required("made", made.cast())?;
        let number = from_pointer(pool);
        let kept = POOLS.get(number)?.own()?;
        let Memory::Device { pool, driver, simulated } = &kept.memory else {
            return Err(Failure::new(
                PNY_ERR_INVALID,
                "the pool's memory is not a device's: it has no streams",
            ));
        };
        if *simulated && !native.is_null() {
            return Err(Failure::new(PNY_ERR_INVALID, "native is set; a simulated stream is made here"));
        }
        let token = DriverToken::at_entry();
        let native = match simulated {
            true => driver.stream_create(&token).map_err(failed)?,
            // SAFETY: the caller's contract.
            false => unsafe { Stream::from_raw(native.addr()) },
        };
        let stream = pool.stream(native).map_err(failed)?;
        // Held until the stream is entered: one of two that ask for the same gets it.
        let mut known = kept.streams();
        if known.contains(&stream.id()) {
            let cause = format!("the pool has a handle of stream {} already", stream.id());
            return Err(Failure::new(PNY_ERR_BUSY, cause));
        }
        let id = stream.id();
        let made_here = simulated.then(|| driver.clone());
        let forks = pinyard_hooks::fork_generation();
        let handle = STREAMS.insert(Streamed { stream, pool: number, made: made_here, forks })?;
        known.push(id);
        // SAFETY: the caller's contract.
        unsafe { made.write(to_pointer(handle)) };
        Ok(())
    })
}

/// Gives the handle back, before the stream itself is destroyed: everybody may have the
/// memory that was freed on it when its work so far has passed. Blocks that were allocated
/// on it stay in use. Does not wait.
///
/// PNY_ERR_INVALID  null
/// PNY_ERR_STALE    not a stream
/// PNY_ERR_BUSY     the caller is a function that pinyard has called. Nothing has changed.
/// PNY_ERR_BACKEND  the driver refused to mark the end of the stream's work; the handle is
///                  gone all the same
///
/// # Safety
/// No other thread is inside a call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_stream_destroy(stream: pny_stream) -> pny_status {
    at_boundary("pny_stream_destroy", || STREAMS.take(from_pointer(stream), |_| may_destroy("stream"))?.end())
}

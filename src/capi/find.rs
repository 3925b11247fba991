//! Whose device memory an address is.
#![allow(unsafe_code)]

use super::blocks::pny_block_place;
use super::plug;
use super::pools::{Memory, POOLS};
use super::sized;
use super::status::{Failure, at_boundary, pny_status, pny_status::*};
use core::ffi::c_void;

/// Fills `*place`, whose `size` the caller has set, for the block of device memory that
/// `address` lies in, of whichever pool of this process: those of pny_pool_create, and those
/// that serve pny_torch_malloc and pny_cupy_malloc, whose keys are 0. For a library that is
/// given an address and nothing else, as libpinyard_mpi is of a simulated device's. What
/// it says is good while the block is in use. Looks through every pool: not for hot paths.
///
/// PNY_ERR_NOT_FOUND  it lies in no block of a device pool of this process that is in use
/// PNY_ERR_INVALID    null, or a size that is none
///
/// # Safety
/// `place` is writable for its size. Nobody destroys a pool meanwhile. The memory is not
/// accessed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_device_find(address: *const c_void, place: *mut pny_block_place) -> pny_status {
    at_boundary("pny_device_find", || {
        sized::required("place", place.cast())?;
        // SAFETY: the caller's contract.
        unsafe { sized::claimed(place) }?;
        let at = address.addr();
        let found = in_pools(at).or_else(|| plug::find(at)).ok_or_else(|| {
            let cause = format!("{at:#x} lies in no block of a device pool of this process that is in use");
            Failure::new(PNY_ERR_NOT_FOUND, cause)
        })?;
        // SAFETY: the caller's contract.
        unsafe { sized::write(place, &found) }
    })
}

fn in_pools(at: usize) -> Option<pny_block_place> {
    POOLS.all().filter_map(|handle| POOLS.get(handle).ok()).find_map(|pool| {
        // A forked child's copy of a lock may be held for ever.
        if pool.is_forked() || !matches!(pool.memory, Memory::Device { .. }) {
            return None;
        }
        let found = pool.blocks.find(at)?;
        Some(pny_block_place {
            size: 0,
            key: found.key.into(),
            slab_base: found.slab_start as u64,
            slab_length: found.slab_bytes as u64,
            block_base: found.start as u64,
            block_length: found.bytes as u64,
            offset: (at - found.slab_start) as u64,
        })
    })
}

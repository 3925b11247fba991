//! Blocks of pools.
#![allow(unsafe_code, non_camel_case_types)]

use super::backend::pny_key;
use super::block_table::Block;
use super::callbacks::calling;
use super::pools::{Memory, POOLS, pny_pool};
use super::sized::{self, Sized_};
use super::status::{Failure, at_boundary, at_quick_boundary, failed, pny_status, pny_status::*};
use super::streams::{self, STREAMS, pny_stream};
use core::ffi::{c_int, c_void};
use pinyard_allocator::{Fence, Poll};
use pinyard_boundary::from_pointer;
use pinyard_hooks::Uncancelled;

/// A block of `bytes`, stored in `*block`: registered already, its contents unspecified.
/// Of a device pool it is for work on `stream`, and may be what that stream's earlier work
/// still uses; elsewhere `stream` is null. Usually no system call and none of the driver;
/// what needs a new slab waits for its registration.
///
/// PNY_ERR_INVALID    0 bytes, or more than there are addresses; null; a stream that is
///                    another pool's, or set for host memory
/// PNY_ERR_STALE      not a pool, or not a stream
/// PNY_ERR_LIMIT      the pool's limit, or the registry's, is used up
/// PNY_ERR_RESOURCES  no memory is to be had
/// PNY_ERR_BACKEND    the slab could not be registered, or the driver failed
/// PNY_ERR_FORKED     the pool is the parent process's
/// On an error `*block` is null.
///
/// # Safety
/// `block` is writable. Nobody destroys the pool or the stream meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_alloc(
    pool: pny_pool,
    bytes: usize,
    stream: pny_stream,
    block: *mut *mut c_void,
) -> pny_status {
    // SAFETY: the caller's contract.
    at_quick_boundary("pny_pool_alloc", || unsafe { alloc(pool, bytes, 1, stream, block) })
}

/// The same, at a multiple of `align`: a power of two, up to 2 MiB.
///
/// Errors: as pny_pool_alloc; PNY_ERR_INVALID also of another `align`.
///
/// # Safety
/// As pny_pool_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_alloc_aligned(
    pool: pny_pool,
    bytes: usize,
    align: usize,
    stream: pny_stream,
    block: *mut *mut c_void,
) -> pny_status {
    // SAFETY: the caller's contract.
    at_quick_boundary("pny_pool_alloc_aligned", || unsafe { alloc(pool, bytes, align, stream, block) })
}

/// # Safety
/// That of [`pny_pool_alloc`].
unsafe fn alloc(
    pool: pny_pool,
    bytes: usize,
    align: usize,
    stream: pny_stream,
    block: *mut *mut c_void,
) -> Result<(), Failure> {
    sized::required("block", block.cast())?;
    // SAFETY: the caller's contract.
    unsafe { block.write(core::ptr::null_mut()) };
    let number = from_pointer(pool);
    let pool = POOLS.get(number)?.own()?;
    let stream = streams::of(pool, number, stream)?;
    let at = pool.blocks.insert(pool.block(bytes, align, stream)?);
    // SAFETY: the caller's contract.
    unsafe { block.write(core::ptr::with_exposed_provenance_mut(at)) };
    Ok(())
}

/// A block of each of `count` sizes, or none; side by side where there is room, of a device pool
/// those above 32 KiB, of another those beyond an eighth of a slab or 32 MiB. A `count` of 0
/// does nothing.
///
/// Errors: as pny_pool_alloc. On an error every one of `blocks` is null.
///
/// # Safety
/// `sizes` is readable and `blocks` is writable for `count` elements. Otherwise as
/// pny_pool_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_alloc_batch(
    pool: pny_pool,
    sizes: *const usize,
    count: usize,
    stream: pny_stream,
    blocks: *mut *mut c_void,
) -> pny_status {
    at_boundary("pny_pool_alloc_batch", || {
        // Sizes of more would not fit the address space.
        const MOST: usize = isize::MAX as usize / size_of::<usize>();
        if count > MOST {
            return Err(Failure::new(PNY_ERR_INVALID, format!("count is {count}, and at most {MOST}")));
        }
        if count > 0 {
            sized::required("sizes", sizes.cast())?;
            sized::required("blocks", blocks.cast())?;
        }
        for index in 0..count {
            // SAFETY: the caller's contract.
            unsafe { blocks.add(index).write(core::ptr::null_mut()) };
        }
        let number = from_pointer(pool);
        let pool = POOLS.get(number)?.own()?;
        let stream = streams::of(pool, number, stream)?;
        let wanted = match count {
            0 => &[],
            // SAFETY: the caller's contract, and not null.
            _ => unsafe { core::slice::from_raw_parts(sizes, count) },
        };
        for (index, block) in pool.batch(wanted, stream)?.into_iter().enumerate() {
            let at = core::ptr::with_exposed_provenance_mut(pool.blocks.insert(block));
            // SAFETY: the caller's contract.
            unsafe { blocks.add(index).write(at) };
        }
        Ok(())
    })
}

/// Makes slabs, and registers them, until `count` blocks of `bytes` each can be had without
/// another one, on `stream` where the pool is a device's; null elsewhere. What it needed is
/// free afterwards, for other sizes too.
///
/// Errors: as pny_pool_alloc. Nothing is left in use.
///
/// # Safety
/// Nobody destroys the pool or the stream meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_warmup(
    pool: pny_pool,
    bytes: usize,
    count: usize,
    stream: pny_stream,
) -> pny_status {
    at_boundary("pny_pool_warmup", || {
        let number = from_pointer(pool);
        let kept = POOLS.get(number)?.own()?;
        let stream = streams::of(kept, number, stream)?;
        if bytes.checked_mul(count).is_none() {
            let cause = format!("{count} blocks of {bytes} bytes exceed the address space");
            return Err(Failure::new(PNY_ERR_INVALID, cause));
        }
        let mut blocks: Vec<Block> = Vec::new();
        blocks.try_reserve(count).map_err(|error| {
            Failure::new(PNY_ERR_RESOURCES, format!("{count} blocks are not to be had at once: {error}"))
        })?;
        for _ in 0..count {
            blocks.push(kept.block(bytes, 1, stream)?);
        }
        Ok(())
    })
}

/// Frees the block that begins there. Any thread; calls neither a driver nor the registry,
/// and waits for nobody. Of a device pool its memory serves the stream that it was
/// allocated on at once, and others when that stream has come as far as it was.
///
/// PNY_ERR_INVALID  null, or an address within a block
/// PNY_ERR_STALE    not a pool; no block of this pool that is in use: freed before, or
///                  another's
/// PNY_ERR_FORKED   the pool is the parent process's
/// Nothing has changed then.
///
/// # Safety
/// Nobody destroys the pool meanwhile, and nobody uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_free(pool: pny_pool, block: *mut c_void) -> pny_status {
    at_quick_boundary("pny_pool_free", || {
        let pool = POOLS.get(from_pointer(pool))?.own()?;
        // A device's driver may be called.
        let _uncancelled = matches!(pool.memory, Memory::Device { .. }).then(Uncancelled::now);
        drop(pool.blocks.remove(block.addr())?);
        Ok(())
    })
}

/// Frees the block, whose memory is reused only after `stream`, of this device pool or
/// another one, has done what it has been given so far: for the source of a copy.
///
/// Errors: as pny_pool_free; PNY_ERR_STALE also if `stream` is none; PNY_ERR_BACKEND: the
/// driver refused to mark the place, as while the stream is captured. On an error the block
/// stays in use.
///
/// # Safety
/// As pny_pool_free, but for the stream's work. Nobody destroys the stream meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_free_after(
    pool: pny_pool,
    block: *mut c_void,
    stream: pny_stream,
) -> pny_status {
    at_boundary("pny_pool_free_after", || {
        let pool = POOLS.get(from_pointer(pool))?.own()?;
        let fence = STREAMS.get(from_pointer(stream))?.stream.fence().map_err(failed)?;
        pool.blocks.remove(block.addr())?.defer_until(fence);
        Ok(())
    })
}

/// A fence of the caller's.
struct Asked {
    passed: unsafe extern "C" fn(user: *mut c_void) -> c_int,
    user: *mut c_void,
}

// SAFETY: the header says that any thread may ask.
unsafe impl Send for Asked {}

impl Poll for Asked {
    fn passed(&mut self) -> bool {
        // SAFETY: the caller's contract of `pny_pool_defer_until`.
        calling(|| unsafe { (self.passed)(self.user) }) != 0
    }

    /// It may test an MPI request, and the program need not have MPI_THREAD_MULTIPLE.
    fn any_thread(&self) -> bool {
        false
    }
}

/// Frees the block, whose memory is reused only after `passed` has answered something else
/// than 0: an MPI request, a queue's counter. It is asked with `user` by whichever thread
/// uses the pool, and by pinyard's own (of a device pool at any time, of another once it was
/// destroyed), one at a time and with no lock held, and not again once it has passed; it
/// does not wait, and calls nothing of pinyard's. An allocation that would fail asks it
/// again and again, for the pool's patience.
///
/// Errors: as pny_pool_free; the block stays in use then.
///
/// # Safety
/// As pny_pool_free. `passed` and `user` are good until it has passed, or the process
/// ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_defer_until(
    pool: pny_pool,
    block: *mut c_void,
    passed: Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>,
    user: *mut c_void,
) -> pny_status {
    at_boundary("pny_pool_defer_until", || {
        let pool = POOLS.get(from_pointer(pool))?.own()?;
        let passed = passed.ok_or_else(|| Failure::null("passed"))?;
        pool.blocks.remove(block.addr())?.defer_until(Fence::poll(Asked { passed, user }));
        Ok(())
    })
}

/// Work of `stream`, another stream of the pool than the block was allocated on, uses the
/// block: once freed it is not reused before that stream has done what it had been given
/// when the block was freed, or soon after. For device memory.
///
/// Errors: as pny_pool_free; PNY_ERR_INVALID also: the pool's memory is not a device's, or
/// the stream is another pool's; PNY_ERR_STALE also if `stream` is none.
///
/// # Safety
/// Nobody destroys the pool or the stream, or frees the block, meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_record_use(
    pool: pny_pool,
    block: *mut c_void,
    stream: pny_stream,
) -> pny_status {
    at_boundary("pny_pool_record_use", || {
        let number = from_pointer(pool);
        let pool = POOLS.get(number)?.own()?;
        match streams::of(pool, number, stream)? {
            Some(stream) => pool.blocks.record_use(block.addr(), stream),
            None => {
                Err(Failure::new(PNY_ERR_INVALID, "the pool's memory is not a device's: it has no streams"))
            }
        }
    })
}

/// Where a block lies, and with which key a device reaches it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pny_block_place {
    /// sizeof(pny_block_place).
    pub size: usize,
    /// The key of the slab's registration; 0 of a device pool without a registry.
    pub key: pny_key,
    /// Address of the slab's first byte, which the key counts from.
    pub slab_base: u64,
    /// Bytes of the slab.
    pub slab_length: u64,
    /// Address of the block's first byte.
    pub block_base: u64,
    /// Bytes of the block, as asked for.
    pub block_length: u64,
    /// Where the address lies in the slab, in bytes.
    pub offset: u64,
}

// SAFETY: integers.
unsafe impl Sized_ for pny_block_place {
    const NAME: &'static str = "pny_block_place";
    const FIRST: usize = 72;
}

/// Fills `*place`, whose `size` the caller has set, for the block that `address` lies in,
/// at its beginning or further on. What it says is good while the block is in use.
///
/// PNY_ERR_NOT_FOUND  it lies in no block of this pool that is in use
/// PNY_ERR_INVALID    null, or a size that is none
/// PNY_ERR_STALE      not a pool
/// PNY_ERR_FORKED     the pool is the parent process's
///
/// # Safety
/// `place` is writable for its size. Nobody destroys the pool meanwhile. The memory is
/// not accessed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_find(
    pool: pny_pool,
    address: *const c_void,
    place: *mut pny_block_place,
) -> pny_status {
    at_boundary("pny_pool_find", || {
        sized::required("place", place.cast())?;
        // SAFETY: the caller's contract.
        unsafe { sized::claimed(place) }?;
        let at = address.addr();
        let found = POOLS.get(from_pointer(pool))?.own()?.blocks.find(at);
        let found = found.ok_or_else(|| {
            Failure::new(PNY_ERR_NOT_FOUND, format!("{at:#x} lies in no block of this pool that is in use"))
        })?;
        let filled = pny_block_place {
            size: 0,
            key: found.key.into(),
            slab_base: found.slab_start as u64,
            slab_length: found.slab_bytes as u64,
            block_base: found.start as u64,
            block_length: found.bytes as u64,
            offset: (at - found.slab_start) as u64,
        };
        // SAFETY: the caller's contract.
        unsafe { sized::write(place, &filled) }
    })
}

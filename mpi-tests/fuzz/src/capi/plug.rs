//! The functions for other libraries' allocators with arguments from the fuzzer, on the
//! simulated device: blocks that are good, freed, within another, or made up; devices and
//! streams that there are or not. No two blocks in use share a byte, a wrong one is refused
//! and harms nothing, and an address is found exactly while its block is in use.
//!
//! The pool behind them is the process's and is never taken down: an input gives back what
//! it has allocated.

use super::Program;
use crate::ffi::*;
use core::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::{Duration, Instant};

/// Beyond what the simulated device has, and refused at once.
const TOO_MUCH: usize = 2 << 30;

pub(super) struct Plug<'p, 'd> {
    program: &'p mut Program<'d>,
    /// Address and bytes.
    blocks: Vec<(usize, usize)>,
    freed: Vec<usize>,
}

impl<'p, 'd> Plug<'p, 'd> {
    pub(super) fn run(program: &'p mut Program<'d>) {
        let mut plug = Plug { program, blocks: Vec::new(), freed: Vec::new() };
        for _ in 0..100 {
            if plug.step().is_none() {
                break;
            }
        }
        plug.end();
    }

    /// Gives everything back: nothing is kept from the next input, and nothing waits.
    fn end(self) {
        for (block, _) in self.blocks {
            // SAFETY: nobody uses the memory any more.
            unsafe { pny_torch_free(block, 0, 0, null_mut()) };
            assert!(said().is_empty(), "{}", said());
        }
        let mut counts = [0; 11];
        counts[0] = 88;
        // SAFETY: null, and as large as it says.
        let (trimmed, told) =
            unsafe { (pny_plug_trim(0, null_mut()), pny_plug_stats(0, counts.as_mut_ptr())) };
        if (trimmed, told) == (OK, OK) {
            assert_eq!(counts[1], 0, "slabs are left: {counts:?}");
        }
    }

    fn step(&mut self) -> Option<()> {
        match self.program.byte()? % 16 {
            0..=5 => self.alloc(),
            6..=9 => self.free(),
            10 => self.record(),
            11..=12 => self.find(),
            13 => self.retire(),
            14 => self.trim(),
            _ => self.counts(),
        }
    }

    /// The device that there is, or another number.
    fn device(&mut self) -> Option<c_int> {
        if self.program.byte()? < 240 { Some(0) } else { Some(self.program.hostile()? as c_int) }
    }

    /// The default stream, or a number that may be none: the simulated device looks it up.
    fn stream(&mut self) -> Option<*mut c_void> {
        if self.program.byte()? < 240 {
            return Some(null_mut());
        }
        Some(with_exposed_provenance_mut(self.program.hostile()? as usize))
    }

    /// An address, and the place in `blocks` of the block that begins there.
    fn address(&mut self) -> Option<(usize, Option<usize>)> {
        let (how, which) = (self.program.byte()?, self.program.byte()? as usize);
        let some = which.checked_rem(self.blocks.len()).map(|at| self.blocks[at]);
        let address = match how % 8 {
            0 => self.program.hostile()? as usize,
            1 => which.checked_rem(self.freed.len()).map_or(0, |at| self.freed[at]),
            2 => some.map_or(0, |(block, bytes)| block + bytes / 2),
            _ => some.map_or(0, |(block, _)| block),
        };
        Some((address, self.blocks.iter().position(|&(block, _)| block == address)))
    }

    fn alloc(&mut self) -> Option<()> {
        let (how, device, stream) = (self.program.byte()?, self.device()?, self.stream()?);
        let bytes = match how {
            0..8 => TOO_MUCH.saturating_add(self.program.hostile()? as usize),
            8 => 0,
            _ => usize::from(how) * usize::from(how) * 10,
        };
        // SAFETY: what is no stream is a number that the simulated device does not know.
        let block = unsafe {
            if how % 2 == 0 {
                pny_torch_malloc(bytes, device, stream)
            } else {
                pny_cupy_malloc(stream, bytes, device)
            }
        };
        if bytes == 0 {
            assert_eq!(block, 0);
            return Some(());
        }
        assert_eq!(block == 0, !said().is_empty(), "{}", said());
        if block != 0 {
            assert!(device == 0 && bytes < TOO_MUCH);
            let apart = |&(other, length): &(usize, usize)| block + bytes <= other || other + length <= block;
            assert!(self.blocks.iter().all(apart), "{block:#x} + {bytes} is in use");
            // SAFETY: a block of so many bytes; a simulated device's memory is the host's.
            unsafe { with_exposed_provenance_mut::<u8>(block).write_bytes(0xa5, bytes) };
            self.freed.retain(|&freed| freed != block);
            self.blocks.push((block, bytes));
        }
        Some(())
    }

    fn free(&mut self) -> Option<()> {
        let ((address, good), device, cupy) =
            (self.address()?, self.device()?, self.program.byte()? % 2 == 0);
        // SAFETY: nobody uses the memory any more.
        unsafe {
            if cupy {
                pny_cupy_free(null_mut(), address, device);
            } else {
                pny_torch_free(address, 0, device, null_mut());
            }
        }
        if address != 0 {
            let taken = good.filter(|_| device == 0);
            assert_eq!(taken.is_some(), said().is_empty(), "{address:#x}: {}", said());
            if let Some(place) = taken {
                self.freed.push(self.blocks.swap_remove(place).0);
            }
        }
        Some(())
    }

    fn record(&mut self) -> Option<()> {
        let ((address, good), stream) = (self.address()?, self.stream()?);
        // SAFETY: as in `alloc`.
        unsafe { pny_torch_record_stream(address, stream) };
        assert!(address == 0 || good.is_some() || !said().is_empty(), "{address:#x} was taken");
        Some(())
    }

    fn find(&mut self) -> Option<()> {
        let (address, _) = self.address()?;
        let size = if self.program.byte()? == 0 { self.program.hostile()? } else { 72 };
        // `pny_block_place`, and three words beyond it.
        let mut place = [u64::MAX; 12];
        // Never more than there is: what is written is the caller's word.
        place[0] = if size > 4096 { size } else { size.min(72) };
        let end = (place[0] as usize).clamp(8, 72).div_ceil(8);
        // SAFETY: as large as it says; a larger size is refused before anything is written.
        let status = unsafe { pny_device_find(address, place.as_mut_ptr()) };
        let inside = self.blocks.iter().find(|&&(block, bytes)| address.wrapping_sub(block) < bytes);
        Program::judge(status, inside.is_some());
        assert!(place[end..].iter().all(|&word| word == u64::MAX), "past its end");
        if status == OK && end == 9 {
            let Some(&(block, bytes)) = inside else { unreachable!("judged") };
            assert!(place[6] == block as u64 && place[7] >= bytes as u64);
            assert_eq!(place[4] + place[8], address as u64);
        }
        Some(())
    }

    fn retire(&mut self) -> Option<()> {
        let (device, stream) = (self.device()?, self.stream()?);
        // SAFETY: as in `alloc`; nothing is under way.
        let status = unsafe { pny_plug_retire(device, stream) };
        Program::judge(status, device == 0);
        Some(())
    }

    fn trim(&mut self) -> Option<()> {
        let (device, mut released) = (self.device()?, usize::MAX);
        let to = if self.program.byte()? == 0 { null_mut() } else { &raw mut released };
        // SAFETY: null or the target's own.
        let status = unsafe { pny_plug_trim(device, to) };
        Program::judge(status, device == 0);
        assert_eq!(released == usize::MAX, status != OK || to.is_null());
        Some(())
    }

    fn counts(&mut self) -> Option<()> {
        let (device, size) = (self.device()?, self.program.hostile()?);
        let mut counts = [u64::MAX; 12];
        counts[0] = if size > 4096 { size } else { 88 };
        let to = if self.program.byte()? == 0 { null_mut() } else { counts.as_mut_ptr() };
        // SAFETY: null, or as large as it says; a larger size is refused before anything is
        // written.
        let status = unsafe { pny_plug_stats(device, to) };
        Program::judge(status, device == 0 && size <= 4096 && !to.is_null());
        assert_eq!(counts[11], u64::MAX, "past its end");
        if status == OK {
            // Those included that wait for other streams. One whose wait is over is for a
            // moment in the hands of the pool's thread, neither waiting nor free.
            let held = self.blocks.len() as u64;
            let began = Instant::now();
            while counts[6] - counts[7] > held && began.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
                // SAFETY: as above, and it was answered.
                assert_eq!(unsafe { pny_plug_stats(device, to) }, OK);
            }
            assert!(counts[6] - counts[7] <= held && held <= counts[6], "{counts:?}, and {held} are held");
        }
        Some(())
    }
}

/// What the last call of this thread failed of; empty where it did not.
fn said() -> &'static str {
    text(pny_last_error())
}

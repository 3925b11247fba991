//! Bcast: from every root, every length, and with memory that comes and goes.

use super::lengths;
use crate::bench::{Bench, Element, MARGIN, text};
use pinyard_mpi::DeviceBuf;

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for root in 0..bench.size() {
        for length in lengths(bench.chunk) {
            from_root::<u8>(bench, root, length)?;
        }
    }
    from_root::<f64>(bench, 0, bench.chunk)?;
    from_root::<i16>(bench, bench.size() - 1, 5000)?;
    unallocated(bench)?;
    churn(bench)
}

fn from_root<T: Element>(bench: &Bench, root: usize, length: usize) -> Result<(), String> {
    let theirs: Vec<T> = (0..length).map(|at| T::of(at + 1000 * root)).collect();
    let mine: Vec<T> = (0..length).map(|at| T::of(at + 13)).collect();
    let mut buffer = bench.buffer(if bench.rank() == root { &theirs } else { &mine })?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    let mut inner = settled.slice_mut(MARGIN..MARGIN + length);
    bench.ranks.broadcast_into(root as i32, &mut inner).map_err(text)?;
    bench.holds(&buffer, &theirs, || format!("bcast of {length} from {root}"))
}

/// A buffer without elements has no memory.
fn unallocated(bench: &Bench) -> Result<(), String> {
    let mut empty: DeviceBuf<f32> = bench.gpu.alloc(0, &bench.stream).map_err(text)?;
    bench.ranks.broadcast_into(0, &mut empty.settle_mut().map_err(text)?).map_err(text)?;
    bench.check(empty.to_vec().map_err(text)?.is_empty(), || "an empty buffer has elements".to_owned())
}

/// Buffers that are freed and allocated between the broadcasts, and slabs that go: what
/// others have open grows with slabs, not with operations, and no old slab is read.
fn churn(bench: &Bench) -> Result<(), String> {
    let length = 6 * bench.chunk;
    let mut kept: Vec<DeviceBuf<u32>> = Vec::new();
    for round in 0..24usize {
        let root = round % bench.size();
        let mut buffer: DeviceBuf<u32> = bench.gpu.alloc(length + 64 * round, &bench.stream).map_err(text)?;
        let element = |at: usize| u32::of(at * 3 + round) + round as u32;
        if bench.rank() == root {
            let elements: Vec<u32> = (0..buffer.len()).map(element).collect();
            buffer.write(&elements).map_err(text)?;
        }
        bench.ranks.broadcast_into(root as i32, &mut buffer.settle_mut().map_err(text)?).map_err(text)?;
        let elements = buffer.to_vec().map_err(text)?;
        bench.check(elements.iter().enumerate().all(|(at, &is)| is == element(at)), || {
            format!("round {round} of broadcasts of new memory")
        })?;
        if round % 3 == 0 {
            kept.push(buffer);
        } else {
            drop(buffer);
            bench.gpu.pool().trim(std::time::Duration::from_millis(20));
        }
    }
    // Slabs of 2 MiB at least; a few blocks each.
    let open = bench.ranks.open_slabs();
    bench.check(open <= 12 * bench.size(), || format!("{open} slabs of other ranks are open after 24 rounds"))
}

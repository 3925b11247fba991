//! Windows whose parts are locked: of device, pinned and host memory, by one rank alone, by
//! several that share a lock, and by the part's own rank; what is refused, and what becomes of
//! guards that are dropped or leaked.

use super::windows::plain;
use crate::bench::{Bench, text};
use pinyard_allocator::Pool;
use pinyard_mpi::{
    DeviceBuf, Error, Failure, Gpu, HostBuf, Lock, LockWindow, Locked, LockedAll, Own, Path, PinnedBuf,
    Reduction, Source, WindowMemory,
};
use pinyard_registry::backend::{Custom, MemoryKey};
use pinyard_registry::{Events, Registry};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 6;
/// Elements that a rank has in every rank's part.
const BLOCK: usize = 1500;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    if !bench.one_sided {
        return of_mpi_refused(bench);
    }
    of::<PinnedBuf<u64>>(bench)?;
    of::<HostBuf<u64>>(bench)?;
    let untaken = bench.ranks.awareness().source == Source::Probe { windows: false };
    let opens = match bench.ranks.plan().path {
        Path::Ipc => true,
        Path::Direct => !untaken,
        _ => false,
    };
    if opens || bench.size() == 1 {
        of::<DeviceBuf<u64>>(bench)?;
    } else {
        of_a_device_refused(bench)?;
    }
    if bench.size() > 1 {
        of_two_kinds_refused(bench)?;
    }
    Ok(())
}

fn of<K: Kind>(bench: &Bench) -> Result<(), String> {
    counted::<K>(bench)?;
    shared_by_all::<K>(bench)?;
    waited_for_by_its_own_rank::<K>(bench)?;
    abandoned::<K>(bench)?;
    refused::<K>(bench)
}

/// One kind of memory, and how its elements are put and got at once.
pub(super) trait Kind: WindowMemory + Sized {
    fn make(bench: &Bench, elements: &[u64]) -> Result<Self, String>;
    fn elements(self) -> Result<Vec<u64>, String>;
    fn own(own: &mut Own<'_, Self>) -> Result<Vec<u64>, String>;
    fn set_own(own: &mut Own<'_, Self>, elements: &[u64]) -> Result<(), String>;
    fn put<'l, 'n>(
        bench: &Bench,
        locked: Locked<'l, '_, Self>,
        at: usize,
        from: &[u64],
    ) -> Result<Locked<'l, 'n, Self>, String>;
    fn get<'l, 'n>(
        bench: &Bench,
        locked: Locked<'l, '_, Self>,
        at: usize,
        into: &mut [u64],
    ) -> Result<Locked<'l, 'n, Self>, String>;
    /// Puts the same to every rank, and flushes once.
    fn put_to_all<'l, 'n>(
        bench: &Bench,
        locked: LockedAll<'l, '_, Self>,
        at: usize,
        from: &[u64],
    ) -> Result<LockedAll<'l, 'n, Self>, String>;
    /// Asks for a put and flushes nothing.
    fn put_and_leave(bench: &Bench, locked: Locked<'_, '_, Self>, leak: bool) -> Result<(), String>;
    /// What a put is refused with.
    fn refusal(bench: &Bench, locked: Locked<'_, '_, Self>, at: usize) -> Result<(), Error>;
}

impl Kind for DeviceBuf<u64> {
    fn make(bench: &Bench, elements: &[u64]) -> Result<Self, String> {
        plain(bench, elements)
    }
    fn elements(self) -> Result<Vec<u64>, String> {
        self.to_vec().map_err(text)
    }
    fn own(own: &mut Own<'_, Self>) -> Result<Vec<u64>, String> {
        own.to_vec().map_err(text)
    }
    fn set_own(own: &mut Own<'_, Self>, elements: &[u64]) -> Result<(), String> {
        own.write(elements).map_err(text)
    }
    fn put<'l, 'n>(
        bench: &Bench,
        locked: Locked<'l, '_, Self>,
        at: usize,
        from: &[u64],
    ) -> Result<Locked<'l, 'n, Self>, String> {
        let from = plain(bench, from)?;
        let from = from.settle().map_err(text)?;
        let mut locked = locked.flush().map_err(text)?;
        locked.put(at, &from).map_err(text)?;
        locked.flush().map_err(text)
    }
    fn get<'l, 'n>(
        bench: &Bench,
        locked: Locked<'l, '_, Self>,
        at: usize,
        into: &mut [u64],
    ) -> Result<Locked<'l, 'n, Self>, String> {
        let mut got = plain(bench, into)?;
        let mut settled = got.settle_mut().map_err(text)?;
        let mut locked = locked.flush().map_err(text)?;
        locked.get(at, &mut settled).map_err(text)?;
        let locked = locked.flush().map_err(text)?;
        got.read(into).map_err(text)?;
        Ok(locked)
    }
    fn put_to_all<'l, 'n>(
        bench: &Bench,
        locked: LockedAll<'l, '_, Self>,
        at: usize,
        from: &[u64],
    ) -> Result<LockedAll<'l, 'n, Self>, String> {
        let from = plain(bench, from)?;
        let from = from.settle().map_err(text)?;
        let mut locked = locked.flush().map_err(text)?;
        for target in 0..bench.size() as i32 {
            locked.put(target, at, &from).map_err(text)?;
        }
        locked.flush().map_err(text)
    }
    fn put_and_leave(bench: &Bench, locked: Locked<'_, '_, Self>, leak: bool) -> Result<(), String> {
        let from = plain(bench, &[1])?;
        let from = from.settle().map_err(text)?;
        let mut locked = locked.flush().map_err(text)?;
        locked.put(0, &from).map_err(text)?;
        if leak {
            std::mem::forget(locked);
        }
        Ok(())
    }
    fn refusal(bench: &Bench, locked: Locked<'_, '_, Self>, at: usize) -> Result<(), Error> {
        let stream = &bench.stream;
        let from: DeviceBuf<u64> =
            bench.gpu.alloc(7, stream).map_err(|source| Error::Staging { rank: 0, source })?;
        let from = from.settle().map_err(|source| Error::Staging { rank: 0, source })?;
        let mut locked = locked.flush()?;
        locked.put(at, &from)
    }
}

/// The host's kinds: a slice each.
macro_rules! host_kinds {
    ($($kind:ty { $make:item $elements:item $own:item $set_own:item })*) => {$(
        impl Kind for $kind {
            $make
            $elements
            $own
            $set_own
            fn put<'l, 'n>(
                _: &Bench,
                locked: Locked<'l, '_, Self>,
                at: usize,
                from: &[u64],
            ) -> Result<Locked<'l, 'n, Self>, String> {
                let mut locked = locked.flush().map_err(text)?;
                locked.put(at, from).map_err(text)?;
                locked.flush().map_err(text)
            }
            fn get<'l, 'n>(
                _: &Bench,
                locked: Locked<'l, '_, Self>,
                at: usize,
                into: &mut [u64],
            ) -> Result<Locked<'l, 'n, Self>, String> {
                let mut locked = locked.flush().map_err(text)?;
                locked.get(at, into).map_err(text)?;
                locked.flush().map_err(text)
            }
            fn put_to_all<'l, 'n>(
                bench: &Bench,
                locked: LockedAll<'l, '_, Self>,
                at: usize,
                from: &[u64],
            ) -> Result<LockedAll<'l, 'n, Self>, String> {
                let mut locked = locked.flush().map_err(text)?;
                for target in 0..bench.size() as i32 {
                    locked.put(target, at, from).map_err(text)?;
                }
                locked.flush().map_err(text)
            }
            fn put_and_leave(_: &Bench, locked: Locked<'_, '_, Self>, leak: bool) -> Result<(), String> {
                let from = [1];
                let mut locked = locked.flush().map_err(text)?;
                locked.put(0, &from[..]).map_err(text)?;
                if leak {
                    std::mem::forget(locked);
                }
                Ok(())
            }
            fn refusal(_: &Bench, locked: Locked<'_, '_, Self>, at: usize) -> Result<(), Error> {
                let from = [0; 7];
                let mut locked = locked.flush()?;
                locked.put(at, &from[..])
            }
        }
    )*};
}

host_kinds! {
    PinnedBuf<u64> {
        fn make(bench: &Bench, elements: &[u64]) -> Result<Self, String> {
            let mut buffer = bench.gpu.alloc_pinned(elements.len()).map_err(text)?;
            buffer.settle_mut().map_err(text)?.copy_from_slice(elements);
            Ok(buffer)
        }
        fn elements(mut self) -> Result<Vec<u64>, String> {
            Ok(self.settle().map_err(text)?.to_vec())
        }
        fn own(own: &mut Own<'_, Self>) -> Result<Vec<u64>, String> {
            Ok(own.settle().map_err(text)?.to_vec())
        }
        fn set_own(own: &mut Own<'_, Self>, elements: &[u64]) -> Result<(), String> {
            own.settle_mut().map_err(text)?.copy_from_slice(elements);
            Ok(())
        }
    }
    HostBuf<u64> {
        fn make(_: &Bench, elements: &[u64]) -> Result<Self, String> {
            let nobody = Custom::new("nobody", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
            let registry = Registry::builder().backend(nobody).events(Events::NotifyOnly).build().map_err(text)?;
            let pool = Pool::host(&registry).slab_bytes(2 << 20).build().map_err(text)?;
            let mut buffer = HostBuf::from(pool.alloc(elements.len()).map_err(text)?);
            buffer.copy_from_slice(elements);
            Ok(buffer)
        }
        fn elements(self) -> Result<Vec<u64>, String> {
            Ok(self.to_vec())
        }
        fn own(own: &mut Own<'_, Self>) -> Result<Vec<u64>, String> {
            Ok(own.to_vec())
        }
        fn set_own(own: &mut Own<'_, Self>, elements: &[u64]) -> Result<(), String> {
            own.elements_mut().copy_from_slice(elements);
            Ok(())
        }
    }
}

fn block(rank: usize) -> Vec<u64> {
    (0..BLOCK).map(|at| (rank * 1_000_003 + at) as u64).collect()
}

/// All ranks have come so far.
fn together(bench: &Bench) -> Result<(), String> {
    let mut one = plain(bench, &[0u8])?;
    let mut settled = one.settle_mut().map_err(text)?;
    bench.ranks.all_reduce_in_place(&mut settled, Reduction::Max).map_err(text)
}

fn window<K: Kind>(bench: &Bench, memory: K) -> Result<LockWindow<'_, K>, String> {
    bench.ranks.lock_window(memory).map_err(text)
}

/// Every rank adds one to a number of rank 0's, many times: none is lost.
fn counted<K: Kind>(bench: &Bench) -> Result<(), String> {
    let mut window = window(bench, K::make(bench, &[0])?)?;
    for _ in 0..ROUNDS {
        let mut number = [0];
        let locked = window.lock(0, Lock::Exclusive).map_err(text)?;
        let locked = K::get(bench, locked, 0, &mut number)?;
        K::put(bench, locked, 0, &[number[0] + 1])?.unlock().map_err(text)?;
    }
    let counted = window.close().map_err(text)?.elements()?[0];
    let expected = if bench.rank() == 0 { ROUNDS * bench.size() as u64 } else { 0 };
    bench.check(counted == expected, || format!("{counted} additions under a lock, not {expected}"))
}

/// Each rank has a place in every rank's part; all put at the same time, and read back what the
/// others did.
fn shared_by_all<K: Kind>(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let mut window = window(bench, K::make(bench, &vec![9; size * BLOCK])?)?;
    bench.check(window.len_of(0) == size * BLOCK, || "the elements of a part".to_owned())?;
    let locked = window.lock_all().map_err(text)?;
    // The first is overwritten by the second: flushed in between.
    let locked = K::put_to_all(bench, locked, rank * BLOCK, &vec![7; BLOCK])?;
    K::put_to_all(bench, locked, rank * BLOCK, &block(rank))?.unlock().map_err(text)?;
    together(bench)?;
    let expected: Vec<u64> = (0..size).flat_map(block).collect();
    let mut got = vec![0; size * BLOCK];
    let locked = window.lock(((rank + 1) % size) as i32, Lock::Shared).map_err(text)?;
    K::get(bench, locked, 0, &mut got)?.unlock().map_err(text)?;
    bench.check(got == expected, || "what all ranks put, from another rank".to_owned())?;
    together(bench)?;
    let mut own = window.lock_own().map_err(text)?;
    let mine = K::own(&mut own)?;
    K::set_own(&mut own, &vec![rank as u64; size * BLOCK])?;
    own.unlock().map_err(text)?;
    bench.check(mine == expected, || "what all ranks put, in one's own part".to_owned())?;
    together(bench)?;
    let other = (rank + size - 1) % size;
    let locked = window.lock(other as i32, Lock::Shared).map_err(text)?;
    K::get(bench, locked, 0, &mut got)?.unlock().map_err(text)?;
    bench
        .check(got == vec![other as u64; size * BLOCK], || "what a rank wrote to its own part".to_owned())?;
    window.close().map_err(text)?;
    Ok(())
}

/// Rank 0 does nothing but look at its own part, until all others have put something there: on
/// `ipc` it does not call MPI meanwhile.
fn waited_for_by_its_own_rank<K: Kind>(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let mut window = window(bench, K::make(bench, &vec![0; size])?)?;
    if rank > 0 {
        let locked = window.lock(0, Lock::Shared).map_err(text)?;
        K::put(bench, locked, rank, &[rank as u64])?.unlock().map_err(text)?;
    } else {
        let (expected, began) = ((0..size as u64).collect::<Vec<u64>>(), Instant::now());
        loop {
            let mut own = window.lock_own().map_err(text)?;
            let found = K::own(&mut own)?;
            drop(own);
            if found == expected {
                break;
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("puts that never came: {found:?}"));
            }
            // The others want the lock, and may want the core.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Dropped, as all ranks do.
    drop(window);
    bench.check(true, String::new)
}

/// Guards that are dropped and leaked before anything was flushed: nothing moves, and the lock is
/// had again.
fn abandoned<K: Kind>(bench: &Bench) -> Result<(), String> {
    let mut window = window(bench, K::make(bench, &[5])?)?;
    let target = ((bench.rank() + 1) % bench.size()) as i32;
    for leak in [false, true] {
        let locked = window.lock(target, Lock::Exclusive).map_err(text)?;
        K::put_and_leave(bench, locked, leak)?;
    }
    // One's own lock comes after the leaked one.
    let found = K::own(&mut window.lock_own().map_err(text)?)?;
    bench.check(found == [5], || format!("a put that was not flushed: {found:?}"))?;
    std::mem::forget(window.lock_all().map_err(text)?);
    let found = window.close().map_err(text)?.elements()?;
    bench.check(found == [5], || format!("after the window's end: {found:?}"))
}

fn refused<K: Kind>(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank() as i32, bench.size() as i32);
    let mut window = window(bench, K::make(bench, &[5; 100])?)?;
    for target in [-1, size] {
        let nobody = window.lock(target, Lock::Shared).map(drop);
        bench.check(matches!(nobody, Err(Error::NoSuchRank { .. })), || format!("{nobody:?}"))?;
    }
    for at in [94, usize::MAX, usize::MAX - 6] {
        let locked = window.lock(size - 1, Lock::Shared).map_err(text)?;
        let beyond = K::refusal(bench, locked, at);
        let named = matches!(beyond, Err(Error::Range { rank: named, target, count: 7, elements: 100, .. })
            if named == rank && target == size - 1);
        bench.check(named, || format!("a put at {at} of 100: {beyond:?}"))?;
    }
    let locked = window.lock(size - 1, Lock::Shared).map_err(text)?;
    let within = K::refusal(bench, locked, 93);
    bench.check(within.is_ok(), || format!("a put to the last elements: {within:?}"))?;
    // Nobody has flushed.
    let found = window.close().map_err(text)?.elements()?;
    bench.check(found == [5; 100], || "puts that were refused".to_owned())
}

/// Where somebody at the target would have to help.
fn of_a_device_refused(bench: &Bench) -> Result<(), String> {
    let refused = bench.ranks.lock_window(plain(bench, &[1u64; 10])?).map(drop);
    let path = bench.ranks.plan().path;
    let said = refused.as_ref().map_err(text).err().unwrap_or_default();
    let named = matches!(&refused, Err(Error::Unsupported { rank, .. }) if *rank == bench.rank() as i32);
    let reason = match path {
        Path::Direct => "not in windows, as pinyard-mpi-probe has tried".to_owned(),
        path => format!("on path {path} the target"),
    };
    bench.check(named && said.contains(&reason), || format!("{refused:?}"))?;
    // On the direct path MPI takes any device's.
    if path == Path::Direct {
        return Ok(());
    }
    // The other device's memory as well.
    let Some(_) = &bench.simulated else { return Ok(()) };
    let other = Gpu::simulated(64 << 20).map_err(text)?;
    let stream = other.stream().map_err(text)?;
    let theirs: DeviceBuf<u64> = other.alloc(10, &stream).map_err(text)?;
    let refused = bench.ranks.lock_window(theirs).map(drop);
    bench.check(matches!(refused, Err(Error::OtherDevice { .. })), || format!("{refused:?}"))
}

/// Where MPI has no one-sided operations for the ranks' transport: it says so at every rank.
fn of_mpi_refused(bench: &Bench) -> Result<(), String> {
    let refused = bench.ranks.lock_window(PinnedBuf::make(bench, &[1; 10])?).map(drop);
    let named = matches!(&refused, Err(Error::Mpi { source, .. }) if source.call == "MPI_Win_create");
    bench.check(named, || format!("a window without one-sided operations: {refused:?}"))?;
    together(bench)
}

/// Rank 0 gives a device's memory, the others the host's: all are told.
fn of_two_kinds_refused(bench: &Bench) -> Result<(), String> {
    let refused = match bench.rank() {
        0 => bench.ranks.lock_window(plain(bench, &[1u64; 10])?).map(drop),
        _ => bench.ranks.lock_window(PinnedBuf::make(bench, &[1; 10])?).map(drop),
    };
    let said = matches!(refused, Err(Error::Unsupported { .. } | Error::Peer { what: Failure::Path, .. }));
    bench.check(said, || format!("a window of two kinds of memory: {refused:?}"))?;
    window(bench, PinnedBuf::make(bench, &[1; 10])?).map(drop)
}

//! Atomics, cells and fences: the real ones, or loom's when the models are
//! built. The only file of this crate that knows about `cfg(loom)` for types;
//! the modules that talk to the kernel are left out of the models in `lib.rs`.

#[cfg(not(loom))]
mod chosen {
    pub(crate) use pinyard_registry::membarrier::{heavy as heavy_fence, light as light_fence};
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};
    pub(crate) use std::thread::{Thread, yield_now};

    pub(crate) type ReadGuard<'a> = parking_lot::RwLockReadGuard<'a, ()>;
    pub(crate) type WriteGuard<'a> = parking_lot::RwLockWriteGuard<'a, ()>;

    /// A lock that guards no data.
    pub(crate) struct RwLock(parking_lot::RwLock<()>);

    impl RwLock {
        pub(crate) fn new() -> RwLock {
            RwLock(parking_lot::RwLock::new(()))
        }

        pub(crate) fn read(&self) -> ReadGuard<'_> {
            self.0.read()
        }

        pub(crate) fn write(&self) -> WriteGuard<'_> {
            self.0.write()
        }
    }

    /// loom's interface over the real cell.
    #[derive(Default)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            UnsafeCell(std::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }

    /// Lets time pass before one looks for the nth time at what another holds briefly:
    /// turns of the processor, then of the thread, then of the clock.
    pub(crate) fn pause(nth: u32) {
        match nth {
            0..100 => std::hint::spin_loop(),
            100..110 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(20)),
        }
    }

    /// log2 of the blocks in the arena's first segment.
    pub(crate) const FIRST_SEGMENT: u32 = 10;
}

#[cfg(loom)]
mod chosen {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, fence};
    pub(crate) use loom::thread::{Thread, yield_now};

    pub(crate) type ReadGuard<'a> = loom::sync::RwLockReadGuard<'a, ()>;
    pub(crate) type WriteGuard<'a> = loom::sync::RwLockWriteGuard<'a, ()>;

    /// See the real one.
    pub(crate) struct RwLock(loom::sync::RwLock<()>);

    impl RwLock {
        pub(crate) fn new() -> RwLock {
            RwLock(loom::sync::RwLock::new(()))
        }

        pub(crate) fn read(&self) -> ReadGuard<'_> {
            self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> WriteGuard<'_> {
            self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    /// See the real one.
    pub(crate) fn pause(_: u32) {
        yield_now();
    }

    /// Two blocks, then four: both segments are reached.
    pub(crate) const FIRST_SEGMENT: u32 = 1;

    /// What the kernel's barrier makes of the pair, in the language's terms.
    pub(crate) fn light_fence() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }

    /// See `light_fence`.
    pub(crate) fn heavy_fence() -> bool {
        light_fence();
        true
    }
}

pub(crate) use chosen::*;

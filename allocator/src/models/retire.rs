//! A stream that ends beside calls of the driver for it.

use crate::retire::{Callable, RetireLock, Retired};
use crate::sync::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A device of one stream that may be destroyed: what the driver was given for it, in order.
/// loom finds a call for the stream beside its destruction: both write the cell.
struct Queue {
    calls: UnsafeCell<u64>,
    is_destroyed: UnsafeCell<bool>,
}

/// A stream as a pool knows it: its lock, and sources of copies with no mark behind them,
/// each with its place in the stream's order.
struct Stream {
    lock: RetireLock<&'static Queue>,
    /// Calls for one stream from several threads are the driver's to put in order.
    order: Mutex<()>,
    unmarked: Mutex<Vec<u64>>,
}

impl Stream {
    /// A call of the driver; its place in the stream's order.
    fn call(&self, queue: &impl Callable<&'static Queue>) -> u64 {
        let queue = queue.handle();
        let _order = self.order.lock().unwrap();
        // SAFETY: loom fails the model where another has it.
        assert!(!queue.is_destroyed.with(|is| unsafe { *is }), "a destroyed stream is used");
        queue.calls.with_mut(|calls| {
            // SAFETY: as above.
            let calls = unsafe { &mut *calls };
            *calls += 1;
            *calls
        })
    }

    /// As `Core::mark` and `PoolStream::fence`: the value that passes after all that came
    /// before.
    fn mark(&self) -> u64 {
        match self.lock.in_use(&()) {
            Ok(in_use) => self.call(&in_use),
            Err(Retired(last)) => last,
        }
    }

    /// As `PoolStream::copy_to_device`: whether it was queued.
    fn copy(&self) -> bool {
        let Ok(in_use) = self.lock.in_use(&()) else { return false };
        let at = self.call(&in_use);
        self.unmarked.lock().unwrap().push(at);
        true
    }

    /// As `Core::settle_copies`: sources go when the mark has passed that comes next.
    fn settle(&self) {
        let unmarked = std::mem::take(&mut *self.unmarked.lock().unwrap());
        if !unmarked.is_empty() {
            let mark = self.mark();
            assert!(unmarked.iter().all(|&copy| copy < mark), "a source goes before its copy has passed");
        }
    }

    /// As `PoolStream::retire`, and then what the program may do.
    fn end(&self) {
        let Ok(retiring) = self.lock.retiring(&()) else { return };
        let last = self.call(&retiring);
        retiring.end(last);
        drop(retiring);
        // SAFETY: loom fails the model where another has it.
        self.lock.name().is_destroyed.with_mut(|is| unsafe { *is = true });
    }
}

fn a_stream_ends_beside(others: fn(&Stream)) {
    loom::model(move || {
        let queue = Queue { calls: UnsafeCell::new(0), is_destroyed: UnsafeCell::new(false) };
        let queue: *mut Queue = Box::into_raw(Box::new(queue));
        let stream = Arc::new(Stream {
            // SAFETY: freed below, when no thread is left.
            lock: RetireLock::new(unsafe { &*queue }),
            order: Mutex::new(()),
            unmarked: Mutex::new(Vec::new()),
        });
        let other = {
            let stream = stream.clone();
            thread::spawn(move || others(&stream))
        };
        // The pool's thread and the one that retires: two may settle.
        stream.end();
        stream.settle();
        other.join().unwrap();
        stream.settle();
        drop(stream);
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(queue) });
    });
}

// SAFETY: its cells are what loom checks.
unsafe impl Sync for Queue {}

/// Of this pool's thread, of another pool's, and of a thread that gets to know the stream.
#[test]
fn a_stream_ends_beside_its_marks() {
    a_stream_ends_beside(|stream| {
        stream.mark();
        stream.mark();
    });
}

#[test]
fn a_stream_ends_beside_a_copy() {
    a_stream_ends_beside(|stream| {
        stream.copy();
        stream.settle();
    });
}

/// As `Core::inspect`: several calls for one stream, or none.
#[test]
fn a_stream_ends_beside_a_look_at_its_memory() {
    a_stream_ends_beside(|stream| {
        if let Ok(in_use) = stream.lock.in_use(&()) {
            let copied = stream.call(&in_use);
            assert!(stream.call(&in_use) > copied);
        }
    });
}

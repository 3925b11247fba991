//! Threads of pinyard's own, and calls of the program's code where a panic must not go on.
//!
//! A block in use, a lease and a registration rely on what a thread of ours keeps: the pool's
//! core, say. So such a thread ends when its work is done and in no other way. [`spawn`]
//! makes it: what it keeps stands outside everything that can unwind, and its work begins
//! anew after a panic. [`caught`] is for the code of the program that runs on it: fences,
//! callbacks, registrars, drops. [`log!`] and [`span!`] are for its log, since a subscriber is the
//! program's code as well.
//!
//! A panic's payload is a value of the program's, whose drop may panic. It is forgotten
//! unless it is a text.
// What hooks may not do: no hook comes here.
#![allow(clippy::disallowed_macros)]
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod daemon;
mod descriptor;
#[cfg(not(loom))]
mod keys;
mod output;
mod thread_id;

pub use descriptor::Descriptor;
pub use output::{say, without_signals, write_line};
use std::any::Any;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};
use std::time::Duration;
pub use thread_id::{ThreadId, join};

/// Between a panic of a thread's work and its next beginning: 10 ms, so that work which
/// always panics leaves the processor to others.
const PAUSE: Duration = Duration::from_millis(10);

/// A panic that went no further. The panic hook has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    message: Option<String>,
}

impl Panicked {
    /// Takes the text of a payload; forgets any other payload.
    fn from_payload(payload: Box<dyn Any + Send>) -> Panicked {
        let payload = match payload.downcast::<String>() {
            Ok(text) => return Panicked { message: Some(*text) },
            Err(payload) => payload,
        };
        let message = payload.downcast_ref::<&'static str>().map(|&text| text.to_owned());
        // Its drop is the program's code, and may panic.
        std::mem::forget(payload);
        Panicked { message }
    }
}

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or("a panic without a text"))
    }
}

/// Runs `work`, whose panic goes no further, and whose payload is never dropped.
///
/// ```
/// let passed = pinyard_worker::caught(|| -> u32 { panic!("a bug") });
/// assert_eq!(passed.unwrap_err().to_string(), "a bug");
/// ```
///
/// # Errors
/// The panic.
#[inline]
pub fn caught<R>(work: impl FnOnce() -> R) -> Result<R, Panicked> {
    let _in_the_program = daemon::InTheProgram::enter();
    catch(work)
}

#[inline]
fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(Panicked::from_payload)
}

/// Logs by the macro of `tracing` with this name; a panic of the subscriber is caught. The
/// crate that uses it depends on `tracing`.
#[macro_export]
macro_rules! log {
    ($level:ident, $($arguments:tt)*) => {{
        let _ = $crate::caught(|| tracing::$level!($($arguments)*));
    }};
}

/// Enters the span that the macro of `tracing` with this name makes, until the answer is
/// dropped; a panic of the subscriber is caught in both.
#[macro_export]
macro_rules! span {
    ($level:ident, $($arguments:tt)*) => {
        $crate::caught(|| tracing::$level!($($arguments)*).entered()).ok().map($crate::DropCaught::new)
    };
}

/// A value of the program's: a panic of its drop is caught.
#[derive(Debug)]
pub struct DropCaught<T>(ManuallyDrop<T>);

impl<T> DropCaught<T> {
    /// Takes the value.
    pub fn new(value: T) -> DropCaught<T> {
        DropCaught(ManuallyDrop::new(value))
    }
}

impl<T> Drop for DropCaught<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: taken once, as this is dropped once.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        let _ = caught(|| drop(value));
    }
}

/// Starts a thread that keeps `kept` until `work` has returned. After a panic of `work`,
/// `told` hears of it and `work` is called again: its state is what it captures. The thread takes no
/// signals, and has a stack of `stack` bytes, of which [`stack_size`](pinyard_hooks::stack_size)
/// says how many must be: it asks the loader, so a caller that holds a lock calls it before.
/// It keeps the process of a program whose own threads have ended as long as it runs code of the
/// program's, by [`caught`], and no longer ([`pinyard_hooks::daemon`]).
///
/// `kept` is given up when `work` returns, and a panic of its drop is caught. A panic of `told` is
/// caught as well. In a forked child there is no such thread.
///
/// # Errors
/// pthread_create's, or that no key of pthread's is left. `kept` and `work` are dropped then.
pub fn spawn<K: Send + 'static>(
    name: &str,
    stack: usize,
    kept: K,
    mut work: impl FnMut(&K) + Send + 'static,
    told: impl Fn(&Panicked) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    #[cfg(not(loom))]
    keys::make_keys(stack)?;
    let run = move || {
        daemon::begins();
        // Counts nothing of ours as the program's code.
        while let Err(panicked) = catch(|| work(&kept)) {
            let _ = caught(|| told(&panicked));
            thread::sleep(PAUSE);
        }
        let _ = caught(|| drop((work, told)));
        let _ = caught(|| drop(kept));
        daemon::ends();
    };
    let new = thread::Builder::new().name(name.to_owned()).stack_size(stack);
    pinyard_hooks::daemon::make(|| new.spawn(run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_hooks::stack_size;
    use std::panic::panic_any;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's drop")
        }
    }

    #[test]
    fn a_panic_is_told_by_its_text_and_a_payload_is_forgotten() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(
            caught(|| panic!("slot {}", 3)).map_err(|panic| panic.to_string()),
            Err::<(), _>("slot 3".into())
        );
        let strange = caught(|| -> () { panic_any(Bomb) });
        assert_eq!(strange.map_err(|panic| panic.to_string()), Err("a panic without a text".into()));
        drop(DropCaught::new(Bomb));
    }

    #[test]
    fn a_thread_goes_on_after_panics_and_keeps_what_it_was_given() {
        let (kept, done) = (Arc::new(AtomicU32::new(0)), mpsc::channel());
        let tells = done.0;
        let work = move |count: &Arc<AtomicU32>| {
            // This thread's and the test's own.
            assert_eq!(Arc::strong_count(count), 2);
            match count.fetch_add(1, SeqCst) {
                0 => panic!("a text"),
                1 => panic_any(Bomb),
                2 => tells.send(()).unwrap(),
                _ => unreachable!("it has returned"),
            }
        };
        let told = |_: &Panicked| panic!("the log, too");
        let thread = spawn("pinyard-test", stack_size(64 << 10), kept.clone(), work, told).unwrap();
        done.1.recv().unwrap();
        thread.join().unwrap();
        assert_eq!((kept.load(SeqCst), Arc::strong_count(&kept)), (3, 1));
    }

    #[test]
    fn a_drop_of_what_was_kept_may_panic() {
        spawn("pinyard-test", stack_size(64 << 10), Bomb, |_| (), |_| ()).unwrap().join().unwrap();
    }
}

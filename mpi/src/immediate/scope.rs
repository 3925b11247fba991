//! The stretch of a program in which buffers are lent to operations.

use super::engine::Engine;
use std::cell::RefCell;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a rank that panics waits for what is under way.
const GRACE: Duration = Duration::from_secs(5);

/// See [`scope()`].
pub struct Scope<'scope, 'env: 'scope> {
    /// Operations that were begun in it.
    begun: RefCell<Vec<(Rc<Engine>, u64)>>,
    /// Invariant: neither may be taken for a shorter one.
    lasts: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

/// Runs `body`, in which operations that do not block borrow buffers from outside, and
/// completes those that are left when it returns: a request may be dropped or leaked
/// (`mem::forget`), and the buffer still comes back only when nobody uses it. So rsmpi's own
/// scope, which only counts requests and ends the program where one is left, has no place
/// here. An error of an operation that nobody waited for is logged.
///
/// When `body` panics the operations are completed as well; if that takes more than five
/// seconds, as the other ranks do not know of the panic, the process aborts, as from
/// rsmpi's scope. So it does where MPI was finalised while one was under way: what was lent
/// to it may be written at any time.
///
/// ```no_run
/// # use pinyard_mpi::{DeviceCommunicator, Gpu};
/// # fn work(ranks: &DeviceCommunicator, gpu: &Gpu) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = gpu.stream()?;
/// let mut grid = gpu.alloc::<f32>(1 << 20, &stream)?;
/// let mut settled = grid.settle_mut()?;
/// pinyard_mpi::scope(|scope| {
///     let request = ranks.immediate_broadcast_into(scope, 0, &mut settled)?;
///     // … the host does something else …
///     request.wait()
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn scope<'env, R>(body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R) -> R {
    let scope = Scope { begun: RefCell::default(), lasts: PhantomData };
    // Dropped before any borrow ends, whether `body` returns or panics.
    let completes = Completes(&scope.begun);
    let result = body(&scope);
    drop(completes);
    result
}

impl Scope<'_, '_> {
    pub(super) fn begin(&self, engine: &Rc<Engine>, id: u64) {
        self.begun.borrow_mut().push((engine.clone(), id));
    }
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").field("begun", &self.begun.borrow().len()).finish()
    }
}

struct Completes<'a>(&'a RefCell<Vec<(Rc<Engine>, u64)>>);

impl Drop for Completes<'_> {
    fn drop(&mut self) {
        let began = Instant::now();
        for (engine, id) in self.0.take() {
            while engine.is_under_way(id) {
                crate::calls::progress::of_others();
                if std::thread::panicking() && began.elapsed() > GRACE {
                    tracing::error!(
                        "a rank panicked with operations under way that the others do not complete"
                    );
                    // Nothing that is lent may be touched before they end.
                    std::process::abort();
                }
            }
            if engine.is_lost(id) {
                tracing::error!("MPI was finalised with operations under way, which buffers are lent to");
                std::process::abort();
            }
            if let Some(Err(error)) = engine.take(id) {
                tracing::warn!(%error, "an operation that nobody waited for has failed");
            }
        }
    }
}

//! Calls somebody back when the last of a set of registrations is gone.

use pinyard_worker::{caught, log};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs its work when the last clone is dropped, once.
#[derive(Clone)]
pub(crate) struct Completion {
    // For the drop alone.
    _work: Arc<OnDrop>,
}

struct OnDrop(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Completion {
    pub(crate) fn new(work: impl FnOnce() + Send + 'static) -> Completion {
        Completion { _work: Arc::new(OnDrop(Mutex::new(Some(Box::new(work))))) }
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(work) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            // It runs on whichever thread is at hand, the reaper's too: a panic, which
            // has been printed, ends there.
            if let Err(panicked) = caught(work) {
                log!(error, "the callback of an invalidate panicked: {panicked}");
            }
        }
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Completion")
    }
}

//! Futures without an executor: polled by hand, with a waker that counts.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// How often it was woken.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

pub(crate) fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(count.clone())))
}

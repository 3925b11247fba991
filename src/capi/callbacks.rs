//! Functions of the caller's that pinyard calls. Within one nothing is destroyed: the call
//! that led there uses the object still.

use super::status::{Failure, pny_status::*};
use std::cell::Cell;

thread_local! {
    /// How many of them this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls one.
pub(super) fn calling<R>(function: impl FnOnce() -> R) -> R {
    DEPTH.set(DEPTH.get() + 1);
    let result = function();
    DEPTH.set(DEPTH.get() - 1);
    result
}

/// Refuses to destroy what `name` is, within one.
pub(super) fn may_destroy(name: &str) -> Result<(), Failure> {
    match DEPTH.get() {
        0 => Ok(()),
        _ => {
            let cause = format!(
                "a {name} is not destroyed by a function that pinyard has called: do it when that has returned"
            );
            Err(Failure::new(PNY_ERR_BUSY, cause))
        }
    }
}

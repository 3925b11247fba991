//! What processes leave in the folder that `PINYARD_TRACE` names, to be looked at:
//! afterwards, and while they run.

pub(crate) mod report;
pub(crate) mod top;

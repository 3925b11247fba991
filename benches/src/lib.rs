//! How the benchmarks are timed: what their programs share.

pub mod turns;
pub mod worker;

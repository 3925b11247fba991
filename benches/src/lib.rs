//! How the benchmarks are timed: what their programs share.

pub mod traces;
pub mod turns;
pub mod worker;

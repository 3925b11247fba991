//! What the rank programs of `pinyard demo` share: an allocator that releases
//! pages from inside malloc and free, the rounds, the check of every byte, the
//! watchdog that turns a hang into a stack, and the report of a rank.

pub mod cache;
pub mod naive;
pub mod options;
pub mod pooled;
pub mod progress;
pub mod purging;
pub mod rank;
pub mod registered;
pub mod ring;
pub mod rounds;
pub mod verify;
pub mod watchdog;
pub mod wire;

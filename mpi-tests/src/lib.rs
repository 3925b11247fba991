//! What the rank programs of `pinyard demo` share: an allocator that releases
//! pages from inside malloc and free, the rounds, the check of every byte, the
//! watchdog that turns a hang into a stack, and the report of a rank. And what
//! the programs of the soak share.

#[cfg(feature = "mpi")]
pub mod cache;
#[cfg(feature = "mpi")]
pub mod naive;
#[cfg(feature = "mpi")]
pub mod options;
#[cfg(feature = "mpi")]
pub mod pooled;
#[cfg(feature = "mpi")]
pub mod progress;
#[cfg(feature = "mpi")]
pub mod purging;
#[cfg(feature = "mpi")]
pub mod rank;
#[cfg(feature = "mpi")]
pub mod registered;
#[cfg(feature = "mpi")]
pub mod ring;
#[cfg(feature = "mpi")]
pub mod rounds;
#[cfg(feature = "soak")]
pub mod soak;
#[cfg(feature = "mpi")]
pub mod verify;
#[cfg(feature = "mpi")]
pub mod watchdog;
#[cfg(feature = "mpi")]
pub mod wire;

//! What the `pinyard` command shares with the programs that it starts: what they are asked, what they
//! report, and what becomes of it. It needs no MPI, and measures nothing itself.

#[cfg(feature = "bench")]
pub mod bench;
pub mod demo;
#[cfg(feature = "stress")]
pub mod place;
#[cfg(feature = "stress")]
pub mod stress;
pub mod text;
#[cfg(feature = "trace")]
pub mod trace;

//! The coverage table: every way of changing a mapping, tried for real.
//!
//! A row registers pages full of one byte, changes the mapping, writes another
//! byte, and asks the registry again. What the device then sees through the key
//! is the verdict: the pages are pinned by io_uring, so that stale ones show.
//! Each row runs in a process of its own: some end threads, move the break or
//! unload libraries, and what one row registers must not help the next.
//!
//! The same rows are the test (`tests/table.rs`), the table of the book
//! (`docs/src/hooks.md`), and `pinyard doctor hooks`.

mod children;
mod copy;
mod files;
mod heap;
mod judge;
mod memory;
mod objects;
mod pages;
mod raw;
mod rows;
mod setup;
mod table;

pub use children::{Report, run_all, run_here};
pub use copy::{LIBRARY, NAMESPACE};
pub use judge::Verdict;
pub use rows::{ROWS, Row};
pub use setup::Setup;
pub use table::{promised, text};

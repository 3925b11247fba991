//! What the ranks of `pinyard stress` are asked, and what they leave behind: the
//! command and the ranks' program share it, and it needs no MPI.
//!
//! ```text
//! rank        Options -> progress words (while it runs), samples (twice a second), Rank (at its end)
//! afterwards  folder::read -> Run -> verdict::of -> document (JSON), page (HTML)
//! ```
//!
//! A rank that is killed leaves its progress words and its samples, so the report names
//! what it was in.

pub mod document;
pub mod folder;
pub mod operation;
pub mod options;
pub mod page;
pub mod plot;
pub mod progress;
pub mod record;
pub mod series;
pub mod verdict;

pub use document::write_reports;
pub use operation::{Operation, Phase};
pub use options::{Backend, Fault, Options};
pub use record::{Outcome, Rank, Run};
pub use verdict::Verdict;

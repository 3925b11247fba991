//! What the benchmarks are, and what becomes of their figures. The programs that measure
//! and the command `pinyard bench` share it; it measures nothing itself.
//!
//! ```text
//! program   catalogue::Benchmark -> measurement -> Word (a JSON line each) -> standard output
//! command   Word -> Document -> table, JSON, plots; two Documents -> Comparison
//! ```

pub mod catalogue;
pub mod compare;
pub mod document;
pub mod machine;
pub mod number;
pub mod plot;
pub mod row;
pub mod table;
pub mod word;

pub use catalogue::Benchmark;
pub use compare::Comparison;
pub use document::Document;
pub use machine::Machine;
pub use row::{At, Axis, Row, Subject, Summary, Unit};
pub use word::{Absence, Word};

//! Traces of a run's processes, brought together: as one page that fetches nothing, and as
//! the JSON that Perfetto and Chrome's about:tracing read.
//!
//! ```text
//! files -> load (a reader each; what cannot be read is a warning) -> Run
//! Run   -> page      columns of binary numbers, a script that draws them
//!       -> perfetto  one object per event
//! ```
//!
//! Whatever stands in a trace may have been written by anybody: names reach the page
//! escaped, or as text nodes.

mod histogram;
mod load;
mod page;
mod perfetto;
mod run;
mod series;

pub use self::{
    load::{LoadError, load},
    run::Run,
};

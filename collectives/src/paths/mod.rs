//! How bytes get from one device to another.

mod imports;
mod message;
mod pipeline;
mod plan;
mod ring;

pub use self::plan::{Path, Plan};
pub(crate) use self::{
    imports::Imports,
    message::{INLINE, Kind, MESSAGE, Message},
    pipeline::{Outcome, run},
    ring::Ring,
};

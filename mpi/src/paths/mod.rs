//! How bytes get from one device to another.

mod board;
mod chunks;
mod imports;
mod lanes;
mod locks;
mod message;
mod pipeline;
mod plan;
mod relay;
mod ring;
mod route;
mod shared;

pub use self::plan::{Path, Plan};
pub(crate) use self::{
    board::{Answers, Board, NOTE},
    chunks::Chunks,
    imports::{Exported, Imports},
    lanes::Streams,
    locks::Locks,
    message::{INLINE, Kind, MESSAGE, Message},
    pipeline::{Outcome, run},
    relay::Relay,
    ring::Ring,
    route::Route,
    shared::{Shape, Shared},
};

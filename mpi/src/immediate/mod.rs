//! Operations that do not block, and messages.
//!
//! Each is a future of a few steps: MPI requests that are tested, events that are
//! queried. There is no thread and no runtime: `test`, `wait`, the end of a [`scope()`] and
//! every blocking operation of the thread's communicators take all of them as far as they
//! get. Operations of one kind (collectives; messages to one rank with one tag; messages
//! from one rank with one tag) follow each other, so that their messages are not mixed up.

mod blocking;
mod broadcast;
mod chain;
mod desk;
mod engine;
mod lent;
mod messages;
mod parts;
mod pipeline;
mod reduce;
mod request;
mod rings;
mod scope;
mod shares;
mod slots;
mod steps;
mod varcount;

pub(crate) use self::{desk::Desk, engine::Engine, steps::largest};
pub use self::{
    lent::{After, AfterMut, Receiving, Sending},
    request::{OwnedRequest, Request, Returned},
    scope::{Scope, scope},
};

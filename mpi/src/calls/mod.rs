//! The MPI functions that are called here, with their errors.
//!
//! rsmpi's own methods abort or panic where MPI fails, and its requests borrow their
//! buffers, which a ring of chunks cannot have. All that is unsafe about calling MPI is
//! in this module.

mod collectives;
mod communicator;
mod given;
mod idle;
mod messages;
mod own;
pub(crate) mod progress;
mod request;
mod small;
mod windows;

pub(crate) use self::{
    collectives::{Listed, Operand, Rooted},
    communicator::Comm,
    given::Given,
    idle::Idle,
    own::OwnOperations,
    request::Request,
    windows::Win,
};

use crate::error::MpiError;

pub(crate) type Answer<T> = Result<T, MpiError>;

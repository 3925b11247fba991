//! What both C libraries share: [`pny_status`], calls of C that end in one ([`at_boundary`]), and objects
//! that C holds by a handle ([`Handles`]). Each library has a copy of it, with texts and tables of its own.
//! It is no interface for programs: it changes with the libraries.
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod codes;
mod failure;
mod handles;

pub use codes::pny_status;
pub use failure::{Failure, at_boundary, at_quick_boundary, last_error};
pub use handles::{Handles, from_pointer, to_pointer};

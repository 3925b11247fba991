//! What the hooks add to calls that change mappings.

pub(crate) mod calls;
pub(crate) mod watched;

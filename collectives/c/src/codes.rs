//! The statuses of pinyard.h that come from here: its header has the type, and the numbers
//! are its.
#![allow(non_camel_case_types)]

/// `pny_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum pny_status {
    /// Done.
    PNY_OK = 0,
    /// An argument cannot be used.
    PNY_ERR_INVALID = 1,
    /// A library or a device is not there.
    PNY_ERR_ABSENT = 3,
    /// Another thread is inside a call with the communicator.
    PNY_ERR_BUSY = 4,
    /// The environment or the system refuses.
    PNY_ERR_REFUSED = 5,
    /// No memory, or no place for another one.
    PNY_ERR_RESOURCES = 6,
    /// Something has to be done first.
    PNY_ERR_NOT_READY = 7,
    /// A defect of pinyard.
    PNY_ERR_INTERNAL = 8,
    /// The handle is none, or was destroyed.
    PNY_ERR_STALE = 9,
    /// It belongs to the process that this one was forked from.
    PNY_ERR_FORKED = 14,
    /// MPI, the driver or another rank failed.
    PNY_ERR_BACKEND = 15,
}

#[cfg(test)]
mod tests {
    use super::pny_status::{self, *};

    #[test]
    fn the_numbers_are_the_header_s() {
        let header = include_str!("../../../include/pinyard.h");
        let ours: [pny_status; 11] = [
            PNY_OK,
            PNY_ERR_INVALID,
            PNY_ERR_ABSENT,
            PNY_ERR_BUSY,
            PNY_ERR_REFUSED,
            PNY_ERR_RESOURCES,
            PNY_ERR_NOT_READY,
            PNY_ERR_INTERNAL,
            PNY_ERR_STALE,
            PNY_ERR_FORKED,
            PNY_ERR_BACKEND,
        ];
        for status in ours {
            assert!(header.contains(&format!("\t{status:?} = {},", status as i32)), "{status:?}");
        }
    }
}

//! What a rank does: the operations of the mix, and the parts of a step.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// An MPI operation of the mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// MPI_Bcast from a drawn root
    Bcast,
    /// MPI_Allreduce, the sum of 64-bit words
    Allreduce,
    /// MPI_Sendrecv with the ranks at a drawn distance
    Sendrecv,
    /// MPI_Put into a fresh window of the rank at a drawn distance
    Put,
    /// MPI_Get, likewise
    Get,
}

impl Operation {
    /// All, in the order of the report.
    pub const ALL: [Operation; 5] =
        [Operation::Bcast, Operation::Allreduce, Operation::Sendrecv, Operation::Put, Operation::Get];

    /// MPI's name.
    pub fn name(self) -> &'static str {
        ["MPI_Bcast", "MPI_Allreduce", "MPI_Sendrecv", "MPI_Put", "MPI_Get"][self as usize]
    }
}

/// The part of its life that a rank is in; a hang is named by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// MPI_Init_thread.
    Init,
    /// The backend, the registry and the pool are being made.
    Prepare,
    /// The ranks agree whether to go on.
    Agree,
    /// A buffer is freed, allocated, mapped, emptied, or forked around.
    Change,
    /// `Registry::get`.
    Register,
    /// Bytes go through the registered pages, before or after the operation.
    Device,
    /// The MPI operation.
    Operation,
    /// The received bytes are compared.
    Check,
    /// The ranks' records go to rank 0.
    Gather,
    /// MPI_Finalize.
    Finalize,
}

impl Phase {
    const ALL: [Phase; 10] = [
        Phase::Init,
        Phase::Prepare,
        Phase::Agree,
        Phase::Change,
        Phase::Register,
        Phase::Device,
        Phase::Operation,
        Phase::Check,
        Phase::Gather,
        Phase::Finalize,
    ];

    /// What the rank is in, as part of a sentence; `operation` is that of the step.
    pub fn describe(self, operation: Operation) -> &'static str {
        match self {
            Phase::Init => "MPI_Init_thread",
            Phase::Prepare => "making the backend and the registry",
            Phase::Agree => "agreeing with the other ranks whether to go on (MPI_Allreduce)",
            Phase::Change => "changing a buffer's memory",
            Phase::Register => "Registry::get",
            Phase::Device => "moving bytes through the registered pages",
            Phase::Operation => operation.name(),
            Phase::Check => "checking the received bytes",
            Phase::Gather => "gathering the records (MPI_Gatherv)",
            Phase::Finalize => "MPI_Finalize",
        }
    }
}

macro_rules! codes {
    ($type:ty) => {
        impl $type {
            /// Its number in the progress words.
            pub fn code(self) -> u64 {
                self as u64
            }

            /// The one with that number.
            pub fn of(code: u64) -> Option<$type> {
                usize::try_from(code).ok().and_then(|code| <$type>::ALL.get(code).copied())
            }
        }
    };
}
codes!(Operation);
codes!(Phase);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        assert!(Operation::ALL.iter().all(|&operation| Operation::of(operation.code()) == Some(operation)));
        assert!(Phase::ALL.iter().all(|&phase| Phase::of(phase.code()) == Some(phase)));
        assert_eq!(Operation::of(5), None);
    }
}

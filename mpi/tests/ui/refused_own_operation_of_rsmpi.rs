use mpi::collective::Operation;
use mpi::traits::*;
use pinyard_mpi::{CudaAware, Settled, SettledMut};

/// One of the program's own would run on the host, on device memory.
pub fn reduce(
    ranks: &impl CommunicatorCollectives,
    mine: &Settled<'_, f32>,
    all: &mut SettledMut<'_, f32>,
    by: impl Operation,
) {
    let aware = CudaAware::detected().unwrap().unwrap();
    ranks.all_reduce_into(&mine.direct(&aware), &mut all.direct_mut(&aware), by);
}

fn main() {}

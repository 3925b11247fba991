//! What is compared: our paths, and what programs do without them.
#![allow(unsafe_code)] // takes the command line's word for what MPI takes

use crate::nccl::Nccl;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use pinyard_mpi::{CudaAware, DeviceBuf, DeviceCommunicator, Gpu, Path, PinnedBuf, Reduction};
use std::error::Error;

/// What all ranks do together, of `f32`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// From rank 0, in place.
    Bcast,
    /// The sum.
    AllReduce,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Bcast => "bcast",
            Operation::AllReduce => "allreduce",
        }
    }
}

pub(crate) enum Way {
    /// All to the host, MPI there, all to the device.
    CopyThenMpi {
        mine: PinnedBuf<f32>,
        all: PinnedBuf<f32>,
    },
    Ours(Box<DeviceCommunicator>),
    Nccl(Nccl),
}

/// The ways there are; with `aware` MPI takes device pointers.
pub(crate) fn all(
    gpu: &Gpu,
    world: &impl Communicator,
    elements: usize,
    aware: bool,
) -> Result<Vec<Way>, Box<dyn Error>> {
    let copies = Way::CopyThenMpi { mine: gpu.alloc_pinned(elements)?, all: gpu.alloc_pinned(elements)? };
    let ours = |path| -> Result<Way, Box<dyn Error>> {
        Ok(Way::Ours(Box::new(self::ours(gpu, world, path, aware)?)))
    };
    let mut ways = vec![copies, ours(Path::Staged)?];
    let best = DeviceCommunicator::builder(gpu).cuda_aware(None).build(world)?;
    match best.plan().path {
        Path::Staged => drop(best),
        _ => ways.push(Way::Ours(Box::new(best))),
    }
    if aware {
        ways.push(ours(Path::Direct)?);
    }
    ways.extend(Nccl::open(gpu, world)?.map(Way::Nccl));
    Ok(ways)
}

/// A communicator that takes this path.
pub(crate) fn ours(
    gpu: &Gpu,
    world: &impl Communicator,
    path: Path,
    aware: bool,
) -> Result<DeviceCommunicator, Box<dyn Error>> {
    let builder = DeviceCommunicator::builder(gpu).path(path);
    // SAFETY: whoever gives --aware says so.
    let proof = aware.then(|| unsafe { CudaAware::assume() });
    let builder = if aware { builder.cuda_aware(proof) } else { builder };
    Ok(builder.build(world)?)
}

impl Way {
    pub(crate) fn name(&self) -> String {
        match self {
            Way::CopyThenMpi { .. } => "copy-then-mpi".to_owned(),
            Way::Ours(ranks) => ranks.plan().path.to_string(),
            Way::Nccl(_) => "nccl".to_owned(),
        }
    }

    /// Once, done when it returns. Of a broadcast `from` is what is sent and received.
    pub(crate) fn once(
        &mut self,
        operation: Operation,
        world: &impl Communicator,
        from: &mut DeviceBuf<f32>,
        to: &mut DeviceBuf<f32>,
    ) -> Result<(), Box<dyn Error>> {
        match (self, operation) {
            (Way::Ours(ranks), Operation::Bcast) => Ok(ranks.broadcast_into(0, &mut from.settle_mut()?)?),
            (Way::Ours(ranks), Operation::AllReduce) => {
                Ok(ranks.all_reduce_into(&from.settle()?, &mut to.settle_mut()?, Reduction::Sum)?)
            }
            (Way::Nccl(nccl), Operation::Bcast) => nccl.broadcast(from.ptr(), from.len()),
            (Way::Nccl(nccl), Operation::AllReduce) => nccl.all_reduce(from.ptr(), to.ptr(), from.len()),
            (Way::CopyThenMpi { mine, .. }, Operation::Bcast) => {
                if world.rank() == 0 {
                    mine.copy_from(from)?;
                }
                world.process_at_rank(0).broadcast_into(&mut *mine.settle_mut()?);
                if world.rank() != 0 {
                    mine.copy_to(from)?;
                    from.settle()?;
                }
                Ok(())
            }
            (Way::CopyThenMpi { mine, all }, Operation::AllReduce) => {
                mine.copy_from(from)?;
                world.all_reduce_into(&*mine.settle()?, &mut *all.settle_mut()?, SystemOperation::sum());
                all.copy_to(to)?;
                to.settle()?;
                Ok(())
            }
        }
    }
}

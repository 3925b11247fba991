//! `--sweep`: the staged path by the length and the number of its chunks, contents unchecked: the
//! other runs do that.

use crate::Options;
use crate::row::{Row, timed};
use crate::ways::Operation;
use mpi::traits::Communicator;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu, Path, Reduction};
use std::error::Error;
use std::time::Duration;

const SIZES: [usize; 4] = [1 << 20, 8 << 20, 64 << 20, 256 << 20];
const CHUNK_BYTES: [usize; 6] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];
const CHUNKS: [usize; 3] = [2, 4, 8];
/// As of `more.rs`.
const LONG: Duration = Duration::from_millis(100);
const LEAST: usize = 3;
const MOST: usize = 20;

/// Under `PINYARD_MPI_CHUNKS` or `_CHUNK_BYTES`, which go before the program's word, the numbers are
/// theirs: a row has those of the plan.
pub(crate) fn measure(world: &impl Communicator, gpu: &Gpu, options: &Options) -> Result<(), Box<dyn Error>> {
    let most = if options.quick { 1 << 20 } else { usize::MAX };
    let longest = SIZES.into_iter().filter(|&bytes| bytes <= most).max().unwrap_or(0);
    let stream = gpu.stream()?;
    let elements = longest / size_of::<f32>();
    let mut from: DeviceBuf<f32> = gpu.alloc(elements, &stream)?;
    let mut to: DeviceBuf<f32> = gpu.alloc(elements, &stream)?;
    from.write(&vec![1.0; elements])?;
    to.write(&vec![0.0; elements])?;
    for (chunk_bytes, chunks) in
        CHUNK_BYTES.into_iter().flat_map(|bytes| CHUNKS.map(|chunks| (bytes, chunks)))
    {
        let builder = DeviceCommunicator::builder(gpu).path(Path::Staged).cuda_aware(None);
        let ranks = builder.chunk_bytes(chunk_bytes).chunks(chunks).build(world)?;
        let shape =
            format!(", \"chunk_bytes\": {}, \"chunks\": {}", ranks.plan().chunk_bytes, ranks.plan().chunks);
        for operation in [Operation::Bcast, Operation::AllReduce] {
            for bytes in SIZES.into_iter().filter(|&bytes| bytes <= most) {
                let elements = bytes / size_of::<f32>();
                let mut once = || -> Result<(), Box<dyn Error>> {
                    let (mut source, mut target) = (from.settle_mut()?, to.settle_mut()?);
                    let (mut source, mut target) =
                        (source.slice_mut(..elements), target.slice_mut(..elements));
                    match operation {
                        Operation::Bcast => ranks.broadcast_into(0, &mut source)?,
                        Operation::AllReduce => {
                            ranks.all_reduce_into(&source.as_settled(), &mut target, Reduction::Sum)?;
                        }
                    }
                    Ok(())
                };
                let first = timed(world, &mut once)?;
                let (mut times, mut spent) = (Vec::new(), Duration::ZERO);
                while times.len() < MOST && (spent < LONG || times.len() < LEAST) {
                    let time = timed(world, &mut once)?;
                    spent += time;
                    times.push(time);
                }
                let row = Row::new("staged".to_owned(), first, times);
                if world.rank() == 0 {
                    println!("{}", row.json(operation.name(), world.size(), bytes, &shape));
                    let cells = row.cells(bytes);
                    println!("{:>11} {bytes:>11}  {chunks} x {chunk_bytes:>8}  {cells}", operation.name());
                }
            }
        }
    }
    Ok(())
}

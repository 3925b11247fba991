//! A rank that waits in an operation goes on with MPI meanwhile, as in any function of
//! MPI's: others may not come to the operation before it does.

use crate::bench::{Bench, Element, text};
use mpi::point_to_point::{Destination, Source};
use mpi::request::scope;
use mpi::topology::{Communicator, SimpleCommunicator};

/// More than an MPI sends without the receiver's doing.
const LONG: usize = 8 << 20;

/// The first rank has a receive under way when it waits for the last one's broadcast; the
/// last one comes to that after the message has gone.
pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    let (first, last) = (0, bench.size() - 1);
    if first == last {
        return Ok(());
    }
    let world = SimpleCommunicator::world();
    let elements: Vec<u64> = (0..5000).map(u64::of).collect();
    let mut buffer = bench.buffer(&if bench.rank() == last { elements.clone() } else { vec![0; 5000] })?;
    let broadcast = |buffer: &mut pinyard_mpi::DeviceBuf<u64>| {
        bench.ranks.broadcast_into(last as i32, &mut buffer.settle_mut().map_err(text)?).map_err(text)
    };
    let takes_part = [first, last].contains(&bench.rank());
    let mut message = vec![u8::from(bench.rank() == last); if takes_part { LONG } else { 0 }];
    if bench.rank() == first {
        scope(|scope| {
            let request = world.process_at_rank(last as i32).immediate_receive_into(scope, &mut message[..]);
            let done = broadcast(&mut buffer);
            request.wait();
            done
        })?;
    } else {
        if bench.rank() == last {
            world.process_at_rank(first as i32).send(&message[..]);
        }
        broadcast(&mut buffer)?;
    }
    bench.check(message.iter().all(|&byte| byte == 1), || "the message beside the broadcast".to_owned())?;
    bench.holds(&buffer, &elements, || "a broadcast that a message comes before".to_owned())
}

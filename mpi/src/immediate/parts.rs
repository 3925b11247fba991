//! Any bytes of any rank to any other, without blocking: as the blocking form, each rank tells
//! each other what it has for it, and where that lies (MPI_Ialltoall). On `ipc` the receivers
//! then copy; elsewhere pieces go through pinned chunks (MPI_Ialltoallv), or MPI gets the
//! pointers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::Handed;
use super::lent::Marks;
use super::pipeline::flow;
use super::steps::{done, largest};
use crate::error::Error;
use crate::operations::{Told, Traffic};
use crate::paths::{Path, Ring};
use pinyard_allocator::DriverToken;
use std::rc::Rc;

/// With the pointers.
pub(super) async fn directly(
    desk: Rc<Desk>,
    handed: Handed,
    operation: &'static str,
    traffic: Traffic,
    marks: [Option<Marks>; 2],
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed(marks, mine).await;
    let mine = desk.checked(operation, 0, mine).await?;
    let (_, mine) = introduce(&desk, operation, &traffic, mine).await?;
    let lists = mine.and_then(|()| traffic.lists(desk.rank()));
    let lists = desk.agree(operation, lists).await?;
    // SAFETY: lent memory, which stands until the operation is done, and the lists behind the
    // future that waits for the request; MPI takes its address (the plan).
    let request = unsafe { traffic.start_directly(&desk.later, &lists) };
    handed.over();
    let request = request.map_err(|error| desk.report.mpi(error))?;
    done(request).await.map(|_| 0).map_err(|error| desk.report.mpi(error))
}

/// From device to device, or through chunks.
pub(super) async fn carried(
    desk: Rc<Desk>,
    operation: &'static str,
    traffic: Traffic,
    marks: [Option<Marks>; 2],
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed(marks, mine).await;
    let mine = desk.checked(operation, 0, mine).await?;
    carry(&desk, operation, &traffic, mine).await
}

/// Carries it out, device to device or through chunks. A rank that has failed, as one without a
/// ring has, takes part, and tells. No bytes are reported.
pub(super) async fn carry(
    desk: &Desk,
    operation: &'static str,
    traffic: &Traffic,
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let ring = mine.and_then(|()| desk.rings.short());
    let (told, mut mine) = introduce(desk, operation, traffic, ring).await?;
    // Each has told all, so all decide alike.
    if desk.plan.path == Path::Ipc && told.iter().all(|told| !told.closed) {
        if let Ok(ring) = mine {
            mine = pull(desk, ring, traffic, &told).await;
        }
        desk.rings.keep(desk.agree(operation, mine).await?);
    } else {
        let mine = mine.map(|ring| desk.rings.keep(ring));
        if let Some(ring) = through_chunks(desk, operation, traffic, mine).await? {
            desk.rings.keep(ring);
        }
    }
    Ok(0)
}

/// What every rank has for this one. The outer error is MPI's.
async fn introduce<R>(
    desk: &Desk,
    operation: &'static str,
    traffic: &Traffic,
    mine: Result<R, Error>,
) -> Result<(Vec<Told>, Result<R, Error>), Error> {
    let here = (&*desk.imports, desk.report);
    let (tells, mine) = traffic.tells(desk.plan.path, here, mine, &DriverToken::at_entry());
    let told = desk.swap(&tells).await?;
    Ok(traffic.hear(operation, &told, desk.report, mine))
}

/// Copies the parts from their devices.
async fn pull(desk: &Desk, ring: Ring, traffic: &Traffic, told: &[Told]) -> Result<Ring, Error> {
    let here = (&*desk.imports, &ring);
    // SAFETY: lent memory, which stands until the operation is done, after the ranks have agreed.
    // Waited for here.
    let queued = unsafe { traffic.queue(told, desk.rank(), here, &DriverToken::at_entry()) };
    desk.across(&ring, queued).await.map(|()| ring)
}

async fn through_chunks(
    desk: &Desk,
    operation: &'static str,
    traffic: &Traffic,
    mine: Result<(), Error>,
) -> Result<Option<Ring>, Error> {
    let words = [desk.report.answer(&mine), traffic.longest() as u64];
    let [worst, longest] = largest(&desk.later, words).await.map_err(|error| desk.report.mpi(error))?;
    mine.and_then(|()| desk.report.told(operation, worst))?;
    if longest == 0 {
        return Ok(None);
    }
    let cut = traffic.cut(desk.plan.chunk_bytes, longest as usize);
    let mut ring = desk.agree(operation, desk.rings.long(cut.needs())).await?;
    let slots = ring.slots();
    let mut lists = cut.lists(slots);
    // SAFETY: lent memory of these parts, which stands until the operation is done; all pieces fit
    // a slot. A slot's lists are written when its request before has ended, as its bytes are, and
    // stand until the future that waits for the requests is dropped.
    let outcome = unsafe {
        flow(
            &mut ring,
            cut.pieces,
            |number| cut.loads(number),
            |number, slot| cut.start(&desk.later, &mut lists[number % slots], number, slot),
            |number| cut.stores(number),
        )
    };
    let mine = desk.report.ended(outcome.await)?;
    desk.agree(operation, mine).await.map(|()| Some(ring))
}

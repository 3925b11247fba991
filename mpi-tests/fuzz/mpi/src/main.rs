//! libpinyard_mpi with arguments from the fuzzer, under AddressSanitizer, as the one rank
//! of MPI_COMM_SELF on a simulated device: communicators that there are, were destroyed or
//! are made up; device memory, host memory and null; counts, datatypes, operations, roots,
//! ranks and tags that fit or do not. Whatever they are, a status with a text comes back,
//! never that of a defect; a call that is done has moved the bytes that it should have, and
//! none writes behind what it was given.
//!
//! What the header leaves to the caller stays good: MPI's own handles, host memory as long
//! as the count says, and a receiver for what is sent. `xtask/ci/fuzz.sh [seconds]` builds and
//! runs it.
#![allow(unsafe_code, clippy::unwrap_used)]
#![no_main]

mod ffi;

use core::ffi::{c_char, c_int};
use ffi::*;
use libfuzzer_sys::fuzz_target;
use mpi::ffi as raw;
use std::cell::OnceCell;
use std::ptr::null_mut;

/// Bytes of each memory, and behind them those that nobody writes.
const BYTES: usize = 12 << 10;
const BEHIND: usize = 256;
const UNTOUCHED: u8 = 0xc3;

/// What the whole process has.
struct World {
    _universe: mpi::environment::Universe,
    /// On the path that is chosen for one rank, and `staged`.
    comms: [Comm; 2],
    /// Two blocks of the device.
    device: [*mut u8; 2],
    /// Two elements of two ints, one int apart: no row of bytes.
    vector: raw::MPI_Datatype,
}

impl World {
    fn new() -> World {
        // Nothing but this process: no network, no launcher's settings.
        let settings = [("PINYARD_DRIVER", "simulated"), ("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self")];
        for (name, value) in settings {
            // SAFETY: called once, before MPI or a pool has a thread.
            unsafe { std::env::set_var(name, value) };
        }
        let universe = mpi::initialize().unwrap();
        let chosen = create(0).unwrap();
        // SAFETY: libFuzzer has not begun; pinyard's threads read no variables.
        unsafe { std::env::set_var("PINYARD_MPI_PATH", "staged") };
        let staged = create(0).unwrap();
        // SAFETY: the null stream; stores handles of MPI's in places of its own.
        let (device, vector) = unsafe {
            let device = [(); 2].map(|()| pny_torch_malloc(BYTES + BEHIND, 0, null_mut()));
            let mut vector = raw::RSMPI_INT32_T;
            raw::MPI_Type_vector(2, 1, 2, raw::RSMPI_INT32_T, &mut vector);
            raw::MPI_Type_commit(&mut vector);
            (device, vector)
        };
        assert!(device.iter().all(|block| !block.is_null()));
        World { _universe: universe, comms: [chosen, staged], device, vector }
    }
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

fn create(device: c_int) -> Result<Comm, c_int> {
    let mut made = usize::MAX;
    // SAFETY: a communicator of MPI's, and a place for the handle.
    let status = unsafe { pny_mpi_comm_create(raw::RSMPI_COMM_SELF, device, &raw mut made) };
    judge(status);
    if status == OK { Ok(made) } else { Err(status) }
}

/// A status has a text, and no call finds a defect.
fn judge(status: c_int) {
    assert_ne!(status, INTERNAL, "{}", said());
    assert_eq!(status == OK, said().is_empty(), "{status}: {}", said());
    assert!(status == OK || said().starts_with("pny_mpi_"), "{}", said());
}

/// Memory of a call: which, where in it, and of what.
#[derive(Clone, Copy)]
struct Span {
    at: *mut u8,
    count: c_int,
    of: raw::MPI_Datatype,
    /// Bytes that the count says, where that many are there; of an element.
    bytes: Option<usize>,
    element: usize,
    on_device: bool,
}

impl Span {
    fn contents(&self) -> Option<Vec<u8>> {
        // SAFETY: so many bytes are there, and nobody else is at work.
        self.bytes.map(|bytes| unsafe { std::slice::from_raw_parts(self.at, bytes) }.to_vec())
    }
}

struct Program<'d, 'w> {
    input: std::slice::Iter<'d, u8>,
    world: &'w World,
    host: [Box<[u8]>; 2],
    live: Vec<Comm>,
    gone: Vec<Comm>,
}

impl Program<'_, '_> {
    fn byte(&mut self) -> Option<u8> {
        self.input.next().copied()
    }

    /// One of the numbers that bounds are about, or any.
    fn hostile(&mut self) -> Option<c_int> {
        const EDGES: [c_int; 8] = [-1, 1, 2, 32767, 32768, c_int::MAX, c_int::MIN, -2];
        let how = self.byte()? as usize;
        if how < EDGES.len() {
            return Some(EDGES[how]);
        }
        let bytes: Vec<u8> = self.input.by_ref().take(4).copied().collect();
        Some(c_int::from_le_bytes(bytes.try_into().ok()?))
    }

    /// A handle, and whether it is good.
    fn comm(&mut self) -> Option<(Comm, bool)> {
        let (how, which) = (self.byte()?, self.byte()? as usize);
        let handle = match how % 16 {
            0 => 0,
            1 => self.hostile()? as Comm,
            2 => which.checked_rem(self.gone.len()).map_or(0, |at| self.gone[at]),
            3 => which.checked_rem(self.live.len()).map_or(0, |at| self.live[at]),
            _ => self.world.comms[which % 2],
        };
        Some((handle, self.world.comms.contains(&handle) || self.live.contains(&handle)))
    }

    /// Of the device: any count. The host's is the caller's word, and fits.
    fn span(&mut self, which: usize) -> Option<Span> {
        let (how, of, long) = (self.byte()?, self.byte()?, self.byte()?);
        // SAFETY: constants.
        let (of, element) = unsafe {
            match of % 16 {
                0 => (raw::RSMPI_DOUBLE, 8),
                1 => (raw::RSMPI_FLOAT, 4),
                2 => (raw::RSMPI_UINT8_T, 1),
                3 => (raw::RSMPI_INT64_T, 8),
                4 => (raw::RSMPI_UINT16_T, 2),
                5 => (raw::RSMPI_FLOAT_COMPLEX, 8),
                6 => (self.world.vector, 8),
                7 => (raw::RSMPI_DATATYPE_NULL, 0),
                _ => (raw::RSMPI_INT32_T, 4),
            }
        };
        // A vector's elements lie further apart than they have bytes.
        let most = BYTES / (element * 2).max(1);
        let mut count = if long < 32 { c_int::from(long) } else { (usize::from(long) * most / 255) as c_int };
        let on_device = how % 8 > 1;
        if on_device && how >= 240 {
            count = self.hostile()?;
        }
        let at = match how % 8 {
            0 => {
                count = count.min(0);
                null_mut()
            }
            1 => self.host[which].as_mut_ptr(),
            // SAFETY: within the block.
            2 => unsafe { self.world.device[which].add(BYTES / 2) },
            _ => self.world.device[which],
        };
        let bytes = usize::try_from(count).ok().map(|count| count.saturating_mul(element));
        let bytes = bytes.filter(|&bytes| !at.is_null() && bytes <= BYTES / 2 && element > 0);
        Some(Span { at, count, of, bytes, element, on_device })
    }

    /// The one rank that there is, nobody, or one that is none.
    fn rank(&mut self) -> Option<c_int> {
        match self.byte()? {
            0..16 => self.hostile(),
            _ => Some(0),
        }
    }

    fn operation(&mut self) -> Option<raw::MPI_Op> {
        // SAFETY: constants.
        Some(unsafe {
            match self.byte()? % 8 {
                0 => raw::RSMPI_PROD,
                1 => raw::RSMPI_MIN,
                2 => raw::RSMPI_MAX,
                _ => raw::RSMPI_SUM,
            }
        })
    }

    /// Null, or a number that is no stream: of a simulated device null.
    fn stream(&mut self) -> Option<usize> {
        Some(if self.byte()? == 0 { 4096 } else { 0 })
    }

    /// What one rank's operation leaves is what was sent.
    fn moved(status: c_int, good: bool, sent: Option<Vec<u8>>, received: &Span) {
        judge(status);
        assert!(good || status != OK, "a handle that is none was taken");
        if let (OK, Some(sent)) = (status, sent.filter(|sent| !sent.is_empty())) {
            // SAFETY: `sent` is not longer than what it came from or went to.
            let now = unsafe { std::slice::from_raw_parts(received.at, sent.len()) };
            assert!(now == sent, "{} bytes are not what was sent", sent.len());
        }
    }

    fn broadcast(&mut self) -> Option<()> {
        let ((comm, good), span, root, stream) = (self.comm()?, self.span(0)?, self.rank()?, self.stream()?);
        let before = span.contents();
        // SAFETY: host memory has as much; what is the device's is looked up.
        let status = unsafe { pny_mpi_bcast(span.at, span.count, span.of, root, comm, stream) };
        Self::moved(status, good, before, &span);
        assert!(root == 0 || status != OK, "root {root} of one rank");
        Some(())
    }

    /// To nobody and of nobody, or a rank that is none.
    fn messages(&mut self) -> Option<()> {
        let ((comm, good), span, stream) = (self.comm()?, self.span(0)?, self.stream()?);
        let (other, tag, sends) = (self.hostile()?, self.hostile()?, self.byte()? % 2 == 0);
        // SAFETY: a constant.
        let nobody = unsafe { raw::RSMPI_PROC_NULL };
        // A message that never comes is waited for.
        // SAFETY: a constant.
        let anybody = unsafe { raw::RSMPI_ANY_SOURCE };
        let other = if other == 0 || (other == anybody && !span.on_device) { nobody } else { other };
        // SAFETY: as in `broadcast`; the status is ignored.
        let status = unsafe {
            if sends {
                pny_mpi_send(span.at, span.count, span.of, other, tag, comm, stream)
            } else {
                pny_mpi_recv(span.at, span.count, span.of, other, tag, comm, raw::RSMPI_STATUS_IGNORE, stream)
            }
        };
        judge(status);
        assert!(good || status != OK);
        assert!(other == nobody || status != OK, "rank {other} of one");
        Some(())
    }

    /// To this rank itself, with the same tag: whoever sends is received.
    fn exchange(&mut self) -> Option<()> {
        let ((comm, good), sent, received, stream) =
            (self.comm()?, self.span(0)?, self.span(1)?, self.stream()?);
        let tag = c_int::from(self.byte()?);
        // Host memory and other tags: MPI waits for what never comes.
        let other_tag = if self.byte()? == 0 && sent.on_device { tag + 1 } else { tag };
        let before = sent.contents();
        // SAFETY: as in `broadcast`; the memories differ.
        let status = unsafe {
            pny_mpi_sendrecv(
                sent.at,
                sent.count,
                sent.of,
                0,
                tag,
                received.at,
                received.count,
                received.of,
                0,
                other_tag,
                comm,
                raw::RSMPI_STATUS_IGNORE,
                stream,
            )
        };
        // MPI lays a vector out anew: its bytes are compared by others.
        let rows = [&sent, &received].iter().all(|span| span.of != self.world.vector);
        Self::moved(status, good, before.filter(|_| rows), &received);
        Some(())
    }

    fn reduction(&mut self) -> Option<()> {
        let ((comm, good), received, stream) = (self.comm()?, self.span(1)?, self.stream()?);
        let (operation, in_place, all) = (self.operation()?, self.byte()? % 4 == 0, self.byte()? % 2 == 0);
        let root = if all { 0 } else { self.rank()? };
        let from = match (in_place, received.on_device) {
            // SAFETY: returns a constant.
            (true, _) => unsafe { pny_mpi_shim_in_place() }.cast(),
            (_, true) => self.world.device[0],
            // As long as the receiver's.
            _ if received.at.is_null() => null_mut(),
            _ => self.host[0].as_mut_ptr(),
        };
        let from_span = Span { at: if in_place { received.at } else { from }, ..received };
        // What MPI does not reduce is an error of MPI's, and host memory's is its alone.
        let sent = from_span.contents().filter(|_| received.of != self.world.vector);
        // SAFETY: as in `broadcast`; both have as much, and do not overlap.
        let status = unsafe {
            if all {
                pny_mpi_allreduce(from, received.at, received.count, received.of, operation, comm, stream)
            } else {
                pny_mpi_reduce(from, received.at, received.count, received.of, operation, root, comm, stream)
            }
        };
        Self::moved(status, good, sent, &received);
        assert!(root == 0 || status != OK, "root {root} of one rank");
        Some(())
    }

    fn shares(&mut self) -> Option<()> {
        let ((comm, good), sent, received, stream) =
            (self.comm()?, self.span(0)?, self.span(1)?, self.stream()?);
        let (which, root) = (self.byte()? % 4, self.rank()?);
        // MPI's own rule for host memory: the receiver's is as long as the sender's.
        if !sent.on_device && (received.on_device || sent.bytes != received.bytes) {
            return Some(());
        }
        let before = sent.contents();
        let (from, number, of) = (sent.at, sent.count, sent.of);
        let (to, into, as_of) = (received.at, received.count, received.of);
        // SAFETY: as in `broadcast`; the memories differ.
        let status = unsafe {
            match which {
                0 => pny_mpi_gather(from, number, of, to, into, as_of, root, comm, stream),
                1 => pny_mpi_scatter(from, number, of, to, into, as_of, root, comm, stream),
                2 => pny_mpi_allgather(from, number, of, to, into, as_of, comm, stream),
                _ => pny_mpi_alltoall(from, number, of, to, into, as_of, comm, stream),
            }
        };
        let rows = [&sent, &received].iter().all(|span| span.of != self.world.vector);
        Self::moved(status, good, before.filter(|_| rows), &received);
        assert!(root == 0 || which > 1 || status != OK, "root {root} of one rank");
        assert!(
            status != OK
                || !sent.on_device
                || sent.count as usize * sent.element == received.bytes.unwrap_or(0),
            "shares of different sizes"
        );
        Some(())
    }

    fn communicators(&mut self) -> Option<()> {
        match self.byte()? % 8 {
            0 if self.live.len() < 3 => {
                let device = if self.byte()? < 200 { 0 } else { self.hostile()? };
                match create(device) {
                    Ok(made) => self.live.push(made),
                    Err(status) => assert!(!(0..64).contains(&device), "{status}: {}", said()),
                }
            }
            1 => {
                let mut made = usize::MAX;
                // SAFETY: constants, and a place for the handle or null.
                let status = unsafe {
                    if self.byte()? % 2 == 0 {
                        pny_mpi_comm_create(raw::RSMPI_COMM_NULL, 0, &raw mut made)
                    } else {
                        pny_mpi_comm_create(raw::RSMPI_COMM_SELF, 0, null_mut())
                    }
                };
                judge(status);
                assert_eq!((status, made), (INVALID, usize::MAX));
            }
            2..=4 => {
                let (comm, good) = self.comm()?;
                if !self.world.comms.contains(&comm) {
                    // SAFETY: the only thread.
                    let status = unsafe { pny_mpi_comm_destroy(comm) };
                    judge(status);
                    assert!(if good {
                        status == OK
                    } else {
                        status == STALE || comm == 0 && status == INVALID
                    });
                    self.live.retain(|live| *live != comm);
                    self.gone.extend(good.then_some(comm));
                }
            }
            _ => {
                let ((comm, good), capacity) = (self.comm()?, usize::from(self.byte()?));
                let (mut room, mut whole) = ([b'#' as c_char; 257], usize::MAX);
                let to = if self.byte()? < 32 { null_mut() } else { room.as_mut_ptr() };
                // SAFETY: null, or as large as the capacity.
                let status = unsafe { pny_mpi_plan(comm, to, capacity, &raw mut whole) };
                judge(status);
                assert_eq!(status == OK, good && (capacity == 0 || !to.is_null()));
                assert!(room[capacity..].iter().all(|&byte| byte == b'#' as c_char), "past the capacity");
            }
        }
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        match self.byte()? % 8 {
            0 => self.broadcast(),
            1 => self.messages(),
            2 => self.exchange(),
            3 | 4 => self.reduction(),
            5 | 6 => self.shares(),
            _ => self.communicators(),
        }
    }
}

fn run(world: &World, data: &[u8]) {
    let fill = |at: usize| (at * 7 + at / 251) as u8;
    let mut bytes: Vec<u8> = (0..BYTES).map(fill).collect();
    bytes.extend([UNTOUCHED; BEHIND]);
    for block in world.device {
        // SAFETY: a block of as many bytes; a simulated device's memory is the host's.
        unsafe { block.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    let host = [bytes.clone().into_boxed_slice(), bytes.into_boxed_slice()];
    let mut program = Program { input: data.iter(), world, host, live: Vec::new(), gone: Vec::new() };
    for _ in 0..60 {
        if program.step().is_none() {
            break;
        }
    }
    for comm in program.live.drain(..) {
        // SAFETY: the only thread.
        assert_eq!(unsafe { pny_mpi_comm_destroy(comm) }, OK, "{}", said());
    }
    for block in world.device {
        // SAFETY: a block of as many bytes, and nobody is at work.
        let behind = unsafe { std::slice::from_raw_parts(block.add(BYTES), BEHIND) };
        assert!(behind.iter().all(|&byte| byte == UNTOUCHED), "behind what a call was given");
    }
}

fuzz_target!(|data: &[u8]| WORLD.with(|world| run(world.get_or_init(World::new), data)));

//! Blocks that are given up while MPI still sends them: between two ranks, of which the second
//! receives late. `--fences LEVEL`, of MPI_THREAD_`LEVEL`.
#![allow(unsafe_code)]

use crate::bench::text;
use crate::checks::{heard, says};
use crate::interposed::{Fails, asked_elsewhere, fail_next, fail_none, this_thread_asks};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::ffi;
use mpi::point_to_point::{Destination, Source};
use mpi::raw::AsRaw;
use mpi::request::{Request, StaticScope};
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_allocator::device::DevicePool;
use pinyard_allocator::{DriverToken, Poll, Pool};
use pinyard_driver::{Driver, Simulated};
use pinyard_mpi::{HostBuf, RequestFence};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::mem::ManuallyDrop;
use std::thread;
use std::time::{Duration, Instant};

/// All that the pool may have, so that the next block can only be the last one's memory.
const BYTES: usize = 2 << 20;
/// Messages that the second rank receives, each when it is told to.
const MESSAGES: usize = 5;
const GO: i32 = 1;
/// What a pool's own thread would need a hundredth of.
const A_WHILE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(20);

/// How many checks.
pub(crate) fn all(level: &str) -> Result<usize, String> {
    let threading = match level {
        "single" => Threading::Single,
        "funneled" => Threading::Funneled,
        "multiple" => Threading::Multiple,
        _ => return Err(format!("--fences {level}: single, funneled or multiple")),
    };
    this_thread_asks();
    let (universe, provided) =
        mpi::initialize_with_threading(threading).ok_or("MPI is initialised already")?;
    if (provided == Threading::Multiple) != (threading == Threading::Multiple) {
        return Err(format!("asked for {threading:?}, MPI provides {provided:?}"));
    }
    // Finalised at the end alone: where something is wrong the other rank may wait.
    let universe = ManuallyDrop::new(universe);
    let world = universe.world();
    check(world.size(), 2, || "ranks".to_owned())?;
    // Of which nobody receives the message.
    let mut never = None;
    if world.rank() == 0 {
        let sender = Sender { world: &world, any_thread: threading == Threading::Multiple };
        sender.a_block_of_the_hosts()?;
        sender.a_block_of_a_devices()?;
        sender.an_error_that_tells_nothing()?;
        sender.one_that_was_dropped()?;
        sender.a_persistent_one()?;
        never = Some(sender.fence_on_a_receive());
    } else {
        receive_all(&world)?;
    }
    an_operation_that_failed(&world)?;
    check(asked_elsewhere() > 0, threading == Threading::Multiple && world.rank() == 0, || {
        format!("{} of MPI_Test on threads that may not call it", asked_elsewhere())
    })?;
    drop(ManuallyDrop::into_inner(universe));
    if let Some(mut fence) = never {
        let (passed, told) = heard(|| [fence.passed(), fence.passed()]);
        check(passed, [false; 2], || "after MPI_Finalize".to_owned())?;
        says(&told, "ERROR pinyard_mpi", &["MPI was finalised with a request under way"])?;
        let ((), told) = heard(|| drop(fence));
        check(told.as_str(), "", || "what is lost is told once".to_owned())?;
    }
    Ok(MESSAGES)
}

fn check<T: PartialEq + std::fmt::Debug>(
    is: T,
    wanted: T,
    what: impl FnOnce() -> String,
) -> Result<(), String> {
    if is == wanted { Ok(()) } else { Err(format!("{}: {is:?}, not {wanted:?}", what())) }
}

fn until(what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > PATIENCE {
            return Err(format!("not in {PATIENCE:?}: {what}"));
        }
        thread::yield_now();
    }
    Ok(())
}

/// A message of this rank's number of each, when it is told to, with the right bytes.
fn receive_all(world: &SimpleCommunicator) -> Result<(), String> {
    let first = world.process_at_rank(0);
    for _ in 0..MESSAGES {
        let (byte, _) = first.receive_with_tag::<u8>(GO);
        let mut message = vec![0_u8; BYTES];
        first.receive_into(&mut message[..]);
        let wrong = message.iter().find(|&&other| other != byte);
        check(wrong, None, || format!("a byte of the message of {byte}s"))?;
    }
    Ok(())
}

struct Sender<'w> {
    world: &'w SimpleCommunicator,
    any_thread: bool,
}

impl Sender<'_> {
    fn other(&self) -> Process<'_> {
        self.world.process_at_rank(1)
    }

    /// A send that does not end before the other has begun to receive.
    ///
    /// # Safety
    /// The bytes stand, and nobody writes them, until it has ended.
    unsafe fn send(&self, bytes: &[u8]) -> Request<'static, [u8]> {
        // SAFETY: the caller's contract.
        let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
        self.other().immediate_synchronous_send(StaticScope, bytes)
    }

    fn fence(&self, bytes: &[u8]) -> RequestFence {
        // SAFETY: the caller's bytes are given up with the fence; nobody else has the request, and this
        // is the thread that initialised MPI, and finalises it.
        unsafe { RequestFence::new(self.send(bytes)) }
    }

    /// The other rank receives.
    fn go(&self, byte: u8) {
        self.other().send_with_tag(&byte, GO);
    }

    /// Until `left` says that no block waits: by nobody's doing where any thread may ask, else by this
    /// thread's alone.
    fn comes_back(&self, left: impl Fn() -> usize + Sync, ask: impl Fn() + Sync) -> Result<(), String> {
        if self.any_thread {
            return until("the block's return by the pool's thread", || left() == 0);
        }
        thread::sleep(A_WHILE);
        thread::scope(|scope| scope.spawn(&ask).join()).map_err(|_| "a thread that asks panicked")?;
        check(left(), 1, || "a block whose fence another thread has asked".to_owned())?;
        until("the block's return by the thread that made the fence", || {
            ask();
            left() == 0
        })
    }

    fn a_block_of_the_hosts(&self) -> Result<(), String> {
        let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry =
            Registry::builder().backend(backend).events(Events::NotifyOnly).build().map_err(text)?;
        let pool = Pool::host(&registry).slab_bytes(BYTES).limit(BYTES).patience(Duration::ZERO);
        let pool = pool.build().map_err(text)?;
        let mut block = HostBuf::from(pool.alloc::<u8>(BYTES).map_err(text)?);
        block.fill(1);
        let (at, sent) = (block.as_ptr().addr(), self.fence(&block));
        block.defer_until(sent.into());
        for _ in 0..3 {
            thread::sleep(A_WHILE / 3);
            if let Ok(mut early) = pool.alloc::<u8>(BYTES) {
                early.fill(0xee);
                return Err("the block was given out again before the other rank has received it".to_owned());
            }
        }
        check(pool.stats().deferred_blocks, 1, || "blocks that wait".to_owned())?;
        self.go(1);
        let ask = || _ = pool.poll_fences();
        self.comes_back(|| pool.stats().deferred_blocks as usize, ask)?;
        let again = pool.alloc::<u8>(BYTES).map_err(text)?;
        check(again.as_ptr().addr(), at, || "the block's address".to_owned())
    }

    /// As MPI would take it that takes device pointers: simulated memory is the host's.
    fn a_block_of_a_devices(&self) -> Result<(), String> {
        let gpu = Simulated::new(64 << 20).running();
        let pool = DevicePool::builder(gpu.clone()).limit(BYTES).patience(Duration::ZERO);
        let pool = pool.build().map_err(text)?;
        let stream = gpu.stream_create(&DriverToken::at_entry()).map_err(text)?;
        let stream = pool.stream(stream).map_err(text)?;
        let block = stream.alloc(BYTES).map_err(text)?;
        let at = block.ptr();
        // SAFETY: the block's memory, which nothing else uses.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(at.0 as usize), BYTES)
        };
        bytes.fill(2);
        block.defer_until(self.fence(bytes).into());
        for _ in 0..3 {
            thread::sleep(A_WHILE / 3);
            if stream.alloc(BYTES).is_ok() {
                return Err("a device's block was given out before the other rank has received it".to_owned());
            }
        }
        self.go(2);
        self.comes_back(|| usize::from(pool.stats().live_bytes > 0), || drop(stream.alloc(BYTES)))?;
        check(stream.alloc(BYTES).map_err(text)?.ptr(), at, || "the block's address".to_owned())
    }

    /// MPI_Test fails, and does not say that the operation has ended.
    fn an_error_that_tells_nothing(&self) -> Result<(), String> {
        let message = vec![3; BYTES];
        let mut fence = self.fence(&message);
        fail_next(Fails::Test, 0, 2);
        let (passed, told) = heard(|| [fence.passed(), fence.passed(), fence.passed()]);
        check(passed, [false; 3], || "what MPI could not say".to_owned())?;
        check(fail_none(), true, || "both tests have failed".to_owned())?;
        says(&told, "ERROR pinyard_mpi", &["MPI_Test failed", "not used again before that is"])?;
        check(told.lines().count(), 1, || format!("lines told: {told}"))?;
        self.go(3);
        until("a fence that was in doubt", || fence.passed())
    }

    /// The request goes on: it is not freed under way.
    fn one_that_was_dropped(&self) -> Result<(), String> {
        let message = vec![4; BYTES];
        // SAFETY: waited for below.
        let request = unsafe { self.send(&message) };
        let mut raw = request.as_raw();
        // SAFETY: MPI is not asked meanwhile but by the drop.
        let fence = unsafe { RequestFence::new(request) };
        let ((), told) = heard(|| drop(fence));
        says(&told, "WARN pinyard_mpi", &["dropped before it had passed"])?;
        self.go(4);
        // SAFETY: still active, and nobody else's any more.
        check(unsafe { ffi::MPI_Wait(&mut raw, ffi::RSMPI_STATUS_IGNORE) }, 0, || "MPI_Wait".to_owned())
    }

    fn a_persistent_one(&self) -> Result<(), String> {
        let message = vec![5_u8; BYTES];
        // SAFETY: constants; the message stands until the fence has passed.
        let mut fence = unsafe {
            let (mut raw, kind) = (ffi::RSMPI_REQUEST_NULL, ffi::RSMPI_UINT8_T);
            let (at, count) = (message.as_ptr().cast(), BYTES as i32);
            ffi::MPI_Ssend_init(at, count, kind, 1, 0, self.world.as_raw(), &mut raw);
            ffi::MPI_Start(&mut raw);
            RequestFence::from_raw(raw)
        };
        check(fence.passed(), false, || "a persistent send that is under way".to_owned())?;
        self.go(5);
        until("a persistent send's fence", || fence.passed())?;
        // SAFETY: a constant.
        let mut null = unsafe { RequestFence::from_raw(ffi::RSMPI_REQUEST_NULL) };
        check(null.passed(), true, || "the null request".to_owned())
    }

    /// Of a message that nobody sends.
    fn fence_on_a_receive(&self) -> RequestFence {
        // Written, if ever, after everything here.
        let into: &'static mut [u8] = Box::leak(vec![0; 64].into_boxed_slice());
        let request = self.other().immediate_receive_into(StaticScope, into);
        // SAFETY: as in `fence`; the bytes stay for good.
        unsafe { RequestFence::new(request) }
    }
}

/// MPI_Test says that the operation has ended, with an error.
fn an_operation_that_failed(world: &SimpleCommunicator) -> Result<(), String> {
    let (mine, all): (&'static [u64], &'static mut [u64]) = (&[1, 2], Box::leak(Box::new([0; 2])));
    fail_next(Fails::Late, 2, 1);
    let request = world.immediate_all_reduce_into(StaticScope, mine, all, SystemOperation::sum());
    // SAFETY: both stand for good; this thread alone asks.
    let mut fence = unsafe { RequestFence::new(request) };
    let (done, told) = heard(|| until("an operation that fails", || fence.passed()));
    done?;
    check(fail_none(), true, || "it has failed".to_owned())?;
    says(&told, "WARN pinyard_mpi", &["an operation that a block was given up with has failed"])
}

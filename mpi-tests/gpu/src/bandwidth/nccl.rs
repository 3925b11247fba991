//! NCCL, where it is installed: opened at run time, five functions of its C interface
//! (nccl.h of NCCL 2.28).
#![allow(unsafe_code)]

use libloading::Library;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, Stream};
use pinyard_mpi::Gpu;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

const FLOAT32: c_int = 7;
const SUM: c_int = 0;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; 128]);

type Comm = *mut c_void;
type InitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
type Broadcast =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;

/// Whether any two ranks of a node have the same device; the same answer at all.
fn share_a_device(device: i32, world: &impl Communicator) -> bool {
    let node = world.split_shared(world.rank());
    let mut devices = vec![0; node.size() as usize];
    node.all_gather_into(&device, &mut devices[..]);
    let shares = u8::from(devices.iter().filter(|&&of| of == device).count() > 1);
    let mut any = 0;
    world.all_reduce_into(&shares, &mut any, SystemOperation::max());
    any > 0
}

/// A communicator of NCCL's over all ranks, with a stream.
pub(crate) struct Nccl {
    library: Library,
    comm: Comm,
    gpu: Gpu,
    stream: Stream,
    broadcast: Broadcast,
    all_reduce: AllReduce,
}

impl Nccl {
    /// None where there is no NCCL, or two ranks have one device. Collective; the ranks of
    /// one machine all have it or none.
    pub(crate) fn open(gpu: &Gpu, world: &impl Communicator) -> Result<Option<Nccl>, Box<dyn Error>> {
        // SAFETY: NCCL's constructors set up its own state.
        let Ok(library) = (unsafe { Library::new("libnccl.so.2") }) else { return Ok(None) };
        if share_a_device(gpu.device().ordinal, world) {
            static ONCE: Once = Once::new();
            if world.rank() == 0 {
                ONCE.call_once(|| eprintln!("NCCL is left out: it takes no two ranks of one device"));
            }
            return Ok(None);
        }
        stay_on(gpu.device().ordinal)?;
        let token = DriverToken::at_entry();
        let stream = gpu.driver().stream_create(&token)?;
        // SAFETY: the signatures are those of nccl.h.
        unsafe {
            let unique = *library.get::<unsafe extern "C" fn(*mut UniqueId) -> c_int>(b"ncclGetUniqueId")?;
            let init = *library.get::<InitRank>(b"ncclCommInitRank")?;
            let broadcast = *library.get::<Broadcast>(b"ncclBroadcast")?;
            let all_reduce = *library.get::<AllReduce>(b"ncclAllReduce")?;
            let mut nccl =
                Nccl { library, comm: ptr::null_mut(), gpu: gpu.clone(), stream, broadcast, all_reduce };
            let mut id = UniqueId([0; 128]);
            if world.rank() == 0 {
                nccl.check("ncclGetUniqueId", unique(&mut id))?;
            }
            world.process_at_rank(0).broadcast_into(&mut id.0);
            let made = init(&mut nccl.comm, world.size(), id, world.rank());
            nccl.check("ncclCommInitRank", made)?;
            Ok(Some(nccl))
        }
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), Box<dyn Error>> {
        if code == 0 {
            return Ok(());
        }
        type Words = unsafe extern "C" fn(c_int) -> *const c_char;
        // SAFETY: as nccl.h has it; a constant text.
        let words = unsafe { CStr::from_ptr(self.library.get::<Words>(b"ncclGetErrorString")?(code)) };
        Err(format!("{call} failed: {} (code {code})", words.to_string_lossy()).into())
    }

    fn wait(&self) -> Result<(), Box<dyn Error>> {
        Ok(self.gpu.driver().stream_synchronize(self.stream, &DriverToken::at_entry())?)
    }

    /// `elements` of `f32` from rank 0 to all, in place; done when it returns.
    pub(crate) fn broadcast(&self, at: DevicePtr, elements: usize) -> Result<(), Box<dyn Error>> {
        let (at, stream) = (at.0 as *mut c_void, self.stream.raw() as *mut c_void);
        // SAFETY: a settled buffer of these elements; waited for here.
        let code = unsafe { (self.broadcast)(at, at, elements, FLOAT32, 0, self.comm, stream) };
        self.check("ncclBroadcast", code)?;
        self.wait()
    }

    /// The sum of all ranks' `elements` of `f32`; done when it returns.
    pub(crate) fn all_reduce(
        &self,
        from: DevicePtr,
        to: DevicePtr,
        elements: usize,
    ) -> Result<(), Box<dyn Error>> {
        let (from, to) = (from.0 as *const c_void, to.0 as *mut c_void);
        let stream = self.stream.raw() as *mut c_void;
        // SAFETY: two settled buffers of these elements; waited for here.
        let code = unsafe { (self.all_reduce)(from, to, elements, FLOAT32, SUM, self.comm, stream) };
        self.check("ncclAllReduce", code)?;
        self.wait()
    }
}

/// NCCL takes the device of the thread's current context, which our calls leave as they
/// find it: with none, all ranks would take the first device.
fn stay_on(ordinal: i32) -> Result<(), Box<dyn Error>> {
    // SAFETY: the driver is loaded already.
    let driver = unsafe { Library::new("libcuda.so.1") }?;
    let mut context = ptr::null_mut();
    // SAFETY: the signatures are those of cuda.h; the primary context stands until the
    // process ends, as it is never released here.
    let codes = unsafe {
        let retain =
            *driver.get::<unsafe extern "C" fn(*mut Comm, c_int) -> c_int>(b"cuDevicePrimaryCtxRetain")?;
        let set = *driver.get::<unsafe extern "C" fn(Comm) -> c_int>(b"cuCtxSetCurrent")?;
        (retain(&mut context, ordinal), set(context))
    };
    if codes == (0, 0) {
        return Ok(());
    }
    Err(format!("cuDevicePrimaryCtxRetain({ordinal}) and cuCtxSetCurrent failed: codes {codes:?}").into())
}

impl Drop for Nccl {
    fn drop(&mut self) {
        type Destroy = unsafe extern "C" fn(Comm) -> c_int;
        // SAFETY: as nccl.h has it.
        let destroy = unsafe { self.library.get::<Destroy>(b"ncclCommDestroy") };
        if let Ok(destroy) = destroy {
            // SAFETY: ours, destroyed once.
            unsafe { destroy(self.comm) };
        }
    }
}

//! Buffers between cudarc and MPI, on real devices: filled by its copies, its kernels and its
//! cuBLAS on several streams, moved by ours, read by its copies again. Ends with 77 and the
//! reason where there is no device; without libcublas it says so, and leaves that out. With
//! `--reset`, what becomes of all ranks when one's device is reset, in place of that; with
//! `--reset again`, when somebody else uses it at once.
#![allow(unsafe_code)] // launches kernels

mod lost;

use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys as cublas};
use cudarc::driver::{CudaContext, CudaModule, CudaStream, DeviceSlice, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use pinyard_allocator::Pool;
use pinyard_driver::Cuda;
use pinyard_mpi::{BufferError, CudaBuf, DeviceCommunicator, Gpu, HostBuf, Lend, LendMut, Reduction, scope};
use pinyard_registry::backend::{Custom, MemoryKey};
use pinyard_registry::{Events, Registry};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

/// What a test ends with that could not be run.
const SKIPPED: u8 = 77;

/// `twice(to, from, elements)`: to[i] = 2 from[i].
const TWICE: &str = "\
.version 6.0
.target sm_70
.address_size 64
.visible .entry twice(.param .u64 to, .param .u64 from, .param .u64 elements)
{
  .reg .pred %done;
  .reg .b32 %block, %threads, %thread;
  .reg .b64 %to, %from, %elements, %at, %offset;
  .reg .f32 %value;
  ld.param.u64 %to, [to];
  ld.param.u64 %from, [from];
  ld.param.u64 %elements, [elements];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  cvt.u64.u32 %at, %thread;
  mad.wide.u32 %at, %block, %threads, %at;
  setp.ge.u64 %done, %at, %elements;
  @%done bra end;
  shl.b64 %offset, %at, 2;
  add.u64 %to, %to, %offset;
  add.u64 %from, %from, %offset;
  ld.global.f32 %value, [%from];
  add.rn.f32 %value, %value, %value;
  st.global.f32 [%to], %value;
end:
  ret;
}
";

/// Lengths around what one message carries and what a chunk does.
const LENGTHS: [usize; 5] = [1, 487, 100_003, 1 << 20, 5_000_011];

type Outcome = Result<(), Box<dyn Error>>;

struct Bench {
    ranks: DeviceCommunicator,
    gpu: Gpu,
    stream: Arc<CudaStream>,
    other: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

fn main() -> ExitCode {
    let devices = match Cuda::count() {
        Ok(count) if count > 0 => count,
        Ok(_) => return skipped("the driver has no device"),
        Err(absent) => return skipped(&absent.to_string()),
    };
    let Some(universe) = mpi::initialize() else {
        eprintln!("MPI_Init: MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let loses = arguments.first().is_some_and(|argument| argument == "--reset");
    let again = arguments.get(1).is_some_and(|argument| argument == "again");
    let result = if loses { a_reset(&world, devices, again) } else { checks(&world, devices) };
    if let Err(error) = result {
        eprintln!("rank {}: {error}", world.rank());
        // Before the drop of what is collective, which would wait for the others.
        world.abort(1);
    }
    if world.rank() == 0 && !loses {
        let with = if has_cublas() { "with cuBLAS" } else { "without cuBLAS: there is no libcublas" };
        println!("gpu-cudarc: {} lengths by {} ranks are right, {with}", LENGTHS.len(), world.size());
    }
    ExitCode::SUCCESS
}

fn skipped(reason: &str) -> ExitCode {
    println!("skipped: {reason}");
    ExitCode::from(SKIPPED)
}

fn has_cublas() -> bool {
    // SAFETY: opens the library, whose initialisers are NVIDIA's, or fails.
    unsafe { cublas::is_culib_present() }
}

fn checks(world: &SimpleCommunicator, devices: i32) -> Outcome {
    let ordinal = world.split_shared(world.rank()).rank() % devices;
    let gpu = Gpu::open(ordinal)?;
    let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
    let context = CudaContext::new(ordinal as usize)?;
    let (stream, other) = (context.new_stream()?, context.new_stream()?);
    let module = context.load_module(Ptx::from_src(TWICE))?;
    let bench = Bench { ranks, gpu, stream, other, module };
    bench.refusals(&context, devices)?;
    if has_cublas() {
        for side in [1, 33, 512] {
            bench.a_product_of_cublas(side)?;
        }
    }
    for length in LENGTHS {
        bench.kernel_then_broadcast(length)?;
        bench.two_streams(length)?;
        bench.slices_of_cudarc(length)?;
        bench.host_memory(length)?;
        bench.begun_after_another_stream(length)?;
    }
    Ok(())
}

/// The last rank's device is reset, and with `again` used anew by somebody else at once, whose
/// memory nobody writes to or frees.
fn a_reset(world: &SimpleCommunicator, devices: i32, again: bool) -> Outcome {
    let ordinal = world.split_shared(world.rank()).rank() % devices;
    let theirs = lost::all(world, Gpu::open(ordinal)?, || {
        // SAFETY: frees streams, events and memory that pinyard still has, none of which reaches
        // the driver again: that is what is asked here.
        unsafe { sys::cuDevicePrimaryCtxReset_v2(ordinal) }.result()?;
        let anew = || CudaContext::new(ordinal as usize)?.new_stream()?.clone_htod(&pattern(LENGTHS[2], 1));
        Ok(again.then(anew).transpose()?)
    })?;
    match theirs.flatten() {
        Some(theirs) => same(&theirs.stream().clone_dtoh(&theirs)?, &pattern(LENGTHS[2], 1), "another's"),
        None => Ok(()),
    }
}

fn pattern(length: usize, seed: usize) -> Vec<f32> {
    (0..length).map(|at| ((at * 31 + seed * 977) % 4093) as f32).collect()
}

fn same(found: &[f32], expected: &[f32], what: &str) -> Outcome {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None if found.len() == expected.len() => Ok(()),
        None => Err(format!("{what}: {} elements, not {}", found.len(), expected.len()).into()),
        Some(at) => Err(format!("{what}: element {at} is {}, not {}", found[at], expected[at]).into()),
    }
}

impl Bench {
    fn filled(&self, elements: &[f32]) -> Result<CudaBuf<f32>, Box<dyn Error>> {
        let mut buffer = self.gpu.alloc_cuda::<f32>(elements.len(), &self.stream)?;
        self.stream.memcpy_htod(elements, &mut buffer)?;
        Ok(buffer)
    }

    /// A kernel writes what is broadcast; nobody waits but `settle_mut`.
    fn kernel_then_broadcast(&self, length: usize) -> Outcome {
        let rank = self.ranks.rank() as usize;
        let from = self.filled(&pattern(length, rank))?;
        let mut to = self.gpu.alloc_cuda::<f32>(length, &self.stream)?;
        let (twice, elements) = (self.module.load_function("twice")?, length as u64);
        let mut launch = self.stream.launch_builder(&twice);
        launch.arg(&mut to).arg(&from).arg(&elements);
        // SAFETY: the kernel's arguments, on the stream of both buffers.
        unsafe { launch.launch(LaunchConfig::for_num_elems(length as u32)) }?;
        self.ranks.broadcast_into(0, &mut to.settle_mut()?)?;
        let expected: Vec<f32> = pattern(length, 0).iter().map(|element| 2.0 * element).collect();
        same(&self.stream.clone_dtoh(&to)?, &expected, "a kernel's result, broadcast")?;
        same(&self.stream.clone_dtoh(&from)?, &pattern(length, rank), "what the kernel read")
    }

    /// cuBLAS on another stream multiplies what was broadcast with what each rank has, into a
    /// buffer that is summed over all.
    fn a_product_of_cublas(&self, side: usize) -> Outcome {
        // Whole numbers so small that sums of products are exact.
        let matrix = |seed: usize| -> Vec<f32> {
            (0..side * side).map(|at| ((at * 31 + at / side + seed * 5) % 7) as f32).collect()
        };
        let (rank, size) = (self.ranks.rank() as usize, self.ranks.size() as usize);
        let mut shared = self.filled(&matrix(rank))?;
        self.ranks.broadcast_into(0, &mut shared.settle_mut()?)?;
        let mine = self.filled(&matrix(rank))?;
        let mut product = self.gpu.alloc_cuda::<f32>(side * side, &self.stream)?;
        let (blas, n) = (CudaBlas::new(self.other.clone())?, side as i32);
        let (transa, transb) =
            (cublas::cublasOperation_t::CUBLAS_OP_N, cublas::cublasOperation_t::CUBLAS_OP_N);
        let whole =
            GemmConfig { transa, transb, m: n, n, k: n, alpha: 1.0, lda: n, ldb: n, beta: 0.0, ldc: n };
        // SAFETY: square matrices of these sides, which the buffers have.
        unsafe { blas.gemm(whole, &shared, &mine, &mut product) }?;
        self.ranks.all_reduce_in_place(&mut product.settle_mut()?, Reduction::Sum)?;
        // By columns, as cuBLAS has them.
        let mut expected = vec![0.0; side * side];
        let a = matrix(0);
        for b in (0..size).map(matrix) {
            for (column, sums) in expected.chunks_exact_mut(side).enumerate() {
                for (inner, factor) in b[column * side..][..side].iter().enumerate() {
                    sums.iter_mut().zip(&a[inner * side..][..side]).for_each(|(sum, a)| *sum += a * factor);
                }
            }
        }
        same(&self.stream.clone_dtoh(&product)?, &expected, "a product of cuBLAS's, summed")
    }

    /// Another stream than the buffer's writes a part of it and reads the sum.
    fn two_streams(&self, length: usize) -> Outcome {
        let (rank, size) = (self.ranks.rank() as usize, self.ranks.size() as usize);
        let (mut buffer, middle) = (self.filled(&pattern(length, rank))?, length / 2);
        self.other.memset_zeros(&mut buffer.slice_mut(..middle))?;
        self.ranks.all_reduce_in_place(&mut buffer.settle_mut()?, Reduction::Sum)?;
        let mut expected = vec![0.0; length];
        for rank in 0..size {
            for (sum, element) in expected.iter_mut().zip(pattern(length, rank)).skip(middle) {
                *sum += element;
            }
        }
        same(&self.other.clone_dtoh(&buffer)?, &expected, "a sum, read by another stream")?;
        let mut copy = self.gpu.alloc_cuda::<f32>(length - middle, &self.stream)?;
        self.other.memcpy_dtod(&buffer.slice(middle..), &mut copy)?;
        same(&copy.to_vec()?, &expected[middle..], "a part that another stream copied")
    }

    /// Pinned and registered memory in cudarc's copies, while a kernel still writes what is
    /// copied, and changed as soon as the call has returned.
    fn host_memory(&self, length: usize) -> Outcome {
        let rank = self.ranks.rank() as usize;
        let mut pinned = self.gpu.alloc_pinned::<f32>(length)?;
        let nobody = Custom::new("nobody", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder().backend(nobody).events(Events::NotifyOnly).build()?;
        let pool = Pool::host(&registry).build()?;
        let mut host = HostBuf::from(pool.alloc::<f32>(length)?);
        let mut device = self.gpu.alloc_cuda::<f32>(length, &self.stream)?;
        for seed in 0..4 {
            pinned.settle_mut()?.copy_from_slice(&pattern(length, rank + seed));
            self.other.memcpy_htod(&pinned, &mut device)?;
            pinned.settle_mut()?.fill(-1.0);
            self.other.memcpy_dtoh(&device, &mut host)?;
            same(&host, &pattern(length, rank + seed), "host memory that was copied to")?;
            self.stream.memcpy_htod(&host, &mut device)?;
            host.fill(-1.0);
            // Queued on the buffer's stream, and waited for before cudarc's copy begins.
            pinned.copy_from(&device)?;
            let mut back = self.gpu.alloc_cuda::<f32>(length, &self.other)?;
            self.other.memcpy_htod(&pinned, &mut back)?;
            same(&back.to_vec()?, &pattern(length, rank + seed), "what was still being copied")?;
            self.other.memcpy_dtoh(&back, &mut pinned)?;
            same(&pinned.settle()?, &pattern(length, rank + seed), "pinned memory that was copied to")?;
        }
        Ok(())
    }

    /// An operation that begins when another stream of cudarc's has done what it was given, and
    /// one that has the buffer.
    fn begun_after_another_stream(&self, length: usize) -> Outcome {
        let rank = self.ranks.rank() as usize;
        let from = self.filled(&pattern(length, rank))?;
        let mut to = self.gpu.alloc_cuda::<f32>(length, &self.stream)?;
        self.other.memcpy_dtod(&from, &mut to)?;
        scope(|scope| -> Outcome {
            let lent = to.after_mut(&self.other)?;
            Ok(self.ranks.immediate_broadcast_into(scope, 0, lent)?.wait()?)
        })?;
        same(&self.stream.clone_dtoh(&to)?, &pattern(length, 0), "a broadcast after another stream")?;
        let (summed, result) = self.ranks.immediate_all_reduce(to, Reduction::Max)?.wait();
        result?;
        same(&self.other.clone_dtoh(&summed)?, &pattern(length, 0), "a maximum of equals")
    }

    /// Memory that cudarc allocated.
    fn slices_of_cudarc(&self, length: usize) -> Outcome {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        let mine = self.stream.clone_htod(&pattern(length, rank as usize))?;
        let mut theirs = self.other.alloc_zeros::<f32>(length)?;
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        self.ranks.exchange(to, &mine.lend(&self.gpu)?, from, &mut theirs.lend_mut(&self.gpu)?, 3)?;
        let came: Vec<f32> = self.other.clone_dtoh(&theirs)?;
        same(&came, &pattern(length, from as usize), "a slice of cudarc's")?;
        let mut view = theirs.slice_mut(..length.div_ceil(2));
        self.ranks.broadcast_into(0, &mut view.lend_mut(&self.gpu)?)?;
        let part: Vec<f32> = self.other.clone_dtoh(&theirs.slice(..length.div_ceil(2)))?;
        let last = (size as usize - 1) % size as usize;
        same(&part, &pattern(length, last)[..length.div_ceil(2)], "a view of cudarc's")
    }

    fn refusals(&self, context: &Arc<CudaContext>, devices: i32) -> Outcome {
        let refused = |stream: &Arc<CudaStream>| {
            matches!(self.gpu.alloc_cuda::<f32>(8, stream), Err(BufferError::Stream { .. }))
        };
        if !refused(&context.per_thread_stream()) {
            return Err("the per-thread default stream was not refused".into());
        }
        if devices > 1 {
            let far = CudaContext::new((self.gpu.device().ordinal as usize + 1) % devices as usize)?;
            if !refused(&far.default_stream()) {
                return Err("a stream of another device was not refused".into());
            }
        }
        let buffer = self.gpu.alloc_cuda::<f32>(8, &context.default_stream())?;
        if DeviceSlice::len(&buffer) != 8 || buffer.slice(3..).len() != 5 {
            return Err("lengths of a buffer on the default stream".into());
        }
        Ok(())
    }
}

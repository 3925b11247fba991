//! A communicator for device buffers: its ranks, their nodes, and its plan.

use crate::awareness::{Awareness, CudaAware};
use crate::buffers::{Gpu, Kernels};
use crate::calls::{Answer, Comm, OwnOperations};
use crate::ending::{self, Ending};
use crate::error::{BufferError, CommunicatorError, MpiError};
use crate::immediate::{Desk, Engine};
use crate::nodes::{self, Column, Nodes};
use crate::paths::{Board, Chunks, Imports, MESSAGE, Path, Plan, Ring, Shape, Shared};
use crate::probe;
use crate::report::Report;
use crate::settings::Settings;
use crate::variables;
use mpi::topology::{Communicator, Rank};
use pinyard_allocator::DriverToken;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

/// Collectives and messages of device buffers among the ranks of an rsmpi communicator.
///
/// Made and dropped by all ranks together, as MPI's own communicators are, and before
/// `MPI_Finalize`. On `ipc` and `ipc+staged` the drop waits until all ranks have dropped theirs; after
/// a second it says which ranks it waits for. On `ipc` collectives of the other ranks end meanwhile with
/// [`Error::Calls`](crate::Error::Calls). A rank that gives up alone calls `MPI_Abort` instead, as
/// [`run`](crate::run()) does. A rank that panics does not wait. Every operation is blocking: when
/// it returns, the device has what was received. Not shared between threads.
pub struct DeviceCommunicator {
    pub(crate) whole: Rc<Comm>,
    /// For answers, so that none is taken for a message.
    answers: Rc<Comm>,
    pub(crate) nodes: Nodes,
    /// On `ipc+staged`: the ranks of other nodes that reduce the same part.
    pub(crate) column: Option<Column>,
    pub(crate) report: Report,
    pub(crate) gpu: Gpu,
    pub(crate) plan: Plan,
    pub(crate) state: RefCell<State>,
    /// Where all ranks are on one node and share memory.
    pub(crate) board: Option<RefCell<Board>>,
    /// What operations that do not block have of it, and those.
    pub(crate) desk: Rc<Desk>,
    pub(crate) engine: Rc<Engine>,
    /// Windows with epochs so far.
    pub(crate) windows: Cell<u16>,
    /// Some MPIs' handles may be sent to another thread, some may not.
    stays: PhantomData<*const ()>,
}

/// What an operation uses alone.
pub(crate) struct State {
    pub(crate) ring: Ring,
    /// Slots of a message: 0 is sent from, 1 received into.
    pub(crate) messages: Ring,
    /// Those that a broadcast goes through. None where all goes directly.
    pub(crate) chunks: Option<Chunks>,
    pub(crate) imports: Rc<Imports>,
    /// Of reductions, once the ranks have agreed: none where a rank has none.
    pub(crate) kernels: Option<Option<Arc<Kernels>>>,
    /// Chains so far, the same at all ranks of the node.
    pub(crate) chains: u32,
}

/// See [`DeviceCommunicator::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    gpu: Gpu,
    settings: Settings,
}

impl Builder {
    /// The path, in place of the best one. All ranks ask for the same.
    pub fn path(mut self, path: Path) -> Builder {
        self.settings.path = Some(path);
        self
    }

    /// Bytes of a pinned chunk, 4 KiB to 1 GiB; the least of all ranks' counts. Default
    /// 1 MiB. Shorter transfers are cut into shorter chunks.
    pub fn chunk_bytes(mut self, bytes: usize) -> Builder {
        self.settings.chunk_bytes = Settings::bounded_chunk(bytes);
        self
    }

    /// Chunks of the ring, 2 to 64; the least of all ranks' counts. Default 4.
    pub fn chunks(mut self, count: usize) -> Builder {
        self.settings.chunks = count.clamp(2, 64);
        self
    }

    /// Whether MPI takes device pointers, in place of what the library says.
    pub fn cuda_aware(mut self, proof: Option<CudaAware>) -> Builder {
        self.settings.set_cuda_aware(proof);
        self
    }

    /// Whether Bcast, and collectives of parts of other lengths, are compared between ranks before
    /// anything moves: for finding out why ranks hang. Each then costs one more small reduction to
    /// all; of the other collectives it is known in any case. On at all ranks if it is at one.
    pub fn checks(mut self, checks: bool) -> Builder {
        self.settings.checks = checks;
        self
    }

    /// Makes the communicator, with one of its own over the ranks of `ranks`. Collective:
    /// all ranks call it, and all succeed or none.
    ///
    /// `PINYARD_MPI_PATH` (auto, direct, ipc, staged, ipc+staged), `PINYARD_MPI_CHUNK_BYTES`,
    /// `PINYARD_MPI_CHUNKS`, `PINYARD_MPI_CHECKS` (0, 1), `PINYARD_CUDA_AWARE` (0, 1) and
    /// `PINYARD_MPI_RANKS_PER_NODE` (ranks that count as a node, for trying out) go before what the program says.
    pub fn build(self, ranks: &impl Communicator) -> Result<DeviceCommunicator, CommunicatorError> {
        if !mpi::is_initialized() || mpi::is_finalized() {
            return Err(CommunicatorError::NoMpi);
        }
        ending::tell_held();
        let rank = ranks.rank();
        let failed = |source: MpiError| CommunicatorError::Mpi { rank, source };
        let whole = Rc::new(Comm::of(ranks).map_err(failed)?);
        let answers = Rc::new(whole.again().map_err(failed)?);
        let token = DriverToken::at_entry();
        let prepared = self
            .settings
            .with_environment(rank, variables::text)
            .and_then(|settings| Ok((settings, State::new(&self.gpu, rank, &token)?)))
            .and_then(|prepared| Ok((prepared, OwnOperations::make().map_err(failed)?)));
        agree(&whole, prepared.as_ref().err(), failed)?;
        let (((mut settings, awareness), mut state), operations) = prepared?;
        settings.agree(&whole).map_err(failed)?;
        let spot = nodes::spot(self.gpu.device());
        let nodes = Nodes::find(&whole, settings.ranks_per_node, spot).map_err(failed)?;
        let aware = whole.largest([u64::from(!awareness.aware)]).map_err(failed)? == [0];
        let (path, reason) = choose(&self.gpu, &settings, aware, &whole, &nodes, &mut state, &token)
            .map_err(failed)?
            .map_err(|(path, reason)| CommunicatorError::Path { rank, path: path.name(), reason })?;
        // The chunks of a path that has none are not wanted.
        let wanted = if path == Path::Direct { 0 } else { settings.chunk_bytes };
        let ring = Ring::new(&self.gpu, settings.chunks, wanted.max(MESSAGE), &token);
        let ring = ring.map_err(|source| CommunicatorError::Staging { rank, source });
        agree(&whole, ring.as_ref().err(), failed)?;
        state.ring = ring?;
        // Of their own for what does not block: blocking collectives overtake those.
        let later = whole.again().map_err(failed)?;
        let later_nodes = Nodes::find(&later, settings.ranks_per_node, spot).map_err(failed)?;
        let (mut later_chunks, mut board) = (None, None);
        if path != Path::Direct && whole.size() > 1 {
            let share = |ranks: &Comm, nodes: &Nodes| {
                let slots = settings.chunks;
                let shape =
                    Shape { ranks: nodes.here.size() as usize, slots, slot_bytes: settings.chunk_bytes };
                let shared = share(&self.gpu, ranks, nodes, shape, &token).map_err(failed)?;
                let chunks = shared.map_err(|reason| CommunicatorError::Chunks { rank, reason });
                agree(ranks, chunks.as_ref().err(), failed)?;
                chunks
            };
            let (chunks, memory) = share(&whole, &nodes)?;
            state.chunks = Some(chunks);
            board = memory
                .filter(|_| path == Path::Ipc)
                .map(|memory| RefCell::new(Board::new(memory, nodes.here.rank() as usize)));
            later_chunks = Some(share(&later, &later_nodes)?.0);
        }
        let column = |ranks: &Comm, nodes: &Nodes| match path {
            Path::IpcAndStaged => Column::find(ranks, nodes).map_err(failed),
            _ => Ok(None),
        };
        // Both before either's failure: the others are in both.
        let (column, later_column) = (column(&whole, &nodes), column(&later, &later_nodes));
        let (column, later_column) = (column?, later_column?);
        let plan = Plan {
            path,
            reason,
            ranks: whole.size(),
            nodes: nodes.count(),
            awareness,
            chunk_bytes: settings.chunk_bytes,
            chunks: settings.chunks,
            chunks_are_shared: state.chunks.as_ref().is_some_and(Chunks::are_shared),
            checks: settings.checks,
        };
        let (both, later) = ((&whole, &answers), (later, later_nodes, later_column));
        let desk = Desk::new(&self.gpu, &plan, both, later, later_chunks, &state.imports, operations);
        tracing::info!(rank, %plan, "communicator for device buffers");
        let (desk, engine, state) = (Rc::new(desk), Engine::new(rank), RefCell::new(state));
        Ok(DeviceCommunicator {
            whole,
            answers,
            nodes,
            column,
            report: Report::of(rank),
            gpu: self.gpu,
            plan,
            state,
            board,
            desk,
            engine,
            windows: Cell::new(0),
            stays: PhantomData,
        })
    }
}

/// Chunks, and the memory that they share with those of the node's other ranks.
type Staging = (Chunks, Option<Arc<Shared>>);

/// Chunks that the ranks of each node share, with the memory that they lie in; or where a
/// rank cannot have them, each rank's own. `Err` says why this rank has neither.
fn share(
    gpu: &Gpu,
    whole: &Comm,
    nodes: &Nodes,
    shape: Shape,
    token: &DriverToken,
) -> Answer<Result<Staging, String>> {
    let place = nodes.here.rank() as usize;
    let shared = Shared::share(&nodes.here, shape)?
        .and_then(|memory| Ok((Chunks::pin(gpu, memory.clone(), Some(place), token)?, Some(memory))));
    let [worst] = whole.largest([shared.as_ref().map_or(1, |_| 0)])?;
    if worst == 0 {
        return Ok(shared);
    }
    if let Err(reason) = shared {
        tracing::warn!(rank = whole.rank(), reason, "chunks are not shared within nodes");
    }
    let own = Shared::alone(shape).and_then(|memory| Chunks::pin(gpu, memory, None, token));
    Ok(own.map(|chunks| (chunks, None)))
}

/// All go on, or none does.
fn agree(
    whole: &Comm,
    mine: Option<&CommunicatorError>,
    failed: impl Fn(MpiError) -> CommunicatorError,
) -> Result<(), CommunicatorError> {
    let number = mine.map_or(0, |_| whole.rank() as u64 + 1);
    let [worst] = whole.largest([number]).map_err(failed)?;
    if worst == 0 || mine.is_some() {
        return Ok(());
    }
    Err(CommunicatorError::Peer { rank: worst as Rank - 1 })
}

impl Settings {
    /// What must be the same at every rank.
    fn agree(&mut self, whole: &Comm) -> Answer<()> {
        const PATHS: [Option<Path>; 5] =
            [None, Some(Path::Staged), Some(Path::Ipc), Some(Path::IpcAndStaged), Some(Path::Direct)];
        let path = PATHS.iter().position(|&path| path == self.path).unwrap_or(0) as u64;
        let per_node = self.ranks_per_node.unwrap_or(0) as u64;
        let checks = u64::from(self.checks);
        let mine = [!(self.chunk_bytes as u64), !(self.chunks as u64), path, per_node, checks];
        let [chunk_bytes, chunks, path, per_node, checks] = whole.largest(mine)?;
        self.checks = checks > 0;
        self.chunk_bytes = !chunk_bytes as usize;
        self.chunks = !chunks as usize;
        self.path = PATHS[path as usize];
        self.ranks_per_node = (per_node > 0).then_some(per_node as i32);
        Ok(())
    }
}

impl State {
    /// With a ring of chunks that is too short for anything yet.
    fn new(gpu: &Gpu, rank: Rank, token: &DriverToken) -> Result<State, CommunicatorError> {
        let ring = || -> Result<Ring, BufferError> { Ring::new(gpu, 2, MESSAGE, token) };
        let staging = |source| CommunicatorError::Staging { rank, source };
        Ok(State {
            ring: ring().map_err(staging)?,
            messages: ring().map_err(staging)?,
            chunks: None,
            imports: Rc::new(Imports::new(gpu, rank)),
            kernels: None,
            chains: 0,
        })
    }
}

type Choice = Result<(Path, String), (Path, String)>;

/// The path with its reason, or why the one that was asked for is none. The same at
/// every rank.
fn choose(
    gpu: &Gpu,
    settings: &Settings,
    aware: bool,
    whole: &Comm,
    nodes: &Nodes,
    state: &mut State,
    token: &DriverToken,
) -> Answer<Choice> {
    let asked = settings.path;
    let because = |path, reason: &str| Ok(Ok((path, reason.to_owned())));
    match asked {
        Some(Path::Direct) if aware => return because(Path::Direct, "asked for"),
        Some(Path::Direct) => {
            let reason = "the MPI of a rank does not take device pointers".to_owned();
            return Ok(Err((Path::Direct, reason)));
        }
        Some(Path::Staged) => return because(Path::Staged, "asked for"),
        None if whole.size() == 1 => return because(Path::Staged, "there is one rank"),
        // On one node our own copies are as fast, and reductions go from device to device.
        None if aware && nodes.count() > 1 => {
            return because(Path::Direct, "every rank's MPI takes device pointers");
        }
        None if nodes.are_single() => return because(Path::Staged, "every rank is on a node of its own"),
        Some(Path::Ipc) if nodes.count() > 1 => {
            return Ok(Err((Path::Ipc, format!("the ranks are on {} nodes", nodes.count()))));
        }
        Some(Path::Ipc | Path::IpcAndStaged) | None => {}
    }
    let opened = probe::ipc(gpu, whole, nodes, state, token)?;
    Ok(match (opened, asked) {
        (Ok(()), Some(path)) => Ok((path, "asked for".to_owned())),
        (Ok(()), None) if nodes.count() == 1 => {
            Ok((Path::Ipc, "all ranks are on one node and open each other's memory".to_owned()))
        }
        (Ok(()), None) => Ok((Path::IpcAndStaged, "ranks of a node open each other's memory".to_owned())),
        (Err(reason), Some(path)) => Err((path, reason)),
        (Err(reason), None) if aware => {
            Ok((Path::Direct, format!("every rank's MPI takes device pointers, and {reason}")))
        }
        (Err(reason), None) => Ok((Path::Staged, reason)),
    })
}

impl DeviceCommunicator {
    /// Starts making a communicator for the buffers of `gpu`.
    pub fn builder(gpu: &Gpu) -> Builder {
        Builder { gpu: gpu.clone(), settings: Settings::default() }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.whole.rank()
    }

    /// Ranks.
    pub fn size(&self) -> Rank {
        self.whole.size()
    }

    /// The device whose buffers it takes.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// How it carries operations out, and why.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What this rank's MPI takes.
    pub fn awareness(&self) -> &Awareness {
        &self.plan.awareness
    }

    /// Slabs of other ranks that are open here. It grows by the slabs that the others
    /// broadcast or send from, not by operations.
    pub fn open_slabs(&self) -> usize {
        self.state.borrow().imports.count()
    }
}

impl Drop for DeviceCommunicator {
    fn drop(&mut self) {
        // Operations go on for the scopes and requests that have them: what they read stays open.
        if std::thread::panicking() && !self.engine.is_idle() {
            return;
        }
        let ending = Ending {
            whole: self.whole.clone(),
            answers: self.answers.clone(),
            engine: self.engine.clone(),
            imports: self.desk.imports.clone(),
            gpu: self.gpu.clone(),
            board: self.board.take().map(RefCell::into_inner),
            has_ipc: self.plan.path.has_ipc(),
            closed: None,
        };
        ending.take_place();
    }
}

impl std::fmt::Debug for DeviceCommunicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceCommunicator").field("rank", &self.rank()).field("plan", &self.plan).finish()
    }
}

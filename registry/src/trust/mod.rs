//! Whether every change of a range will be told, decided at each registration.
//!
//! Patched entries see what goes through libc. Two things do not: system calls of
//! an object's own or of an io_uring (`raw_callers.rs`), and what other processes do to shared
//! memory. Where an object that makes such calls is loaded, each registration is
//! watched by userfaultfd as well; what the kernel cannot watch, and shared
//! memory, is registered but not kept for the next `get`.

mod instructions;
mod mapping;
mod mechanism;
mod own_rings;
mod raw_callers;
mod serving;
mod watched;

pub use mechanism::{Mechanism, VARIABLE};
pub(crate) use own_rings::Changing as RingChanging;
pub use raw_callers::RawCaller;
pub use serving::{Entries, Serving, Watch, serving};

use crate::of_process::OfProcess;
use crate::range::PageRange;
use mapping::{Found, Kind, Maps};
use parking_lot::Mutex;
use pinyard_hooks::{Why, userfaultfd};
use raw_callers::Scan;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::*};
use watched::WATCHED;

/// Why a registration is not kept for the next `get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncached {
    /// Another process may drop pages of shared memory, or of its file, untold.
    Shared,
    /// Objects that make system calls of their own are loaded, and userfaultfd
    /// does not watch the range.
    Unwatched(Why),
    /// The kernel does not say what is mapped there.
    Unknown,
}

impl fmt::Display for Uncached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Uncached::Shared => f.write_str(
                "shared memory: other processes may drop its pages, and nothing tells; \
                 if none does, Builder::trust_shared_memory",
            ),
            Uncached::Unwatched(why) => {
                write!(f, "system calls that bypass libc are possible, and the range is not watched: {why}")
            }
            Uncached::Unknown => f.write_str("what is mapped there is unknown: /proc is not to be had"),
        }
    }
}

/// On the slow path, before anything is found: waits for events that have been
/// read, and looks at the objects that have been loaded.
#[inline]
pub(crate) fn settle() {
    if pinyard_hooks::unsettled() {
        settle_now();
    }
}

#[cold]
fn settle_now() {
    pinyard_hooks::wait_until_published();
    let mut scan = SCAN.get().lock();
    pinyard_hooks::look_at_loaded_objects(|| {
        mapping::note_doubtful();
        // The loader's own mmap passes by the hooks, and its addresses may be those of memory
        // whose event is still on its way (`fresh.rs` of the hooks).
        let watches = WATCHES.load(SeqCst);
        scan.look(|object| {
            if watches {
                pinyard_hooks::notify_unmapped(std::ptr::without_provenance(object.start), object.len());
            }
        });
        if !scan.found.is_empty() && !WATCHES.swap(true, SeqCst) {
            // What is registered has not been watched: nobody finds it any more.
            pinyard_hooks::notify_unmapped(std::ptr::without_provenance(1), usize::MAX);
        }
    });
}

/// What in the process may change mappings past libc. While there is anything, each
/// registration is watched by userfaultfd.
pub fn raw_callers() -> Vec<RawCaller> {
    settle();
    SCAN.get().lock().found.clone()
}

/// What [`Trust::begin`] found and did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    /// Why the registration must not be kept, if so.
    pub(crate) untrusted: Option<Uncached>,
    /// userfaultfd watches it. Not every registration that exists when watching starts
    /// is, and each gives back its own.
    pub(crate) watched: bool,
    /// It has pages of a file, or shared ones, which any change of a file may take away.
    pub(crate) of_files: bool,
}

/// A registry's judgement of what it registers.
pub(crate) struct Trust {
    maps: Maps,
    /// What the environment forces, or the entries' refusal does.
    forced: Option<Mechanism>,
    /// What the environment forces.
    asked: Option<Mechanism>,
    shared_is_trusted: bool,
    /// The registry hears of changes at all, and not only from its callers.
    listens: bool,
}

/// The process's objects.
static SCAN: OfProcess<Mutex<Scan>> = OfProcess::new(|| Mutex::new(Scan::new()));
/// Each registration is watched by userfaultfd, from the first raw caller on.
static WATCHES: AtomicBool = AtomicBool::new(false);

impl Trust {
    /// `entries` says that patched entries see what goes through libc.
    pub(crate) fn new(
        listens: bool,
        entries: bool,
        asked: Option<Mechanism>,
        trust_shared: bool,
    ) -> Result<Trust, Why> {
        let forced = if entries || !listens { asked } else { asked.or(Some(Mechanism::Userfaultfd)) };
        let trust = Trust {
            maps: Maps::open(),
            forced,
            asked,
            shared_is_trusted: trust_shared || forced == Some(Mechanism::Entry),
            listens,
        };
        if listens && forced.is_some_and(|mechanism| !mechanism.patches()) {
            userfaultfd::start()?;
            WATCHES.store(true, SeqCst);
        }
        settle();
        Ok(trust)
    }

    /// Which mechanisms tell, and why those.
    pub(crate) fn serving(&self) -> Serving {
        let asked = if self.listens { self.asked } else { Some(Mechanism::Notify) };
        Serving::find(asked, pinyard_hooks::report())
    }

    /// Before `range` is registered. What is watched is given back with
    /// [`end`](Trust::end).
    #[inline]
    pub(crate) fn begin(&self, range: PageRange) -> Begun {
        if !self.listens || self.is_plain(range) { Begun::default() } else { self.watch(range) }
    }

    #[inline(never)]
    fn watch(&self, range: PageRange) -> Begun {
        let Found { kind, span } = self.maps.found(range);
        let of_files = kind != Kind::Private;
        if of_files {
            pinyard_hooks::declare_shared();
        }
        let begun = Begun { untrusted: None, watched: false, of_files };
        let untrusted = |why| Begun { untrusted: Some(why), ..begun };
        if let Some(why) = self.distrusts(kind) {
            return untrusted(why);
        }
        if !WATCHES.load(SeqCst) || self.forced == Some(Mechanism::Entry) {
            return begun;
        }
        if kind == Kind::PrivateFile {
            let why = Why { call: "truncating a file gives no event", errno: 0 };
            return untrusted(Uncached::Unwatched(why));
        }
        match WATCHED.get().begin(range, span) {
            Ok(()) => Begun { watched: true, ..begun },
            Err(why) => untrusted(Uncached::Unwatched(why)),
        }
    }

    /// Whether `range` is private beyond doubt, and patched entries see all that
    /// happens to it. Where every mapping call is seen, the kernel is asked only when
    /// in doubt.
    #[inline]
    fn is_plain(&self, range: PageRange) -> bool {
        self.forced.is_none_or(Mechanism::patches)
            && !WATCHES.load(SeqCst)
            && pinyard_hooks::is_plain(range.start, range.len())
    }

    fn distrusts(&self, kind: Kind) -> Option<Uncached> {
        match kind {
            Kind::Private | Kind::PrivateFile => None,
            Kind::Shared => (!self.shared_is_trusted).then_some(Uncached::Shared),
            Kind::Unknown => Some(Uncached::Unknown),
        }
    }

    /// Why registrations of `range` would not be kept, if so.
    pub(crate) fn judge(&self, range: PageRange) -> Option<Uncached> {
        let Begun { untrusted, watched, .. } = self.begin(range);
        if watched {
            self.end(range);
        }
        untrusted
    }

    /// A watched `range` is registered no more, or has never been.
    pub(crate) fn end(&self, range: PageRange) {
        WATCHED.get().end(range, || self.maps.found(range).span);
    }
}

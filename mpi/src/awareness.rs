//! Whether the MPI of this process takes device pointers.
//!
//! In this order: `PINYARD_CUDA_AWARE`; the program; what `pinyard-mpi-probe` has found out for
//! this library ([`probed`](crate::probed)); the world's `mpi_memory_alloc_kinds` (MPI 4.1,
//! 11.4.3), if it has `cuda`; `MPIX_Query_cuda_support` (Open MPI's mpi-ext.h and MPICH's
//! mpi_proto.h declare it), or else MPICH's `MPIX_GPU_query_support`. A library can say yes
//! while the transport in use cannot, and no while UCX could, so what was tried goes
//! before what is said. Nothing is tried out, and nothing forked, in a process that runs
//! MPI.
#![allow(unsafe_code)]

use crate::probed::{self, Takes};
use crate::variables;
use libloading::os::unix::Library;
use mpi::ffi;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::OnceLock;

/// Set to 0 or 1, it decides.
pub(crate) const VARIABLE: &str = "PINYARD_CUDA_AWARE";

/// `MPIX_GPU_SUPPORT_CUDA` of MPICH's mpi.h.
const GPU_SUPPORT_CUDA: c_int = 0;

/// Whether, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Awareness {
    /// Whether MPI takes device pointers.
    pub aware: bool,
    /// Who says so.
    pub source: Source,
}

/// Who says whether MPI takes device pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// `PINYARD_CUDA_AWARE`.
    Environment,
    /// The program ([`Builder::cuda_aware`](crate::Builder::cuda_aware)).
    Program,
    /// `pinyard-mpi-probe`, which has tried it with this library.
    Probe {
        /// Whether MPI took them in windows as well (`MPI_Put`, `MPI_Get`).
        windows: bool,
    },
    /// The world's `mpi_memory_alloc_kinds`.
    AllocKinds,
    /// A function of the MPI library.
    Query(&'static str),
    /// The library has neither function.
    NoQuery,
}

impl fmt::Display for Awareness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes = if self.aware { "takes" } else { "does not take" };
        match &self.source {
            Source::Environment => write!(f, "MPI {takes} device pointers, says {VARIABLE}"),
            Source::Program => write!(f, "MPI {takes} device pointers, says the program"),
            Source::Probe { windows } => {
                let but = if self.aware && !windows { ", but not in windows" } else { "" };
                write!(f, "MPI {takes} device pointers{but}, as pinyard-mpi-probe has tried")
            }
            Source::AllocKinds => write!(f, "MPI {takes} device pointers, says mpi_memory_alloc_kinds"),
            Source::Query(function) => write!(f, "MPI {takes} device pointers, says {function}"),
            Source::NoQuery => write!(f, "MPI {takes} device pointers as far as it says: it has no query"),
        }
    }
}

/// Why it is not known whether MPI takes device pointers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AwarenessError {
    /// A value of `PINYARD_CUDA_AWARE` that is neither 0 nor 1.
    #[error("{VARIABLE}={0} is refused: 0 or 1")]
    Override(String),
    /// Only the library could say, and it says nothing now.
    #[error(
        "MPI is not initialised, or finalised already: ask between MPI_Init and MPI_Finalize, set {VARIABLE}, or run pinyard-mpi-probe"
    )]
    NoMpi,
}

/// Proof that MPI takes device pointers, for rsmpi's own functions
/// ([`Settled::direct`](crate::Settled::direct)).
#[derive(Clone, Copy, Debug)]
pub struct CudaAware(());

impl CudaAware {
    /// Where the environment or the library says so; `None` where not.
    /// Between `MPI_Init` and `MPI_Finalize`, as [`Awareness::detect`].
    pub fn detected() -> Result<Option<CudaAware>, AwarenessError> {
        Ok(Awareness::detect()?.aware.then_some(CudaAware(())))
    }

    /// Because the caller knows.
    ///
    /// # Safety
    /// The MPI of this process takes device pointers in every function that is given one.
    /// Others read and write through them as host addresses.
    pub unsafe fn assume() -> CudaAware {
        CudaAware(())
    }
}

impl Awareness {
    /// Whether windows take them as well, as far as that is known.
    pub(crate) fn has_windows(&self) -> bool {
        self.aware && self.source != Source::Probe { windows: false }
    }

    /// What the environment says, or else the library, between `MPI_Init` and
    /// `MPI_Finalize`. An answer holds for the process: it is looked for once. An error is not
    /// kept.
    pub fn detect() -> Result<Awareness, AwarenessError> {
        static ANSWER: OnceLock<Awareness> = OnceLock::new();
        if let Some(known) = ANSWER.get() {
            return Ok(known.clone());
        }
        let found = from(variables::text(VARIABLE), || tried().map_or_else(query, Ok))?;
        Ok(ANSWER.get_or_init(|| found).clone())
    }
}

fn from(
    variable: Option<String>,
    query: impl FnOnce() -> Result<Awareness, AwarenessError>,
) -> Result<Awareness, AwarenessError> {
    match variable.as_deref() {
        Some("0") => Ok(Awareness { aware: false, source: Source::Environment }),
        Some("1") => Ok(Awareness { aware: true, source: Source::Environment }),
        Some(other) => Err(AwarenessError::Override(other.to_owned())),
        None => query(),
    }
}

/// What was found out before.
fn tried() -> Option<Awareness> {
    probed::of_loaded().map(|takes| Awareness {
        aware: takes != Takes::Nothing,
        source: Source::Probe { windows: takes == Takes::Everything },
    })
}

/// Whether the world's kinds of memory include CUDA's. The standard has implementations
/// list what they take; one that lists nothing says nothing. MPI is initialised.
fn kinds_have_cuda() -> bool {
    const KEY: &CStr = c"mpi_memory_alloc_kinds";
    let mut text = [0 as c_char; 1024];
    let mut found = 0;
    // SAFETY: the world stands; the handle is stored, asked and freed; the text has a byte
    // more than MPI is told.
    unsafe {
        let mut info = ffi::RSMPI_INFO_NULL;
        if ffi::MPI_Comm_get_info(ffi::RSMPI_COMM_WORLD, &mut info) != ffi::MPI_SUCCESS as c_int {
            return false;
        }
        let asked = ffi::MPI_Info_get(info, KEY.as_ptr(), 1023, text.as_mut_ptr(), &mut found);
        ffi::MPI_Info_free(&mut info);
        if asked != ffi::MPI_SUCCESS as c_int {
            return false;
        }
    }
    let kinds: String = text.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8 as char).collect();
    found != 0 && has_cuda(&kinds)
}

/// A kind is a word, with restrictors behind colons.
fn has_cuda(kinds: &str) -> bool {
    kinds.split(',').any(|kind| kind.split(':').next().is_some_and(|kind| kind.trim() == "cuda"))
}

/// Asks what is loaded (dlsym(3), RTLD_DEFAULT). Before MPI_Init, and after MPI_Finalize, some
/// say what is not so then, and MPICH's function may not be called.
fn query() -> Result<Awareness, AwarenessError> {
    match mpi::is_initialized() && !mpi::is_finalized() {
        true => Ok(query_now()),
        false => Err(AwarenessError::NoMpi),
    }
}

/// MPI is initialised.
fn query_now() -> Awareness {
    type Plain = unsafe extern "C" fn() -> c_int;
    type OfKind = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
    if kinds_have_cuda() {
        return Awareness { aware: true, source: Source::AllocKinds };
    }
    let process = Library::this();
    // SAFETY: the function has this type in mpi-ext.h, and may be called at any time.
    if let Ok(function) = unsafe { process.get::<Plain>(b"MPIX_Query_cuda_support\0") } {
        // SAFETY: as above.
        let aware = unsafe { function() } == 1;
        return Awareness { aware, source: Source::Query("MPIX_Query_cuda_support") };
    }
    // SAFETY: the function has this type in MPICH's mpi_proto.h.
    if let Ok(function) = unsafe { process.get::<OfKind>(b"MPIX_GPU_query_support\0") } {
        let mut supported = 0;
        // SAFETY: stores a number; MPI is initialised.
        let answered = unsafe { function(GPU_SUPPORT_CUDA, &mut supported) } == 0;
        return Awareness {
            aware: answered && supported == 1,
            source: Source::Query("MPIX_GPU_query_support"),
        };
    }
    Awareness { aware: false, source: Source::NoQuery }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_a_word_of_the_list() {
        assert!(has_cuda("system,mpi,cuda") && has_cuda("mpi, cuda:device:host"));
        assert!(!has_cuda("") && !has_cuda("system,mpi:cuda,rocm") && !has_cuda("cudax"));
    }

    #[test]
    fn the_environment_decides_and_must_be_0_or_1() {
        let library = || Ok(Awareness { aware: true, source: Source::NoQuery });
        let answer = |value: Option<&str>| from(value.map(str::to_owned), library);
        assert!(answer(None).unwrap().aware);
        assert!(!answer(Some("0")).unwrap().aware);
        assert_eq!(answer(Some("1")).unwrap().source, Source::Environment);
        assert_eq!(answer(Some("yes")).unwrap_err().to_string(), "PINYARD_CUDA_AWARE=yes is refused: 0 or 1");
    }

    #[test]
    fn what_was_tried_without_success_in_windows_is_not_for_them() {
        let tried = |windows| Awareness { aware: true, source: Source::Probe { windows } };
        assert!(tried(true).has_windows() && !tried(false).has_windows());
        let told = "MPI takes device pointers, but not in windows, as pinyard-mpi-probe has tried";
        assert_eq!(tried(false).to_string(), told);
        assert!(Awareness { aware: true, source: Source::Environment }.has_windows());
    }

    #[test]
    fn a_library_says_nothing_before_mpi_is_initialised() {
        assert_eq!(query(), Err(AwarenessError::NoMpi));
    }
}

//! What a subscriber of tracing hears of a communicator and of its operations.

use crate::bench::{Bench, text};
use pinyard_mpi::{Path, Reduction};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use tracing::Level;

/// What `work` returns, and what this thread is told meanwhile.
pub(crate) fn heard<R>(work: impl FnOnce() -> R) -> (R, String) {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let to = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false);
    let subscriber = subscriber.with_writer(move || to.clone()).finish();
    let result = tracing::subscriber::with_default(subscriber, work);
    let bytes = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
    (result, String::from_utf8_lossy(&bytes).into_owned())
}

/// One line of that level has all of the words.
pub(crate) fn says(told: &str, level: &str, words: &[&str]) -> Result<(), String> {
    let has = |line: &str| line.contains(level) && words.iter().all(|word| line.contains(word));
    if told.lines().any(has) { Ok(()) } else { Err(format!("{level} {words:?} is not told:\n{told}")) }
}

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    let mut buffer = bench.buffer(&[1_u32; 100])?;
    let (done, told) = heard(|| -> Result<(), String> {
        let mut settled = buffer.settle_mut().map_err(text)?;
        bench.ranks.broadcast_into(0, &mut settled.slice_mut(..100)).map_err(text)?;
        bench.ranks.all_reduce_in_place(&mut settled.slice_mut(..100), Reduction::Sum).map_err(text)
    });
    done?;
    let rank = format!("rank={}", bench.rank());
    // MPI chooses by itself on the direct path, and one rank has nobody to copy from.
    if bench.size() > 1 && bench.ranks.plan().path != Path::Direct {
        says(&told, "DEBUG pinyard_mpi", &[&rank, "operation=\"MPI_Bcast", "bytes=400", "way="])?;
        says(&told, "DEBUG pinyard_mpi", &[&rank, "operation=\"MPI_Allreduce", "bytes=400", "way="])?;
    }
    match told.lines().find(|line| line.contains(" WARN ") || line.contains(" ERROR ")) {
        Some(line) => Err(format!("told of what went well: {line}")),
        None => Ok(()),
    }
}

//! A rank's program from its start to its end, whatever that is.

use crate::ending;
use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use pinyard_worker::{caught, without_signals, write_line};
use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use std::fmt::Display;
use std::io::{Write, stderr, stdout};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

/// Runs a rank's program, with `MPI_COMM_WORLD`, between `MPI_Init` and `MPI_Finalize`. A rank whose
/// program fails prints its error to stderr, with its rank, and ends all ranks at once
/// (`MPI_Abort`), so that none waits for it.
///
/// With `fn main() -> Result<…>` alone such a rank drops its communicators and finalises MPI first,
/// which both wait for the other ranks, and these may wait for it: the job may hang, and the error is
/// not printed.
///
/// MPI that is initialised already, as with another thread level, is used as it is, and
/// finalised by the program. Communicators for device buffers that `main` drops tell the other
/// ranks when it has returned or makes the next one, and wait for them when it has returned, not
/// before. Until then collectives of the others on such a communicator wait, too. A
/// [`LockWindow`](crate::LockWindow), and a scope with requests under way, wait for the other ranks
/// where they are dropped also here: a rank that may fail ends them first.
///
/// # Errors
/// The code is [`ExitCode::FAILURE`] where MPI was finalised before, or by `main`, which failed. An error of `main` does not come
/// back: the process ends with status 1, as far as the MPI hands it on. The same holds for a panic
/// within `main`, of which the message is printed.
///
/// ```no_run
/// use mpi::traits::*;
/// use pinyard_mpi::{DeviceCommunicator, Gpu};
/// use std::error::Error;
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     pinyard_mpi::run(|world| -> Result<(), Box<dyn Error>> {
///         let cells = std::fs::read_to_string("cells")?; // may fail at one rank
///         let gpu = Gpu::open(world.rank() % 2)?;
///         let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
///         let mut grid = gpu.alloc::<f32>(1 << 20, &gpu.stream()?)?;
///         ranks.broadcast_into(0, &mut grid.settle_mut()?)?;
///         Ok(())
///     })
/// }
/// ```
pub fn run<E: Display>(main: impl FnOnce(&SimpleCommunicator) -> Result<(), E>) -> ExitCode {
    // None where the program has initialised it.
    let universe = mpi::initialize();
    if mpi::is_finalized() {
        write_line("MPI is finalised already");
        return ExitCode::FAILURE;
    }
    let world = SimpleCommunicator::world();
    let rank = world.rank();
    let is_outermost = ending::hold();
    // What a panic leaves behind is seen by nobody: the process ends.
    let failed = match caught(|| main(&world).map_err(|error| error.to_string())) {
        Ok(Ok(())) => {
            if is_outermost {
                ending::let_go(true);
            }
            drop(universe);
            return ExitCode::SUCCESS;
        }
        Ok(Err(error)) => error,
        Err(panic) => format!("panicked: {panic}"),
    };
    // MPI_Abort ends the process without that.
    let _ = without_signals(|| stdout().flush());
    write_line(&format!("rank {rank}: {failed}"));
    // MPICH's launcher drops what it has not read when a rank aborts: 8 of 100 last words.
    let pause = || std::thread::sleep(Duration::from_millis(1));
    wait_for_reader(stdout(), pause);
    wait_for_reader(stderr(), pause);
    ending::let_go(false);
    // By the program itself, which has its own Universe: nobody is left to be ended.
    if mpi::is_finalized() {
        return ExitCode::FAILURE;
    }
    world.abort(1)
}

/// How many pauses a reader is given.
const PAUSES: u32 = 1000;

/// Pauses until what lies in a pipe is read, pipe(7). Files and terminals hold nothing back.
fn wait_for_reader(output: impl AsFd, mut pause: impl FnMut()) {
    let is_pipe = fstat(&output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    for _ in 0..PAUSES {
        if !is_pipe || ioctl_fionread(&output).unwrap_or(0) == 0 {
            return;
        }
        pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_end_waits_until_the_last_words_are_read() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"why").unwrap();
        let mut pauses = 0;
        wait_for_reader(&writer, || {
            pauses += 1;
            if pauses == 3 {
                reader.read_exact(&mut [0; 3]).unwrap();
            }
        });
        assert_eq!(pauses, 3);
    }

    #[test]
    fn a_reader_that_never_reads_is_not_waited_for_without_end() {
        let (_reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"why").unwrap();
        let mut pauses = 0;
        wait_for_reader(&writer, || pauses += 1);
        assert_eq!(pauses, PAUSES);
    }

    #[test]
    fn a_file_is_not_waited_for() {
        let file = std::fs::File::open("Cargo.toml").unwrap();
        wait_for_reader(&file, || panic!("a file holds nothing back"));
    }
}

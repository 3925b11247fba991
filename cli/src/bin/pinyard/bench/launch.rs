//! A benchmark's process: started in a process group of its own, listened to, and ended
//! by its id if it falls silent or the user interrupts.

use super::show::Line;
use super::{Options, failed};
use crate::demo::job::end;
use crate::demo::{Refusal, STOP};
use pinyard_cli::bench::document::Skipped;
use pinyard_cli::bench::{Absence, Document, Row, Word};
use std::io::{BufRead, BufReader, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often an interrupt is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// A program that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// Characters of a program's last words.
const LAST_WORDS: usize = 600;

/// A benchmark that runs, and where its words go.
pub(crate) struct Run<'a> {
    document: &'a mut Document,
    name: &'static str,
    line: &'a Line,
}

/// How a program ended.
enum How {
    ByItself(ExitStatus),
    Silent,
    Interrupted,
}

impl<'a> Run<'a> {
    pub(crate) fn new(document: &'a mut Document, name: &'static str, line: &'a Line) -> Run<'a> {
        Run { document, name, line }
    }

    /// All of the benchmark is left out.
    pub(crate) fn skip(&mut self, absence: Absence) {
        let benchmark = self.name.to_owned();
        self.document.skipped.push(Skipped { benchmark, peer: None, absence });
    }

    /// Enters a row.
    pub(crate) fn row(&mut self, row: Row) {
        self.document.rows.push(row);
    }

    /// A peer takes part.
    pub(crate) fn peer(&mut self, name: String, version: String) {
        self.document.peers.insert(name, version);
    }

    /// Says on the bar what is measured now.
    pub(crate) fn step(&self, what: &str) {
        self.line.step(what);
    }

    /// Runs `program`, which speaks in [`Word`]s.
    pub(crate) fn program(&mut self, options: &Options, program: &Path) -> Result<(), Refusal> {
        let mut command = Command::new(program);
        command.arg(self.name);
        if options.quick {
            command.arg("--quick");
        }
        if let Some(threads) = options.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        self.listen(command, |run, line| {
            // A library may write lines of its own.
            if let Some(word) = Word::read(line) {
                run.take(word);
            }
        })
    }

    fn take(&mut self, word: Word) {
        match word {
            Word::Steps(count) => self.line.steps(count),
            Word::Step(what) => self.line.step(&what),
            Word::Peer { name, version } => self.peer(name, version),
            Word::Absent { name, absence } => {
                let (benchmark, peer) = (self.name.to_owned(), Some(name));
                self.document.skipped.push(Skipped { benchmark, peer, absence });
            }
            Word::Row(row) => self.row(row),
            Word::Skipped(absence) => self.skip(absence),
        }
    }

    /// Runs `command` to its end; each line of its output goes to `heard`. One that ends
    /// badly is entered as failed.
    pub(crate) fn listen(
        &mut self,
        mut command: Command,
        mut heard: impl FnMut(&mut Self, &str),
    ) -> Result<(), Refusal> {
        let refused = |call: &str, error| Refusal::new(format!("{call}: {error}"), "");
        let mut errors = tempfile::tempfile().map_err(|error| {
            Refusal::new(format!("open(temporary file): {error}"), "set TMPDIR to a writable folder")
        })?;
        let written = errors.try_clone().map_err(|error| refused("dup", error))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(written).process_group(0);
        let program = command.get_program().display().to_string();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                self.document.failed.push(failed(self.name, format!("exec {program}: {error}")));
                return Ok(());
            }
        };
        let lines = child.stdout.take().map(lines_of);
        let mut last = Instant::now();
        let how = loop {
            match lines.as_ref().map(|lines| lines.recv_timeout(LOOK)) {
                Some(Ok(line)) => {
                    last = Instant::now();
                    heard(self, &line);
                }
                Some(Err(RecvTimeoutError::Timeout)) => {}
                Some(Err(RecvTimeoutError::Disconnected)) | None => {
                    break How::ByItself(child.wait().map_err(|error| refused("waitpid", error))?);
                }
            }
            if STOP.load(Relaxed) {
                end(&mut child);
                break How::Interrupted;
            }
            if last.elapsed() > PATIENCE {
                end(&mut child);
                break How::Silent;
            }
        };
        let why = match how {
            How::Interrupted => return Ok(()),
            How::ByItself(status) if status.success() => return Ok(()),
            How::ByItself(status) => format!("{program}: {status}"),
            How::Silent => format!("{program} said nothing for {} s and was ended", PATIENCE.as_secs()),
        };
        let mut words = Vec::new();
        // Without its words, how it ended is still told.
        let _ = errors.rewind().and_then(|()| errors.read_to_end(&mut words));
        let why = format!("{why}{}", last_words(&String::from_utf8_lossy(&words)));
        self.document.failed.push(failed(self.name, why));
        Ok(())
    }
}

/// The end of what a program wrote, in one line.
fn last_words(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skip = words.chars().count().saturating_sub(LAST_WORDS);
    let words: String = words.chars().skip(skip).collect();
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

/// The lines that a program writes, read by a thread of their own until there are no more.
fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

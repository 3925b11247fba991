//! The thread that writes, and what is left at exit.
#![allow(unsafe_code)] // atexit(3)

use crate::counters;
use crate::event::{Event, Kind};
use crate::file::{FORMAT, Header, PROCESS};
use crate::process::Process;
use crate::recorder::{self, Recorder};
use crate::ring::Record;
use pinyard_hooks::{THREAD_STACK, stack_size};
use pinyard_worker::{Descriptor, say, without_signals};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Once;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long events wait at most.
const PERIOD: Duration = Duration::from_millis(100);
/// While nothing happens.
const IDLE: Duration = Duration::from_millis(500);
/// How often counters are looked at.
const PUBLISHED: Duration = Duration::from_millis(500);
/// How long the end of the program waits for the thread's last line.
const PATIENCE: Duration = Duration::from_secs(2);

/// The trace's file.
#[derive(Debug)]
pub(crate) struct Output {
    file: BufWriter<Descriptor>,
    written: u64,
    most: u64,
}

impl Output {
    pub(crate) fn new(file: File, process: &Process, most: u64) -> Output {
        let mut output =
            Output { file: BufWriter::with_capacity(256 << 10, Descriptor::new(file)), written: 0, most };
        let header = Header {
            format: FORMAT.to_owned(),
            version: PROCESS,
            events: 0,
            lost: 0,
            process: Some(process.clone()),
        };
        // What fails here fails again with the first event, and is told then.
        let _ = output.line(&header);
        output
    }

    fn line(&mut self, line: &impl serde::Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.written += text.len() as u64;
        self.file.write_all(&text)
    }

    fn event(&mut self, record: Record) -> io::Result<()> {
        self.line(&Event::of(record, Vec::new()))
    }
}

#[derive(Debug)]
pub(crate) struct Writer {
    /// None where only counters are wanted, and after the last event.
    output: Option<Output>,
    next: u64,
    stalled: Option<u64>,
    counters: counters::File,
}

impl Writer {
    pub(crate) fn new(output: Option<Output>, counters: counters::File) -> Writer {
        Writer { output, next: 0, stalled: None, counters }
    }

    /// Writes what the ring has; whether there was anything.
    fn flush(&mut self, recorder: &Recorder, last: bool) -> bool {
        let Some(output) = &mut self.output else { return false };
        let (mut written, mut failed) = (0u64, None);
        let mut write = |record| {
            written += 1;
            if failed.is_none() && output.written < output.most {
                failed = output.event(record).err();
            }
        };
        let lost = recorder.ring.take(&mut self.next, &mut self.stalled, &mut write);
        let now = recorder.now();
        if lost > 0 {
            write(Record { time_ns: now, bytes: lost, ..Record::of(Kind::Lost) });
        }
        let full = output.written >= output.most;
        if failed.is_none() && (last || full) {
            failed = output.event(Record { time_ns: now, ..Record::of(Kind::End) }).err();
        }
        if written > 0 || last {
            failed = failed.or_else(|| output.file.flush().err());
        }
        if let Some(error) = &failed {
            say(format_args!("the trace ends here: write failed: {error}"));
        } else if full {
            say(format_args!("the trace ends here: its file has the length of PINYARD_TRACE_MIB"));
        }
        if failed.is_some() || full || last {
            recorder::stop();
            self.output = None;
        }
        written > 0
    }
}

pub(crate) fn spawn(recorder: &'static Recorder) -> io::Result<Thread> {
    let work = |recorder: &&'static Recorder| run(recorder);
    let thread =
        pinyard_worker::spawn("pinyard-trace", stack_size(THREAD_STACK), recorder, work, |panicked| {
            say(format_args!("the trace's thread panicked, and goes on: {panicked}"));
        })?;
    Ok(thread.thread().clone())
}

fn run(recorder: &Recorder) {
    let mut published: Option<Instant> = None;
    loop {
        let busy = recorder.writer.lock().flush(recorder, false);
        if published.is_none_or(|at| at.elapsed() >= PUBLISHED) {
            published = Some(Instant::now());
            // Without the writer's lock: what is asked may record.
            let counters = recorder.counters();
            recorder.writer.lock().counters.write(&counters, false);
        }
        thread::park_timeout(if busy { PERIOD } else { IDLE });
    }
}

/// Has what is left written at exit(3).
pub(crate) fn at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a plain function that does not unwind. Were it refused,
        // the file would lack its last events, as a killed process's does.
        let _ = unsafe { libc::atexit(finish) };
    });
}

extern "C" fn finish() {
    let Some(recorder) = recorder::the_recorder() else { return };
    // No counters are asked for: a thread that is gone may hold a pool's lock.
    let Some(mut writer) = recorder.writer.try_lock_for(PATIENCE) else { return };
    without_signals(|| {
        writer.flush(recorder, true);
        writer.counters.end();
    });
}

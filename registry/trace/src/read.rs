//! A trace from a file, which anybody may have written: bounded lines, bounded
//! numbers, every refusal with its line.

use crate::event::{Event, Kind};
use crate::file::{FORMAT, Header, PROCESS, VERSION};
use std::collections::HashSet;
use std::io::{self, BufRead, Read};
use thiserror::Error;

/// Bytes of a line at most: a stack of 24 frames has room.
const LINE: u64 = 64 << 10;
/// Nanoseconds that a trace can last: a clock that starts at 0 does not overflow.
const MOST_TIME: u64 = 1 << 60;
/// Bytes that a block can have.
const MOST: u64 = 1 << 46;

/// Why a trace is refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be read.
    #[error("line {line}: read failed: {source}")]
    Io {
        /// The line, from 1.
        line: u64,
        /// The cause.
        source: io::Error,
    },
    /// The line is too long for any event.
    #[error("line {line} is longer than {LINE} bytes: this is no trace")]
    Long {
        /// The line, from 1.
        line: u64,
    },
    /// The line is not what belongs there.
    #[error("line {line}, column {column}: {reason}")]
    Malformed {
        /// The line, from 1.
        line: u64,
        /// The column, from 1.
        column: usize,
        /// The parser's words.
        reason: String,
    },
    /// The first line is no header of a format that is known.
    #[error("line 1: {reason}; expected a header with format {FORMAT:?} and version {VERSION} or {PROCESS}")]
    Format {
        /// What is there.
        reason: String,
    },
    /// The line says what cannot be.
    #[error("line {line}: {reason}")]
    Impossible {
        /// The line, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// There are fewer events than the header promises.
    #[error("the file ends after line {line} with {found} of {promised} events: it was cut short")]
    Truncated {
        /// The last line.
        line: u64,
        /// Events that are there.
        found: u64,
        /// Events that the header promises.
        promised: u64,
    },
    /// A process's trace has no last event.
    #[error("the file ends after line {line} without the event `end`: its process was killed, or still runs")]
    Unfinished {
        /// The last line.
        line: u64,
    },
}

/// Reads a trace event by event, checking each. After an error there is nothing more.
pub struct Reader<R> {
    from: R,
    line: u64,
    buffer: Vec<u8>,
    header: Header,
    found: u64,
    time: u64,
    live: HashSet<u64>,
    done: bool,
    ended: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    pub fn new(from: R) -> Result<Reader<R>, ReadError> {
        let header = Header { format: String::new(), version: 0, events: 0, lost: 0, process: None };
        let mut reader = Reader {
            from,
            line: 0,
            buffer: Vec::new(),
            header,
            found: 0,
            time: 0,
            live: HashSet::new(),
            done: false,
            ended: false,
        };
        if !reader.next_line()? {
            return Err(ReadError::Format { reason: "the file is empty".to_owned() });
        }
        let header: Header = serde_json::from_slice(&reader.buffer)
            .map_err(|error| ReadError::Format { reason: error.to_string() })?;
        let expected = if header.process.is_some() { PROCESS } else { VERSION };
        if header.format != FORMAT || header.version != expected {
            let Header { format, version, .. } = header;
            let format: String = format.chars().take(40).collect();
            return Err(ReadError::Format { reason: format!("format {format:?}, version {version}") });
        }
        reader.header = header;
        Ok(reader)
    }

    /// The first line; of a process's trace `lost` grows with what was read.
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn next_line(&mut self) -> Result<bool, ReadError> {
        self.buffer.clear();
        let line = self.line + 1;
        let mut limited = (&mut self.from).take(LINE + 1);
        let count =
            limited.read_until(b'\n', &mut self.buffer).map_err(|source| ReadError::Io { line, source })?;
        if count == 0 {
            return Ok(false);
        }
        self.line = line;
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if count as u64 > LINE {
            return Err(ReadError::Long { line });
        }
        Ok(true)
    }

    fn read(&mut self) -> Result<Option<Event>, ReadError> {
        if !self.next_line()? {
            let (line, found, promised) = (self.line, self.found, self.header.events);
            if self.header.process.is_some() {
                return if self.ended { Ok(None) } else { Err(ReadError::Unfinished { line }) };
            }
            return if found < promised {
                Err(ReadError::Truncated { line, found, promised })
            } else {
                Ok(None)
            };
        }
        let line = self.line;
        let event: Event = serde_json::from_slice(&self.buffer).map_err(|error| ReadError::Malformed {
            line,
            column: error.column(),
            reason: without_place(&error.to_string()),
        })?;
        self.check(&event).map_err(|reason| ReadError::Impossible { line, reason })?;
        self.found += 1;
        if self.found > self.header.events && self.header.process.is_none() {
            let reason = format!("more events than the {} that the header promises", self.header.events);
            return Err(ReadError::Impossible { line, reason });
        }
        Ok(Some(event))
    }

    fn check(&mut self, event: &Event) -> Result<(), String> {
        if self.ended {
            return Err("an event after the last one".to_owned());
        }
        // Threads note their time before their place: a moment's disorder is usual.
        const DISORDER: u64 = 1_000_000_000;
        if event.time_ns > MOST_TIME {
            return Err(format!("time {} is 36 years after the start", event.time_ns));
        }
        if event.duration_ns > MOST_TIME {
            return Err(format!("{} ns: nothing takes 36 years", event.duration_ns));
        }
        // What takes time is recorded at its end.
        let end = event.time_ns + event.duration_ns;
        if end.saturating_add(DISORDER) < self.time {
            return Err(format!("time {end} lies before {}", self.time));
        }
        self.time = self.time.max(end);
        if event.bytes > MOST || event.block_bytes > MOST {
            return Err(format!("{} bytes: no device has them", event.bytes.max(event.block_bytes)));
        }
        // What is not there cannot be missed.
        let complete = self.header.lost == 0;
        match event.event {
            Kind::Lost if self.header.process.is_some() => {
                self.header.lost = self.header.lost.saturating_add(event.bytes);
                Ok(())
            }
            Kind::End if self.header.process.is_some() => {
                self.ended = true;
                Ok(())
            }
            Kind::Alloc if event.block == 0 => Err("an allocation without a block".to_owned()),
            Kind::Alloc if event.bytes == 0 => Err("an allocation of no bytes".to_owned()),
            Kind::Alloc if !self.live.insert(event.block) && (complete || self.header.process.is_none()) => {
                Err(format!("block {} is allocated, and not free", event.block))
            }
            Kind::Free if event.block != 0 && !self.live.remove(&event.block) && complete => {
                Err(format!("block {} is freed, and not in use", event.block))
            }
            _ => Ok(()),
        }
    }
}

/// The parser's own line is always the first.
fn without_place(words: &str) -> String {
    words.rsplit_once(" at line ").map_or(words, |(words, _)| words).to_owned()
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Result<Event, ReadError>> {
        if self.done {
            return None;
        }
        let event = self.read().transpose();
        self.done = !matches!(event, Some(Ok(_)));
        event
    }
}

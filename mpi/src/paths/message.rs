//! The first message of every transfer: what comes, how, and if it is short, itself.
//! All of a length, so that a receiver that expects another count learns of it.

use super::imports::Exported;
use crate::error::Failure;
use crate::words::{WORD, put_word, word};

/// Bytes of a message.
pub(crate) const MESSAGE: usize = 2048;
/// Bytes that it may carry itself.
pub(crate) const INLINE: usize = MESSAGE - AT_PAYLOAD;

const MAGIC: u32 = 0x676e_7069;
const AT_KIND: usize = 4;
const AT_BYTES: usize = 8;
/// Where the sender's memory is, or its failure.
const AT_DETAIL: usize = 16;
const AT_PAYLOAD: usize = AT_DETAIL + Exported::BYTES;
/// With a word of payload it fits a note of the board.
const _: () = assert!(AT_PAYLOAD + WORD <= super::NOTE);

/// How the bytes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Within the message.
    Inline,
    /// The receiver copies them from the sender's device.
    Ipc(Exported),
    /// In pinned chunks, which follow.
    Staged,
    /// From device to device, along the ranks of the node.
    Chain,
    /// Not at all: the sender failed.
    Failed(Failure),
}

impl Kind {
    /// Whether the receiver of a message tells its sender how it went: so that what it copies
    /// from stands meanwhile, and that no failure is taken for success.
    pub(crate) fn is_answered(self) -> bool {
        matches!(self, Kind::Ipc(_) | Kind::Staged)
    }

    /// For the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Inline => "within the message",
            Kind::Ipc(_) => "ipc",
            Kind::Staged => "staged",
            Kind::Chain => "ipc, along a chain",
            Kind::Failed(_) => "none: the sender failed",
        }
    }
}

/// Kind and bytes; the payload lies behind them in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
}

impl Message {
    /// Writes all but the payload.
    pub(crate) fn write(&self, buffer: &mut [u8]) {
        let (kind, detail) = match self.kind {
            Kind::Inline => (0, 0),
            Kind::Ipc(_) => (1, 0),
            Kind::Staged => (2, 0),
            Kind::Chain => (4, 0),
            Kind::Failed(failure) => (3, u64::from(failure.number())),
        };
        put_word(buffer, 0, u64::from(MAGIC) | kind << (8 * AT_KIND as u64));
        put_word(buffer, AT_BYTES, self.bytes);
        put_word(buffer, AT_DETAIL, detail);
        if let Kind::Ipc(memory) = self.kind {
            memory.write(&mut buffer[AT_DETAIL..]);
        }
    }

    /// Reads it; `None` if it is no message of this crate's.
    pub(crate) fn read(buffer: &[u8]) -> Option<Message> {
        let first = word(buffer, 0);
        if first as u32 != MAGIC {
            return None;
        }
        let kind = match first >> 32 {
            0 => Kind::Inline,
            1 => Kind::Ipc(Exported::read(&buffer[AT_DETAIL..])),
            2 => Kind::Staged,
            3 => Kind::Failed(Failure::of(word(buffer, AT_DETAIL) as u32)),
            4 => Kind::Chain,
            _ => return None,
        };
        let message = Message { kind, bytes: word(buffer, AT_BYTES) };
        (kind != Kind::Inline || message.bytes <= INLINE as u64).then_some(message)
    }

    /// Where the payload begins.
    pub(crate) const PAYLOAD: usize = AT_PAYLOAD;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let told: [u8; Exported::BYTES] = std::array::from_fn(|at| at as u8);
        let ipc = Kind::Ipc(Exported::read(&told));
        let failed = [
            Failure::Driver,
            Failure::Context,
            Failure::Length,
            Failure::Device,
            Failure::Mpi,
            Failure::Path,
            Failure::Other,
        ]
        .map(Kind::Failed);
        for kind in [Kind::Inline, ipc, Kind::Staged, Kind::Chain].into_iter().chain(failed) {
            let mut buffer = [0xff; MESSAGE];
            let message = Message { kind, bytes: 77 };
            message.write(&mut buffer);
            assert_eq!(Message::read(&buffer), Some(message));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert_eq!(Message::read(&[0; MESSAGE]), None);
        let mut buffer = [0; MESSAGE];
        Message { kind: Kind::Inline, bytes: INLINE as u64 }.write(&mut buffer);
        assert!(Message::read(&buffer).is_some());
        Message { kind: Kind::Inline, bytes: INLINE as u64 + 1 }.write(&mut buffer);
        assert_eq!(Message::read(&buffer), None);
        put_word(&mut buffer, 0, u64::from(MAGIC) | 9 << 32);
        assert_eq!(Message::read(&buffer), None);
    }
}

//! Freed memory gets a pattern, and whoever has it next looks whether it is still
//! there: a write after the free shows, with who allocated the block, who freed it and
//! who found out.
//!
//! The pattern is written by the stream that the block was allocated on, once all its
//! users have passed, so it comes after everything that was asked for before the drop.
//! It is asked for by the pool's thread, or an allocation that is short of memory: a
//! drop still calls no driver. An allocation waits for the stream to read it back, so
//! this mode serialises what it touches, and is for finding faults.
#![allow(unsafe_code)]

use super::block::BlockRef;
use super::core::Core;
use super::ledger::{Note, Past};
use super::misuse::{Misuse, Offence};
use super::stream::{StreamInUse, StreamState};
use crate::poison::PATTERN;
use crate::retire::{Callable, Retired};
use crate::source::DriverToken;
use pinyard_driver::{Capture, DevicePtr, DriverError, Stream};
use pinyard_worker::log;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes that are read back at a time.
const PIECE: usize = 4 << 20;

impl Core {
    /// Of a pool that poisons: writes the pattern to the blocks that nobody else uses, and
    /// lets them go home. Returns the others, and whether any went.
    pub(super) fn bury(&self, dropped: Vec<BlockRef>, token: &DriverToken) -> (Vec<BlockRef>, bool) {
        if !self.watch.poisons() {
            return (dropped, false);
        }
        let (mut used, mut any) = (Vec::new(), false);
        for block in dropped {
            let uses = block.uses.take();
            if uses.is_some() {
                block.uses.set(uses);
                used.push(block);
                continue;
            }
            // SAFETY: a block that is out keeps its home.
            let home = unsafe { &*block.home.get() };
            match self.fill(home, block, token) {
                Ok(true) => self.watch.ledger.poisoned(block.address.get()),
                // A capture must not get the fill into its graph.
                Ok(false) => {}
                Err(error) => log!(debug, %error, "a freed block could not be filled"),
            }
            home.inbox.push(block);
            self.coming.fetch_sub(1, SeqCst);
            any = true;
        }
        (used, any)
    }

    fn fill(&self, home: &StreamState, block: BlockRef, token: &DriverToken) -> Result<bool, DriverError> {
        let (at, bytes) = (DevicePtr(block.address.get()), block.bytes.get());
        let in_use = self.stream_of(home, token)?;
        let stream = in_use.as_ref().map_or(Stream::DEFAULT, Callable::handle);
        if self.driver.stream_capture(stream, token)? != Capture::None {
            return Ok(false);
        }
        // SAFETY: the block is free, and its users before have passed or come before in
        // the stream's order; it stands as long as the pool has it.
        unsafe { self.driver.fill(at, PATTERN, bytes, stream, token) }?;
        if in_use.is_none() {
            self.driver.synchronize(token)?;
        }
        Ok(true)
    }

    /// The stream, which is in use while the answer lives. `None` of one that is retired:
    /// what it was given has passed, as has all that the context was given.
    fn stream_of<'a>(
        &self,
        state: &'a StreamState,
        token: &DriverToken,
    ) -> Result<Option<StreamInUse<'a>>, DriverError> {
        match state.in_use(token) {
            Ok(in_use) => Ok(Some(in_use)),
            Err(Retired(_)) => self.driver.synchronize(token).map(|()| None),
        }
    }

    /// Looks whether memory that is handed out still holds the pattern.
    pub(super) fn inspect(&self, state: &StreamState, block: BlockRef, now: &Note, token: &DriverToken) {
        let past = self.watch.ledger.take_past(block.address.get(), block.bytes.get() as u64);
        self.inspect_past(Some(state), &past, now, token);
    }

    /// The same of a slab that goes.
    pub(super) fn inspect_slab(&self, start: u64, bytes: u64, token: &DriverToken) {
        if !self.watch.is_on() {
            return;
        }
        let past = self.watch.ledger.take_past(start, bytes);
        if self.watch.poisons() {
            self.inspect_past(None, &past, &self.watch.note(), token);
        }
    }

    /// On `state`'s stream, or the default one.
    fn inspect_past(
        &self,
        state: Option<&StreamState>,
        past: &[(u64, Past)],
        now: &Note,
        token: &DriverToken,
    ) {
        for (at, past) in past.iter().filter(|(_, past)| past.poisoned) {
            // Before the alarms, which may retire the stream, its retire lock is released.
            match self.first_change(state, *at, past.bytes as usize, token) {
                Ok(None) => {}
                Ok(Some((offset, found))) => {
                    let offset = at - past.block + offset as u64;
                    let offence = Offence::UseAfterFree { offset, found };
                    self.watch.report(&Misuse::new(offence, past.block, now).of_past(past));
                }
                Err(error) => log!(debug, %error, "freed memory could not be read back"),
            }
        }
    }

    /// The first byte that is not the pattern's.
    fn first_change(
        &self,
        state: Option<&StreamState>,
        at: u64,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Option<(usize, u8)>, DriverError> {
        let in_use = state.map(|state| self.stream_of(state, token)).transpose()?.flatten();
        let stream = in_use.as_ref().map_or(Stream::DEFAULT, Callable::handle);
        if self.driver.stream_capture(stream, token)? != Capture::None {
            return Ok(None);
        }
        let host = self.driver.host_alloc(bytes.min(PIECE), token)?;
        let mut changed: Result<Option<(usize, u8)>, DriverError> = Ok(None);
        let mut offset = 0;
        while offset < bytes && matches!(changed, Ok(None)) {
            let length = (bytes - offset).min(PIECE);
            // SAFETY: both stand until the stream has passed, which is waited for.
            let copied = unsafe {
                self.driver.copy_to_host(host, DevicePtr(at + offset as u64), length, stream, token)
            };
            changed = copied.and_then(|()| self.driver.stream_synchronize(stream, token)).map(|()| {
                // SAFETY: the copy has passed, and wrote as many bytes.
                let read = unsafe { std::slice::from_raw_parts(host, length) };
                let found = read.iter().position(|&byte| byte != PATTERN);
                found.map(|place| (offset + place, read[place]))
            });
            offset += length;
        }
        // On an error the copy may not have passed: its destination must stand.
        let changed = changed?;
        // SAFETY: ours, and the copies have passed.
        unsafe { self.driver.host_free(host, token) }?;
        Ok(changed)
    }
}

//! Streams, words that they write and wait for, and captures.
#![allow(unsafe_code)]

use super::{Answer, offence};
use crate::call::Call;
use crate::error::code;
use crate::simulated::Simulated;
use crate::simulated::machine::{Machine, Op, Record};
use crate::text;
use crate::token::DriverToken;
use crate::types::{Capture, DevicePtr, Event, Stream};

impl Simulated {
    pub(super) fn stream_create(&self, _: &DriverToken) -> Answer<Stream> {
        let mut machine = self.enter(Call::StreamCreate, || "cuStreamCreate()".to_owned())?;
        let handle = machine.new_stream();
        // SAFETY: just made.
        Ok(unsafe { Stream::from_raw(handle) })
    }

    pub(super) unsafe fn stream_destroy(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.stream_state(Call::StreamDestroy, stream, "cuStreamDestroy", |machine| {
            machine.destroy_stream(stream.raw());
            Ok(())
        })
    }

    pub(super) fn stream_id(&self, stream: Stream, _: &DriverToken) -> Answer<u64> {
        self.stream_state(Call::StreamId, stream, "cuStreamGetId", |machine| {
            Ok(machine.streams.get(&stream.raw()).map_or(0, |stream| stream.id))
        })
    }

    pub(super) fn stream_query(&self, stream: Stream, _: &DriverToken) -> Answer<bool> {
        self.stream_state(Call::StreamQuery, stream, "cuStreamQuery", |machine| {
            Ok(machine.is_idle(stream.raw()) == Some(true))
        })
    }

    pub(super) fn stream_synchronize(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        let call = text::stream_synchronize(stream);
        let mut machine = self.enter(Call::StreamSynchronize, || call.clone())?;
        if machine.is_idle(stream.raw()).is_none() {
            return offence(&mut machine, call, code::INVALID_HANDLE, "no such stream");
        }
        self.wait(machine, &call, |machine| machine.is_idle(stream.raw()) != Some(false)).map(drop)
    }

    pub(super) fn stream_wait_event(&self, stream: Stream, event: Event, _: &DriverToken) -> Answer<()> {
        let call = || text::stream_wait_event(stream, event);
        let mut machine = self.enter(Call::StreamWaitEvent, call)?;
        let Some(state) = machine.events.get(&event.raw()) else {
            return offence(&mut machine, call(), code::INVALID_HANDLE, "no such event");
        };
        // The record of now, whatever comes later. What was never recorded has passed.
        let record = state.record.clone().unwrap_or_else(|| Record::new(0.into()));
        self.queue_within(machine, stream, call, Op::WaitRecord(record), 0)
    }

    pub(super) unsafe fn stream_write_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::Write { word: word.0 as usize, value };
        let call = || text::stream_write_value(stream, word, value);
        self.queue(Call::StreamWriteValue, stream, call, op, 0)
    }

    pub(super) unsafe fn stream_wait_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::WaitValue { word: word.0 as usize, value };
        let call = || text::stream_wait_value(stream, word, value);
        self.queue(Call::StreamWaitValue, stream, call, op, 0)
    }

    pub(super) fn stream_capture(&self, stream: Stream, _: &DriverToken) -> Answer<Capture> {
        self.stream_state(Call::StreamCapture, stream, "cuStreamIsCapturing", |machine| {
            Ok(machine.streams.get(&stream.raw()).map_or(Capture::None, |stream| stream.capture))
        })
    }

    pub(super) fn capture_begin(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.stream_state(Call::CaptureBegin, stream, "cuStreamBeginCapture", |machine| {
            machine.ids += 1;
            let number = machine.ids;
            if let Some(stream) = machine.streams.get_mut(&stream.raw()) {
                stream.capture = Capture::Active(number);
            }
            Ok(())
        })
    }

    pub(super) fn capture_end(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.stream_state(Call::CaptureEnd, stream, "cuStreamEndCapture", |machine| {
            if let Some(stream) = machine.streams.get_mut(&stream.raw()) {
                stream.capture = Capture::None;
            }
            Ok(())
        })
    }

    pub(super) fn context_id(&self, _: &DriverToken) -> Answer<u64> {
        self.enter(Call::ContextId, || "cuCtxGetId()".to_owned()).map(|_| 1)
    }

    pub(super) fn synchronize(&self, _: &DriverToken) -> Answer<()> {
        let machine = self.enter(Call::Synchronize, || "cuCtxSynchronize()".to_owned())?;
        self.wait(machine, "cuCtxSynchronize()", Machine::all_idle).map(drop)
    }
}

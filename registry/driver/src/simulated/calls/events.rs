//! Events.
#![allow(unsafe_code)]

use super::{Answer, offence};
use crate::call::Call;
use crate::error::code;
use crate::simulated::Simulated;
use crate::simulated::machine::{EventState, Machine, Op, Record};
use crate::text;
use crate::token::DriverToken;
use crate::types::{Capture, Event, Stream};

impl Simulated {
    pub(super) fn event_create(&self, _: &DriverToken) -> Answer<Event> {
        let mut machine = self.enter(Call::EventCreate, || "cuEventCreate()".to_owned())?;
        let handle = machine.handle();
        machine.events.insert(handle, EventState::default());
        Ok(Event::new(handle))
    }

    pub(super) unsafe fn event_destroy(&self, event: Event, _: &DriverToken) -> Answer<()> {
        let mut machine = self.event_state(Call::EventDestroy, event, "cuEventDestroy")?;
        machine.events.remove(&event.raw());
        Ok(())
    }

    pub(super) fn event_record(&self, event: Event, stream: Stream, _: &DriverToken) -> Answer<()> {
        let call = || text::event_record(event, stream);
        let mut machine = self.enter(Call::EventRecord, call)?;
        match machine.streams.get(&stream.raw()).map(|stream| stream.capture) {
            None => return offence(&mut machine, call(), code::INVALID_HANDLE, "no such stream"),
            // It would become part of the graph, and be no fence.
            Some(Capture::Active(_) | Capture::Invalidated) => {
                return offence(
                    &mut machine,
                    call(),
                    code::STREAM_CAPTURE_UNSUPPORTED,
                    "recorded into a graph",
                );
            }
            Some(Capture::None) => {}
        }
        let Some(state) = machine.events.get_mut(&event.raw()) else {
            return offence(&mut machine, call(), code::INVALID_HANDLE, "no such event");
        };
        let record = Record::default();
        state.record = Some(record.clone());
        machine.enqueue(stream.raw(), Op::Record(record), 0);
        drop(self.settle(machine));
        Ok(())
    }

    pub(super) fn event_query(&self, event: Event, _: &DriverToken) -> Answer<bool> {
        let machine = self.event_state(Call::EventQuery, event, "cuEventQuery")?;
        Ok(machine.events.get(&event.raw()).is_some_and(|event| event.is_done()))
    }

    pub(super) fn event_synchronize(&self, event: Event, _: &DriverToken) -> Answer<()> {
        let machine = self.event_state(Call::EventSynchronize, event, "cuEventSynchronize")?;
        let record = machine.events.get(&event.raw()).and_then(|event| event.record.clone());
        let passed = |_: &Machine| record.as_ref().is_none_or(|record| record.get().is_some());
        self.wait(machine, &text::event_synchronize(event), passed).map(drop)
    }
}

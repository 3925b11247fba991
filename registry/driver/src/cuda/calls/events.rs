//! Events.
#![allow(unsafe_code)]

use super::{Answer, event_handle, handle, ready};
use crate::cuda::{Cuda, check, sys};
use crate::error::code;
use crate::text;
use crate::token::DriverToken;
use crate::types::{Event, Stream};
use std::ptr;

impl Cuda {
    pub(super) fn event_create(&self, _: &DriverToken) -> Answer<Event> {
        self.within("cuEventCreate", |functions| {
            let mut event = ptr::null_mut();
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.event_create)(&mut event, sys::EVENT_DISABLE_TIMING) };
            check(functions, result, || "cuEventCreate(no timing)".to_owned())
                .map(|()| Event::new(event as usize))
        })
    }

    pub(super) unsafe fn event_destroy(&self, event: Event, _: &DriverToken) -> Answer<()> {
        self.within("cuEventDestroy", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.event_destroy)(event_handle(event)) };
            check(functions, result, || format!("cuEventDestroy({event:?})"))
        })
    }

    pub(super) fn event_record(&self, event: Event, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuEventRecord", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.event_record)(event_handle(event), handle(stream)) };
            check(functions, result, || text::event_record(event, stream))
        })
    }

    pub(super) fn event_query(&self, event: Event, _: &DriverToken) -> Answer<bool> {
        self.outside_captures("cuEventQuery", |functions| {
            // SAFETY: the event stands (its type's contract).
            let result = unsafe { (functions.event_query)(event_handle(event)) };
            if result == code::NOT_READY {
                return Ok(false);
            }
            ready(check(functions, result, || format!("cuEventQuery({event:?})")))
        })
    }

    pub(super) fn event_synchronize(&self, event: Event, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuEventSynchronize", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.event_synchronize)(event_handle(event)) };
            check(functions, result, || text::event_synchronize(event))
        })
    }
}

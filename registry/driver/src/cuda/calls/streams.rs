//! Streams, words that they write and wait for, and captures.
#![allow(unsafe_code)]

use super::{Answer, event_handle, handle, ready};
use crate::cuda::{Cuda, check, sys};
use crate::error::code;
use crate::text;
use crate::token::DriverToken;
use crate::types::{Capture, DevicePtr, Event, Stream};
use std::ffi::c_int;
use std::ptr;

impl Cuda {
    pub(super) fn stream_create(&self, _: &DriverToken) -> Answer<Stream> {
        self.within("cuStreamCreate", |functions| {
            let mut stream = ptr::null_mut();
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.stream_create)(&mut stream, sys::STREAM_NON_BLOCKING) };
            check(functions, result, || "cuStreamCreate(non-blocking)".to_owned())?;
            // SAFETY: just made.
            Ok(unsafe { Stream::from_raw(stream as usize) })
        })
    }

    pub(super) unsafe fn stream_destroy(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamDestroy", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.stream_destroy)(handle(stream)) };
            check(functions, result, || format!("cuStreamDestroy({stream:?})"))
        })
    }

    pub(super) fn stream_id(&self, stream: Stream, _: &DriverToken) -> Answer<u64> {
        self.within("cuStreamGetId", |functions| {
            let get = Self::optional(functions.stream_id, "cuStreamGetId")?;
            let mut id = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { get(handle(stream), &mut id) };
            check(functions, result, || format!("cuStreamGetId({stream:?})")).map(|()| id)
        })
    }

    pub(super) fn stream_query(&self, stream: Stream, _: &DriverToken) -> Answer<bool> {
        self.outside_captures("cuStreamQuery", |functions| {
            // SAFETY: the stream stands (its type's contract).
            let result = unsafe { (functions.stream_query)(handle(stream)) };
            if result == code::NOT_READY {
                return Ok(false);
            }
            ready(check(functions, result, || format!("cuStreamQuery({stream:?})")))
        })
    }

    pub(super) fn stream_synchronize(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuStreamSynchronize", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.stream_synchronize)(handle(stream)) };
            check(functions, result, || text::stream_synchronize(stream))
        })
    }

    pub(super) fn stream_wait_event(&self, stream: Stream, event: Event, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamWaitEvent", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.stream_wait_event)(handle(stream), event_handle(event), 0) };
            check(functions, result, || text::stream_wait_event(stream, event))
        })
    }

    pub(super) unsafe fn stream_write_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuStreamWriteValue64", |functions| {
            let write = Self::optional(functions.write_value, "cuStreamWriteValue64")?;
            // SAFETY: the caller's contract.
            let result = unsafe { write(handle(stream), word.0, value, 0) };
            check(functions, result, || text::stream_write_value(stream, word, value))
        })
    }

    pub(super) unsafe fn stream_wait_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuStreamWaitValue64", |functions| {
            let wait = Self::optional(functions.wait_value, "cuStreamWaitValue64")?;
            // SAFETY: the caller's contract.
            let result = unsafe { wait(handle(stream), word.0, value, 0) };
            check(functions, result, || text::stream_wait_value(stream, word, value))
        })
    }

    pub(super) fn stream_capture(&self, stream: Stream, _: &DriverToken) -> Answer<Capture> {
        self.within("cuStreamIsCapturing", |functions| {
            let mut status: c_int = 0;
            // SAFETY: the stream stands; stores a number.
            let result = unsafe { (functions.stream_is_capturing)(handle(stream), &mut status) };
            check(functions, result, || format!("cuStreamIsCapturing({stream:?})"))?;
            match status {
                sys::CAPTURE_STATUS_NONE => Ok(Capture::None),
                sys::CAPTURE_STATUS_ACTIVE => {
                    let mut id = 0;
                    let (none, nothing) = (ptr::null_mut(), ptr::null_mut());
                    // Null pointers ask for nothing.
                    let result = match (functions.capture_info_v3, functions.capture_info_v2) {
                        // SAFETY: as above.
                        (Some(info), _) => unsafe {
                            info(
                                handle(stream),
                                &mut status,
                                &mut id,
                                none,
                                nothing,
                                nothing,
                                ptr::null_mut(),
                            )
                        },
                        // SAFETY: as above.
                        (None, Some(info)) => unsafe {
                            info(handle(stream), &mut status, &mut id, none, nothing, ptr::null_mut())
                        },
                        (None, None) => 0,
                    };
                    check(functions, result, || format!("cuStreamGetCaptureInfo({stream:?})"))?;
                    Ok(Capture::Active(id))
                }
                _ => Ok(Capture::Invalidated),
            }
        })
    }

    pub(super) fn capture_begin(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamBeginCapture", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.capture_begin)(handle(stream), sys::CAPTURE_MODE_THREAD_LOCAL) };
            check(functions, result, || format!("cuStreamBeginCapture({stream:?}, thread-local)"))
        })
    }

    pub(super) fn capture_end(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamEndCapture", |functions| {
            let mut graph = ptr::null_mut();
            // SAFETY: the stream stands; stores the graph, null where the capture failed.
            let result = unsafe { (functions.capture_end)(handle(stream), &mut graph) };
            if !graph.is_null() {
                // SAFETY: ours, and destroyed once.
                let _ = unsafe { (functions.graph_destroy)(graph) };
            }
            check(functions, result, || format!("cuStreamEndCapture({stream:?})"))
        })
    }

    pub(super) fn context_id(&self, _: &DriverToken) -> Answer<u64> {
        self.stands("cuCtxGetId").map(|()| self.context_id.unwrap_or(0))
    }

    pub(super) fn synchronize(&self, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuCtxSynchronize", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.ctx_synchronize)() };
            check(functions, result, || "cuCtxSynchronize()".to_owned())
        })
    }
}

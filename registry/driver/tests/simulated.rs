//! The simulated device does what the real one is known to do.
#![allow(unsafe_code, clippy::unwrap_used)]

use pinyard_driver::{Call, Capture, Costs, Driver, DriverToken, Simulated, Stream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};

const MIB: usize = 1 << 20;

fn token() -> DriverToken {
    DriverToken::at_entry()
}

#[test]
fn a_lost_context_fails_every_call_and_says_so() {
    let (gpu, token) = (Simulated::new(1 << 20), DriverToken::at_entry());
    let block = gpu.mem_alloc(4096, &token).unwrap();
    gpu.lose_context();
    for _ in 0..2 {
        let error = gpu.stream_synchronize(Stream::DEFAULT, &token).unwrap_err();
        assert!(error.is_context_lost() && error.call.starts_with("cuStreamSynchronize"), "{error}");
    }
    gpu.fail_never();
    // SAFETY: nothing uses it.
    unsafe { gpu.mem_free(block, &token) }.unwrap();
    assert!(!gpu.mem_alloc(1 << 21, &token).unwrap_err().is_context_lost());
}

#[test]
fn a_fault_is_told_from_a_context_that_was_destroyed_and_both_from_what_was_refused() {
    let (gpu, token) = (Simulated::new(1 << 20), DriverToken::at_entry());
    let asked = |code| {
        gpu.fail_always(code);
        let error = gpu.stream_synchronize(Stream::DEFAULT, &token).unwrap_err();
        (error.is_context_lost(), error.is_fault())
    };
    // cuda.h: deinitialized, invalid context, context is destroyed.
    for code in [4, 201, 709] {
        assert_eq!(asked(code), (true, false), "{code}");
    }
    // Illegal address, launch timeout, assert, ECC, misaligned address, launch failed, …
    for code in [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810] {
        assert_eq!(asked(code), (true, true), "{code}");
    }
    // Invalid value, out of memory, peer access unsupported, not ready, too many resources.
    for code in [1, 2, 217, 400, 500, 600, 701, 712, 800, 801, 900, 909] {
        assert_eq!(asked(code), (false, false), "{code}");
    }
}

#[test]
fn work_passes_in_the_order_of_its_stream_when_the_clock_reaches_it() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let stream = gpu.stream_create(&token).unwrap();
    let event = gpu.event_create(&token).unwrap();
    gpu.kernel(stream, 1_000_000, &token);
    gpu.event_record(event, stream, &token).unwrap();
    assert!(!gpu.event_query(event, &token).unwrap());
    gpu.advance(500_000);
    assert!(!gpu.event_query(event, &token).unwrap());
    gpu.advance(600_000);
    assert!(gpu.event_query(event, &token).unwrap());
}

#[test]
fn an_event_holds_up_the_stream_that_waits_for_it() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let (one, two) = (gpu.stream_create(&token).unwrap(), gpu.stream_create(&token).unwrap());
    let event = gpu.event_create(&token).unwrap();
    gpu.kernel(one, 1_000_000, &token);
    gpu.event_record(event, one, &token).unwrap();
    gpu.stream_wait_event(two, event, &token).unwrap();
    assert!(!gpu.stream_query(two, &token).unwrap());
    gpu.stream_synchronize(two, &token).unwrap();
    assert!(gpu.now() >= 1_000_000);
}

#[test]
fn a_word_is_written_when_the_work_before_it_is_done() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let stream = gpu.stream_create(&token).unwrap();
    let word = gpu.host_alloc(4096, &token).unwrap();
    // SAFETY: the word stands.
    let value = unsafe { AtomicU64::from_ptr(word.cast()) };
    // SAFETY: as above.
    let device = unsafe { gpu.host_device_ptr(word, &token) }.unwrap();
    gpu.kernel(stream, 10_000, &token);
    // SAFETY: as above.
    unsafe { gpu.stream_write_value(stream, device, 7, &token) }.unwrap();
    assert_eq!(value.load(SeqCst), 0);
    gpu.advance(20_000);
    assert_eq!(value.load(SeqCst), 7);
}

#[test]
fn a_free_waits_for_all_work_and_a_deadlock_is_an_offence() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let stream = gpu.stream_create(&token).unwrap();
    let block = gpu.mem_alloc(4096, &token).unwrap();
    gpu.kernel(stream, 5_000_000, &token);
    // SAFETY: nothing uses it.
    unsafe { gpu.mem_free(block, &token) }.unwrap();
    assert!(gpu.now() >= 5_000_000);
    let gpu = Arc::new(gpu);
    let inner = gpu.clone();
    gpu.host_function(stream, Box::new(move || drop(inner.mem_info(&DriverToken::at_entry()))), &token)
        .unwrap();
    gpu.stream_synchronize(stream, &token).unwrap();
    assert_eq!(gpu.offences().len(), 1);
    assert!(gpu.offences()[0].contains("from a host function"));
}

#[test]
fn an_identifier_is_never_given_twice_where_a_handle_is() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let one = gpu.stream_create(&token).unwrap();
    let id = gpu.stream_id(one, &token).unwrap();
    // SAFETY: not used again as that stream.
    unsafe { gpu.stream_destroy(one, &token) }.unwrap();
    let two = gpu.stream_create(&token).unwrap();
    assert_eq!(one.raw(), two.raw());
    assert_ne!(gpu.stream_id(two, &token).unwrap(), id);
}

#[test]
fn failures_come_when_they_are_asked_for() {
    let (gpu, token) = (Simulated::new(MIB), token());
    gpu.fail_next(Call::MemAlloc, 2, 2);
    assert!(gpu.mem_alloc(4096, &token).unwrap_err().is_out_of_memory());
    assert!(gpu.mem_alloc(4096, &token).unwrap_err().is_out_of_memory());
    let block = gpu.mem_alloc(4096, &token).unwrap();
    gpu.fail_at(gpu.all_calls() + 1, 999);
    gpu.mem_info(&token).unwrap();
    assert_eq!(gpu.mem_info(&token).unwrap_err().code, 999);
    gpu.mem_info(&token).unwrap();
    // SAFETY: nothing uses it.
    unsafe { gpu.mem_free(block, &token) }.unwrap();
    assert_eq!((gpu.used_bytes(), gpu.outstanding()), (0, String::new()));
}

#[test]
fn mistakes_are_offences() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let block = gpu.mem_alloc(4096, &token).unwrap();
    // SAFETY: the simulated device notices.
    unsafe {
        gpu.mem_free(block, &token).unwrap();
        gpu.mem_free(block, &token).unwrap_err();
    }
    let stream = gpu.stream_create(&token).unwrap();
    // SAFETY: as above.
    unsafe { gpu.fill(block, 1, 4096, stream, &token).unwrap_err() };
    gpu.capture_begin(stream, &token).unwrap();
    assert!(matches!(gpu.stream_capture(stream, &token), Ok(Capture::Active(_))));
    let event = gpu.event_create(&token).unwrap();
    gpu.event_record(event, stream, &token).unwrap_err();
    assert_eq!(gpu.offences().len(), 3);
}

#[test]
fn virtual_memory_is_mapped_and_goes_when_it_is_nowhere() {
    let (gpu, token) = (Simulated::new(8 * MIB), token());
    let grain = gpu.physical_granularity(true, &token).unwrap();
    let at = gpu.address_reserve(4 * grain, grain, &token).unwrap();
    let piece = gpu.physical_create(grain, true, &token).unwrap();
    // SAFETY: reserved, and nothing is mapped there.
    unsafe { gpu.map(at, grain, piece, &token) }.unwrap();
    // SAFETY: released once.
    unsafe { gpu.physical_release(piece, &token) }.unwrap();
    assert_eq!(gpu.used_bytes(), grain);
    // SAFETY: nothing uses it.
    unsafe {
        gpu.address_free(at, 4 * grain, &token).unwrap_err();
        gpu.unmap(at, grain, &token).unwrap();
        gpu.address_free(at, 4 * grain, &token).unwrap();
    }
    assert_eq!((gpu.used_bytes(), gpu.outstanding()), (0, String::new()));
}

/// A wait is for what the event had recorded when it was asked for (`cuStreamWaitEvent`),
/// whatever the event records later, elsewhere, and sooner done.
#[test]
fn a_wait_is_for_the_record_before_it() {
    let gpu = Simulated::new(1 << 20);
    let token = DriverToken::at_entry();
    let [slow, idle, waiter] = [0; 3].map(|_| gpu.stream_create(&token).unwrap());
    let event = gpu.event_create(&token).unwrap();
    gpu.kernel(slow, 1_000_000, &token);
    gpu.event_record(event, slow, &token).unwrap();
    gpu.stream_wait_event(waiter, event, &token).unwrap();
    gpu.event_record(event, idle, &token).unwrap();
    gpu.advance(100_000);
    assert!(gpu.event_query(event, &token).unwrap(), "of the last record");
    assert!(!gpu.stream_query(waiter, &token).unwrap(), "the slow stream is not there yet");
    gpu.advance(1_000_000);
    assert!(gpu.stream_query(waiter, &token).unwrap());
}

/// Nor does it last longer because the event's next record was done meanwhile.
#[test]
fn a_record_was_done_when_its_own_work_was() {
    let mut costs = Costs::default();
    costs.query = 600_000;
    let (gpu, token) = (Simulated::with_costs(1 << 20, costs), token());
    let [early, late, waiter] = [0; 3].map(|_| gpu.stream_create(&token).unwrap());
    let event = gpu.event_create(&token).unwrap();
    gpu.kernel(early, 100_000, &token);
    gpu.event_record(event, early, &token).unwrap();
    gpu.stream_wait_event(waiter, event, &token).unwrap();
    gpu.kernel(waiter, 1_000_000, &token);
    gpu.kernel(late, 500_000, &token);
    gpu.event_record(event, late, &token).unwrap();
    // Both records pass within the first.
    assert!(!gpu.stream_query(waiter, &token).unwrap());
    assert!(gpu.stream_query(waiter, &token).unwrap(), "done after 1.1 ms, it is {}", gpu.now());
}

/// `cuEventDestroy` may be called before the work has passed: waits go on.
#[test]
fn a_wait_outlives_its_event() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let [slow, waiter] = [0; 2].map(|_| gpu.stream_create(&token).unwrap());
    let event = gpu.event_create(&token).unwrap();
    gpu.kernel(slow, 1_000_000, &token);
    gpu.event_record(event, slow, &token).unwrap();
    gpu.stream_wait_event(waiter, event, &token).unwrap();
    // SAFETY: it is used no more.
    unsafe { gpu.event_destroy(event, &token) }.unwrap();
    assert!(!gpu.stream_query(waiter, &token).unwrap());
    gpu.advance(1_000_000);
    assert!(gpu.stream_query(waiter, &token).unwrap());
}

/// By a call of another thread, while the stream is destroyed and its handle becomes another's:
/// whoever waits for the stream's work would wait for ever.
#[test]
fn a_host_function_returns_to_its_own_stream() {
    let (gpu, token) = (Simulated::new(MIB), token());
    let [stream, waiter] = [0; 2].map(|_| gpu.stream_create(&token).unwrap());
    let event = gpu.event_create(&token).unwrap();
    let (begun, end) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (in_begun, in_end) = (begun.clone(), end.clone());
    let work = move || {
        in_begun.wait();
        in_end.wait();
    };
    // Until the clock is moved, by the other thread.
    gpu.kernel(stream, 1_000_000, &token);
    gpu.host_function(stream, Box::new(work), &token).unwrap();
    gpu.event_record(event, stream, &token).unwrap();
    gpu.stream_wait_event(waiter, event, &token).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| gpu.advance(1_000_000));
        begun.wait();
        // SAFETY: it is used no more.
        let destroyed = unsafe { gpu.stream_destroy(stream, &token) };
        let next = gpu.stream_create(&token);
        // Nothing that may fail before the other thread can go on.
        end.wait();
        destroyed.unwrap();
        assert_eq!(next.unwrap(), stream, "the handle is given out again");
    });
    gpu.stream_synchronize(waiter, &token).unwrap();
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

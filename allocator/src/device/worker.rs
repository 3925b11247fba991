//! The thread that does for dropped blocks what the dropping threads may not: it
//! marks the streams that use them and asks fences. It gives up sources of copies and
//! serves requests for memory to come. It sleeps, without a timeout,
//! while there is nothing to do, and ends with the last block of a closed pool,
//! after it has given everything back.
#![allow(unsafe_code)]

use super::core::Core;
use super::marks::ASK_AFTER;
use super::stream::StreamState;
use crate::requests::{guarded, thread_panicked};
use crate::source::DriverToken;
use pinyard_hooks::{THREAD_STACK, stack_size};
use pinyard_worker::log;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);
/// Of a closed pool, whose blocks' drops wake it, but for one that began before it closed.
const LONGEST_CLOSED: Duration = Duration::from_millis(250);

pub(super) fn spawn(core: Arc<Core>) -> io::Result<()> {
    let thread = pinyard_worker::spawn(
        "pinyard-device",
        stack_size(THREAD_STACK),
        core.clone(),
        work,
        thread_panicked,
    )?;
    let _ = core.worker.set(thread.thread().clone());
    core.wake();
    Ok(())
}

fn work(core: &Arc<Core>) {
    let mut token = DriverToken::at_entry();
    let mut pause = SHORTEST;
    let mut ticked = false;
    let mut news = Instant::now();
    loop {
        let moved = core.settle_dropped(&mut token);
        core.settle_copies(&mut token);
        let busy = core.serve() || core.copies.load(SeqCst) > 0;
        let busy = busy || !core.lock(&mut token).waiting.is_empty() || !core.dropped.is_empty();
        core.look_after(std::mem::take(&mut ticked), &mut token);
        if moved {
            pause = SHORTEST;
            news = Instant::now();
        } else if news.elapsed() >= ASK_AFTER {
            core.pass_if_lost(&mut token);
            news = Instant::now();
        }
        if core.closed.load(SeqCst) {
            let ended = core.sleep.announced(|| {
                let ended = finish(core, &mut token);
                if !ended {
                    thread::park_timeout(pause);
                }
                ended
            });
            if ended {
                return;
            }
            pause = (pause * 2).min(if busy { LONGEST } else { LONGEST_CLOSED });
            continue;
        }
        if busy {
            thread::park_timeout(pause);
            pause = (pause * 2).min(LONGEST);
            continue;
        }
        ticked = core.sleep.announced(|| sleep(core, &mut token));
        pause = SHORTEST;
        news = Instant::now();
    }
}

/// Parks while there is nothing to do; whether a timeout has passed. It was announced:
/// whoever brings something, or makes the first slab, wakes us.
fn sleep(core: &Core, token: &mut DriverToken) -> bool {
    let waits = !core.lock(token).waiting.is_empty() || !core.dropped.is_empty();
    let waits = waits || core.copies.load(SeqCst) > 0 || !core.requests.is_empty();
    if waits || core.closed.load(SeqCst) {
        return false;
    }
    match core.look_after(false, token) {
        Some(pause) => {
            let began = Instant::now();
            thread::park_timeout(pause);
            began.elapsed() >= pause
        }
        None => {
            thread::park();
            false
        }
    }
}

/// Whether the closed pool has no block left: everything is given back then.
fn finish(core: &Arc<Core>, token: &mut DriverToken) -> bool {
    core.trim(Duration::ZERO);
    let mut central = core.lock(token);
    let counts = central.counts();
    let waits = !central.waiting.is_empty();
    let streams = central.streams.clone();
    let hub = central.hub.clone();
    let slabs = central.heap.slab_count() + central.registered_still.len();
    drop(central);
    if counts.allocations != counts.frees || waits || slabs > 0 || core.copies.load(SeqCst) > 0 {
        return false;
    }
    // Words are written, and events recorded, until all marks have passed: those too that
    // nothing waits for.
    let is_behind = streams.iter().any(|state| state.timeline.is_behind());
    if is_behind && !core.driver.mem_info(token).is_err_and(|error| error.is_context_lost()) {
        core.poll_events(token);
        return false;
    }
    // Once, whatever happens: nothing is destroyed twice.
    guarded("the end of a pool", || end(core, &streams, hub, token));
    true
}

fn end(core: &Core, streams: &[Arc<StreamState>], hub: Option<Arc<StreamState>>, token: &mut DriverToken) {
    for state in streams {
        state.timeline.destroy_events(&*core.driver, token);
    }
    core.destroy_hub(hub, token);
    if let Some(words) = &core.words
        // SAFETY: every stream has written what it was asked to, or the context is gone, whose
        // streams write nothing; nobody asks for more.
        && let Err(error) = unsafe { words.free(&*core.driver, token) }
    {
        log!(warn, %error, "the words of a closed pool stay");
    }
}

//! Memory that is free but not for the stream that wants it: blocks whose other
//! users have to pass, and what other streams keep.

use super::block::{BlockRef, Owner, Stack, User};
use super::core::{Central, Core};
use super::hub::retain_most;
use super::marks::{Marked, WORDS};
use super::stream::StreamState;
use super::waiting::{Mark, Stolen, Used};
use crate::device::alloc::Want;
use crate::fence::Asked;
use crate::retire::Retired;
use crate::source::DriverToken;
use crate::trace::Kind;
use pinyard_worker::log;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Streams that keep up keep up to this part of all slabs to themselves. When they keep more, that
/// of those that have most is asked for at once: so many frees lie between two rounds of marks that a
/// mark costs each of them little.
const KEEP: usize = 10;
/// How long marks are waited for before a slab is made: an idle stream's is seen after
/// 4 microseconds, a slab takes 30 and more.
const SPIN: Duration = Duration::from_micros(12);

impl Core {
    /// Marks `state`'s stream. One that is gone has passed everything once the
    /// context has.
    pub(super) fn mark(&self, state: &StreamState, token: &mut DriverToken) -> Option<Mark> {
        let at = |value| Some(Mark { owner: state.owner, value });
        let in_use = match state.in_use(token) {
            Ok(in_use) => in_use,
            Err(Retired(last)) => return at(last),
        };
        match state.timeline.mark(&*self.driver, &in_use, token) {
            Ok(Marked::At(value)) => at(value),
            Ok(Marked::Capturing) => None,
            Err(error) => {
                log!(debug, %error, "a stream could not be marked: waiting for the context");
                match self.driver.synchronize(token) {
                    Ok(()) => at(0),
                    // The context is gone or broken, and all its work has ended.
                    Err(error) if error.is_stale_handle() || error.is_context_lost() => at(0),
                    Err(_) => None,
                }
            }
        }
    }

    /// Lets events move the words, for streams without a word of their own: all of a pool
    /// that has none, and those that came after as many streams as there are words.
    pub(super) fn poll_events(&self, token: &mut DriverToken) {
        self.poll_events_of(|_| true, token);
    }

    /// The same of some streams.
    pub(super) fn poll_events_of(&self, which: impl Fn(&StreamState) -> bool, token: &mut DriverToken) {
        let central = self.lock(token);
        if self.words.is_some() && central.streams.len() <= WORDS {
            return;
        }
        let asked = |state: &&Arc<StreamState>| {
            state.timeline.has_events() && state.timeline.is_behind() && which(state)
        };
        let streams: Vec<_> = central.streams.iter().filter(asked).cloned().collect();
        drop(central);
        for state in streams {
            if let Err(error) = state.timeline.poll(&*self.driver, token) {
                log!(debug, %error, "an event could not be asked");
            }
        }
    }

    /// Passes all marks that have not passed, if the context is lost: a mark that was made before the
    /// loss would never pass by itself.
    pub(super) fn pass_if_lost(&self, token: &mut DriverToken) {
        let streams = self.lock(token).streams.clone();
        let is_behind = streams.iter().any(|state| state.timeline.is_behind());
        if is_behind && self.driver.mem_info(token).is_err_and(|error| error.is_context_lost()) {
            streams.iter().for_each(|state| state.timeline.pass_all());
        }
    }

    /// Marks the streams that use dropped blocks, once each, and asks fences; whether
    /// anything is free now or waits for a mark that it did not wait for before.
    pub(super) fn settle_dropped(&self, token: &mut DriverToken) -> bool {
        self.poll_events(token);
        let (dropped, buried) = self.bury(self.dropped.take(), token);
        let mut central = self.lock(token);
        let fenced = central.waiting.take_fenced();
        let users = central.users_of(&dropped);
        drop(central);
        if dropped.is_empty() && fenced.is_empty() {
            return self.lock(token).poll() || buried;
        }
        let mut marks: BTreeMap<Owner, Option<Mark>> = BTreeMap::new();
        let mut used = Vec::new();
        for block in dropped {
            match self.users(block, &users, &mut marks, token) {
                Some(ready) => used.push(ready),
                // A stream is being captured: asked again later.
                None => {
                    self.dropped.push(block);
                }
            }
        }
        let (mut free, mut unpassed, mut lost) = (Vec::new(), Vec::new(), 0);
        for mut item in fenced {
            let (mut waits, mut panicked) = (Vec::new(), false);
            for fence in std::mem::take(&mut item.fences) {
                match fence.ask() {
                    Asked::Passed => {}
                    Asked::Waits(fence) => waits.push(fence),
                    Asked::Panicked => panicked = true,
                }
            }
            if panicked {
                lost += 1;
            } else if waits.is_empty() {
                free.push(item.block);
            } else {
                item.fences = waits;
                unpassed.push(item);
            }
        }
        self.coming.fetch_sub(lost, SeqCst);
        let news = !(used.is_empty() && unpassed.is_empty());
        let moved = buried || !used.is_empty() || !free.is_empty();
        let mut central = self.lock(token);
        central.waiting.used_blocks -= free.len() + lost;
        free.into_iter().for_each(Central::go_home);
        unpassed.into_iter().for_each(|item| central.waiting.put_fenced(item));
        used.into_iter().for_each(|item| central.waiting.add_used(item));
        let passed = central.poll();
        drop(central);
        // The worker may have found nothing while these were in our hands.
        if news {
            self.wake();
        }
        moved || passed
    }

    fn users(
        &self,
        block: BlockRef,
        users: &BTreeMap<User, Arc<StreamState>>,
        marks: &mut BTreeMap<Owner, Option<Mark>>,
        token: &mut DriverToken,
    ) -> Option<Used> {
        let mut uses = block.uses.take()?;
        // Of another pool: its own marks tell.
        while let Some(stream) = uses.foreign.pop() {
            match stream.fence() {
                Ok(fence) => uses.fences.push(fence),
                Err(error) if error.is_stale_handle() || error.is_context_lost() => {}
                // Captured, or refused for now: asked again later.
                Err(_) => {
                    uses.foreign.push(stream);
                    block.uses.set(Some(uses));
                    return None;
                }
            }
        }
        let of_block: Option<Vec<Mark>> = uses
            .streams
            .iter()
            .map(|user| match users.get(user) {
                Some(state) => *marks.entry(state.owner).or_insert_with(|| self.mark(state, token)),
                // It has left its place, so it has passed.
                None => Some(Mark { owner: user.0, value: 0 }),
            })
            .collect();
        let Some(of_block) = of_block else {
            block.uses.set(Some(uses));
            return None;
        };
        Some(Used { block, marks: of_block, fences: uses.fences })
    }

    /// Memory that other streams have freed and whose work has passed, if they keep
    /// much. Ties no stream to another.
    pub(super) fn take_from_others(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        token: &mut DriverToken,
    ) -> Option<BlockRef> {
        let mut central = self.lock(token);
        let much = (central.reserved / KEEP).max(want.bytes());
        for mut stolen in central.waiting.take_back(state.owner) {
            central.take_in(&mut stolen.blocks, state.owner);
        }
        if let Some(block) = central.find(state, want) {
            return Some(block);
        }
        let mut kept = self.keepers(&mut central, Some(state.owner));
        let hub = central.hub.as_ref().map(|hub| hub.owner);
        drop(central);
        // A stream that has not come as far as an earlier mark will not pass a new one
        // soon: its memory serves itself best.
        // Nor what the hub has: whoever can wait for it may have that now.
        kept.retain(|(_, keeper)| Some(keeper.owner) != hub && !keeper.timeline.is_behind());
        if kept.iter().map(|(bytes, _)| bytes).sum::<usize>() < much {
            return None;
        }
        retain_most(&mut kept, |&(bytes, _)| bytes);
        self.steal(kept.into_iter().map(|(_, keeper)| keeper).collect(), token);
        let began = Instant::now();
        loop {
            self.poll_events(token);
            let found = self.lock(token).find(state, want);
            if found.is_some() || began.elapsed() > SPIN {
                return found;
            }
        }
    }

    /// Streams that keep memory to themselves, with its bytes.
    pub(super) fn keepers(
        &self,
        central: &mut Central,
        but: Option<Owner>,
    ) -> Vec<(usize, Arc<StreamState>)> {
        let streams = central.streams.clone();
        let others = streams.iter().filter(|other| Some(other.owner) != but);
        let kept = others.map(|other| (central.kept_by(other), other)).filter(|(bytes, _)| *bytes > 0);
        kept.map(|(bytes, other)| (bytes, other.clone())).collect()
    }

    /// Detaches all that the victims keep, then marks them: what they were given
    /// before is before the mark.
    pub(super) fn steal(&self, victims: Vec<Arc<StreamState>>, token: &mut DriverToken) {
        self.coming.fetch_add(1, SeqCst);
        for victim in victims {
            let mut central = self.lock(token);
            let mut blocks = victim.take_all(&mut central);
            central.heap.detach(victim.owner, &mut blocks);
            drop(central);
            if blocks.count() == 0 {
                continue;
            }
            let mark = self.mark(&victim, token);
            let mut central = self.lock(token);
            match mark {
                Some(from) => {
                    Core::count(&self.tallies.steals);
                    let bytes = sum(&mut blocks);
                    central.waiting.add_stolen(Stolen { from, blocks, bytes });
                }
                None => central.take_in(&mut blocks, victim.owner),
            }
        }
        self.coming.fetch_sub(1, SeqCst);
    }

    /// Lets the stream wait, on the device, for what others gave up, the longest first,
    /// until it suffices. Only where there is no other memory: it ties streams together.
    pub(super) fn hold(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        token: &mut DriverToken,
    ) -> Option<BlockRef> {
        loop {
            let in_use = self.may_wait(state, token)?;
            let mut central = self.lock(token);
            let mut item = central.waiting.take_stolen()?;
            // In our hands it is in no list: others who are short wait for it all the same.
            self.coming.fetch_add(1, SeqCst);
            let victim = central.state(item.from.owner).cloned();
            drop(central);
            let held =
                victim.map(|victim| victim.timeline.hold(&in_use, item.from.value, &*self.driver, token));
            let is_held = matches!(held, Some(Ok(())));
            let mut central = self.lock(token);
            if is_held {
                Core::count(&self.tallies.holds);
                self.watch.event(Kind::Wait, state.id, item.bytes, 0);
                central.take_in(&mut item.blocks, state.owner);
            } else {
                central.waiting.add_stolen(item);
            }
            self.coming.fetch_sub(1, SeqCst);
            if !is_held {
                return None;
            }
            if let Some(block) = central.find(state, want) {
                return Some(block);
            }
        }
    }
}

impl Central {
    /// Streams that use these blocks and have not left: held, they keep their places.
    fn users_of(&self, blocks: &[BlockRef]) -> BTreeMap<User, Arc<StreamState>> {
        let mut users = BTreeMap::new();
        for block in blocks {
            let uses = block.uses.take();
            for &(owner, id) in uses.iter().flat_map(|uses| &uses.streams) {
                let state = self.state(owner).filter(|state| state.id == id && !state.has_left());
                users.extend(state.map(|state| ((owner, id), state.clone())));
            }
            block.uses.set(uses);
        }
        users
    }
}

/// Bytes of all blocks of a stack.
fn sum(stack: &mut Stack) -> usize {
    let mut taken = stack.take();
    let mut bytes = 0;
    while let Some(block) = taken.pop() {
        bytes += block.bytes.get();
        stack.push(block);
    }
    bytes
}

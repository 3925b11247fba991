//! Objects that C holds by a handle: a place in a table and the place's generation,
//! in a pointer that nobody follows.
//!
//! ```text
//! FREE --insert--> BUSY --> LIVE --take--> BUSY --> FREE, a generation later
//! ```
//!
//! A handle of an earlier generation, of another kind, or made up, finds no object. No
//! lock, so that a forked child cannot find one taken. What no table can tell is an
//! object that one thread destroys while another is inside a call with it: that is the
//! caller's to avoid, as the header says. Generations begin at 1: no small number is a
//! handle.
#![allow(unsafe_code)]

use crate::codes::pny_status::*;
use crate::failure::Failure;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const PHASE: u64 = 0b11;
const FREE: u64 = 0;
const BUSY: u64 = 1;
const LIVE: u64 = 2;
const GENERATION: u64 = 0b100;

/// Objects of one kind at a time.
const PLACES: usize = 1024;
/// The handle's bits: kind, place, generation.
const KIND_BITS: u32 = 4;
const PLACE_BITS: u32 = 12;
const GENERATION_SHIFT: u32 = KIND_BITS + PLACE_BITS;
/// As many as fit above the place.
const GENERATIONS: u64 = (1 << (u64::BITS - GENERATION_SHIFT)) - 1;

struct Place<T> {
    /// Generation and phase.
    word: AtomicU64,
    /// The fork generation of the process that made the object.
    forks: AtomicU32,
    object: UnsafeCell<MaybeUninit<T>>,
}

/// A table of the objects of one kind.
pub struct Handles<T> {
    /// What tells its handles from those of other tables: 1 to 15.
    kind: u64,
    /// The object's name in C.
    name: &'static str,
    places: [Place<T>; PLACES],
}

// SAFETY: an object is written and taken by whoever has made its place BUSY, by one
// compare-and-swap; between, only shared references to it are given out.
unsafe impl<T: Send + Sync> Sync for Handles<T> {}

impl<T> Handles<T> {
    /// An empty table. `kind` is 1 to 15, and no other table's of the library.
    pub const fn new(kind: u64, name: &'static str) -> Handles<T> {
        assert!(kind > 0 && kind < 1 << KIND_BITS && PLACES <= 1 << PLACE_BITS);
        Handles {
            kind,
            name,
            places: [const {
                Place {
                    word: AtomicU64::new(GENERATION | FREE),
                    forks: AtomicU32::new(0),
                    object: UnsafeCell::new(MaybeUninit::uninit()),
                }
            }; PLACES],
        }
    }

    /// Gives the object a handle; back with it where there is no place.
    pub fn insert(&self, object: T) -> Result<u64, Failure> {
        for (index, place) in self.places.iter().enumerate() {
            let word = place.word.load(Relaxed);
            // Acquire: pairs with the Release of `take`; the place is empty.
            if word & PHASE != FREE
                || place.word.compare_exchange(word, word | BUSY, Acquire, Relaxed).is_err()
            {
                continue;
            }
            // SAFETY: BUSY by our exchange: nobody else looks at the object.
            unsafe { (*place.object.get()).write(object) };
            place.forks.store(pinyard_hooks::fork_generation(), Relaxed);
            // Release: whoever reads LIVE sees the object, and whose it is.
            place.word.store(word | LIVE, Release);
            return Ok(self.handle(index, word));
        }
        let cause = format!("{PLACES} objects {} exist, as many as there can be", self.name);
        Err(Failure::new(PNY_ERR_RESOURCES, cause))
    }

    fn handle(&self, index: usize, word: u64) -> u64 {
        (((word / GENERATION) & GENERATIONS) << GENERATION_SHIFT) | ((index as u64) << KIND_BITS) | self.kind
    }

    /// The place of a handle, and its word while it is live.
    #[inline]
    fn place(&self, handle: u64) -> Result<(&Place<T>, u64), Failure> {
        let (place, word, live) = self.entry(handle)?;
        if word == live { Ok((place, live)) } else { Err(self.stale(handle)) }
    }

    /// The place that a handle names, its word, and the word of the handle's object.
    #[inline]
    fn entry(&self, handle: u64) -> Result<(&Place<T>, u64, u64), Failure> {
        let index = (handle >> KIND_BITS) as usize & ((1 << PLACE_BITS) - 1);
        let live = ((handle >> GENERATION_SHIFT) * GENERATION) | LIVE;
        match self.places.get(index) {
            // Acquire: pairs with `insert`.
            Some(place) if handle & ((1 << KIND_BITS) - 1) == self.kind => {
                Ok((place, place.word.load(Acquire), live))
            }
            _ => Err(self.stale(handle)),
        }
    }

    #[cold]
    fn stale(&self, handle: u64) -> Failure {
        match handle {
            0 => {
                let cause = format!("the {name} is null; {name}_create makes one", name = self.name);
                Failure::new(PNY_ERR_INVALID, cause)
            }
            _ => {
                let cause = format!("{handle:#x} is no {}, or one that was destroyed", self.name);
                Failure::new(PNY_ERR_STALE, cause)
            }
        }
    }

    /// The object. The caller's caller vouches that nobody destroys it meanwhile.
    #[inline]
    pub fn get(&self, handle: u64) -> Result<&T, Failure> {
        let (place, _) = self.place(handle)?;
        // SAFETY: LIVE, so it is initialised, and nobody takes it (the header's rule).
        Ok(unsafe { (*place.object.get()).assume_init_ref() })
    }

    /// As [`get`](Handles::get), for whoever keeps the object from being taken: also while
    /// a `take` is asking whether it may go.
    #[inline]
    pub fn get_held(&self, handle: u64) -> Result<&T, Failure> {
        let (place, word, live) = self.entry(handle)?;
        if word != live && word != live & !PHASE | BUSY {
            return Err(self.stale(handle));
        }
        // SAFETY: it was LIVE in this generation, and `may_go` refuses while it is held.
        Ok(unsafe { (*place.object.get()).assume_init_ref() })
    }

    /// Takes the object out if `may_go`; the handle is none from then on.
    pub fn take(&self, handle: u64, may_go: impl FnOnce(&T) -> Result<(), Failure>) -> Result<T, Failure> {
        let (place, live) = self.place(handle)?;
        // Of two threads that destroy it, one does.
        place
            .word
            .compare_exchange(live, live & !PHASE | BUSY, AcqRel, Relaxed)
            .map_err(|_| self.stale(handle))?;
        // SAFETY: BUSY by our exchange, and it was LIVE.
        if let Err(failure) = may_go(unsafe { (*place.object.get()).assume_init_ref() }) {
            place.word.store(live, Release);
            return Err(failure);
        }
        // SAFETY: as above; the place is empty from now on.
        let object = unsafe { (*place.object.get()).assume_init_read() };
        // Release: pairs with `insert`.
        place.word.store((live & !PHASE).wrapping_add(GENERATION) | FREE, Release);
        Ok(object)
    }

    fn live(&self) -> impl Iterator<Item = (&Place<T>, u64)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            // Acquire: pairs with `insert`.
            let word = place.word.load(Acquire);
            (word & PHASE == LIVE).then(|| (place, self.handle(index, word)))
        })
    }

    /// The handles of all objects there are.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.live().map(|(_, handle)| handle)
    }

    /// The names of all objects that this process has made and not destroyed; of those that
    /// others make or destroy meanwhile, some.
    pub fn left(&self) -> impl Iterator<Item = String> {
        let own = |place: &Place<T>| place.forks.load(Relaxed) == pinyard_hooks::fork_generation();
        let left = self.live().filter(move |&(place, _)| own(place));
        left.map(|(_, handle)| format!("{} {handle:#x}", self.name))
    }
}

/// A handle as C sees it.
pub fn to_pointer<P>(handle: u64) -> *mut P {
    core::ptr::without_provenance_mut::<c_void>(handle as usize).cast()
}

/// The number in C's pointer.
#[inline]
pub fn from_pointer<P>(pointer: *mut P) -> u64 {
    pointer.addr() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Handles<String> = Handles::new(3, "text");

    #[test]
    fn null_stale_foreign_and_invented_handles_are_refused() {
        let handle = TABLE.insert("one".to_owned()).unwrap();
        assert_eq!(TABLE.get(handle).unwrap(), "one");
        for wrong in [handle + 1, handle ^ 0x10, handle + (1 << GENERATION_SHIFT), 1, 3, 3 | 0xfff0, u64::MAX]
        {
            assert_eq!(TABLE.get(wrong).unwrap_err().status, PNY_ERR_STALE, "{wrong:#x}");
        }
        let null = TABLE.get(0).unwrap_err();
        assert_eq!(
            (null.status, null.cause.as_str()),
            (PNY_ERR_INVALID, "the text is null; text_create makes one")
        );
        let refused = TABLE.take(handle, |_| Err(Failure::new(PNY_ERR_BUSY, "held"))).unwrap_err();
        assert_eq!((refused.status, TABLE.get(handle).unwrap().as_str()), (PNY_ERR_BUSY, "one"));
        assert_eq!(TABLE.take(handle, |_| Ok(())).unwrap(), "one");
        assert_eq!(TABLE.take(handle, |_| Ok(())).unwrap_err().status, PNY_ERR_STALE);
        let next = TABLE.insert("two".to_owned()).unwrap();
        assert_ne!(next, handle, "the place is the same, the generation is not");
        assert_eq!(TABLE.get(handle).unwrap_err().status, PNY_ERR_STALE);
        TABLE.take(next, |_| Ok(())).unwrap();
    }

    #[test]
    fn who_holds_it_reaches_it_while_somebody_asks_whether_it_may_go() {
        static HELD: Handles<u8> = Handles::new(5, "byte");
        let handle = HELD.insert(7).unwrap();
        let refused = HELD.take(handle, |_| {
            assert_eq!(HELD.get(handle).unwrap_err().status, PNY_ERR_STALE);
            assert_eq!(HELD.get_held(handle).unwrap(), &7);
            Err(Failure::new(PNY_ERR_BUSY, "held"))
        });
        assert_eq!(refused.unwrap_err().status, PNY_ERR_BUSY);
        HELD.take(handle, |_| Ok(())).unwrap();
        assert_eq!(HELD.get_held(handle).unwrap_err().status, PNY_ERR_STALE);
    }

    /// Threads that destroy the same one: one does.
    #[test]
    fn it_is_taken_once() {
        static RACED: Handles<Box<u32>> = Handles::new(6, "box");
        for round in 0..2000 {
            let handle = RACED.insert(Box::new(round)).unwrap();
            let start = std::sync::Barrier::new(2);
            let take = || {
                start.wait();
                RACED.take(handle, |_| Ok(())).is_ok()
            };
            let (one, other) = std::thread::scope(|scope| {
                let other = scope.spawn(take);
                (take(), other.join().unwrap())
            });
            assert!(one != other, "round {round}: {one}, {other}");
        }
    }

    #[test]
    fn there_is_an_end_to_them() {
        static FULL: Handles<u8> = Handles::new(4, "byte");
        let handles: Vec<u64> = (0..PLACES).map(|_| FULL.insert(0).unwrap()).collect();
        assert_eq!(FULL.insert(0).unwrap_err().status, PNY_ERR_RESOURCES);
        let names: Vec<String> = handles.iter().map(|handle| format!("byte {handle:#x}")).collect();
        assert_eq!(FULL.left().collect::<Vec<_>>(), names);
        for handle in handles {
            FULL.take(handle, |_| Ok(())).unwrap();
        }
        assert_eq!(FULL.left().count(), 0);
    }
}

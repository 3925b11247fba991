//! A device that keeps books: which registrations stand, over which pages.

use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, PageRange};
use std::sync::{Arc, Mutex};

pub struct Entry {
    pub range: PageRange,
    pub access: Access,
    pub stands: bool,
}

/// The entry of a registration is at the index that its lkey names.
#[derive(Default)]
pub struct Ledger {
    entries: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub fn new() -> Arc<Ledger> {
        Arc::default()
    }

    /// A panic in a deregistration would only be counted by the registry, so a
    /// second one ends the process.
    pub fn backend(self: &Arc<Self>) -> Custom {
        let (births, deaths) = (self.clone(), self.clone());
        Custom::new(
            "ledger",
            move |range, access| {
                let mut entries = births.entries.lock().unwrap();
                entries.push(Entry { range, access, stands: true });
                Ok(MemoryKey { lkey: entries.len() as u64 - 1, rkey: 0, handle: 0 })
            },
            move |key: MemoryKey, range| {
                let mut entries = deaths.entries.lock().unwrap();
                let entry = &mut entries[key.lkey as usize];
                if !std::mem::replace(&mut entry.stands, false) || entry.range != range {
                    eprintln!("{key:?} of {range} was deregistered twice or under another range");
                    std::process::abort();
                }
                Ok(())
            },
        )
    }

    pub fn stands(&self, lkey: u64) -> bool {
        self.entries.lock().unwrap()[lkey as usize].stands
    }

    /// Registrations ever made.
    pub fn made(&self) -> usize {
        self.entries.lock().unwrap().len()
    }

    /// Registrations not yet given back.
    pub fn standing(&self) -> usize {
        self.entries.lock().unwrap().iter().filter(|entry| entry.stands).count()
    }
}

//! A program to look at: buffers that come and go, and a pool. With PINYARD_TRACE set it
//! leaves a trace of itself (docs/src/reports.md).
#![allow(missing_docs)]

use pinyard::registry::backend::Mlock;
use pinyard::{Access, Pool, Registry};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(8000), |rounds| rounds.parse::<usize>())?;
    let registry = Registry::builder().backend(Mlock::new()).budget(32 << 20).build()?;
    let pool = Pool::host(&registry).slab_bytes(4 << 20).build()?;
    let mut kept = Vec::new();
    for round in 0..rounds {
        // A buffer of its own mapping each time: registered, used, unmapped.
        let buffer = vec![round as u8; 1 << 20];
        let lease = registry.get(&buffer, Access::LOCAL_WRITE)?;
        std::thread::sleep(Duration::from_micros(200 + 50 * (round % 7) as u64));
        drop(lease);
        // Blocks of the pool, whose slab is registered once.
        kept.push(pool.alloc::<f64>(100 << (round % 7))?);
        if kept.len() > 40 {
            kept.drain(..20);
        }
    }
    println!("{rounds} rounds: {:?}", registry.stats().hits + registry.stats().misses);
    Ok(())
}

//! What the environment does to a pool, in processes of their own: the test starts
//! itself again.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use pinyard_allocator::config::{Overrides, Pools, TABLE};
use pinyard_allocator::device::{DevicePool, TraceOptions};
use pinyard_allocator::replay::{self, Configuration};
use pinyard_allocator::trace::{Event, Reader, Trace};
use pinyard_allocator::{BuildError, Pool};
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Runs the ignored test `name` with these variables; its output.
fn child(name: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", name, "--nocapture"]);
    for setting in TABLE {
        for name in [Pools::Device, Pools::Host].into_iter().filter_map(|pools| setting.name_for(pools)) {
            command.env_remove(name);
        }
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
#[ignore = "started by the others"]
fn uses_a_pool() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let built = DevicePool::builder(gpu.clone()).limit(512 * MIB).build();
    let pool = match built {
        Ok(pool) => pool,
        Err(error) => return println!("refused: {error}"),
    };
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    let large = pool.alloc(20 * MIB, &stream);
    println!("large: {}", large.is_ok());
    let left = pool.alloc(777, &stream).unwrap();
    drop(large);
    // The last handles go first.
    drop((pool, stream));
    drop(left);
    // Settings do not reach a pool that will not be told.
    let free = DevicePool::builder(gpu).ignore_environment().build();
    println!("untold: {}", free.is_ok());
}

#[test]
fn the_environment_has_the_last_word() {
    let (ok, text) = child("uses_a_pool", &[]);
    assert!(ok && text.contains("large: true"), "{text}");
    let (ok, text) = child("uses_a_pool", &[("PINYARD_POOL_LIMIT", "8M")]);
    assert!(ok && text.contains("large: false") && text.contains("untold: true"), "{text}");
    let (ok, text) = child("uses_a_pool", &[("PINYARD_POOL_LIMIT", "1%")]);
    assert!(ok && text.contains("large: false"), "{text}");
}

#[test]
fn a_wrong_variable_is_named() {
    let (ok, text) = child("uses_a_pool", &[("PINYARD_POOL_LIMIT", "lots")]);
    let wanted = "refused: PINYARD_POOL_LIMIT=\"lots\" is refused: bytes from 1";
    assert!(ok && text.contains(wanted), "{text}");
    let (ok, text) = child("uses_a_pool", &[("PINYARD_POOL_LIMITS", "1G")]);
    assert!(
        ok && text.contains("there is no setting \"PINYARD_POOL_LIMITS\": there are PINYARD_POOL_LIMIT,"),
        "{text}"
    );
}

#[test]
fn leaks_and_the_trace_come_from_the_environment() {
    let folder = std::env::temp_dir().join(format!("pinyard-settings-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("trace");
    let file = path.to_str().unwrap();
    let variables =
        [("PINYARD_POOL_LEAKS", "1"), ("PINYARD_POOL_TRACE_FILE", file), ("PINYARD_POOL_STACKS", "1")];
    let (ok, text) = child("uses_a_pool", &variables);
    assert!(ok && text.contains("pinyard: 1 blocks of 777 bytes are in use"), "{text}");
    assert!(text.contains("uses_a_pool at "), "the place is told: {text}");
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().collect();
    assert_eq!(files.len(), 1);
    let events: Result<Vec<Event>, _> =
        Reader::new(&*std::fs::read(files[0].path()).unwrap()).unwrap().collect();
    let events = events.unwrap();
    assert!(events.iter().any(|event| event.bytes == 777 && !event.stack.is_empty()), "{events:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "started by the others"]
fn uses_a_host_pool() {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let builder = || Pool::host(&registry).limit(512 * MIB);
    let pool = match builder().build() {
        Ok(pool) => pool,
        Err(error) => return println!("refused: {error}"),
    };
    println!("large: {}", pool.alloc::<u8>(20 * MIB).is_ok());
    println!("slabs of {}", pool.slab_bytes());
    let left = pool.alloc::<u8>(777).unwrap();
    drop(pool);
    drop(left);
    // One that no handle's end tells of, as in a static.
    let pool = builder().build().unwrap();
    std::mem::forget((pool.alloc::<u8>(5000).unwrap(), pool));
    let untold = builder().ignore_environment().build().unwrap();
    println!("untold: {}", untold.alloc::<u8>(20 * MIB).is_ok());
    std::mem::forget(untold.alloc::<u8>(6000).unwrap());
}

#[test]
fn host_pools_have_names_of_their_own() {
    let (ok, text) = child("uses_a_host_pool", &[("PINYARD_POOL_LIMIT", "8M"), ("PINYARD_POOL_LEAKS", "1")]);
    assert!(ok && text.contains("large: true") && text.contains("slabs of 67108864"), "{text}");
    assert!(!text.contains("are in use"), "{text}");
    let variables = [("PINYARD_HOST_POOL_LIMIT", "8M"), ("PINYARD_HOST_POOL_SLAB_BYTES", "3M")];
    let (ok, text) = child("uses_a_host_pool", &variables);
    assert!(ok && text.contains("large: false") && text.contains("untold: true"), "{text}");
    assert!(text.contains("slabs of 4194304"), "{text}");
    // A part of what the process may have: of any machine's memory that is more than 20 MiB.
    let (ok, text) = child("uses_a_host_pool", &[("PINYARD_HOST_POOL_LIMIT", "90%")]);
    assert!(ok && text.contains("large: true"), "{text}");
    let (ok, text) = child("uses_a_host_pool", &[("PINYARD_HOST_POOL_LIMITS", "1G")]);
    assert!(
        ok && text.contains(
            "no setting \"PINYARD_HOST_POOL_LIMITS\": there are PINYARD_HOST_POOL_LIMIT, PINYARD_HOST_POOL_SLAB_BYTES"
        ),
        "{text}"
    );
}

#[test]
fn what_a_host_pool_leaves_is_told_at_its_end_or_the_processs() {
    let (ok, text) = child("uses_a_host_pool", &[("PINYARD_HOST_POOL_LEAKS", "1")]);
    assert!(ok && text.contains("pinyard: 1 blocks of 832 bytes are in use\n1 of 832 bytes each"), "{text}");
    assert!(text.contains("pinyard: at the process's end, 1 blocks of 5120 bytes are in use"), "{text}");
    assert!(!text.contains("6144"), "it will not be told: {text}");
    let variables = [("PINYARD_HOST_POOL_LEAKS", "1"), ("PINYARD_HOST_POOL_POISON", "1")];
    let (ok, text) = child("uses_a_host_pool", &variables);
    assert!(ok && text.contains("1 of 832 bytes each, the first by thread "), "{text}");
    assert_eq!(text.matches("uses_a_host_pool at ").count(), 2, "{text}");
}

#[test]
#[ignore = "started by the others"]
fn leaves_a_device_pool() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    std::mem::forget((pool.alloc(777, &stream).unwrap(), stream, pool));
    let done = DevicePool::builder(gpu).build().unwrap();
    drop(done);
}

#[test]
fn what_a_device_pool_leaves_is_told_at_the_processs_end() {
    let (ok, text) = child("leaves_a_device_pool", &[("PINYARD_POOL_LEAKS", "1")]);
    assert!(ok && text.contains("pinyard: at the process's end, 1 blocks of 777 bytes are in use"), "{text}");
    assert_eq!(text.matches("are in use").count(), 1, "{text}");
    let (ok, text) = child("leaves_a_device_pool", &[]);
    assert!(ok && !text.contains("are in use"), "{text}");
}

#[test]
fn the_limit_changes_while_the_pool_runs() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).ignore_environment().limit(8 * MIB).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    assert!(pool.alloc(20 * MIB, &stream).is_err());
    pool.set_limit(64 * MIB);
    let block = pool.alloc(20 * MIB, &stream).unwrap();
    pool.set_limit(8 * MIB);
    assert!(pool.alloc(30 * MIB, &stream).is_err());
    drop(block);
    assert!(pool.alloc(20 * MIB, &stream).is_ok(), "what the pool has stays");
    let total = Overrides::from_pairs("limit=50%").unwrap();
    let half = DevicePool::builder(gpu.clone()).ignore_environment().configure(&total).build().unwrap();
    let stream = half.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    assert!(half.alloc(600 * MIB, &stream).is_err());
    assert!(half.alloc(400 * MIB, &stream).is_ok());
}

#[test]
fn watermarks_and_ages_come_from_settings() {
    // A device each: a pool gives its memory back when its thread comes to it.
    let bed = |pairs: &str| {
        let gpu = Arc::new(Simulated::new(1 << 30));
        let settings = Overrides::from_pairs(pairs).unwrap();
        let pool = DevicePool::builder(gpu.clone()).ignore_environment().configure(&settings).build();
        (gpu, pool)
    };
    let stream = |gpu: &Simulated, pool: &DevicePool| {
        pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap()
    };
    let refused = bed("low_mark=20%,high_mark=10%").1.unwrap_err();
    assert!(matches!(refused, BuildError::Watermarks { .. }), "{refused}");
    // Alone it is both.
    for pairs in ["low_mark=60%", "high_mark=600M"] {
        let (gpu, pool) = bed(pairs);
        let pool = pool.unwrap();
        let told = Arc::new(AtomicBool::new(false));
        let tell = told.clone();
        pool.on_pressure(move |pressure| tell.store(pressure.short, SeqCst));
        let stream = stream(&gpu, &pool);
        let _few = pool.alloc(100 * MIB, &stream).unwrap();
        assert!(!told.load(SeqCst), "{pairs}");
        let _many = pool.alloc(500 * MIB, &stream).unwrap();
        assert!(told.load(SeqCst), "{pairs}");
    }
    for (pairs, kept) in [("keep_idle_ms=5", false), ("keep_idle_ms=0", true)] {
        let (gpu, pool) = bed(pairs);
        let pool = pool.unwrap();
        drop(pool.alloc(20 * MIB, &stream(&gpu, &pool)).unwrap());
        let start = Instant::now();
        while pool.stats().reserved_bytes > 0
            && start.elapsed() < Duration::from_millis(if kept { 50 } else { 10_000 })
        {
            gpu.advance(10_000);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pool.stats().reserved_bytes > 0, kept, "{pairs}");
    }
    for (pairs, shared) in [("stall_ms=3600000", true), ("stall_ms=0", false)] {
        let (gpu, pool) = bed(pairs);
        let pool = pool.unwrap();
        let [one, other] = [stream(&gpu, &pool), stream(&gpu, &pool)];
        for stream in [&one, &other] {
            stream.fence().unwrap();
            gpu.stream_synchronize(stream.stream(), &DriverToken::at_entry()).unwrap();
        }
        let block = one.alloc(64 * MIB).unwrap();
        gpu.kernel(one.stream(), 5_000_000, &DriverToken::at_entry());
        drop(block);
        let _block = other.alloc(64 * MIB).unwrap();
        assert_eq!(pool.stats().growths == 1, shared, "{pairs}: {:?}", pool.stats());
    }
    let wall = Configuration::from_pairs("keep_idle_ms=5").unwrap_err().to_string();
    assert!(wall.contains("wall clock"), "{wall}");
}

fn steady() -> Trace {
    let alloc = |at: u64| Event::alloc(1000 * at, at, 1 + at * 7919 % (3 * MIB as u64), 1 + at % 2);
    let free = |at: u64| Event::free(1000 * at, at);
    let events =
        (1..=400).flat_map(|at| if at > 20 { vec![alloc(at), free(at - 20)] } else { vec![alloc(at)] });
    Trace::of(events.collect())
}

fn replayed(pairs: &str, trace: &Trace) -> replay::Outcome {
    replay::run(&Configuration::from_pairs(pairs).unwrap(), trace.events.iter().cloned().map(Ok)).unwrap()
}

#[test]
fn a_replay_is_the_same_every_time_and_tells_configurations_apart() {
    let trace = steady();
    let plain = replayed("", &trace);
    assert_eq!(replayed("", &trace), plain);
    let live: u64 = (381..=400).chain([380]).map(|at| 1 + at * 7919 % (3 * MIB as u64)).sum();
    assert!(plain.peak_live_bytes >= live.min(plain.peak_live_bytes) && plain.failures == 0);
    assert_eq!((plain.events, plain.allocations, plain.streams), (780, 400, 2));
    assert!(plain.ratio() >= 1.0 && plain.driver_calls["MemAlloc"] > 0, "{plain:?}");
    assert_eq!(plain.simulated_ns - plain.driver_ns, 399_000);
    let tight = replayed("limit=16M", &trace);
    assert!(tight.failures > 0 && tight.peak_reserved_bytes <= 16 << 20, "{tight:?}");
    let mapped = replayed("source=virtual", &trace);
    assert!(
        mapped.driver_calls.contains_key("PhysicalCreate") && !mapped.driver_calls.contains_key("MemAlloc")
    );
    let worked = replayed("kernel_ns=50000,limit=40M", &trace);
    assert!(worked.simulated_ns >= plain.simulated_ns, "{worked:?}");
}

/// What a pool records is what its replay through the same pool does.
#[test]
fn a_recorded_trace_replays_alike() {
    let gpu = Arc::new(Simulated::new(80 << 30));
    let pool =
        DevicePool::builder(gpu.clone()).ignore_environment().trace(TraceOptions::default()).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    let mut live = std::collections::VecDeque::new();
    for at in 0..500usize {
        live.push_back(pool.alloc(1 + at * 104_729 % (2 * MIB), &stream).unwrap());
        if live.len() > 30 {
            live.pop_front();
        }
    }
    drop(live);
    let (trace, stats) = (pool.trace(), pool.stats());
    assert_eq!(trace.lost, 0);
    let replay = replayed("", &trace);
    assert_eq!((replay.allocations, replay.failures), (500, 0));
    assert_eq!(replay.peak_reserved_bytes, stats.peak_reserved_bytes);
    assert_eq!(replay.hits, stats.hits);
}

#[test]
fn a_replay_makes_no_more_streams_than_it_can() {
    let events = (1..10_000).map(|at| Event::alloc(at, at, 1, at));
    let error = replay::run(&Configuration::from_pairs("").unwrap(), events.map(Ok)).unwrap_err().to_string();
    assert_eq!(error, "line 1026: more than 1024 streams");
}

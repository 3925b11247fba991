//! The trace of a process: what is in it, who may read it, and that nothing is there
//! unless it was asked for. Each case runs in a process of its own: a trace begins once.
#![allow(clippy::unwrap_used)]

use pinyard_allocator::device::DevicePool;
use pinyard_allocator::trace::{Event, Kind, ReadError, Reader};
use pinyard_allocator::{AtomicFence, DriverToken, Pool};
use pinyard_driver::{Driver, Simulated};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, Events, MemoryKey, Registry};
use pinyard_trace::counters::Document;
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECRET: u64 = 0x0dec_0ded_5ec2_e7aa;
const ROLE: &str = "PROCESS_TRACE_ROLE";
/// What the other process does: 101 blocks of the host's and 10 of a device's.
const ALLOCATIONS: u64 = 111;
/// At least as many.
const EVENTS: usize = 200;

fn registry() -> Registry {
    let key = MemoryKey { lkey: SECRET, rkey: SECRET, handle: SECRET };
    let backend = Custom::new("made-up", move |_, _| Ok(key), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).budget(64 << 20);
    registry.build().unwrap_or_else(|error| {
        println!("refused: {error}");
        std::process::exit(3)
    })
}

/// What is recorded: the other process.
fn work() {
    let registry = registry();
    let pool = Pool::host(&registry).slab_bytes(2 << 20).build().unwrap();
    let blocks: Vec<_> = (0..100).map(|_| pool.alloc::<u8>(1000).unwrap()).collect();
    let fence = AtomicFence::new();
    pool.alloc::<u8>(5000).unwrap().defer_until(fence.at(0));
    pool.poll_fences();
    drop(blocks);
    let buffer = vec![0u8; 1 << 20];
    drop(registry.get(&buffer, Access::LOCAL_WRITE).unwrap());
    registry.invalidate(&buffer).unwrap();
    let gpu = Arc::new(Simulated::new(1 << 30));
    let device = DevicePool::builder(gpu.clone()).build().unwrap();
    let token = DriverToken::at_entry();
    let stream = device.stream(gpu.stream_create(&token).unwrap()).unwrap();
    drop((0..10).map(|_| stream.alloc(70_000).unwrap()).collect::<Vec<_>>());
    let dies = std::env::var(ROLE).unwrap() == "dies";
    until_it_is_written(if dies { EVENTS } else { 0 });
    if dies {
        std::process::abort();
    }
    drop((device, pool));
}

/// The files are written every half a second; on a busy machine, when their thread gets to it.
fn until_it_is_written(events: usize) {
    let folder = PathBuf::from(std::env::var_os("PINYARD_TRACE").unwrap());
    let written = || {
        let traced = of_kind(&folder, "trace").first().map_or(0, |file| read(file).0.len());
        let counters = of_kind(&folder, "counters").first().and_then(|file| Document::read(file).ok());
        traced >= events && counters.is_some_and(|document| document.counters.allocations == ALLOCATIONS)
    };
    let began = Instant::now();
    while !written() {
        assert!(began.elapsed() < Duration::from_secs(60), "the files were not written in 60 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "started by the others"]
fn the_other_process() {
    work();
}

fn run(role: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "the_other_process", "--nocapture"]).env(ROLE, role);
    command.env_remove("SLURM_PROCID").env("OMPI_COMM_WORLD_RANK", "3");
    command.envs(variables.iter().copied()).output().unwrap()
}

fn with_trace(role: &str, name: &str, more: &[(&str, &str)]) -> (PathBuf, Output) {
    let folder = std::env::temp_dir().join(format!("pinyard-trace-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let mut variables = vec![("PINYARD_TRACE", folder.to_str().unwrap())];
    variables.extend_from_slice(more);
    let output = run(role, &variables);
    (folder, output)
}

fn of_kind(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == kind)).collect()
}

fn read(path: &Path) -> (Vec<Event>, Option<ReadError>) {
    let mut events = Vec::new();
    let reader = match Reader::new(BufReader::new(fs::File::open(path).unwrap())) {
        Ok(reader) => reader,
        Err(error) => return (events, Some(error)),
    };
    for event in reader {
        match event {
            Ok(event) => events.push(event),
            Err(error) => return (events, Some(error)),
        }
    }
    (events, None)
}

#[test]
fn what_happens_is_in_the_trace_and_no_key_is() {
    let (folder, output) = with_trace("ends", "whole", &[]);
    assert!(output.status.success(), "{output:?}");
    let files = of_kind(&folder, "trace");
    let [file] = &files[..] else { panic!("one file, not {files:?}") };
    assert!(file.file_name().unwrap().to_str().unwrap().contains("-r3-"), "{file:?}");
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let text = fs::read_to_string(file).unwrap();
    assert!(!text.contains(&SECRET.to_string()) && !text.contains("rkey"), "a key is in the trace");

    let (events, error) = read(file);
    assert!(error.is_none(), "{error:?}");
    let count = |kind, name: &str| events.iter().filter(|of| of.event == kind && of.name == name).count();
    assert_eq!((count(Kind::Alloc, "host"), count(Kind::Free, "host")), (101, 101), "{text}");
    assert_eq!(count(Kind::Fence, "host"), 1);
    assert_eq!((count(Kind::Grow, "host"), count(Kind::Trim, "host")), (1, 1));
    assert_eq!((count(Kind::Alloc, "device"), count(Kind::Free, "device")), (10, 10));
    // The slab, and the buffer.
    assert_eq!((count(Kind::Register, "made-up"), count(Kind::Deregister, "made-up")), (2, 2));
    assert!(count(Kind::Invalidate, "made-up") >= 1);
    assert_eq!(count(Kind::Lost, ""), 0);
    let alloc = events.iter().find(|of| of.event == Kind::Alloc && of.name == "host").unwrap();
    let grow = events.iter().find(|of| of.event == Kind::Grow && of.name == "host").unwrap();
    assert_eq!((alloc.slab, alloc.bytes), (grow.address, 1000));
    assert!((grow.address..grow.address + grow.bytes).contains(&alloc.address));
    let device = events.iter().find(|of| of.event == Kind::Alloc && of.name == "device").unwrap();
    assert!(device.stream > 0 && device.bytes == 70_000 && device.block_bytes >= 70_000, "{device:?}");
    let timed = events.iter().filter(|of| of.event == Kind::Register);
    assert!(timed.clone().all(|of| of.bytes > 0 && of.of > 0), "{:?}", timed.collect::<Vec<_>>());

    let counters = of_kind(&folder, "counters");
    assert_eq!(counters.len(), 1);
    let document = Document::read(&counters[0]).unwrap();
    assert!(document.ended && document.process.rank == Some(3), "{document:?}");
    assert_eq!(document.counters.allocations, ALLOCATIONS, "{document:?}");
    assert_eq!(document.counters.misses, 2);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_killed_process_leaves_what_it_had() {
    let (folder, output) = with_trace("dies", "killed", &[]);
    assert!(!output.status.success());
    let (events, error) = read(&of_kind(&folder, "trace")[0]);
    assert!(matches!(error, Some(ReadError::Unfinished { .. })), "{error:?}");
    assert!(events.len() >= EVENTS, "{} events", events.len());
    assert!(!Document::read(&of_kind(&folder, "counters")[0]).unwrap().ended);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn without_events_there_are_counters_only() {
    let (folder, output) = with_trace("ends", "counters", &[("PINYARD_TRACE_EVENTS", "0")]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((of_kind(&folder, "trace").len(), of_kind(&folder, "counters").len()), (0, 1));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_is_refused_when_the_registry_is_made() {
    for (variables, words) in [
        (&[("PINYARD_TRACE", "/proc/nowhere")][..], "mkdir(/proc/nowhere) failed"),
        (
            &[("PINYARD_TRACE", "/tmp"), ("PINYARD_TRACE_EVENTS", "3")],
            "PINYARD_TRACE_EVENTS is \"3\": it must be 0, or 1024",
        ),
        (&[("PINYARD_TRACE_FOLDER", "/tmp")], "there is no variable PINYARD_TRACE_FOLDER"),
    ] {
        let output = run("ends", variables);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(3) && text.contains(words), "{output:?}");
    }
}

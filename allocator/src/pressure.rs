//! How much memory is left, as those say who would refuse more: the device, the
//! process's control groups (`pinyard_registry::machine`), the limit on locked memory
//! (getrlimit(2)).

use parking_lot::Mutex;
use pinyard_registry::machine::{MemoryGroup, may_lock_anything, memlock_limit, memory_groups};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Bytes, or a part of what there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Bytes.
    Bytes(usize),
    /// A part, 0 to 1.
    Fraction(f64),
}

impl Bound {
    /// Bytes, of `total`.
    pub fn of(self, total: usize) -> usize {
        match self {
            Bound::Bytes(bytes) => bytes.min(total),
            Bound::Fraction(part) => (total as f64 * part) as usize,
        }
    }

    pub(crate) fn is_sound(self) -> bool {
        matches!(self, Bound::Bytes(_))
            || matches!(self, Bound::Fraction(part) if (0.0..=1.0).contains(&part))
    }
}

/// Where pressure begins and ends, as memory that is left. Between the two it is as
/// it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermarks {
    /// It begins below this.
    pub low: Bound,
    /// It ends above this.
    pub high: Bound,
}

impl Watermarks {
    /// Bytes of `total`, the low one first. One may be bytes and the other a part of what changes:
    /// the high one is never below.
    pub(crate) fn of(self, total: usize) -> (usize, usize) {
        let low = self.low.of(total);
        (low, self.high.of(total).max(low))
    }
}

/// What is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can still be had.
    pub free: usize,
    /// Bytes in all.
    pub total: usize,
}

impl Room {
    /// Of both: what the one with less left has, of the lesser total.
    fn within(self, other: Room) -> Room {
        Room { free: self.free.min(other.free), total: self.total.min(other.total) }
    }
}

/// Memory is short, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// With `wanted` bytes more, less than the low mark is left; `false`: as much as the high mark
    /// again.
    pub short: bool,
    /// Bytes that were about to be asked for.
    pub wanted: usize,
    /// What is left, after the pool gave back what it could.
    pub room: Room,
    /// Bytes that the pool holds in slabs.
    pub reserved: usize,
    /// Bytes that it gave back just now.
    pub given_back: usize,
}

type Observer = Arc<dyn Fn(&Pressure) + Send + Sync>;

/// Who is told of a pool's pressure, and what was said last.
#[derive(Default)]
pub(crate) struct Told {
    observers: Mutex<Vec<Observer>>,
    /// Less than the low mark was left, and not yet more than the high one.
    pressed: AtomicBool,
}

impl Told {
    pub(crate) fn add(&self, observer: impl Fn(&Pressure) + Send + Sync + 'static) {
        self.observers.lock().push(Arc::new(observer));
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(SeqCst)
    }

    /// Tells of a change since `before`: one thread of each, by the mark that held for it.
    pub(crate) fn tell(&self, before: bool, short: bool, pressure: impl FnOnce() -> Pressure) {
        if short != before && self.pressed.compare_exchange(before, short, SeqCst, SeqCst).is_ok() {
            let pressure = pressure();
            let observers = self.observers.lock().clone();
            observers.iter().for_each(|observer| observer(&pressure));
        }
    }
}

/// What limits a process's host memory. Files are read when it is asked, a few
/// microseconds.
#[derive(Clone, Debug)]
pub struct HostLimits {
    groups: Vec<MemoryGroup>,
    /// Of `/proc`.
    process: PathBuf,
    /// RLIMIT_MEMLOCK, unless there is none.
    memlock: Option<usize>,
}

impl HostLimits {
    /// This process's.
    pub fn of_process() -> HostLimits {
        HostLimits {
            groups: memory_groups(&read),
            process: "/proc/thread-self".into(),
            memlock: memlock_limit().map(|bytes| bytes as usize),
        }
    }

    /// From files elsewhere: a container's, or a test's. `cgroups` is where control groups
    /// of version 2 are mounted, and in `memory` those of version 1; `process` has `cgroup`,
    /// `status` and `uid_map` as `/proc/thread-self` does, and `meminfo` beside it; a file that is
    /// missing limits nothing.
    pub fn at(cgroups: &Path, process: &Path, memlock: Option<usize>) -> HostLimits {
        let at = cgroups.display();
        let mounts =
            format!("0 0 0:0 / {at} - cgroup2 none rw\n0 0 0:0 / {at}/memory - cgroup none memory\n");
        let files = |path: &Path| match path.to_str()? {
            "/proc/thread-self/mountinfo" => Some(mounts.clone()),
            "/proc/thread-self/cgroup" => read(&process.join("cgroup")),
            _ => read(path),
        };
        HostLimits { groups: memory_groups(&files), process: process.to_owned(), memlock }
    }

    /// What is left of any memory, and of how much: the least of what the groups, by the lower of
    /// `memory.max` and `memory.high`, or version 1's `memory.limit_in_bytes`, and the machine
    /// (`MemAvailable` of `/proc/meminfo`) have left, and the least total. `None` where nothing says so.
    pub fn memory(&self) -> Option<Room> {
        let rooms = self.groups.iter().filter_map(|group| {
            let (total, used) = (group.limit(&read)? as usize, group.used(&read)? as usize);
            Some(Room { free: total.saturating_sub(used), total })
        });
        rooms.chain(self.machine()).reduce(Room::within)
    }

    fn machine(&self) -> Option<Room> {
        let text = read(&self.process.parent()?.join("meminfo"))?;
        Some(Room { free: kib(&text, "MemAvailable:")?, total: kib(&text, "MemTotal:")? })
    }

    /// What is left of pinned memory: that, or what RLIMIT_MEMLOCK leaves beside pages
    /// that are locked or pinned (`VmLck`, `VmPin`).
    pub fn pinned(&self) -> Option<Room> {
        let status = read(&self.process.join("status")).unwrap_or_default();
        let used = kib(&status, "VmLck:").unwrap_or(0) + kib(&status, "VmPin:").unwrap_or(0);
        // A file of `/proc/thread-self`, which is `process` here.
        let own = |path: &Path| read(&self.process.join(path.file_name()?));
        let binds = self.memlock.filter(|_| !may_lock_anything(&own));
        let locked = binds.map(|total| Room { free: total.saturating_sub(used), total });
        self.memory().into_iter().chain(locked).reduce(Room::within)
    }
}

/// Bytes, from a line like `VmLck:  4 kB`.
fn kib(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().ok().map(|kib| kib << 10)
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A folder of the test's own, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("pinyard-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_tightest_group_counts_by_the_lower_of_its_limits() {
        let folder = Folder::new("groups");
        let (groups, process) = (folder.0.join("cgroup"), folder.0.join("proc"));
        write(&process.join("cgroup"), "0::/job/step\n");
        write(&groups.join("memory.current"), "5000");
        for (file, text) in [("max", "max"), ("high", "max"), ("current", "100")] {
            write(&groups.join("job/step").join(format!("memory.{file}")), text);
        }
        let limits = HostLimits::at(&groups, &process, None);
        assert_eq!((limits.memory(), limits.pinned()), (None, None));
        for (file, text) in [("max", "9000\n"), ("high", "8000\n"), ("current", "6000\n")] {
            write(&groups.join("job").join(format!("memory.{file}")), text);
        }
        assert_eq!(limits.memory(), Some(Room { free: 2000, total: 8000 }));
        write(&groups.join("job/step/memory.max"), "1500");
        assert_eq!(limits.memory(), Some(Room { free: 1400, total: 1500 }));
        // Above its limit, which memory.high allows.
        write(&groups.join("job/memory.current"), "8100");
        assert_eq!(limits.memory(), Some(Room { free: 0, total: 1500 }));
    }

    /// Alone; beside version 2 without the memory; and in a container, that sees only what
    /// is its own of the path.
    #[test]
    fn groups_of_version_1_count_too() {
        let folder = Folder::new("groups-1");
        let (groups, process) = (folder.0.join("cgroup"), folder.0.join("proc"));
        write(&process.join("cgroup"), "7:cpu,cpuacct:/cpus\n5:memory:/slurm/job\n0::/unified\n");
        let set = |group: &str, limit: &str, used: &str| {
            write(&groups.join("memory").join(group).join("memory.limit_in_bytes"), limit);
            write(&groups.join("memory").join(group).join("memory.usage_in_bytes"), used);
        };
        set("", "9223372036854771712\n", "70000\n");
        let limits = HostLimits::at(&groups, &process, None);
        assert_eq!(limits.memory(), None);
        set("slurm/job", "9223372036854771712\n", "100\n");
        set("slurm", "8000\n", "6000\n");
        assert_eq!(limits.memory(), Some(Room { free: 2000, total: 8000 }));
        set("slurm/job", "1500\n", "100\n");
        assert_eq!(limits.memory(), Some(Room { free: 1400, total: 1500 }));
        // The path is the host's: only the container's own group is to be seen.
        fs::remove_dir_all(groups.join("memory/slurm")).unwrap();
        set("", "3000\n", "2500\n");
        assert_eq!(limits.memory(), Some(Room { free: 500, total: 3000 }));
    }

    #[test]
    fn locked_and_pinned_pages_count_against_the_limit_on_them_unless_it_does_not_bind() {
        let folder = Folder::new("memlock");
        let status = |caps: &str| {
            write(
                &folder.0.join("status"),
                &format!("Name:\tx\nVmLck:\t  4 kB\nVmPin:\t 12 kB\nCapEff:\t{caps}\n"),
            )
        };
        let limits = HostLimits::at(&folder.0.join("none"), &folder.0, Some(64 << 10));
        status("0000000000000000");
        assert_eq!(limits.pinned(), Some(Room { free: 48 << 10, total: 64 << 10 }));
        status("0000000000004000");
        assert_eq!(limits.pinned(), None);
        // All capabilities, in a user namespace of its own.
        write(&folder.0.join("uid_map"), "         0       1000          1\n");
        assert_eq!(limits.pinned(), Some(Room { free: 48 << 10, total: 64 << 10 }));
    }

    #[test]
    fn what_the_machine_has_left_counts_where_no_group_has_less() {
        let folder = Folder::new("machine");
        let (groups, process) = (folder.0.join("cgroup"), folder.0.join("proc/self"));
        write(&process.join("cgroup"), "0::/job\n");
        write(&folder.0.join("proc/meminfo"), "MemTotal:     100 kB\nMemFree: 1 kB\nMemAvailable:  60 kB\n");
        let limits = HostLimits::at(&groups, &process, None);
        assert_eq!(limits.memory(), Some(Room { free: 60 << 10, total: 100 << 10 }));
        write(&groups.join("job/memory.max"), "50000");
        write(&groups.join("job/memory.current"), "40000");
        let of = |memlock| HostLimits::at(&groups, &process, memlock);
        assert_eq!(of(None).memory(), Some(Room { free: 10000, total: 50000 }));
        // The total is the least, whoever has least left now.
        write(&folder.0.join("proc/meminfo"), "MemTotal:     100 kB\nMemAvailable:  6 kB\n");
        assert_eq!(of(None).memory(), Some(Room { free: 6 << 10, total: 50000 }));
        assert_eq!(of(Some(8 << 10)).pinned(), Some(Room { free: 6 << 10, total: 8 << 10 }));
        assert!(HostLimits::of_process().memory().is_some());
    }

    #[test]
    fn bounds_are_bytes_or_a_part() {
        assert_eq!((Bound::Bytes(5).of(3), Bound::Fraction(0.25).of(1000)), (3, 250));
        assert!(Bound::Fraction(1.0).is_sound() && !Bound::Fraction(1.1).is_sound());
        assert!(!Bound::Fraction(f64::NAN).is_sound());
    }
}

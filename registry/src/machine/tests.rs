use super::*;
use std::fs;

/// A made-up `/`, in a folder that goes with it.
struct Root(PathBuf);

impl Root {
    fn new(name: &str) -> Root {
        let folder = std::env::temp_dir().join(format!("pinyard-machine-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Root(folder)
    }

    fn file(&self, path: &str, text: &str) -> &Root {
        let file = self.0.join(path.strip_prefix('/').unwrap());
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        self
    }

    fn without(&self, path: &str) -> &Root {
        fs::remove_file(self.0.join(path.strip_prefix('/').unwrap())).unwrap();
        self
    }

    fn read(&self, path: &Path) -> Option<String> {
        fs::read_to_string(self.0.join(path.strip_prefix("/").unwrap())).ok()
    }

    fn memory_limit(&self) -> Option<u64> {
        memory_limit(&|path| self.read(path))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

const V2: &str = "\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate
";
const V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:10 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

#[test]
fn of_nested_groups_the_lowest_limit_counts() {
    let root = Root::new("nested");
    root.file("/proc/thread-self/cgroup", "0::/slurm/job/step\n").file("/proc/thread-self/mountinfo", V2);
    assert_eq!(root.memory_limit(), None, "no file at all");
    root.file("/sys/fs/cgroup/slurm/job/step/memory.max", "max\n");
    assert_eq!(root.memory_limit(), None, "max");
    root.file("/sys/fs/cgroup/slurm/job/memory.max", "1073741824\n");
    assert_eq!(root.memory_limit(), Some(1 << 30), "the parent's");
    root.file("/sys/fs/cgroup/slurm/job/step/memory.max", "2147483648\n");
    assert_eq!(root.memory_limit(), Some(1 << 30), "the parent's is lower");
    root.file("/sys/fs/cgroup/slurm/job/step/memory.max", "536870912\n");
    assert_eq!(root.memory_limit(), Some(1 << 29), "its own is lower");
    root.file("/sys/fs/cgroup/slurm/memory.high", "268435456\n");
    assert_eq!(root.memory_limit(), Some(1 << 28), "processes above it are held up");
    root.file("/sys/fs/cgroup/memory.max", "134217728\n");
    assert_eq!(root.memory_limit(), Some(1 << 27), "a namespace's top has files");
    root.file("/sys/fs/cgroup/other/memory.max", "1\n")
        .file("/sys/fs/cgroup/slurm/job/step/in/memory.max", "1\n");
    assert_eq!(root.memory_limit(), Some(1 << 27), "others' limits do not count");
    root.file("/sys/fs/cgroup/memory.max", "").file("/sys/fs/cgroup/slurm/memory.high", "what\n");
    assert_eq!(root.memory_limit(), Some(1 << 29), "what is no number is no limit");
}

#[test]
fn version_1_is_asked_where_it_has_the_memory_controller() {
    let root = Root::new("v1");
    let groups = "9:name=systemd:/s\n4:cpu,memory:/slurm/uid_1/job_7\n2:cpuacct:/c\n0::/u\n";
    root.file("/proc/thread-self/cgroup", groups).file("/proc/thread-self/mountinfo", V1);
    assert_eq!(root.memory_limit(), None);
    root.file("/sys/fs/cgroup/memory/slurm/uid_1/job_7/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(root.memory_limit(), None, "what version 1 says for none");
    root.file("/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "4294967296\n");
    assert_eq!(root.memory_limit(), Some(4 << 30));
    root.file("/sys/fs/cgroup/memory/s/memory.limit_in_bytes", "1\n");
    root.file("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1\n");
    root.file("/sys/fs/cgroup/cpu,cpuacct/slurm/memory.limit_in_bytes", "1\n");
    assert_eq!(root.memory_limit(), Some(4 << 30), "groups of other controllers");
    // The controller has moved to version 2, beside the others of version 1.
    root.file("/proc/thread-self/cgroup", &groups.replace("cpu,memory", "cpu"));
    assert_eq!(root.memory_limit(), None);
    root.file("/sys/fs/cgroup/unified/u/memory.max", "8192\n");
    assert_eq!(root.memory_limit(), Some(8192));
}

/// A container with a namespace of its own, one that is only shown its part of the tree,
/// and one whose tree was mounted before its namespace was made.
#[test]
fn in_a_container_the_group_is_looked_for_below_what_is_mounted() {
    let root = Root::new("container");
    root.file("/proc/thread-self/mountinfo", V2).file("/proc/thread-self/cgroup", "0::/\n");
    root.file("/sys/fs/cgroup/memory.max", "4096\n").file("/sys/fs/cgroup/inner/memory.max", "8\n");
    assert_eq!(root.memory_limit(), Some(4096), "a namespace's own root");
    root.file("/proc/thread-self/cgroup", "0::/../elsewhere\n");
    assert_eq!(root.memory_limit(), None, "a process that was moved out of the namespace");

    let part = V2.replace("/ /sys/fs/cgroup ", "/docker/a\\134b /sys/fs/cgroup ");
    root.file("/proc/thread-self/mountinfo", &part)
        .file("/proc/thread-self/cgroup", "0::/docker/a\\b/inner\n");
    assert_eq!(root.memory_limit(), Some(8), "below the group that is mounted");
    root.file("/proc/thread-self/cgroup", "0::/docker/a\\b\n");
    assert_eq!(root.memory_limit(), Some(4096));
    root.file("/proc/thread-self/cgroup", "0::/docker/abc\n");
    assert_eq!(root.memory_limit(), None, "another container's part");

    root.file("/proc/thread-self/mountinfo", &V2.replace("/ /sys/fs/cgroup ", "/.. /sys/fs/cgroup "));
    root.file("/proc/thread-self/cgroup", "0::/inner\n");
    assert_eq!(root.memory_limit(), Some(4096), "of what is mounted from above, the top");
    root.file("/proc/thread-self/cgroup", "0::/../inner\n");
    assert_eq!(root.memory_limit(), Some(8));
    // A tree that is mounted at another place, its path with a space.
    let elsewhere = V2.replace("/sys/fs/cgroup", "/mnt/my\\040groups");
    root.file("/proc/thread-self/mountinfo", &elsewhere).file("/proc/thread-self/cgroup", "0::/a\n");
    root.file("/mnt/my groups/a/memory.max", "16\n");
    assert_eq!(root.memory_limit(), Some(16));
}

#[test]
fn without_its_files_there_is_no_limit() {
    let root = Root::new("missing");
    assert_eq!(root.memory_limit(), None);
    root.file("/proc/thread-self/cgroup", "0::/a\n").file("/sys/fs/cgroup/a/memory.max", "1\n");
    assert_eq!(root.memory_limit(), None, "nothing says where groups are mounted");
    root.file("/proc/thread-self/mountinfo", V2);
    assert_eq!(root.memory_limit(), Some(1));
    root.without("/proc/thread-self/cgroup");
    assert_eq!(root.memory_limit(), None);
    for (groups, mounts) in
        [("0\n:\n::\n\n", V2), ("0::/a\n", " - \n- cgroup2\n1 2 3 - cgroup2 c rw\n"), ("", "")]
    {
        root.file("/proc/thread-self/cgroup", groups).file("/proc/thread-self/mountinfo", mounts);
        assert_eq!(root.memory_limit(), None, "{groups:?} {mounts:?}");
    }
}

#[test]
fn only_the_initial_user_namespace_lets_lock_anything() {
    let root = Root::new("locks");
    let may = || may_lock_anything(&|path| root.read(path));
    assert!(!may());
    root.file("/proc/thread-self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n");
    assert!(may());
    root.file("/proc/thread-self/uid_map", "         0       1000          1\n");
    assert!(!may(), "all capabilities, in a namespace of its own");
    root.file("/proc/thread-self/uid_map", "         0          0 4294967295\n");
    assert!(may());
    root.file("/proc/thread-self/status", "CapEff:\t00000000a80425fb\n");
    assert!(!may(), "a container's usual ones");
}

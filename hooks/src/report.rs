//! What is known about each function that changes mappings: who owns its entry,
//! and whether its calls reach the inbox. Fixed size, no allocation.

use core::fmt;

/// A libc function that can change a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each variant is the function of its name
pub enum Function {
    Munmap,
    Mmap,
    Mremap,
    Madvise,
    Brk,
    Sbrk,
    Shmdt,
    ProcessMadvise,
    /// Changes no contents; but who makes libc's text writable is about to patch.
    Mprotect,
    Syscall,
    Shmat,
    RemapFilePages,
    Ftruncate,
    Truncate,
    Fallocate,
    /// The loader's `_dl_debug_state`, which tells debuggers that objects go.
    DlDebugState,
}

impl Function {
    /// How many there are.
    pub const COUNT: usize = 16;
    /// All, in the order of their discriminants.
    pub const ALL: [Function; Self::COUNT] = [
        Function::Munmap,
        Function::Mmap,
        Function::Mremap,
        Function::Madvise,
        Function::Brk,
        Function::Sbrk,
        Function::Shmdt,
        Function::ProcessMadvise,
        Function::Mprotect,
        Function::Syscall,
        Function::Shmat,
        Function::RemapFilePages,
        Function::Ftruncate,
        Function::Truncate,
        Function::Fallocate,
        Function::DlDebugState,
    ];

    /// The C name.
    pub fn name(self) -> &'static str {
        self.c_name().to_str().unwrap_or_default()
    }

    pub(crate) fn c_name(self) -> &'static core::ffi::CStr {
        match self {
            Function::Munmap => c"munmap",
            Function::Mmap => c"mmap",
            Function::Mremap => c"mremap",
            Function::Madvise => c"madvise",
            Function::Brk => c"brk",
            Function::Sbrk => c"sbrk",
            Function::Shmdt => c"shmdt",
            Function::ProcessMadvise => c"process_madvise",
            Function::Mprotect => c"mprotect",
            Function::Syscall => c"syscall",
            Function::Shmat => c"shmat",
            Function::RemapFilePages => c"remap_file_pages",
            Function::Ftruncate => c"ftruncate",
            Function::Truncate => c"truncate",
            Function::Fallocate => c"fallocate",
            Function::DlDebugState => c"_dl_debug_state",
        }
    }
}

/// The file name of a loaded object, cut to 39 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ModuleName {
    bytes: [u8; 39],
    len: u8,
}

impl ModuleName {
    /// Code of no object.
    pub(crate) const UNKNOWN: ModuleName = {
        let mut bytes = [0; 39];
        let mut at = 0;
        while at < b"unknown code".len() {
            bytes[at] = b"unknown code"[at];
            at += 1;
        }
        ModuleName { bytes, len: at as u8 }
    };

    /// Keeps what follows the last slash of `path`.
    pub(crate) fn from_path(path: &[u8]) -> ModuleName {
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let mut name = ModuleName { bytes: [0; 39], len: file.len().min(39) as u8 };
        for (to, from) in name.bytes.iter_mut().zip(file) {
            *to = *from;
        }
        name
    }

    /// The name as text; `?` where it is not UTF-8.
    pub fn as_str(&self) -> &str {
        self.bytes.get(..self.len as usize).and_then(|b| core::str::from_utf8(b).ok()).unwrap_or("?")
    }
}

impl fmt::Debug for ModuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Whose code runs when the function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Our replacement stands at the entry.
    Pinyard,
    /// Nobody has changed the entry.
    Libc,
    /// Another patcher's jump stands at the entry, and leads into this object.
    Module(ModuleName),
    /// This libc has no such function: it can only be reached by its number.
    Absent,
}

/// Why something was not done: the call that failed and its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// The failed call with its arguments in words.
    pub call: &'static str,
    /// Its errno; 0 where there was none.
    pub errno: i32,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if self.errno != 0 {
            write!(f, " (errno {})", self.errno)?;
        }
        Ok(())
    }
}

/// What the self-test found when it called the function on memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The change happened and its event arrived.
    Yes,
    /// The change happened, or may have, and no event arrived.
    No(Why),
    /// The function could not be called safely or at all.
    NotExercised(Why),
}

/// One function's line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionReport {
    /// Which function.
    pub function: Function,
    /// Who owns its entry now.
    pub owner: Owner,
    /// Whether its calls reach the inbox.
    pub seen: Seen,
    /// Whether the moment of the install mattered. x86-64: our jump covers an
    /// instruction boundary, and went in because no other thread ran. aarch64: other
    /// threads ran, and it replaced what the architecture does not promise to
    /// replace under them. Install before other threads run.
    pub boundary: bool,
}

impl fmt::Display for FunctionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match &self.owner {
            Owner::Pinyard => "pinyard",
            Owner::Libc => "libc",
            Owner::Module(name) => name.as_str(),
            Owner::Absent => "absent",
        };
        write!(f, "{:<16} {owner:<20} ", self.function.name())?;
        match &self.seen {
            Seen::Yes => f.write_str("seen"),
            Seen::No(why) => write!(f, "NOT SEEN: {why}"),
            Seen::NotExercised(why) => write!(f, "not exercised: {why}"),
        }
    }
}

/// The whole report, a line per [`Function`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// In the order of [`Function::ALL`].
    pub functions: [FunctionReport; Function::COUNT],
}

impl Report {
    /// Whether no function's calls are known to escape.
    pub fn is_complete(&self) -> bool {
        self.missed().next().is_none()
    }

    /// The functions whose calls escape.
    pub fn missed(&self) -> impl Iterator<Item = &FunctionReport> {
        self.functions.iter().filter(|line| matches!(line.seen, Seen::No(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.functions.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

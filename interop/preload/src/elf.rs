//! What a shared library's file exports, read without loading it.
//!
//! To load a provider's file runs its constructors, brings what it depends on (UCX, for
//! one), and makes the loader give it to whoever asks for its soname: Intel MPI's libfabric
//! then starts a provider that it does not find without us.
//!
//! Source: the gABI's chapters on object files; ELF64, little endian.

/// The section of dynamic symbols.
const DYNSYM: u64 = 11;
/// Of a section header, and of a symbol.
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// Whether `file` defines `name` among its dynamic symbols, as far as its section headers say: the
/// loader needs none, and a file without them defines nothing here. `None` where it is no shared library
/// of this machine's kind.
pub(crate) fn exports(file: &[u8], name: &str) -> Option<bool> {
    if !file.starts_with(b"\x7fELF\x02\x01") || number(file, 0x12, 2)? != u64::from(machine()) {
        return None;
    }
    Some(defines(file, name).unwrap_or(false))
}

fn defines(file: &[u8], name: &str) -> Option<bool> {
    let sections = usize::try_from(number(file, 0x28, 8)?).ok()?;
    let count = number(file, 0x3c, 2)? as usize;
    let section = |index: usize| file.get(sections.checked_add(index * SECTION)?..)?.get(..SECTION);
    let content = |header: &[u8]| {
        let (start, len) = (number(header, 0x18, 8)?, number(header, 0x20, 8)?);
        file.get(usize::try_from(start).ok()?..)?.get(..usize::try_from(len).ok()?)
    };
    let dynsym = (0..count).filter_map(section).find(|header| number(header, 4, 4) == Some(DYNSYM))?;
    let names = content(section(number(dynsym, 0x28, 4)? as usize)?)?;
    let is_it = |symbol: &[u8]| {
        let defined = number(symbol, 6, 2) != Some(0);
        let text = number(symbol, 0, 4).and_then(|at| names.get(at as usize..)).unwrap_or_default();
        defined && text.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    };
    Some(content(dynsym)?.chunks_exact(SYMBOL).any(is_it))
}

/// `e_machine` of this machine (`elf.h`).
fn machine() -> u16 {
    if cfg!(target_arch = "aarch64") { 183 } else { 62 }
}

/// `bytes` bytes at `at`.
fn number(file: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let field = file.get(at..)?.get(..bytes)?;
    Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_libc_exports_is_found_and_nothing_else() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6")).unwrap();
        let libc = std::fs::read(libc).unwrap();
        assert_eq!(exports(&libc, "munmap"), Some(true));
        assert_eq!(exports(&libc, "munma"), Some(false));
        // The loader's, which libc asks for.
        assert_eq!(exports(&libc, "__tls_get_addr"), Some(false));
        assert_eq!(exports(b"not a library", "munmap"), None);
        // Without section headers, as after `strip --strip-section-headers`.
        let mut bare = libc.clone();
        bare[0x28..0x30].fill(0);
        bare[0x3c..0x3e].fill(0);
        assert_eq!(exports(&bare, "munmap"), Some(false));
        // Of whatever is cut off or torn, nothing is read past its end.
        for len in (0..libc.len()).step_by(99_991) {
            let _ = exports(&libc[..len], "munmap");
        }
        for at in 0..64 {
            let mut torn = libc.clone();
            torn[at] ^= 0xff;
            let _ = exports(&torn, "munmap");
        }
    }
}

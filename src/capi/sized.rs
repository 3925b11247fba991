//! Structures that may grow: the first member is the size that the caller knows.
//!
//! As with openat2(2): a caller built against an older header passes fewer bytes, and
//! what is missing is 0, which every member takes for its default; one built against a
//! newer header passes more, and what this library does not know must be 0.
#![allow(unsafe_code)]

use super::status::{Failure, pny_status::PNY_ERR_INVALID};
use core::ffi::{c_char, c_void};
use core::mem::MaybeUninit;

/// A `#[repr(C)]` structure of integers and pointers whose first member is `size_t size`.
///
/// # Safety
/// All-zero bytes are a value of it; so is any content that a C caller writes.
pub(super) unsafe trait Sized_: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// The size that the first header had; never changed.
    const FIRST: usize;
}

/// No version of any structure will be larger: a size beyond it was never set.
const MOST: usize = 4096;

/// The size that a caller's structure says; which is refused before anything else is.
///
/// # Safety
/// `from` is null, or its first member is readable.
pub(super) unsafe fn claimed<T: Sized_>(from: *const T) -> Result<usize, Failure> {
    if from.is_null() {
        return Err(Failure::null(T::NAME));
    }
    // SAFETY: not null; the caller's contract.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size < T::FIRST || size > MOST {
        let (name, least) = (T::NAME, T::FIRST);
        let cause =
            format!("{name}: size is {size}, and must be {least} to {MOST}; set it to sizeof({name}) first");
        return Err(Failure::new(PNY_ERR_INVALID, cause));
    }
    Ok(size)
}

/// What the caller passed; all 0 for a null pointer.
///
/// # Safety
/// `from` is null, or readable for as many bytes as its first member says.
pub(super) unsafe fn read<T: Sized_>(from: *const T) -> Result<T, Failure> {
    // SAFETY: of the trait: zeros are a value.
    let mut value = unsafe { MaybeUninit::<T>::zeroed().assume_init() };
    if from.is_null() {
        return Ok(value);
    }
    // SAFETY: the caller's contract.
    let size = unsafe { claimed(from) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes; the value has `known`.
    unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), known) };
    // SAFETY: likewise, of what lies behind what this library knows.
    let unknown = unsafe { core::slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    match unknown.iter().all(|&byte| byte == 0) {
        true => Ok(value),
        false => Err(Failure::new(
            PNY_ERR_INVALID,
            format!(
                "{}: a member that this library ({} bytes of {size}) does not know is set; it is older than the header",
                T::NAME,
                size_of::<T>()
            ),
        )),
    }
}

/// Fills the caller's structure as far as both sides know it; what only the caller
/// knows becomes 0.
///
/// # Safety
/// `to` is null, or writable for as many bytes as its first member says.
pub(super) unsafe fn write<T: Sized_>(to: *mut T, value: &T) -> Result<(), Failure> {
    const SIZE: usize = size_of::<usize>();
    // SAFETY: the caller's contract.
    let size = unsafe { claimed(to) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: the caller vouches for `size` bytes; the first member stays as it is.
    unsafe {
        let (from, to) = ((&raw const *value).cast::<u8>(), to.cast::<u8>());
        core::ptr::copy_nonoverlapping(from.add(SIZE), to.add(SIZE), known - SIZE);
        core::ptr::write_bytes(to.add(known), 0, size - known);
    }
    Ok(())
}

/// Copies `text` as snprintf(3) does: cut to `capacity`, always terminated, and its whole
/// length (without the terminator) in `*length` where that is not null.
///
/// # Safety
/// `to` is writable for `capacity` bytes, or null with a capacity of 0; `length` is null
/// or writable.
pub(super) unsafe fn text(
    text: &str,
    to: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    if to.is_null() && capacity != 0 {
        return Err(Failure::null("text"));
    }
    if !length.is_null() {
        // SAFETY: the caller's contract.
        unsafe { length.write(text.len()) };
    }
    if capacity > 0 {
        // A character is not cut in two.
        let room = text.len().min(capacity - 1);
        let end = (0..=room).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        // SAFETY: the caller vouches for `capacity` bytes, of which `end + 1` are written.
        unsafe {
            core::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), end);
            to.add(end).write(0);
        }
    }
    Ok(())
}

/// A pointer's text, or `None` for null.
///
/// # Safety
/// `from` is null or a NUL-terminated text.
pub(super) unsafe fn string(argument: &str, from: *const c_char) -> Result<Option<String>, Failure> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let text = unsafe { core::ffi::CStr::from_ptr(from) };
    match text.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Failure::new(PNY_ERR_INVALID, format!("{argument} is not UTF-8: {text:?}"))),
    }
}

/// A pointer that must not be null.
pub(super) fn required(argument: &str, pointer: *const c_void) -> Result<(), Failure> {
    if pointer.is_null() { Err(Failure::null(argument)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Config {
        size: usize,
        first: u32,
        second: u32,
        third: u64,
    }

    // SAFETY: integers.
    unsafe impl Sized_ for Config {
        const NAME: &'static str = "config";
        const FIRST: usize = 16;
    }

    #[test]
    fn an_older_and_a_newer_caller_are_understood() {
        let mut bytes = [0usize; 6];
        // SAFETY: all sizes lie within `bytes`.
        unsafe {
            let config = bytes.as_mut_ptr().cast::<Config>();
            config.write(Config { size: 16, first: 1, second: 2, third: 3 });
            assert_eq!(read(config).unwrap(), Config { size: 16, first: 1, second: 2, third: 0 });
            (*config).size = 40;
            assert_eq!(read(config).unwrap().third, 3);
            bytes[4] = 1;
            let refused = read(bytes.as_ptr().cast::<Config>()).unwrap_err();
            assert!(refused.cause.contains("older than the header"), "{}", refused.cause);
            for size in [0, 15, 4097, usize::MAX] {
                bytes[0] = size;
                assert!(read(bytes.as_ptr().cast::<Config>()).is_err(), "{size}");
            }
            assert_eq!(read(core::ptr::null::<Config>()).unwrap().first, 0);
        }
    }

    #[test]
    fn what_is_filled_ends_where_the_caller_says() {
        let mut bytes = [usize::MAX; 6];
        let value = Config { size: 0, first: 1, second: 2, third: 3 };
        // SAFETY: all sizes lie within `bytes`.
        unsafe {
            bytes[0] = 16;
            write(bytes.as_mut_ptr().cast::<Config>(), &value).unwrap();
            assert_eq!(bytes, [16, 1 | 2 << 32, usize::MAX, usize::MAX, usize::MAX, usize::MAX]);
            bytes[0] = 32;
            write(bytes.as_mut_ptr().cast::<Config>(), &value).unwrap();
            assert_eq!(bytes[2..], [3, 0, usize::MAX, usize::MAX]);
        }
    }

    #[test]
    fn text_is_cut_as_snprintf_cuts_it() {
        let (mut to, mut length) = ([1 as c_char; 4], 0);
        // SAFETY: within `to`.
        unsafe {
            text("héllo", to.as_mut_ptr(), 3, &raw mut length).unwrap();
            assert_eq!((to.map(|c| c as u8), length), ([b'h', 0, 1, 1], 6), "é has two bytes");
            text("héllo", core::ptr::null_mut(), 0, &raw mut length).unwrap();
            assert!(text("x", core::ptr::null_mut(), 1, core::ptr::null_mut()).is_err());
        }
    }
}

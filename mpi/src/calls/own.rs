//! Operations of our own, where MPI has none or a wrong one.
//!
//! It has no type for half precision (but some have one as an extension), so such elements are
//! words of 16 bits to it. And MPICH 4.0.2, which Debian 12 has, takes unsigned integers for
//! signed ones in MPI_MIN and MPI_MAX: of 200 and 100 the greater is 100.
#![allow(unsafe_code)]

use super::Answer;
use super::communicator::check;
use crate::operations::Reduction;
use half::{bf16, f16};
use mpi::ffi;
use pinyard_driver::reduction::Element;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// How two elements become one.
trait Joined: Copy {
    fn sum(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn greatest(self, other: Self) -> Self;
}

/// In single precision, and rounded.
macro_rules! halves {
    ($($kind:ty)*) => {$(
        impl Joined for $kind {
            fn sum(self, other: Self) -> Self {
                <$kind>::from_f32(self.to_f32() + other.to_f32())
            }
            fn least(self, other: Self) -> Self {
                <$kind>::from_f32(self.to_f32().min(other.to_f32()))
            }
            fn greatest(self, other: Self) -> Self {
                <$kind>::from_f32(self.to_f32().max(other.to_f32()))
            }
        }
    )*};
}

macro_rules! unsigned {
    ($($kind:ty)*) => {$(
        impl Joined for $kind {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

halves! { f16 bf16 }
unsigned! { u8 u16 u32 u64 }

const SUM: u8 = 0;
const MIN: u8 = 1;

/// `MPI_User_function`: both have `count` elements, and the second gets the result.
///
/// # Safety
/// As MPI calls it.
unsafe extern "C" fn function<T: Joined, const HOW: u8>(
    from: *mut c_void,
    to: *mut c_void,
    count: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    // SAFETY: MPI's contract.
    let count = unsafe { *count } as usize;
    let (from, to) = (from.cast::<T>(), to.cast::<T>());
    for at in 0..count {
        // SAFETY: within what MPI has told; it aligns nothing but what has its types.
        unsafe {
            let (one, other) = (from.add(at).read_unaligned(), to.add(at).read_unaligned());
            to.add(at).write_unaligned(match HOW {
                SUM => one.sum(other),
                MIN => one.least(other),
                _ => one.greatest(other),
            });
        }
    }
}

fn functions<T: Joined>() -> [ffi::MPI_User_function; 3] {
    [Some(function::<T, SUM>), Some(function::<T, MIN>), Some(function::<T, 2>)]
}

const REDUCTIONS: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

/// Those of a communicator.
pub(crate) struct OwnOperations(Vec<(Element, Reduction, ffi::MPI_Op)>);

impl OwnOperations {
    pub(crate) fn make() -> Answer<OwnOperations> {
        let mut made = OwnOperations(Vec::new());
        for (element, functions, has_sum) in [
            (Element::F16, functions::<f16>(), true),
            (Element::Bf16, functions::<bf16>(), true),
            (Element::U8, functions::<u8>(), false),
            (Element::U16, functions::<u16>(), false),
            (Element::U32, functions::<u32>(), false),
            (Element::U64, functions::<u64>(), false),
        ] {
            for (reduction, function) in REDUCTIONS.into_iter().zip(functions) {
                if reduction == Reduction::Sum && !has_sum {
                    continue;
                }
                let mut operation = MaybeUninit::uninit();
                // SAFETY: a function of the type; commutative; stores the handle.
                check(unsafe { ffi::MPI_Op_create(function, 1, operation.as_mut_ptr()) }, "MPI_Op_create")?;
                // SAFETY: stored.
                made.0.push((element, reduction, unsafe { operation.assume_init() }));
            }
        }
        Ok(made)
    }

    /// None where MPI's is taken.
    pub(super) fn find(&self, element: Element, reduction: Reduction) -> Option<ffi::MPI_Op> {
        let known = self.0.iter().find(|known| (known.0, known.1) == (element, reduction));
        known.map(|&(_, _, operation)| operation)
    }
}

impl Drop for OwnOperations {
    fn drop(&mut self) {
        if mpi::is_finalized() {
            return;
        }
        for (_, _, operation) in &mut self.0 {
            // SAFETY: ours, freed once; no reduction is under way. It fails for none of ours.
            let _ = unsafe { ffi::MPI_Op_free(operation) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined<T: Copy>(function: ffi::MPI_User_function, mut from: [T; 3], mut to: [T; 3]) -> [T; 3] {
        let mut count = 3;
        let (from, at) = (from.as_mut_ptr().cast(), to.as_mut_ptr().cast());
        // SAFETY: both have three elements.
        unsafe { function.unwrap()(from, at, &mut count, std::ptr::null_mut()) };
        to
    }

    #[test]
    fn each_function_joins_and_rounds() {
        let [sum, least, greatest] = functions::<f16>();
        let (a, b): ([u16; 3], [u16; 3]) = ([0x6800, 0x3c00, 0x7e00], [0x3c00, 0x4000, 0x3c00]);
        // 2048 + 1 is rounded to 2048; of a NaN and a number the number is least and greatest.
        assert_eq!(joined(sum, a, b)[..2], [0x6800, 0x4200]);
        assert_eq!(joined(least, a, b), [0x3c00, 0x3c00, 0x3c00]);
        assert_eq!(joined(greatest, a, b), [0x6800, 0x4000, 0x3c00]);
        let [sum, least, greatest] = functions::<bf16>();
        let (a, b): ([u16; 3], [u16; 3]) = ([0x4381, 0x3f80, 0x7fc0], [0x3f80, 0x4000, 0x3f80]);
        assert_eq!(joined(sum, a, b)[..2], [0x4382, 0x4040]);
        assert_eq!(joined(least, a, b), [0x3f80, 0x3f80, 0x3f80]);
        assert_eq!(joined(greatest, a, b), [0x4381, 0x4000, 0x3f80]);
    }

    #[test]
    fn what_has_the_highest_bit_is_greater() {
        let [_, least, greatest] = functions::<u8>();
        assert_eq!(joined(least, [200u8, 100, 0], [100, 200, 255]), [100, 100, 0]);
        assert_eq!(joined(greatest, [200u8, 100, 0], [100, 200, 255]), [200, 200, 255]);
        let [_, least, greatest] = functions::<u64>();
        assert_eq!(joined(least, [1u64 << 63, 5, 7], [1, 6, u64::MAX]), [1, 5, 7]);
        assert_eq!(joined(greatest, [1u64 << 63, 5, 7], [1, 6, u64::MAX]), [1 << 63, 6, u64::MAX]);
    }
}

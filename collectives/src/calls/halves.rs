//! Operations on elements of half precision. MPI has no type for them (but some have one as
//! an extension), so they are words of 16 bits to it, and the operations ours.
#![allow(unsafe_code)]

use super::Answer;
use super::communicator::check;
use crate::operations::Reduction;
use half::{bf16, f16};
use mpi::ffi;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

/// An element of half precision, which is joined in single precision.
trait Half: Copy {
    fn wide(self) -> f32;
    fn of(wide: f32) -> Self;
}

impl Half for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn of(wide: f32) -> f16 {
        f16::from_f32(wide)
    }
}

impl Half for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn of(wide: f32) -> bf16 {
        bf16::from_f32(wide)
    }
}

/// How two become one.
trait Join {
    fn join(a: f32, b: f32) -> f32;
}

struct Sum;
struct Min;
struct Max;

impl Join for Sum {
    fn join(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Join for Min {
    fn join(a: f32, b: f32) -> f32 {
        a.min(b)
    }
}

impl Join for Max {
    fn join(a: f32, b: f32) -> f32 {
        a.max(b)
    }
}

/// `MPI_User_function`: both have `count` elements, and the second gets the result.
///
/// # Safety
/// As MPI calls it.
unsafe extern "C" fn function<T: Half, J: Join>(
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
            let joined = J::join(from.add(at).read_unaligned().wide(), to.add(at).read_unaligned().wide());
            to.add(at).write_unaligned(T::of(joined));
        }
    }
}

/// Which kind of half.
#[derive(Clone, Copy)]
pub(super) enum HalfKind {
    F16,
    Bf16,
}

/// Reductions of each kind.
const REDUCTIONS: usize = 3;

/// The operations, by kind and reduction.
pub(crate) struct Halves(Vec<ffi::MPI_Op>);

impl Halves {
    pub(crate) fn make() -> Answer<Halves> {
        let functions: [[ffi::MPI_User_function; REDUCTIONS]; 2] = [
            [Some(function::<f16, Sum>), Some(function::<f16, Min>), Some(function::<f16, Max>)],
            [Some(function::<bf16, Sum>), Some(function::<bf16, Min>), Some(function::<bf16, Max>)],
        ];
        let mut halves = Halves(Vec::with_capacity(2 * REDUCTIONS));
        for function in functions.into_iter().flatten() {
            let mut operation = MaybeUninit::uninit();
            // SAFETY: a function of the type; commutative; stores the handle.
            check(unsafe { ffi::MPI_Op_create(function, 1, operation.as_mut_ptr()) }, "MPI_Op_create")?;
            // SAFETY: stored.
            halves.0.push(unsafe { operation.assume_init() });
        }
        Ok(halves)
    }

    pub(super) fn operation(&self, kind: HalfKind, reduction: Reduction) -> ffi::MPI_Op {
        self.0[kind as usize * REDUCTIONS + reduction as usize]
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        if mpi::is_finalized() {
            return;
        }
        for operation in &mut self.0 {
            // SAFETY: ours, freed once; no reduction is under way. It fails for none of ours.
            let _ = unsafe { ffi::MPI_Op_free(operation) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_joins_and_rounds() {
        let joined = |function: ffi::MPI_User_function, mut from: [u16; 3], mut to: [u16; 3]| {
            let mut count = 3;
            let (from, at) = (from.as_mut_ptr().cast(), to.as_mut_ptr().cast());
            // SAFETY: both have three elements.
            unsafe { function.unwrap()(from, at, &mut count, std::ptr::null_mut()) };
            to
        };
        let halves = [[0x6800, 0x3c00, 0x7e00], [0x3c00, 0x4000, 0x3c00]];
        let of = |function| joined(function, halves[0], halves[1]);
        // 2048 + 1 is rounded to 2048; of a NaN and a number the number is least and greatest.
        assert_eq!(of(Some(function::<f16, Sum>))[..2], [0x6800, 0x4200]);
        assert_eq!(of(Some(function::<f16, Min>)), [0x3c00, 0x3c00, 0x3c00]);
        assert_eq!(of(Some(function::<f16, Max>)), [0x6800, 0x4000, 0x3c00]);
        let halves = [[0x4381, 0x3f80, 0x7fc0], [0x3f80, 0x4000, 0x3f80]];
        let of = |function| joined(function, halves[0], halves[1]);
        assert_eq!(of(Some(function::<bf16, Sum>))[..2], [0x4382, 0x4040]);
        assert_eq!(of(Some(function::<bf16, Min>)), [0x3f80, 0x3f80, 0x3f80]);
        assert_eq!(of(Some(function::<bf16, Max>)), [0x4381, 0x4000, 0x3f80]);
    }
}

//! Kernels of the simulated device: those that pinyard ships, known by their names, which
//! do on the host what their text says.
#![allow(unsafe_code)]

use crate::reduction::{Element, INPUTS, Join};
use half::{bf16, f16};

/// The entries that a PTX text has.
pub(super) fn entries(ptx: &str) -> Vec<String> {
    let after = ptx.split(".entry ").skip(1);
    after.filter_map(|rest| rest.split(['(', ' ', '\n']).next()).map(str::to_owned).collect()
}

/// The arguments of a reduction: where to, elements, and the inputs.
pub(super) struct Reduction {
    join: Join,
    element: Element,
    to: usize,
    elements: usize,
    inputs: Vec<usize>,
}

impl Reduction {
    /// `None` if the arguments are not a reduction's.
    pub(super) fn new((join, element): (Join, Element), arguments: &[u64]) -> Option<Reduction> {
        let (&[to, elements, count], inputs) = arguments.split_first_chunk::<3>()?;
        let count = usize::try_from(count).ok().filter(|count| (1..=INPUTS).contains(count))?;
        let inputs: Vec<usize> = inputs.get(..count)?.iter().map(|&at| at as usize).collect();
        (arguments.len() == 3 + INPUTS).then_some(Reduction {
            join,
            element,
            to: to as usize,
            elements: elements as usize,
            inputs,
        })
    }

    /// Every range that it uses: start and bytes.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let bytes = self.bytes();
        self.inputs.iter().chain([&self.to]).map(move |&at| (at, bytes))
    }

    pub(super) fn bytes(&self) -> usize {
        self.elements * self.element.bytes()
    }

    /// # Safety
    /// The ranges are memory of the device's that nobody else writes, nor reads where it is
    /// written.
    pub(super) unsafe fn run(&self) {
        macro_rules! by_type {
            ($($element:ident $kind:ty, $wide:ty, $read:expr, $sum:expr, $write:expr;)*) => {
                match self.element {
                    $(Element::$element => {
                        let join: fn($wide, $wide) -> $wide = match self.join {
                            Join::Sum => $sum,
                            Join::Min => |a, b| a.min(b),
                            Join::Max => |a, b| a.max(b),
                        };
                        // SAFETY: the caller's contract.
                        unsafe { self.each::<$kind, $wide>($read, join, $write) }
                    })*
                }
            };
        }
        by_type! {
            I8 i8, i8, |x| x, i8::wrapping_add, |x| x;
            I16 i16, i16, |x| x, i16::wrapping_add, |x| x;
            I32 i32, i32, |x| x, i32::wrapping_add, |x| x;
            I64 i64, i64, |x| x, i64::wrapping_add, |x| x;
            U8 u8, u8, |x| x, u8::wrapping_add, |x| x;
            U16 u16, u16, |x| x, u16::wrapping_add, |x| x;
            U32 u32, u32, |x| x, u32::wrapping_add, |x| x;
            U64 u64, u64, |x| x, u64::wrapping_add, |x| x;
            F32 f32, f32, |x| x, |a, b| a + b, |x| x;
            F64 f64, f64, |x| x, |a, b| a + b, |x| x;
            F16 f16, f32, f16::to_f32, |a, b| a + b, f16::from_f32;
            Bf16 bf16, f32, bf16::to_f32, |a, b| a + b, bf16::from_f32;
        }
    }

    /// # Safety
    /// As of `run`; elements are `T`s, which are joined as `W`s.
    unsafe fn each<T: Copy, W>(&self, read: fn(T) -> W, join: fn(W, W) -> W, write: fn(W) -> T) {
        for number in 0..self.elements {
            let element = |&at: &usize| {
                // SAFETY: within the ranges (the contract).
                read(unsafe { (at as *const T).add(number).read_unaligned() })
            };
            if let Some(joined) = self.inputs.iter().map(element).reduce(join) {
                // SAFETY: as above.
                unsafe { (self.to as *mut T).add(number).write_unaligned(write(joined)) };
            }
        }
    }
}

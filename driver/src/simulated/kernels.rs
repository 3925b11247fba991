//! Kernels of the simulated device: those that pinyard ships, known by their names, which
//! do on the host what their text says.
#![allow(unsafe_code)]

use crate::reduction::{Element, INPUTS, Join};

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
        let bytes = match self.element {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        };
        self.elements * bytes
    }

    /// # Safety
    /// The ranges are memory of the device's that nobody else writes, nor reads where it is
    /// written.
    pub(super) unsafe fn run(&self) {
        macro_rules! by_type {
            ($($element:ident $kind:ty, $sum:expr;)*) => {
                match self.element {
                    $(Element::$element => {
                        let join: fn($kind, $kind) -> $kind = match self.join {
                            Join::Sum => $sum,
                            Join::Min => |a, b| a.min(b),
                            Join::Max => |a, b| a.max(b),
                        };
                        // SAFETY: the caller's contract.
                        unsafe { self.each(join) }
                    })*
                }
            };
        }
        by_type! {
            I8 i8, i8::wrapping_add;
            I16 i16, i16::wrapping_add;
            I32 i32, i32::wrapping_add;
            I64 i64, i64::wrapping_add;
            U8 u8, u8::wrapping_add;
            U16 u16, u16::wrapping_add;
            U32 u32, u32::wrapping_add;
            U64 u64, u64::wrapping_add;
            F32 f32, |a, b| a + b;
            F64 f64, |a, b| a + b;
        }
    }

    /// # Safety
    /// As of `run`; elements are `T`s.
    unsafe fn each<T: Copy>(&self, join: fn(T, T) -> T) {
        for number in 0..self.elements {
            let read = |&at: &usize| {
                // SAFETY: within the ranges (the contract).
                unsafe { (at as *const T).add(number).read_unaligned() }
            };
            if let Some(joined) = self.inputs.iter().map(read).reduce(join) {
                // SAFETY: as above.
                unsafe { (self.to as *mut T).add(number).write_unaligned(joined) };
            }
        }
    }
}

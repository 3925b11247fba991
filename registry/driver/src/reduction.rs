//! Kernels that reduce the buffers of several ranks into one: the text of a PTX module, for
//! devices of compute capability 7.0 on, which the driver compiles.
//!
//! ```text
//! pinyard_sum_f32(to, elements, inputs, input 0, …, input 7)
//! to[i] = input 0[i] + input 1[i] + …      for every i, in this order
//! ```
//!
//! Every argument has 64 bits. An element is read from all inputs before it is written, so
//! `to` may be one of them. The order is the same for every element and every launch:
//! whoever computes an element gets the same bits. Elements of half precision are joined in
//! single precision, and rounded once, to the nearest even.
//!
//! Where all buffers begin at a multiple of four elements (two of 64 bits) a thread takes
//! so many at a time, with one load for each input, all on their way before the first is
//! needed; what is left, and other buffers, go element by element.

use std::ffi::CString;
use std::fmt::Write;

/// The most inputs of a kernel. Of fewer the others are not read.
pub const INPUTS: usize = 8;

/// How elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The sum; of integers modulo their range.
    Sum,
    /// The least. Of a number and a NaN the number (`min` in the PTX manual).
    Min,
    /// The greatest; as `Min`.
    Max,
}

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Rust's types
pub enum Element {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
    /// `half::f16`.
    F16,
    /// `half::bf16`.
    Bf16,
}

impl Join {
    /// All.
    pub const ALL: [Join; 3] = [Join::Sum, Join::Min, Join::Max];

    fn name(self) -> &'static str {
        match self {
            Join::Sum => "sum",
            Join::Min => "min",
            Join::Max => "max",
        }
    }
}

impl Element {
    /// All.
    pub const ALL: [Element; 12] = [
        Element::I8,
        Element::I16,
        Element::I32,
        Element::I64,
        Element::U8,
        Element::U16,
        Element::U32,
        Element::U64,
        Element::F32,
        Element::F64,
        Element::F16,
        Element::Bf16,
    ];

    /// Bytes of one.
    pub const fn bytes(self) -> usize {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 | Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }

    /// Elements that a thread takes at a time: 16 bytes at most, the most that one load has.
    const fn lanes(self) -> usize {
        if self.bytes() == 8 { 2 } else { 4 }
    }

    fn is_half(self) -> bool {
        matches!(self, Element::F16 | Element::Bf16)
    }

    /// Rust's name; what a load and a store have; the register; the arithmetic. Bytes are
    /// reduced in registers of 16 bits, the least there are, halves in single precision.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Element::I8 => ("i8", "s8", "b16", "s16"),
            Element::I16 => ("i16", "s16", "b16", "s16"),
            Element::I32 => ("i32", "s32", "b32", "s32"),
            Element::I64 => ("i64", "s64", "b64", "s64"),
            Element::U8 => ("u8", "u8", "b16", "u16"),
            Element::U16 => ("u16", "u16", "b16", "u16"),
            Element::U32 => ("u32", "u32", "b32", "u32"),
            Element::U64 => ("u64", "u64", "b64", "u64"),
            Element::F32 => ("f32", "f32", "f32", "f32"),
            Element::F64 => ("f64", "f64", "f64", "f64"),
            Element::F16 => ("f16", "b16", "f32", "f32"),
            Element::Bf16 => ("bf16", "b16", "f32", "f32"),
        }
    }
}

/// The kernel's name in the module.
pub fn name(join: Join, element: Element) -> CString {
    // No word of ours has a zero in it.
    CString::new(plain_name(join, element)).unwrap_or_default()
}

fn plain_name(join: Join, element: Element) -> String {
    format!("pinyard_{}_{}", join.name(), element.words().0)
}

/// The kernel that has this name.
pub(crate) fn named(name: &str) -> Option<(Join, Element)> {
    let all = Join::ALL.into_iter().flat_map(|join| Element::ALL.map(|element| (join, element)));
    all.into_iter().find(|&(join, element)| plain_name(join, element) == name)
}

/// The module with every kernel.
pub fn module() -> CString {
    let mut text = String::from(".version 6.0\n.target sm_70\n.address_size 64\n");
    for join in Join::ALL {
        for element in Element::ALL {
            kernel(&mut text, join, element);
        }
    }
    CString::new(text).unwrap_or_default()
}

fn kernel(text: &mut String, join: Join, element: Element) {
    let (_, _, register, _) = element.words();
    let lanes = element.lanes();
    let mut line = |words: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{words}");
    };
    let names: Vec<String> = (0..INPUTS).map(|number| format!("in{number}")).collect();
    let parameters: Vec<String> = ["to", "elements", "inputs"]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .map(|name| format!("  .param .u64 {name}"))
        .collect();
    line(&format!(".visible .entry {}(\n{}\n)\n{{", plain_name(join, element), parameters.join(",\n")));
    line("  .reg .pred %done, %odd, %nan;");
    line(&format!("  .reg .pred %has<{INPUTS}>;"));
    line("  .reg .b32 %block, %blocks, %threads, %thread, %bits, %low;");
    line("  .reg .b64 %to, %elements, %inputs, %first, %at, %end, %stride, %offset, %address;");
    line(&format!("  .reg .b64 %in<{INPUTS}>;"));
    line(&format!("  .reg .{register} %v<{}>;", INPUTS * lanes));
    line(&format!("  .reg .b16 %h<{}>;", INPUTS * lanes));
    for name in ["elements", "inputs"] {
        line(&format!("  ld.param.u64 %{name}, [{name}];"));
    }
    for name in std::iter::once("to").chain(names.iter().map(String::as_str)) {
        line(&format!("  ld.param.u64 %{name}, [{name}];"));
        line(&format!("  cvta.to.global.u64 %{name}, %{name};"));
    }
    for number in 1..INPUTS {
        line(&format!("  setp.gt.u64 %has{number}, %inputs, {number};"));
    }
    line("  mov.u32 %block, %ctaid.x;");
    line("  mov.u32 %blocks, %nctaid.x;");
    line("  mov.u32 %threads, %ntid.x;");
    line("  mov.u32 %thread, %tid.x;");
    line("  cvt.u64.u32 %first, %thread;");
    line("  mad.wide.u32 %first, %block, %threads, %first;");
    line("  mul.wide.u32 %stride, %blocks, %threads;");
    // Inputs that are not there are at 0, which is a multiple of everything.
    line("  mov.b64 %address, %to;");
    for name in &names {
        line(&format!("  or.b64 %address, %address, %{name};"));
    }
    line(&format!("  and.b64 %address, %address, {};", lanes * element.bytes() - 1));
    line("  setp.ne.u64 %odd, %address, 0;");
    line(&format!("  shr.u64 %end, %elements, {};", lanes.ilog2()));
    line("  selp.b64 %end, 0, %end, %odd;");
    line("  mov.b64 %at, %first;");
    line("many:");
    line("  setp.ge.u64 %done, %at, %end;");
    line("  @%done bra rest;");
    step(&mut line, join, element, lanes);
    line("  bra many;");
    line("rest:");
    line(&format!("  mad.lo.u64 %at, %end, {lanes}, %first;"));
    line("next:");
    line("  setp.ge.u64 %done, %at, %elements;");
    line("  @%done bra end;");
    step(&mut line, join, element, 1);
    line("  bra next;");
    line("end:");
    line("  ret;\n}");
}

/// Reads, joins and writes the `lanes` elements that have the number `%at` among so many at
/// a time, and goes on to the next.
fn step(line: &mut impl FnMut(&str), join: Join, element: Element, lanes: usize) {
    let (_, access, _, arithmetic) = element.words();
    let raw = if element.is_half() { "h" } else { "v" };
    let lane = |input: usize, lane: usize| input * element.lanes() + lane;
    let row = |input: usize| match lanes {
        1 => format!("%{raw}{}", lane(input, 0)),
        _ => {
            let names: Vec<String> = (0..lanes).map(|at| format!("%{raw}{}", lane(input, at))).collect();
            format!("{{{}}}", names.join(", "))
        }
    };
    let vector = if lanes == 1 { String::new() } else { format!(".v{lanes}") };
    let operation = match (join, element) {
        (Join::Sum, Element::F32 | Element::F64 | Element::F16 | Element::Bf16) => {
            format!("add.rn.{arithmetic}")
        }
        (Join::Sum, _) => format!("add.{arithmetic}"),
        (join, _) => format!("{}.{arithmetic}", join.name()),
    };
    line(&format!("  mul.lo.u64 %offset, %at, {};", lanes * element.bytes()));
    let only = |input: usize| if input == 0 { String::new() } else { format!("@%has{input} ") };
    for input in 0..INPUTS {
        line(&format!("  add.u64 %address, %in{input}, %offset;"));
        line(&format!("  {}ld.global{vector}.{access} {}, [%address];", only(input), row(input)));
    }
    for input in 0..INPUTS {
        for at in 0..lanes {
            let number = lane(input, at);
            match element {
                Element::F16 => line(&format!("  {}cvt.f32.f16 %v{number}, %h{number};", only(input))),
                Element::Bf16 => widen(line, number),
                _ => {}
            }
            if input > 0 {
                let sum = lane(0, at);
                line(&format!("  {}{operation} %v{sum}, %v{sum}, %v{number};", only(input)));
            }
        }
    }
    for number in (0..lanes).map(|at| lane(0, at)) {
        match element {
            Element::F16 => line(&format!("  cvt.rn.f16.f32 %h{number}, %v{number};")),
            Element::Bf16 => round(line, number),
            _ => {}
        }
    }
    line("  add.u64 %address, %to, %offset;");
    line(&format!("  st.global{vector}.{access} [%address], {};", row(0)));
    line("  add.u64 %at, %at, %stride;");
}

/// A bf16 is the upper half of an f32. `cvt` knows it from compute capability 8.0 on.
fn widen(line: &mut impl FnMut(&str), number: usize) {
    line(&format!("  cvt.u32.u16 %bits, %h{number};"));
    line("  shl.b32 %bits, %bits, 16;");
    line(&format!("  mov.b32 %v{number}, %bits;"));
}

/// To the nearest even: half a unit is added, less one bit where the upper half is even. A
/// NaN stays one, quiet.
fn round(line: &mut impl FnMut(&str), number: usize) {
    line(&format!("  setp.nan.f32 %nan, %v{number}, %v{number};"));
    line(&format!("  mov.b32 %bits, %v{number};"));
    line("  shr.u32 %low, %bits, 16;");
    line("  and.b32 %low, %low, 1;");
    line("  add.u32 %low, %low, 32767;");
    line("  add.u32 %low, %low, %bits;");
    line("  or.b32 %bits, %bits, 4194304;");
    line("  selp.b32 %bits, %bits, %low, %nan;");
    line("  shr.u32 %bits, %bits, 16;");
    line(&format!("  cvt.u16.u32 %h{number}, %bits;"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_found_by_its_name_and_is_in_the_module() {
        let module = module().into_string().unwrap();
        for join in Join::ALL {
            for element in Element::ALL {
                let name = plain_name(join, element);
                assert_eq!(named(&name), Some((join, element)));
                assert_eq!(module.matches(&format!(".entry {name}(")).count(), 1);
            }
        }
        assert_eq!(named("pinyard_sum_f128"), None);
    }
}

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
//! whoever computes an element gets the same bits.

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
    pub const ALL: [Element; 10] = [
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
    ];

    /// Rust's name; what a load and a store have; the register; the arithmetic; bytes.
    /// Bytes are reduced in registers of 16 bits, the least there are.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str, usize) {
        match self {
            Element::I8 => ("i8", "s8", "b16", "s16", 1),
            Element::I16 => ("i16", "s16", "b16", "s16", 2),
            Element::I32 => ("i32", "s32", "b32", "s32", 4),
            Element::I64 => ("i64", "s64", "b64", "s64", 8),
            Element::U8 => ("u8", "u8", "b16", "u16", 1),
            Element::U16 => ("u16", "u16", "b16", "u16", 2),
            Element::U32 => ("u32", "u32", "b32", "u32", 4),
            Element::U64 => ("u64", "u64", "b64", "u64", 8),
            Element::F32 => ("f32", "f32", "f32", "f32", 4),
            Element::F64 => ("f64", "f64", "f64", "f64", 8),
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
    let (_, access, register, arithmetic, bytes) = element.words();
    let operation = match (join, element) {
        (Join::Sum, Element::F32 | Element::F64) => format!("add.rn.{arithmetic}"),
        (Join::Sum, _) => format!("add.{arithmetic}"),
        (join, _) => format!("{}.{arithmetic}", join.name()),
    };
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
    line("  .reg .pred %done, %last;");
    line("  .reg .b32 %block, %blocks, %threads, %thread;");
    line("  .reg .b64 %to, %elements, %inputs, %at, %stride, %offset, %address;");
    line(&format!("  .reg .b64 %in<{INPUTS}>;"));
    line(&format!("  .reg .{register} %sum, %next;"));
    for name in ["elements", "inputs"] {
        line(&format!("  ld.param.u64 %{name}, [{name}];"));
    }
    for name in std::iter::once("to").chain(names.iter().map(String::as_str)) {
        line(&format!("  ld.param.u64 %{name}, [{name}];"));
        line(&format!("  cvta.to.global.u64 %{name}, %{name};"));
    }
    line("  mov.u32 %block, %ctaid.x;");
    line("  mov.u32 %blocks, %nctaid.x;");
    line("  mov.u32 %threads, %ntid.x;");
    line("  mov.u32 %thread, %tid.x;");
    line("  cvt.u64.u32 %at, %thread;");
    line("  mad.wide.u32 %at, %block, %threads, %at;");
    line("  mul.wide.u32 %stride, %blocks, %threads;");
    line("next:");
    line("  setp.ge.u64 %done, %at, %elements;");
    line("  @%done bra end;");
    line(&format!("  mul.lo.u64 %offset, %at, {bytes};"));
    line("  add.u64 %address, %in0, %offset;");
    line(&format!("  ld.global.{access} %sum, [%address];"));
    for (number, name) in names.iter().enumerate().skip(1) {
        line(&format!("  setp.le.u64 %last, %inputs, {number};"));
        line("  @%last bra store;");
        line(&format!("  add.u64 %address, %{name}, %offset;"));
        line(&format!("  ld.global.{access} %next, [%address];"));
        line(&format!("  {operation} %sum, %sum, %next;"));
    }
    line("store:");
    line("  add.u64 %address, %to, %offset;");
    line(&format!("  st.global.{access} [%address], %sum;"));
    line("  add.u64 %at, %at, %stride;");
    line("  bra next;");
    line("end:");
    line("  ret;\n}");
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
        assert_eq!(named("pinyard_sum_f16"), None);
    }
}

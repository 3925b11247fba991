//! The kernels that reduce, beside what the host computes: on the simulated device, and on
//! a real one where there is one.
#![allow(unsafe_code, clippy::unwrap_used)]

use half::{bf16, f16};
use pinyard_driver::reduction::{self, Element, INPUTS, Join};
use pinyard_driver::{Cuda, DevicePtr, Driver, DriverToken, Function, Module, Simulated, Stream};

struct Bench<'d> {
    gpu: &'d dyn Driver,
    token: DriverToken,
    stream: Stream,
    module: Module,
    /// Room for every input and the result.
    memory: DevicePtr,
}

const ROOM: usize = 1 << 20;

/// Where buffers begin, in elements from where their rooms do, and which input the result
/// goes to.
#[derive(Default)]
struct Place {
    skip: usize,
    into: Option<usize>,
}

impl Bench<'_> {
    fn function(&self, join: Join, element: Element) -> Function {
        self.gpu.module_function(self.module, &reduction::name(join, element), &self.token).unwrap()
    }

    /// Reduces the inputs in memory of the device's.
    fn reduce<T: Copy + Default + PartialEq + std::fmt::Debug>(
        &self,
        (join, element): (Join, Element),
        inputs: &[Vec<T>],
        Place { skip, into }: Place,
    ) -> Vec<T> {
        let elements = inputs[0].len();
        let bytes = elements * size_of::<T>();
        assert!(bytes + skip * size_of::<T>() <= ROOM);
        let at = |number: usize| DevicePtr(self.memory.0 + (number * ROOM + skip * size_of::<T>()) as u64);
        let to = at(into.unwrap_or(INPUTS));
        let mut arguments = vec![to.0, elements as u64, inputs.len() as u64];
        arguments.extend((0..INPUTS).map(|number| if number < inputs.len() { at(number).0 } else { 0 }));
        let mut result = vec![T::default(); elements];
        // SAFETY: the room for each, until the stream has ended.
        unsafe {
            for (number, input) in inputs.iter().enumerate() {
                let from = input.as_ptr().cast();
                self.gpu.copy_to_device(at(number), from, bytes, self.stream, &self.token).unwrap();
            }
            let function = self.function(join, element);
            self.gpu.launch(function, 7, 64, &arguments, self.stream, &self.token).unwrap();
            let back = result.as_mut_ptr().cast();
            self.gpu.copy_to_host(back, to, bytes, self.stream, &self.token).unwrap();
        }
        self.gpu.stream_synchronize(self.stream, &self.token).unwrap();
        result
    }
}

/// Elements whose results are worked out in integers of 128 bits: floats are whole and so
/// small that every sum is exact.
trait Sample: Copy + Default + PartialEq + std::fmt::Debug {
    const ELEMENT: Element;
    fn of(word: u64) -> Self;
    fn wide(self) -> i128;
    /// Of what is beyond the range the lower bits.
    fn narrow(wide: i128) -> Self;
}

macro_rules! samples {
    ($($element:ident $kind:ty, $of:expr, $wide:expr, $narrow:expr;)*) => {$(
        impl Sample for $kind {
            const ELEMENT: Element = Element::$element;
            fn of(word: u64) -> $kind {
                $of(word)
            }
            fn wide(self) -> i128 {
                $wide(self)
            }
            fn narrow(wide: i128) -> $kind {
                $narrow(wide)
            }
        }
    )*};
}

samples! {
    I8 i8, |word| word as i8, i128::from, |wide| wide as i8;
    I16 i16, |word| word as i16, i128::from, |wide| wide as i16;
    I32 i32, |word| word as i32, i128::from, |wide| wide as i32;
    I64 i64, |word| word as i64, i128::from, |wide| wide as i64;
    U8 u8, |word| word as u8, i128::from, |wide| wide as u8;
    U16 u16, |word| word as u16, i128::from, |wide| wide as u16;
    U32 u32, |word| word as u32, i128::from, |wide| wide as u32;
    U64 u64, |word| word, i128::from, |wide| wide as u64;
    F32 f32, |word| (word % 2_000_001) as f32 - 1e6, |own| own as i128, |wide| wide as f32;
    F64 f64, |word| (word % (1 << 40)) as f64 - 5e11, |own| own as i128, |wide| wide as f64;
    F16 f16, |word| f16::from_f32((word % 511) as f32 - 255.0), |own: f16| own.to_f32() as i128,
        |wide| f16::from_f32(wide as f32);
    Bf16 bf16, |word| bf16::from_f32((word % 63) as f32 - 31.0), |own: bf16| own.to_f32() as i128,
        |wide| bf16::from_f32(wide as f32);
}

fn every_count_and_length<T: Sample>(bench: &Bench<'_>) {
    let element = |rank: usize, at: usize| {
        T::of(((at * 31 + rank * 1009) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 5)
    };
    for join in Join::ALL {
        for (count, elements) in [(1, 100), (2, 1), (3, 1000), (4, 4099), (INPUTS, 70_001)] {
            let inputs: Vec<Vec<T>> =
                (0..count).map(|rank| (0..elements).map(|at| element(rank, at)).collect()).collect();
            let expected: Vec<T> = (0..elements)
                .map(|at| {
                    let wide = inputs.iter().map(|input| input[at].wide());
                    T::narrow(match join {
                        Join::Sum => wide.sum(),
                        Join::Min => wide.min().unwrap(),
                        Join::Max => wide.max().unwrap(),
                    })
                })
                .collect();
            let kernel = (join, T::ELEMENT);
            for skip in [0, 1, 3] {
                let place = Place { skip, ..Place::default() };
                assert!(bench.reduce(kernel, &inputs, place) == expected, "{kernel:?} of {count}, {skip} on");
            }
            let place = Place { into: Some(count - 1), ..Place::default() };
            assert!(bench.reduce(kernel, &inputs, place) == expected, "{kernel:?} in place");
        }
    }
}

/// What tells one order, one rounding and one kind of minimum from another.
fn known_vectors(bench: &Bench<'_>) {
    // Twice: four at a time, and one by one behind them.
    let sum = |element, inputs: &[f32]| -> Vec<f32> {
        let inputs: Vec<Vec<f32>> = inputs.iter().map(|&input| vec![input; 5]).collect();
        bench.reduce((Join::Sum, element), &inputs, Place::default())
    };
    assert_eq!(sum(Element::F32, &[1e8, 1.0, -1e8]), [0.0; 5]);
    assert_eq!(sum(Element::F32, &[1e8, -1e8, 1.0]), [1.0; 5]);
    let joined = |join, inputs: [f32; 2]| -> Vec<f32> {
        let inputs: Vec<Vec<f32>> = inputs.iter().map(|&input| vec![input; 5]).collect();
        bench.reduce((join, Element::F32), &inputs, Place::default())
    };
    for inputs in [[f32::NAN, 2.0], [2.0, f32::NAN]] {
        assert_eq!(joined(Join::Min, inputs), [2.0; 5]);
        assert_eq!(joined(Join::Max, inputs), [2.0; 5]);
    }
    let bits = |element, inputs: &[u16]| -> Vec<u16> {
        let inputs: Vec<Vec<u16>> = inputs.iter().map(|&input| vec![input; 5]).collect();
        bench.reduce((Join::Sum, element), &inputs, Place::default())
    };
    // 2048 + 1 + 1: rounded once it is 2050, after every addition 2048.
    assert_eq!(bits(Element::F16, &[0x6800, 0x3c00, 0x3c00]), [0x6801; 5]);
    // 2049 lies between 2048 and 2050, 2051 between 2050 and 2052: to the even one.
    assert_eq!(bits(Element::F16, &[0x6800, 0x3c00]), [0x6800; 5]);
    assert_eq!(bits(Element::F16, &[0x6801, 0x3c00]), [0x6802; 5]);
    // The same of bf16: 256 + 1 + 1, 256 + 1, 258 + 1.
    assert_eq!(bits(Element::Bf16, &[0x4380, 0x3f80, 0x3f80]), [0x4381; 5]);
    assert_eq!(bits(Element::Bf16, &[0x4380, 0x3f80]), [0x4380; 5]);
    assert_eq!(bits(Element::Bf16, &[0x4381, 0x3f80]), [0x4382; 5]);
    // The greatest and half a unit more overflow; infinity less itself is no number.
    assert_eq!(bits(Element::Bf16, &[0x7f7f, 0x7b00]), [0x7f80; 5]);
    assert_eq!(bits(Element::F16, &[0x7bff, 0x4c00]), [0x7c00; 5]);
    assert!(bits(Element::F16, &[0x7c00, 0xfc00]).iter().all(|&sum| f16::from_bits(sum).is_nan()));
    assert!(bits(Element::Bf16, &[0x7f80, 0xff80]).iter().all(|&sum| bf16::from_bits(sum).is_nan()));
}

fn every_kernel(gpu: &dyn Driver) {
    let token = DriverToken::at_entry();
    let stream = gpu.stream_create(&token).unwrap();
    let module = gpu.module_load(&reduction::module(), &token).unwrap();
    let memory = gpu.mem_alloc((INPUTS + 1) * ROOM, &token).unwrap();
    let bench = Bench { gpu, token, stream, module, memory };
    macro_rules! of_every_element {
        ($($kind:ty)*) => {
            // None is forgotten.
            assert_eq!([$(<$kind>::ELEMENT),*], Element::ALL);
            $(every_count_and_length::<$kind>(&bench);)*
        };
    }
    of_every_element! { i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 f16 bf16 }
    known_vectors(&bench);
    // SAFETY: the stream has ended; nothing of it is used any more.
    unsafe {
        gpu.module_unload(module, &bench.token).unwrap();
        gpu.mem_free(memory, &bench.token).unwrap();
        gpu.stream_destroy(stream, &bench.token).unwrap();
    }
}

#[test]
fn the_simulated_devices_kernels_do_what_the_host_does() {
    let gpu = Simulated::new(64 << 20);
    every_kernel(&gpu);
    assert_eq!((gpu.offences(), gpu.outstanding()), (vec![], String::new()));
}

#[test]
fn a_real_devices_kernels_do_what_the_host_does() {
    match Cuda::open(0) {
        Ok(gpu) => every_kernel(&gpu),
        Err(absent) => println!("skipped: {absent}"),
    }
}

#[test]
fn what_is_no_kernel_is_refused() {
    let (gpu, token) = (Simulated::new(64 << 20), DriverToken::at_entry());
    assert!(gpu.module_load(c"nothing", &token).unwrap_err().call.contains("cuModuleLoadData"));
    let module = gpu.module_load(&reduction::module(), &token).unwrap();
    assert_eq!(gpu.module_function(module, c"pinyard_sum_f128", &token).unwrap_err().code, 500);
    let function = gpu.module_function(module, &reduction::name(Join::Sum, Element::F32), &token).unwrap();
    let memory = gpu.mem_alloc(1 << 20, &token).unwrap();
    let beyond = [memory.0, 1 << 20, 1, memory.0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: refused, as the range ends beyond the memory.
    assert!(unsafe { gpu.launch(function, 1, 64, &beyond, Stream::DEFAULT, &token) }.is_err());
    assert_eq!(gpu.offences().len(), 1);
}

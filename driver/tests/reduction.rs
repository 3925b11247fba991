//! The kernels that reduce, beside what the host computes: on the simulated device, and on
//! a real one where there is one.
#![allow(unsafe_code, clippy::unwrap_used)]

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

impl Bench<'_> {
    fn function(&self, join: Join, element: Element) -> Function {
        self.gpu.module_function(self.module, &reduction::name(join, element), &self.token).unwrap()
    }

    /// Reduces into input `into`, or behind the inputs.
    fn reduce<T: Copy + Default + PartialEq + std::fmt::Debug>(
        &self,
        (join, element): (Join, Element),
        inputs: &[Vec<T>],
        into: Option<usize>,
    ) -> Vec<T> {
        let elements = inputs[0].len();
        let bytes = elements * size_of::<T>();
        assert!(bytes <= ROOM);
        let at = |number: usize| DevicePtr(self.memory.0 + (number * ROOM) as u64);
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

fn every_kernel(gpu: &dyn Driver) {
    let token = DriverToken::at_entry();
    let stream = gpu.stream_create(&token).unwrap();
    let module = gpu.module_load(&reduction::module(), &token).unwrap();
    let memory = gpu.mem_alloc((INPUTS + 1) * ROOM, &token).unwrap();
    let bench = Bench { gpu, token, stream, module, memory };
    macro_rules! of {
        ($($element:ident $kind:ty, $sum:expr;)*) => {$(
            for join in Join::ALL {
                for (count, elements) in [(1, 100), (2, 1), (3, 1000), (INPUTS, 70_001)] {
                    let element = |rank: usize, at: usize| {
                        let word = (at * 31 + rank * 1009).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        (word >> 5) as i32 as $kind / 3 as $kind
                    };
                    let inputs: Vec<Vec<$kind>> = (0..count)
                        .map(|rank| (0..elements).map(|at| element(rank, at)).collect())
                        .collect();
                    let joined = |a: $kind, b: $kind| match join {
                        Join::Sum => $sum(a, b),
                        Join::Min => if b < a { b } else { a },
                        Join::Max => if b > a { b } else { a },
                    };
                    let expected: Vec<$kind> = (0..elements)
                        .map(|at| inputs.iter().map(|input| input[at]).reduce(joined).unwrap())
                        .collect();
                    let kernel = (join, Element::$element);
                    assert!(bench.reduce(kernel, &inputs, None) == expected, "{kernel:?} of {count}");
                    assert!(bench.reduce(kernel, &inputs, Some(count - 1)) == expected, "{kernel:?} in place");
                }
            }
        )*};
    }
    of! {
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
    assert_eq!(gpu.module_function(module, c"pinyard_sum_f16", &token).unwrap_err().code, 500);
    let function = gpu.module_function(module, &reduction::name(Join::Sum, Element::F32), &token).unwrap();
    let memory = gpu.mem_alloc(1 << 20, &token).unwrap();
    let beyond = [memory.0, 1 << 20, 1, memory.0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: refused, as the range ends beyond the memory.
    assert!(unsafe { gpu.launch(function, 1, 64, &beyond, Stream::DEFAULT, &token) }.is_err());
    assert_eq!(gpu.offences().len(), 1);
}

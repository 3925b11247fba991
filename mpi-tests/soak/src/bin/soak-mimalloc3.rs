//! mimalloc 3 from its crate: Rust's allocator, and C's malloc as well.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    pinyard_mpi_tests::soak::main()
}

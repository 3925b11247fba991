//! The C library's allocator; others are preloaded in its place.
fn main() -> std::process::ExitCode {
    pinyard_mpi_tests::soak::main()
}

//! Compiles what only mpi.h knows, with the compiler wrapper of the MPI that the library
//! is for: MPICC, as rsmpi's own build takes it.

fn main() {
    for name in ["shim.c", "build.rs"] {
        println!("cargo:rerun-if-changed={name}");
    }
    for name in ["MPICC", "MPICC_ABI"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let wrapper = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    cc::Build::new()
        .compiler(wrapper)
        .file("shim.c")
        .flag("-std=c11")
        .flag("-Wall")
        .flag("-Wextra")
        .flag("-fvisibility=hidden")
        .compile("pinyard_mpi_shim");
}

//! libpinyard_mpi asks the program that it is in for `pny_device_find`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bin=mpi=-rdynamic");
}

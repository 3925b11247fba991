//! Compiles the queue pair, for which libibverbs has macros and inline functions.

fn main() {
    println!("cargo::rerun-if-changed=src/wire.c");
    cc::Build::new().file("src/wire.c").flag("-std=gnu11").warnings(true).compile("wire");
    println!("cargo::rustc-link-lib=ibverbs");
}

//! Compiles the queue pair, for which libibverbs has macros and inline functions.

fn main() {
    println!("cargo::rerun-if-changed=src/loopback.c");
    #[cfg(feature = "verbs")]
    {
        cc::Build::new().file("src/loopback.c").flag("-std=gnu11").warnings(true).compile("loopback");
        println!("cargo::rustc-link-lib=ibverbs");
    }
}

//! Builds the shim over UCX's headers, or an empty one where there are none. The libraries
//! themselves are opened at run time, so that the program also runs where they are not.

fn main() {
    println!("cargo:rerun-if-changed=ucx/rcache.c");
    cc::Build::new().file("ucx/rcache.c").flag("-Wall").flag("-Wextra").opt_level(2).compile("ucx_rcache");
}

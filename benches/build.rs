//! Builds the shim over Debian's libucx-dev.

fn main() {
    println!("cargo:rerun-if-changed=ucx/rcache.c");
    cc::Build::new().file("ucx/rcache.c").flag("-Wall").flag("-Wextra").opt_level(2).compile("ucx_rcache");
    println!("cargo:rustc-link-lib=ucs");
    println!("cargo:rustc-link-lib=ucm");
}

//! The name by which programs that were linked with libpinyard.so look for it: its
//! number rises when a function or a structure is changed so that they would break.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpinyard.so.0");
}

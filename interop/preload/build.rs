//! libgcc goes into the library: an image without libgcc_s.so.1 starts with it preloaded.
//!
//! std asks for `-lgcc_s`, and `-static-libgcc` does not change a library that is named.
//! A linker script of that name, found first, names the static parts of libgcc instead.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let folder = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(folder.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")?;
    println!("cargo:rustc-link-search=native={}", folder.display());
    Ok(())
}

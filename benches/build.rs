//! Builds the shims over the headers of UCX and libfabric, or empty ones where there are
//! none. The libraries themselves are opened at run time, so that the program also runs where
//! they are not.

const SOURCES: [&str; 2] = ["ucx/rcache.c", "libfabric/mr_cache.c"];
const STAND_IN: &str = "../mpi-tests/incidents/stand_in/fakeverbs.c";
const EXPORTED: &str = "libfabric/stand_in.list";

fn main() -> std::io::Result<()> {
    SOURCES.iter().chain([&STAND_IN]).for_each(|source| println!("cargo:rerun-if-changed={source}"));
    let mut build = cc::Build::new();
    build.files(SOURCES).flag("-Wall").flag("-Wextra").opt_level(2).compile("peers");
    // libfabric finds the stand-in device in the program before it looks into libibverbs.
    println!("cargo:rerun-if-changed={EXPORTED}");
    let exported = std::path::absolute(EXPORTED)?;
    println!("cargo:rustc-link-arg-bin=pinyard-bench=-Wl,--dynamic-list={}", exported.display());
    Ok(())
}

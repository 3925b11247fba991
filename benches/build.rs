//! Builds the shims over the headers of UCX and libfabric, or empty ones where there are
//! none. The libraries themselves are opened at run time, so that the program also runs where
//! they are not.

const SOURCES: [&str; 2] = ["ucx/rcache.c", "libfabric/mr_cache.c"];
const STAND_IN: &str = "../mpi-tests/incidents/stand_in/fakeverbs.c";

fn main() {
    SOURCES.iter().chain([&STAND_IN]).for_each(|source| println!("cargo:rerun-if-changed={source}"));
    let mut build = cc::Build::new();
    build.files(SOURCES).flag("-Wall").flag("-Wextra").opt_level(2).compile("peers");
    // libfabric finds the stand-in device in the program before it looks into libibverbs.
    for prefix in ["ibv", "rdma", "efadv"] {
        println!("cargo:rustc-link-arg-bin=pinyard-bench=-Wl,--export-dynamic-symbol={prefix}_*");
    }
}

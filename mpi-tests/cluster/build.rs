//! Compiles the queue pair and the endpoints, for which the libraries have macros and
//! inline functions.

fn main() {
    let files = ["src/wire.c", "src/ucx.c", "src/fabric.c"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new().files(files).flag("-std=gnu11").warnings(true).compile("wire");
    for library in ["ibverbs", "ucp", "ucs", "fabric"] {
        println!("cargo::rustc-link-lib={library}");
    }
}

//! Compiles queue pairs and endpoints, for which the libraries have macros and inline functions.

/// Compiles `files` into one archive, of a library's name, that needs `libraries`.
#[cfg(any(feature = "verbs", feature = "cluster"))]
fn compile(name: &str, files: &[&str], libraries: &[&str]) {
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new().files(files).flag("-std=gnu11").warnings(true).compile(name);
    for library in libraries {
        println!("cargo::rustc-link-lib={library}");
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "verbs")]
    compile("loopback", &["stress/src/loopback.c"], &["ibverbs"]);
    #[cfg(feature = "cluster")]
    compile(
        "wire",
        &["cluster/src/wire.c", "cluster/src/ucx.c", "cluster/src/fabric.c"],
        &["ibverbs", "ucp", "ucs", "fabric"],
    );
}

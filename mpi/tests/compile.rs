//! What must not compile: operations on buffers that were not waited for. The compiler's
//! words are pinned, so that each case fails for its own reason (`TRYBUILD=overwrite`
//! writes them anew).

/// The same as it is meant, which compiles with this test.
#[path = "ui/settled.rs"]
mod settled;

#[cfg(feature = "cudarc")]
#[path = "ui/cudarc/lent.rs"]
mod lent;

#[test]
fn buffers_that_were_not_waited_for_are_refused() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/refused_*.rs");
    // Buffers that cudarc has queued work for, and slices of its own.
    if cfg!(feature = "cudarc") {
        cases.compile_fail("tests/ui/cudarc/refused_*.rs");
    }
}

//! What must not compile: operations on buffers that were not waited for. The compiler's
//! words are pinned, so that each case fails for its own reason (`TRYBUILD=overwrite`
//! writes them anew).

/// The same as it is meant, which compiles with this test.
#[path = "ui/settled.rs"]
mod settled;

#[test]
fn buffers_that_were_not_waited_for_are_refused() {
    trybuild::TestCases::new().compile_fail("tests/ui/refused_*.rs");
}

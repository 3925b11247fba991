//! Compares the layouts that are written out here with the real headers.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// Each expression of C has the value beside it. The compiler decides: `_Static_assert`.
pub(super) fn of_c(header: &str, values: &[(&str, usize)]) {
    let mut source = format!("#include <stddef.h>\n#include <{header}>\n");
    for (expression, value) in values {
        source += &format!("_Static_assert(({expression}) == {value}ull, \"not {value}\");\n");
    }
    let file = std::env::temp_dir().join(format!("pinyard-layout-{}.c", std::process::id()));
    std::fs::write(&file, source).unwrap();
    let cc = Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let cc = cc.unwrap();
    let said = String::from_utf8_lossy(&cc.stderr);
    if said.contains(&format!("{header}: No such file")) {
        println!("skipped: {header} is not installed");
        return;
    }
    assert!(cc.status.success(), "{said}");
}

//! Writes `include/pinyard.h`: cbindgen translates each file of the C interface, and
//! what it leaves of Rust's habits becomes C's. With `--check` nothing is written, and a
//! header that differs is an error.

mod comments;

use cbindgen::{Builder, Config, DocumentationStyle, Language, SortKey, Style};
use std::path::Path;
use std::process::ExitCode;

/// The files of `src/capi` in the header's order, each with its heading.
const SECTIONS: [(&str, &str); 8] = [
    ("status", "Errors"),
    ("process", "Beginning and end"),
    ("hooks", "Hooks"),
    ("backend", "Backends: who registers"),
    ("registry", "The registration cache"),
    ("get", "Leases"),
    ("diagnosis", "Diagnosis"),
    ("libfabric", "libfabric's own caches"),
];
/// Types that functions of other files take.
const INCLUDED: [&str; 3] = ["pny_status", "pny_key", "pny_backend_ops"];
/// Characters in a line, a tab counted as `TAB`.
const WIDTH: usize = 100;
const TAB: usize = 8;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("include/pinyard.h");
    let header = match generate(&root) {
        Ok(header) => header,
        Err(problem) => {
            eprintln!("header: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let check = std::env::args().any(|argument| argument == "--check");
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if check && there != header {
        let line = there.lines().zip(header.lines()).take_while(|(old, new)| old == new).count() + 1;
        eprintln!(
            "header: include/pinyard.h differs from src/capi in line {line}: run ci/header.sh --update"
        );
        return ExitCode::FAILURE;
    }
    if !check && let Err(error) = std::fs::write(&path, header) {
        eprintln!("header: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn generate(root: &Path) -> Result<String, String> {
    let mut header = include_str!("top.h").to_owned();
    for (file, heading) in SECTIONS {
        let section = translate(&root.join("src/capi").join(file).with_extension("rs"))?;
        header.push_str(&format!("\n/* ---- {heading} {} */\n\n", "-".repeat(80 - heading.len())));
        header.push_str(section.trim());
        header.push('\n');
    }
    header.push_str(include_str!("bottom.h"));
    let too_long = |line: &&str| line.chars().map(|c| if c == '\t' { TAB } else { 1 }).sum::<usize>() > WIDTH;
    match header.lines().find(too_long) {
        Some(line) => Err(format!("longer than {WIDTH} characters: {line}")),
        None => Ok(header),
    }
}

fn translate(file: &Path) -> Result<String, String> {
    let mut config = Config {
        language: Language::C,
        style: Style::Both,
        tab_width: 8,
        line_length: 96,
        no_includes: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C,
        ..Config::default()
    };
    config.function.sort_by = Some(SortKey::None);
    config.constant.sort_by = Some(SortKey::None);
    // What no function of the same file names.
    config.export.include = INCLUDED.map(str::to_owned).to_vec();
    let bindings = Builder::new().with_src(file).with_config(config).generate();
    let mut text = Vec::new();
    bindings.map_err(|error| format!("{}: {error}", file.display()))?.write(&mut text);
    let text = String::from_utf8(text).map_err(|error| format!("{}: {error}", file.display()))?;
    let source = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    comments::in_c(&text, &source)
}

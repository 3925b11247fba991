//! Writes `src/include/pinyard.h` and `src/include/pinyard_mpi.h`: cbindgen translates each file of the C interface, and
//! what it leaves of Rust's habits becomes C's; and of the header the page pinyard(3) and the Fortran module.
//! With `--check` nothing is written, and a file that differs is an error.

mod comments;
mod errors;
mod fortran;
mod manual;
mod safety;

use cbindgen::{Builder, Config, DocumentationStyle, Language, SortKey, Style};
use std::path::Path;
use std::process::ExitCode;

/// The files of `src/capi`, from there, in the header's order, under headings.
const SECTIONS: [(&str, &str); 13] = [
    ("../boundary/src/codes status", "Errors"),
    ("process", "Beginning and end"),
    ("hooks", "Hooks"),
    ("backend", "Backends: who registers"),
    ("registry", "The registration cache"),
    ("get", "Leases"),
    ("pools", "Pools"),
    ("streams", "Streams of device pools"),
    ("blocks", "Blocks of pools"),
    ("plug", "Allocators of other libraries"),
    ("find", "Whose device memory an address is"),
    ("diagnosis", "Diagnosis"),
    ("libfabric", "libfabric's own caches"),
];
/// The same of `mpi/c/src`, for `src/include/pinyard_mpi.h`.
const MPI_SECTIONS: [(&str, &str); 5] = [
    ("status", "Errors"),
    ("communicator", "Communicators"),
    ("transfers", "Bcast and messages"),
    ("reductions", "Reductions"),
    ("shares", "Every rank's share"),
];
/// Types that functions of other files take.
const INCLUDED: [&str; 4] = ["pny_status", "pny_key", "pny_backend_ops", "pny_block_place"];
/// Characters in a line, a tab counted as `TAB`.
const WIDTH: usize = 100;
const TAB: usize = 8;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let header = generate(&root, "src/capi", include_str!("top.h"), &SECTIONS);
    let mpi = generate(&root, "mpi/c/src", include_str!("mpi_top.h"), &MPI_SECTIONS);
    let documented = |header: String, mpi: String| {
        errors::check(&header, &header)
            .and_then(|()| errors::check(&mpi, &header))
            .map(|()| (safety::with_lines(&header, false), safety::with_lines(&mpi, true)))
    };
    let (header, mpi) = match header.and_then(|header| documented(header, mpi?)) {
        Ok(headers) => headers,
        Err(problem) => {
            eprintln!("header: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let check = std::env::args().any(|argument| argument == "--check");
    let page = manual::page(&header, env!("CARGO_PKG_VERSION"), &manual::LIBRARY);
    let mpi_page = manual::page(&mpi, env!("CARGO_PKG_VERSION"), &manual::MPI);
    let module = match fortran::module(&header) {
        Ok(module) => module,
        Err(problem) => {
            eprintln!("header: src/include/pinyard.f90: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let files = [
        ("src/include/pinyard.h", header),
        ("packaging/man/pinyard.3", page),
        ("src/include/pinyard.f90", module),
        ("src/include/pinyard_mpi.h", mpi),
        ("packaging/man/pinyard_mpi.3", mpi_page),
    ];
    for (name, text) in files {
        if let Err(problem) = keep(&root, name, &text, check) {
            eprintln!("header: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Writes the file, or says where it differs.
fn keep(root: &Path, name: &str, text: &str, check: bool) -> Result<(), String> {
    let path = root.join(name);
    if !check {
        return std::fs::write(&path, text).map_err(|error| format!("{name}: {error}"));
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if there == text {
        return Ok(());
    }
    let line = there.lines().zip(text.lines()).take_while(|(old, new)| old == new).count() + 1;
    Err(format!("{name} differs from its source in line {line}: run xtask/ci/header.sh --update"))
}

fn generate(root: &Path, folder: &str, top: &str, sections: &[(&str, &str)]) -> Result<String, String> {
    let mut header = top.to_owned();
    for (files, heading) in sections {
        header.push_str(&format!("\n/* ---- {heading} {} */\n", "-".repeat(80 - heading.len())));
        for file in files.split(' ') {
            let section = translate(&root.join(folder).join(file).with_extension("rs"))?;
            header.push_str(&format!("\n{}\n", section.trim()));
        }
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

//! The manual's page of the library, pinyard(3), made of the header: types as they
//! stand there, functions with their comments as text.

/// What leads a comment's line that names a status.
const STATUS: &str = "PNY_";

/// What a page says of its library.
pub(crate) struct About {
    title: &'static str,
    name: &'static str,
    library: &'static str,
    header: &'static str,
}

pub(crate) const LIBRARY: About = About {
    title: "PINYARD",
    name: "pinyard \\- registered memory: a registration cache and pools",
    library: "pinyard (libpinyard, \\-lpinyard); pkg-config: pinyard, pinyard-static; CMake: pinyard::pinyard, \
              pinyard::pinyard-static",
    header: "pinyard.h",
};

pub(crate) const MPI: About = About {
    title: "PINYARD_MPI",
    name: "pinyard_mpi \\- MPI on device buffers",
    library: "pinyard_mpi (one for each MPI); pkg-config: pinyard-mpi-openmpi, pinyard-mpi-mpich, pinyard-mpi-abi",
    header: "pinyard_mpi.h",
};

/// The page that a header's text becomes. `version` is the library's.
pub(crate) fn page(header: &str, version: &str, about: &About) -> String {
    let About { title, name, library, header: file } = about;
    let mut page = format!(
        ".\\\" Made of src/include/{file} by xtask/ci/header.sh.\n.TH {title} 3 \"\" \"pinyard {version}\" \"Library functions\"\n\
         .SH NAME\n{name}\n.SH LIBRARY\n{library}\n.SH SYNOPSIS\n.B #include <{file}>\n"
    );
    let mut blocks = header.split("\n\n").peekable();
    if let Some(first) = blocks.next() {
        page.push_str(".SH DESCRIPTION\n");
        // The last paragraphs are of the header as a file.
        let lines: Vec<&str> = first.lines().filter_map(inside).collect();
        let end = lines.iter().position(|line| line.starts_with("Made of ")).unwrap_or(lines.len());
        prose(&lines[1..end], &mut page);
    }
    // A comment with an empty line of its own does not occur: it has a star there.
    for block in blocks {
        if let Some(heading) = block.strip_prefix("/* ---- ") {
            let heading = heading.split(" -----").next().unwrap_or(heading);
            page.push_str(&format!(".SH {}\n", heading.to_uppercase()));
        } else if let Some((comment, code)) = function(block) {
            let name = code.split('(').next().and_then(|head| head.rsplit([' ', '*']).next()).unwrap_or(code);
            page.push_str(&format!(".SS {name}\n"));
            literally(code, &mut page);
            let lines: Vec<&str> = comment.lines().filter_map(inside).collect();
            prose(&lines, &mut page);
        } else if block.contains("PNY_") || block.contains("pny_") {
            page.push_str(".PP\n");
            literally(block, &mut page);
        }
    }
    page.push_str(".SH FILES\n.TP\n.I @BOOK@\nThe book, with a search.\n");
    page.push_str(".SH SEE ALSO\n.BR pinyard (1),\n.BR pinyard (7)\n");
    page
}

/// A line of a comment without its stars; `None` where there is nothing else.
fn inside(line: &str) -> Option<&str> {
    let text = line.trim_start_matches(['/', '*', ' ']).trim_end_matches(['*', '/']).trim_end();
    match line.trim() {
        "/*" | "*/" => None,
        _ => Some(text),
    }
}

/// A function's comment and prototype.
fn function(block: &str) -> Option<(&str, &str)> {
    let (comment, code) = block.split_once("*/\n")?;
    let prototype = block.starts_with("/*") && code.trim_end().ends_with(");") && !code.contains('{');
    (prototype && !code.starts_with("typedef")).then_some((comment, code))
}

fn literally(code: &str, page: &mut String) {
    page.push_str(".nf\n");
    for line in code.trim().lines() {
        page.push_str(&format!("{}\n", escaped(&line.replace('\t', "    "))));
    }
    page.push_str(".fi\n");
}

fn prose(lines: &[&str], page: &mut String) {
    let mut fresh = true;
    for line in lines {
        let status = line.split([' ', ':']).next().filter(|word| word.starts_with(STATUS));
        let text = status.and_then(|status| {
            let rest = &line[status.len()..];
            rest.strip_prefix(": ")
                .or_else(|| rest.strip_prefix("  "))
                .map(|rest| (status, rest.trim_start()))
        });
        match (line.is_empty(), text) {
            (true, _) => fresh = true,
            (false, Some((status, text))) => {
                page.push_str(&format!(".TP\n.B {status}\n{}\n", escaped(text)));
                fresh = false;
            }
            (false, None) => {
                if fresh {
                    page.push_str(".PP\n");
                }
                page.push_str(&format!("{}\n", escaped(line)));
                fresh = false;
            }
        }
    }
}

/// What roff would take for its own.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_become_text_and_types_stay() {
        let header = "/*\n * title\n *\n * Words.\n *\n * Made of x.\n */\n#ifndef X\n\n/* ---- Errors ---- */\n\n\
                      /* A flag. */\n#define PNY_A 1\n\n/*\n * Does it-self.\n *\n * PNY_ERR_X   not so\n * Requires: `a`.\n */\nint pny_do(int a,\n\t   int b);\n";
        let page = page(header, "1.2.3", &LIBRARY);
        assert!(page.contains(".SH DESCRIPTION\n.PP\nWords.\n.SH ERRORS"), "{page}");
        assert!(page.contains(".nf\n/* A flag. */\n#define PNY_A 1\n.fi\n"), "{page}");
        let function = ".SS pny_do\n.nf\nint pny_do(int a,\n       int b);\n.fi\n.PP\nDoes it\\-self.\n.TP\n.B PNY_ERR_X\nnot so\n";
        assert!(page.contains(function), "{page}");
        assert!(!page.contains("Made of x"), "{page}");
    }
}

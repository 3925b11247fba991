//! From cbindgen's output to a header as it would be written by hand: items in the
//! order of the source, comments with a margin of stars, constants of one kind without
//! gaps, tabs.

/// What introduces, in Rust's documentation, what the caller sees to.
const SAFETY: &str = "# Safety";
const REQUIRES: &str = "Requires: ";

/// A declaration with the comment before it.
struct Item {
    comment: Vec<String>,
    code: Vec<String>,
}

/// The items of `text`, which cbindgen made of the file `source`.
pub(crate) fn in_c(text: &str, source: &str) -> Result<String, String> {
    let mut items = items(text);
    items.retain(|item| !item.is_tag_only());
    let mut placed = Vec::new();
    for item in items {
        let name = item.name().ok_or_else(|| format!("no name in {:?}", item.code))?;
        let place = place(source, name).ok_or_else(|| format!("{name} is not in its file"))?;
        placed.push((place, item));
    }
    placed.sort_by_key(|(place, _)| *place);
    let mut written = String::new();
    let mut constants = false;
    for (_, item) in placed {
        let constant = item.is_constant();
        let together = constants && constant;
        if !together && !written.is_empty() {
            written.push('\n');
        }
        constants = constant;
        comment(&item.comment, "", &mut written);
        inside(&item.code, &mut written);
    }
    Ok(written)
}

fn items(text: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let mut item = Item { comment: Vec::new(), code: Vec::new() };
        let mut first = Some(line);
        if line == "/*" {
            item.comment = lines.by_ref().take_while(|line| *line != " */").map(margin).collect();
            first = None;
        }
        item.code.extend(first.map(str::to_owned));
        while let Some(line) = lines.next_if(|line| !line.is_empty()) {
            item.code.push(line.to_owned());
        }
        // An empty line inside a comment inside braces is no end.
        while item.code.iter().filter(|line| line.ends_with('{')).count()
            > item.code.iter().filter(|line| line.starts_with('}')).count()
        {
            let Some(line) = lines.next() else { break };
            item.code.push(line.to_owned());
        }
        items.push(item);
    }
    items
}

/// A line of a comment, without what stands before its text.
fn margin(line: &str) -> String {
    line.strip_prefix(' ').unwrap_or(line).to_owned()
}

impl Item {
    fn is_constant(&self) -> bool {
        self.code.first().is_some_and(|line| line.starts_with("#define"))
    }

    /// A structure that is only a pointer's tag needs no name of its own.
    fn is_tag_only(&self) -> bool {
        matches!(&self.code[..], [line] if line.starts_with("typedef struct") && !line.contains('*'))
    }

    fn name(&self) -> Option<&str> {
        let declared = self.code.iter().find(|line| !line.starts_with(' '))?;
        let words = declared.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut names = words.filter(|word| word.starts_with("pny_") || word.starts_with("PNY_"));
        match declared {
            function if function.contains('(') => function.split('(').next()?.rsplit([' ', '*']).next(),
            typedef if typedef.starts_with("typedef") && typedef.ends_with(';') => names.next_back(),
            _ => names.next(),
        }
    }
}

/// Where the file declares a name.
fn place(source: &str, name: &str) -> Option<usize> {
    ["enum", "struct", "type", "const", "fn"].into_iter().find_map(|keyword| {
        source.match_indices(&format!("{keyword} {name}")).map(|(at, found)| (at, at + found.len())).find_map(
            |(at, end)| {
                let next = source[end..].chars().next()?;
                (!next.is_ascii_alphanumeric() && next != '_').then_some(at)
            },
        )
    })
}

/// The code of an item, with the comments in it.
fn inside(code: &[String], written: &mut String) {
    let mut lines = code.iter();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        let spaces = line.len() - text.len();
        let indent = "\t".repeat(spaces / 8) + &" ".repeat(spaces % 8);
        if text == "/*" {
            let inner = lines.by_ref().take_while(|line| line.trim() != "*/");
            let inner: Vec<String> =
                inner.map(|line| line.get(spaces + 1..).unwrap_or_default().to_owned()).collect();
            comment(&inner, &indent, written);
        } else {
            written.push_str(&format!("{indent}{text}\n"));
        }
    }
}

fn comment(lines: &[String], indent: &str, written: &mut String) {
    let mut said: Vec<String> = Vec::new();
    let mut requires = false;
    for line in lines {
        if line == SAFETY {
            requires = true;
        } else if requires {
            // The first line behind the heading; the rest follows it as a paragraph.
            let mut rest = line.chars();
            let first = rest.next().map(|first| first.to_ascii_lowercase());
            said.push(format!("{REQUIRES}{}{}", first.unwrap_or_default(), rest.as_str()));
            requires = false;
        } else {
            said.push(line.clone());
        }
    }
    match &said[..] {
        [] => {}
        [line] => written.push_str(&format!("{indent}/* {line} */\n")),
        lines => {
            written.push_str(&format!("{indent}/*\n"));
            for line in lines {
                written.push_str(format!("{indent} * {line}").trim_end());
                written.push('\n');
            }
            written.push_str(&format!("{indent} */\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_source_s_and_comments_are_c_s() {
        let text = "\n/*\n A flag.\n */\n#define PNY_B 2\n\n/*\n Another.\n */\n#define PNY_A 1\n\n\
                    typedef struct pny_o pny_o;\n\n/*\n A handle.\n */\ntypedef struct pny_o *pny_h;\n\n\
                    /*\n Does it.\n\n # Safety\n `at` is writable,\n and not null.\n */\nint pny_do(pny_h it,\n           int *at);\n";
        let source = "pub struct pny_o; type pny_h = *mut pny_o; const PNY_A: u32 = 1; const PNY_B: u32 = 2; fn pny_do() {}";
        let expected = "/* A handle. */\ntypedef struct pny_o *pny_h;\n\n/* Another. */\n#define PNY_A 1\n/* A flag. */\n#define PNY_B 2\n\n\
                        /*\n * Does it.\n *\n * Requires: `at` is writable,\n * and not null.\n */\nint pny_do(pny_h it,\n\t   int *at);\n";
        assert_eq!(in_c(text, source).as_deref(), Ok(expected));
    }

    #[test]
    fn members_keep_their_comments() {
        let text = "typedef struct pny_s {\n        /*\n         One.\n         */\n        int one;\n        /*\n         Two,\n\n         again.\n         */\n        int two;\n} pny_s;\n";
        let expected = "typedef struct pny_s {\n\t/* One. */\n\tint one;\n\t/*\n\t * Two,\n\t *\n\t * again.\n\t */\n\tint two;\n} pny_s;\n";
        assert_eq!(in_c(text, "struct pny_s {").as_deref(), Ok(expected));
    }

    #[test]
    fn what_the_source_does_not_declare_is_refused() {
        assert!(in_c("int pny_x(void);\n", "fn pny_xy() {}").is_err());
    }
}

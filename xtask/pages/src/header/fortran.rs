//! The Fortran module, made of the header: constants, types and an interface for each
//! function, by `iso_c_binding`.

use std::fmt::Write;

/// What the module says before its declarations.
const TOP: &str = include_str!("top.f90");
const BOTTOM: &str = include_str!("bottom.f90");
/// Integers of C's. What pinyard.h calls by another name is one of 32 bits.
const INTEGERS: [(&str, &str); 5] = [
    ("size_t", "integer(c_size_t)"),
    ("uint64_t", "integer(c_int64_t)"),
    ("uint32_t", "integer(c_int32_t)"),
    ("pny_status", "integer(c_int)"),
    ("int", "integer(c_int)"),
];

/// Names of the header's types: those that are pointers, and those that are `uint32_t`.
struct Names {
    handles: Vec<String>,
    words: Vec<String>,
}

/// The module that a header's text becomes.
pub(crate) fn module(header: &str) -> Result<String, String> {
    let code = without_comments(header);
    let names = Names::of(&code);
    let (mut constants, mut types) = (String::new(), String::new());
    let (mut publics, mut functions) = (String::new(), String::new());
    for (name, value) in defines(&code) {
        line(&mut constants, format!("integer(c_int32_t), parameter, public :: {name} = {value}_c_int32_t"))?;
    }
    for item in items(&code) {
        if let Some(values) = between(&item, "typedef enum", "}").and_then(|text| text.split_once('{')) {
            for value in values.1.split(',').filter_map(|value| value.split_once('=')) {
                let (name, number) = (value.0.trim(), value.1.trim());
                line(
                    &mut constants,
                    format!("integer(c_int), parameter, public :: {name} = {number}_c_int"),
                )?;
            }
        } else if let Some((name, members)) = structure(&item) {
            structure_as(name, members, &names, &mut types)?;
        } else if item.ends_with(')') && item.contains("pny_") && !item.starts_with("typedef") {
            function_as(&item, &names, &mut publics, &mut functions)?;
        }
    }
    Ok(format!(
        "{TOP}\n{constants}\n{types}\n{publics}\n    interface\n{functions}    end interface\n{BOTTOM}"
    ))
}

fn line(to: &mut String, text: String) -> Result<(), String> {
    // A line of the standard has 132 characters.
    match text.len() + 4 <= 132 {
        true => writeln!(to, "    {text}").map_err(|error| error.to_string()),
        false => Err(format!("longer than a line of Fortran: {text}")),
    }
}

/// The header without comments and its other directives than constants.
fn without_comments(header: &str) -> String {
    let mut parts = header.split("/*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.filter_map(|part| part.split_once("*/")).fold(first, |code, (_, rest)| code + rest)
}

fn defines(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = code.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    words.filter(|(name, _)| name.starts_with("PNY_"))
}

/// Declarations, each in one line, without the semicolon.
fn items(code: &str) -> Vec<String> {
    let lines: Vec<&str> = code.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join(" ").replace("extern \"C\" {", "").replace('\t', " ");
    let (mut items, mut depth, mut item) = (Vec::new(), 0, String::new());
    for character in joined.chars() {
        match character {
            '{' | '(' => depth += 1,
            '}' | ')' => depth -= 1,
            _ => {}
        }
        if character == ';' && depth == 0 {
            items.push(item.split_whitespace().collect::<Vec<_>>().join(" "));
            item.clear();
        } else {
            item.push(character);
        }
    }
    items
}

fn between<'a>(item: &'a str, from: &str, to: &str) -> Option<&'a str> {
    item.strip_prefix(from)?.rsplit_once(to).map(|(inside, _)| inside)
}

fn structure(item: &str) -> Option<(&str, &str)> {
    let (name, members) = between(item, "typedef struct ", "}")?.split_once('{')?;
    Some((name.trim(), members))
}

impl Names {
    fn of(code: &str) -> Names {
        let items = items(code);
        let of = |prefix: &str, last: char| {
            let typedefs = items.iter().filter(|item| item.starts_with(prefix) && !item.contains('{'));
            typedefs
                .filter_map(|item| item.rsplit_once(last).map(|(_, name)| name.trim().to_owned()))
                .collect()
        };
        Names { handles: of("typedef struct ", '*'), words: of("typedef uint32_t ", ' ') }
    }

    fn is_handle(&self, c: &str) -> bool {
        self.handles.iter().any(|handle| handle == c)
    }

    fn integer(&self, c: &str) -> Option<&'static str> {
        let c = if self.words.iter().any(|word| word == c) { "uint32_t" } else { c };
        INTEGERS.iter().find(|(name, _)| *name == c).map(|(_, fortran)| *fortran)
    }
}

/// One parameter or member: its type in C, and its name.
fn declared(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    if let Some((_, rest)) = text.split_once("(*") {
        return Some(("function", rest.split_once(')')?.0));
    }
    let at = text.rfind([' ', '*'])?;
    Some((text[..=at].trim(), text[at + 1..].trim()))
}

/// Separated by commas or semicolons that are in no parentheses.
fn split(text: &str, at: char) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0 && character == at
    });
    parts.map(str::trim).filter(|part| !part.is_empty() && *part != "void").collect()
}

fn structure_as(name: &str, members: &str, known: &Names, to: &mut String) -> Result<(), String> {
    line(to, format!("type, bind(c), public :: {name}_t"))?;
    for member in split(members, ';') {
        let (c, member_name) = declared(member).ok_or_else(|| format!("{name}: no member: {member}"))?;
        let declared = match c {
            "function" => format!("type(c_funptr) :: {member_name} = c_null_funptr"),
            pointer if pointer.ends_with('*') || known.is_handle(pointer) => {
                format!("type(c_ptr) :: {member_name} = c_null_ptr")
            }
            structure if structure.starts_with("pny_") && known.integer(structure).is_none() => {
                format!("type({structure}_t) :: {member_name}")
            }
            other => {
                let kind = known.integer(other).ok_or_else(|| format!("{name}: {other} is unknown"))?;
                format!("{kind} :: {member_name} = 0")
            }
        };
        line(to, format!("    {declared}"))?;
    }
    line(to, "end type".to_owned())
}

fn function_as(item: &str, known: &Names, publics: &mut String, to: &mut String) -> Result<(), String> {
    let (head, arguments) = item.split_once('(').ok_or_else(|| format!("no function: {item}"))?;
    let (result, name) = declared(head).ok_or_else(|| format!("no name: {head}"))?;
    let arguments = split(arguments.strip_suffix(')').unwrap_or(arguments), ',');
    let arguments: Option<Vec<(&str, &str)>> = arguments.into_iter().map(declared).collect();
    let arguments = arguments.ok_or_else(|| format!("{name}: arguments"))?;
    let names: Vec<&str> = arguments.iter().map(|(_, argument)| *argument).collect();
    line(publics, format!("public :: {name}"))?;
    let (kind, suffix) = if result == "void" { ("subroutine", "") } else { ("function", " result(answer)") };
    line(to, format!("    {kind} {name}({}) &", names.join(", ")))?;
    line(to, format!("            bind(c, name=\"{name}\"){suffix}"))?;
    line(to, "        import".to_owned())?;
    for (c, argument) in arguments {
        let bare = c.trim_start_matches("const ").trim_start_matches("struct ").trim_end_matches('*').trim();
        let (pointers, constant) = (c.matches('*').count(), c.starts_with("const "));
        let handle = known.is_handle(bare);
        let declared = match (pointers, bare) {
            (_, "function") => "type(c_funptr), value".to_owned(),
            (0, _) if handle => "type(c_ptr), value".to_owned(),
            (0, bare) => {
                format!("{}, value", known.integer(bare).ok_or_else(|| format!("{name}: {bare} is unknown"))?)
            }
            (1, _) if handle => "type(c_ptr), intent(out)".to_owned(),
            (1, "void") => "type(c_ptr), value".to_owned(),
            (2, "void") if !constant => "type(c_ptr), intent(inout)".to_owned(),
            (1, "char") if constant => "character(kind=c_char), intent(in), optional".to_owned(),
            (1, "char") => "character(kind=c_char), intent(inout), optional".to_owned(),
            (1, bare) => match known.integer(bare) {
                Some(kind) if constant => format!("{kind}, intent(in)"),
                Some(kind) => format!("{kind}, intent(out), optional"),
                None if constant => format!("type({bare}_t), intent(in)"),
                None => format!("type({bare}_t), intent(inout)"),
            },
            _ => return Err(format!("{name}: {c} {argument} is unknown")),
        };
        // Several of them, as the function's comment says.
        let array = bare == "char" || many(argument);
        line(to, format!("        {declared} :: {argument}{}", if array { "(*)" } else { "" }))?;
    }
    if result != "void" {
        let kind = if result.ends_with('*') {
            "type(c_ptr)"
        } else {
            known.integer(result).unwrap_or("type(c_ptr)")
        };
        line(to, format!("        {kind} :: answer"))?;
    }
    line(to, format!("    end {kind}"))
}

/// Arguments that are arrays.
fn many(argument: &str) -> bool {
    matches!(argument, "sizes" | "blocks")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_become_fortran_s() {
        let header = "#define PNY_A 4\ntypedef enum pny_status {\n\t/* No. */\n\tPNY_OK = 0,\n} pny_status;\n\
                      typedef struct pny_o *pny_h;\ntypedef struct pny_s {\n\tsize_t size; /* x; y */\n\tconst char *name;\n\
                      \tint (*call)(void *user,\n\t\tint b);\n\tpny_h h;\n} pny_s;\n\
                      pny_status pny_do(pny_h h,\n\tconst struct pny_s *s, pny_h *made, size_t *length);\nvoid pny_no(void);\n";
        let module = module(header).unwrap();
        for part in [
            "integer(c_int32_t), parameter, public :: PNY_A = 4_c_int32_t",
            "integer(c_int), parameter, public :: PNY_OK = 0_c_int",
            "type, bind(c), public :: pny_s_t\n        integer(c_size_t) :: size = 0\n        type(c_ptr) :: name = c_null_ptr\n\
             \u{20}       type(c_funptr) :: call = c_null_funptr\n        type(c_ptr) :: h = c_null_ptr\n    end type",
            "function pny_do(h, s, made, length) &\n                bind(c, name=\"pny_do\") result(answer)",
            "type(c_ptr), value :: h\n            type(pny_s_t), intent(in) :: s\n            type(c_ptr), intent(out) :: made\n\
             \u{20}           integer(c_size_t), intent(out), optional :: length\n            integer(c_int) :: answer",
            "subroutine pny_no() &",
        ] {
            assert!(module.contains(part), "no {part:?} in:\n{module}");
        }
        assert!(super::module("int pny_x(float a);").is_err());
    }
}

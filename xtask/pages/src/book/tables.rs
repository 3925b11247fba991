//! Tables that the code makes.

use std::path::Path;

/// What stands between the marks in `page` is `wanted`; otherwise a problem, or the
/// new page if it is to be updated.
pub(crate) fn table(page: &Path, mark: &str, wanted: &str, update: bool) -> Option<String> {
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let text = match std::fs::read_to_string(page) {
        Ok(text) => text,
        Err(error) => return Some(format!("{}: {error}", page.display())),
    };
    let parts = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let Some((before, (_, behind))) = parts else {
        return Some(format!("{}: the marks of the {mark} are missing", page.display()));
    };
    let right = format!("{before}{begin}\n{wanted}\n{end}{behind}");
    if right == text {
        return None;
    }
    if update {
        return std::fs::write(page, right).err().map(|error| format!("{}: {error}", page.display()));
    }
    Some(format!(
        "{}: the {mark} are old; cargo run -p pinyard-pages --bin pinyard-book -- --update",
        page.display()
    ))
}

//! `cargo xtask layers`: each crate uses those below it alone, and no files of a crate use each
//! other in a circle, but for those of `xtask/ci/layers.toml`.

mod circles;
mod crates;
mod files;

use crate::tree::Folders;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Where the rows and the circles are, below the root.
const LIST: &str = "xtask/ci/layers.toml";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Prints the circles as the list has them.
    #[arg(long)]
    circles: bool,
}

/// The list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layers {
    rows: Vec<Vec<String>>,
    tools: Vec<String>,
    #[serde(default)]
    circles: Circles,
}

/// Circles of files by crate.
type Circles = BTreeMap<String, Vec<BTreeSet<String>>>;

/// Whether all keep to the list.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, String> {
    let Folders { root, .. } = Folders::of_cargo()?;
    let crates = crates::of_workspace(&root)?;
    let mut found = Circles::new();
    for each in &crates {
        let mut circles = Vec::new();
        for main in &each.mains {
            circles.extend(circles::of(&files::of(main)?, &each.folder));
        }
        if !circles.is_empty() {
            found.insert(each.name.clone(), circles);
        }
    }
    if arguments.circles {
        print!("{}", printed(&found));
        return Ok(true);
    }
    let layers = Layers::read(&root)?;
    let mut wrong = crates::wrong(&crates, &layers.rows, &layers.tools);
    wrong.extend(changed(&found, &layers.circles));
    for line in &wrong {
        println!("FAILED  {line}");
    }
    let files: usize = found.values().flatten().map(BTreeSet::len).sum();
    println!("{} crates, {} circles of {files} files", crates.len(), found.values().flatten().count());
    println!("{} passed, {} failed", usize::from(wrong.is_empty()), wrong.len());
    Ok(wrong.is_empty())
}

impl Layers {
    fn read(root: &Path) -> Result<Layers, String> {
        let text = fs::read_to_string(root.join(LIST)).map_err(|error| format!("read {LIST}: {error}"))?;
        toml::from_str(&text).map_err(|error| format!("{LIST}: {error}"))
    }
}

/// What the list does not say of the circles that there are.
fn changed(found: &Circles, listed: &Circles) -> Vec<String> {
    let mut wrong = Vec::new();
    let none = Vec::new();
    let names: BTreeSet<&String> = found.keys().chain(listed.keys()).collect();
    for name in names {
        let (found, listed) = (found.get(name).unwrap_or(&none), listed.get(name).unwrap_or(&none));
        for circle in found {
            let known = listed.iter().max_by_key(|known| known.intersection(circle).count());
            let new: Vec<&str> = circle
                .iter()
                .filter(|file| !known.is_some_and(|known| known.contains(*file)))
                .map(String::as_str)
                .collect();
            if !new.is_empty() {
                let all: Vec<&str> = circle.iter().map(String::as_str).collect();
                wrong.push(format!(
                    "{name}: {} became part of a circle: {}; let the lower file know nothing of the upper",
                    new.join(" "),
                    all.join(" ")
                ));
            }
        }
        for known in listed {
            let gone: Vec<&str> = known
                .iter()
                .filter(|file| !found.iter().any(|circle| circle.contains(*file)))
                .map(String::as_str)
                .collect();
            if !gone.is_empty() {
                wrong.push(format!(
                    "{name}: in no circle any more, so take out of {LIST}: {}",
                    gone.join(" ")
                ));
            }
        }
    }
    wrong
}

/// As the list has them.
fn printed(circles: &Circles) -> String {
    let mut text = String::new();
    for (name, circles) in circles {
        text += &format!("{name} = [\n");
        for circle in circles {
            let files: Vec<String> = circle.iter().map(|file| format!("\"{file}\"")).collect();
            text += &format!("    [{}],\n", files.join(", "));
        }
        text += "]\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(text: &[&[&str]]) -> Circles {
        let circle = |files: &&[&str]| files.iter().map(|file| (*file).to_owned()).collect();
        Circles::from([("a".to_owned(), text.iter().map(circle).collect())])
    }

    #[test]
    fn a_circle_may_shrink_and_not_grow() {
        let listed = circles(&[&["x", "y", "z"], &["m", "n"]]);
        assert_eq!(changed(&listed, &listed), Vec::<String>::new());
        let grown = changed(&circles(&[&["w", "x", "y", "z"], &["m", "n"]]), &listed);
        assert!(
            grown.len() == 1 && grown[0].starts_with("a: w became part of a circle: w x y z"),
            "{grown:?}"
        );
        let new = changed(&circles(&[&["x", "y", "z"], &["m", "n"], &["p", "q"]]), &listed);
        assert!(new.len() == 1 && new[0].starts_with("a: p q became"), "{new:?}");
        let less = changed(&circles(&[&["x", "y"], &["m", "n"]]), &listed);
        assert!(less.len() == 1 && less[0].ends_with("xtask/ci/layers.toml: z"), "{less:?}");
        assert_eq!(changed(&Circles::new(), &listed).len(), 2);
    }

    #[test]
    fn what_is_printed_is_read() {
        let listed = circles(&[&["x.rs", "y/mod.rs"]]);
        let text = format!("rows = []\ntools = []\n[circles]\n{}", printed(&listed));
        assert_eq!(toml::from_str::<Layers>(&text).unwrap().circles, listed);
    }
}

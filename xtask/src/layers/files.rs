//! Which file of a crate uses which, by its paths: `crate::`, `super::`, `self::` and those that begin
//! with a module of its own. Names that a module re-exports lead to where they are defined; the
//! re-export itself uses nothing. Code of tests and of the models is left out.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, Item, ItemMod, Lit, Meta, UseTree, Visibility};

/// Each file, and those that it uses.
pub(super) type Graph = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// The words of a path; of a module, its way from the root.
type Words = Vec<String>;

/// The graph of a library or a program.
pub(super) fn of(main: &Path) -> Result<Graph, String> {
    let mut house = House::default();
    let folder = main.parent().unwrap_or(Path::new(""));
    house.read(main, folder, &[])?;
    Ok(house.graph())
}

/// The modules.
#[derive(Default)]
struct House(BTreeMap<Words, Module>);

#[derive(Default)]
struct Module {
    file: PathBuf,
    /// What its `use` declarations bring: the last word, and the path as it is written.
    names: BTreeMap<String, Words>,
    /// Modules of which all names are brought.
    globs: Vec<Words>,
    /// Paths that its own code uses.
    uses: Vec<Words>,
}

impl House {
    fn read(&mut self, file: &Path, folder: &Path, module: &[String]) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|error| format!("read {}: {error}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|error| format!("parse {}: {error}", file.display()))?;
        self.items(&parsed.items, file, folder, module)
    }

    /// `folder` has the files of the modules that are declared there.
    fn items(&mut self, items: &[Item], file: &Path, folder: &Path, module: &[String]) -> Result<(), String> {
        let mut found = Module { file: file.to_owned(), ..Module::default() };
        for item in items {
            match item {
                Item::Mod(inner) if is_built(&inner.attrs) => self.inner(inner, file, folder, module)?,
                Item::Use(used) if is_built(&used.attrs) => {
                    let is_own = matches!(used.vis, Visibility::Inherited);
                    found.brings(&used.tree, &mut Vec::new(), is_own);
                }
                Item::Mod(_) | Item::Use(_) => {}
                other if is_built(attributes(other)) => paths(other.to_token_stream(), &mut found.uses),
                _ => {}
            }
        }
        self.0.insert(module.to_vec(), found);
        Ok(())
    }

    fn inner(
        &mut self,
        inner: &ItemMod,
        file: &Path,
        folder: &Path,
        module: &[String],
    ) -> Result<(), String> {
        let name = inner.ident.to_string();
        let module: Words = module.iter().cloned().chain([name.clone()]).collect();
        if let Some((_, items)) = &inner.content {
            return self.items(items, file, &folder.join(&name), &module);
        }
        if let Some(elsewhere) = inner.attrs.iter().find_map(path_of) {
            let other = file.parent().unwrap_or(Path::new("")).join(elsewhere);
            let folder = other.parent().unwrap_or(Path::new("")).to_owned();
            return self.read(&other, &folder, &module);
        }
        let own = folder.join(&name);
        let beside = folder.join(format!("{name}.rs"));
        let other = if beside.exists() { beside } else { own.join("mod.rs") };
        self.read(&other, &own, &module)
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::new();
        for (name, module) in &self.0 {
            let used = graph.entry(module.file.clone()).or_default();
            for words in &module.uses {
                if let Some(other) = self.find(name, words, 0)
                    && other.file != module.file
                {
                    used.insert(other.file.clone());
                }
            }
        }
        graph
    }

    /// The module where a path of `from`'s ends, if it is of this crate.
    fn find(&self, from: &[String], words: &[String], depth: usize) -> Option<&Module> {
        let mut at = from.to_vec();
        let mut rest = words;
        match words.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &words[1..];
            }
            "self" => rest = &words[1..],
            "super" => {
                while let [first, others @ ..] = rest {
                    if first != "super" {
                        break;
                    }
                    at.pop();
                    rest = others;
                }
            }
            // A module of its own, or another crate.
            first => {
                at.push(first.to_owned());
                self.0.get(&at)?;
                rest = &words[1..];
            }
        }
        while let [first, others @ ..] = rest {
            at.push(first.clone());
            if !self.0.contains_key(&at) {
                at.pop();
                break;
            }
            rest = others;
        }
        let module = self.0.get(&at)?;
        let Some((first, others)) = rest.split_first().filter(|_| depth < 16) else { return Some(module) };
        // Brought from elsewhere.
        if let Some(path) = module.names.get(first) {
            let path: Words = path.iter().chain(others).cloned().collect();
            return self.find(&at, &path, depth + 1).or(Some(module));
        }
        for glob in &module.globs {
            let path: Words = glob.iter().chain(rest).cloned().collect();
            if let Some(other) =
                self.find(&at, &path, depth + 1).filter(|other| other.names.contains_key(first))
            {
                return Some(other);
            }
        }
        Some(module)
    }
}

impl Module {
    fn brings(&mut self, tree: &UseTree, before: &mut Words, is_own: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.brings(&path.tree, before, is_own);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.brings(tree, before, is_own);
                }
            }
            UseTree::Glob(_) => {
                if is_own {
                    self.uses.push(before.clone());
                }
                self.globs.push(before.clone());
            }
            UseTree::Name(name) => self.bring(&name.ident.to_string(), None, before, is_own),
            UseTree::Rename(both) => {
                self.bring(&both.ident.to_string(), Some(both.rename.to_string()), before, is_own);
            }
        }
    }

    fn bring(&mut self, last: &str, rename: Option<String>, before: &[String], is_own: bool) {
        let mut path = before.to_vec();
        if last != "self" {
            path.push(last.to_owned());
        }
        if is_own {
            self.uses.push(path.clone());
        }
        if let Some(name) = rename.or_else(|| path.last().cloned()) {
            self.names.insert(name, path);
        }
    }
}

/// The paths in other code, those in macros too.
fn paths(tokens: TokenStream, found: &mut Vec<Words>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let word = |at: usize| match tokens.get(at) {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    };
    let is =
        |at: usize, sign| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign);
    let mut at = 0;
    while at < tokens.len() {
        if let TokenTree::Group(group) = &tokens[at] {
            paths(group.stream(), found);
        }
        let (Some(first), false) = (word(at), at > 0 && (is(at - 1, ':') || is(at - 1, '.'))) else {
            at += 1;
            continue;
        };
        let mut words = vec![first];
        while is(at + 1, ':') && is(at + 2, ':') {
            let Some(next) = word(at + 3) else { break };
            words.push(next);
            at += 3;
        }
        if words.len() > 1 {
            found.push(words);
        }
        at += 1;
    }
}

/// Whether the code is part of what users build.
fn is_built(attributes: &[Attribute]) -> bool {
    let is_left_out = |attribute: &Attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let text = list.tokens.to_string();
        list.path.is_ident("cfg") && !text.contains("not") && (text.contains("test") || text.contains("loom"))
    };
    !attributes.iter().any(is_left_out)
}

/// Of `#[path = "..."]`.
fn path_of(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(value) = &pair.value else { return None };
    match &value.lit {
        Lit::Str(path) if pair.path.is_ident("path") => Some(path.value()),
        _ => None,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses of a made-up crate, as `file: files`.
    fn uses(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let graph = of(&folder.path().join("lib.rs")).unwrap();
        let name = |path: &PathBuf| path.strip_prefix(folder.path()).unwrap().display().to_string();
        let used = |used: &BTreeSet<PathBuf>| used.iter().map(name).collect::<Vec<String>>().join(" ");
        graph
            .iter()
            .filter(|(_, to)| !to.is_empty())
            .map(|(from, to)| format!("{}: {}", name(from), used(to)))
            .collect()
    }

    #[test]
    fn paths_of_every_kind() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub use a::A; use b::B; fn g(_: B) { c::run() }"),
            ("a.rs", "pub struct A; fn f() { vec![crate::c::Y] }"),
            ("b/mod.rs", "mod inner; pub(crate) use self::inner::{B, one::Two as Three};"),
            (
                "b/inner.rs",
                "use super::super::c::{self, X}; pub(super) mod one { pub struct Two; } pub struct B;",
            ),
            ("c.rs", "use crate::{A, b::Three}; use std::fs; #[cfg(test)] mod tests { use crate::b::B; }"),
        ];
        // Re-exported names lead to where they are defined, and by themselves use nothing.
        assert_eq!(
            uses(&files),
            ["a.rs: c.rs", "b/inner.rs: c.rs", "c.rs: a.rs b/inner.rs", "lib.rs: b/inner.rs c.rs"]
        );
    }

    #[test]
    fn what_stands_elsewhere_and_what_is_not_built() {
        let files = [
            ("lib.rs", "#[path = \"far/x.rs\"] mod x; #[cfg(loom)] mod models; #[cfg(not(loom))] mod y;"),
            ("far/x.rs", "use crate::y::*;"),
            ("y.rs", "pub mod z; #[cfg(test)] fn f() { crate::x::g() }"),
            ("y/z.rs", "use super::Z;"),
        ];
        assert_eq!(uses(&files), ["far/x.rs: y.rs", "y/z.rs: y.rs"]);
    }
}

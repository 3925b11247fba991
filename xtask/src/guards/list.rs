//! xtask/ci/guards.toml, and whether what it names is there.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Paths are relative to the root of the tree.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guard {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: String,
    pub(crate) replacement: String,
    pub(crate) noticed_by: NoticedBy,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum NoticedBy {
    Test(Test),
    Compiler(Compiler),
    Script(Script),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Test {
    pub(crate) package: String,
    /// `--lib FILTER` or `--test NAME [FILTER]`.
    pub(crate) test: String,
    #[serde(default)]
    pub(crate) loom: bool,
    #[serde(default)]
    pub(crate) mpi: bool,
    #[serde(default)]
    pub(crate) root: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Compiler {
    /// The package.
    pub(crate) must_not_compile: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    /// With its arguments.
    pub(crate) script: String,
    pub(crate) says: String,
}

impl Guard {
    /// Whether the name holds the pattern, or one of its alternatives.
    pub(crate) fn is_named(&self, pattern: Option<&str>) -> bool {
        pattern.is_none_or(|pattern| pattern.split('|').any(|text| self.name.contains(text)))
    }

    pub(crate) fn is_scripted(&self) -> bool {
        matches!(self.noticed_by, NoticedBy::Script(_))
    }

    /// The text of the file without the guard.
    pub(crate) fn taken_out(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.line).count() {
            1 => Ok(text.replace(&self.line, &self.replacement)),
            places => Err(format!("{}: {places} places match the guard {:?}", self.file, self.line)),
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}\t{}\t", self.name, self.file)?;
        match &self.noticed_by {
            NoticedBy::Test(test) => write!(out, "{} {}", test.package, test.test),
            NoticedBy::Compiler(compiler) => write!(out, "{} must not compile", compiler.must_not_compile),
            NoticedBy::Script(script) => write!(out, "{}", script.script),
        }
    }
}

pub(crate) struct List {
    pub(crate) guards: Vec<Guard>,
    root: PathBuf,
    /// The folder of each package.
    packages: BTreeMap<String, String>,
}

impl List {
    pub(crate) fn read(root: &Path) -> Result<List, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            guard: Vec<Guard>,
        }
        let path = "xtask/ci/guards.toml";
        let File { guard: guards } =
            toml::from_str(&read(root, path)?).map_err(|error| format!("{path}: {error}"))?;
        let mut names = BTreeSet::new();
        if let Some(twice) = guards.iter().find(|guard| !names.insert(&guard.name)) {
            return Err(format!("{path}: two guards have the name {:?}", twice.name));
        }
        Ok(List { guards, root: root.to_owned(), packages: packages(root)? })
    }

    /// Why the guard cannot be tried: its line, or its test, is not as the list has it.
    pub(crate) fn problem(&self, guard: &Guard) -> Option<String> {
        let taken_out = read(&self.root, &guard.file).and_then(|text| guard.taken_out(&text));
        taken_out.and_then(|_| self.test_files(guard)).err()
    }

    /// Whether the guard's file, or its test's, is one of the paths.
    pub(crate) fn is_touched(&self, guard: &Guard, paths: &BTreeSet<String>) -> bool {
        let tests = self.test_files(guard).unwrap_or_default();
        paths.contains(&guard.file) || tests.iter().any(|test| paths.iter().any(|path| is_within(path, test)))
    }

    /// The files and folders of the test that notices, none for the compiler.
    fn test_files(&self, guard: &Guard) -> Result<Vec<String>, String> {
        let (package, test) = match &guard.noticed_by {
            NoticedBy::Test(test) => (&test.package, test.test.as_str()),
            NoticedBy::Compiler(compiler) => (&compiler.must_not_compile, ""),
            NoticedBy::Script(script) => {
                let path = script.script.split(' ').next().unwrap_or_default();
                return if self.root.join(path).is_file() {
                    Ok(vec![path.to_owned()])
                } else {
                    Err(format!("there is no script {path}"))
                };
            }
        };
        let folder = self.packages.get(package).ok_or_else(|| format!("there is no package {package}"))?;
        let words: Vec<_> = test.split(' ').collect();
        let found: Vec<String> = match words[..] {
            [""] => return Ok(Vec::new()),
            ["--test", name] | ["--test", name, _] => {
                let beside = format!("{folder}tests/{name}");
                let exists = |path: &String| self.root.join(path).exists();
                [format!("{beside}.rs"), beside].into_iter().filter(exists).collect()
            }
            ["--lib", filter] => self.sources_of(folder, filter)?,
            _ => return Err(format!("{test:?} is neither \"--lib FILTER\" nor \"--test NAME [FILTER]\"")),
        };
        if found.is_empty() { Err(format!("{package} has no test {test:?}")) } else { Ok(found) }
    }

    /// The sources with a test that `cargo test --lib FILTER` would run, by the names of files
    /// and functions.
    fn sources_of(&self, folder: &str, filter: &str) -> Result<Vec<String>, String> {
        let mut modules: Vec<_> = filter.split("::").collect();
        let name = modules.pop().unwrap_or_default();
        let mut found = Vec::new();
        for path in sources(&self.root, &format!("{folder}src"))? {
            let parts: Vec<_> = path.trim_end_matches(".rs").split('/').collect();
            let text = read(&self.root, &path)?;
            let tests =
                text.split("#[test]").skip(1).filter_map(|rest| rest.split_once("fn ")?.1.split('(').next());
            if modules.iter().all(|module| parts.contains(module))
                && tests.into_iter().any(|test| test.contains(name))
            {
                found.push(path);
            }
        }
        Ok(found)
    }
}

fn is_within(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The folder of each package of the workspace, with a slash behind it unless it is the root.
fn packages(root: &Path) -> Result<BTreeMap<String, String>, String> {
    #[derive(Deserialize)]
    struct Manifest {
        workspace: Option<Workspace>,
        package: Option<Package>,
    }
    #[derive(Deserialize)]
    struct Workspace {
        members: Vec<String>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
    }
    let manifest = |folder: &str| -> Result<Manifest, String> {
        let path = format!("{folder}Cargo.toml");
        toml::from_str(&read(root, &path)?).map_err(|error| format!("{path}: {error}"))
    };
    let members = manifest("")?.workspace.map(|workspace| workspace.members).unwrap_or_default();
    let folders = members.into_iter().map(|member| format!("{member}/")).chain([String::new()]);
    let named = folders.map(|folder| Ok(manifest(&folder)?.package.map(|package| (package.name, folder))));
    named.filter_map(Result::transpose).collect()
}

/// The Rust files in the folder and below it.
fn sources(root: &Path, folder: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let entries = fs::read_dir(root.join(folder)).map_err(|error| format!("read {folder}: {error}"))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("read {folder}: {error}"))?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.append(&mut sources(root, &path)?);
        } else if path.ends_with(".rs") {
            found.push(path);
        }
    }
    Ok(found)
}

fn read(root: &Path, path: &str) -> Result<String, String> {
    fs::read_to_string(root.join(path)).map_err(|error| format!("read {path}: {error}"))
}

//! Where a run goes: a file that is whole or not there, plots, a JSON document.

use crate::demo::Refusal;
use crate::terminal::complain;
use pinyard_cli::bench::{Comparison, Document, plot};
use pinyard_cli::place;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Files that can be written, as was tried.
pub(crate) struct Outputs {
    /// What becomes the saved run, beside it until it is whole.
    save: Option<(NamedTempFile, PathBuf)>,
    plot: Option<PathBuf>,
}

impl Outputs {
    /// Makes the folder for plots, and a file beside the one to save.
    pub(crate) fn prepare(save: Option<&Path>, plot: Option<&Path>) -> Result<Outputs, Refusal> {
        let save = save.map(|path| Ok((beside(path)?, path.to_owned()))).transpose()?;
        if let Some(folder) = plot {
            place::new_folder(folder).map_err(|error| {
                Refusal::new(
                    format!("mkdir {}: {error}", folder.display()),
                    "name another folder with --plot",
                )
            })?;
        }
        Ok(Outputs { save, plot: plot.map(Path::to_owned) })
    }

    /// Writes all of them; a run without a row leaves what was saved before.
    pub(crate) fn write(self, document: &Document) -> Result<(), Refusal> {
        if document.rows.is_empty() {
            return Ok(());
        }
        if let Some(folder) = &self.plot {
            let pictures = plot::all(document).map_err(|error| Refusal::new(format!("plot: {error}"), ""))?;
            for (name, svg) in pictures {
                let path = folder.join(name);
                place::put_in_place(&path, |file| file.write_all(svg.as_bytes())).map_err(|error| {
                    Refusal::new(
                        format!("write {}: {error}", path.display()),
                        "name another folder with --plot",
                    )
                })?;
                complain(format_args!("wrote {}", path.display()));
            }
        }
        if let Some((mut file, path)) = self.save {
            let text = json(document, None)? + "\n";
            let written = file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all());
            written.map_err(|error| cannot_save(&path, &error))?;
            file.persist(&path).map_err(|error| cannot_save(&path, &error.error))?;
            complain(format_args!("wrote {}", path.display()));
        }
        Ok(())
    }
}

fn cannot_save(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::new(format!("write {}: {error}", path.display()), "name another file with --save")
}

/// A file in the folder of `path`, its owner's alone.
fn beside(path: &Path) -> Result<NamedTempFile, Refusal> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(Refusal::new(format!("{} is a folder", path.display()), "name a file with --save"));
    }
    NamedTempFile::with_prefix_in(".pinyard-bench-", folder).map_err(|error| cannot_save(path, &error))
}

/// The run, with what became of its figures since a saved one.
pub(crate) fn json(document: &Document, comparison: Option<&Comparison>) -> Result<String, Refusal> {
    let refused = |error: serde_json::Error| Refusal::new(format!("JSON of the run: {error}"), "");
    let mut value = serde_json::to_value(document).map_err(refused)?;
    if let Some(comparison) = comparison {
        value["comparison"] = serde_json::to_value(comparison).map_err(refused)?;
    }
    serde_json::to_string_pretty(&value).map_err(refused)
}

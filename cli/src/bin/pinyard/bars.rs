//! Bars on stderr for what takes long, where stderr is a terminal. Elsewhere there are none.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// The place where they appear. It ends with an empty line.
pub(crate) struct Bars(Option<MultiProgress>);

impl Bars {
    pub(crate) fn new() -> Bars {
        Bars(std::io::stderr().is_terminal().then(MultiProgress::new))
    }

    /// One of `columns` columns behind `title`, that is full at `length`.
    pub(crate) fn bar(&self, title: &str, columns: u32, length: u64) -> Bar {
        Bar(self.0.as_ref().map(|bars| {
            let template = format!("{{prefix}} [{{bar:{columns}}}] {{elapsed:>3}} {{msg}}");
            let style = ProgressStyle::with_template(&template)
                .map(|style| style.progress_chars("=> "))
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = bars.add(ProgressBar::new(length)).with_style(style).with_prefix(title.to_owned());
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        }))
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        if self.0.is_some() {
            eprintln!(); // the cursor stands behind the last bar
        }
        eprintln!();
    }
}

/// A bar, or none. What is given up leaves its bar where it stood.
pub(crate) struct Bar(Option<ProgressBar>);

impl Bar {
    pub(crate) fn shown(&self) -> Option<&ProgressBar> {
        self.0.as_ref()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.as_ref().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}

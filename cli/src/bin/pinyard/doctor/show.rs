//! The screen: aligned, wrapped to the terminal's width, in colour on a terminal. Texts are
//! visible ones ([`crate::terminal::shown`]).

use super::facts::Facts;
use super::judge::{Finding, Weight};
use super::lines::{Line, Mark, Section};
use anstyle::{AnsiColor, Style};
use pinyard_cli::text::counted;
use std::io;

/// How to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paper {
    pub(crate) width: usize,
    pub(crate) colour: bool,
}

/// Wider lines are hard to read.
const WIDEST: usize = 120;
const NARROWEST: usize = 50;
/// Where the width is not known.
const USUAL: usize = 100;

impl Paper {
    /// Of standard output: colours only on a terminal, and never with NO_COLOR.
    pub(crate) fn of_stdout() -> Paper {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
        let told = || std::env::var("COLUMNS").ok()?.parse().ok();
        let width = size.filter(|width| *width != 0).or_else(told).unwrap_or(USUAL);
        let colour = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        Paper { width: width.clamp(NARROWEST, WIDEST), colour }
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn title(self, text: &str) -> String {
        self.paint(Style::new().bold(), text)
    }

    fn mark(self, mark: Mark) -> String {
        let (word, style) = match mark {
            Mark::Fine => ("OK", AnsiColor::Green.on_default()),
            Mark::Absent => ("-", Style::new().dimmed()),
            Mark::Warn => ("WARN", AnsiColor::Yellow.on_default()),
            Mark::Fail => ("FAIL", AnsiColor::Red.on_default().bold()),
        };
        self.paint(style, word) + &" ".repeat(4 - word.len())
    }

    /// `text` in lines that fit right of `column`; all but the first are indented to it.
    pub(crate) fn wrapped(self, column: usize, text: &str, style: Style) -> String {
        let lines = textwrap::wrap(text, self.width.saturating_sub(column).max(20));
        let lines: Vec<String> = lines.iter().map(|line| self.paint(style, line)).collect();
        lines.join(&format!("\n{}", " ".repeat(column)))
    }
}

/// Columns of a mark with the space around it.
const MARK: usize = 8;
/// Of a name that has its value beside it.
const LABEL: usize = 22;

/// All of it.
pub(crate) fn screen(facts: &Facts, sections: &[Section], findings: &[Finding], paper: Paper) -> String {
    let mut text = paper.title(&format!("pinyard {} on {}", facts.pinyard, facts.host)) + "\n";
    for section in sections {
        // A long name gets a line for itself, lest it push all values to the right.
        let lengths = section.lines.iter().map(|line| line.label.len());
        let label = lengths.filter(|length| *length <= LABEL).max().unwrap_or(LABEL / 2);
        text += &format!("\n{}\n", paper.title(section.title));
        for line in &section.lines {
            text += &of_line(line, label, paper);
        }
    }
    text + "\n" + &verdict(findings, paper)
}

fn of_line(line: &Line, label: usize, paper: Paper) -> String {
    let column = MARK + label + 2;
    let indent = " ".repeat(column);
    let mut text = format!("  {}  {:<label$}  ", paper.mark(line.mark), line.label);
    if line.label.len() > label {
        text = format!("{}\n{indent}", text.trim_end());
    }
    text += &paper.wrapped(column, &line.value, Style::new());
    if line.detail.is_empty() {
        return text + "\n";
    }
    let dim = Style::new().dimmed();
    // Beside the value if there is room, and never in the middle of a paragraph.
    let fits = !text.contains('\n') && visible(&text) + 2 + line.detail.chars().count() <= paper.width;
    match fits {
        true => text + "  " + &paper.wrapped(column, &line.detail, dim) + "\n",
        false => text + "\n" + &indent + &paper.wrapped(column, &line.detail, dim) + "\n",
    }
}

/// Columns of a text without its escape sequences.
fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().chars().count()
}

/// What is to be fixed and what is worth knowing, numbered, and the last word.
pub(crate) fn verdict(findings: &[Finding], paper: Paper) -> String {
    let mut text = String::new();
    let mut number = 0;
    for (weight, title) in [(Weight::Fail, "To fix"), (Weight::Warn, "Worth knowing")] {
        let of_weight: Vec<&Finding> = findings.iter().filter(|finding| finding.weight == weight).collect();
        if !of_weight.is_empty() {
            text += &format!("{}\n", paper.title(title));
        }
        for finding in of_weight {
            number += 1;
            text += &of_finding(number, finding, paper);
        }
        if !text.is_empty() && !text.ends_with("\n\n") {
            text += "\n";
        }
    }
    let failed = findings.iter().filter(|finding| finding.weight == Weight::Fail).count();
    text + &match failed {
        0 => paper.paint(AnsiColor::Green.on_default(), "Nothing to fix."),
        _ => paper.paint(
            AnsiColor::Red.on_default().bold(),
            &format!("{} to fix.", counted(failed as u64, "thing")),
        ),
    }
}

/// What, what comes of it, what fixes it.
pub(crate) fn of_finding(number: usize, finding: &Finding, paper: Paper) -> String {
    const COLUMN: usize = 12;
    let mut text = format!("  {number:>2}. {}\n", paper.wrapped(6, &finding.what, Style::new()));
    text += &format!("      then  {}\n", paper.wrapped(COLUMN, &finding.consequence, Style::new()));
    if !finding.remedy.is_empty() {
        let style = AnsiColor::Cyan.on_default();
        text += &format!("      fix   {}\n", paper.wrapped(COLUMN, &finding.remedy, style));
    }
    text
}

#[cfg(test)]
mod tests;

//! Many nodes' answers beside each other: what differs, and what is to be fixed where.
//! Pure but for reading the files.

use super::Answer;
use super::judge::{Finding, Weight};
use super::lines::lines;
use super::show::{Paper, of_finding};
use anstyle::Style;
use pinyard_cli::text::counted;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What came of it.
pub(crate) struct Comparison {
    /// By the nodes' names.
    nodes: BTreeMap<String, Answer>,
    /// Those that were expected and gave no answer.
    missing: Vec<String>,
    differences: Vec<Difference>,
}

/// A line of the screen that is not the same everywhere.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    label: String,
    /// Each value with its nodes; what most have comes first.
    values: Vec<(String, Vec<String>)>,
}

/// Reads the answers of files, `-` being standard input. Lines that are not JSON objects
/// are other programs', such as srun's.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Answer>, String> {
    let mut answers = Vec::new();
    for file in files {
        let text = text(file).map_err(|error| format!("read {}: {error}", file.display()))?;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('{')) {
            let answer = serde_json::from_str(line).map_err(|error| {
                format!("{}:{}: not an answer of `pinyard doctor --job`: {error}", file.display(), at + 1)
            })?;
            answers.push(answer);
        }
    }
    Ok(answers)
}

fn text(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    match file == Path::new("-") {
        true => io::stdin().lock().read_to_end(&mut bytes)?,
        false => std::fs::File::open(file)?.read_to_end(&mut bytes)?,
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Comparison {
    /// Of a node that answered several times, the last answer counts.
    pub(crate) fn of(answers: Vec<Answer>, expected: &[String]) -> Comparison {
        let nodes: BTreeMap<String, Answer> =
            answers.into_iter().map(|answer| (answer.facts.host.clone(), answer)).collect();
        let short = |name: &String| name.split('.').next().unwrap_or_default().to_owned();
        let expected: BTreeSet<String> = expected.iter().map(short).filter(|name| !name.is_empty()).collect();
        let missing = expected.into_iter().filter(|name| !nodes.contains_key(name)).collect();
        let differences = differences(&nodes);
        Comparison { nodes, missing, differences }
    }

    /// 0: all alike and nothing to fix; 1: something to fix, on all of them; 3: the
    /// nodes differ, and nothing is to be fixed; 4: a node is worse than others, or gave
    /// no answer.
    pub(crate) fn exit(&self) -> u8 {
        let failed = |answer: &'_ Answer| -> Vec<Finding> {
            answer.findings.iter().filter(|finding| finding.weight == Weight::Fail).cloned().collect()
        };
        let mut of_nodes = self.nodes.values().map(failed);
        let Some(first) = of_nodes.next() else { return 4 };
        match () {
            () if !self.missing.is_empty() || of_nodes.any(|other| other != first) => 4,
            () if !first.is_empty() => 1,
            () if !self.differences.is_empty() => 3,
            () => 0,
        }
    }

    /// For people.
    pub(crate) fn text(&self, paper: Paper) -> String {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let plain = Style::new();
        let mut text = format!("{}\n", paper.title(&counted(names.len() as u64, "node")));
        text += &format!("  {}\n", paper.wrapped(2, &compressed(&names), plain));
        if !self.missing.is_empty() {
            text += &format!("\n{}\n", paper.title("No answer"));
            let advice = "pinyard may not be there, or the node is down: srun's messages say which";
            text += &format!("  {}\n  {}\n", compressed(&self.missing), paper.wrapped(2, advice, plain));
        }
        if !self.differences.is_empty() {
            text += &format!("\n{}\n{}\n", paper.title("Differences"), self.table(paper));
        }
        text + "\n" + &self.verdict(paper)
    }

    fn table(&self, paper: Paper) -> String {
        let mut text = String::new();
        let width = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or(0);
        let label = width(&mut self.differences.iter().map(|one| one.label.chars().count())).min(24);
        let groups =
            || self.differences.iter().flat_map(|one| &one.values).map(|(_, nodes)| compressed(nodes));
        let nodes = width(&mut groups().map(|names| names.chars().count())).min(paper.width / 3);
        let column = 2 + label + 2 + nodes + 2;
        for difference in &self.differences {
            for (at, (value, names)) in difference.values.iter().enumerate() {
                let name = if at == 0 { difference.label.as_str() } else { "" };
                let value = if value.is_empty() { "-" } else { value };
                // The nodes' names wrap in a column of their own.
                let names = compressed(names);
                let left = textwrap::wrap(&names, nodes.max(8));
                let right = textwrap::wrap(value, paper.width.saturating_sub(column).max(20));
                for row in 0..left.len().max(right.len()) {
                    let name = if row == 0 { name } else { "" };
                    let cell = |lines: &[std::borrow::Cow<'_, str>]| {
                        lines.get(row).map(ToString::to_string).unwrap_or_default()
                    };
                    let line = format!("  {name:<label$}  {:<nodes$}  {}", cell(&left), cell(&right));
                    text += line.trim_end();
                    text += "\n";
                }
            }
        }
        text.trim_end().to_owned()
    }

    fn verdict(&self, paper: Paper) -> String {
        let mut groups: Vec<(&Finding, Vec<String>)> = Vec::new();
        for (name, answer) in &self.nodes {
            for finding in &answer.findings {
                match groups.iter_mut().find(|(one, _)| *one == finding) {
                    Some((_, names)) => names.push(name.clone()),
                    None => groups.push((finding, vec![name.clone()])),
                }
            }
        }
        groups.sort_by_key(|(finding, _)| std::cmp::Reverse(finding.weight));
        let mut text = String::new();
        for (weight, title) in [(Weight::Fail, "To fix"), (Weight::Warn, "Worth knowing")] {
            let of_weight = groups.iter().filter(|(finding, _)| finding.weight == weight);
            for (number, (finding, names)) in of_weight.enumerate() {
                if number == 0 {
                    text += &format!("{}\n", paper.title(title));
                }
                let what = format!("{}: {}", compressed(names), finding.what);
                text += &of_finding(number + 1, &Finding { what, ..(*finding).clone() }, paper);
            }
        }
        if !text.is_empty() {
            text += "\n";
        }
        text + &self.last_word()
    }

    fn last_word(&self) -> String {
        let failed: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, answer)| answer.findings.iter().any(|finding| finding.weight == Weight::Fail))
            .map(|(name, _)| name.clone())
            .collect();
        let mut words = Vec::new();
        if self.nodes.is_empty() {
            words.push("no node answered".to_owned());
        } else if !self.missing.is_empty() {
            words.push(format!("no answer from {}", compressed(&self.missing)));
        }
        if !failed.is_empty() {
            words.push(format!("something to fix on {}", compressed(&failed)));
        }
        match self.differences.len() as u64 {
            0 => {}
            number => words.push(counted(number, "difference")),
        }
        match words.is_empty() {
            true => "The nodes are alike, and nothing is to be fixed.".to_owned(),
            false => {
                let text = words.join("; ");
                format!("{}{}.", text[..1].to_uppercase(), &text[1..])
            }
        }
    }

    /// For programs.
    pub(crate) fn document(&self) -> serde_json::Value {
        let values = |difference: &Difference| {
            let of = |(value, nodes): &(String, Vec<String>)| serde_json::json!({ "value": value, "nodes": nodes });
            difference.values.iter().map(of).collect::<Vec<_>>()
        };
        let differences = self
            .differences
            .iter()
            .map(|difference| serde_json::json!({ "what": difference.label, "values": values(difference) }));
        serde_json::json!({
            "nodes": self.nodes,
            "missing": self.missing,
            "differences": differences.collect::<Vec<_>>(),
            "exit": self.exit(),
        })
    }
}

fn differences(nodes: &BTreeMap<String, Answer>) -> Vec<Difference> {
    // Per label, in the order of the screen: each node's values, several lines as one.
    let mut labels: Vec<String> = Vec::new();
    let mut values: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (node, answer) in nodes {
        for line in lines(&answer.facts, &[]).into_iter().flat_map(|section| section.lines) {
            if !labels.contains(&line.label) {
                labels.push(line.label.clone());
            }
            let value = values.entry(line.label).or_default().entry(node.clone()).or_default();
            for part in [line.value, line.detail].iter().filter(|part| !part.is_empty()) {
                *value += if value.is_empty() { "" } else { "; " };
                *value += part;
            }
        }
    }
    let difference = |label: String| {
        let of_nodes = &values[&label];
        let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for node in nodes.keys() {
            groups.entry(of_nodes.get(node).map_or("", String::as_str)).or_default().push(node.clone());
        }
        let mut values: Vec<(String, Vec<String>)> =
            groups.into_iter().map(|(value, nodes)| (value.to_owned(), nodes)).collect();
        values.sort_by(|(_, one), (_, other)| other.len().cmp(&one.len()).then(one.cmp(other)));
        (values.len() > 1).then_some(Difference { label, values })
    };
    labels.into_iter().filter_map(difference).collect()
}

/// `n[1-3,5] login`, as Slurm writes host lists. Numbers of one width go together.
pub(crate) fn compressed(names: &[String]) -> String {
    let mut groups: BTreeMap<(&str, usize), Vec<u64>> = BTreeMap::new();
    let mut plain = Vec::new();
    for name in names {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        match name[stem.len()..].parse() {
            Ok(number) => groups.entry((stem, name.len() - stem.len())).or_default().push(number),
            Err(_) => plain.push(name.clone()),
        }
    }
    let mut words: Vec<String> =
        groups.into_iter().map(|((stem, width), numbers)| ranges(stem, width, numbers)).collect();
    words.extend(plain);
    words.join(" ")
}

fn ranges(stem: &str, width: usize, mut numbers: Vec<u64>) -> String {
    numbers.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in &numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let run = |(first, last): &(u64, u64)| match last - first {
        0 => format!("{first:0width$}"),
        1 => format!("{first:0width$},{last:0width$}"),
        _ => format!("{first:0width$}-{last:0width$}"),
    };
    let text = runs.iter().map(run).collect::<Vec<_>>().join(",");
    if numbers.len() == 1 { format!("{stem}{text}") } else { format!("{stem}[{text}]") }
}

#[cfg(test)]
mod tests;

//! Circles in the graph of a crate's files (Tarjan, "Depth-first search and linear graph
//! algorithms", 1972).

use super::files::Graph;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The circles, the largest first; files are named from the crate's folder.
pub(super) fn of(graph: &Graph, folder: &Path) -> Vec<BTreeSet<String>> {
    let mut search = Search { graph, index: BTreeMap::new(), stack: Vec::new(), circles: Vec::new() };
    for file in graph.keys() {
        if !search.index.contains_key(file) {
            search.visit(file);
        }
    }
    let name = |file: &&PathBuf| file.strip_prefix(folder).unwrap_or(file).display().to_string();
    let mut circles: Vec<BTreeSet<String>> =
        search.circles.iter().map(|circle| circle.iter().map(name).collect()).collect();
    circles.sort_by_key(|circle| Reverse(circle.len()));
    circles
}

struct Search<'g> {
    graph: &'g Graph,
    /// The place of each file in the order of the visits.
    index: BTreeMap<&'g PathBuf, usize>,
    /// Files whose circle is not known yet.
    stack: Vec<&'g PathBuf>,
    circles: Vec<Vec<&'g PathBuf>>,
}

impl<'g> Search<'g> {
    /// The lowest index of the stack that is reached from `file`. As deep as the longest chain of
    /// files, which is some dozens.
    fn visit(&mut self, file: &'g PathBuf) -> usize {
        let own = self.index.len();
        let depth = self.stack.len();
        self.index.insert(file, own);
        self.stack.push(file);
        let mut low = own;
        for other in self.graph.get(file).into_iter().flatten() {
            match self.index.get(other) {
                None => low = low.min(self.visit(other)),
                Some(&index) if self.stack.contains(&other) => low = low.min(index),
                Some(_) => {}
            }
        }
        if low == own {
            let circle = self.stack.split_off(depth);
            if circle.len() > 1 {
                self.circles.push(circle);
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_and_chains() {
        let edges =
            [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("f", "g"), ("g", "f"), ("e", "e")];
        let mut graph = Graph::new();
        for (from, to) in edges {
            let to = PathBuf::from("x").join(to);
            graph.entry(PathBuf::from("x").join(from)).or_default().insert(to);
        }
        let names =
            |files: &[&str]| files.iter().map(|file| (*file).to_owned()).collect::<BTreeSet<String>>();
        assert_eq!(of(&graph, Path::new("x")), [names(&["a", "b", "c"]), names(&["f", "g"])]);
    }
}

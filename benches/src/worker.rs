//! Processes that take turns, where one cannot hold what is compared.

use crate::turns::{fail, or_fail};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process that answers each line on its input with a turn's figures. Two patchers in
/// one process would measure each other, so each has one of its own, and they take turns.
pub struct Worker<const N: usize> {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Of each turn, a list per operation.
    figures: [Vec<f64>; N],
}

impl<const N: usize> Worker<N> {
    /// Starts this program with `arguments`, as `prepare` changes its surroundings.
    pub fn start(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Worker<N> {
        let mut command = Command::new(or_fail(std::env::current_exe()));
        command.args(arguments);
        prepare(&mut command);
        Worker::of(command)
    }

    /// Starts `command`.
    pub fn of(mut command: Command) -> Worker<N> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = or_fail(command.spawn());
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            fail("a child without pipes")
        };
        Worker { child, input, output: BufReader::new(output), figures: [const { Vec::new() }; N] }
    }

    /// Takes a turn.
    pub fn turn(&mut self) {
        or_fail(self.input.write_all(b"turn\n"));
        let mut line = String::new();
        or_fail(self.output.read_line(&mut line));
        let words: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if words.len() != N {
            fail(&format!("a child answered {line:?} in place of {N} figures"));
        }
        self.figures.iter_mut().zip(words).for_each(|(figures, figure)| figures.push(figure));
    }

    /// Takes a turn that does not count.
    pub fn warm_up(&mut self) {
        self.turn();
        self.figures.iter_mut().for_each(Vec::clear);
    }

    /// Ends the process; the figures of each turn, a list per operation.
    pub fn end(mut self) -> [Vec<f64>; N] {
        drop(self.input);
        or_fail(self.child.wait());
        self.figures
    }
}

/// What a child does: a turn for each line on its input.
pub fn answer<const N: usize>(mut turn: impl FnMut() -> [f64; N]) {
    let mut line = String::new();
    while or_fail(std::io::stdin().read_line(&mut line)) > 0 {
        println!("{}", turn().map(|figure| figure.to_string()).join(" "));
        line.clear();
    }
}

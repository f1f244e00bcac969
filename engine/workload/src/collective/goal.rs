//! Schedules as text: the language GOAL of LogGOPSim, which ATLAHS uses too.
//!
//! ```text
//! num_ranks 2
//! rank 0 {
//!   l1: calc 100
//!   l2: send 10b to 1 tag 7
//!   l2 requires l1
//! }
//! rank 1 {
//!   recv 10b from 0 tag 7
//! }
//! ```
//!
//! - `calc` has nanoseconds, with decimals if need be, and a processor: `calc 100 cpu 1`.
//! - `requires`: after the other has ended. `irequires`: after it has begun.
//! - A message of 0 bytes has one, because there are no others. `nic` and the processors of messages are ignored.
//! - `//` and `#` begin a comment of a line; `/*` one that ends with `*/`.

use core::fmt::{self, Display};
use std::collections::BTreeMap;

use rackweave_core::Span;

use super::schedule::{Builder, MAX_RANKS, Op, Place, Schedule, ScheduleError};

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct GoalError {
    /// The number of the line, from 1.
    pub line: u32,
    /// The number of the character in the line, from 1.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}

/// Ticks in a nanosecond.
const TICKS_PER_NS: u64 = 100;
/// The longest calculation in nanoseconds: a hundred days.
const MAX_NS: f64 = 100.0 * 86_400.0 * 1e9;

/// Reads a schedule.
///
/// # Errors
/// If it is none; the error names line and column.
pub fn parse(text: impl AsRef<[u8]>) -> Result<Schedule, GoalError> {
    let text = text.as_ref();
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    let text = match core::str::from_utf8(text) {
        Ok(text) => text,
        Err(error) => {
            let before = &text[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() as u32 + 1;
            let message = "this is not text (UTF-8)".to_owned();
            return Err(GoalError { line, column: 1, message });
        }
    };
    let mut reader = Reader { words: Words::new(text), places: Vec::new() };
    let builder = reader.file()?;
    builder.finish().map_err(|error| reader.locate(&error))
}

/// A word of the text, with its line and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word<'a> {
    text: &'a str,
    line: u32,
    column: u32,
}

impl Word<'_> {
    fn error(&self, message: impl Into<String>) -> GoalError {
        GoalError { line: self.line, column: self.column, message: message.into() }
    }

    /// The word for an error, shortened.
    fn shown(&self) -> String {
        if self.text.is_empty() {
            return "the end".to_owned();
        }
        format!("`{}`", self.text.chars().take(40).collect::<String>())
    }

    fn wanted(&self, what: &str) -> GoalError {
        self.error(format!("{what} is expected here, not {}", self.shown()))
    }

    fn number(&self, what: &str) -> Result<u32, GoalError> {
        self.text.parse().map_err(|_| self.wanted(what))
    }
}

/// Divides a text into words; `{`, `}` and `:` are words of their own.
#[derive(Clone, Debug)]
struct Words<'a> {
    rest: &'a str,
    line: u32,
    column: u32,
}

impl<'a> Words<'a> {
    const fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1, column: 1 }
    }

    fn skip(&mut self, bytes: usize) -> &'a str {
        let (skipped, rest) = self.rest.split_at(bytes);
        for character in skipped.chars() {
            if character == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        self.rest = rest;
        skipped
    }

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) -> Result<(), GoalError> {
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            self.skip(blanks);
            if self.rest.starts_with("//") || self.rest.starts_with('#') {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                let begin = Word { text: "/*", line: self.line, column: self.column };
                let Some(end) = self.rest.find("*/") else {
                    return Err(begin.error("this comment has no end"));
                };
                self.skip(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    /// The next word; an empty one at the end.
    fn next(&mut self) -> Result<Word<'a>, GoalError> {
        self.skip_blanks()?;
        let (line, column) = (self.line, self.column);
        let ends = |at: char| at.is_whitespace() || matches!(at, '{' | '}' | ':' | '#' | '/');
        let length = match self.rest.chars().next() {
            None => 0,
            Some(first) if ends(first) => first.len_utf8(),
            Some(_) => self.rest.find(ends).unwrap_or(self.rest.len()),
        };
        Ok(Word { text: self.skip(length), line, column })
    }

    fn peek(&self) -> Result<Word<'a>, GoalError> {
        self.clone().next()
    }
}

struct Reader<'a> {
    words: Words<'a>,
    /// By rank and operation: where it stands.
    places: Vec<Vec<Word<'a>>>,
}

impl<'a> Reader<'a> {
    fn expect(&mut self, text: &str) -> Result<Word<'a>, GoalError> {
        let word = self.words.next()?;
        if word.text == text { Ok(word) } else { Err(word.wanted(&format!("`{text}`"))) }
    }

    fn file(&mut self) -> Result<Builder, GoalError> {
        self.expect("num_ranks")?;
        let word = self.words.next()?;
        let ranks = word.number("the number of ranks")?;
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(word.error(format!("there are 1 to {MAX_RANKS} ranks")));
        }
        let mut builder = Builder::new(ranks);
        self.places = vec![Vec::new(); ranks as usize];
        let mut seen = vec![false; ranks as usize];
        loop {
            let word = self.words.next()?;
            match word.text {
                "" => return Ok(builder),
                "rank" => {}
                _ => return Err(word.wanted("`rank`")),
            }
            let word = self.words.next()?;
            let rank = word.number("the number of a rank")?;
            let Some(seen) = seen.get_mut(rank as usize) else {
                return Err(word.error(format!("there are ranks 0 to {}", ranks - 1)));
            };
            if std::mem::replace(seen, true) {
                return Err(word.error(format!("rank {rank} stands here a second time")));
            }
            self.rank(rank, &mut builder)?;
        }
    }

    fn rank(&mut self, rank: u32, builder: &mut Builder) -> Result<(), GoalError> {
        self.expect("{")?;
        let mut labels: BTreeMap<&'a str, u32> = BTreeMap::new();
        let mut dependencies: Vec<(Word<'a>, bool, Word<'a>)> = Vec::new();
        loop {
            let first = self.words.next()?;
            match first.text {
                "}" => break,
                "" => return Err(first.wanted("`}`")),
                "send" | "recv" | "calc" if self.words.peek()?.text != ":" => {
                    self.operation(rank, first, first, builder)?;
                    continue;
                }
                _ => {}
            }
            let second = self.words.next()?;
            match second.text {
                ":" => {
                    let verb = self.words.next()?;
                    let op = self.operation(rank, verb, first, builder)?;
                    if labels.insert(first.text, op).is_some() {
                        return Err(first.error(format!("{} is there twice", first.shown())));
                    }
                }
                "requires" | "irequires" => {
                    let on = self.words.next()?;
                    dependencies.push((first, second.text == "irequires", on));
                }
                _ => return Err(second.wanted("`:`, `requires` or `irequires`")),
            }
        }
        for (word, is_start, on) in dependencies {
            let find = |word: Word<'a>| {
                let found = labels.get(word.text).copied();
                found.ok_or_else(|| word.error(format!("rank {rank} has no {}", word.shown())))
            };
            let (op, on) = (find(word)?, find(on)?);
            if is_start {
                builder.starts_with(rank, op, on);
            } else {
                builder.requires(rank, op, on);
            }
        }
        Ok(())
    }

    /// Reads an operation after its verb. `named` is its label, or else the verb.
    fn operation(
        &mut self,
        rank: u32,
        verb: Word<'a>,
        named: Word<'a>,
        builder: &mut Builder,
    ) -> Result<u32, GoalError> {
        let op = match verb.text {
            "send" | "recv" => self.message(verb.text == "send")?,
            "calc" => {
                let word = self.words.next()?;
                let ns = word.text.parse::<f64>().ok().filter(|ns| (0.0..=MAX_NS).contains(ns));
                let ns = ns.ok_or_else(|| word.wanted("a time in nanoseconds"))?;
                let mut cpu = 0;
                if self.words.peek()?.text == "cpu" {
                    self.words.next()?;
                    let word = self.words.next()?;
                    let number = word.text.parse().ok();
                    cpu = number.ok_or_else(|| word.wanted("a processor from 0 to 255"))?;
                }
                let span = Span::from_ticks((ns * TICKS_PER_NS as f64 + 0.5) as u64);
                Op::Calculate { span, cpu }
            }
            _ => return Err(verb.wanted("`send`, `recv` or `calc`")),
        };
        self.places[rank as usize].push(named);
        Ok(builder.add(rank, op))
    }

    fn message(&mut self, is_send: bool) -> Result<Op, GoalError> {
        let word = self.words.next()?;
        let digits = word.text.strip_suffix('b').unwrap_or(word.text);
        let bytes: u64 =
            digits.parse().map_err(|_| word.wanted("a number of bytes, as in `10b`"))?;
        let bytes = bytes.max(1);
        self.expect(if is_send { "to" } else { "from" })?;
        let peer = self.words.next()?.number("the number of a rank")?;
        let mut tag = 0;
        loop {
            match self.words.peek()?.text {
                "tag" => {
                    self.words.next()?;
                    tag = self.words.next()?.number("a tag")?;
                }
                "cpu" | "nic" => {
                    self.words.next()?;
                    self.words.next()?.number("a number")?;
                }
                _ => break,
            }
        }
        Ok(if is_send {
            Op::Send { to: peer, bytes, tag }
        } else {
            Op::Receive { from: peer, bytes, tag }
        })
    }

    fn locate(&self, error: &ScheduleError) -> GoalError {
        let word = |at: Place| {
            let words = self.places.get(at.rank as usize);
            words.and_then(|words| words.get(at.op as usize)).copied()
        };
        let name = |at: Place| match word(at) {
            None => at.to_string(),
            Some(word) => format!("{} of rank {} (line {})", word.shown(), at.rank, word.line),
        };
        let message = error.text(&name);
        let (line, column) =
            error.place().and_then(word).map_or((1, 1), |word| (word.line, word.column));
        GoalError { line, column, message }
    }
}

/// A schedule, to be printed in a form that [`parse`] reads.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a>(pub &'a Schedule);

impl Display for Goal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(schedule) = self;
        writeln!(f, "num_ranks {}", schedule.ranks())?;
        for rank in 0..schedule.ranks() {
            writeln!(f, "\nrank {rank} {{")?;
            let mut edges = Vec::new();
            for on in 0..schedule.len(rank) {
                edges.extend(schedule.followers(rank, on).map(|(op, is_start)| (op, on, is_start)));
            }
            edges.sort_unstable();
            let mut edges = edges.into_iter().peekable();
            for (op, it) in (0..).zip(schedule.ops(rank)) {
                write!(f, "l{}: ", op + 1)?;
                match *it {
                    Op::Send { to, bytes, tag } => write!(f, "send {bytes}b to {to} tag {tag}")?,
                    Op::Receive { from, bytes, tag } => {
                        write!(f, "recv {bytes}b from {from} tag {tag}")?;
                    }
                    Op::Calculate { span, cpu } => {
                        let (ns, rest) = (span.ticks() / TICKS_PER_NS, span.ticks() % TICKS_PER_NS);
                        write!(f, "calc {ns}")?;
                        if rest > 0 {
                            write!(f, ".{rest:02}")?;
                        }
                        if cpu > 0 {
                            write!(f, " cpu {cpu}")?;
                        }
                    }
                }
                writeln!(f)?;
                while let Some((_, on, is_start)) = edges.next_if(|edge| edge.0 == op) {
                    let verb = if is_start { "irequires" } else { "requires" };
                    writeln!(f, "l{} {verb} l{}", op + 1, on + 1)?;
                }
            }
            writeln!(f, "}}")?;
        }
        Ok(())
    }
}

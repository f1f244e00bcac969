//! Errors in scenarios, with the place that they are about.

use std::fmt;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

/// Why a scenario cannot be run: the problem, its place in the file, and advice.
///
/// Printed through `miette`, it names file, line and key, and underlines the place.
#[derive(Debug)]
pub struct ScenarioError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    message: String,
    help: Option<String>,
    place: Option<(NamedSource<String>, LabeledSpan)>,
}

impl ScenarioError {
    /// Returns an error without a place in a text.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self(Box::new(Inner { message: message.into(), help: None, place: None }))
    }

    /// Returns the same error with advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Returns the same error with the place that it is about.
    #[must_use]
    pub fn at(mut self, source: NamedSource<String>, span: LabeledSpan) -> Self {
        self.0.place = Some((source, span));
        self
    }

    /// Returns the message without the place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for ScenarioError {}

impl Diagnostic for ScenarioError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.0.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.place.as_ref().map(|(source, _)| source as &dyn SourceCode)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let (_, span) = self.0.place.as_ref()?;
        Some(Box::new(std::iter::once(span.clone())))
    }
}

/// Returns the known name nearest to `name`, if exactly one is so near that it was probably meant.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut near: Vec<(usize, &str)> = known
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(3) / 3).max(1))
        .collect();
    near.sort_unstable();
    match near[..] {
        [] => None,
        [(first, _), (second, _), ..] if first == second => None,
        [(_, candidate), ..] => Some(candidate),
    }
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().map(|c| if c == '-' { '_' } else { c }).take(64).collect();
    let b: Vec<char> = b.chars().map(|c| if c == '-' { '_' } else { c }).take(64).collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["topology", "hosts", "host_link", "core_link"];
        assert_eq!(nearest("host", known), Some("hosts"));
        assert_eq!(nearest("topolgoy", known), Some("topology"));
        assert_eq!(nearest("core-link", known), Some("core_link"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest("W6", ["W1", "W2"]), None, "either could be meant");
    }
}

//! Names that a cast leaves out: patterns as in `.gitignore`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder, Glob};

/// The most bytes of all patterns together: a receiver compiles those of a stranger.
const MAX_BYTES: usize = 64 << 10;

/// What is not itself in a pattern.
const SPECIAL: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

/// Why patterns are not taken.
#[derive(Debug, thiserror::Error)]
pub enum ExcludesError {
    /// One cannot be read.
    #[error("{pattern}: {source}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The cause, as the user reads it.
        source: ignore::Error,
    },
    /// One matches nothing, whatever is sent.
    #[error("{pattern:?}: {why}")]
    Useless {
        /// The pattern.
        pattern: String,
        /// The cause, as the user reads it.
        why: &'static str,
    },
    /// They are too long together.
    #[error("patterns of {bytes} bytes; at most {MAX_BYTES}")]
    TooLong {
        /// Their bytes.
        bytes: usize,
    },
    /// They cannot be compiled together.
    #[error("the patterns are too complex: {0}")]
    Complex(ignore::Error),
}

/// Compiled patterns, and their text.
#[derive(Debug)]
pub struct Excludes {
    patterns: Vec<String>,
    matcher: Gitignore,
}

impl Default for Excludes {
    fn default() -> Self {
        Self { patterns: Vec::new(), matcher: Gitignore::empty() }
    }
}

impl Excludes {
    /// Compiles patterns.
    ///
    /// # Errors
    /// See [`ExcludesError`].
    pub fn new(patterns: &[String]) -> Result<Self, ExcludesError> {
        let bytes: usize = patterns.iter().map(String::len).sum();
        if bytes > MAX_BYTES {
            return Err(ExcludesError::TooLong { bytes });
        }
        for pattern in patterns {
            check(pattern)?;
        }
        Ok(Self { patterns: patterns.to_vec(), matcher: compiled(patterns)? })
    }

    /// Returns the patterns.
    #[must_use]
    pub fn patterns(&self) -> &[String] {
        &self.patterns
    }

    /// Returns whether a path of a cast is excluded. Whoever walks a tree asks for each directory before what is in it.
    #[must_use]
    pub fn matches(&self, path: &Path, is_directory: bool) -> bool {
        self.matcher.matched(path, is_directory).is_ignore()
    }
}

/// Patterns, and which of them match something in a walk through a tree.
#[derive(Debug)]
pub(crate) struct Used<'a> {
    excludes: &'a Excludes,
    /// The patterns that have decided about a path.
    used: BTreeSet<String>,
    /// The paths that a pattern has decided about, and whether they are directories: others may match them, too.
    decided: Vec<(PathBuf, bool)>,
}

impl<'a> Used<'a> {
    pub(crate) const fn new(excludes: &'a Excludes) -> Self {
        Self { excludes, used: BTreeSet::new(), decided: Vec::new() }
    }

    /// As [`Excludes::matches`].
    pub(crate) fn matches(&mut self, path: &Path, is_directory: bool) -> bool {
        let found = self.excludes.matcher.matched(path, is_directory);
        if let Some(pattern) = pattern_of(&found) {
            if !self.used.contains(pattern) {
                self.used.insert(pattern.to_owned());
            }
            if self.used.len() < self.excludes.patterns.len() {
                self.decided.push((path.to_owned(), is_directory));
            }
        }
        found.is_ignore()
    }

    /// Returns the patterns that match nothing, be it that something is excluded or, with a `!`, that it is not.
    pub(crate) fn unused(&self) -> Vec<String> {
        let others = self.excludes.patterns.iter().filter(|it| !self.used.contains(*it));
        let others: BTreeSet<&String> = others.collect();
        let decided = || self.decided.iter().map(|(path, is_directory)| (&**path, *is_directory));
        let matching = matching(others.iter().copied().cloned().collect(), decided);
        let is_unused = |it: &&String| others.contains(it) && !matching.contains(*it);
        self.excludes.patterns.iter().filter(is_unused).cloned().collect()
    }
}

/// Returns which of these patterns match one of these paths, which may be directories. The patterns are compiled together, which tells the
/// last one that matches a path: what is found is left out of the next round.
pub(crate) fn matching<'a, I: Iterator<Item = (&'a Path, bool)>>(
    mut patterns: Vec<String>,
    paths: impl Fn() -> I,
) -> BTreeSet<String> {
    let mut matching = BTreeSet::new();
    while !patterns.is_empty() {
        let Ok(matcher) = compiled(&patterns) else { break };
        let before = matching.len();
        for (path, is_directory) in paths() {
            if let Some(pattern) = pattern_of(&matcher.matched(path, is_directory))
                && !matching.contains(pattern)
            {
                matching.insert(pattern.to_owned());
            }
        }
        if matching.len() == before {
            break;
        }
        patterns.retain(|it| !matching.contains(it));
    }
    matching
}

/// Returns what a pattern would be if its paths began in this directory, for one that begins in the folder of all.
pub(crate) fn below(pattern: &str, directory: &str) -> Option<String> {
    let path = pattern.trim_end_matches('/');
    if !path.contains('/') || path.starts_with('!') || directory.contains(SPECIAL) {
        return None;
    }
    let pattern = format!("/{directory}/{}", pattern.trim_start_matches('/'));
    check(&pattern).is_ok().then_some(pattern)
}

/// Returns the pattern that has decided about a path.
fn pattern_of<'a>(found: &Match<&'a Glob>) -> Option<&'a str> {
    match found {
        Match::None => None,
        Match::Ignore(glob) | Match::Whitelist(glob) => glob.from()?.to_str(),
    }
}

/// Compiles patterns, each with its text in the place of the file that it is from.
fn compiled(patterns: &[String]) -> Result<Gitignore, ExcludesError> {
    let mut builder = GitignoreBuilder::new("");
    for pattern in patterns {
        builder
            .add_line(Some(pattern.into()), pattern)
            .map_err(|source| ExcludesError::Pattern { pattern: pattern.clone(), source })?;
    }
    builder.build().map_err(ExcludesError::Complex)
}

/// Refuses a pattern that a `.gitignore` takes and that nothing matches.
fn check(pattern: &str) -> Result<(), ExcludesError> {
    let glob = pattern.trim();
    let why = match glob.strip_prefix('!').unwrap_or(glob) {
        "" if glob.is_empty() => "an empty pattern matches nothing",
        "" => "a pattern follows `!`, whose matches are sent though another pattern excludes them",
        _ if glob.starts_with('#') => {
            "`#` begins a comment, and `\\#` a name that begins with this character"
        }
        glob if is_unclosed(glob) => "a `]` closes the `[`, and `\\[` matches this character",
        _ => return Ok(()),
    };
    Err(ExcludesError::Useless { pattern: pattern.to_owned(), why })
}

/// Returns whether a class of characters has no end.
fn is_unclosed(glob: &str) -> bool {
    let mut rest = glob.chars();
    while let Some(character) = rest.next() {
        match character {
            '\\' => drop(rest.next()),
            '[' => {
                let class = rest.as_str();
                let class = class.strip_prefix(['!', '^']).unwrap_or(class);
                // A `]` in the first place belongs to the class.
                let first = class.chars().next().map_or(0, char::len_utf8);
                let Some(end) = class.get(first..).and_then(|rest| rest.find(']')) else {
                    return true;
                };
                rest = class[first + end + 1..].chars();
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_match_nothing_are_refused_with_a_sentence() {
        let one = |pattern: &str| Excludes::new(&[pattern.to_owned()]).map(drop);
        for pattern in ["", "  ", "!", "#x", "[", "a[b", "[!]", "[]", "![a", "[a]["] {
            let error = one(pattern).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{pattern:?}: ")), "{error}");
        }
        for pattern in ["!x", "\\#x", "[]]", "[!]a]", "\\[a", "[a][b]", "a/[[]"] {
            one(pattern).unwrap();
        }
    }

    /// Each pattern was compiled by itself and asked about each path: 300 patterns made 20,000 files take 60 times as long.
    #[test]
    fn of_several_patterns_that_match_one_path_all_are_used_and_the_others_are_told() {
        let used = ["*.o", "x.*", "/d/", "!d/keep.o", "d/x.o", "x.o"];
        let unused = ["*.a", "x.o/", "/e", "!*.b"];
        let all: Vec<_> = used.iter().chain(&unused).map(|it| (*it).to_owned()).collect();
        let excludes = Excludes::new(&all).unwrap();
        let mut walk = Used::new(&excludes);
        for (path, is_directory, is_excluded) in [
            ("d", true, true),
            ("d/x.o", false, true),
            ("d/keep.o", false, false),
            ("y", false, false),
        ] {
            assert_eq!(walk.matches(Path::new(path), is_directory), is_excluded, "{path}");
        }
        assert_eq!(walk.decided.len(), 3, "{walk:?}");
        assert_eq!(walk.unused(), unused);
        let left = Excludes::new(&["y".into(), "y".into()]).unwrap();
        let mut walk = Used::new(&left);
        assert_eq!(walk.unused(), ["y", "y"]);
        assert!(walk.matches(Path::new("y"), false) && walk.unused().is_empty());
    }

    #[test]
    fn patterns_that_are_too_long_together_are_refused_with_their_bytes() {
        Excludes::new(&["x".repeat(65_536)]).unwrap();
        for patterns in [vec!["x".repeat(70_000)], vec!["x".repeat(35_000); 2]] {
            let error = Excludes::new(&patterns).unwrap_err();
            assert_eq!(error.to_string(), "patterns of 70000 bytes; at most 65536");
        }
    }
}

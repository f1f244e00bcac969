//! What is wrong with a value that was read, found when values are checked against each other.

use std::collections::BTreeSet;

/// The keys of the sweep: keys of a topology or transport that is not chosen are no error if the
/// sweep chooses it elsewhere.
pub(crate) type SweptKeys = BTreeSet<String>;

/// What is wrong with the value at a key.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Paths at which the value may be, best first.
    pub(super) keys: Vec<String>,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Problem {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { keys: vec![key.into()], message: message.into(), help: None }
    }

    /// The value may also be here.
    pub(crate) fn or_at(mut self, key: String) -> Self {
        self.keys.push(key);
        self
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

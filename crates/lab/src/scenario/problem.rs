//! Errors about values that were read and are checked against each other.

use std::collections::BTreeSet;

/// The keys of the sweep. A key of a topology or transport that is not chosen is no error if the sweep chooses that one
/// at another point.
pub(crate) type SweptKeys = BTreeSet<String>;

/// An error about the value at a key.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The paths at which the value may be, most likely first.
    pub(crate) keys: Vec<String>,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl Problem {
    pub(crate) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { keys: vec![key.into()], message: message.into(), help: None }
    }

    /// Adds a further path at which the value may be.
    pub(crate) fn or_at(mut self, key: String) -> Self {
        self.keys.push(key);
        self
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

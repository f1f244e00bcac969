//! Errors about values that were read and are checked against each other.

use std::collections::BTreeSet;

/// The keys of the sweep. A key of a topology or transport that is not chosen is no error if the sweep chooses that one
/// at another point.
pub type SweptKeys = BTreeSet<String>;

/// An error about the value at a key.
#[derive(Debug)]
pub struct Problem {
    /// The paths at which the value may be, most likely first.
    pub keys: Vec<String>,
    /// What is wrong.
    pub message: String,
    /// What to do instead.
    pub help: Option<String>,
}

impl Problem {
    /// Returns an error about the value at this path.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { keys: vec![key.into()], message: message.into(), help: None }
    }

    /// Adds a further path at which the value may be.
    pub fn or_at(mut self, key: String) -> Self {
        self.keys.push(key);
        self
    }

    /// With a suggestion what to do instead.
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

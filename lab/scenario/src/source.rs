//! The texts that a scenario was read from, to point into them.

use miette::{LabeledSpan, NamedSource};

use super::de::{DeError, Place};
use super::tree::{NotToml, Origin};
use crate::error::ScenarioError;

/// The scenario file and the `--set` arguments.
#[derive(Clone, Debug)]
pub struct Sources(Vec<(String, String)>);

impl Sources {
    /// Returns the text of a scenario file, without arguments.
    pub fn new(name: &str, text: &str) -> Self {
        Self(vec![(name.to_owned(), text.to_owned())])
    }

    /// Adds an argument; says its number.
    pub fn add(&mut self, name: &str, text: &str) -> usize {
        self.0.push((name.to_owned(), text.to_owned()));
        self.0.len() - 1
    }

    /// An error at this place.
    pub fn error(&self, message: &str, label: &str, origin: Origin) -> ScenarioError {
        let (name, text) = &self.0[origin.source];
        let start = origin.start.min(text.len());
        let length = origin.end.clamp(start, text.len()) - start;
        let source = NamedSource::new(name, text.clone()).with_language("TOML");
        let label = if label.is_empty() { None } else { Some(label.to_owned()) };
        ScenarioError::new(message).at(source, LabeledSpan::new(label, start, length))
    }

    /// Returns an error with the text around its place.
    pub fn de_error(&self, error: DeError) -> ScenarioError {
        let made = match error.place {
            Place::Origin(origin) => self.error(&error.message, &error.label, origin),
            Place::Unknown | Place::Keys(_) => ScenarioError::new(error.message),
        };
        match error.help {
            Some(help) => made.with_help(help),
            None => made,
        }
    }

    /// Returns the error for a text that is not TOML.
    pub fn not_toml(&self, source: usize, error: NotToml) -> ScenarioError {
        let message = format!("this is not TOML: {}", error.message.trim_end());
        self.error(&message, "here", Origin::new(source, error.span))
    }
}

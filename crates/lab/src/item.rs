//! An entry of a list: a name, a description and further facts.

use serde::Serialize;
use serde_json::Value;

/// One entry of a list.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// How a scenario or command names it.
    pub name: String,
    /// What it is.
    pub description: String,
    /// Further facts.
    #[serde(flatten)]
    pub facts: serde_json::Map<String, Value>,
}

impl Item {
    pub(crate) fn new(name: &str, description: &str, facts: &Value) -> Self {
        let facts = facts.as_object().cloned().unwrap_or_default();
        Self { name: name.into(), description: description.into(), facts }
    }
}

/// What a list shows of a transport or a scheme.
#[derive(Debug)]
pub(crate) struct About {
    /// Its name in scenarios.
    pub(crate) name: &'static str,
    /// A line of text.
    pub(crate) description: &'static str,
    /// The values of its key `profile`, if it has any.
    pub(crate) profiles: &'static [&'static str],
    /// Where it is published or specified.
    pub(crate) sources: &'static [&'static str],
}

//! Entries of the lists of `rackweave list`.

use serde::Serialize;
use serde_json::Value;

/// One entry of a list, with a name, a description and further facts.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// The name by which scenarios or commands refer to it.
    pub name: String,
    /// A description in one sentence.
    pub description: String,
    /// Further facts, which are flattened into the entry's JSON object.
    #[serde(flatten)]
    pub facts: serde_json::Map<String, Value>,
}

impl Item {
    /// Returns an entry with these facts, an object.
    #[must_use]
    pub fn new(name: &str, description: &str, facts: &Value) -> Self {
        let facts = facts.as_object().cloned().unwrap_or_default();
        Self { name: name.into(), description: description.into(), facts }
    }
}

/// What a list shows of a transport or a scheme.
#[derive(Debug)]
pub struct About {
    /// Its name in scenarios.
    pub name: &'static str,
    /// A line of text.
    pub description: &'static str,
    /// The values of its key `profile`, if it has any.
    pub profiles: &'static [&'static str],
    /// Where it is published or specified.
    pub sources: &'static [&'static str],
}

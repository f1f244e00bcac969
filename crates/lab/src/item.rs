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
    pub(crate) fn new(name: &str, description: &str, facts: &Value) -> Self {
        let facts = facts.as_object().cloned().unwrap_or_default();
        Self { name: name.into(), description: description.into(), facts }
    }
}

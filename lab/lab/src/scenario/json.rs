//! Scenarios as JSON, which programs write more easily than TOML.

use std::path::PathBuf;

use serde_json::Value;

use super::ScenarioText;
use crate::error::ScenarioError;

impl ScenarioText {
    /// Returns the scenario that a JSON object describes: its keys are those of the file. Errors in it point into the TOML text that
    /// it is converted to, of the name `file`.
    ///
    /// # Errors
    /// If the text is not a JSON object, or has a `null`, which TOML does not have.
    pub fn from_json(file: &str, json: &str) -> Result<Self, ScenarioError> {
        let not_json = |error| ScenarioError::new(format!("the scenario is not JSON: {error}"));
        let value: Value = serde_json::from_str(json).map_err(not_json)?;
        let Value::Object(keys) = value else {
            return Err(ScenarioError::new("a scenario in JSON is an object"));
        };
        let mut text = String::new();
        for (key, value) in &keys {
            text += &format!("{} = {}\n", string(key), inline(key, value)?);
        }
        Ok(Self { file: file.to_owned(), text, folder: PathBuf::from(".") })
    }
}

/// Returns a value in one line of TOML. Tables are written inline, because a sweep depends on the order of its keys, and headings of
/// tables would have to come after all other keys.
pub(crate) fn inline(path: &str, value: &Value) -> Result<String, ScenarioError> {
    Ok(match value {
        Value::Null => {
            let message = format!("`{path}` is null");
            let help = "leave the key out, so that it has its default";
            return Err(ScenarioError::new(message).with_help(help));
        }
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items = items.iter().map(|item| inline(path, item));
            format!("[{}]", items.collect::<Result<Vec<_>, _>>()?.join(", "))
        }
        Value::Object(keys) => {
            let entry = |(key, value): (&String, &Value)| {
                Ok(format!("{} = {}", string(key), inline(&format!("{path}.{key}"), value)?))
            };
            let entries = keys.iter().map(entry).collect::<Result<Vec<_>, ScenarioError>>()?;
            format!("{{ {} }}", entries.join(", "))
        }
    })
}

/// Returns a basic string of TOML, which may be a key too.
fn string(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns the argument of `--set` for a key and a value in JSON. It is the one that a user of the command would write, so that
/// reports of both are equal: texts are not quoted if they are read as texts without quotes.
///
/// # Errors
/// If the value is or has a `null`.
pub fn set_argument(key: &str, value: &Value) -> Result<String, ScenarioError> {
    let text = match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => inline(key, other)?,
    };
    Ok(format!("{key}={text}"))
}

/// Returns whether `--set` reads these characters, without quotes, as this text and not as another value.
fn is_plain(text: &str) -> bool {
    let is_value = text.parse::<f64>().is_ok() || text == "true" || text == "false";
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./ ".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_unit = text.ends_with(|c: char| c.is_ascii_alphabetic()) && text.contains(' ');
    !is_value && (begins || is_unit) && text.trim() == text && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::Scenario;
    use super::*;

    #[test]
    fn json_is_read_like_toml() {
        let toml = "name = \"tab\\there\"\nfabric = { topology = \"single-switch\", hosts = 4 }\n\
                    transport.name = \"tcp\"\n[workload]\narrivals = \"permutation\"\nsizes = \"10 KB\"\n\
                    [sweep]\n\"workload.sizes\" = [\"10 KB\", \"20 KB\"]\nseed = [2, 1]\n";
        let json = json!({
            "name": "tab\there",
            "fabric": { "topology": "single-switch", "hosts": 4 },
            "transport": { "name": "tcp" },
            "workload": { "arrivals": "permutation", "sizes": "10 KB" },
            "sweep": { "workload.sizes": ["10 KB", "20 KB"], "seed": [2, 1] },
        });
        let text = ScenarioText::from_json("x.toml", &json.to_string()).unwrap().text;
        let read = |text: &str| Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
        let (of_json, of_toml) = (read(&text), read(toml));
        assert_eq!(of_json.resolved, of_toml.resolved);
        assert_eq!(of_json.points.len(), 4);
        let sets = |scenario: &Scenario| -> Vec<_> {
            scenario.points.iter().map(|point| point.set.clone()).collect()
        };
        assert_eq!(sets(&of_json), sets(&of_toml));
    }

    #[test]
    fn what_toml_cannot_hold_is_named() {
        let json = json!({ "workload": { "load": [0.5, null] } }).to_string();
        let error = ScenarioText::from_json("x", &json).unwrap_err();
        assert_eq!(error.message(), "`workload.load` is null");
        assert!(ScenarioText::from_json("x", "[1]").is_err());
        assert!(ScenarioText::from_json("x", "{").is_err());
    }

    #[test]
    fn arguments_are_those_that_users_write() {
        let set = |value: Value| set_argument("k.l", &value).unwrap();
        assert_eq!(set(json!("W3")), "k.l=W3");
        assert_eq!(set(json!("25 Gbps")), "k.l=25 Gbps");
        assert_eq!(set(json!("true")), "k.l=\"true\"");
        assert_eq!(set(json!("inf")), "k.l=\"inf\"");
        assert_eq!(set(json!("07:00")), "k.l=\"07:00\"");
        assert_eq!(set(json!("a\"b")), "k.l=\"a\\\"b\"");
        assert_eq!(set(json!(0.5)), "k.l=0.5");
        assert_eq!(set(json!(["homa", 2])), "k.l=[\"homa\", 2]");
        assert_eq!(set(json!({ "at": "1 ms" })), "k.l={ \"at\" = \"1 ms\" }");
        assert!(set_argument("k", &Value::Null).is_err());
    }
}

//! Numbers of a point, named by their place in `summary.json`.

use std::fmt;
use std::sync::LazyLock;

use rackweave_lab::error::nearest;
use rackweave_lab::results::SUMMARY_SCHEMA;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

/// The schema of `summary.json`, which has every key.
static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(SUMMARY_SCHEMA).expect("a test reads it"));

/// A place such as `latency_us.p99`, `by_size[up_to_bytes=30].p50`, `background[0].goodput_gbps` or
/// `goodput_by_sender_gbps[*]`. New fields of the summary need no code here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    text: String,
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Item(usize),
    /// The item of a list that has this value in this field.
    Where(String, String),
    All,
}

/// Why there is no number at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The summary has no such place, so the path is wrong.
    Unknown(String),
    /// The value is `null`, because there was no message to measure.
    NoNumber,
}

impl Path {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let bad = |what: &str| format!("`{text}` is not the name of a metric: {what}");
        let mut steps = Vec::new();
        for part in text.split('.') {
            let (name, mut rest) = part.split_at(part.find('[').unwrap_or(part.len()));
            if name.is_empty() {
                return Err(bad("a name is missing"));
            }
            steps.push(Step::Field(name.to_owned()));
            while let Some(inner) = rest.strip_prefix('[') {
                let (inside, after) = inner.split_once(']').ok_or_else(|| bad("`]` is missing"))?;
                steps.push(match inside.split_once('=') {
                    Some((key, value)) => Step::Where(key.into(), value.into()),
                    None if inside == "*" => Step::All,
                    None => Step::Item(
                        inside.parse().map_err(|_| bad("a list has [0], [*] or [key=value]"))?,
                    ),
                });
                rest = after;
            }
            if !rest.is_empty() {
                return Err(bad("there is text after `]`"));
            }
        }
        Ok(Self { text: text.to_owned(), steps })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Checks that the summaries of points have a number of this name, as far as their schema says.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |what: String| Err(format!("`{}` is no metric: {what}", self.text));
        let definitions = &SCHEMA["$defs"];
        let resolve = |schema: &'static Value| match schema["$ref"].as_str() {
            Some(name) => &definitions[name.trim_start_matches("#/$defs/")],
            None => schema,
        };
        let is = |schema: &Value, kind: &str| match &schema["type"] {
            Value::Array(kinds) => kinds.iter().any(|it| it == kind),
            one => one == kind,
        };
        let mut at = &definitions["PointSummary"];
        let mut place = String::new();
        for step in &self.steps {
            match step {
                Step::Field(name) => {
                    let fields = at["properties"].as_object();
                    at = match fields.and_then(|fields| fields.get(name)) {
                        Some(field) => resolve(field),
                        None if at["additionalProperties"].is_object() => {
                            resolve(&at["additionalProperties"])
                        }
                        None => {
                            let known =
                                || fields.into_iter().flatten().map(|(key, _)| key.as_str());
                            let of = if place.is_empty() {
                                String::new()
                            } else {
                                format!(" in `{place}`")
                            };
                            let hint = match nearest(name, known()) {
                                Some(near) => format!("did you mean `{near}`?"),
                                None if known().next().is_none() => "it has no fields".to_owned(),
                                None => {
                                    format!("there are {}", known().collect::<Vec<_>>().join(", "))
                                }
                            };
                            return wrong(format!("there is no `{name}`{of}; {hint}"));
                        }
                    };
                    if !place.is_empty() {
                        place.push('.');
                    }
                    place.push_str(name);
                }
                Step::Item(_) | Step::All | Step::Where(..) if !is(at, "array") => {
                    return wrong(format!("`{place}` is no list"));
                }
                Step::Item(_) | Step::All => at = resolve(&at["items"]),
                Step::Where(key, _) => {
                    at = resolve(&at["items"]);
                    if at["properties"].get(key).is_none() {
                        return wrong(format!("the items of `{place}` have no `{key}`"));
                    }
                }
            }
        }
        if ["number", "integer", "boolean"].into_iter().any(|kind| is(at, kind)) {
            return Ok(());
        }
        let fields = at["properties"].as_object();
        let fields = fields.into_iter().flatten().map(|(key, _)| key.as_str()).collect::<Vec<_>>();
        wrong(match fields[..] {
            [] if is(at, "array") => {
                format!("`{place}` is a list: [0], [*] or [key=value] is missing")
            }
            [] => format!("`{place}` is not a number"),
            _ => format!("`{place}` has several: {}", fields.join(", ")),
        })
    }

    /// Returns whether the path names one number for each item of a list.
    pub(crate) fn is_list(&self) -> bool {
        self.steps.contains(&Step::All)
    }

    /// Returns the numbers at this path in a point's summary.
    pub(crate) fn numbers(&self, summary: &Value) -> Result<Vec<f64>, Missing> {
        let mut found = Vec::new();
        self.walk(&self.steps, summary, &mut found)?;
        if found.is_empty() { Err(Missing::NoNumber) } else { Ok(found) }
    }

    fn walk(&self, steps: &[Step], at: &Value, found: &mut Vec<f64>) -> Result<(), Missing> {
        let Some((step, rest)) = steps.split_first() else {
            found.push(match at {
                Value::Null => return Err(Missing::NoNumber),
                Value::Bool(b) => f64::from(u8::from(*b)),
                other => other
                    .as_f64()
                    .ok_or_else(|| Missing::Unknown(format!("`{}` is not a number", self.text)))?,
            });
            return Ok(());
        };
        let list = || {
            at.as_array().ok_or_else(|| {
                Missing::Unknown(format!("no list at that place of `{}`", self.text))
            })
        };
        let next = match step {
            Step::Field(name) => match at {
                Value::Object(fields) => fields.get(name).ok_or_else(|| {
                    let known: Vec<&str> = fields.keys().map(String::as_str).collect();
                    let known = known.join(", ");
                    Missing::Unknown(format!("`{}`: there is no `{name}`, only {known}", self.text))
                })?,
                _ => {
                    let message = format!("`{}`: no fields above `{name}`", self.text);
                    return Err(Missing::Unknown(message));
                }
            },
            Step::Item(index) => list()?.get(*index).ok_or_else(|| {
                Missing::Unknown(format!("`{}`: the list has no item {index}", self.text))
            })?,
            Step::Where(key, value) => {
                let is = |item: &&Value| {
                    item.get(key)
                        .is_some_and(|found| rackweave_lab::results::plain(found) == *value)
                };
                list()?.iter().find(is).ok_or_else(|| {
                    Missing::Unknown(format!("`{}`: no item has {key} = {value}", self.text))
                })?
            }
            Step::All => return list()?.iter().try_for_each(|item| self.walk(rest, item, found)),
        };
        self.walk(rest, next, found)
    }

    /// Formats a number at this path, with its unit as far as the field's name shows it.
    pub(crate) fn write(&self, value: f64) -> String {
        use rackweave_lab::report::number::{bytes, micros, short};
        let named = |unit: &str| {
            self.steps.iter().any(|step| match step {
                Step::Field(name) => name.ends_with(unit),
                _ => false,
            })
        };
        if named("_gbps") {
            format!("{} Gbit/s", short(value))
        } else if named("_us") {
            micros(value)
        } else if named("_bytes") {
            bytes(value)
        } else {
            short(value)
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_numbers() {
        let summary = json!({
            "drops": 3,
            "slowdown": { "p99": 1.5, "mean": null },
            "by_size": [{ "up_to_bytes": 30, "p50": 1.25 }, { "up_to_bytes": null, "p50": 9.0 }],
            "background": [{ "goodput_gbps": 0.2 }],
            "by_sender_gbps": [1.0, 2.0],
        });
        let at = |path: &str| Path::parse(path).unwrap().numbers(&summary);
        assert_eq!(at("drops"), Ok(vec![3.0]));
        assert_eq!(at("slowdown.p99"), Ok(vec![1.5]));
        assert_eq!(at("by_size[up_to_bytes=30].p50"), Ok(vec![1.25]));
        assert_eq!(at("by_size[up_to_bytes=null].p50"), Ok(vec![9.0]));
        assert_eq!(at("background[0].goodput_gbps"), Ok(vec![0.2]));
        assert_eq!(at("by_sender_gbps[*]"), Ok(vec![1.0, 2.0]));
        assert_eq!(at("by_size[*].p50"), Ok(vec![1.25, 9.0]));
        assert_eq!(at("slowdown.mean"), Err(Missing::NoNumber));
        for wrong in [
            "dropz",
            "slowdown",
            "slowdown.p42",
            "drops.all",
            "drops[0]",
            "background[1].goodput_gbps",
            "by_size[up_to_bytes=31].p50",
        ] {
            assert!(matches!(at(wrong), Err(Missing::Unknown(_))), "{wrong}: {:?}", at(wrong));
        }
    }

    #[test]
    fn names_that_no_summary_has_are_refused() {
        let check = |path: &str| Path::parse(path).unwrap().check();
        for known in [
            "goodput_gbps",
            "slowdown.p99",
            "by_size[up_to_bytes=30].p50",
            "background[0].goodput_gbps",
            "goodput_by_sender_gbps.min",
            "cast.receivers[*].completed_us",
            "drops_by_reason.tail",
            "cast.send_us.p99",
            "image.clients[*].run_us",
            "busiest_port.mean_queue_bytes",
        ] {
            assert_eq!(check(known), Ok(()), "{known}");
        }
        for (wrong, why) in [
            ("goodput_gpbs", "there is no `goodput_gpbs`; did you mean `goodput_gbps`?"),
            ("slowdown.p98", "there is no `p98` in `slowdown`; did you mean `p99`?"),
            ("slowdown", "`slowdown` has several: "),
            ("by_size", "`by_size` is a list: [0], [*] or [key=value] is missing"),
            ("by_size[bytes=30].p50", "the items of `by_size` have no `bytes`"),
            ("drops[0]", "`drops` is no list"),
            ("drops.all", "there is no `all` in `drops`; it has no fields"),
            ("transport", "`transport` is not a number"),
        ] {
            let error = check(wrong).unwrap_err();
            assert!(error.starts_with(&format!("`{wrong}` is no metric: {why}")), "{error}");
        }
    }

    #[test]
    fn invalid_paths_are_refused() {
        for wrong in ["", ".", "a..b", "a[", "a[x]", "a[0]b", "[0]"] {
            assert!(Path::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn units_follow_from_names() {
        let write = |path: &str, x| Path::parse(path).unwrap().write(x);
        assert_eq!(write("goodput_gbps", 0.712), "0.712 Gbit/s");
        assert_eq!(write("latency_us.p99", 1200.0), "1.20 ms");
        assert_eq!(write("queue_bytes.mean", 15380.0), "15.4 KB");
        assert_eq!(write("slowdown.p99", 3.0), "3.00");
    }
}

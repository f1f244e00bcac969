//! The schema of `summary.json`.

/// The JSON schema (draft 2020-12) of `summary.json`, which `rackweave schema` prints. It has every key, and permits no other. A test
/// compares it with the types, and writes it with `RACKWEAVE_BLESS=1`.
pub const SUMMARY_SCHEMA: &str = include_str!("summary.schema.json");

#[cfg(test)]
pub(super) use self::types::{end, swept};

/// The schema as it follows from the types that are written.
#[cfg(test)]
mod types {
    use schemars::generate::SchemaSettings;
    use schemars::{Schema, SchemaGenerator, json_schema};
    use serde_json::{Map, Value, json};

    use super::super::{Document, ENDS, end_name};

    /// Swept keys, whose values are those of TOML.
    pub(in crate::results) fn swept(_: &mut SchemaGenerator) -> Schema {
        let values = ["string", "number", "boolean", "array", "object"];
        json_schema!({ "type": "object", "additionalProperties": { "type": values } })
    }

    /// The name of an [`End`](rackweave_sim::result::End).
    pub(in crate::results) fn end(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": ENDS.map(end_name) })
    }

    /// Returns the schema as a file.
    pub(super) fn file() -> String {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let schema = settings.into_generator().into_root_schema_for::<Document<'static>>();
        let mut schema = schema.to_value();
        // The kind of workload that only tests have.
        let fields = schema["$defs"]["PointSummary"]["properties"].as_object_mut().unwrap();
        fields.shift_remove("probe").expect("tests have a kind of their own");
        let definitions = schema["$defs"].as_object_mut().unwrap();
        definitions.sort_keys();
        definitions.retain(|name, _| !["ProbeSummary", "Echo"].contains(&&**name));
        for definition in definitions.values_mut() {
            allow_no_number(definition);
        }
        schema["$comment"] = json!(
            "Generated from the types: `RACKWEAVE_BLESS=1 cargo test -p rackweave-lab schema` writes it."
        );
        tidy(&mut schema);
        let mut text = serde_json::to_string_pretty(&schema).unwrap();
        text.push('\n');
        text
    }

    /// Calls a function for the schemas in a schema.
    fn for_each(schema: &mut Map<String, Value>, mut each: impl FnMut(&mut Value)) {
        for group in ["properties", "$defs"] {
            let group = schema.get_mut(group).and_then(Value::as_object_mut);
            group.into_iter().flatten().for_each(|(_, schema)| each(schema));
        }
        for one in ["items", "additionalProperties"] {
            schema.get_mut(one).into_iter().for_each(&mut each);
        }
    }

    /// A NaN is written as `null`.
    fn allow_no_number(schema: &mut Value) {
        let Some(schema) = schema.as_object_mut() else { return };
        if schema.get("type").is_some_and(|kind| kind == "number") {
            schema["type"] = json!(["number", "null"]);
        }
        for_each(schema, allow_no_number);
    }

    /// Permits no other keys in objects, and no `null` in place of a key that is left out then. Descriptions are in words of JSON.
    fn tidy(schema: &mut Value) {
        let Some(schema) = schema.as_object_mut() else { return };
        // What is written has every key, so that defaults say nothing.
        for key in ["format", "default"] {
            schema.shift_remove(key);
        }
        if let Some(Value::String(text)) = schema.get_mut("description") {
            let paragraphs = text.split("\n\n").map(|it| it.replace('\n', " "));
            let paragraphs = paragraphs.collect::<Vec<_>>().join("\n\n");
            *text = paragraphs.replace("[`", "`").replace("`]", "`").replace("`None`", "`null`");
        }
        let required = schema.get("required").cloned().unwrap_or_default();
        let is_required =
            |key: &str| required.as_array().is_some_and(|keys| keys.iter().any(|it| it == key));
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            for (_, property) in properties.iter_mut().filter(|(key, _)| !is_required(key)) {
                let optional = property.as_object_mut().expect("a schema of a key is an object");
                without_null(optional);
                if let Some(Value::String(text)) = optional.get_mut("description") {
                    *text = text.replace("`None`", "absent");
                }
            }
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
        for_each(schema, tidy);
        // What is said of a schema comes first.
        let mut rest = std::mem::take(schema);
        for key in ["$schema", "$comment", "title", "description"] {
            schema.extend(rest.shift_remove_entry(key));
        }
        schema.extend(rest);
    }

    fn without_null(schema: &mut Map<String, Value>) {
        // A number that is there can be NaN.
        if let Some(Value::Array(kinds)) = schema.get_mut("type")
            && kinds[0] != "number"
        {
            kinds.retain(|kind| kind != "null");
            schema["type"] = kinds[0].clone();
        }
        if let Some(Value::Array(cases)) = schema.shift_remove("anyOf") {
            let one = cases.into_iter().find(|case| case["type"] != "null").unwrap();
            schema.extend(one.as_object().unwrap().clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jsonschema::Validator;
    use serde_json::{Value, json};

    use super::SUMMARY_SCHEMA;
    use crate::results::PointFailure;
    use crate::run::Batch;
    use crate::scenario::Scenario;
    use crate::sweep::tests::SCENARIOS;

    #[test]
    fn the_schema_is_that_of_the_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/results/summary.schema.json");
        let expected = super::types::file();
        if std::env::var_os("RACKWEAVE_BLESS").is_some() {
            std::fs::write(path, expected).unwrap();
        } else {
            let text = "summary.schema.json differs from the types: RACKWEAVE_BLESS=1 writes it";
            assert!(std::fs::read_to_string(path).unwrap() == expected, "{text}");
        }
    }

    fn schema() -> Validator {
        let schema: Value = serde_json::from_str(SUMMARY_SCHEMA).unwrap();
        assert!(jsonschema::meta::is_valid(&schema));
        jsonschema::validator_for(&schema).unwrap()
    }

    fn summary(scenario: Scenario) -> Value {
        let results = Batch::new(scenario).run(Some(1)).unwrap();
        serde_json::from_str(&results.to_json()).unwrap()
    }

    fn assert_valid(schema: &Validator, summary: &Value, of: &str) {
        let errors: Vec<String> =
            schema.iter_errors(summary).map(|it| format!("{}: {it}", it.instance_path)).collect();
        assert!(errors.is_empty(), "{of}: {errors:#?}");
    }

    /// Every kind of workload, and built-in scenarios, some of whose messages do not end.
    #[test]
    fn results_are_as_the_schema_says() {
        let schema = schema();
        for text in SCENARIOS {
            let scenario = Scenario::parse("some.toml", text, Path::new("."), &[], None).unwrap();
            assert_valid(&schema, &summary(scenario), text);
        }
        for (name, sets) in [
            ("quickstart", &["measure.messages=200"][..]),
            (
                "quickstart",
                &["measure.messages=200", "sweep.seed=[1, 2]", "measure.time_limit='2200 us'"],
            ),
            ("incast", &[]),
        ] {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            assert_valid(&schema, &summary(Scenario::load(name, &sets, None).unwrap()), name);
        }
    }

    #[test]
    fn a_point_that_failed_is_in_the_schema() {
        let sets = ["measure.messages=100".to_owned()];
        let scenario = Scenario::load("quickstart", &sets, None).unwrap();
        let mut results = Batch::new(scenario).run(Some(1)).unwrap();
        let set = results.points[0].summary.set.clone();
        results.summary.failures.push(PointFailure {
            set,
            transport: "homa".to_owned(),
            message: "assertion failed".to_owned(),
            seed: 3,
            arguments: vec!["transport.name=\"homa\"".to_owned()],
        });
        assert_valid(&schema(), &serde_json::from_str(&results.to_json()).unwrap(), "failed");
    }

    #[test]
    fn a_key_that_the_schema_does_not_have_is_an_error_and_so_is_a_missing_one() {
        let schema = schema();
        let sets = ["measure.messages=100".to_owned()];
        let good = summary(Scenario::load("quickstart", &sets, None).unwrap());
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut summary = good.clone();
            change(&mut summary);
            schema.is_valid(&summary)
        };
        assert!(changed(&|_| ()));
        assert!(!changed(&|it| it["more"] = json!(1)));
        assert!(!changed(&|it| it["points"][0]["more"] = json!(1)));
        assert!(!changed(&|it| it["points"][0]["slowdown"]["p90"] = json!(1)));
        assert!(!changed(&|it| it["points"][0]["by_size"][0]["count"] = json!(null)));
        assert!(!changed(&|it| it["points"][0]["drops"] = json!(-1)));
        assert!(!changed(&|it| drop(
            it["points"][0].as_object_mut().unwrap().remove("goodput_gbps")
        )));
        assert!(changed(&|it| it["points"][0]["slowdown"]["p99"] = json!(null)));
    }
}

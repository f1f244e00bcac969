//! The schema of `summary.json`.

/// The JSON schema (draft 2020-12) of `summary.json`, which `rackweave schema` prints. It has every key, and permits no other.
pub const SUMMARY_SCHEMA: &str = include_str!("summary.schema.json");

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

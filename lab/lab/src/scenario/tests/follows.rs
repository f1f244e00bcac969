//! Values that follow from other keys.

use std::path::Path;

use crate::scenario::Scenario;

/// What is not set, and follows from other keys, is a comment of the resolved scenario, which can be set there as in the file.
#[test]
fn what_follows_from_other_keys_is_in_the_resolved_scenario() {
    let text = "fabric = { topology = 'leaf-spine', leaves = 2, hosts_per_leaf = 4, spines = 2, oversubscription = 2 }\n\
                transport.name = 'homa'\nworkload = { arrivals = 'poisson', sizes = 'W3', load = 0.5 }";
    let parse = |text: &str, sets: &[String]| {
        Scenario::parse("x.toml", text, Path::new("."), sets, None).unwrap()
    };
    let scenario = parse(text, &[]);
    let end = "\n# What follows from these keys:\n# fabric.core_link = \"10 Gbps\"\n# fabric.switch.buffer = \"500 KB\"\n";
    assert!(scenario.resolved.ends_with(end), "{}", scenario.resolved);
    assert_eq!(scenario.value_of("fabric.core_link"), Some("10 Gbps".into()));
    assert_eq!(scenario.value_of("fabric.oversubscription"), Some(2.0.into()));
    assert_eq!(scenario.value_of("fabric.aggregation_link"), None);
    let again = parse(&scenario.resolved, &["fabric.oversubscription=4".to_owned()]);
    assert_eq!(again.value_of("fabric.core_link"), Some("5 Gbps".into()));
    // A key that is swept or set has its own value, and one in which points differ none.
    let sweep = ["sweep.fabric.switch.buffer=[\"1 MB\", \"2 MB\"]".to_owned()];
    let swept = parse(text, &sweep);
    assert!(!swept.resolved.contains("# fabric.switch.buffer"), "{}", swept.resolved);
    let sweep = ["sweep.fabric.oversubscription=[1, 2]".to_owned()];
    assert_eq!(parse(text, &sweep).value_of("fabric.core_link"), None);
    let unlimited = parse(text, &["fabric.switch.buffer=unlimited".to_owned()]);
    assert_eq!(unlimited.value_of("fabric.switch.buffer"), Some("unlimited".into()));
    assert!(!unlimited.resolved.contains("# fabric.switch.buffer"));
}

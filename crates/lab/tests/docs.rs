//! The documentation of scenario files names every key, and its examples run.

use std::path::Path;

use rackweave_lab::Scenario;

const DOCS: &str = include_str!("../../../docs/scenario.md");

/// The keys that a table knows, as its error about an unknown one lists them.
fn known_keys(text: &str) -> Vec<String> {
    let error = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap_err();
    let help = miette::Diagnostic::help(&error).unwrap().to_string();
    let list = help.strip_prefix("known here: ").expect(&help);
    list.split(", ").map(str::to_owned).collect()
}

#[test]
fn every_key_is_documented() {
    let rest = "\n[workload]\narrivals='permutation'\nsizes='1 KB'\n";
    let fabric = "[fabric]\ntopology='single-switch'\nhosts=2\n";
    let tcp = "[transport]\nname='tcp'\n";
    let unknown = "qqqqqqqqqqqqqqq=1\n";
    let tables = [
        unknown.to_owned(),
        format!("{fabric}{unknown}{tcp}{rest}"),
        format!("{fabric}[fabric.switch]\n{unknown}{tcp}{rest}"),
        format!("{fabric}{tcp}{unknown}{rest}"),
        format!("{fabric}[transport]\nname='homa'\n{unknown}{rest}"),
        format!("{fabric}[transport]\nname='ndp'\n{unknown}{rest}"),
        format!("{fabric}[transport]\nname='phost'\n{unknown}{rest}"),
        format!("{fabric}[transport]\nname='polo'\n{unknown}{rest}"),
        format!("{fabric}{tcp}{rest}{unknown}"),
        format!("{fabric}{tcp}{rest}[workload.application]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[measure]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[plot]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[[faults]]\n{unknown}"),
    ];
    for table in tables {
        for key in known_keys(&table) {
            let documented = DOCS.contains(&format!("`{key}`"))
                || DOCS.contains(&format!("[{key}]"))
                || DOCS.contains(&format!(".{key}]"));
            assert!(documented, "`{key}` is not in docs/scenario.md");
        }
    }
}

#[test]
fn the_examples_run() {
    let examples: Vec<&str> =
        DOCS.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 4);
    let parse = |text: &str| Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
    assert_eq!(parse(examples[0]).points.len(), 1);
    let points = |sweep: &str| parse(&format!("{}\n{sweep}", examples[0])).points.len();
    assert_eq!((points(examples[1]), points(examples[2]), points(examples[3])), (2, 9, 2));
}

//! The documentation of scenario files names every key, and its examples run.

use std::path::Path;

use rackweave_lab::Scenario;
use rackweave_lab::list::{Topic, items};

const DOCS: &str = include_str!("../../../../docs/reference/scenario.md");

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
        format!("{fabric}{tcp}{rest}{unknown}"),
        format!("{fabric}{tcp}{rest}[workload.application]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[measure]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[host]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[host.switch]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[plot]\n{unknown}"),
        format!("{fabric}{tcp}{rest}[[faults]]\n{unknown}"),
        format!("{fabric}{tcp}[workload.cast]\n{unknown}"),
        format!("{fabric}{tcp}[workload.cast.cpu]\n{unknown}"),
        format!("{fabric}{tcp}[workload.image]\n{unknown}"),
    ];
    let of_transports = items(Topic::Transports).into_iter().map(|item| {
        let kind = item.facts.get("workload").and_then(|kind| kind.as_str());
        let rest = kind.map_or(rest.to_owned(), |kind| format!("[workload.{kind}]\n"));
        format!("{fabric}[transport]\nname='{}'\n{unknown}{rest}", item.name)
    });
    for table in tables.into_iter().chain(of_transports) {
        for key in known_keys(&table) {
            let documented = DOCS.contains(&format!("`{key}`"))
                || DOCS.contains(&format!("[{key}]"))
                || DOCS.contains(&format!(".{key}]"));
            assert!(documented, "`{key}` is not in docs/reference/scenario.md");
        }
    }
}

#[test]
fn the_examples_run() {
    let examples: Vec<&str> =
        DOCS.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(examples.len(), 8);
    let parse = |text: &str| Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap();
    assert_eq!(parse(examples[0]).points.len(), 1);
    // Those of files to many and of a pod stand by themselves.
    let (whole, examples): (Vec<&str>, Vec<&str>) = examples
        .into_iter()
        .partition(|example| example.contains("[workload.cast]") || example.contains("tors ="));
    assert_eq!(whole.iter().map(|text| parse(text).points.len()).collect::<Vec<_>>(), [1, 3]);
    let points = |sweep: &str| parse(&format!("{}\n{sweep}", examples[0])).points.len();
    assert_eq!(examples[1..].iter().map(|more| points(more)).collect::<Vec<_>>(), [2, 1, 1, 9, 2]);
}

/// The walk-throughs, and the least number of excerpts in each.
const ADDING: [(&str, usize); 2] = [
    (include_str!("../../../../docs/adding-a-transport.md"), 15),
    (include_str!("../../../../docs/adding-a-group-system.md"), 8),
];

/// Each excerpt of a walk-through, with the file that is named last before it.
fn excerpts(document: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut parts = document.split("```");
    let mut file = "";
    let mut found = Vec::new();
    while let Some(text) = parts.next() {
        let is_file = |name: &&str| name.contains('/') && name.ends_with(".rs");
        file = text.split('`').rfind(is_file).unwrap_or(file);
        found.extend(
            parts.next().map(|block| (file, block.strip_prefix("rust\n").unwrap_or(block))),
        );
    }
    found
}

#[test]
fn every_excerpt_of_the_walk_throughs_stands_in_its_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut all = Vec::new();
    for (document, least) in ADDING {
        let excerpts = excerpts(document);
        assert!(excerpts.len() >= least, "{}", excerpts.len());
        all.extend(excerpts);
    }
    for (file, excerpt) in all {
        let code =
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        // Pieces follow each other, each in whole lines.
        let mut rest = format!("\n{code}");
        for piece in excerpt.split("// ...\n").map(str::trim_end) {
            let lines = format!("\n{piece}\n");
            let at =
                rest.find(&lines).unwrap_or_else(|| panic!("not in {file}, or not there:{lines}"));
            rest = rest.split_off(at + lines.len() - 1);
        }
    }
}

#[test]
fn the_files_that_documents_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let architecture = include_str!("../../../../ARCHITECTURE.md");
    assert!(architecture.contains("docs/adding-a-transport.md"));
    let names = ADDING.iter().flat_map(|(document, _)| document.split('`'));
    for name in names.filter(|name| name.starts_with("crates/") && !name.contains(' ')) {
        assert!(root.join(name).exists(), "{name}");
    }
}

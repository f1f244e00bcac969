//! The documentation of scenario files names every key, and its examples run.

use std::path::Path;

use rackweave_lab::Scenario;
use rackweave_lab::list::{Topic, items};
use rackweave_lab::study;

const DOCS: &str = include_str!("../../../../docs/reference/scenario.md");
/// The page to which that one sends for the keys of `[testbed]`.
const TESTBED: &str = include_str!("../../../../docs/ops/testbed.md");

/// The keys that a table knows, as its error about an unknown one lists them; `None` if it is no table.
fn keys_of(text: &str) -> Option<Vec<String>> {
    let error = Scenario::parse("x.toml", text, Path::new("."), &[], None).err()?;
    let help = miette::Diagnostic::help(&error)?.to_string();
    let list = help.strip_prefix("known here: ").filter(|_| error.message().contains(UNKNOWN))?;
    Some(list.split(", ").map(str::to_owned).collect())
}

/// A key that no table has.
const UNKNOWN: &str = "qqqqqqqqqqqqqqq";

/// The keys of a table and of all tables in it, whose text begins with `rest`.
fn all_keys(rest: &str, table: &str) -> Vec<String> {
    let of = |header: &str| keys_of(&format!("{rest}{header}\n{UNKNOWN}=1\n"));
    let Some(keys) = of(&format!("[{table}]")).or_else(|| of(&format!("[[{table}]]"))) else {
        return Vec::new();
    };
    let inner = keys.iter().flat_map(|key| all_keys(rest, &format!("{table}.{key}")));
    let inner: Vec<String> = inner.collect();
    [keys, inner].concat()
}

#[test]
fn every_key_is_documented() {
    const SMALL: &str = "workload.arrivals='permutation'\nworkload.sizes='1 KB'\n";
    const FABRIC: &str = "fabric.topology='single-switch'\nfabric.hosts=2\n";
    const TCP: &str = "transport.name='tcp'\n";
    let top = keys_of(&format!("{UNKNOWN}=1")).unwrap();
    let mut documented = top.clone();
    // Each table is read by itself: TOML has no two of one name.
    for table in
        top.iter().filter(|table| !["transport", "workload", "sweep"].contains(&table.as_str()))
    {
        let fabric = if table == "fabric" { "" } else { FABRIC };
        documented.extend(all_keys(&format!("{fabric}{TCP}{SMALL}"), table));
    }
    documented.extend(keys_of(&format!("{FABRIC}{TCP}{SMALL}workload.{UNKNOWN}=1")).unwrap());
    documented.extend(all_keys(&format!("{FABRIC}{TCP}{SMALL}"), "workload.application"));
    for kind in study::names() {
        let keys = all_keys(&format!("{FABRIC}{TCP}"), &format!("workload.{kind}"));
        assert!(keys.len() > 2, "[workload.{kind}]: {keys:?}");
        documented.extend(keys);
    }
    for item in items(Topic::Transports) {
        let kind = item.facts.get("workload").and_then(|kind| kind.as_str());
        let rest = kind.map_or(SMALL.to_owned(), |kind| format!("workload.{kind}={{}}\n"));
        let text = format!("{FABRIC}transport.name='{}'\ntransport.{UNKNOWN}=1\n{rest}", item.name);
        documented.extend(keys_of(&text).unwrap());
    }
    for table in [
        "cpu",
        "plane",
        "copy_rate",
        "sessions",
        "instances",
        "elements",
        "task_start",
        "probability",
        "nic",
    ] {
        assert!(documented.iter().any(|key| key == table), "`{table}` is read: {documented:?}");
    }
    let is_there = |key: &str| {
        let at = [format!("`{key}`"), format!("[{key}]"), format!(".{key}]")];
        at.iter().any(|at| DOCS.contains(at) || TESTBED.contains(at))
    };
    documented.retain(|key| !is_there(key));
    assert!(documented.is_empty(), "not in the documentation: {documented:?}");
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

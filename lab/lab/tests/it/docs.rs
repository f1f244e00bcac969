//! The documentation of scenario files has the keys that are read, and its examples run.

use std::path::Path;

use rackweave_docs::keys::KeyTable;
use rackweave_lab::Scenario;
use rackweave_lab::list::{Topic, items};
use rackweave_lab::study;

const SCENARIO: &str = include_str!("../../../../docs/reference/scenario.md");
const TRANSPORTS: &str = include_str!("../../../../docs/reference/transports.md");

const FABRIC: &str = "[fabric]\ntopology='single-switch'\nhosts=2\n";
const TCP: &str = "[transport]\nname='tcp'\n";
const WORKLOAD: &str = "[workload]\narrivals='permutation'\nsizes='1 KB'\n";
const UNKNOWN: &str = "qqqqqqqqqqqqqqq=1\n";

/// The keys that a table knows, as its error about an unknown one lists them.
fn known_keys(text: &str) -> Vec<String> {
    let error = Scenario::parse("x.toml", text, Path::new("."), &[], None).unwrap_err();
    let help = miette::Diagnostic::help(&error).unwrap().to_string();
    let list = help.strip_prefix("known here: ").expect(&help);
    list.split(", ").map(str::to_owned).collect()
}

/// The names that every transport or scheme knows have rows written by hand.
#[test]
fn every_key_of_a_transport_or_scheme_is_documented() {
    for item in items(Topic::Transports) {
        let kind = item.facts.get("workload").and_then(|kind| kind.as_str());
        let rest = kind.map_or(WORKLOAD.to_owned(), |kind| format!("[workload.{kind}]\n"));
        let name = &item.name;
        for key in known_keys(&format!("{FABRIC}[transport]\nname='{name}'\n{UNKNOWN}{rest}")) {
            let row = format!("`{key}`");
            let is_documented = [SCENARIO, TRANSPORTS].iter().any(|page| page.contains(&row));
            let is_name = items(Topic::Transports).iter().any(|item| item.name == key);
            assert!(is_documented || is_name, "no page has `{key}` of {name}");
        }
    }
}

/// `docs/check` reads tables from the code. It must read them as serde does.
#[test]
fn the_keys_of_documents_are_those_that_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (tables, problems) = rackweave_docs::tables(&rackweave_docs::read(&root).unwrap());
    assert_eq!(problems, []);
    let names = |table: &KeyTable| -> Vec<String> {
        table.keys.iter().map(|key| key.name.clone()).collect()
    };
    for (name, text) in [
        ("Fabric", format!("{FABRIC}{UNKNOWN}{TCP}{WORKLOAD}")),
        ("Switch", format!("{FABRIC}[fabric.switch]\n{UNKNOWN}{TCP}{WORKLOAD}")),
        ("Workload", format!("{FABRIC}{TCP}{WORKLOAD}{UNKNOWN}")),
        ("ApplicationKeys", format!("{FABRIC}{TCP}{WORKLOAD}[workload.application]\n{UNKNOWN}")),
        ("Measure", format!("{FABRIC}{TCP}{WORKLOAD}[measure]\n{UNKNOWN}")),
        ("TrafficSpec", format!("{FABRIC}{TCP}{WORKLOAD}[[measure.traffic]]\n{UNKNOWN}")),
        ("HostTable", format!("{FABRIC}{TCP}{WORKLOAD}[host]\n{UNKNOWN}")),
        ("SwitchTable", format!("{FABRIC}{TCP}{WORKLOAD}[host.switch]\n{UNKNOWN}")),
        ("TestbedKeys", format!("{FABRIC}{TCP}{WORKLOAD}[testbed]\n{UNKNOWN}")),
        ("Plot", format!("{FABRIC}{TCP}{WORKLOAD}[plot]\n{UNKNOWN}")),
        ("FaultSpec", format!("{FABRIC}{TCP}{WORKLOAD}[[faults]]\n{UNKNOWN}")),
        ("CpuKeys", format!("{FABRIC}{TCP}[workload.cast.cpu]\n{UNKNOWN}")),
        ("PlaneKeys", format!("{FABRIC}{TCP}[workload.cast.plane]\n{UNKNOWN}")),
    ] {
        let table = tables.iter().find(|table| table.name == name).unwrap();
        assert_eq!(known_keys(&text), names(table), "{name}");
    }
    // Three tables of the file are not fields of `File`: they are read by their names, and have sections.
    let file = tables.iter().find(|table| table.name == "File").unwrap();
    for key in known_keys(UNKNOWN) {
        let has_section = [format!("[{key}]"), format!("[[{key}]]")].iter().any(|table| {
            SCENARIO.lines().any(|line| line.starts_with('#') && line.contains(table))
        });
        assert!(has_section || names(file).contains(&key), "`{key}` is in no table of the page");
    }
    // The kinds of workload are those of the registry: the struct of `[workload.cast]` is `CastKeys`.
    for kind in study::names() {
        let name = format!("{}{}Keys", kind[..1].to_uppercase(), &kind[1..]);
        let table = tables.iter().find(|table| table.name == name);
        let table = table.unwrap_or_else(|| panic!("no `{name}` with the keys of {kind}"));
        let text = format!("{FABRIC}{TCP}[workload.{kind}]\n{UNKNOWN}");
        assert_eq!(known_keys(&text), names(table), "{name}");
    }
    let homa = tables.iter().find(|table| table.name == "HomaKeys").unwrap();
    let known = known_keys(&format!("{FABRIC}[transport]\nname='homa'\n{UNKNOWN}{WORKLOAD}"));
    assert!(known.ends_with(&names(homa)), "{known:?}");
}

/// Each example, and the number of its points. Those without a fabric complete the first one.
#[test]
fn the_examples_run() {
    let pages = [SCENARIO, TRANSPORTS];
    let blocks = pages.iter().flat_map(|page| page.split("```toml\n").skip(1));
    let examples: Vec<&str> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    let points = |example: &&str| {
        let is_whole = example.contains("[fabric]");
        let text =
            if is_whole { (*example).to_owned() } else { format!("{}\n{example}", examples[0]) };
        Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap().points.len()
    };
    let points: Vec<usize> = examples.iter().map(points).collect();
    // The minimal one, a pod, a datagram flow, a sweep, cases.
    assert_eq!(points, [1, 1, 1, 9, 2]);
}

/// The walk-throughs, and the least number of excerpts in each.
const ADDING: [(&str, usize); 2] = [
    (include_str!("../../../../docs/adding-a-transport.md"), 7),
    (include_str!("../../../../docs/adding-a-group-system.md"), 6),
];

/// Each excerpt of a walk-through (blocks of commands are none), with the file that is named last before it.
fn excerpts(document: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut parts = document.split("```");
    let mut file = "";
    let mut found = Vec::new();
    while let Some(text) = parts.next() {
        let is_file = |name: &&str| name.contains('/') && name.ends_with(".rs");
        file = text.split('`').rfind(is_file).unwrap_or(file);
        let block = parts.next().filter(|block| !block.starts_with("sh\n"));
        found.extend(block.map(|block| (file, block.strip_prefix("rust\n").unwrap_or(block))));
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
    for name in names.filter(|name| {
        ["engine/", "hosts/", "systems/", "lab/", "apps/", "tests/"]
            .iter()
            .any(|top| name.starts_with(top))
            && !name.contains(' ')
    }) {
        assert!(root.join(name).exists(), "{name}");
    }
}

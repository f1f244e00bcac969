//! Lists of transports, fabrics, workloads and scenarios.

use std::path::Path;

use rackweave_core::Bytes;
use rackweave_scenario::fabric::TopologyName;
use rackweave_scenario::item::About;
pub use rackweave_scenario::item::Item;
use rackweave_scenario::keys::Choice as _;
use rackweave_scenario::transport;
use rackweave_workload::SizeDist;
use serde_json::{Value, json};

use crate::scenario::Scenario;
use crate::{builtin, study};

/// What can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Transports.
    Transports,
    /// Topologies.
    Fabrics,
    /// Size distributions.
    Workloads,
    /// Built-in scenarios, and files of the current directory.
    Scenarios,
}

/// The list of a topic.
#[must_use]
pub fn items(topic: Topic) -> Vec<Item> {
    match topic {
        Topic::Transports => transports(),
        Topic::Fabrics => fabrics(),
        Topic::Workloads => workloads(),
        Topic::Scenarios => scenarios(),
    }
}

/// Transports, and then the schemes of `[workload.cast]` and other group systems.
fn transports() -> Vec<Item> {
    let item = |about: &About| {
        let facts = json!({ "profiles": about.profiles, "sources": about.sources });
        Item::new(about.name, about.description, &facts)
    };
    let schemes = study::KINDS.iter().flat_map(|kind| {
        (kind.schemes)().into_iter().map(|scheme| {
            let mut item = item(scheme);
            item.facts.insert("workload".into(), kind.table.into());
            item
        })
    });
    let transports = transport::Name::all().into_iter().map(|name| item(name.about()));
    transports.chain(schemes).collect()
}

fn fabrics() -> Vec<Item> {
    let item = |topology: &TopologyName| {
        let keys: Vec<&str> = topology.keys().collect();
        Item::new(topology.name(), topology.description(), &json!({ "keys": keys }))
    };
    TopologyName::ALL.iter().map(item).collect()
}

fn workloads() -> Vec<Item> {
    let named = SizeDist::NAMES.into_iter().filter_map(|name| SizeDist::named(name).ok());
    named
        .map(|sizes| {
            let facts = json!({
                "mean_bytes": sizes.mean(),
                "p50_bytes": sizes.quantile(0.5),
                "p90_bytes": sizes.quantile(0.9),
                "p99_bytes": sizes.quantile(0.99),
                "max_bytes": sizes.max(),
                "source": sizes.source(),
            });
            Item::new(sizes.name(), sizes.description(), &facts)
        })
        .collect()
}

fn scenarios() -> Vec<Item> {
    let built_in = builtin::SCENARIOS.iter().map(|scenario| {
        let read = Scenario::parse(scenario.file, scenario.text, Path::new("."), &[], None);
        let (description, points) =
            read.map_or((String::new(), 0), |read| (read.description, read.points.len()));
        let group = match scenario.paper() {
            Some(paper) => format!("paper {paper}"),
            None if scenario.is_recipe() => "recipes".to_owned(),
            None => "built in".to_owned(),
        };
        let facts = json!({ "points": points, "built_in": true, "group": group });
        Item::new(scenario.name, &description, &facts)
    });
    let mut items: Vec<Item> = built_in.chain(files()).collect();
    let groups: Vec<Option<Value>> =
        items.iter().map(|item| item.facts.get("group").cloned()).collect();
    items.sort_by_key(|item| {
        groups.iter().position(|group| group.as_ref() == item.facts.get("group"))
    });
    items
}

/// Scenario files of the current directory and of `scenarios` in it; not the built-in ones.
fn files() -> Vec<Item> {
    let dirs = [Path::new("."), Path::new("scenarios"), Path::new("scenarios/papers")];
    let is_new = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        builtin::SCENARIOS.iter().all(|built_in| built_in.text != text)
    };
    let mut paths: Vec<_> = dirs
        .into_iter()
        .filter_map(|dir| std::fs::read_dir(dir).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| {
            path.extension().is_some_and(|extension| extension == "toml") && is_new(path)
        })
        .collect();
    paths.sort();
    let read = paths.iter().filter_map(|path| {
        let name = path.strip_prefix("./").unwrap_or(path).to_string_lossy();
        let scenario = Scenario::load(&name, &[], None).ok()?;
        let points = scenario.points.len();
        let facts = json!({ "points": points, "built_in": false, "group": "files" });
        Some(Item::new(&name, &scenario.description, &facts))
    });
    read.collect()
}

/// A list for a terminal.
#[must_use]
pub fn to_text(topic: Topic, items: &[Item]) -> String {
    let description = |item: &Item| match topic {
        Topic::Scenarios => first_sentence(&item.description),
        _ => item.description.clone(),
    };
    text_of(items, description, |item| details(topic, item))
}

/// A list for a terminal, in groups if the items have any: of each item its name, a description, and lines below them.
pub fn text_of(
    items: &[Item],
    description: impl Fn(&Item) -> String,
    details: impl Fn(&Item) -> Vec<String>,
) -> String {
    if items.is_empty() {
        return "none\n".into();
    }
    let width = items.iter().map(|item| item.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for group in items.chunk_by(|a, b| a.facts.get("group") == b.facts.get("group")) {
        let heading = group[0].facts.get("group").and_then(Value::as_str);
        let indent = if heading.is_some() { "  " } else { "" };
        if let Some(heading) = heading {
            let blank = if text.is_empty() { "" } else { "\n" };
            text += &format!("{blank}{heading}:\n");
        }
        for item in group {
            let line = format!("{indent}{:<width$}  {}", item.name, description(item));
            text += line.trim_end();
            text.push('\n');
            for line in details(item) {
                text += &format!("{indent}{:width$}  {line}\n", "");
            }
        }
    }
    text
}

/// The first sentence of a text, on one line. It ends with its paragraph, or before what is not a word in lower case.
fn first_sentence(text: &str) -> String {
    let paragraph = text.trim().split("\n\n").next().unwrap_or_default();
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut ends = line.match_indices(". ").map(|(at, _)| at + 1);
    let end = ends.find(|end| !line[*end..].trim_start().starts_with(char::is_lowercase));
    line[..end.unwrap_or(line.len())].to_owned()
}

fn details(topic: Topic, item: &Item) -> Vec<String> {
    let bytes = |key: &str| {
        let x = item.facts.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        Bytes(x.round() as u64).to_string()
    };
    let words = |key: &str| match item.facts.get(key) {
        Some(Value::Array(words)) => {
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
        }
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    let lines = match topic {
        Topic::Workloads => vec![
            format!(
                "mean {}, p50 {}, p90 {}, p99 {}, max {}",
                bytes("mean_bytes"),
                bytes("p50_bytes"),
                bytes("p90_bytes"),
                bytes("p99_bytes"),
                bytes("max_bytes"),
            ),
            words("source"),
        ],
        Topic::Transports if !words("workload").is_empty() => {
            vec![format!("{}; for [workload.{}]", words("sources"), words("workload"))]
        }
        Topic::Transports if words("profiles").is_empty() => vec![words("sources")],
        Topic::Transports => {
            vec![format!("{}; profiles: {}", words("sources"), words("profiles"))]
        }
        Topic::Fabrics => vec![format!("keys: {}", words("keys"))],
        Topic::Scenarios => Vec::new(),
    };
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_have_their_own_description_and_not_that_of_a_case() {
        for item in items(Topic::Scenarios) {
            assert!(item.description.contains(' '), "{}: {:?}", item.name, item.description);
        }
    }

    #[test]
    fn every_listed_transport_and_fabric_can_be_run() {
        let scenario = |transport: &Item, fabric: &str| {
            let keys = match fabric {
                "single-switch" => "hosts = 4",
                "dumbbell" => "left = 2\nright = 2",
                "leaf-spine" => "leaves = 2\nhosts_per_leaf = 2\nspines = 2",
                "racks" | "rackless" => "tors = [2, 1, 1]\nuplinks = 1",
                "tor-circuits" => "tors = [3, 1]\ncircuit_ports = 1\ncircuits = [[0, 1]]",
                _ => "k = 4",
            };
            let kind = transport.facts.get("workload").and_then(Value::as_str);
            let kind = kind.and_then(|kind| study::KINDS.iter().find(|of| of.table == kind));
            let messages = "[workload]\narrivals = 'poisson'\nsizes = 'W1'\nload = 0.5";
            let workload = kind.map_or(messages, |kind| kind.example);
            let name = &transport.name;
            let text = format!(
                "[fabric]\ntopology = '{fabric}'\n{keys}\n[transport]\nname = '{name}'\n\
                 [fabric.switch]\ntrim = {}\npfabric = {}\n{workload}",
                name == "ndp" || name == "uet",
                name == "pfabric"
            );
            Scenario::parse("test.toml", &text, Path::new("."), &[], None).map(drop)
        };
        for transport in items(Topic::Transports) {
            for fabric in items(Topic::Fabrics) {
                let is_pod = fabric.name.starts_with("rack") || fabric.name == "tor-circuits";
                let is_planner = transport.name == "circuit-plan";
                let has_circuits = matches!(&*fabric.name, "rackless" | "tor-circuits");
                let is_for_messages = !transport.facts.contains_key("workload");
                // The central scheduler needs paths that do not change.
                let is_oracle = transport.name == "srpt-oracle";
                if (is_pod && !is_for_messages && !is_planner)
                    || (is_planner && !has_circuits)
                    || (is_oracle && has_circuits)
                {
                    continue;
                }
                let result = scenario(&transport, &fabric.name);
                assert!(result.is_ok(), "{} on {}: {result:?}", transport.name, fabric.name);
            }
        }
    }

    #[test]
    fn schemes_for_casts_are_listed_with_their_workload() {
        let text = to_text(Topic::Transports, &items(Topic::Transports));
        assert!(text.contains("NSDI 2022; for [workload.cast]"), "{text}");
    }

    #[test]
    fn scenarios_are_grouped_by_paper() {
        let text = to_text(Topic::Scenarios, &items(Topic::Scenarios));
        for heading in ["built in:\n  quickstart", "\n\npaper homa:\n", "\n\npaper other:\n"] {
            assert_eq!(text.matches(heading).count(), 1, "{heading}: {text}");
        }
    }

    #[test]
    fn scenarios_have_one_line_each() {
        let items = items(Topic::Scenarios);
        let groups = items.chunk_by(|a, b| a.facts["group"] == b.facts["group"]).count();
        // A heading for each group, and an empty line between two.
        let lines = items.len() + 2 * groups - 1;
        let text = to_text(Topic::Scenarios, &items);
        assert_eq!(text.lines().count(), lines, "{text}");
        let frisbee = "two images on 80 clients that start together, in four groups.\n";
        assert!(text.contains(frisbee), "{text}");
        let json = items.iter().find(|item| item.name == "frisbee-2003").unwrap();
        assert!(json.description.lines().count() > 1, "JSON has all of it");
    }

    #[test]
    fn a_sentence_ends_at_a_full_stop_before_another() {
        assert_eq!(
            first_sentence("A vs. b, at 1.5 Gbps,\non one line. `c` is left out."),
            "A vs. b, at 1.5 Gbps, on one line."
        );
        assert_eq!(first_sentence("\nA paragraph\n\nAnother one."), "A paragraph");
        assert_eq!(first_sentence(""), "");
    }

    #[test]
    fn published_means_are_listed() {
        let workloads = items(Topic::Workloads);
        let w3 = workloads.iter().find(|item| item.name == "W3").unwrap();
        let mean = w3.facts["mean_bytes"].as_f64().unwrap();
        assert!((mean - 2927.7).abs() < 30.0, "{mean}");
    }
}

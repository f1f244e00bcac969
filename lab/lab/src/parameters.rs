//! The parameters that follow from the fabric, as `--explain` and warnings show them.

use rackweave_scenario::derived::Parameter;

use crate::report::wrap::hanging;
use crate::scenario::{PointSpec, Scenario};

/// Points of one transport with the same parameters.
struct Group<'a> {
    /// The transports' names in results.
    name: String,
    parameters: &'a [Parameter],
    points: usize,
}

fn groups(points: &[PointSpec]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for point in points.iter().filter(|point| !point.parameters.is_empty()) {
        let mut labels = point.labels.clone();
        labels.dedup();
        let (parameters, name) = (&point.parameters[..], labels.join(", "));
        match groups.iter_mut().find(|g| g.name == name && g.parameters == parameters) {
            Some(group) => group.points += 1,
            None => groups.push(Group { name, parameters, points: 1 }),
        }
    }
    groups
}

/// A table of the parameters of all points: key, value, why; empty if there are none. No line is longer than `width`.
pub(crate) fn table(points: &[PointSpec], width: usize) -> String {
    let groups = groups(points);
    if groups.is_empty() {
        return String::new();
    }
    let all = groups.iter().flat_map(|group| group.parameters);
    let longest = |text: fn(&Parameter) -> &str| {
        let lengths = all.clone().map(|parameter| text(parameter).chars().count());
        lengths.max().unwrap_or(0)
    };
    let (keys, values) = (longest(|p| &p.key), longest(|p| &p.value));
    let mut lines = vec!["Parameters:".to_owned()];
    for group in &groups {
        let of = match group.points {
            n if n == points.len() => String::new(),
            n => format!(" ({n} of {} points)", points.len()),
        };
        lines.push(hanging("  ", &format!("{}{of}", group.name), width));
        for Parameter { key, value, default, why, .. } in group.parameters {
            let instead = match value == default {
                true => String::new(),
                false => format!("; by default {default}"),
            };
            let head = format!("    {key:keys$}  {value:values$}  ");
            lines.push(hanging(&head, &format!("{why}{instead}"), width));
        }
    }
    lines.join("\n") + "\n"
}

impl Scenario {
    /// The values that are far from what suits the fabric, each with its reason.
    #[must_use]
    pub fn unsuitable(&self) -> Vec<String> {
        let mut told: Vec<String> = Vec::new();
        let all = self.points.iter().flat_map(|point| &point.parameters);
        for warning in all.filter_map(|parameter| parameter.warning.as_ref()) {
            if !told.contains(warning) {
                told.push(warning.clone());
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::report::wrap::PLAIN_WIDTH;

    fn scenario(keys: &str) -> Scenario {
        let text = format!(
            "fabric.topology = 'leaf-spine'\nfabric.leaves = 4\nfabric.hosts_per_leaf = 12\n\
             fabric.spines = 3\nfabric.core_link = '40 Gbps'\n\
             workload = {{ arrivals = 'poisson', sizes = 'W4', load = 0.5, truncate = '1 MB' }}\n{keys}"
        );
        Scenario::parse("x.toml", &text, Path::new("."), &[], None).unwrap()
    }

    fn parameter(scenario: &Scenario, key: &str) -> Parameter {
        let mut all = scenario.points[0].parameters.iter();
        let found = all.find(|parameter| parameter.key == key);
        found.unwrap_or_else(|| panic!("no {key}")).clone()
    }

    #[test]
    fn the_threshold_of_marks_follows_from_each_links_rate() {
        let dctcp = scenario("transport.name = 'dctcp'");
        let threshold = parameter(&dctcp, "fabric.switch.ecn_threshold");
        assert_eq!(threshold.value, "11.2 KB at 10 Gbps, 44.7 KB at 40 Gbps");
        assert_eq!((threshold.value, None), (threshold.default, threshold.warning));
        // Homa does not react to marks.
        let homa = scenario("transport.name = 'homa'");
        assert!(homa.points[0].parameters.iter().all(|p| !p.key.contains("ecn_threshold")));
        // UET's is half a product; four packets are more here.
        let uet = scenario("transport.name = 'uet'\nfabric.switch.trim = true");
        let uet = parameter(&uet, "fabric.switch.ecn_threshold");
        assert_eq!(uet.value, "4 packets at 10 Gbps, 17.9 KB at 40 Gbps");
    }

    #[test]
    fn what_is_set_far_off_is_told_and_what_is_near_is_not() {
        let with = |keys: &str| scenario(keys).unsuitable();
        let dctcp = "transport.name = 'dctcp'\n";
        assert_eq!(with(dctcp), [""; 0]);
        for near in ["2 packets", "10 packets", "20 packets"] {
            let keys = format!("{dctcp}fabric.switch.ecn_threshold = '{near}'");
            assert_eq!(with(&keys), [""; 0], "{near}");
        }
        let told = with(&format!("{dctcp}fabric.switch.ecn_threshold = '65 packets'"));
        let [told] = &told[..] else { panic!("{told:?}") };
        assert!(told.contains("= 65 packets is 9.0 times") && told.contains("11.2 KB"), "{told}");
        let told = with(&format!("{dctcp}fabric.switch.ecn_threshold = '1538 B'"));
        assert!(told[0].contains("7.3 times below"), "{told:?}");
        // Without a transport that reacts to marks the threshold does not matter.
        assert_eq!(
            with("transport.name = 'homa'\nfabric.switch.ecn_threshold = '65 packets'"),
            [""; 0]
        );
        for (keys, key, much) in [
            ("dctcp', min_rto = '200 ms", "transport.dctcp.min_rto", "200 times"),
            ("dctcp', min_rto = '50 us", "transport.dctcp.min_rto", "20 times below"),
            (
                "dctcp', initial_window = 64, label = 'd",
                "transport.dctcp.initial_window",
                "6.4 times",
            ),
            ("homa', unscheduled = '60 KB", "transport.homa.unscheduled", "times the value"),
            ("sird', global_bucket = 9, label = 's", "transport.sird.global_bucket", "6.0 times"),
            ("polo', first_window = 100, label = 'p", "transport.polo.first_window", "8.3 times"),
            (
                "phost', free_tokens = 1, label = 'p",
                "transport.phost.free_tokens",
                "8.0 times below",
            ),
            ("swift', base_target = '100 us", "transport.swift.base_target", "times the value"),
            ("swift', base_target = '1 us", "transport.swift.base_target", "times below"),
            (
                "dcpim', free_packets = 60, label = 'd",
                "transport.dcpim.free_packets",
                "times the value",
            ),
        ] {
            let told = with(&format!("transport = {{ name = '{keys}' }}"));
            let found = told.iter().find(|told| told.starts_with(key));
            assert!(found.is_some_and(|told| told.contains(much)), "{keys}: {told:?}");
        }
        let trims = "fabric.switch.trim = true\n";
        let told = with(&format!("{trims}transport = {{ name = 'ndp', initial_window = 100 }}"));
        assert!(told[0].contains("5.") && told[0].contains("initial_window"), "{told:?}");
        let told = with(&format!("{trims}transport = {{ name = 'uet', window = '300 KB' }}"));
        assert!(told[0].starts_with("transport.uet.window"), "{told:?}");
        let own = "fabric.switch.pfabric = true\n";
        assert_eq!(with(&format!("{own}transport.name = 'pfabric'")), [""; 0]);
        let told =
            with(&format!("{own}fabric.switch.buffer = '500 KB'\ntransport.name = 'pfabric'"));
        assert!(told[0].starts_with("fabric.switch.buffer"), "{told:?}");
    }

    #[test]
    fn a_table_names_each_transport_once() {
        let text = table(
            &scenario(
                "transport = { name = 'homa', dctcp.initial_window = 20 }\nfabric.switch.ecn_threshold = '8 packets'\n\
                 sweep = { 'transport.name' = ['homa', 'dctcp'], 'workload.load' = [0.3, 0.5] }",
            )
            .points,
            PLAIN_WIDTH,
        );
        assert_eq!(text.matches("(2 of 4 points)").count(), 2, "{text}");
        assert!(text.contains("8 packets"), "{text}");
        assert!(text.contains("20 packets"), "{text}");
        assert!(text.contains("set by the scenario; by default 10 packets"), "{text}");
    }
}

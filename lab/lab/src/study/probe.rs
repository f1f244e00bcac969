//! A kind of workload that only tests have: what a new kind needs, and that a line of the registry is all that is outside its folder.

use rackweave_core::{HostId, Span, Time};
use rackweave_scenario::de::{self, DeError};
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Chosen, keys, schemes};
use rackweave_scenario::problem::Problem;
use rackweave_scenario::tree::{Origin, Table};
use rackweave_scenario::values::Unit;
use rackweave_sim::result::{End, MessageRecord, Outcome};
use serde::{Deserialize, Serialize};

use super::{Configured, Done, Ground, Kind, Setting, StudyError, StudySummary, unknown_scheme};
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::results::columns::Kind::{Count, Real};
use crate::results::columns::{Column, MICROS, PLAIN, Shown, reported, shown};
use crate::study::setting::computed;
use crate::tables::{Sink, rows_of};

/// Echoes from one host, the first after `gap`, the second after twice that, and so on.
#[derive(Clone, Debug)]
pub struct ProbeConfig {
    echoes: u32,
    gap: Span,
}

/// The object `probe` of a point in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProbeSummary {
    mean_us: f64,
    echoes: Vec<Echo>,
}

/// An echo.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Echo {
    number: u64,
    rtt_us: f64,
}

/// The keys of `[workload.probe]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ProbeKeys {
    echoes: u32,
}

impl Default for ProbeKeys {
    fn default() -> Self {
        Self { echoes: 3 }
    }
}

schemes! {
    /// The names of the schemes.
    enum Name {
        Line: [Keys] = About {
            name: "probe-line",
            description: "echoes, each later than the one before",
            profiles: &[],
            sources: &["RFC 862"],
        };
    }
    unknown: |text| unknown_scheme::<ProbeConfig>(text, "no scheme for probes")
}

keys! {
    /// The keys of the scheme.
    struct Keys {
        gap: Unit<Span>,
    }
}

impl Keys {
    fn read(_: Name, table: &Table, origin: Origin) -> Result<Self, DeError> {
        de::from_table(table, origin)
    }
}

/// Results of a kind, for tests of what depends on there being one.
pub(crate) fn summary() -> StudySummary {
    StudySummary::Probe(ProbeSummary { mean_us: 1.0, echoes: Vec::new() })
}

const PROBE: &[Column<ProbeSummary>] =
    &[reported(Shown { name: "mean echo", ..MICROS }, |probe| probe.mean_us.into())];

const ECHO: &[Column<Echo>] = &[
    shown("echo", Count, Shown { name: "echo", ..PLAIN }, |echo| echo.number.into()),
    shown("rtt_us", Real, Shown { name: "after", ..MICROS }, |echo| echo.rtt_us.into()),
];

impl Kind for ProbeConfig {
    type Keys = ProbeKeys;
    type Scheme = Name;

    const EXAMPLE: &'static str = "[workload.probe]";

    fn resolve(keys: &ProbeKeys, scheme: &Chosen<Name>, _: &Ground<'_>) -> Result<Self, Problem> {
        let gap = scheme.keys.gap.map_or(Span::from_us(1), |gap| gap.0);
        if keys.echoes == 0 {
            return Err(Problem::new("workload.probe.echoes", "there is at least one echo"));
        }
        Ok(Self { echoes: keys.echoes, gap })
    }

    fn tables<S: Sink>(points: &[PointResult], sink: &mut S) -> Result<(), S::Error> {
        rows_of::<Self, _, _>("probe_echoes", points, sink, ECHO, |probe| &probe.echoes)
    }

    fn section(section: &mut KindSection<'_, Self>) {
        section.head("Probes", "An echo takes as long as all gaps before it.");
        section.table(PROBE);
        section.each("Each echo", ECHO, |probe| &probe.echoes);
    }
}

impl Configured for ProbeConfig {
    fn run(&self, _: &Setting<'_>) -> Result<Done, StudyError> {
        let rtts: Vec<Span> = (1..=u64::from(self.echoes)).map(|nth| self.gap * nth).collect();
        let message = |rtt: &Span| MessageRecord {
            stream: 0,
            src: HostId(0),
            dst: HostId(1),
            bytes: 64,
            start: Time::ZERO,
            ideal: self.gap,
            outcome: Outcome::Completed(Time::ZERO + *rtt),
        };
        let result = computed(rtts.iter().map(message).collect(), End::AllDone);
        let echo = |(number, rtt): (u64, &Span)| Echo { number, rtt_us: rtt.as_us_f64() };
        let mean_us = rtts.iter().map(|rtt| rtt.as_us_f64()).sum::<f64>() / rtts.len() as f64;
        let summary = ProbeSummary { mean_us, echoes: (0..).zip(&rtts).map(echo).collect() };
        let summary = StudySummary::Probe(summary);
        Ok(Done { result, summary, detail: None, capture: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::list::{Topic, items};
    use crate::null::Nullable;
    use crate::output::OutputDir;
    use crate::results::PointSummary;
    use crate::run::Batch;
    use crate::scenario::Scenario;

    const PROBES: &str = "fabric = { topology = 'single-switch', hosts = 2 }
        transport = { name = 'probe-line' }
        [workload.probe]
        [sweep]
        transport.gap = ['1 us', '4 us']";

    fn read(sets: &[&str]) -> Result<Scenario, crate::ScenarioError> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Scenario::parse("probes.toml", PROBES, Path::new("."), &sets, None)
    }

    #[test]
    fn a_kind_is_a_folder_and_a_line_of_the_registry() {
        let scenario = read(&[]).unwrap();
        assert!(
            scenario.resolved.contains("[workload.probe]\nechoes = 3"),
            "{}",
            scenario.resolved
        );
        assert!(scenario.explain().contains("measured by nodes"));
        let results = Batch::new(scenario.clone()).run(Some(1)).unwrap();

        let json: serde_json::Value = serde_json::from_str(&results.to_json()).unwrap();
        assert_eq!(json["points"][1]["probe"]["mean_us"], 8.0);
        assert_eq!(json["points"][1]["messages"]["completed"], 3);
        assert_eq!(json["points"][1]["label"], "probe-line");
        let keys: Vec<&String> = json["points"][0].as_object().unwrap().keys().collect();
        let at = |key: &str| keys.iter().position(|of| *of == key).unwrap();
        assert_eq!(at("verified_messages") + 1, at("probe"), "{keys:?}");
        let again = PointSummary::deserialize(Nullable(&json["points"][1])).unwrap();
        assert_eq!(again.of::<ProbeConfig>().unwrap().echoes[2].rtt_us, 12.0);
        let mut wrong = json["points"][1].clone();
        wrong["probe"].as_object_mut().unwrap().remove("mean_us");
        let error = PointSummary::deserialize(Nullable(&wrong)).unwrap_err();
        assert!(error.to_string().contains("missing field `mean_us`"), "{error}");

        let folder = tempfile::tempdir().unwrap();
        let out = OutputDir::prepare(folder.path()).unwrap();
        out.write(&scenario, &results, "rackweave run probes.toml").unwrap();
        let csv = std::fs::read_to_string(folder.path().join("probe_echoes.csv")).unwrap();
        let last = csv.lines().last().unwrap();
        assert_eq!(last, "1,probe-line,probe-line,4 us,2,12", "{csv}");
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("<h2>Probes</h2>") && page.contains("mean echo"), "{page}");
        // What an earlier run of the kind has written does not remain next to another one's.
        out.remove_optional(&[]);
        assert!(!folder.path().join("probe_echoes.csv").exists());
    }

    #[test]
    fn its_scheme_is_listed_and_its_keys_are_checked() {
        let listed = items(Topic::Transports);
        let own = listed.iter().find(|item| item.name == "probe-line").unwrap();
        assert_eq!(own.facts["workload"], "probe");
        for (set, reason) in [
            ("workload.probe.echoes=0", "there is at least one echo"),
            ("workload.probe.sizes='1 KB'", "unknown key `sizes`"),
            ("workload.load=0.5", "`load` has no meaning with [workload.probe]"),
            ("transport.name=homa", "and no [workload.probe]"),
            ("measure.messages=4", "`messages` has no meaning with [workload.probe]"),
            ("fabric={ topology = 'racks', tors = [2], uplinks = 1 }", "not on a pod"),
        ] {
            let error = read(&["transport={ name = 'probe-line' }", set]).unwrap_err();
            assert!(error.to_string().contains(reason), "{set}: {error}");
        }
    }
}

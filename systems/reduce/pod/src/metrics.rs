//! The pod in Prometheus' text format.

use std::fmt::Write as _;

use rackweave_rackless::controller::{Event, Phase, Standing};

use crate::core::Core;

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counts of events since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    registered: u64,
    granted: u64,
    late: u64,
    ended: u64,
    dropped: u64,
    moves: u64,
    refused: u64,
}

impl Counts {
    pub(crate) const fn add(&mut self, event: &Event) {
        match event {
            Event::Registered { .. } => self.registered += 1,
            Event::Granted { is_late, .. } => {
                self.granted += 1;
                self.late += *is_late as u64;
            }
            Event::Ended { .. } => self.ended += 1,
            Event::Dropped { .. } => self.dropped += 1,
            Event::Moved { .. } => self.moves += 1,
            Event::NotMoved { .. } | Event::AgentRefused { .. } => self.refused += 1,
            _ => {}
        }
    }
}

pub(crate) fn text(core: &Core) -> String {
    let (controller, now, counts) = (&core.controller, core.now(), &core.counts);
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        let _ = writeln!(out, "# HELP rackweave_pod_{name} {help}");
        let _ = writeln!(out, "# TYPE rackweave_pod_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(out, "rackweave_pod_{name}{labels} {value}");
        }
    };
    let plain = |value: u64| vec![(String::new(), value)];
    let is_active = controller.standing(now) == Standing::Active;
    family("active", "gauge", "1: this controller commands.", &plain(is_active.into()));
    family("term", "gauge", "Its term.", &plain(controller.head().term));
    let is_stored = core.problem.is_none();
    family("stored", "gauge", "0: the database fails.", &plain(is_stored.into()));
    let phases =
        [Phase::Registered, Phase::Map, Phase::Shuffle, Phase::Ready, Phase::Upload, Phase::Reduce];
    let jobs = phases.map(|phase| {
        let count = controller.jobs().filter(|job| job.phase() == phase).count();
        (format!("{{phase=\"{}\"}}", phase.name()), count as u64)
    });
    family("jobs", "gauge", "Jobs by phase.", &jobs);
    let up = controller.agents().filter(|(_, agent)| agent.is_up() && agent.problem().is_none());
    family("agents", "gauge", "Agents that report.", &plain(up.count() as u64));
    for (name, help, value) in [
        ("registered_total", "Jobs registered.", counts.registered),
        ("granted_total", "Uploads granted.", counts.granted),
        ("granted_late_total", "Uploads granted without their circuits.", counts.late),
        ("ended_total", "Jobs that ended.", counts.ended),
        ("dropped_total", "Jobs given up.", counts.dropped),
        ("moves_total", "Changes of circuits.", counts.moves),
        ("refused_total", "Changes and reports refused.", counts.refused),
    ] {
        family(name, "counter", help, &plain(value));
    }
    out
}

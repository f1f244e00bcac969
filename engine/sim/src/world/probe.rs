//! Captures, statistics of links, and the result of a run.

use rackweave_core::Time;
use rackweave_switch::net::{LinkStats, MeterConfig};

use super::{World, wake};
use crate::config::TrafficPlace;
use crate::model::Model;
use crate::result::{End, RunResult, Waiting};

/// What a run records besides messages.
#[derive(Debug, Default)]
pub(super) struct Probe {
    /// When the statistics of ports started; `None` if they have not.
    ports_since: Option<Time>,
    /// Names of the captured links.
    names: Vec<String>,
}

impl<M: Model> World<'_, M> {
    pub(super) fn start_probes(&mut self) {
        for port in &self.measure.capture {
            for link in port.links(self.net.fabric()) {
                self.net.tap(link);
                self.probe.names.push(self.net.fabric().link_name(link));
            }
        }
        self.start_meters();
        self.net.limit_captures(Time::ZERO, self.measure.capture_limit);
        self.net.wake_at(Time::ZERO + self.measure.warmup, wake::MEASURE);
        if let Some(from) = self.measure.ports_from {
            self.probe.ports_since = Some(Time::ZERO + from);
            self.net.measure_from(Time::ZERO + from);
        }
    }

    fn start_meters(&mut self) {
        for traffic in &self.measure.traffic {
            let (links, into) = match &traffic.at {
                TrafficPlace::Into(switch) => (self.net.links_into(*switch), Some(*switch)),
                TrafficPlace::Ports(ports) => {
                    let fabric = self.net.fabric();
                    (ports.iter().flat_map(|port| port.links(fabric)).collect(), None)
                }
            };
            let (from, interval) = (traffic.from.clone(), traffic.interval);
            self.net.add_meter(MeterConfig { links, into, from, interval });
        }
    }

    /// Starts the measurement of messages, at the end of the warm-up.
    pub(super) fn on_measure(&mut self) {
        self.net.uncount_common_event();
        if self.measure.ports_from.is_none() {
            self.probe.ports_since = Some(self.net.now());
            self.net.measure_now(&mut self.hosts);
        }
    }

    /// All links, in the fabric's order: link `h` is the uplink of host `h`.
    ///
    /// Transfers count with their bytes; they have no packets, and take part in the utilisation by their mean over the whole run.
    pub fn link_stats(&mut self) -> Vec<LinkStats> {
        let mut stats = self.net.link_stats(&mut self.hosts);
        let seconds = self.net.now().since(Time::ZERO).as_secs_f64();
        if let Some(fluid) = self.fluid()
            && seconds > 0.0
        {
            let links = self.net.fabric().links();
            for ((stats, link), bytes) in stats.iter_mut().zip(links).zip(fluid.link_bytes()) {
                stats.bytes += bytes;
                stats.utilisation += *bytes as f64 * 8.0 / (link.rate.0 as f64 * seconds);
            }
        }
        stats
    }

    /// Starts the statistics of links at this time, or now if it has passed.
    pub fn measure_from(&mut self, at: Time) {
        self.net.measure_from(at);
    }

    /// Counters of the network since the run started.
    #[must_use]
    pub const fn counters(&self) -> &rackweave_switch::net::Counters {
        self.net.counters()
    }

    /// The fabric on which the world was built.
    #[must_use]
    pub fn fabric(&self) -> &crate::Fabric {
        self.net.fabric()
    }

    /// Starts the statistics of links if the run has ended before.
    pub(super) fn start_late_statistics(&mut self) {
        let now = self.net.now();
        if self.probe.ports_since.is_none_or(|since| since > now) {
            self.net.measure_now(&mut self.hosts);
        }
    }

    /// The result of the run so far.
    #[must_use]
    pub fn report(&mut self, end: End) -> RunResult<M::Header> {
        self.start_late_statistics();
        let links = self.link_stats();
        self.report_with(end, links)
    }

    /// The measured messages that are unfinished and have waited longest.
    pub(super) fn waiting(&self) -> Vec<Waiting> {
        let mut waiting = self.apps.waiting();
        for message in &mut waiting {
            message.stream += self.first_stream;
        }
        waiting
    }

    /// As [`World::report`], with the statistics of all links.
    pub(super) fn report_with(&mut self, end: End, links: Vec<LinkStats>) -> RunResult<M::Header> {
        let now = self.net.now();
        let since = (Time::ZERO + self.measure.warmup).min(now);
        let until = if end == End::AllDone && self.first_stream == 0 {
            self.apps.last_end().map_or(since, |at| at.max(since))
        } else {
            now
        };
        let n_hosts = self.hosts.all.len();
        let ports = links.get(n_hosts..).unwrap_or_default();
        RunResult {
            end,
            ended_at: now,
            measured: until.since(since),
            messages: self.records(),
            ranks: self.apps.ranks(),
            delivered_bytes: self.apps.delivered_bytes(),
            delivered_by_sender: self.apps.delivered_by_sender(),
            goodput: self.apps.timeline.result(),
            round_trips: self.round_trips(),
            recovery: self.recovery(),
            mean_queue_bytes: ports.iter().map(|port| port.mean_queue_bytes).sum::<f64>()
                / ports.len().max(1) as f64,
            max_queue_bytes: ports.iter().map(|port| port.max_queue_bytes).max().unwrap_or(0),
            links,
            counters: *self.net.counters(),
            dropped_before: Some(self.net.dropped_before()),
            refused: self.apps.refused,
            queue_series: self.net.series().to_vec(),
            traffic: self.net.metered(),
            circuits: self.net.circuits().to_vec(),
            capture_names: std::mem::take(&mut self.probe.names),
            capture: self.net.take_captures(),
            waiting: self.waiting(),
            backlog: self.backlog,
            deadlock: self.net.deadlock().map_or_else(Vec::new, |deadlock| {
                deadlock.links.iter().map(|link| self.net.fabric().link_name(*link)).collect()
            }),
            peak_packets: match &self.apps.windows {
                Some(windows) => windows.peak_packets,
                None => self.net.peak_packets(),
            },
            verified_messages: self.apps.verified(),
        }
    }
}

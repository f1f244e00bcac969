//! A workload in numbers, and how long a run of it takes.

use rackweave_core::Span;
use rackweave_scenario::path::Path;
use rackweave_sim::Fabric;
use rackweave_sim::config::{MeasureConfig, StreamConfig, Topology};
use rackweave_transport::Part;
use rackweave_workload::{Generator, Pattern};

use crate::estimate::Load;
use crate::offered::surroundings;
use crate::scenario::PointSpec;

/// Estimates when the last measured message of an open loop ends. Other loads end when their messages have started, as far as is
/// known here.
pub(super) fn end_of(
    point: &PointSpec,
    stream: &StreamConfig,
    volume: &Volume,
    background: &[(&StreamConfig, Volume)],
    last_start: Span,
) -> Span {
    let (Pattern::OpenLoop { sizes, .. }, Some(rate)) =
        (&stream.workload.pattern, volume.per_second)
    else {
        return last_start;
    };
    let at = surroundings(stream, &point.fabric);
    let one_way = |size, part| stream.transport.wire_bytes_of(size, &at(part)).iter().sum::<f64>();
    let wire_bytes = |size: u64| {
        let response = stream.workload.exchange.response_bytes(size);
        one_way(size, Part::Request) + response.map_or(0.0, |size| one_way(size, Part::Response))
    };
    let hosts = u64::from(point.fabric.hosts());
    let receivers = stream.workload.receivers.as_ref();
    let receivers = receivers.map_or(hosts, |range| u64::from(range.end - range.start)).max(1);
    let each = |links: u64| (links, rate / links as f64);
    let others =
        background.iter().filter_map(|(_, volume)| Some(volume.per_second? * volume.mean_bytes));
    let measure = &point.config.measure;
    let generator = stream.mean_gap(point.fabric.host_rate()).and_then(|gap| {
        Generator::new(
            &stream.workload,
            point.fabric.hosts(),
            gap,
            point.config.seed,
            point.config.run,
            0,
        )
    });
    // What cannot be generated cannot be run.
    let Ok(generator) = generator else { return last_start };
    let load = Load {
        sizes,
        wire_bytes: &wire_bytes,
        links: [each(volume.senders), each(receivers)],
        generator,
        hosts: point.fabric.hosts(),
        messages: (measure.messages < u64::MAX).then_some(measure.messages),
        link_bps: share_of_a_host(&point.fabric),
        taken_bps: others.sum::<f64>() * 8.0 / hosts as f64,
        warmup: measure.warmup,
        last_start,
        is_stopped: measure.stop_load,
        stop: volume.stop,
        time_limit: measure.time_limit,
    };
    load.end()
}

/// Returns what a host has of the narrowest tier of links, if all hosts send to each other alike.
fn share_of_a_host(fabric: &Fabric) -> f64 {
    let (host, hosts) = (fabric.host_rate().0 as f64, f64::from(fabric.hosts()));
    let core = match fabric.config().topology {
        Topology::LeafSpine { hosts_per_leaf, spines, core_link, .. } => {
            let local = f64::from(hosts_per_leaf);
            Some((f64::from(spines) * core_link.0 as f64 / local, local))
        }
        Topology::FatTree { k, aggregation_link, core_link, .. } => {
            Some((aggregation_link.0.min(core_link.0) as f64, f64::from(k) / 2.0))
        }
        _ => None,
    };
    let across = |(bps, local): (f64, f64)| bps * (hosts - 1.0) / (hosts - local).max(1.0);
    core.map_or(host, |core| across(core).min(host))
}

/// Returns the links between two hosts, on average over all pairs.
pub(super) fn mean_links(fabric: &Fabric, longest: &Path) -> f64 {
    let (hosts, longest) = (f64::from(fabric.hosts()), longest.hops() as f64);
    // The hosts below a switch, and those below the switches that it shares with others without the core.
    let (switch, pod) = match fabric.config().topology {
        Topology::LeafSpine { hosts_per_leaf, .. } => {
            (f64::from(hosts_per_leaf), f64::from(hosts_per_leaf))
        }
        Topology::FatTree { k, .. } => (f64::from(k) / 2.0, f64::from(k) * f64::from(k) / 4.0),
        _ => return longest,
    };
    let below_switch = 2.0 * (switch - 1.0);
    let in_pod = 4.0 * (pod - switch);
    (below_switch + in_pod + longest * (hosts - pod)) / (hosts - 1.0)
}

/// A workload in numbers, from which the cost of a run is estimated.
pub(crate) struct Volume {
    pub(super) mean_bytes: f64,
    /// Those in the other direction included.
    pub(super) packets_per_message: f64,
    pub(super) senders: u64,
    /// When the workload starts no more messages.
    pub(super) stop: Span,
    pub(super) per_second: Option<f64>,
    pub(super) messages: Option<u64>,
}

impl Default for Volume {
    fn default() -> Self {
        Self {
            mean_bytes: 0.0,
            packets_per_message: 0.0,
            senders: 0,
            stop: Span::MAX,
            per_second: None,
            messages: None,
        }
    }
}

impl Volume {
    /// Of this number of messages, with their mean length and the packets of each.
    pub(crate) fn of_messages(messages: u64, mean_bytes: f64, packets_per_message: f64) -> Self {
        let messages = Some(messages);
        Self { mean_bytes, packets_per_message, senders: 1, messages, ..Self::default() }
    }

    /// Of what a point measures: its kind of workload, or a stream.
    pub(super) fn measured(point: &PointSpec, stream: Option<&StreamConfig>) -> Self {
        match (point.study.kind(), stream) {
            (Some(kind), _) => kind.volume(),
            (None, Some(stream)) => Self::of(stream, &point.fabric),
            (None, None) => Self::default(),
        }
    }

    /// Returns how many of these messages are measured, if that is known, and when the last of them may start.
    pub(super) fn messages_of(&self, measure: &MeasureConfig) -> (Option<u64>, Span) {
        let asked = (measure.messages < u64::MAX).then_some(measure.messages);
        let until =
            measure.duration.map_or(measure.time_limit, |duration| measure.warmup + duration);
        let arrivals_end = until.min(self.stop);
        let measured_time = arrivals_end.saturating_sub(measure.warmup);
        let in_time = self.per_second.map(|rate| (rate * measured_time.as_secs_f64()) as u64);
        let messages = [asked, self.messages, in_time].into_iter().flatten().min();
        (messages, arrivals_end)
    }

    pub(super) fn of(stream: &StreamConfig, fabric: &Fabric) -> Self {
        let hosts = u64::from(fabric.hosts());
        let workload = &stream.workload;
        let number = |range: &Option<std::ops::Range<u32>>| {
            range.as_ref().map_or(hosts, |range| u64::from(range.end.saturating_sub(range.start)))
        };
        let senders = number(&workload.senders).max(1);
        let at = surroundings(stream, fabric);
        let packets = |bytes: u64| {
            let one_way = |bytes, part| stream.transport.packets_of(bytes, &at(part));
            let response = workload.exchange.response_bytes(bytes);
            one_way(bytes, Part::Request)
                + response.map_or(0.0, |bytes| one_way(bytes, Part::Response))
        };
        let (mut mean_bytes, mut packets_per_message) = (0.0, 0.0);
        if let Some(sizes) = workload.pattern.sizes() {
            mean_bytes = sizes.mean();
            packets_per_message = sizes.mean_of(packets);
        }
        let (mut per_second, mut messages) = (None, None);
        match &workload.pattern {
            Pattern::OpenLoop { .. } => {
                let gap = stream.mean_gap(fabric.host_rate()).ok().flatten();
                per_second = gap.map(|gap| senders as f64 / gap.as_secs_f64());
            }
            Pattern::ClosedLoop { .. } => {}
            Pattern::Periodic { rate, .. } => {
                per_second = Some(senders as f64 * rate.0 as f64 / 8.0 / mean_bytes);
            }
            Pattern::Incast { senders: given, messages_per_sender, .. } => {
                let senders = given.map_or(senders.min(hosts - 1), u64::from);
                messages = Some(senders.saturating_mul(*messages_per_sender));
            }
            Pattern::RecurringIncast { senders: given, messages_per_sender, every, .. } => {
                let senders = given.map_or(senders.min(hosts - 1), u64::from);
                let messages = senders.saturating_mul(*messages_per_sender);
                per_second = Some(messages as f64 / every.as_secs_f64());
            }
            Pattern::Permutation { messages_per_host, .. } => {
                messages = Some(senders.saturating_mul(*messages_per_host));
            }
            Pattern::AllToAll { messages_per_pair, .. } => {
                let pairs = senders.saturating_mul(number(&workload.receivers).saturating_sub(1));
                messages = Some(pairs.saturating_mul(*messages_per_pair));
            }
            Pattern::Trace(trace) => {
                let entries = trace.entries();
                let count = entries.len().max(1) as f64;
                mean_bytes = entries.iter().map(|entry| entry.bytes as f64).sum::<f64>() / count;
                packets_per_message = entries.iter().map(|e| packets(e.bytes)).sum::<f64>() / count;
                messages = Some(entries.len() as u64);
            }
            Pattern::Collective(collective) => {
                let schedule = collective.schedule();
                let count = schedule.sends().max(1) as f64;
                mean_bytes = schedule.bytes() as f64 / count;
                let sizes = schedule.sizes().into_iter();
                let all = sizes.map(|(bytes, number)| packets(bytes) * number as f64);
                packets_per_message = all.sum::<f64>() / count;
                messages = Some(collective.messages());
            }
        }
        let stop = workload.stop;
        Self { mean_bytes, packets_per_message, senders, stop, per_second, messages }
    }
}

//! What a scenario means and costs, without running it.

mod text;
mod volume;

use rackweave_core::{Bytes, Span, Time};
use rackweave_scenario::derived::Parameter;
use rackweave_scenario::path::Path;
use rackweave_sim::Fabric;
use rackweave_sim::config::{BufferConfig, StreamConfig, SwitchConfig, Topology};
use rackweave_transport::TransportConfig;
use rackweave_workload::Pattern;
use serde::Serialize;

pub(crate) use self::volume::Volume;
use self::volume::{end_of, mean_links};
use crate::faults;
use crate::offered::Offered;
use crate::report::number::{bytes, micros, short};
use crate::report::wrap::{PLAIN_WIDTH, hanging};
use crate::results::collective::{collective_of, ideal_time};
use crate::results::seeds::SEED;
use crate::results::{FEW_ROUNDS, LENGTHENS};
use crate::scenario::{PointSpec, Scenario};
use crate::study::Study;

/// Packet-hops that a core simulates in a second, measured with Homa, DCTCP and TCP: 7 to 12 million.
const HOPS_PER_CPU_SECOND: f64 = 9e6;
/// What a message costs in addition to its packets, with TCP and with other transports: it counts where messages are
/// short. Measured with W3 on a fat-tree of 128 hosts.
const CPU_SECONDS_PER_TCP_MESSAGE: f64 = 12e-6;
const CPU_SECONDS_PER_MESSAGE: f64 = 6e-6;
/// A run that is this many times as long as its measured messages take to start gets a warning.
const LONG_DRAIN: f64 = 3.0;
/// Fabrics with more hosts than this leave the processor's caches, and run at about half the speed.
const CACHED_HOSTS: u64 = 2000;
/// Bytes of memory of a host with its links and transports: measured at 16,000 hosts.
const BYTES_PER_HOST: f64 = 6e3;
/// Bytes of memory of a measured message, while its percentiles are worked out: measured.
const BYTES_PER_MESSAGE: f64 = 270.0;
/// The number of seeds for which a point is estimated: an estimate takes up to half a second.
const ESTIMATED_SEEDS: usize = 4;
/// Bytes of memory of the command itself.
const BYTES_PER_PROCESS: f64 = 8e6;

/// A point in numbers that follow from its scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The swept keys and their values.
    pub set: serde_json::Map<String, serde_json::Value>,
    /// Number of hosts.
    pub hosts: u64,
    /// Number of switches.
    pub switches: u64,
    /// Links, both directions of one counted once.
    pub links: u64,
    /// Rate of a host's link.
    pub host_link_gbps: f64,
    /// Rate of a link between switches, if all are alike and there are some.
    pub core_link_gbps: Option<f64>,
    /// What the hosts of a switch can send together, as a multiple of what its links upwards carry.
    pub oversubscription: Option<f64>,
    /// Buffers and rules of the switches, in words.
    pub switch_rules: String,
    /// Links between the hosts farthest apart.
    pub longest_path_links: u64,
    /// A full packet there and the shortest packet back, over the longest path, idle.
    pub base_rtt_us: f64,
    /// What a host's link carries in that time.
    pub bdp_bytes: u32,
    /// The measured transport.
    pub transport: String,
    /// Mean message size.
    pub mean_message_bytes: f64,
    /// Messages that each sender starts in a second, if the workload says.
    pub messages_per_s_per_host: Option<f64>,
    /// The same for all senders.
    pub messages_per_s: Option<f64>,
    /// Messages that are measured.
    pub messages: Option<u64>,
    /// Simulated time until they have started, warm-up included.
    pub started_us: Option<f64>,
    /// Simulated time until they have ended: an estimate.
    pub simulated_us: Option<f64>,
    /// The collective, in words: what it sends, and how long that takes without contention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collective: Option<String>,
    /// The background streams, in words.
    pub background: Vec<String>,
    /// The load that is offered to each tier of links; `None` if no stream has a rate.
    pub offered: Option<Offered>,
    /// The parameters that follow from the fabric or that the transports' papers name.
    pub parameters: Vec<Parameter>,
    /// The faults, in words: what fails, when, and whom it cuts off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
    /// Whether faults lose packets, which the estimate does not know.
    #[serde(skip)]
    loses_packets: bool,
    /// Why the run will take longer than one would think.
    pub warning: Option<String>,
    /// The second half of that warning.
    #[serde(skip)]
    drain: Option<String>,
    /// Why the run uses one thread whatever `--threads` says; `None` if it can use several.
    pub one_thread: Option<String>,
    /// Packets times links: an estimate.
    pub packet_hops: Option<f64>,
    /// Memory: an estimate.
    pub memory_bytes: Option<f64>,
    /// Time on one core: an estimate.
    pub cpu_s: Option<f64>,
}

impl Explanation {
    /// Of several points. Where points differ in the seed only, the first few are estimated; the others get their mean.
    #[must_use]
    pub fn of_all(points: &[PointSpec]) -> Vec<Self> {
        let without_seed = |point: &PointSpec| {
            let others = point.set.iter().filter(|(key, _)| key != SEED);
            others.map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
        };
        let mut all: Vec<Self> = Vec::with_capacity(points.len());
        let mut groups: Vec<(_, Vec<usize>)> = Vec::new();
        for point in points {
            let key = without_seed(point);
            let group = match groups.iter().position(|(known, _)| *known == key) {
                Some(known) => &mut groups[known].1,
                None => &mut groups.push_mut((key, Vec::new())).1,
            };
            let explained = if group.len() < ESTIMATED_SEEDS {
                group.push(all.len());
                Self::of(point)
            } else {
                let estimated: Vec<&Self> = group.iter().map(|&at| &all[at]).collect();
                Self { set: point.set.iter().cloned().collect(), ..Self::mean_of(&estimated) }
            };
            all.push(explained);
        }
        all
    }

    /// The first of points that differ in the seed only, with the mean of their estimates.
    fn mean_of(points: &[&Self]) -> Self {
        let mean = |of: fn(&Self) -> Option<f64>| {
            let all: Option<f64> = points.iter().map(|point| of(point)).sum();
            all.map(|sum| sum / points.len() as f64)
        };
        Self {
            simulated_us: mean(|point| point.simulated_us),
            packet_hops: mean(|point| point.packet_hops),
            cpu_s: mean(|point| point.cpu_s),
            ..points[0].clone()
        }
    }

    /// Of one point.
    #[must_use]
    pub fn of(point: &PointSpec) -> Self {
        let fabric = &point.config.fabric;
        let path = Path::longest(&point.fabric);
        let hosts = u64::from(fabric.topology.hosts());
        // The stream of the measured messages; a kind of workload is none.
        let stream = point.config.streams.first().filter(|_| point.study.is_messages());
        let volume = Volume::measured(point, stream);
        let measure = &point.config.measure;
        let asked = (measure.messages < u64::MAX).then_some(measure.messages);
        let (messages, arrivals_end) = volume.messages_of(measure);
        let started_in = match (messages, volume.per_second) {
            (Some(messages), Some(rate)) => {
                Some(Span::from_secs_f64(messages as f64 / rate).max(Span::TICK))
            }
            _ => None,
        };
        let simulated = started_in.map(|span| (span + measure.warmup).min(arrivals_end));
        let background = point.config.streams.iter().skip(usize::from(stream.is_some()));
        let background: Vec<(&StreamConfig, Volume)> =
            background.map(|stream| (stream, Volume::of(stream, &point.fabric))).collect();
        let started = simulated;
        // Otherwise the time limit ends the run, whatever is under way.
        let waits_for_last =
            asked.is_some() && asked == messages || arrivals_end < measure.time_limit;
        let simulated = match (stream, started) {
            (Some(stream), Some(last_start)) if waits_for_last => {
                Some(end_of(point, stream, &volume, &background, last_start))
            }
            _ => started,
        };
        let drained = simulated;
        let waiting = stream.filter(|_| waits_for_last);
        let simulated = simulated.map(|until| with_failures(point, waiting, until));
        // Load goes on in the warm-up, and until the last measured message has ended.
        let loaded = if measure.stop_load { started } else { simulated };
        let all_of = |volume: &Volume| match (volume.per_second, loaded) {
            (Some(rate), Some(loaded)) => Some(rate * loaded.min(volume.stop).as_secs_f64()),
            _ => volume.messages.map(|messages| messages as f64),
        };
        let measured = match volume.per_second {
            Some(_) => all_of(&volume),
            None => messages.map(|messages| messages as f64),
        };
        let others: Vec<(f64, f64)> = (background.iter())
            .filter_map(|(_, volume)| Some((all_of(volume)?, volume.packets_per_message)))
            .collect();
        let all = measured.map(|measured| measured + others.iter().map(|(n, _)| n).sum::<f64>());
        let hops = measured.map(|measured| {
            let packets = others.iter().map(|(n, packets)| n * packets).sum::<f64>();
            (measured * volume.packets_per_message + packets) * mean_links(&point.fabric, &path)
        });
        let drains = started.zip(drained).zip(point.config.streams.first());
        let drains = drains.and_then(|((started, end), stream)| {
            let share = 1.0 - started.as_us_f64() / end.as_us_f64();
            let is_long = end.as_us_f64() > LONG_DRAIN * started.as_us_f64();
            is_long.then(|| (share, why_it_drains(stream, measure.stop_load)))
        });
        let per_message = cpu_s_per_message(stream);
        let window = started.map(|until| [measure.warmup, until]);
        let (core_link_gbps, oversubscription) = core_of(&fabric.topology);
        let slower = if hosts > CACHED_HOSTS { 2.0 } else { 1.0 };
        Self {
            set: point.set.iter().cloned().collect(),
            hosts,
            switches: u64::from(point.fabric.switches()),
            links: hosts + point.fabric.core_links().len() as u64,
            host_link_gbps: fabric.topology.host_link().as_gbps_f64(),
            core_link_gbps,
            oversubscription,
            switch_rules: rules_of(&fabric.switch) + &pauses_of(&point.fabric),
            longest_path_links: path.hops(),
            base_rtt_us: path.base_rtt().as_us_f64(),
            bdp_bytes: path.base_rtt_bytes(),
            transport: point.transport.clone(),
            mean_message_bytes: volume.mean_bytes,
            messages_per_s_per_host: volume.per_second.map(|rate| rate / volume.senders as f64),
            messages_per_s: volume.per_second,
            messages,
            started_us: started.map(Span::as_us_f64),
            simulated_us: simulated.map(Span::as_us_f64),
            collective: stream.and_then(|stream| told(stream, &point.fabric)),
            background: (background.iter())
                .map(|(stream, volume)| described(stream, volume, window))
                .collect(),
            offered: Offered::of(point),
            parameters: point.parameters.clone(),
            warning: drains.as_ref().map(|(share, why)| {
                let percent = 100.0 * share;
                format!("about {percent:.0} % of the simulated time passes after the last measured message has started, {why}")
            }),
            drain: drains.map(|(_, why)| why),
            faults: faults::told(&point.config.faults, &point.fabric),
            loses_packets: faults::lose_packets(&point.config.faults),
            one_thread: one_thread(point),
            packet_hops: hops,
            memory_bytes: messages.map(|messages| {
                let hosts = hosts as f64 * BYTES_PER_HOST;
                BYTES_PER_PROCESS + hosts + messages as f64 * BYTES_PER_MESSAGE
            }),
            cpu_s: hops
                .zip(all)
                .map(|(hops, all)| slower * (hops / HOPS_PER_CPU_SECOND + all * per_message)),
        }
    }
}

impl Scenario {
    /// What its points mean, and the scenario with all defaults: the output of `--explain` to a file, in lines of at most 100 columns.
    #[must_use]
    pub fn explain(&self) -> String {
        self.explain_within(PLAIN_WIDTH)
    }

    /// As [`Scenario::explain`], in lines of at most `width` columns, but for the scenario with all defaults.
    #[must_use]
    pub fn explain_within(&self, width: usize) -> String {
        let explained = Explanation::of_all(&self.points);
        let points = text::points(&explained, width);
        let total = text::total(&explained);
        let head = match self.points.len() {
            1 => format!("{}: one run, seed {}", self.name, self.seed),
            n => format!("{}: {n} runs, seed {}", self.name, self.seed),
        };
        let resolved = &self.resolved;
        let mut after = crate::parameters::table(&self.points, width);
        for warning in self.unsuitable() {
            after += &hanging("warning: ", &warning, width);
            after.push('\n');
        }
        format!("{head}\n\n{points}\n{total}\n{after}\n# With all defaults:\n\n{resolved}")
    }

    /// Says which links are offered what they hardly carry, or more, a line for each, with the number of such points.
    #[must_use]
    pub fn overload(&self) -> Vec<String> {
        let mut lines: Vec<(String, usize)> = Vec::new();
        let offered = self.points.iter().filter_map(Offered::of);
        for line in offered.flat_map(|it| it.warnings().collect::<Vec<_>>()) {
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, points)) => *points += 1,
                None => lines.push((line, 1)),
            }
        }
        let all = self.points.len();
        let line = |(line, points): (String, usize)| match points {
            _ if all == 1 => line,
            points => format!("{points} of {all} points: {line}"),
        };
        lines.into_iter().map(line).collect()
    }

    /// Why points use one thread: a line for each reason.
    pub fn one_thread(&self) -> impl Iterator<Item = String> {
        let mut reasons: Vec<(String, usize)> = Vec::new();
        for reason in self.points.iter().filter_map(one_thread) {
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, points)) => *points += 1,
                None => reasons.push((reason, 1)),
            }
        }
        let all = self.points.len();
        reasons.into_iter().map(move |(reason, points)| match points {
            points if points == all => format!("one thread for each point: {reason}"),
            points => format!("one thread for {points} of {all} points: {reason}"),
        })
    }

    /// What [`Scenario::explain`] says, as JSON.
    #[must_use]
    pub fn explain_json(&self) -> String {
        let points = Explanation::of_all(&self.points);
        let document = serde_json::json!({
            "scenario": self.name,
            "seed": self.seed,
            "cpu_s": points.iter().map(|point| point.cpu_s).sum::<Option<f64>>(),
            "points": points,
            "resolved": self.resolved,
        });
        format!("{document:#}\n")
    }

    /// A few lines for the head of a report.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let Some(point) = self.points.first() else { return Vec::new() };
        // An [`Explanation`] would estimate how long the run takes, which takes a while itself.
        let (fabric, path) = (&point.fabric, Path::longest(&point.fabric));
        let host_link = point.config.fabric.topology.host_link().as_gbps_f64();
        let mut facts: Vec<(String, String)> = vec![
            ("Hosts".into(), format!("{} at {host_link} Gbps", fabric.hosts())),
            ("Switches".into(), fabric.switches().to_string()),
            ("Base RTT".into(), format!("{:.2} us", path.base_rtt().as_us_f64())),
            ("Bandwidth-delay product".into(), format!("{} bytes", path.base_rtt_bytes())),
        ];
        facts.extend(self.unsuitable().into_iter().map(|told| ("Unsuitable".into(), told)));
        facts
    }
}

/// Why a point uses one thread; `None` if it can use several.
fn one_thread(point: &PointSpec) -> Option<String> {
    match &point.study {
        Study::Messages(None) => {
            let windows = rackweave_sim::windows(&point.config, &point.fabric);
            windows.err().map(|reason| reason.to_string())
        }
        Study::Messages(Some(_)) => {
            Some("a central scheduler decides for all hosts at once".into())
        }
        _ => Some("it is measured by nodes, which act on each other at once".into()),
    }
}

/// Returns what the measured messages of a point cost, in seconds on one core, without what goes on until the last of them has ended: that
/// takes no time to say. `None` if their number is not known.
pub(crate) fn cost_of_messages(point: &PointSpec) -> Option<f64> {
    let stream = point.config.streams.first().filter(|_| point.study.is_messages());
    let volume = Volume::measured(point, stream);
    let messages = volume.messages_of(&point.config.measure).0? as f64;
    let links = mean_links(&point.fabric, &Path::longest(&point.fabric));
    let hops = messages * volume.packets_per_message * links;
    Some(hops / HOPS_PER_CPU_SECOND + messages * cpu_s_per_message(stream))
}

/// When the last message has ended or failed: messages to hosts that are cut off fail when patience has ended.
fn with_failures(point: &PointSpec, stream: Option<&StreamConfig>, until: Span) -> Span {
    let Some(stream) = stream else { return until };
    let patience = stream.transport.patience();
    let fails = faults::outlast(&point.config.faults, &point.fabric, patience, Time::ZERO + until);
    let until = if fails { until.saturating_add(patience) } else { until };
    until.min(point.config.measure.time_limit)
}

/// What a message costs in addition to its packets.
fn cpu_s_per_message(stream: Option<&StreamConfig>) -> f64 {
    match stream.map(|stream| &stream.transport) {
        Some(TransportConfig::Tcp(_)) => CPU_SECONDS_PER_TCP_MESSAGE,
        _ => CPU_SECONDS_PER_MESSAGE,
    }
}

/// Says that few messages will take nearly all of the time.
fn why_it_drains(stream: &StreamConfig, is_stopped: bool) -> String {
    let longest = stream.workload.pattern.sizes().map_or(0, rackweave_workload::SizeDist::max);
    let longest = bytes(longest as f64);
    let cure = if is_stopped || stream.workload.stop < Span::MAX {
        "`workload.truncate` shortens it"
    } else {
        "`measure.load_after = \"stop\"` or `workload.truncate` shortens it"
    };
    format!("until the few longest (up to {longest}) have ended: {cure}")
}

/// The rate of links between switches, and how much more the hosts of a switch send.
fn core_of(topology: &Topology) -> (Option<f64>, Option<f64>) {
    let times = |local: u32, ups: u32, core: rackweave_core::Rate| {
        f64::from(local) * topology.host_link().0 as f64 / (f64::from(ups) * core.0 as f64)
    };
    match *topology {
        Topology::LeafSpine { hosts_per_leaf, spines, core_link, .. } => {
            (Some(core_link.as_gbps_f64()), Some(times(hosts_per_leaf, spines, core_link)))
        }
        Topology::FatTree { k, aggregation_link, core_link, .. } => {
            let alike = aggregation_link == core_link;
            (alike.then(|| core_link.as_gbps_f64()), Some(times(k / 2, k / 2, aggregation_link)))
        }
        Topology::Dumbbell { left, right, core_link, .. } => {
            (Some(core_link.as_gbps_f64()), Some(times(left.max(right), 1, core_link)))
        }
        Topology::SingleSwitch { .. } | Topology::Pod(_) => (None, None),
    }
}

/// Buffers and rules of switches.
fn rules_of(switch: &SwitchConfig) -> String {
    let size = |size: u64| match size {
        u64::MAX => "no limit of bytes".to_owned(),
        size => Bytes(size).to_string(),
    };
    let mut text = match switch.buffer {
        BufferConfig::PerPort { bytes } => format!("{} for each port", size(bytes)),
        BufferConfig::Shared { bytes, alpha } => {
            format!("{} for all ports of a switch, alpha {alpha}", size(bytes))
        }
    };
    text += if switch.priorities { ", 8 priorities" } else { ", one queue a port" };
    if let Some(trim) = &switch.trim {
        text += &format!(", packets trimmed above {}", size(trim.data_queue_bytes));
    }
    text
}

/// When switches pause, and why they have the headroom that they have; empty without PFC.
fn pauses_of(fabric: &Fabric) -> String {
    let Some(pfc) = fabric.config().switch.pfc else { return String::new() };
    let uplink = &fabric.links()[0];
    let (xoff, headroom) = (fabric.pause_threshold().unwrap_or(u64::MAX), fabric.headroom(0));
    let xoff =
        if xoff > 1 << 50 { "no limit of bytes".to_owned() } else { Bytes(xoff).to_string() };
    let until = fabric.pause_delay(fabric.reverse(0)) + uplink.delay;
    format!(
        ", lossless (PFC) in {} priorities: a port and priority alone is paused above {xoff}, resumes {} below, and has a headroom of \
         {} at a host's link, for packets that are being sent and {until} of {}",
        fabric.lossless_classes().count_ones(),
        Bytes(pfc.hysteresis_bytes),
        Bytes(headroom),
        uplink.rate
    )
}

/// Describes the collective of a stream, if it is one.
fn told(stream: &StreamConfig, fabric: &Fabric) -> Option<String> {
    let collective = collective_of(&stream.workload)?;
    let schedule = collective.schedule();
    let ranks = schedule.ranks();
    let what = match collective.origin() {
        Some((algorithm, size)) => {
            let (operation, name) = (algorithm.operation.name(), algorithm.name);
            format!("{operation} ({name}) of {} by {ranks} ranks", bytes(size as f64))
        }
        None => format!("a schedule of {ranks} ranks"),
    };
    let ideal = ideal_time(collective, stream, fabric);
    let times = match collective.repeat() {
        1 => String::new(),
        times => format!("; {times} times"),
    };
    Some(format!(
        "{what}: {} messages, {} in all; {} without contention{times}",
        schedule.sends(),
        bytes(schedule.bytes() as f64),
        micros(ideal.as_us_f64())
    ))
}

/// Describes a background stream; `window` is the time in which measured messages start.
fn described(stream: &StreamConfig, volume: &Volume, window: Option<[Span; 2]>) -> String {
    let (pattern, transport) = (&stream.workload.pattern, stream.transport.name());
    let mean = bytes(volume.mean_bytes);
    if let Pattern::RecurringIncast { receiver, every, .. } = pattern {
        let messages = volume.per_second.map_or(0.0, |rate| rate * every.as_secs_f64());
        let to =
            receiver.map_or("a host drawn each time".to_owned(), |host| format!("host {}", host.0));
        let every_us = micros(every.as_us_f64());
        let rounds = window.map_or(String::new(), |window| {
            let rounds = rounds(stream, *every, window);
            let few = if rounds < FEW_ROUNDS { format!(": {LENGTHENS} it") } else { String::new() };
            format!("; {rounds} start in the measured window{few}")
        });
        return format!(
            "incast over {transport}: {messages:.0} messages of {mean} to {to} every {every_us}{rounds}"
        );
    }
    let number = match (volume.per_second, volume.messages) {
        (Some(rate), _) => format!("{} messages/s", short(rate)),
        (None, Some(messages)) => format!("{messages} messages"),
        (None, None) => "messages".to_owned(),
    };
    let to = match pattern {
        Pattern::Incast { receiver, .. } => format!(", to host {}", receiver.0),
        _ => String::new(),
    };
    format!("{} over {transport}: {number} of {mean} on average{to}", pattern.name())
}

/// The rounds of an incast that start in a window.
fn rounds(stream: &StreamConfig, every: Span, [from, until]: [Span; 2]) -> u64 {
    let until = until.min(stream.workload.stop);
    let before = |time: Span| {
        let since = time.saturating_sub(stream.workload.start);
        since.ticks().div_ceil(every.ticks().max(1))
    };
    before(until).saturating_sub(before(from))
}

#[cfg(test)]
mod tests;

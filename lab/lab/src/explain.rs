//! What a scenario means and costs, without running it.

use rackweave_core::{Span, frame};
use rackweave_scenario::derived::Parameter;
use rackweave_scenario::path::Path;
use rackweave_sim::Fabric;
use rackweave_sim::config::{StreamConfig, Topology};
use rackweave_transport::TransportConfig;
use rackweave_workload::{Generator, Pattern};
use serde::Serialize;

use crate::estimate::Load;
use crate::offered::Offered;
use crate::report::number::{bytes, short};
use crate::results::plain;
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
    /// The background streams, in words.
    pub background: Vec<String>,
    /// The load that is offered to each tier of links; `None` if no stream has a rate.
    pub offered: Option<Offered>,
    /// The parameters that follow from the fabric or that the transports' papers name.
    pub parameters: Vec<Parameter>,
    /// Why the run will take longer than one would think.
    pub warning: Option<String>,
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
    /// Of one point.
    #[must_use]
    pub fn of(point: &PointSpec) -> Self {
        let fabric = &point.config.fabric;
        let path = Path::longest(&point.fabric);
        let hosts = u64::from(fabric.topology.hosts());
        // The stream of the measured messages; a kind of workload is none.
        let stream = point.config.streams.first().filter(|_| point.study.is_messages());
        let volume = match (point.study.kind(), stream) {
            (Some(kind), _) => kind.volume(),
            (None, Some(stream)) => Volume::of(stream, &point.fabric),
            (None, None) => Volume::default(),
        };
        let measure = &point.config.measure;
        let asked = (measure.messages < u64::MAX).then_some(measure.messages);
        let until =
            measure.duration.map_or(measure.time_limit, |duration| measure.warmup + duration);
        let arrivals_end = until.min(volume.stop);
        let measured_time = arrivals_end.saturating_sub(measure.warmup);
        let in_time = volume.per_second.map(|rate| (rate * measured_time.as_secs_f64()) as u64);
        let messages = [asked, volume.messages, in_time].into_iter().flatten().min();
        let started_in = match (messages, volume.per_second) {
            (Some(messages), Some(rate)) => {
                Some(Span::from_secs_f64(messages as f64 / rate).max(Span::TICK))
            }
            _ => None,
        };
        let simulated = started_in.map(|span| (span + measure.warmup).min(arrivals_end));
        let beside = point.config.streams.iter().skip(usize::from(stream.is_some()));
        let beside: Vec<(&StreamConfig, Volume)> =
            beside.map(|stream| (stream, Volume::of(stream, &point.fabric))).collect();
        let started = simulated;
        // Otherwise the time limit ends the run, whatever is under way.
        let waits_for_last =
            asked.is_some() && asked == messages || arrivals_end < measure.time_limit;
        let simulated = match (stream, started) {
            (Some(stream), Some(last_start)) if waits_for_last => {
                Some(end_of(point, stream, &volume, &beside, last_start))
            }
            _ => started,
        };
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
        let others: Vec<(f64, f64)> = (beside.iter())
            .filter_map(|(_, volume)| Some((all_of(volume)?, volume.packets_per_message)))
            .collect();
        let all = measured.map(|measured| measured + others.iter().map(|(n, _)| n).sum::<f64>());
        let hops = measured.map(|measured| {
            let packets = others.iter().map(|(n, packets)| n * packets).sum::<f64>();
            (measured * volume.packets_per_message + packets) * mean_links(&point.fabric, &path)
        });
        let warning = started.zip(simulated).zip(point.config.streams.first());
        let warning = warning
            .filter(|((started, end), _)| end.as_us_f64() > LONG_DRAIN * started.as_us_f64())
            .map(|((started, end), stream)| long_drain(started, end, stream, measure.stop_load));
        let is_tcp =
            stream.is_some_and(|stream| matches!(stream.transport, TransportConfig::Tcp(_)));
        let per_message =
            if is_tcp { CPU_SECONDS_PER_TCP_MESSAGE } else { CPU_SECONDS_PER_MESSAGE };
        let slower = if hosts > CACHED_HOSTS { 2.0 } else { 1.0 };
        Self {
            set: point.set.iter().cloned().collect(),
            hosts,
            switches: u64::from(point.fabric.switches()),
            links: hosts + point.fabric.core_links().len() as u64,
            host_link_gbps: fabric.topology.host_link().as_gbps_f64(),
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
            background: beside.iter().map(|(stream, volume)| described(stream, volume)).collect(),
            offered: Offered::of(point),
            parameters: point.parameters.clone(),
            warning,
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

    /// For a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = Vec::new();
        let set = self.set.iter().filter(|(key, _)| *key != "measure.size_buckets");
        let set: Vec<String> =
            set.map(|(key, value)| format!("{key} = {}", plain(value))).collect();
        if !set.is_empty() {
            lines.push(set.join(", "));
        }
        lines.extend(self.lines());
        lines.join("\n")
    }

    /// The lines of its text.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("  {name:<13} {text}"));
        line(
            "fabric",
            format!(
                "{} hosts at {} Gbps, {} {}, {} links",
                self.hosts,
                self.host_link_gbps,
                self.switches,
                if self.switches == 1 { "switch" } else { "switches" },
                self.links
            ),
        );
        line(
            "longest path",
            format!(
                "{} links, base RTT {:.2} us, BDP {} bytes",
                self.longest_path_links, self.base_rtt_us, self.bdp_bytes
            ),
        );
        line("transport", self.transport.clone());
        let mut load = format!("messages of {:.0} bytes on average", self.mean_message_bytes);
        if let (Some(each), Some(all)) = (self.messages_per_s_per_host, self.messages_per_s) {
            load += &format!(", {}/s per host, {}/s over all hosts", short(each), short(all));
        }
        line("workload", load);
        let measured =
            self.messages.map_or("as many messages as the time limit allows".into(), |messages| {
                format!("{messages} messages")
            });
        let simulated = match (self.started_us, self.simulated_us) {
            (Some(started), Some(simulated)) if simulated > 1.05 * started => format!(
                ", which start within {} and have ended after about {} of simulated time",
                in_words(started),
                in_words(simulated)
            ),
            (_, Some(simulated)) => {
                format!(" in about {} of simulated time", in_words(simulated))
            }
            _ => String::new(),
        };
        line("measured", measured + &simulated);
        for stream in &self.background {
            line("beside them", stream.clone());
        }
        if let Some(offered) = &self.offered {
            offered.lines().into_iter().for_each(|text| line("offered", text));
            offered.warnings().for_each(|text| line("warning", text));
        }
        if let (Some(hops), Some(cpu), Some(memory)) =
            (self.packet_hops, self.cpu_s, self.memory_bytes)
        {
            let cost = format!("{} packet-hops, {} on one core", short(hops), seconds(cpu));
            line("estimate", format!("{cost} and {} of memory", bytes(memory)));
        }
        line(
            "threads",
            self.one_thread.as_ref().map_or_else(
                || "as many as --threads says, with the same results".into(),
                |reason| format!("one: {reason}"),
            ),
        );
        if let Some(warning) = &self.warning {
            line("warning", warning.clone());
        }
        lines
    }
}

impl Scenario {
    /// What its points mean, and the scenario with all defaults: the output of `--explain`.
    #[must_use]
    pub fn explain(&self) -> String {
        let explained: Vec<Explanation> = self.points.iter().map(Explanation::of).collect();
        let points = points_text(&explained);
        let total = total(&explained);
        let head = match self.points.len() {
            1 => format!("{}: one run, seed {}", self.name, self.seed),
            n => format!("{}: {n} runs, seed {}", self.name, self.seed),
        };
        let resolved = &self.resolved;
        let mut after = crate::parameters::table(&self.points);
        for warning in self.unsuitable() {
            after += &format!("warning: {warning}\n");
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
        let points: Vec<Explanation> = self.points.iter().map(Explanation::of).collect();
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

/// Returns the text of points: of several, first the lines that all have, then those of each that differ.
fn points_text(points: &[Explanation]) -> String {
    if let [only] = points {
        return only.to_text();
    }
    let mut all: Vec<(String, Vec<String>)> = points
        .iter()
        .map(|point| {
            let lines = point.lines();
            let text = point.to_text();
            let head = text.split('\n').next().unwrap_or_default().to_owned();
            (head, lines)
        })
        .collect();
    let Some((_, first)) = all.first() else { return String::new() };
    let is_common = |line: &&String| all.iter().all(|(_, lines)| lines.contains(line));
    let common: Vec<String> = first.iter().filter(is_common).cloned().collect();
    for (_, lines) in &mut all {
        lines.retain(|line| !common.contains(line));
    }
    // Points that differ in a seed only, for instance, are alike.
    let mut groups: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for (head, lines) in all {
        match groups.iter_mut().find(|(_, others)| *others == lines) {
            Some((heads, _)) => heads.push(head),
            None => groups.push((vec![head], lines)),
        }
    }
    let group = |(heads, lines): &(Vec<String>, Vec<String>)| {
        let lines = lines.iter().map(|line| format!("\n{line}")).collect::<String>();
        format!("{}{lines}", heads.join("\n"))
    };
    let groups: Vec<String> = groups.iter().map(group).collect();
    format!("all runs\n{}\n\n{}", common.join("\n"), groups.join("\n"))
}

/// Returns the estimate for all runs of a sweep; empty for a single run.
fn total(points: &[Explanation]) -> String {
    let known: Vec<f64> = points.iter().filter_map(|point| point.cpu_s).collect();
    if points.len() < 2 || known.is_empty() {
        return String::new();
    }
    let (sum, longest) = (known.iter().sum::<f64>(), known.iter().copied().fold(0.0, f64::max));
    let unknown = match points.len() - known.len() {
        0 => String::new(),
        n => format!(", without {n} whose length is not known"),
    };
    let runs = points.len();
    let (sum, longest) = (seconds(sum), seconds(longest));
    format!("\nall {runs} runs: {sum} on one core{unknown}; the longest takes {longest}\n")
}

/// Returns a time on a processor as people say it.
fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn in_words(us: f64) -> String {
    crate::report::number::micros(us)
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

/// Describes a background stream.
fn described(stream: &StreamConfig, volume: &Volume) -> String {
    let number = match (volume.per_second, volume.messages) {
        (Some(rate), _) => format!("{} messages/s", short(rate)),
        (None, Some(messages)) => format!("{messages} messages"),
        (None, None) => "messages".to_owned(),
    };
    let (pattern, transport) = (stream.workload.pattern.name(), stream.transport.name());
    format!("{pattern} over {transport}: {number} of {} on average", bytes(volume.mean_bytes))
}

/// Says that few messages will take nearly all of the time.
fn long_drain(started: Span, end: Span, stream: &StreamConfig, is_stopped: bool) -> String {
    let share = 100.0 * (1.0 - started.as_us_f64() / end.as_us_f64());
    let longest = stream.workload.pattern.sizes().map_or(0, rackweave_workload::SizeDist::max);
    let longest = bytes(longest as f64);
    let cure = if is_stopped || stream.workload.stop < Span::MAX {
        "`workload.truncate` shortens it"
    } else {
        "`measure.load_after = \"stop\"` or `workload.truncate` shortens it"
    };
    format!(
        "about {share:.0} % of the simulated time passes after the last measured message has started, until \
         the few longest (up to {longest}) have ended: {cure}"
    )
}

/// Estimates when the last measured message of an open loop ends. Other loads end when their messages have started, as far as is
/// known here.
fn end_of(
    point: &PointSpec,
    stream: &StreamConfig,
    volume: &Volume,
    beside: &[(&StreamConfig, Volume)],
    last_start: Span,
) -> Span {
    let (Pattern::OpenLoop { sizes, .. }, Some(rate)) =
        (&stream.workload.pattern, volume.per_second)
    else {
        return last_start;
    };
    let (framing, feedback) = (stream.transport.framing(), stream.transport.feedback());
    let one_way = |size: u64| {
        let (full, data) = (u64::from(framing.max_payload), framing.message_wire_bytes(size));
        let answered = size.div_ceil(full).max(1).saturating_sub(feedback.free_bytes / full);
        data as f64 + answered as f64 * feedback.packets * f64::from(frame::wire_bytes(0))
    };
    let wire_bytes = |size: u64| {
        one_way(size) + stream.workload.exchange.response_bytes(size).map_or(0.0, one_way)
    };
    let hosts = u64::from(point.fabric.hosts());
    let receivers = stream.workload.receivers.as_ref();
    let receivers = receivers.map_or(hosts, |range| u64::from(range.end - range.start)).max(1);
    let each = |links: u64| (links, rate / links as f64);
    let others =
        beside.iter().filter_map(|(_, volume)| Some(volume.per_second? * volume.mean_bytes));
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
fn mean_links(fabric: &Fabric, longest: &Path) -> f64 {
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
    mean_bytes: f64,
    /// Those in the other direction included.
    packets_per_message: f64,
    senders: u64,
    /// When the workload starts no more messages.
    stop: Span,
    per_second: Option<f64>,
    messages: Option<u64>,
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

    fn of(stream: &StreamConfig, fabric: &Fabric) -> Self {
        let hosts = u64::from(fabric.hosts());
        let (workload, framing) = (&stream.workload, stream.transport.framing());
        let number = |range: &Option<std::ops::Range<u32>>| {
            range.as_ref().map_or(hosts, |range| u64::from(range.end.saturating_sub(range.start)))
        };
        let senders = number(&workload.senders).max(1);
        let (full, per_data) = (u64::from(framing.max_payload), stream.transport.feedback());
        let one_way = |bytes: u64| {
            let data = bytes.div_ceil(full).max(1);
            let free = per_data.free_bytes / full;
            data as f64 + data.saturating_sub(free) as f64 * per_data.packets
        };
        let packets = |bytes: u64| {
            one_way(bytes) + workload.exchange.response_bytes(bytes).map_or(0.0, one_way)
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
        }
        let stop = workload.stop;
        Self { mean_bytes, packets_per_message, senders, stop, per_second, messages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(text: &str) -> Explanation {
        let folder = std::path::Path::new(".");
        let scenario = Scenario::parse("test.toml", text, folder, &[], None).unwrap();
        Explanation::of(&scenario.points[0])
    }

    #[test]
    fn a_workload_that_stops_has_the_messages_until_then() {
        let text = |stop: &str, measure: &str| {
            format!(
                "fabric = {{ topology = 'single-switch', hosts = 8, host_link = '10 Gbps' }}\n\
                 transport.name = 'homa'\nmeasure = {{ {measure} }}\n\
                 workload = {{ arrivals = 'poisson', sizes = '10 KB', load = 0.5{stop} }}"
            )
        };
        let all = "warmup = '0 s', messages = 'unlimited', time_limit = '10 s'";
        // Half of 80 Gbit/s in messages of 10 KB: 500 a millisecond.
        let stopped = explain(&text(", stop = '4 ms'", all));
        let messages = stopped.messages.unwrap();
        assert!((1900..=2100).contains(&messages), "{messages}");
        let simulated = stopped.simulated_us.unwrap();
        assert!((4000.0..4500.0).contains(&simulated), "{simulated}");
        // Without it the load goes on for ten seconds.
        assert!(explain(&text("", all)).messages.unwrap() > 2_000 * 1000);
        // Fewer messages than the workload has until it stops.
        let few = explain(&text(", stop = '4 ms'", "messages = 100"));
        assert_eq!(few.messages, Some(100));
        assert!(few.simulated_us.unwrap() < 2000.0);
        // More than it has.
        let many = explain(&text(", stop = '4 ms'", "messages = 100_000"));
        assert!((1400..=1600).contains(&many.messages.unwrap()), "after a millisecond of warm-up");
    }

    #[test]
    fn a_fat_tree_is_counted_as_in_its_paper() {
        let text = "fabric = { topology = 'fat-tree', k = 4 }\ntransport.name = 'tcp'\n\
                    workload = { arrivals = 'permutation', sizes = '1 MB' }";
        let fat_tree = explain(text);
        assert_eq!((fat_tree.hosts, fat_tree.switches, fat_tree.links), (16, 20, 48));
        assert_eq!(fat_tree.messages, Some(16));
    }

    #[test]
    fn without_a_number_of_messages_time_decides() {
        let text = "fabric = { topology = 'single-switch', hosts = 10 }\ntransport.name = 'tcp'\n\
                    workload = { arrivals = 'poisson', sizes = '125 KB', load = 0.5 }\n\
                    measure = { messages = 'unlimited', warmup = '1 s', time_limit = '3 s' }";
        let explained = explain(text);
        assert_eq!(explained.messages, Some(100_000));
        assert_eq!(explained.simulated_us, Some(3e6));
        // 86 segments and their acknowledgements, over two links.
        let hops = explained.packet_hops.unwrap() / 150_000.0;
        assert!((hops - 86.0 * 1.6 * 2.0).abs() < 1.0, "{hops}");
    }

    #[test]
    fn load_is_a_share_of_the_link() {
        let text = "fabric = { topology = 'single-switch', hosts = 10 }\ntransport.name = 'tcp'\n\
                    workload = { arrivals = 'poisson', sizes = '125 KB', load = 0.5 }";
        let explained = explain(text);
        // Half of 10 Gbps are 5000 messages of a megabit.
        assert!((explained.messages_per_s_per_host.unwrap() - 5000.0).abs() < 0.1);
        assert!((explained.messages_per_s.unwrap() - 50_000.0).abs() < 1.0);
    }

    /// A fat-tree of 128 hosts with W3 and an incast. Simulated time, hops and seconds are those of runs of it (`simulated_us`,
    /// `packet_hops` and `cpu_s` of `summary.json`, with `--jobs 1`).
    #[test]
    fn estimates_are_within_twice_what_runs_took() {
        let text = "fabric = { topology = 'fat-tree', k = 8, host_link = '25 Gbps', switch.trim = true }\n\
                    transport.name = 'homa'\n\
                    workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }\n\
                    measure.messages = 200_000\n\
                    background = [{ arrivals = 'incast', sizes = '100 KB', senders = 32, receiver = 0, start = '2 ms' }]";
        let cases = [
            ("homa", "0.3", 19.35e3, 18.7e6, 4.48),
            ("homa", "0.5", 33.29e3, 52.0e6, 14.5),
            ("homa", "0.7", 98.70e3, 214e6, 80.1),
            ("dctcp", "0.3", 21.42e3, 24.0e6, 9.72),
            ("dctcp", "0.5", 31.33e3, 57.1e6, 29.2),
            ("dctcp", "0.7", 62.94e3, 158e6, 107.0),
            ("tcp", "0.3", 18.40e3, 20.8e6, 8.77),
            ("tcp", "0.5", 28.94e3, 53.1e6, 29.0),
            ("tcp", "0.7", 59.77e3, 151e6, 143.0),
            ("ndp", "0.3", 20.24e3, 32.4e6, 6.43),
            ("ndp", "0.5", 32.80e3, 91.6e6, 29.2),
            ("ndp", "0.7", 186e3, 721e6, 151.0),
        ];
        for (transport, load, simulated_us, hops, cpu_s) in cases {
            let text = text.replace("'homa'", &format!("'{transport}'")).replace("0.7", load);
            let explained = explain(&text);
            let of = |estimate: Option<f64>, run: f64, what: &str| {
                let factor = estimate.unwrap() / run;
                println!("{transport} at {load}: {:.3e}, {run:.3e} of {what}", factor * run);
                assert!((0.5..2.0).contains(&factor), "{transport} at {load}: {factor} of {what}");
            };
            of(explained.simulated_us, simulated_us, "the simulated time");
            of(explained.packet_hops, hops, "the hops");
            of(explained.cpu_s, cpu_s, "the processor time");
            assert!(explained.warning.is_some(), "{transport} at {load}");
        }
    }

    /// Few messages, so that runs with other seeds take half or twice as long: their figures are from runs, as above.
    #[test]
    fn estimates_follow_the_seed() {
        let w3 = "fabric = { topology = 'fat-tree', k = 8, host_link = '25 Gbps' }\ntransport.name = 'homa'\n\
                  workload = { arrivals = 'poisson', sizes = 'W3', load = 0.7 }\nmeasure.messages = 20000";
        let w4 = "fabric = { topology = 'single-switch', hosts = 16 }\ntransport.name = 'homa'\n\
                  workload = { arrivals = 'poisson', sizes = 'W4', load = 0.5 }\nmeasure.messages = 1000";
        let cases = [
            (w3, 1, 14.80e3, 29.1e6, 11.7),
            (w3, 2, 9.93e3, 19.0e6, 7.50),
            (w3, 3, 12.21e3, 23.4e6, 9.31),
            (w4, 1, 33.10e3, 786e3, 0.103),
            (w4, 2, 60.83e3, 1519e3, 0.206),
            (w4, 3, 27.84e3, 632e3, 0.084),
            (w4, 4, 64.82e3, 1558e3, 0.213),
            (w4, 5, 47.11e3, 1108e3, 0.150),
            (w4, 6, 53.66e3, 1495e3, 0.223),
            (w4, 7, 52.98e3, 1372e3, 0.190),
            (w4, 8, 41.01e3, 1045e3, 0.139),
        ];
        for (text, seed, simulated_us, hops, cpu_s) in cases {
            let explained = explain(&format!("seed = {seed}\n{text}"));
            let of = |estimate: Option<f64>, run: f64, what: &str| {
                let factor = estimate.unwrap() / run;
                println!("seed {seed}: {:.3e}, {run:.3e} of {what}", factor * run);
                assert!((0.5..2.0).contains(&factor), "seed {seed}: {factor} of {what}: {text}");
            };
            of(explained.simulated_us, simulated_us, "the simulated time");
            of(explained.packet_hops, hops, "the hops");
            of(explained.cpu_s, cpu_s, "the processor time");
        }
    }

    #[test]
    fn what_runs_beside_counts() {
        let text = "fabric = { topology = 'single-switch', hosts = 10 }\ntransport.name = 'tcp'\n\
                    workload = { arrivals = 'permutation', sizes = '125 KB' }\n\
                    background = [{ arrivals = 'incast', sizes = '125 KB', messages_per_sender = 10 }]";
        let explained = explain(text);
        assert_eq!(explained.background, ["incast over tcp: 90 messages of 125 KB on average"]);
        let single = explain(text.split("background").next().unwrap());
        let factor = explained.packet_hops.unwrap() / single.packet_hops.unwrap();
        assert!((factor - 10.0).abs() < 1e-9, "{factor}");
    }
}

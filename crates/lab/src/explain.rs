//! What a scenario means and costs, without running it.

use rackweave_core::Span;
use rackweave_sim::Fabric;
use rackweave_sim::config::StreamConfig;
use rackweave_workload::Pattern;
use serde::Serialize;

use crate::allreduce::{AllreduceConfig, Scheme};
use crate::cast::CastConfig;
use crate::image::ImageConfig;
use crate::path::Path;
use crate::reduce::ReduceConfig;
use crate::report::number::{bytes, short};
use crate::results::plain;
use crate::scenario::{PointSpec, Scenario};

/// Packet-hops that a core simulates in a second, measured with Homa, DCTCP and TCP: 7 to 12 million.
const HOPS_PER_CPU_SECOND: f64 = 9e6;
/// What a message costs beside its packets: it counts where messages are short.
const CPU_SECONDS_PER_MESSAGE: f64 = 1.2e-6;
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
    pub simulated_us: Option<f64>,
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
        let plan = match (&point.cast, point.config.streams.first()) {
            (None, _) if point.image.is_some() => {
                point.image.as_ref().map_or_else(Plan::default, |image| Plan::of_image(image))
            }
            (None, _) if point.reduce.is_some() => {
                point.reduce.as_ref().map_or_else(Plan::default, |reduce| Plan::of_jobs(reduce))
            }
            (None, _) if point.plan.is_some() => Plan::default(),
            (None, _) if point.allreduce.is_some() => {
                let allreduce = point.allreduce.as_ref();
                allreduce.map_or_else(Plan::default, |allreduce| Plan::of_vectors(allreduce))
            }
            (None, Some(stream)) => Plan::of(stream, &point.fabric),
            (cast, _) => cast.as_ref().map_or_else(Plan::default, |cast| Plan::of_files(cast)),
        };
        let measure = &point.config.measure;
        let asked = (measure.messages < u64::MAX).then_some(measure.messages);
        let measured_time = measure.time_limit - measure.warmup;
        let in_time = plan.per_second.map(|rate| (rate * measured_time.as_secs_f64()) as u64);
        let messages = [asked, plan.messages, in_time].into_iter().flatten().min();
        let started_in = match (messages, plan.per_second) {
            (Some(messages), Some(rate)) => {
                Some(Span::from_secs_f64(messages as f64 / rate).max(Span::TICK))
            }
            _ => None,
        };
        let simulated = started_in.map(|span| (span + measure.warmup).min(measure.time_limit));
        // Load goes on in the warm-up.
        let all = match (plan.per_second, simulated) {
            (Some(rate), Some(simulated)) => Some(rate * simulated.as_secs_f64()),
            _ => messages.map(|messages| messages as f64),
        };
        let hops = all.map(|all| all * plan.packets_per_message * path.hops() as f64);
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
            mean_message_bytes: plan.mean_bytes,
            messages_per_s_per_host: plan.per_second.map(|rate| rate / plan.senders as f64),
            messages_per_s: plan.per_second,
            messages,
            simulated_us: simulated.map(Span::as_us_f64),
            packet_hops: hops,
            memory_bytes: messages.map(|messages| {
                let hosts = hosts as f64 * BYTES_PER_HOST;
                BYTES_PER_PROCESS + hosts + messages as f64 * BYTES_PER_MESSAGE
            }),
            cpu_s: hops.zip(all).map(|(hops, all)| {
                slower * (hops / HOPS_PER_CPU_SECOND + all * CPU_SECONDS_PER_MESSAGE)
            }),
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
        let mut line = |name: &str, text: String| lines.push(format!("  {name:<13} {text}"));
        line(
            "fabric",
            format!(
                "{} hosts at {} Gbps, {} switches, {} links",
                self.hosts, self.host_link_gbps, self.switches, self.links
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
        let simulated = self.simulated_us.map_or(String::new(), |simulated| {
            format!(" in about {} of simulated time", Span::from_secs_f64(simulated / 1e6))
        });
        line("measured", measured + &simulated);
        if let (Some(hops), Some(cpu), Some(memory)) =
            (self.packet_hops, self.cpu_s, self.memory_bytes)
        {
            let cost = format!("{} packet-hops, {cpu:.1} s on one core", short(hops));
            line("estimate", format!("{cost} and {} of memory", bytes(memory)));
        }
        lines.join("\n")
    }
}

impl Scenario {
    /// What its points mean, and the scenario with all defaults: the output of `--explain`.
    #[must_use]
    pub fn explain(&self) -> String {
        let points: Vec<String> =
            self.points.iter().map(|point| Explanation::of(point).to_text()).collect();
        let head = match self.points.len() {
            1 => format!("{}: one run, seed {}", self.name, self.seed),
            n => format!("{}: {n} runs, seed {}", self.name, self.seed),
        };
        let resolved = &self.resolved;
        format!("{head}\n\n{}\n\n# With all defaults:\n\n{resolved}", points.join("\n\n"))
    }

    /// The same as JSON.
    #[must_use]
    pub fn explain_json(&self) -> String {
        let points: Vec<Explanation> = self.points.iter().map(Explanation::of).collect();
        let document = serde_json::json!({
            "scenario": self.name,
            "seed": self.seed,
            "points": points,
            "resolved": self.resolved,
        });
        format!("{document:#}\n")
    }

    /// A few lines for the head of a report.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let Some(point) = self.points.first() else { return Vec::new() };
        let first = Explanation::of(point);
        vec![
            ("Hosts".into(), format!("{} at {} Gbps", first.hosts, first.host_link_gbps)),
            ("Switches".into(), first.switches.to_string()),
            ("Base RTT".into(), format!("{:.2} us", first.base_rtt_us)),
            ("Bandwidth-delay product".into(), format!("{} bytes", first.bdp_bytes)),
        ]
    }
}

/// A workload in numbers.
#[derive(Default)]
struct Plan {
    mean_bytes: f64,
    /// Those in the other direction included.
    packets_per_message: f64,
    senders: u64,
    per_second: Option<f64>,
    messages: Option<u64>,
}

impl Plan {
    /// Of an image for many: a message is the image on its way to a client.
    fn of_image(image: &ImageConfig) -> Self {
        let bytes = image.image.bytes() as f64;
        Self {
            mean_bytes: bytes,
            // Blocks, and now and then a request.
            packets_per_message: bytes / 1024.0 * 1.1,
            senders: 1,
            per_second: None,
            messages: Some(image.clients.len() as u64),
        }
    }

    /// Of jobs: a message is the data of a job on their way to its workers, and the pairs on theirs to its master.
    fn of_jobs(reduce: &ReduceConfig) -> Self {
        let jobs = reduce.jobs.len().max(1) as f64;
        let mean_bytes = reduce.bytes() as f64 / jobs;
        Self {
            mean_bytes,
            // Full frames, and a quarter of the data in pairs of 20 bytes.
            packets_per_message: mean_bytes / 1460.0 * 1.5,
            senders: 1,
            per_second: None,
            messages: Some(reduce.jobs.len() as u64),
        }
    }

    /// Of vectors: a message is a step, the vectors of all workers on their way to what adds up and their sums on the way back.
    fn of_vectors(allreduce: &AllreduceConfig) -> Self {
        let (bytes, workers) = (allreduce.vector_bytes() as f64, allreduce.workers.len() as f64);
        let payload = match &allreduce.scheme {
            Scheme::Ring { carrier, .. } => f64::from(carrier.framing().max_payload),
            _ => f64::from(allreduce.vectors.elements * allreduce.vectors.format.bytes()),
        };
        Self {
            mean_bytes: bytes,
            packets_per_message: bytes / payload * 2.0 * workers,
            senders: 1,
            per_second: None,
            messages: Some(u64::from(allreduce.vectors.steps)),
        }
    }

    /// Of files from one to many: a message is a file on its way to a receiver.
    fn of_files(cast: &CastConfig) -> Self {
        let files = cast.files.len().max(1) as f64;
        let mean_bytes = cast.bytes() as f64 / files;
        let messages = cast.files.len() as u64 * cast.receivers.len() as u64;
        // Full frames, and now and then a report.
        let packets_per_message = mean_bytes / 1440.0 * 1.1;
        Self {
            mean_bytes,
            packets_per_message,
            senders: 1,
            per_second: None,
            messages: Some(messages),
        }
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
        Self { mean_bytes, packets_per_message, senders, per_second, messages }
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
}

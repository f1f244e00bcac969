//! The keys of `[measure]`, `[[faults]]` and `[plot]`.

use rackweave_core::{Bytes, HostId, Span, Time};
use rackweave_sim::config::{
    CapturePort, Fault, FaultKind, FaultPlace, MeasureConfig, TrafficConfig, TrafficPlace,
};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::values::{Count, Share, Unit};

/// The table `[measure]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measure {
    /// Earlier messages are not measured. Default: poisson, closed-loop, periodic: `"1 ms"`;
    /// otherwise `"0 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup: Option<Unit<Span>>,
    /// Measured messages. `"unlimited"`: all until the time limit. Default: poisson, closed-loop,
    /// periodic: 100,000; otherwise `"unlimited"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Count>,
    /// Instead of `messages`: what starts in this time after the warm-up is measured. Default:
    /// `messages`.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<Unit<Span>>,
    /// Start of statistics of ports. Default: the warm-up's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    queues_from: Option<Unit<Span>>,
    /// Simulated time that ends the run, as do 50 million packets under way ("packet limit").
    /// Default: `"10 s"`.
    time_limit: Unit<Span>,
    /// Hops of packets that end the run, on any machine alike. Default: `"unlimited"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hop_limit: Option<Count>,
    /// `"count"`, or `"leave out"`: see below. Default: `"count"`.
    pub unfinished: Unfinished,
    /// Load until all measured messages have ended (`"continue"`) or started (`"stop"`, which
    /// flatters the longest). Simulator only. Default: `"continue"`.
    #[serde(skip_serializing_if = "LoadAfter::is_default")]
    load_after: LoadAfter,
    /// Sampling interval of queues.csv; `"0 s"`: never. Default: `"20 us"`.
    sample_every: Unit<Span>,
    /// Upper edges of size buckets. Default: 100 B, 1 KB, 10 KB, 100 KB, 1 MB.
    size_buckets: Vec<Unit<Bytes>>,
    /// Receivers check every byte; every message is written to messages.csv. Default: false.
    verify: bool,
    /// Receivers check every byte; every message is written to messages.csv. Default: false.
    pub messages_csv: bool,
    /// Captured ports: `"host 3 sends"`, `"host 3 receives"`, `"core link 2"`, and most packets in
    /// all. Default: none; 100,000.
    capture: Vec<String>,
    /// Captured ports: `"host 3 sends"`, `"host 3 receives"`, `"core link 2"`, and most packets in
    /// all. Default: none; 100,000.
    capture_limit: u32,
    /// List of tables: traffic counted over time. Simulator only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    traffic: Vec<TrafficSpec>,
}

/// An entry of `measure.traffic`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TrafficSpec {
    /// Name in traffic.csv. Required.
    name: String,
    /// `"switch 0"`: all links into it. Or ports, as in `capture`. Required.
    at: OneOrMany,
    /// Hosts that send it. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    from: Vec<u32>,
    /// Time of one count. Default: `"10 ms"`.
    #[serde(default = "ten_ms")]
    interval: Unit<Span>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

const fn ten_ms() -> Unit<Span> {
    Unit(Span::from_ms(10))
}

impl Default for Measure {
    fn default() -> Self {
        let MeasureConfig { time_limit, sample_every, verify, capture_limit, .. } =
            MeasureConfig::default();
        Self {
            warmup: None,
            messages: None,
            duration: None,
            queues_from: None,
            time_limit: Unit(time_limit),
            hop_limit: None,
            unfinished: Unfinished::Count,
            load_after: LoadAfter::Continue,
            sample_every: Unit(sample_every),
            size_buckets: [100, 1_000, 10_000, 100_000, 1_000_000].map(|n| Unit(Bytes(n))).into(),
            verify,
            messages_csv: false,
            capture: Vec::new(),
            capture_limit: capture_limit as u32,
            traffic: Vec::new(),
        }
    }
}

/// How messages that were in flight at the end of the run are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Unfinished {
    /// They count in percentiles, with a lower bound of the time that they would have taken.
    #[default]
    #[serde(rename = "count")]
    Count,
    /// They are reported, but left out of percentiles, as in simulations that record messages when they complete and
    /// stop after a fixed time. This favours the longest messages.
    #[serde(rename = "leave out")]
    LeaveOut,
}

/// What the load does once all measured messages have started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum LoadAfter {
    /// It goes on until they have ended.
    #[default]
    Continue,
    /// No stream starts messages any more. The last messages find an emptier network than the others.
    Stop,
}

impl LoadAfter {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Measure {
    /// Resolves the configuration. With `endless`, the workload goes on until it is stopped, so a start-up phase is cut
    /// off and a number of messages must end the run.
    pub fn resolve(&self, endless: bool, places: Places) -> Result<MeasureConfig, Problem> {
        let usual = if endless { MeasureConfig::endless() } else { MeasureConfig::default() };
        let warmup = self.warmup.map_or(usual.warmup, |warmup| warmup.0);
        let usual_messages = if self.duration.is_some() { u64::MAX } else { usual.messages };
        let messages = self.messages.map_or(usual_messages, |count| count.0.unwrap_or(u64::MAX));
        let duration = self.duration.map(|duration| duration.0);
        if duration.is_some() && messages < u64::MAX {
            let message = "`messages` and `duration` both say what is measured";
            let problem = Problem::new("measure.messages", message);
            return Err(
                problem.with_help("remove one; `messages = \"unlimited\"` leaves it to `duration`")
            );
        }
        if duration.is_some_and(|duration| {
            duration == Span::ZERO || self.time_limit.0 <= warmup + duration
        }) {
            let message = "`duration` must be above zero, and end before the `time_limit`";
            return Err(Problem::new("measure.duration", message));
        }
        if self.time_limit.0 <= warmup {
            return Err(Problem::new(
                "measure.time_limit",
                format!("`time_limit` must be longer than the warm-up of {warmup}"),
            ));
        }
        let ports_from = self.queues_from.map(|from| from.0);
        if ports_from.is_some_and(|from| self.time_limit.0 <= from) {
            return Err(Problem::new(
                "measure.queues_from",
                format!("`queues_from` must be before the `time_limit` of {}", self.time_limit.0),
            ));
        }
        self.size_buckets()?;
        let capture = self.capture.iter().map(|text| capture_port(text, places));
        let capture = capture.collect::<Result<_, _>>().map_err(|message| {
            Problem::new("measure.capture", message).with_help(
                "ports are written as \"host 3 sends\", \"host 3 receives\" or \"core link 2\"",
            )
        })?;
        let mut config = MeasureConfig::default();
        config.warmup = warmup;
        config.messages = messages;
        config.duration = duration;
        config.ports_from = ports_from;
        config.time_limit = self.time_limit.0;
        config.hop_limit = self.hop_limit.and_then(|count| count.0).unwrap_or(u64::MAX);
        config.sample_every = self.sample_every.0;
        config.verify = self.verify;
        config.capture = capture;
        config.capture_limit = self.capture_limit as usize;
        config.traffic = self.traffic(places)?;
        config.stop_load = self.load_after == LoadAfter::Stop;
        Ok(config)
    }

    fn traffic(&self, places: Places) -> Result<Vec<TrafficConfig>, Problem> {
        let resolve = |(index, traffic): (usize, &TrafficSpec)| {
            let key = |name: &str| format!("measure.traffic.{index}.{name}");
            if traffic.interval.0 == Span::ZERO {
                return Err(Problem::new(key("interval"), "`interval` must be above zero"));
            }
            if self.traffic[..index].iter().any(|other| other.name == traffic.name) {
                return Err(Problem::new(key("name"), "there is other traffic of this name"));
            }
            let help = "places are written as \"switch 0\", or as a list of ports such as \"host 3 sends\", \
                        \"host 3 receives\" or \"core link 2\"";
            let at = traffic.at.resolve(places);
            let at = at.map_err(|message| Problem::new(key("at"), message).with_help(help))?;
            let host = |number: &u32| places.host(&number.to_string());
            let from = traffic.from.iter().map(host).collect::<Result<_, _>>();
            let from = from.map_err(|message| Problem::new(key("from"), message))?;
            let (name, interval) = (traffic.name.clone(), traffic.interval.0);
            Ok(TrafficConfig { name, at, from, interval })
        };
        self.traffic.iter().enumerate().map(resolve).collect()
    }

    /// Refuses keys that have no meaning for a kind of workload that is measured as a whole. `help` says what takes
    /// their place.
    pub fn check_for_many(&self, kind: &str, help: Option<&'static str>) -> Result<(), Problem> {
        let key = match (self.messages, self.duration) {
            (None, None) => return Ok(()),
            (Some(_), _) => "messages",
            (None, Some(_)) => "duration",
        };
        let message =
            format!("`{key}` has no meaning with [workload.{kind}], which is measured as a whole");
        let problem = Problem::new(format!("measure.{key}"), message);
        Err(match help {
            Some(help) => problem.with_help(help),
            None => problem,
        })
    }

    /// Returns the upper edges of the size buckets; a further bucket is above the last edge.
    pub fn size_buckets(&self) -> Result<Vec<u64>, Problem> {
        let edges: Vec<u64> = self.size_buckets.iter().map(|edge| edge.0.0).collect();
        if edges.is_empty() || edges.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Problem::new(
                "measure.size_buckets",
                "`size_buckets` must be a list of growing sizes",
            ));
        }
        Ok(edges)
    }
}

impl OneOrMany {
    fn resolve(&self, places: Places) -> Result<TrafficPlace, String> {
        let ports = match self {
            Self::One(text) => {
                if let Some(number) = text.strip_prefix("switch ") {
                    return among("switch", number, places.switches).map(TrafficPlace::Into);
                }
                std::slice::from_ref(text)
            }
            Self::Many(ports) => ports,
        };
        let ports = ports.iter().map(|text| capture_port(text, places)).collect::<Result<_, _>>();
        ports.map(TrafficPlace::Ports)
    }
}

fn capture_port(text: &str, places: Places) -> Result<CapturePort, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["host", n, "sends"] => Ok(CapturePort::HostSends(places.host(n)?)),
        ["host", n, "receives"] => Ok(CapturePort::HostReceives(places.host(n)?)),
        ["core", "link", n] => Ok(CapturePort::CoreLink(places.core_link(n)?)),
        _ => Err(format!("{text:?} names no port")),
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

/// The hosts and switches that faults and captures can name.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The hosts of the fabric.
    pub hosts: u32,
    /// Its links between switches.
    pub core_links: u32,
    /// Its switches.
    pub switches: u32,
}

impl Places {
    fn host(self, text: &str) -> Result<HostId, String> {
        among("host", text, self.hosts).map(HostId)
    }

    fn core_link(self, text: &str) -> Result<u32, String> {
        among("core link", text, self.core_links)
    }
}

fn plural(what: &str) -> String {
    if what == "switch" { "switches".to_owned() } else { format!("{what}s") }
}

fn among(what: &str, text: &str, count: u32) -> Result<u32, String> {
    match number(text)? {
        n if n < count => Ok(n),
        _ if count == 0 => Err(format!("the fabric has no {}", plural(what))),
        n => Err(format!(
            "there is no {what} {n}: the fabric has {} 0 to {}",
            plural(what),
            count - 1
        )),
    }
}

/// A table of `[[faults]]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// Of links: `"loss"`, `"corruption"`, `"duplication"`, `"reordering"`, `"down"`. Of hosts:
    /// `"pause"`, `"crash"`. Required.
    kind: FaultName,
    /// `"all links"`, `"core links"`, `"link of host 3"`, `"core link 2"` or `"host 3"`. Required.
    place: String,
    /// loss, corruption, duplication, reordering: per packet. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<Share>,
    /// reordering: largest delay, uniform. Default: `"10 us"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<Unit<Span>>,
    /// Start and end. Default: `"0 s"`; never.
    #[serde(default = "at_once")]
    from: Unit<Span>,
    /// Start and end. Default: `"0 s"`; never.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Unit<Span>>,
}

const fn at_once() -> Unit<Span> {
    Unit(Span::ZERO)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum FaultName {
    Loss,
    Corruption,
    Duplication,
    Reordering,
    Down,
    Pause,
    Crash,
}

impl FaultSpec {
    /// Checks the keys of the fault with this index.
    pub fn resolve(&self, index: usize, places: Places) -> Result<Fault, Problem> {
        let key = |name: &str| format!("faults.{index}.{name}");
        let place = fault_place(&self.place, places).map_err(|message| {
            Problem::new(key("place"), message).with_help(
                "places are written as \"all links\", \"core links\", \"link of host 3\", \
                 \"core link 2\" or \"host 3\"",
            )
        })?;
        let kind = self.kind(&key)?;
        let needs_host = matches!(kind, FaultKind::Pause | FaultKind::Crash);
        if needs_host != matches!(place, FaultPlace::Host(_)) {
            let message = if needs_host {
                format!("a {:?} happens to a host, not to {:?}", kind, self.place)
            } else {
                format!("this fault happens to a link, not to {:?}", self.place)
            };
            return Err(Problem::new(
                key("place"),
                message.replace("Pause", "pause").replace("Crash", "crash"),
            ));
        }
        let until = self.until.map_or(Time::MAX, |until| Time::ZERO + until.0);
        let from = Time::ZERO + self.from.0;
        if until <= from {
            return Err(Problem::new(key("until"), "`until` must be later than `from`"));
        }
        Ok(Fault { from, until, place, kind })
    }

    fn kind(&self, key: &dyn Fn(&str) -> String) -> Result<FaultKind, Problem> {
        use FaultName::{Corruption, Crash, Down, Duplication, Loss, Pause, Reordering};
        let chance = matches!(self.kind, Loss | Corruption | Duplication | Reordering);
        let given = match (chance, self.probability) {
            (true, None) => {
                let at = key("kind");
                return Err(Problem::new(at, "this fault needs a `probability`, such as 0.001"));
            }
            (false, Some(_)) => {
                return Err(Problem::new(key("probability"), "this fault has no probability"));
            }
            (_, given) => given.map_or(0.0, |share| share.0),
        };
        if self.kind != Reordering && self.delay.is_some() {
            return Err(Problem::new(key("delay"), "only reordering has a `delay`"));
        }
        Ok(match self.kind {
            Loss => FaultKind::Loss(given),
            Corruption => FaultKind::Corruption(given),
            Duplication => FaultKind::Duplication(given),
            Reordering => FaultKind::Reordering {
                probability: given,
                delay: self.delay.map_or(Span::from_us(10), |delay| delay.0),
            },
            Down => FaultKind::Down,
            Pause => FaultKind::Pause,
            Crash => FaultKind::Crash,
        })
    }
}

fn fault_place(text: &str, places: Places) -> Result<FaultPlace, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["all", "links"] => Ok(FaultPlace::AllLinks),
        ["core", "links"] => Ok(FaultPlace::CoreLinks),
        ["link", "of", "host", n] => Ok(FaultPlace::HostLink(places.host(n)?)),
        ["core", "link", n] => Ok(FaultPlace::CoreLink(places.core_link(n)?)),
        ["host", n] => Ok(FaultPlace::Host(places.host(n)?)),
        _ => Err(format!("{text:?} names no place")),
    }
}

/// The table `[plot]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plot {
    /// Headline of report.html. Default: the scenario's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

//! The keys of `[workload.cast]`: files from one host to many, and the schemes that carry them.

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_orca::app::Cost;
use rackweave_orca::label::Layout;
use rackweave_orca::scale::{ElmoConfig, Members, ScaleConfig};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_scenario::values::Unit;
use rackweave_sim::config::{FaultKind, FaultPlace};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{CastConfig, PAPER_FILES, scheme};
use crate::study::{Ground, Receivers, numbers, racks, spread};

/// The keys of `[workload.cast]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CastKeys {
    /// The sending host, or a list, one per port. What goes to one receiver leaves by the port in
    /// its rack, or the first. Default: 0.
    sender: Hosts,
    /// A number, from each rack in turn, or a list, in a chain in its order. Default: 4.
    receivers: Receivers,
    /// `"orca"`: the paper's 34 files (92,034,996 bytes). Or sizes. Default: `"orca"`.
    files: Files,
    /// Factor of every size (the paper's are 1, 2, 4, 8 and 16); times that the list is sent.
    /// Default: 1.
    scale: u64,
    /// Factor of every size (the paper's are 1, 2, 4, 8 and 16); times that the list is sent.
    /// Default: 1.
    repeat: u32,
    /// A file waits for all acknowledgements of the one before. false: all are one stream. Default:
    /// true.
    rounds: bool,
    /// Bytes that the sender passes to the network at a time. Default: `"65507 B"`.
    buffer: Unit<Bytes>,
    /// Sender's processes, which share the receivers. Orca uses one. Default: 1.
    processes: u32,
    /// Table: what sending costs. Default: nothing.
    cpu: CpuKeys,
    /// Table: Orca's control plane is built and measured too, on another fabric. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    plane: Option<PlaneKeys>,
}

/// The keys of the control-plane tables that are built for a number of sessions and measured.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct PlaneKeys {
    /// Pods of the fabric; joins and leaves. Default: 12; 1000.
    pods: u32,
    /// Racks of a pod and hosts of a rack, at most 64. Default: 48.
    racks_per_pod: u32,
    /// Racks of a pod and hosts of a rack, at most 64. Default: 48.
    hosts_per_rack: u32,
    /// Sessions, at most 4,000,000; fewest and most members of each, and in one rack. Default:
    /// 1,000,000; `[5, 50]`; 1.
    sessions: u32,
    /// Sessions, at most 4,000,000; fewest and most members of each, and in one rack. Default:
    /// 1,000,000; `[5, 50]`; 1.
    members: (u32, u32),
    /// Sessions, at most 4,000,000; fewest and most members of each, and in one rack. Default:
    /// 1,000,000; `[5, 50]`; 1.
    together: u32,
    /// Pods of the fabric; joins and leaves. Default: 12; 1000.
    changes: u32,
    /// Bits of the filter in labels, at most 64. Default: 0.
    filter_bits: u32,
}

impl Default for PlaneKeys {
    fn default() -> Self {
        let config = ScaleConfig::default();
        Self {
            pods: config.pods,
            racks_per_pod: config.racks_per_pod,
            hosts_per_rack: config.hosts_per_rack,
            sessions: config.sessions,
            members: config.members,
            together: 1,
            changes: config.changes,
            filter_bits: config.filter_bits,
        }
    }
}

impl PlaneKeys {
    fn resolve(&self, seed: u64) -> Result<ScaleConfig, Problem> {
        let wrong =
            |name: &str, message: &str| Err(Problem::new(key(&format!("plane.{name}")), message));
        let hosts = [self.pods, self.racks_per_pod, self.hosts_per_rack];
        if hosts.iter().any(|number| !(1..=64).contains(number)) {
            return wrong("pods", "pods, racks of a pod and hosts of a rack are 1 to 64 each");
        }
        if !(1..=4_000_000).contains(&self.sessions) {
            return wrong("sessions", "1 to 4,000,000 sessions");
        }
        let all: u32 = hosts.iter().product();
        let (fewest, most) = self.members;
        if fewest == 0 || fewest > most || most > all / 2 {
            let message =
                "fewest and most members of a session: at least 1, at most half of the hosts";
            return wrong("members", message);
        }
        if self.together == 0 || self.changes > 1_000_000 {
            return wrong("together", "`together` is at least 1, `changes` at most 1,000,000");
        }
        let layout = Layout::tree(
            self.pods,
            self.racks_per_pod,
            self.hosts_per_rack,
            self.racks_per_pod,
            self.racks_per_pod,
        );
        if let Err(error) = layout.and_then(|layout| layout.with_filter(self.filter_bits)) {
            return wrong("filter_bits", &error.to_string());
        }
        Ok(ScaleConfig {
            pods: self.pods,
            racks_per_pod: self.racks_per_pod,
            hosts_per_rack: self.hosts_per_rack,
            sessions: self.sessions,
            members: self.members,
            placement: match self.together {
                1 => Members::Uniform,
                n => Members::PerRack(n),
            },
            filter_bits: self.filter_bits,
            elmo: ElmoConfig::default(),
            changes: self.changes,
            seed,
        })
    }
}

/// The CPU cost for a process of the sender to begin a file and to write a buffer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
struct CpuKeys {
    /// Time before a file's first buffer, and for each buffer. Default: `"0 s"`.
    per_file: Unit<Span>,
    /// Time before a file's first buffer, and for each buffer. Default: `"0 s"`.
    per_buffer: Unit<Span>,
    /// Rate of copying bytes. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    copy_rate: Option<Unit<Rate>>,
}

impl Default for CpuKeys {
    fn default() -> Self {
        Self { per_file: Unit(Span::ZERO), per_buffer: Unit(Span::ZERO), copy_rate: None }
    }
}

impl Default for CastKeys {
    fn default() -> Self {
        Self {
            sender: Hosts(vec![0]),
            receivers: Receivers::Number(4),
            files: Files::Paper,
            scale: 1,
            repeat: 1,
            rounds: true,
            buffer: Unit(Bytes(65_507)),
            processes: 1,
            cpu: CpuKeys::default(),
            plane: None,
        }
    }
}

/// One host or a list of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hosts(Vec<u32>);

/// The paper's list, one size for all files, or a list of sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Files {
    Paper,
    Sizes(Vec<Unit<Bytes>>),
}

/// The value that selects the list of the Orca end-to-end evaluation.
const PAPER_LIST: &str = "orca";

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let expecting = "a host, or a list of hosts: one for each port of the sender";
        Ok(match numbers(from, expecting)? {
            Receivers::Number(host) => Self(vec![host]),
            Receivers::Hosts(hosts) => Self(hosts),
        })
    }
}

impl Serialize for Hosts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Files;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    "\"orca\" (the paper's list), a size such as \"100 MB\", or a list of sizes",
                )
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Files, E> {
                if text.trim() == PAPER_LIST {
                    return Ok(Files::Paper);
                }
                let size = text.parse().map_err(E::custom)?;
                Ok(Files::Sizes(vec![Unit(size)]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Files, A::Error> {
                let mut sizes = Vec::new();
                while let Some(size) = list.next_element()? {
                    sizes.push(size);
                }
                Ok(Files::Sizes(sizes))
            }
        }
        from.deserialize_any(List)
    }
}

impl Serialize for Files {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Paper => PAPER_LIST.serialize(to),
            Self::Sizes(sizes) => sizes.serialize(to),
        }
    }
}

fn key(name: &str) -> String {
    format!("workload.cast.{name}")
}

/// The largest number of bytes of all files together, because offsets in a stream have 48 bits.
const MAX_BYTES: u64 = 1 << 47;
/// The largest number of files in a cast.
const MAX_FILES: usize = 100_000;

impl CastKeys {
    /// Checks the keys against each other and the fabric. `scheme` carries the files.
    pub(crate) fn resolve(
        &self,
        scheme: &Chosen<scheme::Name>,
        ground: &Ground<'_>,
    ) -> Result<CastConfig, Problem> {
        let (fabric, faults, seed) = (ground.fabric.config(), ground.faults, ground.seed);
        let all = fabric.topology.hosts();
        let senders = self.hosts("sender", &self.sender.0, all, &[])?;
        let scheme = scheme::resolve(scheme, fabric, &senders)?;
        let mut taken = senders.clone();
        taken.extend(scheme.controller());
        let receivers = match &self.receivers {
            Receivers::Hosts(hosts) => self.hosts("receivers", hosts, all, &taken)?,
            Receivers::Number(number) => spread(*number, fabric, &taken).map_err(|free| {
                let message = format!(
                    "{number} receivers: the fabric has 1 to {free} hosts other than the sender's and the controller's"
                );
                Problem::new(key("receivers"), message)
            })?,
        };
        if self.buffer.0.0 == 0 || self.buffer.0.0 > 1 << 30 {
            return Err(Problem::new(key("buffer"), "a buffer has 1 byte to 1 GiB"));
        }
        scheme.check_buffer(self.buffer.0.0)?;
        if self.processes == 0 {
            return Err(Problem::new(key("processes"), "`processes` must be at least 1"));
        }
        if self.cpu.copy_rate == Some(Unit(Rate(0))) {
            return Err(Problem::new(key("cpu.copy_rate"), "`copy_rate` must be above 0")
                .with_help("without `copy_rate`, bytes take no time"));
        }
        let crash = faults.iter().filter(|fault| fault.kind == FaultKind::Crash);
        let crashes = |place: FaultPlace| match place {
            FaultPlace::Host(host) => Some(host),
            _ => None,
        };
        Ok(CastConfig {
            racks: racks(&fabric.topology),
            crashed: crash.clone().filter_map(|fault| crashes(fault.place)).collect(),
            fault: crash.map(|fault| fault.from).min(),
            senders,
            receivers,
            files: self.files()?,
            wait: self.rounds,
            buffer: self.buffer.0.0,
            processes: self.processes,
            cost: Cost {
                per_cast: self.cpu.per_file.0,
                per_buffer: self.cpu.per_buffer.0,
                copy_rate: self.cpu.copy_rate.map(|rate| rate.0),
            },
            plane: self.plane.as_ref().map(|plane| plane.resolve(seed)).transpose()?,
            scheme,
        })
    }

    fn hosts(
        &self,
        name: &str,
        hosts: &[u32],
        all: u32,
        taken: &[HostId],
    ) -> Result<Vec<HostId>, Problem> {
        let wrong = |message: String| Err(Problem::new(key(name), message));
        if hosts.is_empty() {
            return wrong(format!("`{name}` names no host"));
        }
        for (nth, host) in hosts.iter().enumerate() {
            if *host >= all {
                return wrong(format!(
                    "there is no host {host}: the fabric has hosts 0 to {}",
                    all.saturating_sub(1)
                ));
            }
            if hosts[..nth].contains(host) {
                return wrong(format!("host {host} is there twice"));
            }
            if taken.contains(&HostId(*host)) {
                return wrong(format!("host {host} is the sender's, or the controller's"));
            }
        }
        Ok(hosts.iter().copied().map(HostId).collect())
    }

    fn files(&self) -> Result<Vec<u64>, Problem> {
        let list: Vec<u64> = match &self.files {
            Files::Paper => PAPER_FILES.to_vec(),
            Files::Sizes(sizes) => sizes.iter().map(|size| size.0.0).collect(),
        };
        if self.scale == 0 {
            return Err(Problem::new(key("scale"), "`scale` must be at least 1"));
        }
        if list.is_empty() || list.contains(&0) {
            return Err(Problem::new(
                key("files"),
                "there is at least one file, and none is empty",
            ));
        }
        if self.repeat == 0 || list.len().saturating_mul(self.repeat as usize) > MAX_FILES {
            let message =
                format!("the list is repeated at least once, for {MAX_FILES} files at most");
            return Err(Problem::new(key("repeat"), message));
        }
        let scaled: Vec<u64> = list.iter().map(|size| size.saturating_mul(self.scale)).collect();
        let total = scaled.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
        if total.saturating_mul(u64::from(self.repeat)) > MAX_BYTES {
            let message = format!("all files together are at most {}", Bytes(MAX_BYTES));
            return Err(Problem::new(key("files"), message).or_at(key("scale")));
        }
        let count = scaled.len() * self.repeat as usize;
        Ok(scaled.into_iter().cycle().take(count).collect())
    }
}

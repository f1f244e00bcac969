//! The keys of `[transport]`: the name of a transport, and its parameters.

mod datagram;
mod dcpim;
mod dcqcn;
mod external;
mod homa;
mod hpcc;
mod oracle;
mod pfabric;
mod polo;
mod receiver_driven;
mod sird;
mod swift;
mod tcp;
mod uet;

use rackweave_core::Span;
use rackweave_sim::Fabric;
use rackweave_sim::config::{Marking, Product};
use rackweave_sim::oracle::Rules;
use rackweave_transport::TransportConfig;

use self::datagram::DatagramKeys;
use self::dcpim::DcPimKeys;
use self::dcqcn::DcqcnKeys;
pub use self::external::{
    Congestion, External, KeysError, PlugInError, Plugin, plug_in, plugins, refused_name,
};
use self::homa::HomaKeys;
use self::hpcc::HpccKeys;
use self::oracle::OracleKeys;
pub use self::oracle::check as check_oracle;
use self::pfabric::PFabricKeys;
use self::polo::PoloKeys;
use self::receiver_driven::{NdpKeys, PHostKeys};
use self::sird::SirdKeys;
use self::swift::SwiftKeys;
pub use self::tcp::TcpKeys;
use self::uet::UetKeys;
use super::de::{self, DeError};
use super::derived::{self, Baseline as _, Parameter};
use super::fabric::{self, Queues};
use super::keys::{self, Carried, Choice, Declared as _, Place, is_on_streams, read_label};
use super::problem::{Problem, SweptKeys};
use super::testbed::World;
use super::tree::{Entry, Node, Origin, Table, Value};
use super::values::FULL_PACKET;
use crate::error::nearest;
use crate::item::About;

/// Makes the names and keys of transports from one list: each has its keys, which resolve to its configuration, and the
/// text of `rackweave list`.
macro_rules! transports {
    ($($Name:ident: $Keys:ident = $about:expr;)+) => {
        /// The transports by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Name {
            $(
                #[doc = concat!("`", stringify!($Name), "`, as `rackweave list` describes it.")]
                $Name,
            )+
            /// A transport of another crate.
            External(&'static Plugin),
        }

        /// The keys of a transport.
        pub enum Keys {
            $(
                #[doc = concat!("Those of `", stringify!($Name), "`.")]
                $Name(Box<$Keys>),
            )+
            /// Those of a transport of another crate.
            External(Box<dyn external::Erased>),
        }

        impl Choice for Name {
            type Keys = Keys;
            const ALL: &'static [Self] = &[$(Self::$Name,)+];
            const COMMON: &'static [&'static str] = &["name", "label", "over", "patience"];

            fn all() -> Vec<Self> {
                Self::ALL.iter().copied().chain(plugins().iter().map(Self::External)).collect()
            }

            fn about(self) -> &'static About {
                match self {
                    $(Self::$Name => &$about,)+
                    Self::External(plugin) => plugin.about(),
                }
            }

            fn keys(self) -> Vec<&'static str> {
                match self {
                    $(Self::$Name => $Keys::NAMES.to_vec(),)+
                    Self::External(plugin) => plugin.keys(),
                }
            }

            fn read_keys(self, table: &Table, origin: Origin) -> Result<Keys, DeError> {
                Ok(match self {
                    $(Self::$Name => Keys::$Name(de::from_table(table, origin)?),)+
                    Self::External(plugin) => Keys::External(plugin.read(table, origin)?),
                })
            }

            fn unknown(text: &str) -> DeError {
                unknown(text)
            }
        }

        impl Keys {
            /// Returns the configuration, with defaults for the keys that are not given.
            fn resolve(
                &self,
                place: Place<'_>,
                fabric: &Fabric,
                carried: Carried<'_>,
            ) -> Result<TransportConfig, Problem> {
                Ok(match self {
                    $(Self::$Name(keys) => keys.resolve(place, fabric, carried)?.into(),)+
                    Self::External(keys) => keys.resolve(place, fabric, carried)?,
                })
            }

            /// Compares the configuration with its [`Baseline`]. Without one that is valid there is nothing to compare.
            fn parameters(
                &self,
                place: Place<'_>,
                fabric: &Fabric,
                carried: Carried<'_>,
            ) -> Result<Vec<Parameter>, Problem> {
                let path = format!("{}.{}", place.path, place.name);
                Ok(match self {
                    $(Self::$Name(keys) => {
                        let config = keys.resolve(place, fabric, carried)?;
                        let default = $Keys::baseline(keys).resolve(place, fabric, carried)?;
                        let configs = (&config, &default);
                        derived::compare(&path, $Keys::RULES, configs, |key| keys.is_given(key))
                    })+
                    Self::External(keys) => keys.parameters(place, fabric, carried)?,
                })
            }
        }
    };
}

transports! {
    Homa: HomaKeys = About {
        name: "homa",
        description: "receiver-driven: grants by SRPT, priorities in the network's queues",
        profiles: &["fabric", "sigcomm18", "linux", "leverage-homa", "linux-2026"],
        sources: &["SIGCOMM 2018", "USENIX ATC 2021", "netdev 0x17 (2023)"],
    };
    Dctcp: TcpKeys = About {
        name: "dctcp",
        description: "TCP whose window follows the share of packets that switches marked",
        profiles: &["linux", "classic"],
        sources: &["SIGCOMM 2010", "RFC 8257"],
    };
    Tcp: TcpKeys = About {
        name: "tcp",
        description: "TCP with CUBIC (or NewReno) and SACK, over long-lived connections",
        profiles: &["linux", "classic"],
        sources: &["RFC 5681", "RFC 6675", "RFC 9438"],
    };
    Ndp: NdpKeys = About {
        name: "ndp",
        description: "receiver-driven: switches trim packets to their headers, receivers pull the next",
        profiles: &["paper", "polo-slides"],
        sources: &["SIGCOMM 2017"],
    };
    PHost: PHostKeys = About {
        name: "phost",
        description: "receiver-driven: tokens, one for each packet, that senders spend or lose",
        profiles: &["paper", "yaps", "polo-slides"],
        sources: &["CoNEXT 2015"],
    };
    Polo: PoloKeys = About {
        name: "polo",
        description: "receiver-driven: driving packets by ECN marks, most of many concurrent flows paused",
        profiles: &["fabric", "polo-slides", "hosts"],
        sources: &["ICPP 2020"],
    };
    PFabric: PFabricKeys = About {
        name: "pfabric",
        description: "switches serve and keep what has the least remaining; fixed timeouts, no other control",
        profiles: &[],
        sources: &["SIGCOMM 2013"],
    };
    Sird: SirdKeys = About {
        name: "sird",
        description: "receiver-driven: credit from a global bucket, and one per sender that shrinks by its marks",
        profiles: &[],
        sources: &["NSDI 2025"],
    };
    Swift: SwiftKeys = About {
        name: "swift",
        description: "windows, also below one packet, that keep the measured delay at a target",
        profiles: &["fabric", "htsim", "hosts"],
        sources: &["SIGCOMM 2020"],
    };
    DcPim: DcPimKeys = About {
        name: "dcpim",
        description: "receiver-driven: hosts are matched in rounds, as the ports of a crossbar switch, for the next data phase",
        profiles: &["paper", "hosts"],
        sources: &["SIGCOMM 2022"],
    };
    Uet: UetKeys = About {
        name: "uet",
        description: "EQDS and Ultra Ethernet: credit from receivers (RCCC), windows of senders (NSCC), trimming",
        profiles: &["uet", "uet-nscc", "uet-rccc", "eqds"],
        sources: &["NSDI 2022", "UET 1.0 (2025)"],
    };
    Dcqcn: DcqcnKeys = About {
        name: "dcqcn",
        description: "RoCEv2: rates that fall by CNPs for marked packets, over switches that pause (PFC)",
        profiles: &["hpcc", "paper"],
        sources: &["SIGCOMM 2015", "SIGCOMM 2019"],
    };
    Hpcc: HpccKeys = About {
        name: "hpcc",
        description: "windows by what switches write into packets: queue, sent bytes, time, rate (INT); PFC",
        profiles: &[],
        sources: &["SIGCOMM 2019"],
    };
    Datagram: DatagramKeys = About {
        name: "datagram",
        description: "what UDP does: line rate, one way, lost is lost; for background load",
        profiles: &[],
        sources: &["RFC 768"],
    };
    SrptOracle: OracleKeys = About {
        name: "srpt-oracle",
        description: "no transport: a central scheduler that knows all messages; what others could still gain",
        profiles: &[],
        sources: &["SIGCOMM 2018"],
    };
}

fn unknown(text: &str) -> DeError {
    let help = match nearest(text, Name::names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", Name::names().join(", ")),
    };
    DeError::new(format!("unknown transport `{text}`"), "no such transport").with_help(help)
}

/// The largest value of `patience`, which all timers can represent.
const MAX_PATIENCE: Span = Span::from_secs(3600);

/// The encapsulation of a transport's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Over {
    /// Packets are directly in IP, with headers as long as the transport's profile says.
    #[default]
    Ip,
    /// Packets are in UDP datagrams, as on Linux.
    Udp,
}

/// The lower bound on the testbed of how long a peer may be silent, because processes wait for a processor.
const PATIENCE_OF_PROCESSES: Span = Span::from_secs(2);

/// The transport of a stream, as the scenario chooses it.
pub struct Chosen {
    /// The transport.
    pub name: Name,
    /// The name in results, if it is not that of the transport.
    label: Option<String>,
    over: Over,
    /// The lower bound of how long a peer may be silent.
    patience: Option<Span>,
    path: String,
    keys: Keys,
}

/// Reads the transport table at `path`.
pub fn read(node: &Node, path: &str, swept: &SweptKeys) -> Result<Chosen, DeError> {
    let (name, keys, table) = keys::read::<Name>(node, path, swept)?;
    let (label, over) = (read_label(table)?, read_over(table)?);
    let patience = read_patience(table)?;
    Ok(Chosen { name, label, over, patience, path: path.to_owned(), keys })
}

/// What the transport of this table wants of switches, in a world. What is wrong with the table is reported by [`read`].
pub fn queues(
    node: Option<&Node>,
    swept: &SweptKeys,
    fabric: &fabric::Fabric,
    world: World,
) -> Queues {
    let chosen = node.and_then(|node| read(node, "transport", swept).ok());
    let marking = chosen.as_ref().and_then(Chosen::marking).unwrap_or(Marking::DCTCP);
    let keys = chosen.as_ref().map(|chosen| &chosen.keys);
    let trim_at_product = matches!(keys, Some(Keys::Uet(_)));
    // Real switches pause or do not, whatever a scenario says.
    let pauses = matches!(keys, Some(Keys::Dcqcn(_) | Keys::Hpcc(_)));
    let pfc = pauses && world != World::Testbed && !fabric.is_pod();
    Queues { marking: fabric.marking_of(world, marking), trim_at_product, pfc }
}

/// Reads TCP's keys of a scheme whose chunks or files are carried by TCP.
pub fn read_tcp(mut keys: Table, origin: Origin) -> Result<Chosen, DeError> {
    let name = Node { value: Value::String("tcp".to_owned()), origin };
    keys.0.push(Entry { key: "name".to_owned(), key_origin: origin, node: name });
    read(&Node { value: Value::Table(keys), origin }, "transport", &SweptKeys::new())
}

fn read_over(table: &Table) -> Result<Over, DeError> {
    let Some(entry) = table.get("over") else { return Ok(Over::default()) };
    match entry.node.as_str() {
        Some("ip") => Ok(Over::Ip),
        Some("udp") => Ok(Over::Udp),
        _ => Err(DeError::new("`over` is \"ip\" or \"udp\"", "neither of them")
            .with_help(
                "\"udp\" is what the transport is on real hosts: longer headers, less payload",
            )
            .at(entry.node.origin)),
    }
}

fn read_patience(table: &Table) -> Result<Option<Span>, DeError> {
    let Some(entry) = table.get("patience") else { return Ok(None) };
    let span = entry.node.as_str().and_then(|text| text.parse::<Span>().ok());
    match span {
        Some(span) if span <= MAX_PATIENCE => Ok(Some(span)),
        _ => Err(DeError::new("`patience` is a time of at most an hour", "no such time")
            .with_help("such as \"2 s\": a peer may be silent at least this long")
            .at(entry.node.origin)),
    }
}

impl Chosen {
    /// Returns the transport's name in results.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.name.as_str().to_owned())
    }

    fn place(&self) -> Place<'_> {
        Place { path: &self.path, name: self.name.as_str() }
    }

    /// Returns the kernel's name of this transport's congestion control, if it is TCP.
    pub fn kernel_tcp(&self) -> Option<&'static str> {
        Some(self.tcp_keys()?.kernel_name(self.name == Name::Dctcp))
    }

    /// Resolves the configuration, with defaults for missing keys.
    pub fn resolve(
        &self,
        world: World,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<TransportConfig, Problem> {
        if let (World::Simulator, Some("bbr")) = (world, self.kernel_tcp()) {
            return Err(self
                .place()
                .bad("congestion", "only the kernel has BBR: the simulator has no such TCP")
                .with_help("`rackweave testbed` runs it; here tcp has \"newreno\" and \"cubic\""));
        }
        if world == World::Testbed && self.oracle().is_some() {
            let message = "a central scheduler knows all messages in advance: no host can run it";
            return Err(self
                .place()
                .bad("name", message)
                .with_help("`rackweave run` simulates it"));
        }
        if world == World::Testbed && matches!(self.keys, Keys::Hpcc(_)) {
            let message = "hpcc needs switches that write their queues into packets (in-band \
                           telemetry): neither the user-space switch nor Linux does";
            return Err(self.place().bad("name", message).with_help(
                "`rackweave run` simulates it; on hosts swift measures delays instead",
            ));
        }
        let mut config = self.keys.resolve(self.place(), fabric, carried)?;
        let of_processes = (world == World::Testbed).then_some(PATIENCE_OF_PROCESSES);
        if let Some(patience) = self.patience.or(of_processes) {
            config = config.patient(patience);
        }
        Ok(if world == World::Testbed || self.over == Over::Udp {
            config.over_udp()
        } else {
            config
        })
    }

    /// The parameters that follow from the fabric or that its paper names.
    #[must_use]
    pub fn parameters(&self, fabric: &Fabric, carried: Carried<'_>) -> Vec<Parameter> {
        self.keys.parameters(self.place(), fabric, carried).unwrap_or_default()
    }

    /// The path of its table.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Which packets switches mark for this transport, unless the scenario says; `None` if it does not react to marks.
    #[must_use]
    pub fn marking(&self) -> Option<Marking> {
        match &self.keys {
            Keys::Dctcp(_) | Keys::Polo(_) => Some(Marking::DCTCP),
            // NThr (`docs/protocols/sird.md#sird-parameters`): the product is that of hosts, on faster links too.
            Keys::Sird(_) => {
                let least = 5 * FULL_PACKET;
                Some(Marking::Products { of: Product::Host, thousandths: 1250, least })
            }
            Keys::Dcqcn(_) => Some(Marking::DCQCN),
            Keys::Tcp(keys) => keys.is_ecn_capable().then_some(Marking::DCTCP),
            Keys::Uet(keys) => keys.marking(),
            Keys::External(keys) => keys.marking(),
            _ => None,
        }
    }

    /// The rules of the central scheduler, if one takes the place of transport and network.
    pub fn oracle(&self) -> Option<Rules> {
        match &self.keys {
            Keys::SrptOracle(keys) => Some(keys.rules()),
            _ => None,
        }
    }

    fn tcp_keys(&self) -> Option<&TcpKeys> {
        match &self.keys {
            Keys::Tcp(keys) | Keys::Dctcp(keys) => Some(keys),
            _ => None,
        }
    }

    /// Returns the transport of a one-to-many scheme's connections.
    pub fn tcp(&self) -> Result<TransportConfig, Problem> {
        let Some(keys) = self.tcp_keys() else {
            return Err(self.place().bad("name", "only TCP carries files to many"));
        };
        let mut config = keys.config(self.place())?;
        // A receiver opens connections too, and sends nothing on them for long.
        config.handshake = keys.handshake().unwrap_or(true);
        Ok(config.into())
    }

    /// Checks that the transport has streams if messages are spans of streams.
    pub fn check_streams(
        &self,
        config: &TransportConfig,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<(), Problem> {
        let path = carried.path;
        if !is_on_streams(carried.workload) || config.has_streams() {
            return Ok(());
        }
        let has_streams = |name: &Name| {
            let keys = name.read_keys(&Table::default(), Origin::new(0, 0..0)).ok()?;
            let place = Place { path: "", name: name.as_str() };
            keys.resolve(place, fabric, carried).ok().filter(TransportConfig::has_streams)
        };
        let all = Name::all();
        let having = all.iter().filter(|name| has_streams(name).is_some());
        let having: Vec<_> = having.map(|name| name.as_str()).collect();
        let message = format!("{} has no streams", self.name.as_str());
        Err(Problem::new(format!("{path}.exchange"), message).with_help(format!(
            "transports with streams: {}; with stream = \"unary\" they are made of RPCs, over any",
            having.join(", ")
        )))
    }
}

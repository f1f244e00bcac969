//! The keys of `[transport]`: the name of a transport, and its parameters.

use std::sync::Arc;

use rackweave_core::Span;
use rackweave_sim::Fabric;
use rackweave_transport::TransportConfig;
use rackweave_workload::WorkloadConfig;

use super::datagram::DatagramKeys;
use super::de::{self, DeError};
use super::homa::HomaKeys;
use super::keys::{self, Choice, Place, is_on_streams, read_label};
use super::polo::PoloKeys;
use super::problem::{Problem, SweptKeys};
use super::receiver_driven::{NdpKeys, PHostKeys};
use super::tcp::TcpKeys;
use super::testbed::World;
use super::tree::{Node, Origin, Table};
use crate::error::nearest;

/// The names of the transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Homa,
    Dctcp,
    Tcp,
    Ndp,
    PHost,
    Polo,
    Datagram,
}

impl Name {
    pub(crate) const ALL: [Self; 7] =
        [Self::Homa, Self::Dctcp, Self::Tcp, Self::Ndp, Self::PHost, Self::Polo, Self::Datagram];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Homa => "homa",
            Self::Dctcp => "dctcp",
            Self::Tcp => "tcp",
            Self::Ndp => "ndp",
            Self::PHost => "phost",
            Self::Polo => "polo",
            Self::Datagram => "datagram",
        }
    }
}

impl Choice for Name {
    type Keys = Keys;
    const ALL: &'static [Self] = &Self::ALL;
    const COMMON: &'static [&'static str] = &["name", "label", "over", "patience"];

    fn as_str(self) -> &'static str {
        self.as_str()
    }

    fn keys(self) -> Vec<&'static str> {
        match self {
            Self::Homa => HomaKeys::NAMES,
            Self::Dctcp | Self::Tcp => TcpKeys::NAMES,
            Self::Ndp => NdpKeys::NAMES,
            Self::PHost => PHostKeys::NAMES,
            Self::Polo => PoloKeys::NAMES,
            Self::Datagram => DatagramKeys::NAMES,
        }
        .to_vec()
    }

    fn read_keys(self, table: &Table, origin: Origin) -> Result<Keys, DeError> {
        Ok(match self {
            Self::Homa => Keys::Homa(Box::new(de::from_table(table, origin)?)),
            Self::Dctcp | Self::Tcp => Keys::Tcp(Box::new(de::from_table(table, origin)?)),
            Self::Ndp => Keys::Ndp(de::from_table(table, origin)?),
            Self::PHost => Keys::PHost(de::from_table(table, origin)?),
            Self::Polo => Keys::Polo(de::from_table(table, origin)?),
            Self::Datagram => Keys::Datagram(de::from_table(table, origin)?),
        })
    }

    fn unknown(text: &str) -> DeError {
        if super::cast::Name::named(text).is_some() {
            return DeError::new(
                format!("`{text}` carries files to many: it needs [workload.cast]"),
                "not a transport of other workloads",
            );
        }
        let help = match nearest(text, Self::names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", Self::names().join(", ")),
        };
        DeError::new(format!("unknown transport `{text}`"), "no such transport").with_help(help)
    }
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
pub(crate) struct Chosen {
    pub(crate) name: Name,
    /// The name in results, if it is not that of the transport.
    label: Option<String>,
    over: Over,
    /// The lower bound of how long a peer may be silent.
    patience: Option<Span>,
    path: String,
    keys: Keys,
}

pub(crate) enum Keys {
    Homa(Box<HomaKeys>),
    Tcp(Box<TcpKeys>),
    Ndp(NdpKeys),
    PHost(PHostKeys),
    Polo(PoloKeys),
    Datagram(DatagramKeys),
}

/// Reads the transport table at `path`.
pub(crate) fn read(node: &Node, path: &str, swept: &SweptKeys) -> Result<Chosen, DeError> {
    let (name, keys, table) = keys::read::<Name>(node, path, swept)?;
    let (label, over) = (read_label(table)?, read_over(table)?);
    let patience = read_patience(table)?;
    Ok(Chosen { name, label, over, patience, path: path.to_owned(), keys })
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
    pub(crate) fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.name.as_str().to_owned())
    }

    fn place(&self) -> Place<'_> {
        Place { path: &self.path, name: self.name.as_str() }
    }

    /// Returns the kernel's name of this transport's congestion control, if it is TCP.
    pub(crate) fn kernel_tcp(&self) -> Option<&'static str> {
        let Keys::Tcp(keys) = &self.keys else { return None };
        Some(keys.kernel_name(self.name == Name::Dctcp))
    }

    /// Resolves the configuration, with defaults for missing keys.
    pub(crate) fn resolve(
        &self,
        world: World,
        fabric: &Fabric,
        workload: &WorkloadConfig,
    ) -> Result<TransportConfig, Problem> {
        if let (World::Simulator, Some("bbr")) = (world, self.kernel_tcp()) {
            return Err(self
                .place()
                .bad("congestion", "only the kernel has BBR: the simulator has no such TCP")
                .with_help("`rackweave testbed` runs it; here tcp has \"newreno\" and \"cubic\""));
        }
        let mut config = self.resolve_keys(fabric, workload)?;
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

    fn resolve_keys(
        &self,
        fabric: &Fabric,
        workload: &WorkloadConfig,
    ) -> Result<TransportConfig, Problem> {
        let place = self.place();
        let is_dctcp = self.name == Name::Dctcp;
        let (max_message_bytes, config) = match &self.keys {
            Keys::Homa(keys) => {
                let config = keys.resolve(place, fabric, workload)?;
                return Ok(TransportConfig::Homa(Arc::new(config)));
            }
            Keys::Tcp(keys) => {
                let config = keys.resolve(place, is_dctcp)?;
                return Ok(TransportConfig::Tcp(Arc::new(config)));
            }
            Keys::Ndp(keys) => {
                let config = keys.resolve(place, fabric)?;
                (config.max_message_bytes, TransportConfig::Ndp(Arc::new(config)))
            }
            Keys::PHost(keys) => {
                let config = keys.resolve(place, fabric)?;
                (config.max_message_bytes, TransportConfig::PHost(Arc::new(config)))
            }
            Keys::Polo(keys) => {
                let config = keys.resolve(place, fabric)?;
                (config.max_message_bytes, TransportConfig::Polo(Arc::new(config)))
            }
            Keys::Datagram(keys) => {
                let config = keys.resolve(place, workload)?;
                (config.max_message_bytes, TransportConfig::Datagram(Arc::new(config)))
            }
        };
        place.refuse_longer_messages(workload, max_message_bytes)?;
        Ok(config)
    }

    /// Returns the transport of a one-to-many scheme's connections.
    pub(super) fn tcp(&self) -> Result<TransportConfig, Problem> {
        match &self.keys {
            Keys::Tcp(keys) => {
                let mut config = keys.resolve(self.place(), self.name == Name::Dctcp)?;
                // A receiver opens connections too, and sends nothing on them for long.
                config.handshake = keys.handshake().unwrap_or(true);
                Ok(TransportConfig::Tcp(Arc::new(config)))
            }
            _ => Err(self.place().bad("name", "only TCP carries files to many")),
        }
    }

    /// Checks that the transport has streams if messages are spans of streams. `path` is that of the workload.
    pub(super) fn check_streams(
        &self,
        path: &str,
        config: &TransportConfig,
        fabric: &Fabric,
        workload: &WorkloadConfig,
    ) -> Result<(), Problem> {
        if !is_on_streams(workload) || config.has_streams() {
            return Ok(());
        }
        let with_defaults = |name: &Name| {
            let keys = name.read_keys(&Table::default(), Origin::new(0, 0..0)).ok()?;
            let (label, over, patience, path) = (None, Over::Ip, None, String::new());
            let chosen = Self { name: *name, label, over, patience, path, keys };
            chosen.resolve_keys(fabric, workload).ok()
        };
        let has = |name: &Name| with_defaults(name).is_some_and(|config| config.has_streams());
        let having: Vec<_> = Name::ALL.into_iter().filter(has).map(Name::as_str).collect();
        let message = format!("{} has no streams", self.name.as_str());
        Err(Problem::new(format!("{path}.exchange"), message).with_help(format!(
            "transports with streams: {}; with stream = \"unary\" they are made of RPCs, over any",
            having.join(", ")
        )))
    }
}

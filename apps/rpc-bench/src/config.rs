//! The configuration of servers and clients.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_linux::endpoint::{Network, TicketFile, TicketFileError, Wire};
use rackweave_linux::{
    AnyEndpoint, Clock, Endpoint, EndpointConfig, EndpointError, Key, Peers, TcpConfig,
    TcpEndpoint, TcpError,
};
use rackweave_transport::{TransportConfig, homa, polo};
use rackweave_workload::{SizeDist, WorkloadError};

/// The transport that carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Homa over UDP, in this project's implementation.
    Homa,
    /// Polo over UDP, in this project's implementation.
    Polo,
    /// TCP as the kernel implements it.
    Tcp,
}

impl Transport {
    /// Returns its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Homa => "homa",
            Self::Polo => "polo",
            Self::Tcp => "tcp",
        }
    }

    /// Returns its IP protocol, as firewalls see it.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::Homa | Self::Polo => "UDP",
            Self::Tcp => "TCP",
        }
    }
}

/// A transport with parameters of the caller's, such as those of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Custom {
    /// Its name in reports.
    pub name: String,
    /// The parameters.
    pub config: TransportConfig,
}

/// A profile of Homa: a published set of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The profile of the Leverage Homa talk.
    #[default]
    LeverageHoma,
    /// The kernel module's defaults of 2023.
    Linux,
    /// The parameters of the SIGCOMM 2018 simulations, with a recovery from losses.
    Fabric,
}

/// The configuration of the endpoints, the same for servers and clients.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The transport that carries the calls.
    pub transport: Transport,
    /// What its packets travel in. HomaModule's are those of [`Transport::Homa`] with the module's own parameters of 2026, and have
    /// neither a key nor streams.
    pub wire: Wire,
    /// The parameters that are used in place of those of `transport` and `profile`; not with [`Transport::Tcp`].
    pub custom: Option<Custom>,
    /// The profile of Homa; other transports ignore it.
    pub profile: Profile,
    /// The rate of the host's link, which Homa and Polo do not exceed.
    pub link: Rate,
    /// How long to poll before sleeping.
    pub busy_poll: Span,
    /// The longest message in bytes; `None` for the transport's default.
    pub max_message: Option<u64>,
    /// TCP's congestion control; `None` for the system's default.
    pub congestion: Option<String>,
    /// The key that servers and clients share, if their datagrams are to be encrypted; not with TCP.
    pub key: Option<Key>,
    /// Whether a server accepts requests before the handshake from clients with a ticket; only with a key.
    pub accept_early: bool,
    /// The file in which a client keeps tickets, to send its first requests before the handshake; only with a key.
    pub tickets: Option<PathBuf>,
}

/// The longest message over Homa or Polo, by the size of the packets' length field.
const MAX_UDP_MESSAGE: u64 = u32::MAX as u64;

/// The longest message of the Linux kernel module.
const MODULE_MESSAGE: u64 = 1_000_000;

/// The longest message with the parameters of a scenario, which mostly permit any length. Rackweave's choice: both ends
/// hold a message in memory as a whole.
const MAX_CUSTOM_MESSAGE: u64 = 128 << 20;

/// The bytes in flight during a round trip that the profile `fabric` assumes.
const FABRIC_RTT_BYTES: u32 = 60_000;

/// The round trip between processes that Polo's first window covers. The value is Rackweave's choice.
const HOST_RTT: Span = Span::from_us(100);

/// The shortest time after which a peer is considered dead. It is long because processes wait for a processor.
const PATIENCE: Span = Span::from_secs(2);

impl Setup {
    /// A configuration with defaults for everything but the transport.
    #[must_use]
    pub const fn new(transport: Transport) -> Self {
        Self {
            transport,
            wire: Wire::Udp,
            custom: None,
            profile: Profile::LeverageHoma,
            link: Rate::from_gbps(10),
            busy_poll: Span::ZERO,
            max_message: None,
            congestion: None,
            key: None,
            accept_early: false,
            tickets: None,
        }
    }

    /// Returns the transport's name in reports.
    #[must_use]
    pub fn name(&self) -> &str {
        if self.is_of_module() {
            return "homa-module";
        }
        self.custom.as_ref().map_or(self.transport.name(), |custom| &custom.name)
    }

    /// Returns the IP protocol that carries the transport, as firewalls see it.
    #[must_use]
    pub const fn protocol(&self) -> &'static str {
        if self.is_of_module() {
            return "IP protocol 146";
        }
        if self.custom.is_some() { "UDP" } else { self.transport.protocol() }
    }

    /// Returns the option of the command that selects the transport.
    pub(crate) fn option(&self) -> String {
        let option = if self.is_of_module() { "--wire" } else { "--transport" };
        format!("{option} {}", self.name())
    }

    /// Whether its packets are those of HomaModule.
    #[must_use]
    pub const fn is_of_module(&self) -> bool {
        matches!(self.wire, Wire::HomaModule)
    }

    /// Checks that HomaModule's packets can carry what is configured.
    fn check_wire(&self) -> Result<(), BenchError> {
        if !self.is_of_module() {
            return Ok(());
        }
        let refused = |what| Err(BenchError::NotOfModule(what));
        if self.transport != Transport::Homa || self.custom.is_some() {
            return refused(
                "it carries Homa only: leave out --transport, --profile and --scenario",
            );
        }
        if self.key.is_some() || self.accept_early || self.tickets.is_some() {
            return refused("it has no encryption: leave out --key, --accept-early and --tickets");
        }
        if self.max_message.is_some_and(|max| max > MODULE_MESSAGE) {
            return refused("its messages have at most 1000000 bytes: lower --max-message");
        }
        Ok(())
    }

    /// Whether the transport has streams.
    pub(crate) fn has_streams(&self) -> bool {
        match &self.custom {
            Some(custom) => custom.config.has_streams(),
            None => self.transport != Transport::Polo,
        }
    }

    /// Returns the length of the longest message in bytes.
    #[must_use]
    pub fn longest(&self) -> u64 {
        if let Some(custom) = &self.custom {
            let most = custom.config.max_message_bytes().min(MAX_CUSTOM_MESSAGE);
            return self.max_message.map_or(most, |max| max.min(most));
        }
        match (self.transport, self.max_message) {
            (Transport::Tcp, Some(max)) => max,
            (_, Some(max)) => max.min(MAX_UDP_MESSAGE),
            // The kernel module's maximum, whatever the profile.
            (Transport::Homa, None) => MODULE_MESSAGE,
            (Transport::Polo | Transport::Tcp, None) => 128 << 20,
        }
    }

    fn machine(&self) -> Option<TransportConfig> {
        if let Some(custom) = &self.custom {
            return Some(custom.config.clone());
        }
        let longest = self.longest().min(MAX_UDP_MESSAGE) as u32;
        match self.transport {
            Transport::Homa => {
                let mut config = match self.profile {
                    _ if self.is_of_module() => homa::Config::linux_2026(self.link),
                    Profile::LeverageHoma => homa::Config::leverage(self.link),
                    Profile::Linux => homa::Config::linux(self.link),
                    Profile::Fabric => homa::Config::fabric(self.link, FABRIC_RTT_BYTES),
                };
                config.max_message_bytes = longest;
                Some(TransportConfig::Homa(Arc::new(config)).patient(PATIENCE))
            }
            Transport::Polo => {
                let mut config = polo::Config::slides().for_path(self.link, HOST_RTT).for_hosts();
                config.common.max_message_bytes = longest;
                Some(TransportConfig::Polo(Arc::new(config)).patient(PATIENCE))
            }
            Transport::Tcp => None,
        }
    }

    /// Creates an endpoint at an address that serves peers in these networks.
    pub(crate) fn endpoint(
        &self,
        clock: Clock,
        bind: SocketAddr,
        allow: Vec<Network>,
    ) -> Result<(AnyEndpoint, Option<TicketFile>), BenchError> {
        self.check_wire()?;
        if (self.accept_early || self.tickets.is_some()) && self.key.is_none() {
            return Err(BenchError::EarlyWithoutKey);
        }
        let (file, tickets) = self.tickets.as_deref().map(TicketFile::open).transpose()?.unzip();
        let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
        // The number is irrelevant, because peers are identified by address.
        let host = HostId(0);
        // One message is always accepted; this leaves room for more.
        let memory = (256 << 20_u32).max(4 * self.longest().min(1 << 40));
        let endpoint = match self.machine() {
            Some(machine) => {
                let config = match (self.wire, machine) {
                    (Wire::HomaModule, TransportConfig::Homa(homa)) => {
                        EndpointConfig::homa_module(host, bind, peers, homa)
                    }
                    (_, machine) => EndpointConfig::new(host, bind, peers, &machine),
                };
                Endpoint::new(EndpointConfig {
                    clock,
                    link: self.link,
                    busy_poll: self.busy_poll,
                    send_bytes: memory,
                    receive_bytes: memory,
                    key: self.key.clone(),
                    accept_early: self.accept_early,
                    tickets,
                    ..config
                })?
                .into()
            }
            None if self.key.is_some() => return Err(BenchError::KeyOverTcp),
            None => TcpEndpoint::new(TcpConfig {
                clock,
                busy_poll: self.busy_poll,
                max_message_bytes: self.longest(),
                congestion: self.congestion.clone(),
                send_bytes: memory,
                receive_bytes: memory,
                ..TcpConfig::new(host, bind, peers)
            })?
            .into(),
        };
        Ok((endpoint, file))
    }
}

/// The lengths of requests: a published distribution or a single length.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes(pub SizeDist);

/// The error for a text that is not a length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is neither a workload ({names}) nor a length (such as 100, 64KiB or 1MB)", names = SizeDist::NAMES.join(", "))]
pub struct NotASize {
    text: String,
}

impl FromStr for Sizes {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let wrong = || NotASize { text: text.to_owned() };
        let bytes = match text.parse::<u64>() {
            Ok(bytes) => Some(bytes),
            Err(_) => text.parse::<Bytes>().ok().map(|bytes| bytes.0),
        };
        match bytes {
            Some(bytes) => SizeDist::fixed(bytes).map(Self).map_err(|_| wrong()),
            None => SizeDist::named(text).map(Self).map_err(|_| wrong()),
        }
    }
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Closed loop: always as many as may be outstanding.
    Closed,
    /// Open loop: a Poisson process with this many gigabits of requests per second.
    Open {
        /// The rate in gigabits per second, over all threads.
        gbps: f64,
    },
    /// One request at a time, with a number of requests of each length.
    Unloaded {
        /// The number of requests of each length.
        each: u64,
    },
}

/// The kind of exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Responses are as long as their requests.
    Echo,
    /// Responses are short: 100 bytes.
    OneWay,
    /// Each thread sends one stream, and the server replies with its digest.
    Stream,
}

/// The configuration of a benchmark run.
#[derive(Clone, Debug)]
pub struct BenchConfig {
    /// Configuration of the endpoints.
    pub setup: Setup,
    /// Addresses of the servers; requests are spread over them.
    pub servers: Vec<SocketAddr>,
    /// The distribution of the lengths of requests.
    pub sizes: SizeDist,
    /// The kind of exchange.
    pub mode: Mode,
    /// When requests are sent.
    pub load: Load,
    /// The number of threads, each with its own endpoint.
    pub ports: u16,
    /// The largest number of outstanding requests, across all threads.
    pub outstanding: u32,
    /// The duration of the run; `None` if something else ends it.
    pub duration: Option<Span>,
    /// The number of bytes of requests or streams after which the run ends.
    pub total: Option<u64>,
    /// The time after which a request without a response counts as failed.
    pub deadline: Span,
    /// Whether requests are sent as idempotent ones.
    pub idempotent: bool,
    /// Whether each response is compared with its request, and both are digested.
    pub check: bool,
    /// The file to which all round trips are written, if any.
    pub dump: Option<PathBuf>,
    /// The seed of lengths, contents and times.
    pub seed: u64,
}

impl BenchConfig {
    /// The number of bytes of requests or of a stream that one thread sends: its share of the total.
    pub(crate) fn share(&self, thread: usize) -> u64 {
        let Some(total) = self.total else { return u64::MAX };
        let threads = u64::from(self.ports).max(1);
        total / threads + u64::from((thread as u64) < total % threads)
    }

    /// Validates the configuration. Messages longer than the transport's maximum are truncated if `truncate` allows it.
    ///
    /// # Errors
    /// If there are longer messages that must not be truncated, or options contradict each other.
    pub fn check(&mut self, truncate: bool) -> Result<(), BenchError> {
        if self.setup.tickets.is_some() && !self.idempotent {
            return Err(BenchError::TicketsNotIdempotent);
        }
        self.setup.check_wire()?;
        if self.setup.is_of_module() && self.mode != Mode::Echo {
            return Err(BenchError::NotOfModule(
                "it has requests and full responses only: leave out --stream and --one-way",
            ));
        }
        let longest = self.setup.longest();
        if self.mode == Mode::Stream {
            return match (self.setup.has_streams(), self.check) {
                (false, _) => Err(BenchError::NoStreams),
                (true, false) => Ok(()),
                // Streams are always digested.
                (true, true) => {
                    self.check = false;
                    Ok(())
                }
            };
        }
        if truncate {
            self.sizes = self.sizes.truncated(longest).map_err(WorkloadError::from)?;
        }
        if self.sizes.max() > longest {
            return Err(BenchError::TooLong {
                name: self.sizes.name().to_owned(),
                max: self.sizes.max(),
                transport: self.setup.name().to_owned(),
                longest,
            });
        }
        if self.check && self.mode == Mode::OneWay {
            return Err(BenchError::CheckOneWay);
        }
        Ok(())
    }
}

/// Why a run could not start, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The workload has messages that are too long for the transport.
    #[error(
        "{name} has messages of up to {max} bytes, and {transport} is set to carry {longest} at most: \
         --truncate cuts longer ones down, --max-message raises the limit (at the server too)"
    )]
    TooLong {
        /// The name of the workload.
        name: String,
        /// The length of its longest message.
        max: u64,
        /// The name of the transport.
        transport: String,
        /// The length of the transport's longest message.
        longest: u64,
    },
    /// Something that HomaModule's packets do not carry.
    #[error("--wire homa-module is what the Linux kernel module speaks, and {0}")]
    NotOfModule(&'static str),
    /// Polo has no streams.
    #[error("Polo has no streams: --stream requires homa or tcp")]
    NoStreams,
    /// `--check` requires full responses.
    #[error(
        "--check compares responses with requests, and with --one-way there is nothing to compare"
    )]
    CheckOneWay,
    /// A key and the kernel's TCP.
    #[error(
        "--key protects transports over UDP: --transport homa or polo; the kernel's TCP is not encrypted"
    )]
    KeyOverTcp,
    /// Early requests without a key.
    #[error(
        "--accept-early and --tickets are for requests that are encrypted before the handshake: give --key FILE too"
    )]
    EarlyWithoutKey,
    /// Tickets are used by idempotent requests only.
    #[error(
        "--tickets sends the first requests before the handshake, so that they may be executed twice: allow it with --idempotent"
    )]
    TicketsNotIdempotent,
    /// The file of tickets cannot be used.
    #[error(transparent)]
    Tickets(#[from] TicketFileError),
    /// The endpoint over UDP failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint over TCP failed.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// There is no route to a server.
    #[error("no route from this host to {server}: {source}")]
    NoRoute {
        /// The address of the server.
        server: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The dump cannot be written.
    #[error("cannot write {path}: {source}")]
    Dump {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Returns the address from which this host reaches a server.
pub(crate) fn local_address(server: SocketAddr) -> Result<IpAddr, BenchError> {
    let any: SocketAddr =
        if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    // Connecting a UDP socket sends nothing, but assigns a source address.
    let socket = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(server)?;
        socket.local_addr()
    });
    socket.map(|address| address.ip()).map_err(|source| BenchError::NoRoute { server, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_names_or_lengths() {
        assert_eq!("w4".parse::<Sizes>().unwrap().0.name(), "W4");
        assert_eq!("1000".parse::<Sizes>().unwrap().0.max(), 1000);
        assert_eq!("64KiB".parse::<Sizes>().unwrap().0.max(), 65_536);
        let wrong = "w9".parse::<Sizes>().unwrap_err().to_string();
        assert!(wrong.contains("w9") && wrong.contains("W5"), "{wrong}");
        assert!("0".parse::<Sizes>().is_err());
    }
}

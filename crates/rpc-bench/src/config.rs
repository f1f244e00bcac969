//! What is run.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_linux::endpoint::Network;
use rackweave_linux::{
    AnyEndpoint, Clock, Endpoint, EndpointConfig, EndpointError, Peers, TcpConfig, TcpEndpoint,
    TcpError,
};
use rackweave_transport::{TransportConfig, homa, polo};
use rackweave_workload::{SizeDist, WorkloadError};

/// What carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Homa over UDP.
    Homa,
    /// Polo over UDP.
    Polo,
    /// The kernel's TCP.
    Tcp,
}

impl Transport {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Homa => "homa",
            Self::Polo => "polo",
            Self::Tcp => "tcp",
        }
    }

    /// What goes through a firewall.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::Homa | Self::Polo => "UDP",
            Self::Tcp => "TCP",
        }
    }
}

/// Which Homa.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The talk's.
    #[default]
    LeverageHoma,
    /// The kernel module's of 2023.
    Linux,
    /// The paper's simulator's.
    Sigcomm18,
}

/// What endpoints are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The transport.
    pub transport: Transport,
    /// Which Homa, if it is Homa.
    pub profile: Profile,
    /// The rate of the host's link: Homa and Polo send no faster.
    pub link: Rate,
    /// How long a wait looks again and again before it sleeps.
    pub busy_poll: Span,
    /// The longest message; `None`: what the transport has by itself.
    pub max_message: Option<u64>,
    /// TCP's congestion control; `None`: the system's default.
    pub congestion: Option<String>,
}

/// The longest message over Homa or Polo: the packets' length field says no more.
const MAX_UDP_MESSAGE: u64 = u32::MAX as u64;

/// Bytes in flight on the way and back that Homa's simulator profile reckons with.
const SIGCOMM18_RTT_BYTES: u32 = 60_000;

/// The way to a process and back that Polo's first window covers (ours).
const HOST_RTT: Span = Span::from_us(100);

/// For how long a peer may be silent, at least: processes wait for a processor.
const PATIENCE: Span = Span::from_secs(2);

impl Setup {
    /// With defaults for all that is not named.
    #[must_use]
    pub const fn new(transport: Transport) -> Self {
        Self {
            transport,
            profile: Profile::LeverageHoma,
            link: Rate::from_gbps(10),
            busy_poll: Span::ZERO,
            max_message: None,
            congestion: None,
        }
    }

    /// The longest message.
    #[must_use]
    pub fn longest(&self) -> u64 {
        match (self.transport, self.max_message) {
            (Transport::Tcp, Some(max)) => max,
            (_, Some(max)) => max.min(MAX_UDP_MESSAGE),
            // As long as the kernel module takes them, whatever the profile.
            (Transport::Homa, None) => 1_000_000,
            (Transport::Polo | Transport::Tcp, None) => 128 << 20,
        }
    }

    fn machine(&self) -> Option<TransportConfig> {
        let longest = self.longest().min(MAX_UDP_MESSAGE) as u32;
        match self.transport {
            Transport::Homa => {
                let mut config = match self.profile {
                    Profile::LeverageHoma => homa::Config::leverage(self.link),
                    Profile::Linux => homa::Config::linux(self.link),
                    Profile::Sigcomm18 => homa::Config::sigcomm18(self.link, SIGCOMM18_RTT_BYTES),
                };
                config.max_message_bytes = longest;
                Some(TransportConfig::Homa(Arc::new(config)).patient(PATIENCE))
            }
            Transport::Polo => {
                let fitted = polo::Config::slides().for_path(self.link, HOST_RTT).for_hosts();
                let config = polo::Config { max_message_bytes: longest, ..fitted };
                Some(TransportConfig::Polo(Arc::new(config)).patient(PATIENCE))
            }
            Transport::Tcp => None,
        }
    }

    /// An endpoint at an address, which serves peers of these networks.
    pub(crate) fn endpoint(
        &self,
        clock: Clock,
        bind: SocketAddr,
        allow: Vec<Network>,
    ) -> Result<AnyEndpoint, BenchError> {
        let peers = Peers::Direct { hosts: BTreeMap::new(), allow };
        // Numbers do not matter where peers are known by address.
        let host = HostId(0);
        // One message at a time always goes; more than that should.
        let memory = (256 << 20_u32).max(4 * self.longest().min(1 << 40));
        Ok(match self.machine() {
            Some(machine) => {
                let config = EndpointConfig::new(host, bind, peers, &machine);
                Endpoint::new(EndpointConfig {
                    clock,
                    link: self.link,
                    busy_poll: self.busy_poll,
                    send_bytes: memory,
                    receive_bytes: memory,
                    ..config
                })?
                .into()
            }
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
        })
    }
}

/// How long requests are: a published distribution or all of one length.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes(pub SizeDist);

/// Why a text says no length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is neither a workload ({names}) nor a length (100, 64KiB, 1MB)", names = SizeDist::NAMES.join(", "))]
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
    /// As many as may be outstanding, always.
    Closed,
    /// At times of a Poisson process, so many gigabits of requests a second.
    Open {
        /// The rate, over all threads.
        gbps: f64,
    },
    /// One after the other, so many of each length.
    Unloaded {
        /// How many.
        each: u64,
    },
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The response is as long as the request.
    Echo,
    /// The response is short: 100 bytes.
    OneWay,
    /// Bytes go over one stream a thread, and the server answers with their digest.
    Stream,
}

/// A run of clients.
#[derive(Clone, Debug)]
pub struct BenchConfig {
    /// What their endpoints are made of.
    pub setup: Setup,
    /// The servers' endpoints; each request goes to one of them.
    pub servers: Vec<SocketAddr>,
    /// How long requests are.
    pub sizes: SizeDist,
    /// What is done.
    pub mode: Mode,
    /// When requests are sent.
    pub load: Load,
    /// Threads, each with its own endpoint.
    pub ports: u16,
    /// Requests that are under way at a time, over all threads.
    pub outstanding: u32,
    /// How long it goes; `None`: until something else ends it.
    pub duration: Option<Span>,
    /// Bytes of requests (or streams) after which it ends.
    pub total: Option<u64>,
    /// A request without a response for so long has failed.
    pub deadline: Span,
    /// Every response is compared with its request, and both are digested.
    pub check: bool,
    /// Every round trip goes into this file.
    pub dump: Option<PathBuf>,
    /// Of lengths, contents, times.
    pub seed: u64,
}

impl BenchConfig {
    /// The lengths as they are sent, where longer messages than the transport takes are cut down if
    /// `truncate` says so.
    ///
    /// # Errors
    /// If there are longer ones and they are not to be cut, or nothing else fits together.
    pub fn check(&mut self, truncate: bool) -> Result<(), BenchError> {
        let longest = self.setup.longest();
        if self.mode == Mode::Stream {
            return match (self.setup.transport, self.check) {
                (Transport::Polo, _) => Err(BenchError::NoStreams),
                (_, false) => Ok(()),
                // They are digested anyway.
                (_, true) => {
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
                transport: self.setup.transport.name(),
                longest,
            });
        }
        if self.check && self.mode == Mode::OneWay {
            return Err(BenchError::CheckOneWay);
        }
        Ok(())
    }
}

/// Why nothing was run, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A length that the transport does not carry.
    #[error(
        "{name} has messages of up to {max} bytes, and {transport} is set to carry {longest} at most: \
         --truncate cuts longer ones down, --max-message raises the limit (at the server too)"
    )]
    TooLong {
        /// The workload.
        name: String,
        /// Its longest message.
        max: u64,
        /// The transport.
        transport: &'static str,
        /// What it takes.
        longest: u64,
    },
    /// Streams over Polo.
    #[error("Polo has messages only, no streams: --stream goes with homa and tcp")]
    NoStreams,
    /// `--check` with short responses.
    #[error(
        "--check compares responses with requests, and with --one-way there is nothing to compare"
    )]
    CheckOneWay,
    /// No endpoint over UDP.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// No endpoint over TCP.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The workload is none.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// No way to a server.
    #[error("there is no way from this host to {server}: {source}")]
    NoRoute {
        /// The server.
        server: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The file for the dump can't be written.
    #[error("cannot write {path}: {source}")]
    Dump {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The address from which this host talks to a server.
pub(crate) fn local_address(server: SocketAddr) -> Result<IpAddr, BenchError> {
    let any: SocketAddr =
        if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    // A UDP socket that is connected sends nothing, but has been given an address.
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

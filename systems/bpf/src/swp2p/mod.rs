//! SWP2P's program of a switch in the Linux kernel: a tc program at the ingress of each port, for racks whose switch is a Linux
//! machine. It redirects the requests of clients of an image to other clients that have the chunks, within about a microsecond
//! and with no process in between: the queue in front of the processor of SWP2P's switch ("hiccups", slides) does not exist.
//!
//! ```no_run
//! use rackweave_bpf::swp2p::{Tor, TorConfig};
//!
//! let ports = ["p0", "p1", "p2"].map(String::from).to_vec();
//! let config = TorConfig::new(ports, [192, 0, 2, 1].into());
//! let tor = Tor::attach(&config)?;
//! println!("{:?}", tor.counters()?);
//! # Ok::<(), rackweave_bpf::TorError>(())
//! ```
//!
//! The program only examines UDP packets to the server's address and port, and passes them and all other frames to whatever
//! forwards frames between the ports: a Linux bridge, or routing. Hosts may have any IPv4 addresses. It is written in C
//! (`swp2p.h`: formats; `directory.h`: who has what; `tor.c`: messages), its source is in this binary, and `clang` compiles it
//! when a [`Tor`] is attached ([`crate::tc`]).
//!
//! It makes the choices of SWP2P's program in Rust (`swp2p::switch`), for each policy and each number of pending holders that may
//! follow one another (0, 1 and [`MOST_PENDING`]); a test compares both frame by frame. These differences remain, since the kernel's
//! program makes no packets, has no key, and its maps have a fixed size:
//!
//! - **At most [`MOST_PENDING`] pending holders** follow one another. In Rust, `directory::Config::pending` may be larger.
//! - **Batches are not divided.** A request goes as a whole to a client that has all of its chunks, or else to the server.
//! - **A returned request** (`wire::frisbee::Body::Return`) goes as it is to another holder, which serves the
//!   requester that it names, or else to the server. In Rust it becomes a request again.
//! - **A client is bound** to the interface, MAC address and UDP port of its first message, until it leaves or was silent. It has
//!   chunks of one image at a time, and its join with another number makes its reports void.
//! - **A key** is not verified here, but by the hosts, since a redirected message keeps its tag. What an unauthenticated message can do
//!   is misdirect: a request that reaches a host without the chunk is returned, or repeated after a timeout, and its third
//!   repetition goes to the server.

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use aya::maps::Array;

use crate::tc::{self, Classifier};
use crate::{TorError, check_ports, configure, counters, state};

/// The C sources, which are compiled as one file, behind the number of chunks.
const SOURCES: [&str; 5] = [
    tc::PRELUDE,
    include_str!("swp2p.h"),
    include_str!("kernel.h"),
    include_str!("directory.h"),
    include_str!("tor.c"),
];

/// The UDP port of control messages.
pub const PORT: u16 = 6723;
/// The largest number of clients at a switch. SWP2P's slides have at most 48; more are served by the server.
pub const CLIENTS: usize = 64;
/// The number of chunks is a multiple of this: those of one report.
pub const WINDOW: u32 = 8192;
/// The largest number of chunks for which a program can have memory, which is 264 bytes for each.
pub const MOST_CHUNKS: u32 = 1 << 19;
/// The largest number of clients that wait for a chunk themselves and follow one another ([`TorConfig::pending`]).
/// Rackweave's choice: it is the directory's default, and the program follows as many steps for each client and chunk,
/// also where fewer clients wait.
pub const MOST_PENDING: u8 = 2;
/// The largest number of ports.
pub const PORTS: usize = 1024;
/// The name of the program in the kernel.
const PROGRAM: &str = "rackweave_swp2p";
/// The lengths of `struct config` in 32-bit words, and of `struct state` in 64-bit words.
const CONFIG: usize = 8;
const STATE: usize = FIRST_CLIENT + CLIENTS * CLIENT + CLIENTS * CLIENTS / 2;
/// Where the clients begin in `struct state`, and the length of one.
const FIRST_CLIENT: usize = 1 + CLIENTS / 2;
const CLIENT: usize = 8;

/// The rule by which one of several holders is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Holders take turns, as in SWP2P (slides, "Chunk Availability Database").
    RoundRobin,
    /// The holder with the fewest redirected requests that are not yet covered by a report, and of several the one that has the fewest
    /// chunks; equals take turns.
    #[default]
    LeastLoaded,
}

/// The configuration of a [`Tor`]. The defaults of [`TorConfig::new`] are those of `swp2p::directory`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorConfig {
    /// The interfaces at which clients are, in the namespace of the thread that attaches the program. Clients at other interfaces
    /// are served by the server. The server's interface need not be among them.
    pub ports: Vec<String>,
    /// The server's address.
    pub server: Ipv4Addr,
    /// The server's UDP port.
    pub server_port: u16,
    /// How a holder is chosen.
    pub policy: Policy,
    /// How many clients that wait for a chunk themselves may follow one another before one that has the chunk, or the server, up to
    /// [`MOST_PENDING`]. Clients that start together then do not each fetch the chunk from the server. With 0, as in SWP2P, only clients
    /// that have the chunk are asked for it.
    pub pending: u8,
    /// A client from which nothing has arrived for this time is not chosen, and may be forgotten.
    pub silence_ms: u32,
    /// A request with this many earlier tries goes to the server.
    pub max_tries: u8,
    /// A holder is no longer chosen after this many requesters have received a damaged chunk from it.
    pub accusers: u8,
    /// Chunks of an image for which there is memory, a multiple of [`WINDOW`]. Chunks beyond are served by the server.
    pub chunks: u32,
    /// Maximum number of clients at one port, so that one port cannot occupy all slots by forged addresses.
    pub clients_per_port: u8,
}

impl TorConfig {
    /// Returns the default configuration for clients at these ports.
    #[must_use]
    pub const fn new(ports: Vec<String>, server: Ipv4Addr) -> Self {
        Self {
            ports,
            server,
            server_port: PORT,
            policy: Policy::LeastLoaded,
            pending: 2,
            silence_ms: 5000,
            max_tries: 3,
            accusers: 2,
            chunks: 65_536,
            clients_per_port: 16,
        }
    }
}

counters! {
    /// Counters of a ToR, in packets.
    pub struct TorCounters {
        /// Control messages of clients to the server.
        pub messages,
        /// Requests among them.
        pub requests,
        /// Reports among them.
        pub reports,
        /// Returned requests among them that concern chunks which the requester waits for.
        pub returned,
        /// Requests redirected to a client that has the chunks.
        pub to_holders,
        /// Requests redirected to a client that is about to have them.
        pub to_pending,
        /// Requests left to the server, because no client can serve them.
        pub to_server,
        /// Messages that were not recorded because a bound was reached; requests among them went to the server.
        pub refused,
        /// Messages that named a client and did not come from it; they went to the server.
        pub spoofed,
        /// Packets with several messages of a host that leaves segmentation to its interface; they went to the server.
        pub super_packets,
        /// Holders that are no longer chosen, because requesters have received damaged chunks from them.
        pub barred,
        /// Clients that were forgotten because they were silent.
        pub silent,
        /// Requests that were lost because the kernel could not rewrite them.
        pub lost,
    }
}

/// A client as the ToR knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorClient {
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its MAC address, or that of the router through which it is reached.
    pub mac: [u8; 6],
    /// The index of its interface.
    pub interface: u32,
    /// The image whose chunks it has, if it has reported or requested any.
    pub image: Option<u32>,
    /// Chunks that others have been sent here for and have not reported yet.
    pub load: u32,
    /// Chunks that it has reported.
    pub held: u32,
    /// Whether it is no longer chosen, because requesters have received damaged chunks from it.
    pub is_barred: bool,
}

/// SWP2P's program in the kernel. It ends when this is dropped or the process ends for any reason, and leaves nothing behind.
#[derive(Debug)]
pub struct Tor {
    classifier: Classifier,
}

impl Tor {
    /// Compiles and loads the program, and attaches it to all ports. This takes about 200 ms.
    ///
    /// # Errors
    /// If the configuration is invalid, the compiler or a capability is missing, or the kernel rejects the program.
    pub fn attach(config: &TorConfig) -> Result<Self, TorError> {
        config.check()?;
        tc::interface_indices(&config.ports)?;
        let mut tor = Self::load(config, PROGRAM)?;
        tor.classifier.attach(&config.ports)?;
        Ok(tor)
    }

    fn load(config: &TorConfig, program: &'static str) -> Result<Self, TorError> {
        let chunks = format!("#define SWP2P_CHUNKS {}u\n", config.chunks);
        let [a, b, c, d, e] = SOURCES;
        let mut classifier = Classifier::load(&[&chunks, a, b, c, d, e], program)?;
        let words: [u32; CONFIG] = [
            u32::from_ne_bytes(config.server.octets()),
            u32::from(config.server_port.to_be()),
            config.silence_ms,
            u32::from(config.policy == Policy::LeastLoaded),
            u32::from(config.pending),
            u32::from(config.max_tries),
            u32::from(config.accusers.max(1)),
            u32::from(config.clients_per_port),
        ];
        configure(&mut classifier, words)?;
        Ok(Self { classifier })
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// If they cannot be read from the kernel.
    pub fn counters(&self) -> Result<TorCounters, TorError> {
        TorCounters::read(&self.classifier)
    }

    /// Returns the clients, by slot. Silent clients are among them until their slot is needed.
    ///
    /// # Errors
    /// If they cannot be read from the kernel.
    pub fn clients(&self) -> Result<Vec<TorClient>, TorError> {
        let map =
            Array::<_, [u64; STATE]>::try_from(self.classifier.map("state")?).map_err(state)?;
        let words = map.get(&0, 0).map_err(state)?;
        let used = words[0];
        let all = words[FIRST_CLIENT..].chunks_exact(CLIENT).take(CLIENTS);
        let slots = all.enumerate().filter(|(slot, _)| used >> slot & 1 == 1);
        Ok(slots.map(|(_, words)| TorClient::read(words)).collect())
    }
}

impl TorClient {
    /// Reads `struct client`.
    fn read(words: &[u64]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let array = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let word = |at: usize| u32::from_ne_bytes(array(at));
        // Sums of different processors may be less than nothing for a moment.
        let count = |at: usize| word(at).cast_signed().max(0).cast_unsigned();
        let flags = word(32);
        Self {
            ip: Ipv4Addr::from(array(0)),
            mac: [bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13]],
            interface: word(4),
            image: (flags & 2 != 0).then(|| word(20)),
            load: count(28),
            held: count(36),
            is_barred: flags & 4 != 0,
        }
    }
}

impl TorConfig {
    /// Returns the reason for which the configuration is invalid.
    fn check(&self) -> Result<(), TorError> {
        let wrong = |what: String| Err(TorError::Config(what));
        check_ports(&self.ports, PORTS, "switch")?;
        if self.chunks == 0 || self.chunks > MOST_CHUNKS || !self.chunks.is_multiple_of(WINDOW) {
            return wrong(format!(
                "the number of chunks is a multiple of {WINDOW} up to {MOST_CHUNKS}, not {}",
                self.chunks
            ));
        }
        if self.server.is_unspecified() || self.server.is_multicast() || self.server.is_broadcast()
        {
            return wrong(format!("{} is not the address of a server", self.server));
        }
        if self.pending > MOST_PENDING {
            return wrong(format!(
                "0 to {MOST_PENDING} clients that wait for a chunk may follow one another, not {}",
                self.pending
            ));
        }
        if self.server_port == 0 || self.clients_per_port == 0 {
            return wrong("the server's port and the clients of a port are at least 1".to_owned());
        }
        Ok(())
    }
}

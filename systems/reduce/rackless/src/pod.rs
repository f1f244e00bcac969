//! A pod: servers, the `ToR`s below which an optical switch can place them, and what joins the `ToR`s above.

use rackweave_core::Rate;

/// The largest number of servers of a pod.
pub const MAX_SERVERS: u32 = 4096;
/// The largest number of `ToR`s of a pod.
pub const MAX_TORS: usize = 128;
/// The largest number of server ports, and of uplinks, of a `ToR`.
pub const MAX_PORTS: u32 = 512;
/// The bytes of a key-value pair in a packet of 64 pairs: a key of 16 bytes and a value of 4.
pub const PAIR_BYTES: u64 = 20;

/// A top-of-rack switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tor {
    /// The number of ports to the optical switch, hence of servers that it can have at a time.
    pub ports: u32,
    /// The number of links to the network above.
    pub uplinks: u32,
    /// The rate of each of these links, in each direction.
    pub uplink_rate: Rate,
    /// The number of key-value slots in which it can aggregate; zero for a switch that is not programmable.
    pub slots: u64,
}

impl Tor {
    /// Returns whether the switch can aggregate (a P-ToR).
    #[must_use]
    pub const fn is_programmable(&self) -> bool {
        self.slots > 0
    }

    /// Returns the rate of all uplinks together, in each direction.
    #[must_use]
    pub const fn uplink_capacity(&self) -> Rate {
        Rate(self.uplink_rate.0.saturating_mul(self.uplinks as u64))
    }
}

/// How the slots of a programmable `ToR` are used, which decides how many bytes of an upload they absorb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TableUse {
    /// All workers upload one range of hashed keys after another, each no larger than the table, so that a small table absorbs
    /// as much as one without limit.
    #[default]
    KeyRanges,
    /// The first keys to arrive keep their slots, and pairs with other keys pass to the master unaggregated. The jobs of a
    /// period have equal regions of the table.
    FirstCome,
}

/// A pod. Servers and `ToR`s are numbered from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    servers: u32,
    server_rate: Rate,
    tors: Vec<Tor>,
    table: TableUse,
    pair_bytes: u64,
}

/// Why a pod is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodError {
    /// There is no server.
    #[error("a pod needs at least 1 server")]
    NoServers,
    /// There are too many servers.
    #[error("a pod can have {MAX_SERVERS} servers, not {0}")]
    TooManyServers(u64),
    /// There is no `ToR`.
    #[error("a pod needs at least 1 ToR")]
    NoTors,
    /// There are too many `ToR`s.
    #[error("a pod can have {MAX_TORS} ToRs, not {0}")]
    TooManyTors(usize),
    /// The `ToR`s do not have a port for each server.
    #[error("the ToRs have {ports} server ports in all, fewer than the {servers} servers")]
    TooFewPorts {
        /// The ports of all `ToR`s.
        ports: u64,
        /// The number of servers.
        servers: u32,
    },
    /// The links of servers have no rate.
    #[error("the servers' links need a rate above 0")]
    NoServerRate,
    /// A `ToR` has no port for a server.
    #[error("ToR {0} has no server port")]
    NoPorts(usize),
    /// A `ToR` has too many ports or uplinks.
    #[error("ToR {tor} can have {MAX_PORTS} server ports and as many uplinks, not {count}")]
    TooManyPorts {
        /// The number of the `ToR`.
        tor: usize,
        /// Its ports or uplinks.
        count: u32,
    },
    /// A `ToR` has no link to the others, or one without a rate.
    #[error("ToR {0} needs at least 1 uplink with a rate above 0, because the pod has other ToRs")]
    NoUplinks(usize),
    /// A pair has no bytes.
    #[error("a key-value pair has at least 1 byte")]
    NoPairBytes,
}

impl Pod {
    /// Creates a pod whose servers have links of this rate. There may be more ports than servers.
    ///
    /// # Errors
    /// If a server has no port, a number is zero that must not be, or the pod is too large.
    pub fn new(servers: u32, server_rate: Rate, tors: Vec<Tor>) -> Result<Self, PodError> {
        if tors.is_empty() {
            return Err(PodError::NoTors);
        }
        if tors.len() > MAX_TORS {
            return Err(PodError::TooManyTors(tors.len()));
        }
        for (number, tor) in tors.iter().enumerate() {
            if tor.ports == 0 {
                return Err(PodError::NoPorts(number));
            }
            let count = tor.ports.max(tor.uplinks);
            if count > MAX_PORTS {
                return Err(PodError::TooManyPorts { tor: number, count });
            }
            if tors.len() > 1 && tor.uplink_capacity().0 == 0 {
                return Err(PodError::NoUplinks(number));
            }
        }
        if servers == 0 {
            return Err(PodError::NoServers);
        }
        if servers > MAX_SERVERS {
            return Err(PodError::TooManyServers(u64::from(servers)));
        }
        if server_rate.0 == 0 {
            return Err(PodError::NoServerRate);
        }
        let ports = tors.iter().map(|tor| u64::from(tor.ports)).sum();
        if ports < u64::from(servers) {
            return Err(PodError::TooFewPorts { ports, servers });
        }
        let (table, pair_bytes) = (TableUse::default(), PAIR_BYTES);
        Ok(Self { servers, server_rate, tors, table, pair_bytes })
    }

    /// Creates the pod of the P4-ORDC paper (section 3): 8 servers with links of 10 Gbps, one programmable `ToR` with four ports and
    /// two others with two. The paper does not say how they are joined; here each has one uplink of 10 Gbps for two ports.
    #[must_use]
    pub fn paper() -> Self {
        let rate = Rate::from_gbps(10);
        let tor = |ports, slots| Tor { ports, uplinks: ports / 2, uplink_rate: rate, slots };
        Self {
            servers: 8,
            server_rate: rate,
            tors: vec![tor(4, 1 << 16), tor(2, 0), tor(2, 0)],
            table: TableUse::default(),
            pair_bytes: PAIR_BYTES,
        }
    }

    /// Returns the same pod with another use of its slots and other pairs.
    ///
    /// # Errors
    /// If a pair has no bytes.
    pub fn with_table(mut self, table: TableUse, pair_bytes: u64) -> Result<Self, PodError> {
        if pair_bytes == 0 {
            return Err(PodError::NoPairBytes);
        }
        self.table = table;
        self.pair_bytes = pair_bytes;
        Ok(self)
    }

    /// Returns the number of servers.
    #[must_use]
    pub const fn servers(&self) -> u32 {
        self.servers
    }

    /// Returns the rate of each server's link, in each direction.
    #[must_use]
    pub const fn server_rate(&self) -> Rate {
        self.server_rate
    }

    /// Returns the `ToR`s in the order of their numbers.
    #[must_use]
    pub fn tors(&self) -> &[Tor] {
        &self.tors
    }

    /// Returns how the slots of programmable `ToR`s are used.
    #[must_use]
    pub const fn table(&self) -> TableUse {
        self.table
    }

    /// Returns the bytes of one key-value pair on the wire, which relates slots to bytes.
    #[must_use]
    pub const fn pair_bytes(&self) -> u64 {
        self.pair_bytes
    }

    /// Returns the lowest number of a programmable `ToR`.
    #[must_use]
    pub fn programmable(&self) -> Option<usize> {
        self.tors.iter().position(Tor::is_programmable)
    }
}

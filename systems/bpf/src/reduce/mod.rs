//! The aggregating switch in the Linux kernel: a tc program at the ingress of each port, for racks whose switch is a Linux machine.
//! It adds up the pairs of workers on their way to a master, within about a microsecond a packet and with no process in between.
//!
//! ```no_run
//! use rackweave_bpf::reduce::{Tor, TorConfig};
//!
//! let ports = ["p0", "p1", "p2"].map(String::from).to_vec();
//! let config = TorConfig::new(ports, [192, 0, 2, 1].into(), rackweave_linux::random() as u64);
//! let tor = Tor::attach(&config)?;
//! println!("{:?}", tor.counters()?);
//! # Ok::<(), rackweave_bpf::TorError>(())
//! ```
//!
//! The program examines UDP packets to the switch's address and port, and passes all other frames to whatever forwards frames
//! between the ports: a Linux bridge, or routing. The address is one that the hosts can resolve or route to this machine, such as one of
//! the bridge. Hosts may have any IPv4 addresses. It is written in C (`reduce.h`: layouts; `jobs.h`: who has which slots; `tor.c`:
//! messages), its source is in this binary, and `clang` compiles it when a [`Tor`] is attached ([`crate::tc`]).
//!
//! It gives the answers of the program in Rust (`aggregation::switch`); a test compares both packet by packet. These differences remain:
//!
//! - **Checksums.** The kernel hands over frames whose UDP checksum was not verified, so the program verifies it. A checksum that is left to the
//!   interface cannot be told from one that happens to be the sum of the pseudo-header, as one in 65,536 is. In Rust, that is done where frames are read.
//! - **Records of packets** of a job are consecutive, so a job may be refused although as many records are free in several places.
//! - **Vectors** (`wire::reduce::Body::OpenVector`) are added up by the program in Rust only. A request for them gets no answer here.
//! - **Super-packets** of a host that leaves segmentation to its interface (UDP GSO) are dropped and counted.

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use aya::maps::{Array, MapData};

use crate::tc::{self, Classifier};
use crate::{TorError, check_ports, configure, counters, state};

/// The C sources, which are compiled as one file, behind the numbers of slots.
const SOURCES: [&str; 4] =
    [tc::PRELUDE, include_str!("reduce.h"), include_str!("jobs.h"), include_str!("tor.c")];

/// The UDP port of workers, masters and switches.
pub const PORT: u16 = 6731;
/// The largest number of jobs at a time.
pub const JOBS: usize = 64;
/// The largest number of slots: 128 MiB of memory.
pub const MOST_SLOTS: u32 = 1 << 22;
/// The largest number of slots of a bucket.
pub const MOST_WAYS: u8 = 16;
/// The largest number of ports.
pub const PORTS: usize = 1024;
/// The name of the program in the kernel.
const PROGRAM: &str = "rackweave_reduce";
/// The length of `struct config` in 32-bit words.
const CONFIG: usize = 6;
/// The length of `struct job` in 64-bit words.
const JOB: usize = 48;

/// The configuration of a [`Tor`]. The defaults of [`TorConfig::new`] are those of `aggregation::switch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorConfig {
    /// The interfaces at which workers and masters are, in the namespace of the thread that attaches the program.
    pub ports: Vec<String>,
    /// The switch's address: where workers and masters send what is for it.
    pub address: Ipv4Addr,
    /// The switch's UDP port.
    pub udp_port: u16,
    /// The number of slots for all jobs, of 32 bytes each. A multiple of [`TorConfig::ways`].
    pub slots: u32,
    /// The number of slots of a bucket, up to [`MOST_WAYS`].
    pub ways: u8,
    /// The largest number of packets whose rest is recorded, in the windows of all workers of all jobs, of 16 bytes each.
    pub records: u32,
    /// The percentage of the slots, of the jobs and of the recorded packets that masters at one address can have together, 1 to 100.
    pub share: u8,
    /// How long a job keeps its slots after the last message of its master, in milliseconds.
    pub lease_ms: u32,
    /// A random number of this life of the switch, from which it also makes cookies.
    pub secret: u64,
}

impl TorConfig {
    /// Returns the default configuration for hosts at these ports: 65,536 slots in buckets of 8.
    #[must_use]
    pub const fn new(ports: Vec<String>, address: Ipv4Addr, secret: u64) -> Self {
        Self {
            ports,
            address,
            udp_port: PORT,
            slots: 65_536,
            ways: 8,
            records: 65_536,
            share: 100,
            lease_ms: 10_000,
            secret,
        }
    }
}

counters! {
    /// What a ToR has done since it was attached.
    pub struct TorCounters {
        /// Packets of pairs that were added up or forwarded for the first time.
        pub packets,
        /// Pairs in them.
        pub pairs,
        /// Pairs in them that were added to a sum.
        pub absorbed,
        /// Pairs that were sent to a master because they found no slot, repetitions included.
        pub residual,
        /// Packets of pairs that had been handled before.
        pub duplicates,
        /// Sums that were read by masters, repetitions included.
        pub fetched,
        /// Messages of a job, an attempt or an epoch that the switch does not have, or with a wrong token or sender.
        pub stale,
        /// Requests for slots that were refused.
        pub refused,
        /// Words that P4-ORDC's rule has sent to the master.
        pub emitted,
        /// Datagrams for the switch that are no message which it has a use for.
        pub malformed,
        /// Datagrams for the switch whose checksum was wrong.
        pub wrong_checksums,
        /// Packets with several messages of a host that leaves segmentation to its interface.
        pub super_packets,
        /// Messages that were dropped because another processor held the state for too long.
        pub busy,
        /// Replies that the kernel could not make of the frame that they answer.
        pub lost,
    }
}

/// A job that has slots at a ToR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorJob {
    /// Its number.
    pub number: u16,
    /// How many times what was not yet collected has been discarded.
    pub attempt: u16,
    /// The address of its master.
    pub master: Ipv4Addr,
    /// The number of its workers.
    pub workers: u8,
    /// The number of its slots, in all copies.
    pub slots: u32,
    /// The first epoch that is not finished.
    pub epoch: u16,
}

/// The aggregating switch in the kernel. It ends when this is dropped or the process ends for any reason, and leaves nothing behind.
#[derive(Debug)]
pub struct Tor {
    classifier: Classifier,
}

impl Tor {
    /// Compiles and loads the program, and attaches it to all ports. This takes about 300 ms.
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
        let TorConfig { slots, ways, records, .. } = config;
        let sizes = format!(
            "#define REDUCE_BUCKETS {}u\n#define REDUCE_WAYS {ways}u\n#define REDUCE_RECORDS {records}u\n",
            slots / u32::from(*ways)
        );
        let [a, b, c, d] = SOURCES;
        let mut classifier = Classifier::load(&[&sizes, a, b, c, d], program)?;
        let words: [u32; CONFIG] = [
            u32::from_ne_bytes(config.address.octets()),
            u32::from(config.udp_port.to_be()),
            config.lease_ms,
            u32::from(config.share),
            config.secret as u32,
            (config.secret >> 32) as u32,
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

    /// Returns the jobs that have slots, in no particular order. Those whose lease has ended are among them until their slots are needed.
    ///
    /// # Errors
    /// If they cannot be read from the kernel.
    pub fn jobs(&self) -> Result<Vec<TorJob>, TorError> {
        let jobs = Array::<_, [u64; JOB]>::try_from(self.classifier.map("jobs")?).map_err(state)?;
        let used: Array<&MapData, [u64; STATE]> =
            Array::try_from(self.classifier.map("state")?).map_err(state)?;
        let used = used.get(&0, 0).map_err(state)?[1];
        let taken = (0..JOBS as u32).filter(|index| used >> index & 1 == 1);
        taken.map(|index| Ok(TorJob::read(&jobs.get(&index, 0).map_err(state)?))).collect()
    }
}

/// The length of `struct state` in 64-bit words.
const STATE: usize = 4 + 2 * JOBS;

impl TorJob {
    /// Reads `struct job`.
    fn read(words: &[u64]) -> Self {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let array = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let word = |at: usize| u32::from_ne_bytes(array(at));
        Self {
            number: word(16) as u16,
            attempt: word(20) as u16,
            master: Ipv4Addr::from(array(28)),
            epoch: word(36) as u16,
            slots: word(44) - word(40),
            workers: word(96) as u8,
        }
    }
}

impl TorConfig {
    /// Returns the reason for which the configuration is invalid.
    fn check(&self) -> Result<(), TorError> {
        let wrong = |what: String| Err(TorError::Config(what));
        check_ports(&self.ports, PORTS, "switch")?;
        if self.ways == 0 || self.ways > MOST_WAYS {
            return wrong(format!("a bucket has 1 to {MOST_WAYS} slots, not {}", self.ways));
        }
        let ways = u32::from(self.ways);
        if self.slots == 0 || self.slots > MOST_SLOTS || !self.slots.is_multiple_of(ways) {
            return wrong(format!(
                "the number of slots is a multiple of {ways} up to {MOST_SLOTS}, not {}",
                self.slots
            ));
        }
        if self.share == 0 || self.share > 100 {
            return wrong(format!(
                "the share of an address is 1 to 100 percent, not {}",
                self.share
            ));
        }
        if self.records == 0 || self.records > 1 << 22 {
            return wrong(format!(
                "a switch records 1 to {} packets, not {}",
                1 << 22,
                self.records
            ));
        }
        let address = self.address;
        if address.is_unspecified() || address.is_multicast() || address.is_broadcast() {
            return wrong(format!("{address} is not the address of a switch"));
        }
        if self.udp_port == 0 {
            return wrong("the UDP port is at least 1".to_owned());
        }
        // A master renews its reservation every 500 ms.
        if self.lease_ms < 2000 {
            return wrong(format!("a lease is at least 2000 ms, not {}", self.lease_ms));
        }
        Ok(())
    }
}

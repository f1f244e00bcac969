//! Orca's ToR switch in the Linux kernel: a tc program at the ingress of each port, for racks whose switch is a Linux
//! machine, and for namespaces that need a fast switch. It makes the same decisions as Orca's switch program
//! (`orca::switch`; a test compares them packet by packet), and forwards all other frames as an Ethernet switch.
//!
//! ```no_run
//! use rackweave_bpf::orca::{Tor, TorConfig, TorHost};
//!
//! let host = |n: u8| TorHost { mac: [2, 0, 0, 0, 0, n], ip: None, port: n };
//! let ports = ["p0", "p1"].map(String::from).to_vec();
//! let tor = Tor::attach(&TorConfig { ports, hosts: vec![host(0), host(1)], ..TorConfig::default() })?;
//! println!("{:?}", tor.counters()?);
//! # Ok::<(), rackweave_bpf::TorError>(())
//! ```
//!
//! The program is written in C (`orca_tor.h` decides, `tor.c` moves frames). Its source is part of this binary, and
//! `clang` compiles it when a [`Tor`] is attached ([`crate::tc`]). Super-packets of segmentation offloads are
//! forwarded unsegmented, and checksums that are left to an interface are left unchanged, so both ends may have all
//! offloads enabled.
//!
//! It differs from the user-space switch in one point: it has no key. It does not verify keyed control packets, and
//! obeys only those from the controller's port ([`TorConfig::controller`]).

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use aya::maps::{Array, HashMap};

use crate::tc::{self, Classifier};
use crate::{TorError, check_ports, configure, counters, state};

/// The C sources, which are compiled as one file: the first makes the decision, the second moves the frames.
const SOURCES: [&str; 3] = [tc::PRELUDE, include_str!("orca_tor.h"), include_str!("tor.c")];

/// The largest number of ports of a ToR: the bits of a rack label.
pub const PORTS: usize = 64;
/// The largest number of uplinks.
pub const UPLINKS: usize = 16;
/// Stands for "no port".
const NONE: u8 = 255;
/// The name of the program in the kernel.
const PROGRAM: &str = "rackweave_tor";
/// The length of `struct orca_config` in 32-bit words.
const CONFIG: usize = 8 + UPLINKS + PORTS;

/// The configuration of a [`Tor`].
#[derive(Clone, Debug, Default)]
pub struct TorConfig {
    /// The interface of each port, in the namespace of the thread that attaches the program.
    pub ports: Vec<String>,
    /// The ports that are uplinks, in the order of their numbers in pilot labels; all others lead to hosts.
    pub uplinks: Vec<u8>,
    /// The position of the pilot label's uplink field: its least significant bit.
    pub uplink_shift: u8,
    /// The number of bits of that field, at most 16.
    pub uplink_width: u8,
    /// The number of the rack.
    pub rack: u16,
    /// The only port from which control packets of the controller are accepted; if it is an uplink, any uplink. With
    /// `None`, they are accepted from all ports.
    pub controller: Option<u8>,
    /// Whether control packets are authenticated by a key. The ToR does not have the key and cannot detect forged
    /// packets, so `controller` must then be set.
    pub keyed: bool,
    /// The hosts to which ordinary frames are forwarded.
    pub hosts: Vec<TorHost>,
    /// The active agent at the start, if any.
    pub agent: Option<u8>,
}

/// A host and the port that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorHost {
    /// The MAC address of the host.
    pub mac: [u8; 6],
    /// The IP address of the host, if it has one: frames to the gateway get the host's MAC address, so that hosts need
    /// no ARP.
    pub ip: Option<Ipv4Addr>,
    /// The port that leads to the host; for a host of another rack, an uplink.
    pub port: u8,
}

counters! {
    /// Counters of a ToR, in frames. A super-packet counts as one.
    pub struct TorCounters {
        /// Ordinary frames that were forwarded to one port.
        pub routed,
        /// Ordinary frames that were flooded, because they are broadcast or multicast.
        pub flooded,
        /// Packets of Orca that were forwarded to one port.
        pub forwarded,
        /// Packets of Orca that were sent to each port of a set.
        pub replicated,
        /// Copies that were made of replicated and flooded frames.
        pub copies,
        /// Commands of the controller that the ToR itself executed.
        pub consumed,
        /// Packets of Orca that were dropped because there is no active agent.
        pub no_agent,
        /// Packets of Orca that were dropped because they cannot legitimately come from their ingress port.
        pub spoofed,
        /// Packets of Orca that were dropped because their label names no port.
        pub no_port,
        /// Ordinary frames that were dropped because their destination is unknown.
        pub unknown,
        /// Copies that an interface refused.
        pub lost,
    }
}

/// A ToR in the kernel. It ends when this is dropped or the process ends for any reason, and leaves nothing behind.
#[derive(Debug)]
pub struct Tor {
    loaded: Loaded,
}

impl Tor {
    /// Compiles and loads the program, and attaches it to all ports. This takes about 100 ms.
    ///
    /// # Errors
    /// If the configuration is invalid, the compiler or a capability is missing, or the kernel rejects the program.
    pub fn attach(config: &TorConfig) -> Result<Self, TorError> {
        let interfaces = tc::interface_indices(&config.ports)?;
        let mut loaded = Loaded::new(config, &interfaces, PROGRAM)?;
        loaded.classifier.attach(&config.ports)?;
        Ok(Self { loaded })
    }

    /// Sets the port of the active agent, or none, as a command of the controller would. A later command of the
    /// controller overrides it.
    ///
    /// # Errors
    /// If there is no such port, or no host at it.
    pub fn set_active(&mut self, agent: Option<u8>) -> Result<(), TorError> {
        self.loaded.set_active(agent)
    }

    /// Returns the port of the active agent.
    ///
    /// # Errors
    /// If the register cannot be read from the kernel.
    pub fn active(&self) -> Result<Option<u8>, TorError> {
        let agent = self.loaded.register()? as u8;
        Ok((agent != NONE).then_some(agent))
    }

    /// Returns the counters.
    ///
    /// # Errors
    /// If they cannot be read from the kernel.
    pub fn counters(&self) -> Result<TorCounters, TorError> {
        TorCounters::read(&self.loaded.classifier)
    }
}

/// A loaded program and its maps.
#[derive(Debug)]
struct Loaded {
    classifier: Classifier,
    /// The ports that lead to hosts, one bit each.
    hosts: u64,
}

impl Loaded {
    fn new(
        config: &TorConfig,
        interfaces: &[u32],
        program: &'static str,
    ) -> Result<Self, TorError> {
        let hosts = config.check()?;
        let mut loaded = Self { classifier: Classifier::load(&SOURCES, program)?, hosts };
        loaded.configure(config, interfaces)?;
        Ok(loaded)
    }

    fn configure(&mut self, config: &TorConfig, interfaces: &[u32]) -> Result<(), TorError> {
        self.write_config(config, interfaces)?;
        let mut ports =
            HashMap::<_, u32, u32>::try_from(self.classifier.map_mut("ports")?).map_err(state)?;
        for (port, interface) in (0_u32..).zip(interfaces) {
            ports.insert(interface, port, 0).map_err(state)?;
        }
        self.set_active(config.agent)?;
        let mut by_mac =
            HashMap::<_, u64, u32>::try_from(self.classifier.map_mut("by_mac")?).map_err(state)?;
        for host in &config.hosts {
            by_mac.insert(number(host.mac), u32::from(host.port), 0).map_err(state)?;
        }
        let mut by_ip = HashMap::<_, u32, [u32; 3]>::try_from(self.classifier.map_mut("by_ip")?)
            .map_err(state)?;
        for host in &config.hosts {
            let Some(ip) = host.ip else { continue };
            let mac = number(host.mac);
            let value = [u32::from(host.port), (mac >> 32) as u32, mac as u32];
            by_ip.insert(ip.to_bits(), value, 0).map_err(state)?;
        }
        Ok(())
    }

    fn write_config(&mut self, config: &TorConfig, interfaces: &[u32]) -> Result<(), TorError> {
        let mut words = [0_u32; CONFIG];
        words[0] = u32::from(config.rack);
        words[1] = u32::from(config.controller.unwrap_or(NONE));
        words[2] = u32::from(config.uplink_shift);
        words[3] = u32::from(config.uplink_width);
        words[4] = config.uplinks.len() as u32;
        words[5] = u32::from(config.keyed);
        words[6] = self.hosts as u32;
        words[7] = (self.hosts >> 32) as u32;
        for (word, port) in words[8..].iter_mut().zip(&config.uplinks) {
            *word = u32::from(*port);
        }
        words[8 + UPLINKS..][..interfaces.len()].copy_from_slice(interfaces);
        configure(&mut self.classifier, words)
    }

    fn set_active(&mut self, agent: Option<u8>) -> Result<(), TorError> {
        if let Some(port) = agent
            && self.hosts.checked_shr(u32::from(port)).unwrap_or(0) & 1 == 0
        {
            return Err(TorError::Config(format!(
                "port {port} of the ToR is not a host's: it cannot be the active agent"
            )));
        }
        let epoch = self.register()? >> 32;
        self.set_register(epoch << 32 | u64::from(agent.unwrap_or(NONE)))
    }

    fn register(&self) -> Result<u64, TorError> {
        let map = Array::<_, u64>::try_from(self.classifier.map("agent")?).map_err(state)?;
        map.get(&0, 0).map_err(state)
    }

    fn set_register(&mut self, value: u64) -> Result<(), TorError> {
        let mut map =
            Array::<_, u64>::try_from(self.classifier.map_mut("agent")?).map_err(state)?;
        map.set(0, value, 0).map_err(state)
    }
}

impl TorConfig {
    /// Returns the ports that lead to hosts, one bit each, or the reason for which the configuration is invalid.
    fn check(&self) -> Result<u64, TorError> {
        let wrong = |what: String| Err(TorError::Config(what));
        check_ports(&self.ports, PORTS, "ToR")?;
        let ports = self.ports.len();
        if self.uplinks.len() > UPLINKS || self.uplink_width > 16 || self.uplink_shift > 127 {
            return wrong(format!(
                "a ToR has at most {UPLINKS} uplinks, in a field of at most 16 of the label's 128 bits"
            ));
        }
        let named = self.uplinks.iter().chain(&self.controller);
        if let Some(port) = named
            .chain(self.hosts.iter().map(|host| &host.port))
            .find(|port| usize::from(**port) >= ports)
        {
            return wrong(format!("the ToR has no port {port}: it has {ports}, from 0"));
        }
        if self.keyed && self.controller.is_none() {
            return wrong("with a key, the ToR has to know the controller's port".to_owned());
        }
        let all = u64::MAX >> (PORTS - ports);
        Ok(self.uplinks.iter().fold(all, |hosts, port| hosts & !(1 << port)))
    }
}

const fn number(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

//! Orca's ToR in the kernel: a tc program at the ingress of each port, for racks whose switch is a Linux machine, and for
//! namespaces whose switch has to be fast. It decides as Orca's switch program does (`group::orca::switch`; a test compares
//! them packet by packet), and forwards all other frames as an Ethernet switch.
//!
//! ```no_run
//! use rackweave_orca_bpf::{Tor, TorConfig, TorHost};
//!
//! let host = |n: u8| TorHost { mac: [2, 0, 0, 0, 0, n], ip: None, port: n };
//! let ports = ["p0", "p1"].map(String::from).to_vec();
//! let tor = Tor::attach(&TorConfig { ports, hosts: vec![host(0), host(1)], ..TorConfig::default() })?;
//! println!("{:?}", tor.counters()?);
//! # Ok::<(), rackweave_orca_bpf::TorError>(())
//! ```
//!
//! The program is C (`orca_tor.h` decides, `tor.c` moves frames), part of this binary as text, and compiled with `clang`
//! when a [`Tor`] is attached ([`rackweave_linux::tc`]). Super-packets of segmentation offloads cross it whole, and checksums
//! that are left to an interface stay so: both ends may have all offloads on.
//!
//! It differs from the user-space switch in one point: it has no key, so that keyed control packets are not verified, and
//! only those from the controller's port are obeyed ([`TorConfig::controller`]).

#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use aya::maps::{Array, HashMap, MapError, PerCpuArray};
use rackweave_linux::tc::{self, Classifier, TcError};

/// What decides, and what moves frames: one source for the compiler.
const SOURCES: [&str; 2] = [include_str!("orca_tor.h"), include_str!("tor.c")];

/// Most ports of a ToR: bits of a rack label.
pub const PORTS: usize = 64;
/// Most of them that lead up.
pub const UPLINKS: usize = 16;
/// No port.
const NONE: u8 = 255;
/// The program's name.
const PROGRAM: &str = "rackweave_tor";
/// Words of `struct orca_config`.
const CONFIG: usize = 8 + UPLINKS + PORTS;

/// What a ToR has to know.
#[derive(Clone, Debug, Default)]
pub struct TorConfig {
    /// The interface of each port, in the namespace of the thread that attaches.
    pub ports: Vec<String>,
    /// Ports that lead up, in the order of their numbers in pilot labels; all others lead to hosts.
    pub uplinks: Vec<u8>,
    /// Where the pilot label names the uplink: the field's least significant bit.
    pub uplink_shift: u8,
    /// Bits of that field, at most 16.
    pub uplink_width: u8,
    /// Number of the rack.
    pub rack: u16,
    /// The only port from which a controller's words are believed (one that leads up: any of those); none: any.
    pub controller: Option<u8>,
    /// Control packets are made with a key. The ToR does not have it and can't tell them from forged ones, so that then
    /// `controller` must be named.
    pub keyed: bool,
    /// Hosts: where ordinary frames go.
    pub hosts: Vec<TorHost>,
    /// The active agent at the start.
    pub agent: Option<u8>,
}

/// A host at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TorHost {
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its address: frames for a gateway get its MAC address, so that hosts need no ARP.
    pub ip: Option<Ipv4Addr>,
    /// Its port; for hosts of other racks, one that leads up.
    pub port: u8,
}

/// Why there is no ToR.
#[derive(Debug, thiserror::Error)]
pub enum TorError {
    /// The program does not run in the kernel.
    #[error(transparent)]
    Tc(#[from] TcError),
    /// The configuration is impossible.
    #[error("{0}")]
    Config(String),
}

/// What a ToR has done, in frames. A super-packet counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TorCounters {
    /// Ordinary ones to one port.
    pub routed: u64,
    /// Ordinary ones for all, or for many.
    pub flooded: u64,
    /// Orca's to one port.
    pub forwarded: u64,
    /// Orca's to each port of a set.
    pub replicated: u64,
    /// Copies that those and the flooded ones have become.
    pub copies: u64,
    /// Words of the controller to the ToR itself.
    pub consumed: u64,
    /// Dropped for want of an active agent.
    pub no_agent: u64,
    /// Dropped because they came in at a port from which they cannot come.
    pub spoofed: u64,
    /// Dropped because their label names no port.
    pub nobody: u64,
    /// Ordinary ones for nobody that is known: dropped.
    pub unknown: u64,
    /// Copies that an interface did not take.
    pub lost: u64,
}

/// A ToR in the kernel. It ends when this is dropped, and when the process ends, however it does: nothing stays behind.
#[derive(Debug)]
pub struct Tor {
    loaded: Loaded,
}

impl Tor {
    /// Compiles and loads the program, and attaches it to all ports. Takes some 100 ms.
    ///
    /// # Errors
    /// Says what is missing or wrong.
    pub fn attach(config: &TorConfig) -> Result<Self, TorError> {
        let interfaces = tc::interface_indices(&config.ports)?;
        let mut loaded = Loaded::new(config, &interfaces, PROGRAM)?;
        loaded.classifier.attach(&config.ports)?;
        Ok(Self { loaded })
    }

    /// Makes a port the active agent, or none, as a controller's word would. A later word of the controller prevails.
    ///
    /// # Errors
    /// If there is no such port of a host.
    pub fn set_active(&mut self, agent: Option<u8>) -> Result<(), TorError> {
        self.loaded.set_active(agent)
    }

    /// The active agent's port.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn active(&self) -> Result<Option<u8>, TorError> {
        let agent = self.loaded.register()? as u8;
        Ok((agent != NONE).then_some(agent))
    }

    /// What it has done.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn counters(&self) -> Result<TorCounters, TorError> {
        let counters = PerCpuArray::<_, u64>::try_from(self.loaded.classifier.map("counters")?);
        let counters = counters.map_err(state)?;
        let sum = |index: u32| -> Result<u64, TorError> {
            Ok(counters.get(&index, 0).map_err(state)?.iter().sum())
        };
        Ok(TorCounters {
            routed: sum(0)?,
            flooded: sum(1)?,
            forwarded: sum(2)?,
            replicated: sum(3)?,
            copies: sum(4)?,
            consumed: sum(5)?,
            no_agent: sum(6)?,
            spoofed: sum(7)?,
            nobody: sum(8)?,
            unknown: sum(9)?,
            lost: sum(10)?,
        })
    }
}

/// A program and its maps.
#[derive(Debug)]
struct Loaded {
    classifier: Classifier,
    /// Ports of hosts.
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
        let mut map = Array::<_, [u32; CONFIG]>::try_from(self.classifier.map_mut("config")?)
            .map_err(state)?;
        map.set(0, words, 0).map_err(state)
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
    /// The ports of hosts, or what is wrong.
    fn check(&self) -> Result<u64, TorError> {
        let wrong = |what: String| Err(TorError::Config(what));
        let ports = self.ports.len();
        if ports == 0 || ports > PORTS {
            return wrong(format!("a ToR has 1 to {PORTS} ports, not {ports}"));
        }
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

fn state(error: MapError) -> TorError {
    TcError::state(&error).into()
}

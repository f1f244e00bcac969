//! The configuration of an endpoint.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rackweave_core::{HostId, Rate, Span};
use rackweave_crypt::Key;
use rackweave_transport::{TransportConfig, homa};

use super::tickets::TicketStore;
use crate::Clock;

/// The configuration of an [`Endpoint`](super::Endpoint).
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// The number of this host.
    pub host: HostId,
    /// The address of its socket; the system chooses a port if it is 0.
    pub bind: SocketAddr,
    /// The hosts that this one communicates with, and how it reaches them.
    pub peers: Peers,
    /// The transport; packets in UDP datagrams are those of [`TransportConfig::over_udp`].
    pub transport: TransportConfig,
    /// What its packets travel in.
    pub wire: Wire,
    /// The rate at which packets are paced, counted in bytes on the wire.
    pub link: Rate,
    /// How far ahead of the link packets may be passed to the kernel: more makes longer trains and fewer system calls, less
    /// defers the choice of the next packet.
    pub run_ahead: Span,
    /// How long a wait polls before it sleeps.
    pub busy_poll: Span,
    /// The most bytes of messages and streams that wait to be sent or acknowledged.
    pub send_bytes: u64,
    /// The most bytes of messages and streams that are being received or wait for the application.
    pub receive_bytes: u64,
    /// The size of the socket's send and receive buffers; the kernel may give less.
    pub socket_buffer: usize,
    /// The key that all hosts share, if their datagrams are to be encrypted. Not with [`Peers::Switch`], whose switches read
    /// and trim packets.
    pub key: Option<Key>,
    /// Whether this host hands out tickets, and accepts packets before the handshake (0-RTT) from hosts that have one. Their
    /// messages may be executed once more than their senders know: see `docs/ops/security.md`. Only with a key.
    pub accept_early: bool,
    /// Tickets of an earlier start, if packets of idempotent messages are to be sent before the handshake to peers that accept
    /// them, and tickets to be kept: [`Endpoint::send_idempotent`](super::Endpoint::send_idempotent). Only with a key.
    pub tickets: Option<TicketStore>,
    /// The clock of all times; hosts whose times are compared share one.
    pub clock: Clock,
}

impl EndpointConfig {
    /// A configuration with defaults for everything else, for instance a link of 10 Gbps.
    #[must_use]
    pub fn new(host: HostId, bind: SocketAddr, peers: Peers, transport: &TransportConfig) -> Self {
        Self {
            host,
            bind,
            peers,
            transport: transport.over_udp(),
            wire: Wire::Udp,
            link: Rate::from_gbps(10),
            run_ahead: Span::from_us(50),
            busy_poll: Span::ZERO,
            send_bytes: 256 << 20,
            receive_bytes: 256 << 20,
            socket_buffer: 4 << 20,
            key: None,
            accept_early: false,
            tickets: None,
            clock: Clock::start(),
        }
    }

    /// The same for a host that speaks to hosts with HomaModule ([`Wire::HomaModule`]). `bind` is an IPv4 address with a port below
    /// 32,768, or with 0 for a client.
    #[must_use]
    pub fn homa_module(
        host: HostId,
        bind: SocketAddr,
        peers: Peers,
        homa: impl Into<Arc<homa::Config>>,
    ) -> Self {
        let transport = TransportConfig::Homa(homa.into());
        let config = Self::new(host, bind, peers, &transport);
        Self { wire: Wire::HomaModule, transport, ..config }
    }

    /// The same with a key.
    #[must_use]
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }
}

/// What a host's packets travel in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// UDP datagrams, each with an envelope that names the hosts' incarnations and has checks.
    #[default]
    Udp,
    /// Packets of IP protocol 146 over IPv4, as those of HomaModule in the Linux kernel: requests and responses of at most
    /// 1,000,000 bytes over [`homa::Config::linux_2026`] or a variant of it, neither encrypted nor protected against forged source
    /// addresses. A port is one of Homa's. Needs CAP_NET_RAW, and a kernel without the module.
    HomaModule,
}

/// The peers of an endpoint.
#[derive(Clone, Debug)]
pub enum Peers {
    /// Each peer has its own address.
    Direct {
        /// The peers that are known by number.
        hosts: BTreeMap<HostId, SocketAddr>,
        /// Networks from which other hosts are accepted too; these get numbers from [`FIRST_GUEST`] on.
        allow: Vec<Network>,
    },
    /// All peers are reached through one port of a user-space switch; nothing else is received.
    Switch {
        /// The address of the switch's port for this host.
        port: SocketAddr,
        /// The number of hosts of the fabric, which are numbered from 0.
        hosts: u32,
    },
}

/// The number of the first peer that was not configured by number.
pub const FIRST_GUEST: HostId = HostId(1 << 24);

/// A network: the addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network of a single address.
    #[must_use]
    pub const fn single(address: IpAddr) -> Self {
        let address = address.to_canonical();
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { address, prefix }
    }

    /// Whether an address belongs to the network.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (ours, theirs, bits) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (u128::from(ours.to_bits()), u128::from(theirs.to_bits()), 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (ours.to_bits(), theirs.to_bits(), 128),
            _ => return false,
        };
        let free = bits - u32::from(self.prefix).min(bits);
        free >= 128 || ours >> free == theirs >> free
    }
}

/// The text is not a [`Network`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address (10.0.0.7) nor a network (10.0.0.0/8)")]
pub struct NotANetwork(String);

impl std::str::FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let wrong = || NotANetwork(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            None => return text.parse().map(Self::single).map_err(|_| wrong()),
            Some((address, prefix)) => (address, prefix),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let single = Self::single(address);
        // An IPv4-mapped IPv6 network is the IPv4 network.
        let prefix = match address.is_ipv6() && single.address.is_ipv4() {
            true => prefix.checked_sub(96).ok_or_else(wrong)?,
            false => prefix,
        };
        if prefix > single.prefix { Err(wrong()) } else { Ok(Self { prefix, ..single }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let network: Network = "10.1.0.0/16".parse().unwrap();
        assert!(network.contains("10.1.255.1".parse().unwrap()));
        assert!(!network.contains("10.2.0.1".parse().unwrap()));
        assert!(!network.contains("::1".parse().unwrap()));
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("192.0.2.1".parse().unwrap()));
        let one: Network = "::1".parse().unwrap();
        assert!(one.contains("::1".parse().unwrap()) && !one.contains("::2".parse().unwrap()));
        for mapped in ["::ffff:10.1.0.0/112", "10.1.0.0/16"] {
            let mapped: Network = mapped.parse().unwrap();
            assert_eq!(mapped, network);
            assert!(mapped.contains("::ffff:10.1.2.3".parse().unwrap()));
        }
        for wrong in
            ["", "10.0.0.0/33", "::ffff:10.0.0.0/64", "10.0.0/8", "x", "::/129", "10.0.0.0/"]
        {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}

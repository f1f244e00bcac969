//! What an endpoint is made of.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use rackweave_core::{HostId, Rate, Span};
use rackweave_transport::TransportConfig;

use crate::Clock;

/// A host's transport over UDP.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// This host's number.
    pub host: HostId,
    /// Where its socket is; port 0: the system picks one.
    pub bind: SocketAddr,
    /// Whom it talks to.
    pub peers: Peers,
    /// The transport; packets are those of [`TransportConfig::over_udp`].
    pub transport: TransportConfig,
    /// Packets leave at most at this rate, counted as on Ethernet.
    pub link: Rate,
    /// How far ahead of the link packets may be handed to the kernel: more makes longer trains and fewer
    /// calls, less decides later which packet goes.
    pub run_ahead: Span,
    /// How long a wait looks again and again before it sleeps. Zero: not at all.
    pub busy_poll: Span,
    /// Most bytes of messages and streams that wait to be sent or acknowledged.
    pub send_bytes: u64,
    /// Most bytes of messages and streams that arrive, or wait for the application.
    pub receive_bytes: u64,
    /// Bytes of the socket's buffers, each way; the kernel may give less.
    pub socket_buffer: usize,
    /// Hosts that share a time line share a clock.
    pub clock: Clock,
}

impl EndpointConfig {
    /// With defaults for all that is not named: a link of 10 Gbps.
    #[must_use]
    pub fn new(host: HostId, bind: SocketAddr, peers: Peers, transport: &TransportConfig) -> Self {
        Self {
            host,
            bind,
            peers,
            transport: transport.over_udp(),
            link: Rate::from_gbps(10),
            run_ahead: Span::from_us(50),
            busy_poll: Span::ZERO,
            send_bytes: 256 << 20,
            receive_bytes: 256 << 20,
            socket_buffer: 4 << 20,
            clock: Clock::start(),
        }
    }
}

/// Whom an endpoint talks to.
#[derive(Clone, Debug)]
pub enum Peers {
    /// To each at its own address.
    Direct {
        /// Those that are known by number.
        hosts: BTreeMap<HostId, SocketAddr>,
        /// Others are served, too, if they come from here; they get numbers from [`FIRST_GUEST`] on.
        allow: Vec<Network>,
    },
    /// To all through a port of a user-space switch: nothing else is listened to.
    Switch {
        /// The port.
        port: SocketAddr,
        /// Hosts of the fabric are numbered from 0 to below this.
        hosts: u32,
    },
}

/// The number of the first peer that was not known by number.
pub const FIRST_GUEST: HostId = HostId(1 << 24);

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// This address alone.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { address, prefix }
    }

    /// Whether an address is one of them.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (ours, theirs, bits) = match (self.address, address) {
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

/// Why a text is no [`Network`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address (10.0.0.7) nor a network (10.0.0.0/8)")]
pub struct NotANetwork(String);

impl std::str::FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let wrong = || NotANetwork(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            None => return text.parse().map(Self::of).map_err(|_| wrong()),
            Some((address, prefix)) => (address, prefix),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix = prefix.parse().map_err(|_| wrong())?;
        if prefix > Self::of(address).prefix { Err(wrong()) } else { Ok(Self { address, prefix }) }
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
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "x", "::/129", "10.0.0.0/"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}

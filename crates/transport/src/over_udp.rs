//! Transports inside UDP datagrams, as they travel on Linux: header sizes as they are on the wire, and
//! packets that are shorter by what the datagram adds.

use std::sync::Arc;

use rackweave_core::frame::{IPV4, MTU};
use rackweave_wire::homa::{Layout, size};
use rackweave_wire::{
    ndp as ndp_wire, overlay, phost as phost_wire, polo as polo_wire, tcp as tcp_wire,
};

use crate::{TransportConfig, homa};

/// Bytes in front of every header.
const FRONT: u32 = IPV4 + overlay::OVERHEAD;

impl homa::Config {
    /// How its packets are written.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        if self.leverage.measure_rtt { Layout::Leverage } else { self.layout }
    }

    /// The same inside UDP datagrams.
    #[must_use]
    fn over_udp(mut self) -> Self {
        let (data, grant, ack) = match self.layout() {
            Layout::Head => (size::DATA_HEAD, size::GRANT_HEAD, size::ACK_HEAD),
            Layout::Talk => (size::DATA_TALK, size::GRANT_TALK, size::ACK_TALK),
            Layout::Leverage => (size::DATA_LEVERAGE, size::GRANT_LEVERAGE, size::ACK_TALK),
        };
        self.header_bytes = homa::HeaderBytes {
            data: FRONT + data,
            grant: FRONT + grant,
            resend: FRONT + size::RESEND,
            common: FRONT + size::COMMON,
            cutoffs: FRONT + size::CUTOFFS,
            ack: FRONT + ack,
        };
        self.max_payload = MTU - self.header_bytes.data;
        self.streams.stream_header = FRONT + size::STREAM;
        self.streams.credit = FRONT + size::CREDIT;
        self.streams.missing = FRONT + size::MISSING;
        self.streams.reset = FRONT + size::RESET;
        self
    }
}

impl TransportConfig {
    /// How Homa's headers are written; of no meaning to the others.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Self::Homa(config) => config.layout(),
            _ => Layout::default(),
        }
    }

    /// The same inside UDP datagrams (`rackweave_wire::overlay`) of the usual MTU: what it says of a
    /// packet's size is what the packet has on a real link.
    #[must_use]
    pub fn over_udp(&self) -> Self {
        // Of the smaller packets of one transport, all count as the longest.
        match self {
            Self::Homa(config) => Self::Homa(Arc::new(homa::Config::clone(config).over_udp())),
            Self::Tcp(config) => {
                let mut config = config.as_ref().clone();
                // The first segments carry data and the options of a SYN.
                let options = tcp_wire::MAPPING_BYTES + tcp_wire::SYN_OPTION_BYTES;
                config.header_bytes = FRONT + tcp_wire::HEADER_BYTES + options;
                config.mss = MTU - config.header_bytes;
                Self::Tcp(Arc::new(config))
            }
            Self::Ndp(config) => {
                let mut config = config.as_ref().clone();
                config.header_bytes = FRONT + ndp_wire::size::DATA;
                config.control_bytes = FRONT + ndp_wire::size::PULL;
                config.max_payload = MTU - config.header_bytes;
                Self::Ndp(Arc::new(config))
            }
            Self::PHost(config) => {
                let mut config = config.as_ref().clone();
                config.header_bytes = FRONT + phost_wire::size::DATA;
                config.control_bytes = FRONT + phost_wire::size::RTS;
                config.max_payload = MTU - config.header_bytes;
                Self::PHost(Arc::new(config))
            }
            Self::Polo(config) => {
                let mut config = config.as_ref().clone();
                config.header_bytes = FRONT + polo_wire::size::DATA;
                config.control_bytes = FRONT + polo_wire::size::ADJOINT;
                config.max_payload = MTU - config.header_bytes;
                Self::Polo(Arc::new(config))
            }
            Self::Datagram(config) => {
                let mut config = config.as_ref().clone();
                config.header_bytes = FRONT + rackweave_wire::datagram::HEADER_BYTES;
                config.max_payload = MTU - config.header_bytes;
                Self::Datagram(Arc::new(config))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Rate, frame};

    use super::*;
    use crate::{datagram, ndp, phost, polo, tcp};

    #[test]
    fn a_full_packet_is_a_full_frame_with_every_transport() {
        let link = Rate::from_gbps(1);
        for config in [
            TransportConfig::Homa(Arc::new(homa::Config::sigcomm18(link, 10_000))),
            TransportConfig::Homa(Arc::new(homa::Config::linux(link))),
            TransportConfig::Homa(Arc::new(homa::Config::leverage(link))),
            TransportConfig::Tcp(Arc::new(tcp::Config::tcp())),
            TransportConfig::Ndp(Arc::new(ndp::Config::paper(link))),
            TransportConfig::PHost(Arc::new(phost::Config::paper(link))),
            TransportConfig::Polo(Arc::new(polo::Config::slides())),
            TransportConfig::Datagram(Arc::new(datagram::Config::default())),
        ] {
            let framing = config.over_udp().framing();
            assert_eq!(framing.packet_wire_bytes(framing.max_payload), frame::wire_bytes(MTU));
            assert_eq!(config.over_udp(), config.over_udp().over_udp(), "once is enough");
            assert!(framing.header_bytes > config.framing().header_bytes);
        }
    }
}

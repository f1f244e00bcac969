//! Packets of aggregation in the simulator.

use rackweave_core::{HostId, Packet, Slice};
use rackweave_switch::net::{HasPayload, PayloadId};
use rackweave_switch::system::{Makeable, Visible};
use rackweave_wire::frame::Unframeable;
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::Framed;
use rackweave_wire::reduce::{self, PORT};

/// The header of a simulated packet: a message, and the name of its payload, whose bytes switches and hosts read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message.
    pub message: reduce::Header,
    payload: Option<PayloadId>,
}

/// A message on its way. Its length on the link counts its payload.
#[must_use]
pub fn packet(from: HostId, to: HostId, message: reduce::Header) -> Packet<Header> {
    let header = Header { message, payload: None };
    Packet::new(from, to, message.l3_bytes(), header).with_ports(PORT, PORT)
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        None
    }

    #[inline]
    fn payload_bytes(&self) -> u32 {
        self.message.payload_len()
    }

    #[inline]
    fn work(&self) -> u32 {
        self.message.work()
    }
}

impl HasPayload for Header {
    #[inline]
    fn payload_id(&self) -> Option<PayloadId> {
        self.payload
    }

    fn with_payload(self, id: PayloadId) -> Self {
        Self { payload: Some(id), ..self }
    }
}

impl Visible<reduce::Header> for Header {
    #[inline]
    fn view(&self) -> Option<reduce::Header> {
        Some(self.message)
    }
}

impl Makeable<reduce::Header> for Header {
    const PORT: u16 = PORT;

    fn make(message: reduce::Header) -> (Self, u32) {
        (Self { message, payload: None }, message.l3_bytes() - message.payload_len())
    }
}

impl Framed for Header {
    fn encode_frame(
        packet: &Packet<Self>,
        layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        reduce::Header::encode_frame(&packet.map(|header| header.message), layout, out)
    }

    fn line(packet: &Packet<Self>) -> String {
        reduce::Header::line(&packet.map(|header| header.message))
    }
}

// Next to transports on one network, a packet still fills one cache line.
const _: () =
    assert!(size_of::<Packet<rackweave_core::Mixed<rackweave_wire::Header, Header>>>() <= 64);

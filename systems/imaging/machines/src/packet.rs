//! Imaging's packets in the simulator.

use rackweave_core::{HostId, Packet, Slice};
use rackweave_switch::net::{HasPayload, PayloadId};
use rackweave_switch::system::{Makeable, Never, Visible};
use rackweave_wire::frame::Unframeable;
use rackweave_wire::frisbee::{self, Body, PORT, SESSION_PORT, TO_GROUP};
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::Framed;

use super::switch::View;

/// The header of a simulated packet: a message, and the name of its payload if that has bytes. Bitmaps have bytes, which
/// switches and hosts read; blocks of the image have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The message.
    pub message: frisbee::Header,
    payload: Option<PayloadId>,
}

/// A message on its way: a packet without payload bytes, whose length on the link counts them.
#[must_use]
pub fn packet(from: HostId, to: HostId, body: Body) -> Packet<Header> {
    let message = frisbee::Header::new(from, body);
    let header = Header { message, payload: None };
    // Frisbee's messages are for all, SWP2P's are for one.
    let port = if to == TO_GROUP { SESSION_PORT } else { PORT };
    Packet::new(from, to, message.l3_bytes(), header).with_ports(port, port)
}

impl rackweave_core::Header for Header {
    #[inline]
    fn payload(&self) -> Option<Slice> {
        self.message.payload()
    }

    #[inline]
    fn payload_bytes(&self) -> u32 {
        self.message.payload_len()
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

/// Programs see the whole message. Simulated hosts share no key, as nobody forges messages there.
impl Visible<View> for Header {
    #[inline]
    fn view(&self) -> Option<View> {
        Some(View { message: self.message, is_authentic: true, session: None })
    }
}

/// The program of a multicast tree needs no more than the message.
impl Visible<frisbee::Header> for Header {
    #[inline]
    fn view(&self) -> Option<frisbee::Header> {
        Some(self.message)
    }
}

impl Makeable<Never> for Header {
    const PORT: u16 = PORT;

    fn make(header: Never) -> (Self, u32) {
        match header {}
    }
}

/// Only the programs of SWP2P's switches make packets.
impl Makeable<frisbee::Header> for Header {
    const PORT: u16 = PORT;

    fn make(message: frisbee::Header) -> (Self, u32) {
        (Self { message, payload: None }, message.l3_bytes() - message.payload_len())
    }
}

impl Framed for Header {
    fn encode_frame(
        packet: &Packet<Self>,
        layout: Layout,
        out: &mut Vec<u8>,
    ) -> Result<u32, Unframeable> {
        frisbee::Header::encode_frame(&packet.map(|header| header.message), layout, out)
    }

    fn line(packet: &Packet<Self>) -> String {
        frisbee::Header::line(&packet.map(|header| header.message))
    }
}

// Next to transports on one network, a packet still fills one cache line.
const _: () =
    assert!(size_of::<Packet<rackweave_core::Mixed<rackweave_wire::Header, Header>>>() <= 64);

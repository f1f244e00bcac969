//! Parameters of streams. All of them are our choice, because the talk gives none.

use rackweave_core::frame;
use rackweave_wire::homa::size;
use rackweave_wire::homa::stream::Stream;

/// Maximum window of a stream. Offsets are compared modulo 2^32, so that the window and the bytes written
/// beyond it must fit half of that range.
pub const MAX_WINDOW: u32 = 1 << 30;

/// Parameters of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Flow-control window of each direction, in bytes: how many may arrive beyond the bytes that the receiver's
    /// application has consumed.
    pub window_bytes: u32,
    /// Number of ticks without a packet from the peer after which it is asked, on an idle stream.
    pub ping_ticks: u32,
    /// Header bytes of STREAM, from the IP header on.
    pub stream_header: u32,
    /// Size of CREDIT, from the IP header on.
    pub credit: u32,
    /// Size of MISSING, from the IP header on.
    pub missing: u32,
    /// Size of RESET, from the IP header on.
    pub reset: u32,
}

impl StreamConfig {
    /// The sizes on the wire. STREAM's header is not longer than DATA's, which is short in simulations that
    /// omit addresses.
    pub(in crate::homa) fn with_data_header(data: u32) -> Self {
        Self {
            // Four bandwidth-delay products of 100 Gbps and 20 us, so that the window limits no stream whose
            // application keeps up.
            window_bytes: 1 << 20,
            // One second: one packet per second keeps thousands of idle streams cheap.
            ping_ticks: 1000,
            stream_header: data.min(frame::IPV4 + size::STREAM),
            credit: frame::IPV4 + size::CREDIT,
            missing: frame::IPV4 + size::MISSING,
            reset: frame::IPV4 + size::RESET,
        }
    }

    /// Size of this packet from the IP header on, without payload.
    pub(in crate::homa) const fn l3_bytes(&self, packet: &Stream) -> u32 {
        match packet {
            Stream::Data { .. } => self.stream_header,
            Stream::Credit { .. } => self.credit,
            Stream::Missing { .. } => self.missing,
            Stream::Reset { .. } => self.reset,
        }
    }
}

//! The parameters of streams. All of them are ours, because the talk gives none.

use rackweave_core::frame;
use rackweave_wire::homa::size;
use rackweave_wire::homa::stream::Stream;

/// The longest window of a stream: offsets are compared modulo 2^32, so that half of that must
/// hold the window and what has been written beyond it.
pub const MAX_WINDOW: u32 = 1 << 30;

/// Parameters of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Bytes of one direction of a stream that may arrive beyond those that the receiver's
    /// application has consumed: the flow control of each stream.
    pub window_bytes: u32,
    /// Ticks without a packet of an idle stream's peer after which it is asked.
    pub ping_ticks: u32,
    /// Header bytes of STREAM, from the IP header on.
    pub stream_header: u32,
    /// Bytes of CREDIT.
    pub credit: u32,
    /// Bytes of MISSING.
    pub missing: u32,
    /// Bytes of RESET.
    pub reset: u32,
}

impl StreamConfig {
    /// The sizes on the wire. STREAM's header is no longer than DATA's, which is short in simulations that leave
    /// addresses out.
    pub(in crate::homa) fn with_data_header(data: u32) -> Self {
        Self {
            // Four bandwidth-delay products of 100 Gbps and 20 us, so that the window limits no stream whose
            // application keeps up.
            window_bytes: 1 << 20,
            // A second: a packet in each keeps thousands of idle streams cheap.
            ping_ticks: 1000,
            stream_header: data.min(frame::IPV4 + size::STREAM),
            credit: frame::IPV4 + size::CREDIT,
            missing: frame::IPV4 + size::MISSING,
            reset: frame::IPV4 + size::RESET,
        }
    }

    /// Bytes of this packet from the IP header on, without payload.
    pub(in crate::homa) const fn l3_bytes(&self, packet: &Stream) -> u32 {
        match packet {
            Stream::Data { .. } => self.stream_header,
            Stream::Credit { .. } => self.credit,
            Stream::Missing { .. } => self.missing,
            Stream::Reset { .. } => self.reset,
        }
    }
}

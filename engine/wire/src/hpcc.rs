//! The headers of HPCC (Li et al., SIGCOMM'19): those of RoCEv2, with room for what switches write into packets
//! ([`rackweave_core::telemetry`]). The order of the fields, and messages with ids and offsets, are Rackweave's.
//!
//! [`stamped::Header`] has the stack, [`Header`] has only its room, empty: a packet with it fits a cache line on networks that write
//! nothing. Both have the same encoding.

use rackweave_core::telemetry::{Hop, MAX_HOPS, Stack, Stamped};

use crate::exchange::Word;
use crate::malformed::{Malformed, Put, Reader};
pub use crate::sack::Sack;

/// Unassigned by IANA.
pub const IP_PROTOCOL: u8 = 242;

/// Length of each packet's header, without IP's.
pub mod size {
    use rackweave_core::telemetry::Stack;

    /// The common part, which is all of COMPLETE, BUSY, UNKNOWN and ASK.
    pub const COMMON: u32 = crate::exchange::Prologue::BYTES;
    /// DATA without payload.
    pub const DATA: u32 = 24 + Stack::BYTES;
    /// ACK and NACK.
    pub const ACK: u32 = 28 + Stack::BYTES;
}

/// Bit of DATA's flags.
const FLAG_ASKS: u8 = 0x01;

impl Word for Stack {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u16(self.head());
        self.room().iter().for_each(|hop| out.put_u64(hop.bits()));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let head = reader.u16()?;
        let mut hops = [Hop::default(); MAX_HOPS];
        for hop in &mut hops {
            *hop = Hop::from_bits(reader.u64()?);
        }
        Ok(Self::from_parts(head, hops))
    }
}

/// The room for a stack: it is encoded as an empty one, and is not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room;

impl Word for Room {
    fn put(self, out: &mut Vec<u8>) {
        Stack::default().put(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Stack::read(reader).map(|_| Self)
    }
}

/// How many hops a line of text says.
trait Hops {
    fn hops(&self) -> usize;
}

impl Hops for Stack {
    fn hops(&self) -> usize {
        usize::from(self.head() & 15)
    }
}

impl Hops for Room {
    fn hops(&self) -> usize {
        0
    }
}

macro_rules! define_header {
    ($Stack:ident) => {
        use core::fmt;

        use crate::codec::fmt_range;
        use crate::exchange::exchange_header;

        exchange_header! {
            /// A header of HPCC. The ports are the packet's.
            Header of "HPCC", "hpcc", "an HPCC header", IP_PROTOCOL {}

            /// A packet of a message: full, except for the last one.
            Data = 1 "DATA" from sender as "an HPCC DATA header" of size::DATA {
                /// Length of the whole message.
                message_length: u32 = word,
                /// Offset of the payload in the message.
                offset: u32 = word,
                /// Length of the payload.
                len: u16 = payload,
                /// Whether the receiver shall acknowledge it (BTH's AckReq).
                asks: bool = flag(FLAG_ASKS),
                /// What switches have written.
                stack: $Stack = word,
            },
            /// Which packets have arrived. Packets are numbered from 0.
            Ack = 2 "ACK" from receiver as "an HPCC ACK" of size::ACK {
                /// The first packet that has not arrived.
                next: u32 = word,
                /// Bit `i` is set if packet `next + 1 + i` has arrived; none without selective repeat.
                sack: Sack = word,
                /// What switches had written into the packet that this one answers.
                stack: $Stack = word,
            },
            /// A packet has arrived out of order.
            Nack = 3 "NACK" from receiver as "an HPCC NACK" of size::ACK {
                /// The packet that was expected.
                next: u32 = word,
                /// As in ACK.
                sack: Sack = word,
                /// As in ACK.
                stack: $Stack = word,
            },
            /// The whole message has arrived.
            Complete = 5 "COMPLETE" from receiver,
            /// The message is known, and there is no response yet. This packet is our choice: RoCE has no RPCs.
            Busy = 6 "BUSY" from receiver,
            /// The packet's sender does not have the message. This packet is our choice: in RoCE the connection would break.
            Unknown = 7 "UNKNOWN" from receiver,
            /// The client waits for the response to this request. This packet is our choice: RoCE has no RPCs.
            Ask = 8 "ASK" from sender,
        }

        impl Header {
            /// Writes the fields of the packet type.
            fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let stack = match self.body {
                    Body::Data { message_length, offset, len, asks, stack } => {
                        fmt_range(f, offset, len, message_length)?;
                        f.write_str(if asks { " asks" } else { "" })?;
                        stack
                    }
                    Body::Ack { next, sack, stack } | Body::Nack { next, sack, stack } => {
                        write!(f, " next {next}")?;
                        if sack.bits() > 0 {
                            write!(f, " sack {:#x}", sack.bits())?;
                        }
                        stack
                    }
                    Body::Complete | Body::Busy | Body::Unknown | Body::Ask => return Ok(()),
                };
                match Hops::hops(&stack) {
                    0 => Ok(()),
                    hops => write!(f, " hops {hops}"),
                }
            }
        }
    };
}

define_header!(Room);

/// Headers with the stack.
pub mod stamped {
    use rackweave_core::telemetry::Stack;

    use super::{FLAG_ASKS, Hops, IP_PROTOCOL, Sack, size};

    define_header!(Stack);
}

/// Converts a header and takes its stack, or gives it one.
macro_rules! convert {
    ($header:expr, $from:ident => $to:ident, $stack:expr) => {{
        let $from::Header { id, one_way, body } = $header;
        let stack = $stack;
        let body = match body {
            $from::Body::Data { message_length, offset, len, asks, .. } => {
                $to::Body::Data { message_length, offset, len, asks, stack }
            }
            $from::Body::Ack { next, sack, .. } => $to::Body::Ack { next, sack, stack },
            $from::Body::Nack { next, sack, .. } => $to::Body::Nack { next, sack, stack },
            $from::Body::Complete => $to::Body::Complete,
            $from::Body::Busy => $to::Body::Busy,
            $from::Body::Unknown => $to::Body::Unknown,
            $from::Body::Ask => $to::Body::Ask,
        };
        $to::Header { id, one_way, body }
    }};
}

use super::hpcc as plain;

impl Header {
    /// The same header with this stack, if it has room for one.
    #[must_use]
    #[inline]
    pub const fn with_stack(self, stack: Stack) -> stamped::Header {
        convert!(self, plain => stamped, stack)
    }
}

impl From<Header> for stamped::Header {
    #[inline]
    fn from(header: Header) -> Self {
        header.with_stack(Stack::default())
    }
}

impl From<stamped::Header> for Header {
    #[inline]
    fn from(header: stamped::Header) -> Self {
        convert!(header, stamped => plain, Room)
    }
}

impl From<stamped::Header> for crate::Header {
    #[inline]
    fn from(header: stamped::Header) -> Self {
        Self::Hpcc(header.into())
    }
}

impl From<stamped::Header> for Stamped<crate::Header> {
    #[inline]
    fn from(header: stamped::Header) -> Self {
        let (stack, collects) = match header.body {
            stamped::Body::Data { stack, .. } => (stack, true),
            stamped::Body::Ack { stack, .. } | stamped::Body::Nack { stack, .. } => (stack, false),
            _ => (Stack::default(), false),
        };
        Self { header: header.into(), stack, collects }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Header as _;
    use rackweave_core::Time;
    use rackweave_core::telemetry::Stamp;

    use super::*;
    use crate::homa::Layout;
    use crate::{Codec, Id64, Ports};

    fn data(stack: Stack) -> stamped::Header {
        let body = stamped::Body::Data { message_length: 9, offset: 0, len: 9, asks: true, stack };
        stamped::Header { id: Id64::new(4), one_way: false, body }
    }

    #[test]
    fn both_headers_have_one_encoding_and_only_one_reads_the_stack() {
        let mut stamped = Stamped::from(data(Stack::default()));
        let stamp =
            Stamp { port: 3, rate: 2, at: Time::ZERO, sent_bytes: 1 << 20, queue_bytes: 800 };
        stamped.stamp(stamp);
        let crate::Header::Hpcc(plain) = stamped.header else { panic!("{stamped:?}") };
        let full = plain.with_stack(stamped.stack);
        let mut bytes = Vec::new();
        Codec::encode(&full, Layout::Head, Ports::default(), &mut bytes);
        assert_eq!(bytes.len(), size::DATA as usize);
        // The room follows the two words of DATA: path and number of hops, then the hop.
        assert_eq!(bytes[24..26], stamped.stack.head().to_be_bytes());
        assert_eq!(bytes[26..34], (2_u64 << 60 | 8_192 << 16 | 10).to_be_bytes());
        let read = <stamped::Header as Codec>::decode(Layout::Head, &bytes, bytes.len() + 9);
        assert_eq!(read, Ok((full, Ports::default())));
        let short = <Header as Codec>::decode(Layout::Head, &bytes, bytes.len() + 9);
        assert_eq!(short, Ok((plain, Ports::default())));
    }

    #[test]
    fn switches_write_into_data_only() {
        let stamp = Stamp { port: 3, rate: 2, at: Time::ZERO, sent_bytes: 0, queue_bytes: 0 };
        let ack = stamped::Body::Ack { next: 1, sack: Sack::default(), stack: Stack::default() };
        for (body, hops) in [(ack, 0), (data(Stack::default()).body, 1)] {
            let mut header =
                Stamped::from(stamped::Header { id: Id64::new(4), one_way: false, body });
            header.stamp(stamp);
            assert_eq!(header.stack.hops().map(<[Hop]>::len), Some(hops));
        }
    }
}

//! The headers of the transports whose receivers acknowledge whole messages: NDP, pHost, Polo, pFabric, SIRD, Swift, dcPIM and UET.
//!
//! All begin with the same 16 bytes: ports, packet type, flags, a field whose meaning depends on the packet type, and the id of the
//! message. `exchange_header!` makes a protocol's header from the list of its packet types.

use core::fmt;

use crate::codec::{Codec, flag};
use crate::malformed::{Malformed, Put, Reader};
use crate::sack::Sack;
use crate::{Id64, Ports};

/// The header of such a transport.
///
/// A host that has lost its state, and a client that waits for a response, need two packets in each of these protocols; where the
/// sources have none, they are Rackweave's choice. [`Exchange::ASK`] asks whether the peer still knows a message; the answer is that
/// the message is known (the protocols have different packets for that), or [`Exchange::UNKNOWN`].
pub trait Exchange: Codec + Copy {
    /// The packet types and their fields.
    type Body: Copy + fmt::Debug + Eq;

    /// The client waits for the response to this request.
    const ASK: Self::Body;
    /// The packet's sender does not have the message.
    const UNKNOWN: Self::Body;

    /// Makes a header. What a protocol has besides is the switches' choice.
    fn new(id: Id64, one_way: bool, body: Self::Body) -> Self;

    /// The message, in both directions.
    #[must_use]
    fn id(&self) -> Id64;

    /// Whether the message expects no response.
    #[must_use]
    fn one_way(&self) -> bool;

    /// Whether the packet is addressed from the message's sender to its receiver.
    #[must_use]
    fn is_from_sender(&self) -> bool;
}

/// Bit of [`Prologue::flags`]: the message expects no response.
const FLAG_ONE_WAY: u8 = 0x80;

/// The first 16 bytes of each of these headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prologue {
    pub(crate) ports: Ports,
    /// The packet type.
    pub(crate) code: u8,
    /// The bits below [`FLAG_ONE_WAY`], whose meaning depends on the protocol.
    pub(crate) flags: u8,
    /// A field whose meaning depends on the packet type.
    pub(crate) extra: u16,
    pub(crate) id: Id64,
    pub(crate) one_way: bool,
}

impl Prologue {
    pub(crate) const BYTES: u32 = 16;

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.put_u16(self.ports.source);
        out.put_u16(self.ports.destination);
        out.put_u8(self.code);
        out.put_u8(self.flags | flag(self.one_way, FLAG_ONE_WAY));
        out.put_u16(self.extra);
        out.put_u64(self.id.get());
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let ports = Ports { source: reader.u16()?, destination: reader.u16()? };
        let (code, flags, extra) = (reader.u8()?, reader.u8()?, reader.u16()?);
        let (id, one_way) = (Id64::new(reader.u64()?), flags & FLAG_ONE_WAY != 0);
        Ok(Self { ports, code, flags: flags & !FLAG_ONE_WAY, extra, id, one_way })
    }

    /// Returns whether a bit of `flags` is set.
    pub(crate) const fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }

    /// Writes the beginning of a packet's line.
    pub(crate) fn fmt_line(
        f: &mut fmt::Formatter<'_>,
        packet: &str,
        id: Id64,
        one_way: bool,
    ) -> fmt::Result {
        write!(f, "{packet} id {}", id.get())?;
        f.write_str(if one_way { " one-way" } else { "" })
    }
}

/// A field behind the prologue.
pub(crate) trait Word: Sized {
    fn put(self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed>;
}

impl Word for u16 {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u16(self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u16()
    }
}

impl Word for u32 {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u32(self);
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u32()
    }
}

impl Word for Id64 {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u64(self.get());
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u64().map(Self::new)
    }
}

impl<const N: usize> Word for [u32; N] {
    fn put(self, out: &mut Vec<u8>) {
        self.into_iter().for_each(|word| out.put_u32(word));
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut words = [0; N];
        for word in &mut words {
            *word = reader.u32()?;
        }
        Ok(words)
    }
}

impl Word for Sack {
    fn put(self, out: &mut Vec<u8>) {
        out.put_u64(self.bits());
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u64().map(Self::new)
    }
}

/// A field in [`Prologue::extra`].
pub(crate) trait Extra {
    fn to_extra(self) -> u16;
    fn of_extra(extra: u16) -> Self;
}

impl Extra for u16 {
    fn to_extra(self) -> u16 {
        self
    }
    fn of_extra(extra: u16) -> Self {
        extra
    }
}

/// The low byte; the high one is reserved.
impl Extra for u8 {
    fn to_extra(self) -> u16 {
        u16::from(self)
    }
    fn of_extra(extra: u16) -> Self {
        extra.to_be_bytes()[1]
    }
}

/// Defines `Header` and `Body` of a protocol, their encoding and the payload's place.
///
/// The head names the protocol in errors, in lines, and in the error of a header that is too short; `size::COMMON` is the size of a
/// packet without fields, with the header's own ones, which have a value that leaves the choice to the switches. A packet type has a
/// code, a name, the end of the message that sends it, and, if it has fields, its name in errors and its size. A field is
///
/// - a `word`: behind the prologue, in the order of the list;
/// - `extra`: in the prologue's field for that; a packet has one at most;
/// - `flag(BIT)`: in the prologue's flags;
/// - `payload`: not in the header, the length of what follows.
///
/// `Data` has the fields `message_length`, `offset` and `len`. `Header::fmt_fields` is the protocol's own: the fields in a line of text.
/// The methods in `impl { .. }` are those of [`rackweave_core::Header`] besides `payload`.
macro_rules! exchange_header {
    (
        $(#[$header_doc:meta])*
        Header of $protocol:literal, $line:literal, $what:literal, $ip:path {
            $($(#[$own_doc:meta])* $own:ident: u16 = $any:ident,)*
        } $(, impl { $($method:tt)* })?
        $(
            $(#[$doc:meta])*
            $Packet:ident = $code:literal $name:literal from $end:ident
                $(as $part:literal of $size:path {
                    $($(#[$field_doc:meta])* $field:ident: $Type:ty = $place:ident $(($bit:ident))?,)*
                })?,
        )+
    ) => {
        $(#[$header_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Header {
            /// The message, in both directions.
            pub id: $crate::Id64,
            /// The message expects no response.
            pub one_way: bool,
            $($(#[$own_doc])* pub $own: u16,)*
            /// The packet type, and its fields.
            pub body: Body,
        }

        /// The packet types and their fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Body {
            $($(#[$doc])* $Packet $({ $($(#[$field_doc])* $field: $Type,)* })?,)+
        }

        impl Body {
            /// Returns the packet type's code, its flags, and the field of the prologue.
            fn prologue(&self) -> (u8, u8, u16) {
                match *self {
                    $(Self::$Packet $({ $($field,)* })? => (
                        $code,
                        0 $($(| $crate::exchange::exchange_header!(@flag $place $(($bit))? $field))*)?,
                        0 $($(| $crate::exchange::exchange_header!(@extra $place $field))*)?,
                    ),)+
                }
            }
        }

        impl $crate::exchange::Exchange for Header {
            type Body = Body;

            const ASK: Body = Body::Ask;
            const UNKNOWN: Body = Body::Unknown;

            #[inline]
            fn new(id: $crate::Id64, one_way: bool, body: Body) -> Self {
                Self { id, one_way, $($own: $any,)* body }
            }

            #[inline]
            fn id(&self) -> $crate::Id64 {
                self.id
            }

            #[inline]
            fn one_way(&self) -> bool {
                self.one_way
            }

            #[inline]
            fn is_from_sender(&self) -> bool {
                match self.body {
                    $(Body::$Packet { .. } => $crate::exchange::exchange_header!(@from $end),)+
                }
            }
        }

        impl $crate::Codec for Header {
            fn ip_protocol(_: $crate::homa::Layout) -> u8 {
                $ip
            }

            fn header_bytes(&self, _: $crate::homa::Layout) -> u32 {
                match self.body {
                    $(Body::$Packet { .. } => $crate::exchange::exchange_header!(@size $($size)?),)+
                }
            }

            fn encode(&self, _: $crate::homa::Layout, ports: $crate::Ports, out: &mut Vec<u8>) {
                let (code, flags, extra) = self.body.prologue();
                let (id, one_way) = (self.id, self.one_way);
                $crate::exchange::Prologue { ports, code, flags, extra, id, one_way }.put(out);
                $($crate::exchange::Word::put(self.$own, out);)*
                match self.body {
                    $(Body::$Packet $({ $($field,)* })? => {
                        $($($crate::exchange::exchange_header!(@put $place $field, out);)*)?
                    })+
                }
            }

            fn decode(
                _: $crate::homa::Layout,
                bytes: &[u8],
                l4_bytes: usize,
            ) -> Result<(Self, $crate::Ports), $crate::Malformed> {
                let bytes = &bytes[..bytes.len().min(l4_bytes)];
                let mut reader = $crate::malformed::Reader::new($what, bytes);
                reader.need($what, size::COMMON as usize)?;
                let prologue = $crate::exchange::Prologue::read(&mut reader)?;
                $(let $own = $crate::exchange::Word::read(&mut reader)?;)*
                let body = match prologue.code {
                    $($code => {
                        $(reader.need($part, $size as usize)?;)?
                        Body::$Packet $({
                            $($field: $crate::exchange::exchange_header!(
                                @read $place $(($bit))? $Type, reader, prologue, l4_bytes, $size
                            ),)*
                        })?
                    })+
                    code => {
                        return Err($crate::Malformed::PacketType { protocol: $protocol, code });
                    }
                };
                let $crate::exchange::Prologue { ports, id, one_way, .. } = prologue;
                Ok((Self { id, one_way, $($own,)* body }, ports))
            }

            fn message_bytes(&self) -> Option<u32> {
                match self.body {
                    Body::Data { message_length, .. } => Some(message_length),
                    _ => None,
                }
            }

            fn exchange(&self) -> Option<$crate::Id64> {
                Some(self.id)
            }

            fn fmt_line(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let packet = match self.body {
                    $(Body::$Packet { .. } => concat!($line, " ", $name),)+
                };
                $crate::exchange::Prologue::fmt_line(f, packet, self.id, self.one_way)?;
                self.fmt_fields(f)
            }
        }

        impl rackweave_core::Header for Header {
            #[inline]
            fn payload(&self) -> Option<rackweave_core::Slice> {
                match self.body {
                    Body::Data { offset, len, .. } => {
                        Some($crate::codec::slice(self.id, offset, len))
                    }
                    _ => None,
                }
            }

            $($($method)*)?
        }
    };

    (@from sender) => { true };
    (@from receiver) => { false };

    (@size) => { size::COMMON };
    (@size $size:path) => { $size };

    (@flag flag($bit:ident) $field:ident) => { $crate::codec::flag($field, $bit) };
    (@flag $place:ident $field:ident) => {{ let _ = $field; 0 }};

    (@extra extra $field:ident) => { $crate::exchange::Extra::to_extra($field) };
    (@extra $place:ident $field:ident) => { 0 };

    (@put word $field:ident, $out:ident) => { $crate::exchange::Word::put($field, $out) };
    (@put $place:ident $field:ident, $out:ident) => { let _ = $field; };

    (@read word $Type:ty, $reader:ident, $prologue:ident, $l4_bytes:ident, $size:path) => {
        <$Type as $crate::exchange::Word>::read(&mut $reader)?
    };
    (@read extra $Type:ty, $reader:ident, $prologue:ident, $l4_bytes:ident, $size:path) => {
        <$Type as $crate::exchange::Extra>::of_extra($prologue.extra)
    };
    (@read flag($bit:ident) $Type:ty, $reader:ident, $prologue:ident, $l4_bytes:ident, $size:path) => {
        $prologue.has($bit)
    };
    (@read payload $Type:ty, $reader:ident, $prologue:ident, $l4_bytes:ident, $size:path) => {
        $crate::codec::payload_len($l4_bytes, $size)?
    };
}
pub(crate) use exchange_header;

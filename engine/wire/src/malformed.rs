//! Errors of decoders, and the cursor that they read with.

/// Reasons why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet is truncated.
    #[error("{what} needs {needed} bytes, but there are {got}")]
    Truncated {
        /// The part that was being decoded.
        what: &'static str,
        /// Bytes that the part needs.
        needed: usize,
        /// Bytes that were left.
        got: usize,
    },
    /// The frame's EtherType is not IPv4 (a VLAN tag, for instance).
    #[error("EtherType {0:#06x} is not IPv4's 0x0800")]
    EtherType(u16),
    /// The IP header's version is not 4.
    #[error("IP version {0} is not 4")]
    IpVersion(u8),
    /// The IP header's length is below 20 bytes or above the packet's.
    #[error("an IP header of {header} bytes in a packet of {total}")]
    IpLength {
        /// Length of the header, by its length field.
        header: usize,
        /// Length of the packet, by its length field.
        total: usize,
    },
    /// The IP packet is longer than [`crate::frame::MAX_IP_BYTES`].
    #[error("an IP packet of {0} bytes is longer than a simulated packet can be")]
    TooLong(usize),
    /// The IP header's checksum is wrong.
    #[error("the IP header's checksum is wrong")]
    Checksum,
    /// The packet is a fragment.
    #[error("a fragment of an IP packet")]
    Fragment,
    /// The address is not a simulated or emulated host's.
    #[error("{}.{}.{}.{} is not in 10.0.0.0/8", .0[0], .0[1], .0[2], .0[3])]
    ForeignAddress([u8; 4]),
    /// The IP protocol number is not a supported transport's.
    #[error("unknown IP protocol {0}")]
    Protocol(u8),
    /// The type of a Homa packet is unknown.
    #[error("unknown Homa packet type {0:#04x}")]
    HomaType(u8),
    /// The protocol has no packet of this type.
    #[error("unknown {protocol} packet type {code}")]
    PacketType {
        /// The protocol's name.
        protocol: &'static str,
        /// The type code in the packet.
        code: u8,
    },
    /// An ACK with more than five entries.
    #[error("an ACK claims {0} entries, but has room for 5")]
    AckCount(u16),
    /// The segment is longer than the rest of the packet, or than any IP packet.
    #[error("a segment of {claimed} bytes in a packet with room for {left}")]
    SegmentLength {
        /// Length that the header claims.
        claimed: usize,
        /// Bytes after the header.
        left: usize,
    },
    /// TCP's data offset is below 20 bytes or beyond the segment's end.
    #[error("a TCP header of {header} bytes in a segment of {segment}")]
    TcpDataOffset {
        /// Length of the header, by its data offset.
        header: usize,
        /// Length of the whole segment.
        segment: usize,
    },
    /// A TCP option's length does not fit its kind or the header.
    #[error("TCP option {kind} of length {length}")]
    TcpOption {
        /// The option's kind.
        kind: u8,
        /// The option's length field.
        length: u8,
    },
    /// A TCP segment carries bytes without a message mapping.
    #[error("a TCP segment with {0} bytes but no message mapping")]
    NoMapping(usize),
    /// The datagram has another version of [`crate::overlay`], or belongs to another protocol.
    #[error("unknown version {0:#04x} of the overlay's header")]
    OverlayVersion(u8),
    /// The kind of an overlay datagram is unknown.
    #[error("unknown overlay datagram kind {0}")]
    OverlayKind(u8),
    /// A checksum is wrong.
    #[error("{0} was damaged in transit")]
    Damaged(&'static str),
    /// The kind of an Orca packet is unknown.
    #[error("unknown Orca packet kind {0:#04x}")]
    OrcaKind(u8),
    /// A label's length is not one to four words.
    #[error("a label of {0} words; it has 1 to 4")]
    OrcaWords(u8),
    /// A field of an Orca packet has an impossible value.
    #[error("an Orca packet whose {what} is {value}")]
    OrcaField {
        /// The field's name.
        what: &'static str,
        /// The field's value.
        value: u64,
    },
    /// A field of a Frisbee message has an impossible value.
    #[error("a Frisbee message whose {what} is {value}")]
    FrisbeeField {
        /// The field's name.
        what: &'static str,
        /// The field's value.
        value: u64,
    },
    /// A field of a message of aggregation has an impossible value.
    #[error("a reduce message whose {what} is {value}")]
    ReduceField {
        /// The field's name.
        what: &'static str,
        /// The field's value.
        value: u64,
    },
    /// The packet has no check made with the key, which the receiver requires.
    #[error("the packet is not authenticated by the key")]
    NotKeyed,
    /// The packet's check was made with a key, and the receiver has none.
    #[error("the packet is authenticated by a key, but there is no key")]
    NoKey,
    /// A message's kind is not request, response or one-way.
    #[error("unknown message kind {0}")]
    MessageKind(u8),
}

/// Reads big-endian fields in sequence; `what` names the whole in errors.
pub(crate) struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    /// Checks the length in advance, so that the error has the size of the whole.
    pub(crate) fn need(&mut self, what: &'static str, needed: usize) -> Result<(), Malformed> {
        self.what = what;
        if self.bytes.len() < needed {
            return Err(Malformed::Truncated { what, needed, got: self.bytes.len() });
        }
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some((array, _)) = rest.split_first_chunk::<N>() else {
            let needed = self.at.saturating_add(N);
            return Err(Malformed::Truncated { what: self.what, needed, got: self.bytes.len() });
        };
        self.at += N;
        Ok(*array)
    }

    pub(crate) fn skip<const N: usize>(&mut self) -> Result<(), Malformed> {
        self.array::<N>().map(|_| ())
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u48(&mut self) -> Result<u64, Malformed> {
        let [a, b, c, d, e, f] = self.array()?;
        Ok(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    pub(crate) fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_be_bytes)
    }

    /// Returns the number of bytes read so far.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Appends big-endian fields.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_u48(&mut self, value: u64);
    fn put_u128(&mut self, value: u128);
    fn put_zeros(&mut self, count: usize);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_u48(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes()[2..]);
    }
    fn put_u128(&mut self, value: u128) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_zeros(&mut self, count: usize) {
        self.resize(self.len() + count, 0);
    }
}

//! The overhead of Ethernet frames, and how a transport divides messages into packets.

/// Bytes of the Ethernet header (14) and the frame check sequence (4).
pub const ETHERNET_FRAME: u32 = 18;
/// Bytes of the preamble and start-of-frame delimiter (8) and of the inter-packet gap (12).
pub const ETHERNET_GAP: u32 = 20;
/// The shortest payload of an Ethernet frame (IEEE 802.3): shorter packets are padded.
pub const MIN_PAYLOAD: u32 = 46;
/// The usual Ethernet MTU: the size of the largest IP packet in a frame, in bytes.
pub const MTU: u32 = 1500;
/// Bytes of an IPv4 header without options.
pub const IPV4: u32 = 20;

/// Bytes that a packet of `l3_bytes` (from the IP header on) occupies on the link, gap included.
#[must_use]
pub const fn wire_bytes(l3_bytes: u32) -> u32 {
    let padded = if l3_bytes < MIN_PAYLOAD { MIN_PAYLOAD } else { l3_bytes };
    padded + ETHERNET_FRAME + ETHERNET_GAP
}

/// How a transport divides a message into packets. The ideal time on an idle path depends on nothing else of the
/// transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Payload bytes of a full packet.
    pub max_payload: u32,
    /// Bytes from the IP header to the payload of a data packet.
    pub header_bytes: u32,
    /// Messages longer than this are sprayed over several paths at once; `u32::MAX` means that none is.
    pub spray_above_bytes: u32,
}

impl Framing {
    /// Full frames with a UDP header and no other transport header: the framing for ideal times of what is more than one message, such
    /// as casts and images.
    pub const UDP: Self =
        Self { max_payload: MTU - IPV4 - 8, header_bytes: IPV4 + 8, spray_above_bytes: u32::MAX };

    /// Bytes on the link of a data packet with `payload` bytes.
    #[must_use]
    pub const fn packet_wire_bytes(self, payload: u32) -> u32 {
        wire_bytes(payload + self.header_bytes)
    }

    /// Bytes on the link of a whole message, each packet sent once.
    #[must_use]
    pub const fn message_wire_bytes(self, bytes: u64) -> u64 {
        let full = bytes / self.max_payload as u64;
        let rest = (bytes % self.max_payload as u64) as u32;
        let mut wire = full * self.packet_wire_bytes(self.max_payload) as u64;
        if rest > 0 || full == 0 {
            wire += self.packet_wire_bytes(rest) as u64;
        }
        wire
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_frame_takes_84_bytes() {
        assert_eq!(wire_bytes(1), 84);
        assert_eq!(wire_bytes(46), 84);
        assert_eq!(wire_bytes(MTU), 1538);
    }

    #[test]
    fn messages_are_cut_into_full_packets_and_a_rest() {
        let framing = Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
        assert_eq!(framing.message_wire_bytes(0), 84);
        assert_eq!(framing.message_wire_bytes(1460), 1538);
        assert_eq!(framing.message_wire_bytes(1461), 1538 + 84);
        assert_eq!(framing.message_wire_bytes(14_600), 15_380);
    }
}

//! Properties of every header, and of decoders on any bytes.

use crate::checks;
use crate::headers::{headers, homa, layouts, packets, ports};
use proptest::collection::vec;
use proptest::prelude::*;
use rackweave_core::{Header as _, Packet};
use rackweave_wire::homa::Layout;
use rackweave_wire::{Codec, Header, Malformed, Ports, frame, overlay};

macro_rules! define_checks {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        /// Checks these bytes as a header of any protocol.
        fn checks_of_all(bytes: &[u8]) {
            $(checks::header::<rackweave_wire::$module::Header>(bytes);)+
        }
    };
}
rackweave_wire::transports!(define_checks);

macro_rules! define_protocols {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        /// Returns the name and the IP protocol number of each transport in this layout.
        fn protocols(layout: Layout) -> Vec<(&'static str, u8)> {
            vec![$((
                stringify!($module),
                <rackweave_wire::$module::Header as Codec>::ip_protocol(layout),
            )),+]
        }
    };
}
rackweave_wire::transports!(define_protocols);

#[test]
fn an_ip_protocol_number_names_one_transport() {
    let all: Vec<_> = Layout::ALL.into_iter().flat_map(protocols).collect();
    for (name, number) in &all {
        for (other, its) in &all {
            assert!(number != its || name == other, "{name} and {other} are both {number}");
        }
    }
}

fn encoded(header: &Header, layout: Layout, ports: Ports) -> (Vec<u8>, usize) {
    let mut bytes = Vec::new();
    header.encode(layout, ports, &mut bytes);
    let l4_bytes = bytes.len() + header.payload_bytes() as usize;
    (bytes, l4_bytes)
}

proptest! {
    #![proptest_config(rackweave_testing::cases(2000))]

    #[test]
    fn every_header_comes_back(header in headers(), layout in layouts(), ports in ports()) {
        let (bytes, l4_bytes) = encoded(&header, layout, ports);
        prop_assert_eq!(bytes.len(), header.header_bytes(layout) as usize);
        let decoded = Header::decode(header.ip_protocol(layout), &bytes, l4_bytes);
        prop_assert_eq!(decoded, Ok((header, ports)));
    }

    #[test]
    fn time_stamps_come_back(header in homa::arbitrary(), numbers: [u32; 4], ports in ports()) {
        let header = Header::Homa(homa::stamped(header, numbers));
        let (bytes, l4_bytes) = encoded(&header, Layout::Leverage, ports);
        let decoded = Header::decode(header.ip_protocol(Layout::Leverage), &bytes, l4_bytes);
        prop_assert_eq!(decoded, Ok((header, ports)));
    }

    #[test]
    fn every_frame_comes_back((layout, packet) in packets()) {
        let mut bytes = Vec::new();
        let length = frame::encode(&packet, layout, &mut bytes).expect("short enough");
        prop_assert!(bytes.len() <= length as usize);
        prop_assert!(length >= 60);
        prop_assert_eq!(frame::decode(&bytes), Ok(packet));
        checks::frame(&bytes);
    }

    #[test]
    fn every_datagram_of_the_overlay_comes_back(
        (layout, packet) in packets(), incarnations: [u32; 2], salt: u8
    ) {
        let payload = vec![salt; packet.header.payload_bytes() as usize];
        let mut bytes = Vec::new();
        let check = overlay::crc32c(0, &payload);
        overlay::encode(&packet, layout, incarnations[0], incarnations[1], check, &mut bytes);
        prop_assert_eq!(
            bytes.len() as u32, overlay::BYTES + packet.header.header_bytes(layout)
        );
        let header_end = bytes.len();
        if !packet.is_trimmed() {
            bytes.extend_from_slice(&payload);
        }
        let l3_bytes = bytes.len() as u32 + 28;
        prop_assume!(l3_bytes <= frame::MAX_IP_BYTES);
        let class = frame::traffic_class(&packet);
        let read = overlay::decode(&bytes, class).expect("it is as it was written");
        let mut expected = packet;
        // A trimmed packet counts as the shortest frame, as in the simulator.
        if !packet.is_trimmed() {
            expected.wire_bytes = rackweave_core::frame::wire_bytes(l3_bytes) as u16;
        }
        prop_assert_eq!(read.packet, Some(expected));
        prop_assert_eq!([read.envelope.from, read.envelope.to], incarnations);
        prop_assert_eq!(read.payload, header_end..bytes.len());
        bytes.insert(0, class);
        checks::overlay(&bytes);
    }

    #[test]
    fn a_damaged_datagram_of_the_overlay_is_refused(
        (layout, packet) in packets(), at: usize, flip in 1_u8..=255
    ) {
        let payload = vec![7; packet.header.payload_bytes() as usize];
        let mut bytes = Vec::new();
        overlay::encode(&packet, layout, 1, 2, overlay::crc32c(0, &payload), &mut bytes);
        if !packet.is_trimmed() {
            bytes.extend_from_slice(&payload);
        }
        let class = frame::traffic_class(&packet);
        let at = at % bytes.len();
        bytes[at] ^= flip;
        prop_assert!(overlay::decode(&bytes, class).is_err());
        bytes.insert(0, class);
        checks::overlay(&bytes);
    }

    #[test]
    fn payload_and_padding_behind_a_header_change_nothing(
        (layout, packet) in packets(), tail in vec(any::<u8>(), 0..100)
    ) {
        let mut bytes = Vec::new();
        frame::encode(&packet, layout, &mut bytes).expect("short enough");
        bytes.extend_from_slice(&tail);
        prop_assert_eq!(frame::decode(&bytes), Ok(packet));
    }

    #[test]
    fn decoders_survive_any_bytes(bytes in vec(any::<u8>(), 0..120), l4_bytes in any::<usize>()) {
        checks_of_all(&bytes);
        checks::frame(&bytes);
        checks::overlay(&bytes);
        for protocol in 0..=u8::MAX {
            // Most are rejected; none may panic, whatever length IP claims.
            let _ = Header::decode(protocol, &bytes, l4_bytes);
        }
    }

    #[test]
    fn decoders_survive_a_changed_byte((layout, packet) in packets(), at: usize, to: u8) {
        let mut bytes = Vec::new();
        frame::encode(&packet, layout, &mut bytes).expect("short enough");
        let at = at % bytes.len();
        bytes[at] = to;
        checks::frame(&bytes);
        let l4 = &bytes[34..];
        checks_of_all(l4);
    }

    #[test]
    fn a_changed_ip_header_is_noticed((layout, packet) in packets(), at in 14..34_usize, to: u8) {
        let mut bytes = Vec::new();
        frame::encode(&packet, layout, &mut bytes).expect("short enough");
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        prop_assert!(frame::decode(&bytes).is_err());
    }
}

proptest! {
    #![proptest_config(rackweave_testing::cases(300))]

    #[test]
    fn a_header_cut_anywhere_is_refused(header in headers(), layout in layouts(), ports in ports()) {
        let (bytes, l4_bytes) = encoded(&header, layout, ports);
        let protocol = header.ip_protocol(layout);
        for cut in 0..bytes.len() {
            for claimed in [cut, l4_bytes] {
                let error = Header::decode(protocol, &bytes[..cut], claimed).unwrap_err();
                match (header, error) {
                    (Header::Homa(_), Malformed::Truncated { got, .. }) => prop_assert_eq!(got, cut),
                    (Header::Homa(_), _) => {
                        return Err(TestCaseError::fail(format!("{error} at {cut}")));
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_frame_cut_within_its_headers_is_refused((layout, packet) in packets()) {
        let mut bytes = Vec::new();
        frame::encode(&packet, layout, &mut bytes).expect("short enough");
        let headers = 34 + packet.header.header_bytes(layout) as usize;
        for cut in 0..headers {
            prop_assert!(frame::decode(&bytes[..cut]).is_err(), "at {}", cut);
        }
    }
}

/// 16 bytes of packet, 48 of header.
#[test]
fn a_packet_fills_a_cache_line() {
    assert!(size_of::<Packet<Header>>() <= 64);
}

//! Properties of decoders on any bytes, shared by the fuzz targets and the tests.

use rackweave_core::{Header as _, Packet};
use rackweave_wire::dump::Line;
use rackweave_wire::homa::Layout;
use rackweave_wire::secure::{self, Datagram, Resumption};
use rackweave_wire::{Codec, Header, Malformed, Ports, frame, frisbee, orca, overlay, reduce};

/// Lengths that IP may claim for a packet with `captured` bytes.
fn claimed_lengths(captured: usize) -> [usize; 4] {
    [captured, captured / 2, captured + 1424, 65_515]
}

/// A check of a decoder on any bytes.
type Check = fn(&[u8]);

/// The targets besides those of the transports' headers, and their checks.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) const OTHERS: [(&str, Check); 6] = [
    ("decode_frame", frame),
    ("decode_overlay", overlay),
    ("decode_orca", orca),
    ("decode_frisbee", frisbee),
    ("decode_reduce", reduce),
    ("decode_secure", secure),
];

/// A decoded header is encoded in its full length, and decoded to the same header.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn header<H: Codec + Into<Header>>(bytes: &[u8]) {
    for layout in Layout::ALL {
        for l4_bytes in claimed_lengths(bytes.len()) {
            let Ok((header, ports)) = H::decode(layout, bytes, l4_bytes) else {
                continue;
            };
            let mut again = Vec::new();
            header.encode(layout, ports, &mut again);
            assert_eq!(again.len(), header.header_bytes(layout) as usize);
            let l4_bytes = again.len() + header.payload().map_or(0, |slice| slice.len as usize);
            assert_eq!(H::decode(layout, &again, l4_bytes), Ok((header, ports)));
            print(header.into(), ports);
        }
    }
}

/// A decoded frame is encoded as the same packet. The canonical encoding (without options and trailers that we do not
/// write) is a fixed point.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn frame(bytes: &[u8]) {
    let Ok(packet) = frame::decode(bytes) else {
        return;
    };
    let layout = match bytes[23] {
        253 => Layout::Talk,
        250 => Layout::Leverage,
        _ => Layout::Head,
    };
    let mut again = Vec::new();
    let length = match frame::encode(&packet, layout, &mut again) {
        Ok(length) => length as usize,
        // A SYN is encoded with options that it may not have had.
        Err(frame::Unframeable::TooLong(length)) if length > frame::MAX_IP_BYTES => return,
        Err(error) => panic!("{error}: {packet:?}"),
    };
    assert!(again.len() <= length, "captured {} of {length} bytes", again.len());
    let ours = frame::decode(&again).expect("what was encoded is decoded");
    let mut same_size = ours;
    same_size.wire_bytes = packet.wire_bytes;
    assert_eq!(same_size, packet);
    let mut third = Vec::new();
    assert_eq!(frame::encode(&ours, layout, &mut third), Ok(length as u32));
    assert_eq!(third, again);
    assert!(!Line(&packet).to_string().is_empty());
}

/// A decoded datagram of the overlay (after its traffic class) is encoded as the same datagram. Also with corrected
/// checksums, which random changes never hit.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn overlay(bytes: &[u8]) {
    let Some((&class, bytes)) = bytes.split_first() else { return };
    overlay_datagram(class, bytes);
    let mut sealed = bytes.to_vec();
    if let Some(&header_bytes) = sealed.get(3)
        && let header_end = overlay::BYTES as usize + usize::from(header_bytes)
        && sealed.len() >= header_end
    {
        let payload = overlay::crc32c(0, &sealed[header_end..]);
        sealed[28..32].copy_from_slice(&payload.to_be_bytes());
        let header = overlay::crc32c(overlay::crc32c(0, &sealed[..24]), &sealed[28..header_end]);
        sealed[24..28].copy_from_slice(&header.to_be_bytes());
        overlay_datagram(class, &sealed);
    }
}

fn overlay_datagram(class: u8, bytes: &[u8]) {
    let mut turned = bytes.to_vec();
    overlay::return_to_sender(&mut turned);
    assert_eq!(turned.len(), bytes.len());
    if let Ok((envelope, message, rest)) = overlay::decode_path(bytes) {
        assert!(overlay::is_path(bytes) && overlay::decode(bytes, class).is_err());
        let (mut again, rest) = (Vec::new(), &bytes[rest]);
        overlay::encode_path(envelope, &message, rest, &mut again);
        let (ours, same, range) =
            overlay::decode_path(&again).expect("what was encoded is decoded");
        return assert_eq!((ours, same, &again[range]), (envelope, message, rest));
    }
    let Ok(read) = overlay::decode(bytes, class) else { return };
    let glance = overlay::glance(bytes).expect("what is understood can be looked at");
    assert_eq!((glance.envelope, glance.header_end), (read.envelope, read.payload.start));
    assert_eq!(read.payload.end, bytes.len());
    let overlay::Envelope { src, dst, from, to, .. } = read.envelope;
    let mut again = Vec::new();
    let Some(packet) = read.packet else {
        overlay::encode_hello(src, dst, from, to, &mut again);
        let ours = overlay::decode(&again, class).expect("what was encoded is decoded");
        return assert_eq!((ours.envelope, ours.packet), (read.envelope, None));
    };
    assert_eq!((glance.ports, glance.path), (Ports::of_packet(&packet), packet.header.path()));
    let layout = match bytes[2] {
        253 => Layout::Talk,
        250 => Layout::Leverage,
        _ => Layout::Head,
    };
    let payload = &bytes[read.payload.clone()];
    let check = overlay::crc32c(0, payload);
    overlay::encode(&packet, layout, from, to, check, &mut again);
    again.extend_from_slice(payload);
    let ours = match overlay::decode(&again, class) {
        // A SYN is encoded with options that it may not have had.
        Err(Malformed::TooLong(_)) => return,
        ours => ours.expect("what was encoded is decoded"),
    };
    let mut same_size = ours.packet.expect("a packet");
    same_size.wire_bytes = packet.wire_bytes;
    assert_eq!((ours.envelope, same_size), (read.envelope, packet));
    assert_eq!(&again[ours.payload], payload);
}

/// A decoded datagram between hosts with a key (after its traffic class) is encoded as the same bytes, up to its tag or what is
/// sealed. The same bytes as what was sealed in a datagram are decoded to a packet that is encoded as the same packet.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn secure(bytes: &[u8]) {
    let Some((&class, bytes)) = bytes.split_first() else { return };
    if let Ok(read) = secure::decode(bytes) {
        assert!(secure::is_secure(bytes));
        let mut again = Vec::new();
        match read {
            Datagram::Handshake(handshake) => {
                handshake.encode(&mut again);
                let resumption = Resumption::from_bytes(&handshake.noise);
                assert_eq!(resumption.to_bytes(), handshake.noise);
            }
            Datagram::Sealed(clear) => secure::encode_sealed(clear, &mut again),
            Datagram::Lost(clear) => secure::encode_lost(clear, &mut again),
            Datagram::Notice(notice) => {
                secure::encode_notice(notice, &mut again);
                // Its last byte has no meaning.
                assert_eq!(bytes.len(), secure::NOTICE_BYTES);
                again.truncate(secure::NOTICE_BYTES - 1);
            }
        }
        assert!(bytes.starts_with(&again), "{read:?}");
        assert!(
            again.len() + secure::TAG_BYTES <= bytes.len() || matches!(read, Datagram::Notice(_))
        );
    }
    let sealed = secure::CLEAR_BYTES + secure::TAG_BYTES;
    if let Some((ticket, secret)) = secure::decode_grant(bytes) {
        let mut again = Vec::new();
        secure::encode_grant(&ticket, &secret, &mut again);
        assert_eq!(again, bytes);
        assert!(secure::decode_inner(bytes, sealed + bytes.len(), class).is_err());
    }
    if let Some(Ok((message, rest))) = secure::decode_path(bytes) {
        let mut again = Vec::new();
        secure::encode_path(&message, &mut again);
        assert_eq!((again.len(), rest.end), (rest.start, bytes.len()));
        again.extend_from_slice(&bytes[rest.clone()]);
        assert_eq!(secure::decode_path(&again), Some(Ok((message, rest))));
        assert!(secure::decode_inner(bytes, sealed + bytes.len(), class).is_err());
    }
    let Ok(inner) = secure::decode_inner(bytes, sealed + bytes.len(), class) else { return };
    let mut again = Vec::new();
    let Some((packet, payload)) = inner else {
        secure::encode_empty(&mut again);
        return assert_eq!(again, bytes);
    };
    assert_eq!(payload.end, bytes.len());
    let layout = match bytes[0] {
        253 => Layout::Talk,
        250 => Layout::Leverage,
        _ => Layout::Head,
    };
    secure::encode_inner(&packet, layout, &mut again);
    again.extend_from_slice(&bytes[payload.clone()]);
    let ours = match secure::decode_inner(&again, sealed + again.len(), class) {
        // A SYN is encoded with options that it may not have had.
        Err(Malformed::TooLong(_)) => return,
        ours => ours.expect("what was encoded is decoded").expect("a packet"),
    };
    let mut same_size = ours.0;
    same_size.wire_bytes = packet.wire_bytes;
    assert_eq!(same_size, packet);
    assert_eq!(again[ours.1], bytes[payload]);
}

/// A decoded Orca packet is encoded as the same packet. Also with a corrected check.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn orca(bytes: &[u8]) {
    orca_packet(bytes);
    let mut sealed = bytes.to_vec();
    let Some(flags) = sealed.get(1).copied() else { return };
    let at = 12 + 4 * usize::from(flags & 7);
    if flags & 0x80 == 0 && sealed.len() >= at + 4 {
        let front = if sealed[0] & 0x0f <= 3 {
            overlay::crc32c(overlay::crc32c(0, &[flags & !7]), &sealed[2..12])
        } else {
            overlay::crc32c(0, &sealed[..at])
        };
        let check = overlay::crc32c(front, &sealed[at + 4..]);
        sealed[at..at + 4].copy_from_slice(&check.to_be_bytes());
        orca_packet(&sealed);
    }
}

fn orca_packet(bytes: &[u8]) {
    let seen = orca::glance(bytes, None);
    let Ok(read) = orca::decode(bytes, None) else { return };
    let seen = seen.expect("what is understood can be looked at");
    assert_eq!((seen.header, seen.header_end), (read.header, read.payload.start));
    let (words, payload) = (bytes[1] & 7, &bytes[read.payload.clone()]);
    let mut again = Vec::new();
    orca::encode_header(&read.header, words, None, &[payload], &mut again);
    assert_eq!(again.len() as u32, orca::header_bytes(&read.header, words, false));
    again.extend_from_slice(payload);
    assert_eq!(again, bytes);
}

/// A decoded Frisbee message is encoded as the same message. The same holds with the length of the bytes present, which
/// random changes seldom hit, and with its payload read as statistics.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn frisbee(bytes: &[u8]) {
    frisbee_message(bytes);
    let mut fitting = bytes.to_vec();
    if let Some(length) = bytes.len().checked_sub(frisbee::HEADER_BYTES as usize) {
        fitting[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        frisbee_message(&fitting);
    }
}

fn frisbee_message(bytes: &[u8]) {
    let Ok(read) = frisbee::decode(bytes) else { return };
    let payload = &bytes[read.payload.clone()];
    assert_eq!(payload.len(), read.header.payload_len() as usize);
    let mut again = Vec::new();
    frisbee::encode(&read.header, &mut again);
    assert_eq!(again.len() as u32, read.header.header_bytes());
    again.extend_from_slice(payload);
    assert_eq!(again, bytes[..read.payload.end]);
    let mut line = String::new();
    read.header.fmt_line(&mut line).expect("a string takes any text");
    assert!(!line.is_empty());
    if let Ok(stats) = frisbee::ClientStats::decode(payload) {
        again.clear();
        stats.encode(&mut again);
        assert_eq!(frisbee::ClientStats::decode(&again), Ok(stats));
    }
}

/// A decoded message of aggregation is encoded as the same message, in its full length.
#[allow(dead_code, reason = "each user needs some of these")]
pub(crate) fn reduce(bytes: &[u8]) {
    let Ok(read) = reduce::decode(bytes) else { return };
    let payload = &bytes[read.payload.clone()];
    assert_eq!(payload.len(), read.header.payload_len() as usize);
    let mut again = Vec::new();
    reduce::encode(&read.header, &mut again);
    assert_eq!(again.len() as u32, read.header.header_bytes());
    again.extend_from_slice(payload);
    assert_eq!(again.len(), read.payload.end);
    if let (reduce::Body::VectorState { .. }, Ok(plan)) =
        (read.header.body, reduce::Plan::decode(payload))
    {
        assert_eq!(reduce::Plan::decode(&plan.encode()), Ok(plan));
    }
    assert_eq!(reduce::decode(&again).expect("what was encoded is decoded"), read);
    let mut line = String::new();
    read.header.fmt_line(&mut line).expect("a string takes any text");
    assert!(!line.is_empty());
}

fn print(header: Header, ports: Ports) {
    let packet = Packet::new(Default::default(), Default::default(), 100, header)
        .with_ports(ports.source, ports.destination);
    assert!(!Line(&packet).to_string().is_empty());
}

//! Homa's layouts: sizes and offsets of fields, as in the kernel module (HomaModule) of July 2026 (`Head`) and
//! October 2023 (`Talk`).

use rackweave_wire::homa::{
    Body, DataStamps, ETH_OVERHEAD, GrantStamps, Header, Layout, MAX_MESSAGE_LENGTH, size,
};
use rackweave_wire::{Id64, Malformed, Ports};

const PORTS: Ports = Ports { source: 0x1112, destination: 0x2122 };
const ID: u64 = 0x3132_3334_3536_3738;

fn encode(layout: Layout, body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    Header { id: Id64::new(ID), one_way: false, body }.encode(layout, PORTS, &mut bytes);
    bytes
}

fn decode(layout: Layout, bytes: &[u8]) -> Result<Body, Malformed> {
    Header::decode(layout, bytes, bytes.len()).map(|(header, _)| header.body)
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let value = |digit: u8| char::from(digit).to_digit(16).expect("a hex digit") as u8;
    digits.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

const DATA: Body = Body::Data {
    message_length: 0x4142_4344,
    incoming: 0x5152_5354,
    ack_id: Id64::new(0x6162_6364_6566_6768),
    ack_port: 0x7172,
    cutoff_version: 0x8182,
    retransmit: true,
    offset: 0x9192_9394,
    segment_length: 0x0102,
    stamps: DataStamps { sent_at: 0xa1a2_a3a4, echo: 0xb1b2_b3b4 },
};
const GRANT: Body = Body::Grant {
    offset: 0x4142_4344,
    priority: 5,
    resend_all: true,
    stamps: GrantStamps { sent_at: 1, echo: 2, held_ns: 3, host_ns: 4 },
};
const RESEND: Body = Body::Resend { offset: 0x4142_4344, length: u32::MAX, priority: 7 };
const CUTOFFS: Body = Body::Cutoffs { cutoffs: [7, 6, 5, 4, 3, 2, 1], version: 0x5152 };
const ACK: Body = Body::Ack { count: 2, others: [Id64::new(0x41), Id64::new(0x42), Id64::new(0)] };

#[test]
fn sizes_are_those_of_the_kernel_module() {
    for (body, head, talk, leverage) in [
        (DATA, 56, 60, 68),
        (GRANT, 33, 34, 50),
        (RESEND, 37, 37, 37),
        (Body::Unknown { refused: true }, 28, 28, 28),
        (Body::Busy, 28, 28, 28),
        (Body::NeedAck, 28, 28, 28),
        (CUTOFFS, 62, 62, 62),
        (ACK, 80, 90, 90),
    ] {
        assert_eq!(encode(Layout::Head, body).len(), head, "{body:?}");
        assert_eq!(encode(Layout::Talk, body).len(), talk, "{body:?}");
        assert_eq!(encode(Layout::Leverage, body).len(), leverage, "{body:?}");
    }
    let named =
        [size::COMMON, size::DATA_HEAD, size::DATA_TALK, size::GRANT_HEAD, size::GRANT_TALK];
    assert_eq!(named, [28, 56, 60, 33, 34]);
    assert_eq!([size::RESEND, size::CUTOFFS, size::ACK_HEAD, size::ACK_TALK], [37, 62, 80, 90]);
    assert_eq!([size::MAX_HEADER, ETH_OVERHEAD, MAX_MESSAGE_LENGTH], [90, 42, 1_000_000]);
    assert_eq!(Layout::ALL.map(|layout| layout.max_payload(1500)), [1424, 1420, 1412]);
    assert_eq!(Layout::ALL.map(Layout::ip_protocol), [146, 0xfd, 250]);
}

/// The packets of our extension, which are the same in both layouts.
#[test]
fn streams_have_their_places_too() {
    use rackweave_wire::homa::stream::{Credit, Reason, Stream, flags};
    let credit = Credit { allowed: 0x6162_6364, received: 0x7172_7374, priority: 5 };
    let (flags, tag) = (flags::END | flags::ASK, 0x8182_8384);
    let data = Stream::Data {
        offset: 0x4142_4344,
        len: 0x0102,
        written: 0x5152_5354,
        credit,
        cutoff_version: 0x9192,
        flags,
        tag,
    };
    let (offset, length) = (0x4142_4344, 0x5152_5354);
    let own = "61626364 71727374 81828384 05 05";
    for (stream, code, doff, expected) in [
        (data, "20", "e0", format!("41424344 51525354 {own} 0102 9192 0000")),
        (Stream::Credit { credit, flags, tag }, "21", "00", own.to_owned()),
        (Stream::Missing { offset, length, tag }, "22", "00", "41424344 51525354 81828384".into()),
        (Stream::Reset { reason: Reason::Deadline, tag }, "23", "00", "81828384 02".into()),
    ] {
        let common = format!("1112 2122 00000000 000000 {code} {doff} 00 000000000000");
        let bytes = hex(&format!("{common} 3132333435363738 {expected}"));
        for layout in [Layout::Head, Layout::Talk] {
            assert_eq!(encode(layout, Body::Stream(stream)), bytes, "{stream:?}");
        }
    }
}

#[test]
fn fields_are_where_the_kernel_module_has_them() {
    let with_sequence = |sequence: &str, code: &str, doff: &str, flags: &str| {
        let (ack, window_checksum_urgent) = ("000000", "000000000000");
        format!(
            "1112 2122 {sequence} {ack} {code} {doff} {flags} {window_checksum_urgent} \
             3132333435363738"
        )
    };
    let common = |code: &str, doff: &str, flags: &str| with_sequence("00000000", code, doff, flags);
    let check = |layout, body, common: String, own: &str| {
        let expected = hex(&(common + own));
        assert_eq!(encode(layout, body), expected, "{body:?}");
    };
    let (head, talk) = (Layout::Head, Layout::Talk);
    // doff: 14 and 15 words of 4 bytes.
    let own = "41424344 51525354 6162636465666768 7172 8182 01 000000 ffffffff";
    check(head, DATA, with_sequence("91929394", "10", "e0", "00"), own);
    let own = "41424344 51525354 8182 01 00 91929394 00000102 6162636465666768 1112 7172";
    check(talk, DATA, common("10", "f0", "00"), own);
    let stamps = "a1a2a3a4 b1b2b3b4";
    check(Layout::Leverage, DATA, common("10", "f0", "00"), &format!("{own} {stamps}"));
    check(head, GRANT, common("11", "00", "40"), "41424344 05");
    check(talk, GRANT, common("11", "00", "40"), "41424344 05 01");
    let own = "41424344 05 01 00000001 00000002 00000003 00000004";
    check(Layout::Leverage, GRANT, common("11", "00", "40"), own);
    check(head, RESEND, common("12", "00", "00"), "41424344 ffffffff 07");
    check(head, Body::Unknown { refused: false }, common("13", "00", "00"), "");
    check(head, Body::Unknown { refused: true }, common("13", "00", "20"), "");
    check(head, Body::Busy, common("14", "00", "00"), "");
    let levels = "7fffffff 00000001 00000002 00000003 00000004 00000005 00000006 00000007";
    check(head, CUTOFFS, common("15", "00", "00"), &format!("{levels} 5152"));
    check(head, Body::NeedAck, common("17", "00", "00"), "");
    let (zero, entries) = ("00".repeat(30), "0000000000000041 2122 0000000000000042 2122");
    check(head, ACK, common("18", "00", "00"), &format!("0002 {entries} {zero}"));
    let entries = "0000000000000041 1112 2122 0000000000000042 1112 2122";
    let zero = "00".repeat(36);
    check(talk, ACK, common("18", "00", "00"), &format!("0002 {entries} {zero}"));
}

#[test]
fn time_stamps_are_kept_where_there_is_room_for_them() {
    for body in [DATA, GRANT] {
        let bytes = encode(Layout::Leverage, body);
        let l4_bytes = bytes.len() + 0x102;
        let (header, _) = Header::decode(Layout::Leverage, &bytes, l4_bytes).unwrap();
        assert_eq!(header.body, body);
        let bytes = encode(Layout::Talk, body);
        let (header, _) = Header::decode(Layout::Talk, &bytes, bytes.len() + 0x102).unwrap();
        match header.body {
            Body::Data { stamps, .. } => assert_eq!(stamps, DataStamps::default()),
            Body::Grant { stamps, .. } => assert_eq!(stamps, GrantStamps::default()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn one_way_is_a_flag() {
    let header = Header { id: Id64::new(ID), one_way: true, body: Body::Busy };
    let mut bytes = Vec::new();
    header.encode(Layout::Head, PORTS, &mut bytes);
    assert_eq!(bytes[13], 0x80);
    assert_eq!(Header::decode(Layout::Head, &bytes, 28), Ok((header, PORTS)));
}

#[test]
fn of_five_acknowledged_ids_three_are_kept() {
    for (layout, entry) in [(Layout::Head, 10), (Layout::Talk, 12)] {
        let mut bytes = encode(layout, Body::Ack { count: 0, others: Default::default() });
        bytes[29] = 5;
        for i in 0..5 {
            bytes[30 + entry * i + 7] = 2 * (i as u8 + 1);
        }
        let others = [2, 4, 6].map(Id64::new);
        assert_eq!(decode(layout, &bytes), Ok(Body::Ack { count: 3, others }));
        bytes[29] = 6;
        assert_eq!(decode(layout, &bytes), Err(Malformed::AckCount(6)));
    }
}

#[test]
fn data_has_the_length_in_the_packet() {
    let bytes = encode(Layout::Head, DATA);
    let length = |l4_bytes| match Header::decode(Layout::Head, &bytes, l4_bytes) {
        Ok((Header { body: Body::Data { segment_length, .. }, .. }, _)) => Ok(segment_length),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    };
    assert_eq!(length(56), Ok(0));
    assert_eq!(length(1480), Ok(1424));
    assert_eq!(length(56 + 65_535), Ok(65_535));
    let too_long = Malformed::SegmentLength { claimed: 65_536, left: 65_536 };
    assert_eq!(length(56 + 65_536), Err(too_long));
    assert_eq!(length(55), Err(truncated("a Homa DATA header", 56, 55)));

    let bytes = encode(Layout::Talk, DATA);
    assert!(Header::decode(Layout::Talk, &bytes, 60 + 0x102).is_ok());
    let beyond = Malformed::SegmentLength { claimed: 0x102, left: 0x101 };
    assert_eq!(Header::decode(Layout::Talk, &bytes, 60 + 0x101), Err(beyond));
}

#[test]
fn what_is_wrong_is_said() {
    let mut freeze = encode(Layout::Head, Body::Busy);
    freeze[11] = 0x16;
    assert_eq!(decode(Layout::Head, &freeze), Err(Malformed::HomaType(0x16)));
    let grant = encode(Layout::Head, GRANT);
    assert_eq!(decode(Layout::Talk, &grant), Err(truncated("a Homa GRANT", 34, 33)));
    let error = decode(Layout::Head, &[]).unwrap_err();
    assert_eq!(error.to_string(), "a Homa header needs 28 bytes, but there are 0");
}

fn truncated(what: &'static str, needed: usize, got: usize) -> Malformed {
    Malformed::Truncated { what, needed, got }
}

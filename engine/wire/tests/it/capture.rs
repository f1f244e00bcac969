//! Reads captures back with an independent reader.

use std::io;

use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use rackweave_core::{HostId, Kind, Packet, Time};
use rackweave_wire::dump::Line;
use rackweave_wire::homa::{self, Layout};
use rackweave_wire::pcapng::{CaptureError, CaptureWriter};
use rackweave_wire::{Header, Id64, frame, tcp};

fn grant() -> Packet<Header> {
    let stamps = homa::GrantStamps::default();
    let body = homa::Body::Grant { offset: 20_000, priority: 2, resend_all: false, stamps };
    let header = homa::Header { id: Id64::new(43), one_way: false, body };
    Packet::new(HostId(7), HostId(3), 53, header.into()).with_ports(2, 1).with_priority(7)
}

fn segment() -> Packet<Header> {
    let message = Id64::new(42);
    let kind = Kind::Request;
    let body = tcp::Body::Data { message, message_length: 10_000, offset: 0, len: 1460, kind };
    let header = tcp::Header { seq: 1, ack: 1, window: 256, flags: tcp::flags::ACK, body };
    Packet::new(HostId(3), HostId(7), 1500, header.into()).with_ports(1, 2)
}

#[test]
fn a_capture_is_read_back() {
    let names = ["h3->leaf0", "leaf0->h3"];
    let mut writer = CaptureWriter::new(Vec::new(), Layout::Head, names).unwrap();
    // Longer than 2^32 ns, and not a whole number of nanoseconds.
    let sent =
        [(Time::from_ps(1_500), 0, segment()), (Time::from_ps(5_000_000_001_999), 1, grant())];
    for (at, interface, packet) in &sent {
        writer.write(*at, *interface, packet).unwrap();
    }
    let file = writer.finish().unwrap();

    let mut reader = PcapNgReader::new(file.as_slice()).unwrap();
    let mut read = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(block) = block.unwrap() {
            let comment = match block.options.as_slice() {
                [EnhancedPacketOption::Comment(text)] => text.to_string(),
                other => panic!("{other:?}"),
            };
            let packet = frame::decode(&block.data).unwrap();
            assert_eq!(comment, Line(&packet).to_string());
            read.push((block.timestamp.as_nanos(), block.interface_id, block.original_len, packet));
        }
    }
    let sizes = [14 + 1500 + tcp::MAPPING_BYTES, 14 + 53];
    assert_eq!(read, [(1, 0, sizes[0], sent[0].2), (5_000_000_001, 1, sizes[1], sent[1].2)]);

    let interfaces = reader.interfaces();
    assert_eq!(interfaces.len(), 2);
    for (interface, name) in interfaces.iter().zip(names) {
        assert_eq!(interface.linktype, DataLink::ETHERNET);
        let expected = [
            InterfaceDescriptionOption::IfName(name.into()),
            InterfaceDescriptionOption::IfTsResol(9),
        ];
        assert_eq!(interface.options, expected);
    }
}

#[test]
fn comments_can_be_left_out() {
    let size = |comments| {
        let writer = CaptureWriter::new(Vec::new(), Layout::Talk, ["h0"]).unwrap();
        let mut writer = writer.with_comments(comments);
        writer.write(Time::ZERO, 0, &grant()).unwrap();
        writer.finish().unwrap().len()
    };
    assert_eq!(size(true) - size(false), 4 + Line(&grant()).to_string().len().div_ceil(4) * 4 + 4);
}

#[test]
fn a_packet_that_cannot_be_captured_leaves_no_trace() {
    let mut writer = CaptureWriter::new(Vec::new(), Layout::Head, ["h0"]).unwrap();
    let error = writer.write(Time::ZERO, 1, &grant()).unwrap_err();
    assert!(matches!(error, CaptureError::NoInterface(1)), "{error}");
    let mut far = grant();
    far.src = HostId(1 << 24);
    let error = writer.write(Time::ZERO, 0, &far).unwrap_err();
    assert!(error.to_string().contains("16777216"), "{error}");
    let file = writer.finish().unwrap();
    let empty = CaptureWriter::new(Vec::new(), Layout::Head, ["h0"]).unwrap().finish().unwrap();
    assert_eq!(file, empty);
}

struct Full;

impl io::Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let Err(error) = CaptureWriter::new(Full, Layout::Head, ["h0"]) else {
        panic!("a header was written to a full disk");
    };
    let CaptureError::Io(cause) = &error else { panic!("{error}") };
    assert_eq!(cause.kind(), io::ErrorKind::StorageFull);
}

//! A packet as one line of text, in the style of tcpdump.

use core::fmt;

use rackweave_core::{Ecn, Header as _, Kind, Packet};

use crate::{Header, homa, tcp};

/// Prints a packet: `h3.1 > h7.2 homa BUSY id 42 prio 7`. The line has source and destination with their ports, the
/// protocol and its fields, and the packet's priority, ECN codepoint (`ECT`, `CE`) and whether it was trimmed.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a>(pub &'a Packet<Header>);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packet = self.0;
        let (source, destination) = (packet.source_port(), packet.destination_port());
        write!(f, "{}.{source} > {}.{destination} ", packet.src, packet.dst)?;
        packet.header.describe(f)?;
        write!(f, " prio {}", packet.priority)?;
        match packet.ecn() {
            Ecn::NotCapable => {}
            Ecn::Capable => f.write_str(" ecn ECT")?,
            Ecn::Marked => f.write_str(" ecn CE")?,
        }
        if packet.is_trimmed() {
            f.write_str(" trimmed")?;
        }
        Ok(())
    }
}

pub(crate) fn write_homa(f: &mut fmt::Formatter<'_>, header: &homa::Header) -> fmt::Result {
    use homa::Body;
    let name = match header.body {
        Body::Data { .. } => "DATA",
        Body::Grant { .. } => "GRANT",
        Body::Resend { .. } => "RESEND",
        Body::Unknown { .. } => "UNKNOWN",
        Body::Busy => "BUSY",
        Body::Cutoffs { .. } => "CUTOFFS",
        Body::NeedAck => "NEED_ACK",
        Body::Ack { .. } => "ACK",
        Body::Stream(stream) => stream.name(),
    };
    write!(f, "homa {name} id {}", header.id.get())?;
    if header.one_way {
        f.write_str(" one-way")?;
    }
    match header.body {
        Body::Data {
            message_length,
            incoming,
            ack_id,
            ack_port,
            cutoff_version,
            retransmit,
            offset,
            segment_length,
            stamps,
        } => {
            let end = u64::from(offset) + u64::from(segment_length);
            write!(f, " [{offset}..{end}) of {message_length} incoming {incoming}")?;
            if cutoff_version != 0 {
                write!(f, " cutoffs v{cutoff_version}")?;
            }
            if retransmit {
                f.write_str(" retransmit")?;
            }
            if ack_id.get() != 0 {
                write!(f, " ack {}.{ack_port}", ack_id.get())?;
            }
            write_stamps(f, stamps.sent_at, stamps.echo)
        }
        Body::Grant { offset, priority, resend_all, stamps } => {
            write!(f, " to {offset} at {priority}")?;
            f.write_str(if resend_all { " resend all" } else { "" })?;
            write_stamps(f, stamps.sent_at, stamps.echo)?;
            if stamps.echo != 0 {
                write!(f, " held {} ns host {} ns", stamps.held_ns, stamps.host_ns)?;
            }
            Ok(())
        }
        Body::Resend { length: u32::MAX, priority, .. } => write!(f, " all at {priority}"),
        Body::Resend { offset, length, priority } => {
            let end = u64::from(offset) + u64::from(length);
            write!(f, " [{offset}..{end}) at {priority}")
        }
        Body::Cutoffs { cutoffs, version } => {
            write!(f, " v{version}")?;
            for (priority, cutoff) in (1..=7).rev().zip(cutoffs) {
                write!(f, " {priority}:{cutoff}")?;
            }
            Ok(())
        }
        Body::Ack { count, others } => {
            for (i, id) in others.iter().take(usize::from(count)).enumerate() {
                write!(f, "{}{}", if i == 0 { " and " } else { ", " }, id.get())?;
            }
            Ok(())
        }
        Body::Unknown { refused: true } => f.write_str(" refused"),
        Body::Unknown { .. } | Body::Busy | Body::NeedAck => Ok(()),
        Body::Stream(stream) => stream.dump(f),
    }
}

fn write_stamps(f: &mut fmt::Formatter<'_>, sent_at: u32, echo: u32) -> fmt::Result {
    if sent_at != 0 {
        write!(f, " sent {sent_at}")?;
    }
    if echo != 0 {
        write!(f, " echo {echo}")?;
    }
    Ok(())
}

/// The flags as tcpdump writes them.
const TCP_FLAGS: [(u8, char); 8] = [
    (tcp::flags::SYN, 'S'),
    (tcp::flags::FIN, 'F'),
    (tcp::flags::RST, 'R'),
    (tcp::flags::PSH, 'P'),
    (tcp::flags::ACK, '.'),
    (0x20, 'U'),
    (tcp::flags::ECE, 'E'),
    (tcp::flags::CWR, 'W'),
];

pub(crate) fn write_tcp(f: &mut fmt::Formatter<'_>, header: &tcp::Header) -> fmt::Result {
    f.write_str("tcp [")?;
    for (bit, letter) in TCP_FLAGS {
        if header.flags & bit != 0 {
            write!(f, "{letter}")?;
        }
    }
    write!(f, "] seq {}", header.seq)?;
    if let tcp::Body::Data { len, .. } = header.body {
        write!(f, ":{}", header.seq.wrapping_add(u32::from(len)))?;
    }
    if header.flags & tcp::flags::ACK != 0 {
        write!(f, " ack {}", header.ack)?;
    }
    write!(f, " win {}", u32::from(header.window) << tcp::WINDOW_SHIFT)?;
    match header.body {
        tcp::Body::Data { message, message_length, offset, len, kind } => {
            let kind = match kind {
                Kind::OneWay => "one-way",
                Kind::Request => "request",
                Kind::Response => "response",
            };
            let end = u64::from(offset) + u64::from(len);
            write!(f, " {kind} {} [{offset}..{end}) of {message_length}", message.get())
        }
        tcp::Body::Ack { count, sack } => {
            for (i, (from, to)) in sack.iter().take(usize::from(count)).enumerate() {
                write!(f, "{}{from}:{to}", if i == 0 { " sack " } else { ", " })?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Id64, datagram, dcpim, ndp, pfabric, phost, polo, sird, swift};
    use rackweave_core::HostId;

    fn line(header: impl Into<Header>, priority: u8, ecn: Ecn) -> String {
        let packet = Packet::new(HostId(3), HostId(7), 100, header.into())
            .with_ports(1, 2)
            .with_priority(priority)
            .with_ecn(ecn);
        Line(&packet).to_string()
    }

    fn homa(body: homa::Body) -> String {
        line(homa::Header { id: Id64::new(42), one_way: false, body }, 7, Ecn::NotCapable)
    }

    #[test]
    fn homa_data() {
        let data = |ack_id, cutoff_version, retransmit| homa::Body::Data {
            message_length: 10_000,
            incoming: 9000,
            ack_id: Id64::new(ack_id),
            ack_port: 80,
            cutoff_version,
            retransmit,
            offset: 1424,
            segment_length: 1424,
            stamps: homa::DataStamps::default(),
        };
        let header = |one_way, body| homa::Header { id: Id64::new(42), one_way, body };
        assert_eq!(
            line(header(false, data(0, 0, false)), 6, Ecn::Marked),
            "h3.1 > h7.2 homa DATA id 42 [1424..2848) of 10000 incoming 9000 prio 6 ecn CE"
        );
        assert_eq!(
            line(header(true, data(40, 3, true)), 0, Ecn::Capable),
            "h3.1 > h7.2 homa DATA id 42 one-way [1424..2848) of 10000 incoming 9000 \
             cutoffs v3 retransmit ack 40.80 prio 0 ecn ECT"
        );
    }

    #[test]
    fn homa_control() {
        use homa::Body;
        let stamped = homa::GrantStamps { sent_at: 9, echo: 7, held_ns: 5, host_ns: 3 };
        let grant_at =
            |resend_all, stamps| Body::Grant { offset: 20_000, priority: 2, resend_all, stamps };
        let grant = |resend_all| grant_at(resend_all, homa::GrantStamps::default());
        let resend = |length| Body::Resend { offset: 1424, length, priority: 7 };
        let ids = [40, 38, 36].map(Id64::new);
        for (body, expected) in [
            (grant(false), "GRANT id 42 to 20000 at 2"),
            (grant(true), "GRANT id 42 to 20000 at 2 resend all"),
            (
                grant_at(false, stamped),
                "GRANT id 42 to 20000 at 2 sent 9 echo 7 held 5 ns host 3 ns",
            ),
            (resend(1424), "RESEND id 42 [1424..2848) at 7"),
            (resend(u32::MAX), "RESEND id 42 all at 7"),
            (Body::Unknown { refused: false }, "UNKNOWN id 42"),
            (Body::Unknown { refused: true }, "UNKNOWN id 42 refused"),
            (Body::Busy, "BUSY id 42"),
            (Body::NeedAck, "NEED_ACK id 42"),
            (
                Body::Cutoffs { cutoffs: [200, 2800, 15_000, 99, 98, 97, 96], version: 2 },
                "CUTOFFS id 42 v2 7:200 6:2800 5:15000 4:99 3:98 2:97 1:96",
            ),
            (Body::Ack { count: 0, others: ids }, "ACK id 42"),
            (Body::Ack { count: 2, others: ids }, "ACK id 42 and 40, 38"),
        ] {
            assert_eq!(homa(body), format!("h3.1 > h7.2 homa {expected} prio 7"));
        }
    }

    #[test]
    fn homa_streams() {
        use homa::stream::{Credit, Reason, Stream, UNSCHEDULED, flags};
        let credit = |priority| Credit { allowed: 9000, received: 77, priority };
        let (offset, len, written) = (u32::MAX - 9, 20, 30);
        let data = |cutoff_version, flags| Stream::Data {
            offset,
            len,
            written,
            credit: credit(UNSCHEDULED),
            cutoff_version,
            flags,
            tag: 16,
        };
        for (stream, expected) in [
            (
                data(0, flags::OPENING | flags::END),
                "STREAM id 42 [4294967286..10) of 30 end opening received 77 allowed 9000 \
                 deadline in 16 us",
            ),
            (
                data(3, flags::RETRANSMIT | flags::ASK),
                "STREAM id 42 [4294967286..10) of 30 cutoffs v3 ask retransmit received 77 \
                 allowed 9000 tag 0x10",
            ),
            (
                Stream::Credit { credit: credit(2), flags: flags::END_RECEIVED, tag: 16 },
                "CREDIT id 42 end received received 77 allowed 9000 at 2 tag 0x10",
            ),
            (
                Stream::Missing { offset, length: 20, tag: 1 },
                "MISSING id 42 [4294967286..10) tag 0x1",
            ),
            (Stream::Reset { reason: Reason::Cancelled, tag: 0 }, "RESET id 42 cancelled tag 0x0"),
        ] {
            let text = homa(homa::Body::Stream(stream));
            assert_eq!(text, format!("h3.1 > h7.2 homa {expected} prio 7"));
        }
    }

    #[test]
    fn tcp_segments() {
        let header = |flags, body| tcp::Header { seq: 1461, ack: 77, window: 256, flags, body };
        let data = |kind| tcp::Body::Data {
            message: Id64::new(42),
            message_length: 10_000,
            offset: 1460,
            len: 1460,
            kind,
        };
        let sack = [(2921, 4381), (8, 9), (6, 7)];
        use tcp::flags::{ACK, CWR, ECE, FIN, PSH, RST, SYN};
        for (header, expected) in [
            (
                header(ACK | PSH | CWR, data(Kind::OneWay)),
                "[P.W] seq 1461:2921 ack 77 win 65536 one-way 42 [1460..2920) of 10000",
            ),
            (
                header(ACK, data(Kind::Response)),
                "[.] seq 1461:2921 ack 77 win 65536 response 42 [1460..2920) of 10000",
            ),
            (
                header(0, data(Kind::Request)),
                "[] seq 1461:2921 win 65536 request 42 [1460..2920) of 10000",
            ),
            (header(SYN, tcp::Body::Ack { count: 0, sack }), "[S] seq 1461 win 65536"),
            (
                header(FIN | ACK, tcp::Body::Ack { count: 0, sack }),
                "[F.] seq 1461 ack 77 win 65536",
            ),
            (header(RST, tcp::Body::Ack { count: 0, sack }), "[R] seq 1461 win 65536"),
            (
                header(ACK | ECE, tcp::Body::Ack { count: 2, sack }),
                "[.E] seq 1461 ack 77 win 65536 sack 2921:4381, 8:9",
            ),
        ] {
            let text = line(header, 0, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 tcp {expected} prio 0"));
        }
    }

    #[test]
    fn ndp_packets() {
        use ndp::Body;
        let (offset, pull, incarnation) = (1436, 9, 0xbeef);
        let data = Body::Data { message_length: 10_000, offset, len: 1436, window: 7 };
        let ack = |complete| Body::Ack { offset, pull, incarnation, complete };
        for (body, one_way, expected) in [
            (data, true, "DATA id 42 one-way [1436..2872) of 10000 window 7"),
            (ack(false), false, "ACK id 42 1436 pull 9 incarnation 0xbeef"),
            (ack(true), false, "ACK id 42 1436 pull 9 incarnation 0xbeef complete"),
            (
                Body::Nack { offset, pull, incarnation },
                false,
                "NACK id 42 1436 pull 9 incarnation 0xbeef",
            ),
            (Body::Pull { pull, incarnation }, false, "PULL id 42 9 incarnation 0xbeef"),
            (Body::Ask, false, "ASK id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
        ] {
            let header = ndp::Header { id: Id64::new(42), one_way, path: ndp::ANY_PATH, body };
            let text = line(header, 7, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 ndp {expected} prio 7"));
        }
        let (id, body) = (Id64::new(42), Body::Ask);
        let text = line(ndp::Header { id, one_way: false, path: 7, body }, 7, Ecn::NotCapable);
        assert_eq!(text, "h3.1 > h7.2 ndp ASK id 42 path 7 prio 7");
    }

    #[test]
    fn phost_packets() {
        use phost::Body;
        let (message_length, offset, len, free, token) = (20_000, 1460, 1460, 8, 1);
        for (body, one_way, expected) in [
            (Body::Rts { message_length, free }, false, "RTS id 42 of 20000 free 8"),
            (
                Body::Token { packet: 9, number: 11, missing: 5 },
                false,
                "TOKEN id 42 11 for packet 9 missing 5",
            ),
            (
                Body::Data { message_length, offset, len, free, token },
                true,
                "DATA id 42 one-way [1460..2920) of 20000 free 8 token 1",
            ),
            (Body::Ack, false, "ACK id 42"),
            (Body::Busy, false, "BUSY id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
            (Body::Ask, false, "ASK id 42"),
        ] {
            let text = line(phost::Header { id: Id64::new(42), one_way, body }, 6, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 phost {expected} prio 6"));
        }
    }

    #[test]
    fn pfabric_packets() {
        use pfabric::{Body, Sack};
        let (message_length, offset, len, remaining) = (20_000, 1460, 1460, 18_540);
        for (body, one_way, expected) in [
            (
                Body::Data { message_length, offset, len, remaining },
                true,
                "DATA id 42 one-way [1460..2920) of 20000 remaining 18540",
            ),
            (
                Body::Probe { message_length, remaining },
                false,
                "PROBE id 42 of 20000 remaining 18540",
            ),
            (
                Body::Ack { next: 3, packet: 2, sack: Sack::default() },
                false,
                "ACK id 42 of packet 2 next 3",
            ),
            (
                Body::Ack { next: 3, packet: 5, sack: Sack::new(6) },
                false,
                "ACK id 42 of packet 5 next 3 sack 0x6",
            ),
            (Body::Complete, false, "COMPLETE id 42"),
            (Body::Busy, false, "BUSY id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
            (Body::Ask, false, "ASK id 42"),
        ] {
            let header = pfabric::Header { id: Id64::new(42), one_way, body };
            let text = line(header, 0, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 pfabric {expected} prio 0"));
        }
    }

    #[test]
    fn sird_packets() {
        use sird::Body;
        let (message_length, unscheduled) = (20_000, 8);
        let data = |csn| Body::Data { message_length, offset: 1460, len: 1460, unscheduled, csn };
        for (body, one_way, expected) in [
            (
                Body::Request { message_length, unscheduled },
                true,
                "REQUEST id 42 one-way of 20000 unscheduled 8",
            ),
            (Body::Credit { packet: 9 }, false, "CREDIT id 42 for packet 9"),
            (data(false), false, "DATA id 42 [1460..2920) of 20000 unscheduled 8"),
            (data(true), false, "DATA id 42 [1460..2920) of 20000 unscheduled 8 csn"),
            (Body::Ack, false, "ACK id 42"),
            (Body::Busy, false, "BUSY id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
            (Body::Ask, false, "ASK id 42"),
        ] {
            let header = sird::Header { id: Id64::new(42), one_way, body };
            let text = line(header, 0, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 sird {expected} prio 0"));
        }
    }

    #[test]
    fn swift_packets() {
        use swift::{Body, Sack};
        let message_length = 20_000;
        let data = Body::Data { message_length, offset: 1460, len: 1460, number: 7 };
        let (number, wait_ns) = (7, 300);
        let ack = |bits| Body::Ack { number, wait_ns, next: 3, sack: Sack::new(bits) };
        for (body, one_way, expected) in [
            (data, true, "DATA id 42 one-way [1460..2920) of 20000 number 7"),
            (Body::Probe { message_length }, false, "PROBE id 42 of 20000"),
            (ack(0), false, "ACK id 42 of number 7 next 3 wait 300 ns"),
            (ack(6), false, "ACK id 42 of number 7 next 3 wait 300 ns sack 0x6"),
            (Body::Complete { number, wait_ns }, false, "COMPLETE id 42 of number 7 wait 300 ns"),
            (Body::Busy, false, "BUSY id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
            (Body::Ask, false, "ASK id 42"),
        ] {
            let header = swift::Header { id: Id64::new(42), one_way, body };
            let text = line(header, 0, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 swift {expected} prio 0"));
        }
    }

    #[test]
    fn dcpim_packets() {
        use dcpim::{Body, Channels};
        let (message_length, free, epoch, sender_epoch) = (200_000, 0, 70, 69);
        let channels = Channels { total: 3, prompt: 1 };
        let data = Body::Data { message_length, offset: 1460, len: 1460, free, token: 4 };
        let token = Body::Token { packet: 9, number: 11, missing: 5, lifetime: 250, priority: 2 };
        for (body, one_way, expected) in [
            (Body::Notify { message_length, free }, true, "NOTIFY id 42 one-way of 200000 free 0"),
            (Body::NotifyAck, false, "NOTIFY_ACK id 42"),
            (
                Body::Rts { epoch, missing: 137, channels },
                false,
                "RTS id 42 epoch 70 missing 137 channels 3 prompt 1",
            ),
            (
                Body::Grant { epoch, sender_epoch, channels },
                false,
                "GRANT id 42 epoch 70 sender's 69 channels 3 prompt 1",
            ),
            (
                Body::Accept { epoch, sender_epoch, channels },
                false,
                "ACCEPT id 42 epoch 70 sender's 69 channels 3 prompt 1",
            ),
            (
                Body::Release { epoch, channels },
                false,
                "RELEASE id 42 epoch 70 channels 3 prompt 1",
            ),
            (token, false, "TOKEN id 42 11 for packet 9 missing 5 priority 2 lifetime 25000 ns"),
            (data, false, "DATA id 42 [1460..2920) of 200000 free 0 token 4"),
            (Body::Fin, false, "FIN id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
            (Body::Ask, false, "ASK id 42"),
        ] {
            let header = dcpim::Header { id: Id64::new(42), one_way, body };
            let text = line(header, 0, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 dcpim {expected} prio 0"));
        }
    }

    #[test]
    fn polo_packets() {
        use polo::Body;
        let (message_length, offset, len, window) = (20_000, 1460, 1460, 12);
        let data = |driven, retransmit| Body::Data {
            message_length,
            offset,
            len,
            window,
            driven,
            retransmit,
        };
        let adjoint =
            |timeout| Body::Adjoint { message_length, sent: 12, epoch: 3, window, timeout };
        for (body, one_way, expected) in [
            (data(false, false), true, "DATA id 42 one-way [1460..2920) of 20000 window 12"),
            (
                data(true, true),
                false,
                "DATA id 42 [1460..2920) of 20000 window 12 driven retransmit",
            ),
            (adjoint(false), false, "ADJOINT id 42 sent 12 of 20000 window 12 epoch 3"),
            (adjoint(true), false, "ADJOINT id 42 sent 12 of 20000 window 12 epoch 3 timeout"),
            (
                Body::AdjointAck { epoch: 4, paused: false, tick: true },
                false,
                "ADJOINT-ACK id 42 epoch 4 tick",
            ),
            (
                Body::AdjointAck { epoch: 4, paused: true, tick: false },
                false,
                "ADJOINT-ACK id 42 epoch 4 paused",
            ),
            (Body::Drive { upto: 13 }, false, "DRIVE id 42 upto 13"),
            (Body::Loss { first: 5, count: 2 }, false, "LOSS id 42 5 +2"),
            (Body::Complete, false, "COMPLETE id 42"),
            (Body::Ask, false, "ASK id 42"),
            (Body::Unknown, false, "UNKNOWN id 42"),
        ] {
            let text = line(polo::Header { id: Id64::new(42), one_way, body }, 7, Ecn::NotCapable);
            assert_eq!(text, format!("h3.1 > h7.2 polo {expected} prio 7"));
        }
    }

    #[test]
    fn datagrams() {
        let (message_length, offset, len) = (20_000, 1456, 1456);
        let header = datagram::Header { id: Id64::new(42), message_length, offset, len };
        let text = line(header, 0, Ecn::NotCapable);
        assert_eq!(text, "h3.1 > h7.2 datagram id 42 [1456..2912) of 20000 prio 0");
    }

    #[test]
    fn a_trimmed_packet_is_marked_in_its_line() {
        let header = homa::Header { id: Id64::new(42), one_way: false, body: homa::Body::Busy };
        let mut packet = Packet::new(HostId(3), HostId(7), 100, Header::Homa(header));
        packet.trim();
        assert_eq!(Line(&packet).to_string(), "h3.0 > h7.0 homa BUSY id 42 prio 0 trimmed");
    }
}

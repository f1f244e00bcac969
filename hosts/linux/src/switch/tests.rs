//! Frames with given arrival times pass through the fabric, without sockets.

use std::sync::Arc;

use rackweave_core::{DropReason, Ecn, HostId, Packet, Rate, Span, Time, frame};
use rackweave_switch::Fabric;
use rackweave_switch::config::{
    BufferConfig, FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig, Topology, TrimConfig,
};
use rackweave_switch::system::Never;
use rackweave_wire::overlay;

use super::core::{CoreConfig, Departure};
use super::frame::{
    Carried, Encapsulation, Rules, Unfit, finish_datagram, finish_frame, read_datagram, read_frame,
};

type Core = super::Core<()>;

const LINK: Rate = Rate(100_000_000);
const FULL: u64 = 1538;
/// The transmission time of a full packet on a link of 100 Mbps.
const FULL_SPAN: Span = Span::from_ps(FULL * 80_000);

fn config(topology: Topology) -> FabricConfig {
    FabricConfig::new(topology)
        .with_link_delays(Span::from_us(2), Span::from_us(3))
        .without_host_delays()
        .with_switch(
            SwitchConfig::default()
                .with_latency(Span::from_us(1))
                .with_buffer(u64::MAX)
                .without_marking(),
        )
}

fn single(hosts: u32) -> FabricConfig {
    config(Topology::SingleSwitch { hosts, host_link: LINK })
}

fn core(config: &FabricConfig, faults: Vec<Fault>) -> Core {
    CoreConfig {
        fabric: Fabric::new(config).unwrap(),
        faults,
        moves: Vec::new(),
        seed: 7,
        run: 0,
        frames: 10_000,
        nic_queue_bytes: u64::MAX,
        sample_every: Span::ZERO,
        system: Arc::new(()),
        encapsulation: Encapsulation::Overlay,
        mtu: 1500,
    }
    .build()
    .unwrap()
}

/// Returns the rules of switches without a program.
fn plain(hosts: u32) -> Rules<()> {
    Rules { hosts, switches: 0, mtu: 1500, system: Arc::new(()) }
}

fn put(core: &mut Core, src: u32, dst: u32, tag: u8) -> Packet<Carried<Never>> {
    let slot = core.payloads().insert(&[tag]).unwrap();
    Packet::new(HostId(src), HostId(dst), frame::MTU, Carried::opaque(slot, 1, None))
}

fn departures(core: &mut Core, until: Time) -> Vec<(u64, u8, Departure<Never>)> {
    core.run(until);
    let mut all = Vec::new();
    while let Some(departure) = core.departure() {
        let slot = departure.packet.header.slot;
        all.push((departure.due.as_ps(), core.payloads().get(slot)[0], departure));
        core.payloads().release(slot);
    }
    all
}

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

const LATER: Time = Time::from_ticks(Span::from_secs(10).ticks());

#[test]
fn a_frame_takes_two_links_their_delays_and_the_switch() {
    let mut core = core(&single(2), Vec::new());
    let packet = put(&mut core, 0, 1, 9);
    core.arrive(at(100), HostId(0), packet);
    let one_way = FULL_SPAN.as_ps() * 2 + Span::from_us(2 + 1 + 2).as_ps();
    assert!(
        departures(&mut core, Time::from_ps(at(100).as_ps() + one_way - 1)).is_empty(),
        "never early"
    );
    let out = departures(&mut core, LATER);
    assert_eq!((out.len(), out[0].0, out[0].1), (1, at(100).as_ps() + one_way, 9));
    assert_eq!((out[0].2.host, core.payloads().live(), core.next_due()), (HostId(1), 0, None));
}

#[test]
fn a_backlog_leaves_at_exactly_the_rate_of_the_link_however_rarely_it_is_looked_at() {
    for step in [Span::from_ps(777_777), Span::from_ms(3), Span::from_secs(1)] {
        let mut core = core(&single(3), Vec::new());
        for n in 0..200 {
            for src in [1, 2] {
                let packet = put(&mut core, src, 0, n);
                core.arrive(at(u64::from(n)), HostId(src), packet);
            }
        }
        let mut out = Vec::new();
        let mut now = Time::ZERO;
        while now < (Time::ZERO + Span::from_ms(60)) {
            now += step;
            out.extend(departures(&mut core, now).into_iter().map(|(due, ..)| due));
        }
        assert_eq!(out.len(), 400);
        assert!(out.windows(2).all(|pair| pair[1] - pair[0] == FULL_SPAN.as_ps()));
        let links = core.link_stats(&mut ());
        let down = links.iter().find(|link| link.name == "switch0->h0").unwrap();
        assert_eq!((down.frames, down.bytes), (400, 400 * FULL));
        // One frame of each pair stays, and the last pair arrives at the moment at which the next frame is due to
        // leave.
        assert_eq!(down.max_queue_bytes, 201 * FULL);
    }
}

#[test]
fn higher_priorities_overtake() {
    let mut core = core(&single(3), Vec::new());
    for n in 0..20 {
        let low = put(&mut core, 1, 0, 0);
        core.arrive(Time::ZERO, HostId(1), low.with_priority(1));
        let high = put(&mut core, 2, 0, 1);
        core.arrive(Time::ZERO + Span::TICK * u64::from(n == 0), HostId(2), high.with_priority(6));
    }
    let tags: Vec<u8> = departures(&mut core, LATER).into_iter().map(|(_, tag, _)| tag).collect();
    assert_eq!(tags[0], 0, "nothing else was there");
    assert_eq!(tags[1..21], [1; 20], "a link's worth of high priority leaves no room for the low");
    assert_eq!(tags[21..], [0; 19]);
}

#[test]
fn marks_and_drops_follow_the_queue_length() {
    let mut config = single(5);
    config.switch = config.switch.with_ecn_threshold(5 * FULL);
    config.switch.buffer = BufferConfig::PerPort { bytes: 10 * FULL };
    let mut core = core(&config, Vec::new());
    for _ in 0..6 {
        for src in 1..5 {
            let packet = put(&mut core, src, 0, 0);
            core.arrive(Time::ZERO, HostId(src), packet.with_ecn(Ecn::Capable));
        }
    }
    let out = departures(&mut core, LATER);
    let marked = out.iter().filter(|(.., d)| d.packet.ecn() == Ecn::Marked).count();
    let counters = *core.counters();
    assert_eq!(counters.drops[DropReason::QueueFull as usize] as usize, 24 - out.len());
    // Four frames arrive at a time, the first leaves at once and one leaves in between, so 3, 7, 10, and then 1 each
    // time find room.
    assert_eq!((out.len(), marked as u64), (15, counters.ecn_marks));
    assert!((5..=11).contains(&marked), "{marked}");
    assert_eq!(core.payloads().live(), 0, "slots of what is dropped are free again");
}

#[test]
fn a_shared_buffer_is_shared() {
    let mut config = single(6);
    config.switch.buffer = BufferConfig::Shared { bytes: 20 * FULL, alpha: 1.0 };
    let mut core = core(&config, Vec::new());
    for _ in 0..20 {
        for src in 1..6 {
            let packet = put(&mut core, src, 0, 0);
            core.arrive(Time::ZERO, HostId(src), packet);
        }
    }
    let out = departures(&mut core, LATER).len();
    let dropped = core.counters().drops[DropReason::SharedBufferFull as usize] as usize;
    assert_eq!(out + dropped, 100);
    let links = core.link_stats(&mut ());
    let longest = links.iter().map(|link| link.max_queue_bytes).max().unwrap();
    assert_eq!(longest, 10 * FULL, "alpha 1: a lone port gets half");
    assert_eq!(core.payloads().live(), 0);
}

/// Builds a datagram with this many bytes of payload.
fn datagram(src: u32, dst: u32, payload: usize) -> Vec<u8> {
    use rackweave_wire::{Id64, homa};
    let body = homa::Body::Data {
        message_length: 100_000,
        incoming: 10_000,
        ack_id: Id64::new(0),
        ack_port: 0,
        cutoff_version: 0,
        retransmit: false,
        offset: 1000,
        segment_length: payload as _,
        stamps: homa::DataStamps::default(),
    };
    let header = homa::Header { id: Id64::new(4), one_way: true, body };
    let packet = Packet::new(HostId(src), HostId(dst), 1500, header.into()).with_ports(1, 2);
    let bytes: Vec<u8> = (0..payload).map(|n| n as u8).collect();
    let mut out = Vec::new();
    let check = overlay::crc32c(0, &bytes);
    overlay::encode(&packet, homa::Layout::Head, 11, 22, check, &mut out);
    out.extend_from_slice(&bytes);
    out
}

/// The traffic class of a trimmable packet at priority 3.
const CLASS: u8 = (3 << 3 | 2) << 2;

fn arrive_datagram(core: &mut Core, at: Time, src: u32, bytes: &[u8], class: u8) {
    let packet = read_datagram(bytes, class, HostId(src), &plain(core.hosts())).unwrap();
    let slot = core.payloads().insert(bytes).unwrap();
    core.arrive(at, HostId(src), packet.map(|carried| carried.with_slot(slot)));
}

fn trimming(return_to_sender: bool) -> FabricConfig {
    let mut config = single(6);
    config.switch.trim =
        Some(TrimConfig::NDP.with_queues(2 * FULL, 3 * 84).with_return_to_sender(return_to_sender));
    config
}

#[test]
fn trimmed_and_returned_frames_can_be_read() {
    let mut core = core(&trimming(true), Vec::new());
    for _ in 0..4 {
        for src in 1..6 {
            arrive_datagram(&mut core, Time::ZERO, src, &datagram(src, 0, 1300), CLASS);
        }
    }
    core.run(LATER);
    let (mut whole, mut cut, mut back) = (0, 0, 0);
    while let Some(Departure { host, packet, .. }) = core.departure() {
        let (class, bytes) = finish_datagram(core.payloads(), &packet, host);
        let read = overlay::decode(bytes, class).unwrap();
        let inner = read.packet.unwrap();
        assert_eq!((inner.src, inner.dst), (packet.src, packet.dst));
        if inner.is_returned() {
            assert_eq!((host, inner.dst, inner.src), (packet.dst, host, HostId(0)));
            assert_eq!((read.envelope.from, read.envelope.to), (22, 11));
            back += 1;
        } else if inner.is_trimmed() {
            assert_eq!((host, inner.priority, read.payload.len()), (HostId(0), 7, 0));
            cut += 1;
        } else {
            assert_eq!((host, inner.priority, read.payload.len()), (HostId(0), 3, 1300));
            whole += 1;
        }
        core.payloads().release(packet.header.slot);
    }
    let counters = *core.counters();
    assert_eq!((whole + cut + back, counters.dropped()), (20, 0));
    assert!(cut > 0 && back > 0 && whole >= 3, "{whole} {cut} {back}");
    assert_eq!((counters.returned_to_sender, core.payloads().live()), (back, 0));
}

#[test]
fn only_what_the_host_may_send_is_let_in() {
    let good = datagram(1, 0, 100);
    let read = |bytes: &[u8], class| read_datagram(bytes, class, HostId(1), &plain(4)).map(|_| ());
    assert_eq!(read(&good, CLASS), Ok(()));
    assert_eq!(read(&good[..20], CLASS), Err(Unfit::Malformed));
    let mut damaged = good.clone();
    damaged[9] ^= 1;
    assert_eq!(read(&damaged, CLASS), Err(Unfit::Malformed));
    assert_eq!(read(&datagram(2, 0, 100), CLASS), Err(Unfit::Foreign));
    assert_eq!(read(&datagram(1, 4, 100), CLASS), Err(Unfit::NoRoute));
    assert_eq!(read(&good, 4 << 2), Err(Unfit::Malformed), "only switches trim");
    assert_eq!(read(&[0; 3000], CLASS), Err(Unfit::Oversized));
}

#[test]
fn loss_and_damage_are_as_frequent_as_they_say_and_damage_is_found() {
    for kind in [FaultKind::Loss(0.1), FaultKind::Corruption(0.1), FaultKind::Duplication(0.1)] {
        let fault = Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind };
        let mut core = core(&single(2), vec![fault]);
        let mut damaged = 0;
        let mut arrived = 0;
        const SENT: u64 = 5000;
        for n in 0..SENT {
            let now = at(n * 200);
            let bytes = datagram(0, 1, 1 + (n as usize * 13) % 1300);
            arrive_datagram(&mut core, now, 0, &bytes, CLASS);
            core.run(now);
            while let Some(Departure { packet, host, .. }) = core.departure() {
                let (class, bytes) = finish_datagram(core.payloads(), &packet, host);
                damaged += u64::from(overlay::decode(bytes, class).is_err());
                arrived += 1;
                core.payloads().release(packet.header.slot);
            }
        }
        arrived += departures(&mut core, Time::MAX).len() as u64;
        let counters = *core.counters();
        // Over two links, 0.19 of 5000 is 950 with a deviation of 28; 0.2 is 1000 with a deviation of 30.
        match kind {
            FaultKind::Loss(_) => {
                assert_eq!(arrived + counters.drops[DropReason::FaultLoss as usize], SENT);
                assert!((800..1100).contains(&(SENT - arrived)), "{arrived}");
            }
            FaultKind::Corruption(_) => {
                assert_eq!(arrived, SENT);
                assert!((850..1150).contains(&counters.corrupted), "{counters:?}");
                // Some frames are damaged twice, and the last ones may still be in the fabric.
                assert!(damaged <= counters.corrupted && damaged + 120 > counters.corrupted);
            }
            _ => {
                assert_eq!(arrived, SENT + counters.duplicated);
                assert!((800..1200).contains(&counters.duplicated), "{counters:?}");
            }
        }
        assert_eq!(core.payloads().live(), 0);
    }
}

#[test]
fn late_frames_are_overtaken() {
    let kind = FaultKind::Reordering { probability: 0.2, delay: Span::from_ms(2) };
    let fault = Fault { from: Time::ZERO, until: Time::MAX, place: FaultPlace::AllLinks, kind };
    let mut core = core(&single(2), vec![fault]);
    for n in 0..200 {
        let packet = put(&mut core, 0, 1, n);
        core.arrive(Time::ZERO, HostId(0), packet);
    }
    let tags: Vec<u8> = departures(&mut core, LATER).into_iter().map(|(_, tag, _)| tag).collect();
    assert_eq!(tags.len(), 200);
    assert!(tags.windows(2).any(|pair| pair[1] < pair[0]));
    assert!((40..=140).contains(&core.counters().reordered));
}

#[test]
fn a_dead_link_is_avoided_and_a_dead_host_not_reached() {
    let topology = Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 2,
        spines: 2,
        host_link: LINK,
        core_link: LINK,
    };
    let down = |place, from, until| Fault {
        from: at(from),
        until: at(until),
        place,
        kind: FaultKind::Down,
    };
    let faults = vec![
        down(FaultPlace::CoreLink(0), 100_000, 200_000),
        down(FaultPlace::HostLink(HostId(3)), 300_000, 400_000),
    ];
    let mut core = core(&config(topology), faults);
    for n in 0..500_u64 {
        let packet = put(&mut core, 0, 3, 0).sprayed(true);
        core.run(at(n * 1000));
        core.arrive(at(n * 1000), HostId(0), packet);
    }
    let out = departures(&mut core, LATER).len() as u64;
    let counters = *core.counters();
    // One frame is sent per millisecond, and a hop takes an eighth of one: only the frames on the spine's link are lost
    // with it.
    let lost = counters.drops[DropReason::LinkDown as usize];
    assert_eq!(out + lost, 500);
    assert!((99..=103).contains(&lost), "{counters:?}");
    let links = core.link_stats(&mut ());
    let of = |name: &str| links.iter().find(|link| link.name == name).unwrap().frames;
    assert!(of("leaf0->spine1") > of("leaf0->spine0") + 50, "{links:?}");
}

#[test]
fn a_hosts_own_queue_is_bounded_and_so_are_frames() {
    let fabric = Fabric::new(&single(2)).unwrap();
    let mut core = CoreConfig {
        fabric,
        faults: Vec::new(),
        moves: Vec::new(),
        seed: 1,
        run: 0,
        frames: 50,
        nic_queue_bytes: 10 * FULL,
        sample_every: Span::ZERO,
        system: Arc::new(()),
        encapsulation: Encapsulation::Overlay,
        mtu: 1500,
    }
    .build()
    .unwrap();
    for n in 0..40 {
        let packet = put(&mut core, 0, 1, n);
        core.arrive(Time::ZERO, HostId(0), packet);
    }
    assert_eq!(core.counters().drops[DropReason::QueueFull as usize], 29, "ten wait, one is sent");
    for _ in 0..39 {
        core.payloads().insert(&[0]).unwrap();
    }
    assert_eq!(core.payloads().insert(&[0]), None);
}

#[test]
fn what_is_told_late_is_clamped_and_later_frames_are_not_delayed() {
    let mut core = core(&single(2), Vec::new());
    core.run(at(1000));
    let packet = put(&mut core, 0, 1, 1);
    core.arrive(at(100), HostId(0), packet);
    let packet = put(&mut core, 0, 1, 2);
    core.arrive(at(990), HostId(0), packet);
    let out = departures(&mut core, LATER);
    assert_eq!(core.counters().clamped, 1);
    let from_switch = FULL_SPAN.as_ps() + Span::from_us(2).as_ps();
    assert_eq!(out[0].0, at(1000).as_ps() + from_switch);
    let at_switch = at(990).as_ps() + FULL_SPAN.as_ps() + Span::from_us(3).as_ps();
    // The second frame finds the last bits of the first one on the link.
    let sent = at_switch.max(at(1000).as_ps() + FULL_SPAN.as_ps());
    assert_eq!(out[1].0, sent + from_switch);
}

#[test]
fn queues_are_averaged_over_time() {
    let mut core = core(&single(3), Vec::new());
    for src in [1, 2] {
        let packet = put(&mut core, src, 0, 0);
        core.arrive(Time::ZERO, HostId(src), packet);
    }
    // One of them waits while the other is transmitted.
    let span = 10 * FULL_SPAN.as_ps();
    departures(&mut core, Time::from_ps(span));
    let links = core.link_stats(&mut ());
    let down = links.iter().find(|link| link.name == "switch0->h0").unwrap();
    assert!((down.mean_queue_bytes - 153.8).abs() < 1e-6, "{down:?}");
    assert!((down.utilisation - 0.2).abs() < 1e-9, "{down:?}");
    core.measure_from(Time::ZERO);
    departures(&mut core, Time::from_ps(span * 2));
    let links = core.link_stats(&mut ());
    assert!(links.iter().all(|link| link.utilisation == 0.0 && link.mean_queue_bytes == 0.0));
}

/// Builds an Ethernet frame around an IP payload.
fn ethernet(src: u32, dst: u32, class: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 34];
    frame[12] = 8;
    let total = (20 + payload.len()) as u16;
    frame[14] = 0x45;
    frame[15] = class;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[22] = 64;
    frame[23] = protocol;
    frame[26..30].copy_from_slice(&[10, 0, 0, src as u8]);
    frame[30..34].copy_from_slice(&[10, 0, 0, dst as u8]);
    let check = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut bytes = vec![0x10, 0x00, 0x10, 0x01];
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(&[0xab, 0xcd]);
    bytes.extend_from_slice(payload);
    bytes
}

fn through(core: &mut Core, src: u32, bytes: &[u8]) {
    let packet = read_frame(bytes, HostId(src), &plain(core.hosts())).unwrap();
    let slot = core.payloads().insert(bytes).unwrap();
    core.arrive(Time::ZERO, HostId(src), packet.map(|carried| carried.with_slot(slot)));
}

#[test]
fn tcp_frames_are_marked_but_never_cut() {
    let mut config = trimming(true);
    config.switch = config.switch.with_ecn_threshold(1);
    let mut core = core(&config, Vec::new());
    // ECT(1), in a traffic class whose bits would mean "trimmable" in our transports.
    let class = (1 << 5) | (2 << 2) | 1;
    let frame = ethernet(1, 0, class, 6, &[7; 1000]);
    for src in 1..6 {
        let frame = ethernet(src, 0, class, 6, &[7; 1000]);
        through(&mut core, src, &frame);
    }
    core.run(LATER);
    let mut out = Vec::new();
    while let Some(Departure { packet, host, .. }) = core.departure() {
        let len = finish_frame(core.payloads(), &packet, host);
        out.push(core.payloads().get(packet.header.slot)[..len].to_vec());
    }
    assert_eq!(out.len() as u64 + core.counters().dropped(), 5);
    assert_eq!((core.counters().trims, out[0].len()), (0, frame.len()));
    assert_eq!((out[0][15], out[1][15], out[2][15]), (class, class, class | 3));
    for bytes in &out {
        assert_eq!(sum(&bytes[14..34]), 0xffff, "the checksum is right after the change");
        assert_eq!(bytes[..6], [2, 0, 0, 0, 0, 0], "the receiver's address");
        assert_eq!(bytes[34..], [7; 1000]);
    }
}

#[test]
fn packets_in_frames_are_trimmed_and_returned() {
    let mut core = core(&trimming(true), Vec::new());
    for _ in 0..4 {
        for src in 1..6 {
            let frame = ethernet(src, 0, CLASS, 17, &udp(&datagram(src, 0, 1300)));
            through(&mut core, src, &frame);
        }
    }
    core.run(LATER);
    let (mut cut, mut back) = (0, 0);
    while let Some(Departure { packet, host, .. }) = core.departure() {
        let len = finish_frame(core.payloads(), &packet, host);
        let bytes = &core.payloads().get(packet.header.slot)[..len];
        assert_eq!(sum(&bytes[14..34]), 0xffff);
        assert_eq!(usize::from(u16::from_be_bytes([bytes[16], bytes[17]])), len - 14);
        assert_eq!(usize::from(u16::from_be_bytes([bytes[38], bytes[39]])), len - 34);
        assert_eq!((bytes[33], bytes[29]), (host.0 as u8, packet.src.0 as u8));
        let read = overlay::decode(&bytes[42..], bytes[15]).unwrap().packet.unwrap();
        if read.is_trimmed() {
            assert_eq!(bytes[40..42], [0, 0], "no checksum");
            cut += 1;
        }
        if read.is_returned() {
            assert_eq!(bytes[34..38], [0x10, 0x01, 0x10, 0x00], "ports are exchanged");
            back += 1;
        }
    }
    assert!(cut > back && back > 0, "{cut} {back}");
}

#[test]
fn frames_that_are_not_carried() {
    let read = |frame: &[u8]| read_frame(frame, HostId(1), &plain(4)).map(|_| ());
    let good = ethernet(1, 0, 0, 6, &[0; 100]);
    assert_eq!(read(&good), Ok(()));
    let mut arp = good.clone();
    arp[13] = 6;
    assert_eq!(read(&arp), Err(Unfit::Ignored));
    assert_eq!(read(&good[..10]), Err(Unfit::Ignored));
    assert_eq!(read(&good[..30]), Err(Unfit::Malformed));
    assert_eq!(read(&good[..60]), Err(Unfit::Malformed), "shorter than it says");
    assert_eq!(read(&ethernet(2, 0, 0, 6, &[0; 100])), Err(Unfit::Foreign));
    assert_eq!(read(&ethernet(1, 9, 0, 6, &[0; 100])), Err(Unfit::NoRoute));
    assert_eq!(read(&ethernet(1, 0, 0, 6, &[0; 1500])), Err(Unfit::Oversized));
    let mut multicast = good.clone();
    multicast[30..34].copy_from_slice(&[224, 0, 0, 1]);
    assert_eq!(read(&multicast), Err(Unfit::Ignored));
    for len in 0..good.len() {
        let _ = read(&good[..len]);
        let mut bytes = good.clone();
        bytes[len] ^= 0xff;
        let _ = read(&bytes);
    }
}

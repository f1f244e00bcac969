//! Orca's packets through the fabric, without sockets.

use std::sync::Arc;

use rackweave_core::{HostId, Packet, Rate, Span, Time};
use rackweave_orca::system::Orca;
use rackweave_orca::view::View;
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, Fault, FaultKind, FaultPlace, SwitchConfig};
use rackweave_wire::orca::{
    self, Body, Control, Data, GROUP, Header, Key, Label, Labelled, PORT, Session, TO_AGENT,
    TO_GROUP,
};
use rackweave_wire::overlay;

use super::checksum;
use super::core::{CoreConfig, Departure};
use super::frame::{
    Carried, Encapsulation, Rules, Unfit, finish_datagram, finish_frame, read_datagram, read_frame,
};

type Core = super::Core<Orca>;

const LATER: Time = Time::from_ticks(Span::from_secs(10).ticks());
const HOSTS: u32 = 5;
/// The host of the controller.
const BOSS: HostId = HostId(4);

fn fabric() -> Fabric {
    let host_link = Rate(1_000_000_000);
    Fabric::new(
        &FabricConfig::single_switch(HOSTS, host_link)
            .with_link_delay(Span::from_us(1))
            .without_host_delays()
            .with_switch(SwitchConfig::unlimited()),
    )
    .unwrap()
}

fn core(key: Option<&Key>, faults: Vec<Fault>) -> Core {
    let config = CoreConfig {
        fabric: fabric(),
        faults,
        moves: Vec::new(),
        seed: 1,
        run: 0,
        frames: 1000,
        nic_queue_bytes: u64::MAX,
        sample_every: Span::ZERO,
        system: system(key),
        encapsulation: Encapsulation::Overlay,
        mtu: 1500,
    };
    config.build().unwrap()
}

fn system(key: Option<&Key>) -> Arc<Orca> {
    Arc::new(Orca { controller: Some(BOSS), key: key.cloned() })
}

fn rules(key: Option<&Key>) -> Rules<Orca> {
    Rules { hosts: HOSTS, switches: 0, mtu: 1500, system: system(key) }
}

const PAYLOAD: &[u8] = b"bytes of a stream";

fn data(labelled: Labelled, ports: u64) -> Header {
    Header::Data(Data {
        labelled,
        label: Label(u128::from(ports)),
        session: Session(7),
        offset: 1000,
        len: PAYLOAD.len() as u16,
        repair: false,
        end: false,
        parity: None,
    })
}

fn control(from: HostId, to: HostId, body: Body) -> Header {
    Header::Control(Control { from, to, session: Session(7), body })
}

fn orca_bytes(header: &Header, key: Option<&Key>) -> Vec<u8> {
    let payload: &[u8] = if matches!(header, Header::Data(_)) { PAYLOAD } else { &[] };
    let mut bytes = Vec::new();
    orca::encode_header(header, 1, key, &[payload], &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

const fn to(header: &Header) -> HostId {
    match header {
        Header::Data(_) => TO_GROUP,
        Header::Control(control) => control.to,
    }
}

fn datagram(from: HostId, to: HostId, orca: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    overlay::encode_group(orca::KIND, from, to, orca.len() as u16, &mut bytes);
    bytes.extend_from_slice(orca);
    bytes
}

/// Builds a frame to a host, or to Orca's group.
fn ethernet(from: HostId, to: HostId, port: u16, orca: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 42];
    frame[12] = 8;
    let total = (28 + orca.len()) as u16;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..30].copy_from_slice(&[10, 0, 0, from.0 as u8]);
    let dst = if to.0 < HOSTS { [10, 0, 0, to.0 as u8] } else { GROUP };
    frame[30..34].copy_from_slice(&dst);
    frame[34..36].copy_from_slice(&PORT.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    frame.extend_from_slice(orca);
    checksum::fill(&mut frame);
    frame
}

/// Sends a packet through one kind of edge, and returns which hosts receive which bytes.
fn send(
    core: &mut Core,
    by_frames: bool,
    from: HostId,
    header: &Header,
    key: Option<&Key>,
) -> Vec<(u32, Vec<u8>)> {
    let orca = orca_bytes(header, key);
    let rules = rules(key);
    let (bytes, packet) = if by_frames {
        let bytes = ethernet(from, to(header), PORT, &orca);
        let packet = read_frame(&bytes, from, &rules).unwrap();
        (bytes, packet)
    } else {
        let bytes = datagram(from, to(header), &orca);
        let packet = read_datagram(&bytes, 5 << 5, from, &rules).unwrap();
        (bytes, packet)
    };
    put(core, from, &bytes, packet);
    let got = departures(core, by_frames);
    assert_eq!((core.payloads().live(), core.packets()), (0, 0));
    got
}

fn put(core: &mut Core, from: HostId, bytes: &[u8], packet: Packet<Carried<View>>) {
    let slot = core.payloads().insert(bytes).unwrap();
    core.arrive(core.now(), from, packet.map(|carried| carried.with_slot(slot)));
    core.run(Time::from_ticks(core.now().ticks() + Span::from_ms(1).ticks()));
}

fn departures(core: &mut Core, by_frames: bool) -> Vec<(u32, Vec<u8>)> {
    let mut got = Vec::new();
    while let Some(Departure { host, packet, .. }) = core.departure() {
        let slot = packet.header.slot;
        let bytes = if by_frames {
            let len = finish_frame(core.payloads(), &packet, host);
            core.payloads().get(slot)[..len].to_vec()
        } else {
            finish_datagram(core.payloads(), &packet, host).1.to_vec()
        };
        core.payloads().release(slot);
        got.push((host.0, bytes));
    }
    got.sort_unstable();
    got
}

fn hosts(got: &[(u32, Vec<u8>)]) -> Vec<u32> {
    got.iter().map(|(host, _)| *host).collect()
}

const fn set_active(agent: u8, epoch: u32) -> Body {
    Body::SetActive { rack: 0, agent, epoch }
}

#[test]
fn labels_are_followed_and_the_active_agent_is_known() {
    for (by_frames, key) in [
        (false, None),
        (true, None),
        (false, Some(Key::new([3; 32]))),
        (true, Some(Key::new([3; 32]))),
    ] {
        let key = key.as_ref();
        let mut core = core(key, Vec::new());
        let me = HostId(0);
        let got = send(&mut core, by_frames, me, &data(Labelled::Rack, 0b1_0110), key);
        assert_eq!(hosts(&got), [1, 2, 4]);
        for (_, bytes) in &got {
            let at = if by_frames { 42 } else { overlay::BYTES as usize };
            let read = orca::decode(&bytes[at..], key).unwrap();
            assert_eq!(&bytes[at..][read.payload], PAYLOAD);
            if by_frames {
                // The group's addresses are unchanged.
                assert_eq!(bytes[..6], [0x01, 0, 0x5e, 0x7f, 67, 22]);
                assert_eq!(bytes[30..34], GROUP);
                checksum::assert_right(bytes);
            } else {
                assert_eq!(overlay::decode_group(bytes).unwrap().dst, TO_GROUP);
            }
        }
        assert_eq!(core.counters().copied, 2);

        let to_agent = control(me, TO_AGENT, Body::End { length: 9 });
        assert_eq!(send(&mut core, by_frames, me, &to_agent, key), [], "nobody is active");
        let order = control(BOSS, me, set_active(2, 1));
        assert_eq!(send(&mut core, by_frames, BOSS, &order, key), [], "the switch keeps it");
        assert_eq!(core.counters().consumed, 1);
        assert_eq!(hosts(&send(&mut core, by_frames, me, &to_agent, key)), [2]);
        let pilot = data(Labelled::Pilot, 0);
        assert_eq!(hosts(&send(&mut core, by_frames, me, &pilot, key)), [2]);
        // An order from a host that is not the controller.
        let order = control(HostId(1), me, set_active(1, 2));
        assert_eq!(send(&mut core, by_frames, HostId(1), &order, key), []);
        assert_eq!(hosts(&send(&mut core, by_frames, me, &to_agent, key)), [2]);
        // A packet to one host is forwarded as usual.
        let one = control(me, HostId(3), Body::End { length: 9 });
        assert_eq!(hosts(&send(&mut core, by_frames, me, &one, key)), [3]);
    }
}

#[test]
fn the_controllers_words_to_a_rack_are_addressed_to_each_host() {
    for by_frames in [false, true] {
        let mut core = core(None, Vec::new());
        let sync = control(BOSS, HostId(1), Body::Sync { rack: 0, ports: 6, version: 1 });
        let got = send(&mut core, by_frames, BOSS, &sync, None);
        assert!(got.len() >= 4, "{:?}", hosts(&got));
        for (host, bytes) in &got {
            if !by_frames {
                assert_eq!(overlay::decode_group(bytes).unwrap().dst, HostId(*host));
                continue;
            }
            assert_eq!(bytes[..6], [2, 0, 0, 0, 0, *host as u8]);
            assert_eq!(bytes[30..34], [10, 0, 0, *host as u8]);
            checksum::assert_right(bytes);
            assert_eq!(orca::decode(&bytes[42..], None).unwrap().header, sync);
        }
    }
}

#[test]
fn without_the_key_no_order_is_understood() {
    let key = Key::new([3; 32]);
    let order = orca_bytes(&control(BOSS, HostId(0), set_active(2, 1)), Some(&key));
    for other in [None, Some(Key::new([4; 32]))] {
        let mut core = core(other.as_ref(), Vec::new());
        let bytes = datagram(BOSS, HostId(0), &order);
        let packet = read_datagram(&bytes, 0, BOSS, &rules(other.as_ref())).unwrap();
        put(&mut core, BOSS, &bytes, packet);
        assert_eq!(hosts(&departures(&mut core, false)), [0], "it is passed on, and not obeyed");
    }
}

#[test]
fn addresses_of_header_and_packet_must_agree() {
    let rules = rules(None);
    let by_datagram = |from, to, header: &Header| {
        read_datagram(&datagram(from, to, &orca_bytes(header, None)), 0, HostId(1), &rules).err()
    };
    let by_frame = |from, to, header: &Header| {
        read_frame(&ethernet(from, to, PORT, &orca_bytes(header, None)), HostId(1), &rules).err()
    };
    let (me, other) = (HostId(1), HostId(2));
    let end = Body::End { length: 1 };
    assert_eq!(by_datagram(me, other, &control(me, other, end)), None);
    assert_eq!(by_frame(me, other, &control(me, other, end)), None);
    assert_eq!(by_datagram(me, other, &control(other, other, end)), Some(Unfit::Foreign));
    assert_eq!(by_frame(me, other, &control(other, other, end)), Some(Unfit::Foreign));
    assert_eq!(by_datagram(other, me, &control(me, me, end)), Some(Unfit::Foreign));
    assert_eq!(by_datagram(me, other, &control(me, HostId(3), end)), Some(Unfit::Malformed));
    assert_eq!(by_frame(me, other, &control(me, HostId(3), end)), Some(Unfit::Malformed));
    assert_eq!(by_datagram(me, HostId(9), &control(me, HostId(9), end)), Some(Unfit::NoRoute));
    // Labelled data must be addressed to a group.
    let rack = data(Labelled::Rack, 2);
    assert_eq!(by_datagram(me, HostId(99), &rack), Some(Unfit::NoRoute));
    // A packet that is not Orca's is dropped on its way to the group, but forwarded between two hosts.
    let junk = ethernet(me, TO_GROUP, PORT, &[0; 40]);
    assert_eq!(read_frame(&junk, me, &rules).err(), Some(Unfit::Malformed));
    assert_eq!(read_frame(&ethernet(me, other, PORT, &[0; 40]), me, &rules).err(), None);
    let orca = orca_bytes(&rack, None);
    let wrong_port = ethernet(me, TO_GROUP, PORT + 1, &orca);
    assert_eq!(read_frame(&wrong_port, me, &rules).err(), Some(Unfit::Ignored));
    let plain = Rules { hosts: HOSTS, switches: 0, mtu: 1500, system: Arc::new(()) };
    let frame = ethernet(me, TO_GROUP, PORT, &orca);
    assert_eq!(read_frame(&frame, me, &plain).err(), Some(Unfit::Ignored));
    let to_group = datagram(me, TO_GROUP, &orca);
    assert_eq!(read_datagram(&to_group, 0, me, &plain).err(), Some(Unfit::NoRoute));
    for len in 0..frame.len() {
        let _ = read_frame(&frame[..len], me, &rules);
        let mut damaged = frame.clone();
        damaged[len] ^= 0xff;
        let _ = read_frame(&damaged, me, &rules);
    }
    for len in 0..to_group.len() {
        assert!(read_datagram(&to_group[..len], 0, me, &rules).is_err());
    }
}

/// Checks do not cover labels, so switches follow whatever damage left of them. Data that was damaged elsewhere is
/// never accepted, and no slot is lost.
#[test]
fn damaged_packets_go_on_and_no_slot_is_lost() {
    let kinds = [FaultKind::Corruption(0.2), FaultKind::Duplication(0.1), FaultKind::Loss(0.1)];
    let faults = kinds.map(|kind| Fault {
        from: Time::ZERO,
        until: Time::MAX,
        place: FaultPlace::AllLinks,
        kind,
    });
    for by_frames in [false, true] {
        let mut core = core(None, faults.to_vec());
        let rules = rules(None);
        let (mut whole, mut damaged) = (0, 0);
        for _ in 0..300 {
            let from = HostId(0);
            let orca = orca_bytes(&data(Labelled::Rack, 0b11110), None);
            let (bytes, packet) = if by_frames {
                let bytes = ethernet(from, TO_GROUP, PORT, &orca);
                let packet = read_frame(&bytes, from, &rules).unwrap();
                (bytes, packet)
            } else {
                let bytes = datagram(from, TO_GROUP, &orca);
                let packet = read_datagram(&bytes, 0, from, &rules).unwrap();
                (bytes, packet)
            };
            put(&mut core, from, &bytes, packet);
            for (_, bytes) in departures(&mut core, by_frames) {
                let same = match by_frames {
                    true => bytes[42..] == orca,
                    false => overlay::decode_group(&bytes).is_ok() && bytes[32..] == orca,
                };
                if same { whole += 1 } else { damaged += 1 }
            }
        }
        core.run(LATER);
        assert!(departures(&mut core, by_frames).len() < 50);
        assert_eq!((core.payloads().live(), core.packets()), (0, 0));
        assert!(whole > 500 && damaged > 50, "{whole} {damaged}");
        assert!(core.counters().corrupted > 50);
    }
}

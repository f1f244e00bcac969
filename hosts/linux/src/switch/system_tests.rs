//! Two systems on the same switches: Orca, and a test system that redirects requests, which this crate does not know.

use std::sync::Arc;

use rackweave_core::{Header, HostId, Packet, PayloadStore, Port, Rate, Span, Time, Verdict};
use rackweave_orca::system::Orca;
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, SwitchConfig};
use rackweave_switch::system::{
    Either, Never, Outgoing, Parsed, Protocol, System, SystemError, SystemProgram,
};
use rackweave_wire::orca::{self, Body, Control, Session};
use rackweave_wire::overlay;

use super::checksum;
use super::core::{CoreConfig, Departure};
use super::frame::{
    Encapsulation, Rules, Unfit, finish_datagram, finish_frame, read_datagram, read_frame,
};

const HOSTS: u32 = 4;
const KIND: u8 = 9;
const PORT: u16 = 7000;
const MAGIC: u8 = 0x5e;

/// A system in which hosts announce the chunks that they hold, and switches send each request to a host that holds the
/// chunk. A packet is `MAGIC, what, chunk`.
#[derive(Debug)]
struct Chunks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Have(u8),
    Want(u8),
    /// Asks the switch to increment the number in the payload.
    Count,
}

#[derive(Debug, Default)]
struct Redirect {
    holders: [Option<HostId>; 8],
    /// The time at which the program forgets all announcements.
    expires: Option<Time>,
}

const LIFE: Span = Span::from_ms(10);

impl System for Chunks {
    type View = View;
    type Program = Redirect;
    type Made = Never;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        std::iter::once(Protocol { kind: KIND, port: PORT, group: None, has_check: true })
    }

    fn resolves(&self, _dst: HostId) -> bool {
        false
    }

    fn parse(&self, kind: u8, bytes: &[u8]) -> Option<Parsed<View>> {
        assert_eq!(kind, KIND, "only its own packets");
        let view = match *bytes {
            [MAGIC, 0, chunk @ 0..8] => View::Have(chunk),
            [MAGIC, 1, chunk @ 0..8] => View::Want(chunk),
            [MAGIC, 2, _] => View::Count,
            _ => return None,
        };
        Some(Parsed { view, addresses: None, payload_at: 0 })
    }

    fn encode(&self, packet: &Outgoing<'_, Never>, _out: &mut Vec<u8>) -> u8 {
        match packet.header {}
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Redirect>, SystemError> {
        if fabric.hosts() > 100 {
            return Err(SystemError::new("at most 100 hosts"));
        }
        Ok((0..fabric.switches()).map(|_| Redirect::default()).collect())
    }
}

impl SystemProgram for Redirect {
    type View = View;
    type Made = Never;

    fn handle_packet<H: Header, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        _port: Port,
        view: View,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        match view {
            View::Have(chunk) => {
                self.holders[usize::from(chunk)] = Some(packet.src);
                self.expires = Some(now + LIFE);
                Verdict::Consume
            }
            View::Want(chunk) => {
                packet.dst = self.holders[usize::from(chunk)].unwrap_or(packet.dst);
                Verdict::Route
            }
            View::Count => {
                assert_eq!(payloads.read(packet)[..2], [MAGIC, 2]);
                let [.., number] = payloads.write(packet) else { panic!("no payload") };
                *number += 1;
                Verdict::Route
            }
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        assert!(self.expires.is_some_and(|at| at <= now), "not before it asked for it");
        *self = Self::default();
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.expires
    }
}

type Both = (Option<Orca>, Option<Chunks>);

fn fabric(hosts: u32) -> Fabric {
    Fabric::new(
        &FabricConfig::single_switch(hosts, Rate::from_gbps(1))
            .with_link_delay(Span::from_us(1))
            .without_host_delays()
            .with_switch(SwitchConfig::unlimited()),
    )
    .unwrap()
}

struct Bench {
    core: super::Core<Both>,
    rules: Rules<Both>,
    by_frames: bool,
    /// The last packet that arrived.
    arrived: Vec<u8>,
    /// Whether its frame had a UDP checksum.
    has_checksum: bool,
}

impl Bench {
    fn new(system: Both, by_frames: bool) -> Self {
        let system = Arc::new(system);
        let rules = Rules { hosts: HOSTS, switches: 1, mtu: 1500, system: Arc::clone(&system) };
        let core = CoreConfig {
            fabric: fabric(HOSTS),
            faults: Vec::new(),
            moves: Vec::new(),
            seed: 1,
            run: 0,
            frames: 10,
            nic_queue_bytes: u64::MAX,
            encapsulation: Encapsulation::Overlay,
            mtu: 1500,
            sample_every: Span::ZERO,
            system,
        };
        Self {
            core: core.build().unwrap(),
            rules,
            by_frames,
            arrived: Vec::new(),
            has_checksum: false,
        }
    }

    /// Sends a packet and returns the hosts that receive it, with the destination in the frame that each gets.
    fn send(
        &mut self,
        kind: u8,
        port: u16,
        from: u32,
        to: u32,
        packet: &[u8],
    ) -> Option<(u32, u32)> {
        let from = HostId(from);
        let (bytes, read) = if self.by_frames {
            let mut bytes = frame(from.0, to, port, packet);
            bytes.resize(bytes.len().max(60), 0);
            let read = read_frame(&bytes, from, &self.rules);
            (bytes, read)
        } else {
            let mut bytes = Vec::new();
            overlay::encode_group(kind, from, HostId(to), packet.len() as u16, &mut bytes);
            bytes.extend_from_slice(packet);
            let read = read_datagram(&bytes, 0, from, &self.rules);
            (bytes, read)
        };
        let slot = self.core.payloads().insert(&bytes).unwrap();
        let read = read.unwrap().map(|carried| carried.with_slot(slot));
        self.core.arrive(self.core.now(), from, read);
        self.core.run(self.core.now() + Span::from_ms(1));
        let got = self.core.departure().map(|Departure { host, packet, .. }| {
            let slot = packet.header.slot;
            let dst = if self.by_frames {
                let len = finish_frame(self.core.payloads(), &packet, host);
                let bytes = &self.core.payloads().get(slot)[..len];
                self.arrived = bytes[42..].to_vec();
                self.has_checksum = bytes[40..42] != [0, 0];
                if self.has_checksum {
                    checksum::assert_right(bytes);
                }
                u32::from(bytes[33])
            } else {
                let (_, bytes) = finish_datagram(self.core.payloads(), &packet, host);
                self.arrived = bytes[overlay::BYTES as usize..].to_vec();
                overlay::decode_group(bytes).unwrap().dst.0
            };
            self.core.payloads().release(slot);
            (host.0, dst)
        });
        assert_eq!((self.core.departure(), self.core.payloads().live()), (None, 0));
        got
    }

    fn chunk(&mut self, what: u8, chunk: u8, from: u32, to: u32) -> Option<(u32, u32)> {
        self.send(KIND, PORT, from, to, &[MAGIC, what, chunk])
    }
}

fn frame(from: u32, to: u32, port: u16, packet: &[u8]) -> Vec<u8> {
    let total = (28 + packet.len()) as u16;
    let mut bytes = vec![0; 42];
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, 17]);
    bytes[26..30].copy_from_slice(&[10, 0, 0, from as u8]);
    bytes[30..34].copy_from_slice(&[10, 0, 0, to as u8]);
    bytes[36..38].copy_from_slice(&port.to_be_bytes());
    bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    bytes.extend_from_slice(packet);
    checksum::fill(&mut bytes);
    bytes
}

#[test]
fn two_systems_share_a_switch_and_each_sees_its_own_packets() {
    for by_frames in [false, true] {
        let mut bench = Bench::new((Some(Orca::default()), Some(Chunks)), by_frames);
        assert_eq!(bench.chunk(1, 5, 0, 1), Some((1, 1)), "nobody has announced it");
        assert_eq!(bench.chunk(0, 5, 3, 1), None, "the switch takes note");
        assert_eq!(bench.chunk(1, 5, 0, 1), Some((3, 3)), "redirected, also in the frame");
        assert_eq!(bench.chunk(1, 6, 0, 1), Some((1, 1)));
        let mut orca = Vec::new();
        let body = Body::SetActive { rack: 0, agent: 2, epoch: 1 };
        let order = Control { from: HostId(0), to: HostId(1), session: Session(1), body };
        orca::encode_header(&orca::Header::Control(order), 1, None, &[], &mut orca);
        assert_eq!(bench.send(orca::KIND, orca::PORT, 0, 1, &orca), None, "Orca's ToR obeys");
        assert_eq!(bench.core.counters().consumed, 2);
        bench.core.run(Time::ZERO + LIFE + LIFE);
        assert_eq!(bench.chunk(1, 5, 0, 1), Some((1, 1)), "expired");
    }
}

#[test]
fn a_program_changes_the_payload_of_its_packets() {
    for by_frames in [false, true] {
        let mut bench = Bench::new((None, Some(Chunks)), by_frames);
        assert_eq!(bench.chunk(2, 41, 0, 1), Some((1, 1)));
        assert_eq!(bench.arrived, [MAGIC, 2, 42], "without the padding of a short frame");
        assert!(!bench.has_checksum, "none is better than a wrong one");
        assert_eq!(bench.chunk(1, 5, 0, 1), Some((1, 1)));
        assert_eq!(bench.arrived, [MAGIC, 1, 5]);
        assert_eq!(bench.has_checksum, by_frames);
    }
}

#[test]
fn packets_of_a_system_without_a_program_are_only_forwarded() {
    for by_frames in [false, true] {
        let mut bench = Bench::new((Some(Orca::default()), None), by_frames);
        assert_eq!(bench.chunk(0, 5, 3, 1), Some((1, 1)), "as any other packet");
        let mut bench = Bench::new((None, None), by_frames);
        assert_eq!(bench.chunk(1, 5, 3, 1), Some((1, 1)));
    }
}

#[test]
fn frames_are_read_by_the_system_of_their_protocol() {
    let bench = Bench::new((Some(Orca::default()), Some(Chunks)), true);
    let read = |bytes: &[u8]| read_frame(bytes, HostId(0), &bench.rules).map(|p| p.header.view());
    let seen = read(&frame(0, 1, PORT, &[MAGIC, 1, 7]));
    assert_eq!(seen, Ok(Some(Either::Second(View::Want(7)))));
    assert_eq!(read(&frame(0, 1, PORT, &[MAGIC, 1, 8])), Ok(None), "not its packet");
    assert_eq!(read(&frame(0, 1, PORT + 1, &[MAGIC, 1, 7])), Ok(None), "not its port");
    let mut bytes = Vec::new();
    overlay::encode_group(KIND, HostId(0), HostId(1), 1, &mut bytes);
    bytes.push(0);
    let wrong = read_datagram(&bytes, 0, HostId(0), &bench.rules);
    assert_eq!(wrong.err(), Some(Unfit::Malformed), "its kind, but no packet of its");
}

#[test]
fn an_impossible_fabric_for_a_system_is_reported() {
    let system: Arc<Both> = Arc::new((None, Some(Chunks)));
    let config = CoreConfig {
        fabric: fabric(101),
        faults: Vec::new(),
        moves: Vec::new(),
        seed: 1,
        run: 0,
        frames: 10,
        nic_queue_bytes: u64::MAX,
        encapsulation: Encapsulation::Overlay,
        mtu: 1500,
        sample_every: Span::ZERO,
        system,
    };
    assert_eq!(config.build().unwrap_err().to_string(), "at most 100 hosts");
}

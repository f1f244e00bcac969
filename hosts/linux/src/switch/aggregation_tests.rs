//! Tests of programs that create packets, on frames. The scenario is that of `systems/orca/machines/tests/aggregation`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_core::{Destination, HostId, Span};
use rackweave_orca::system::Orca;
use rackweave_switch::system::SystemProgram;
use rackweave_wire::frame::{host_at, ip_address, mac_address};
use rackweave_wire::{orca, overlay};

use self::sum::{COUNTERS, Content, Got, HEADER_BYTES, Sum};
use super::checksum;
use super::core::{Core, CoreConfig};
use super::frame::{Encapsulation, Rules, Unfit, finish_datagram, finish_frame};
use super::frame::{read_datagram, read_frame};

#[allow(dead_code, reason = "shared with another test")]
#[path = "../../../../systems/orca/machines/tests/aggregation/sum.rs"]
mod sum;

type Systems = (Option<Orca>, Sum);

struct Bench {
    core: Core<Systems>,
    rules: Rules<Systems>,
    encapsulation: Encapsulation,
}

impl Bench {
    fn new(encapsulation: Encapsulation, frames: u32, mtu: u32) -> Self {
        let system: Arc<Systems> = Arc::new((Some(Orca::default()), sum::system()));
        let rules = Rules { hosts: 6, switches: 4, mtu: 1500, system: Arc::clone(&system) };
        let core = CoreConfig {
            fabric: sum::fabric(),
            faults: Vec::new(),
            moves: Vec::new(),
            seed: 1,
            run: 0,
            frames,
            nic_queue_bytes: u64::MAX,
            sample_every: Span::ZERO,
            system,
            encapsulation,
            mtu,
        };
        Self { core: core.build().unwrap(), rules, encapsulation }
    }

    /// Encodes a packet as its host sends it.
    fn frame(&self, src: HostId, dst: HostId, content: &Content) -> Vec<u8> {
        let mut packet = Vec::new();
        let (kind, port) = match content {
            Content::Orca(header) => {
                orca::encode_header(header, 1, None, &[], &mut packet);
                (orca::KIND, orca::PORT)
            }
            Content::Sum(header, payload) => {
                header.encode(&mut packet);
                packet.extend_from_slice(payload);
                (sum::KIND, sum::PORT)
            }
        };
        if self.encapsulation == Encapsulation::Overlay {
            let mut bytes = Vec::new();
            overlay::encode_group(kind, src, dst, packet.len() as u16, &mut bytes);
            return [bytes, packet].concat();
        }
        let total = (28 + packet.len()) as u16;
        let mut bytes = vec![0; 42];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14] = 0x45;
        bytes[16..18].copy_from_slice(&total.to_be_bytes());
        bytes[22..24].copy_from_slice(&[64, 17]);
        bytes[26..30].copy_from_slice(&ip_address(src).unwrap());
        bytes[30..34].copy_from_slice(&ip_address(dst).unwrap_or(orca::GROUP));
        bytes[36..38].copy_from_slice(&port.to_be_bytes());
        bytes[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        bytes.extend_from_slice(&packet);
        // The switch updates checksums incrementally, so they must be correct on arrival.
        checksum::fill(&mut bytes);
        bytes
    }

    /// Sends the packets of the script and handles what hosts receive, as hosts would.
    fn run(&mut self) -> Vec<Got> {
        let mut got = Vec::new();
        for (src, dst, content) in sum::script() {
            let bytes = self.frame(src, dst, &content);
            let read = match self.encapsulation {
                Encapsulation::Overlay => read_datagram(&bytes, 0, src, &self.rules),
                Encapsulation::Ethernet => read_frame(&bytes, src, &self.rules),
            };
            let slot = self.core.payloads().insert(&bytes).unwrap();
            self.core.arrive(
                self.core.now(),
                src,
                read.unwrap().map(|carried| carried.with_slot(slot)),
            );
            self.core.run(self.core.now() + Span::from_us(100));
            while let Some(departure) = self.core.departure() {
                let (host, packet) = (departure.host, departure.packet);
                let (class, src, body) = match self.encapsulation {
                    Encapsulation::Overlay => {
                        let (class, bytes) = finish_datagram(self.core.payloads(), &packet, host);
                        let envelope = overlay::decode_group(bytes).unwrap();
                        assert!(envelope.dst == host || envelope.dst == orca::TO_AGENT);
                        (class, envelope.src, bytes[32..].to_vec())
                    }
                    Encapsulation::Ethernet => {
                        let len = finish_frame(self.core.payloads(), &packet, host);
                        let bytes = &self.core.payloads().get(packet.header.slot)[..len];
                        (bytes[15], check_frame(bytes, host), bytes[42..].to_vec())
                    }
                };
                self.core.payloads().release(packet.header.slot);
                let content = match sum::Header::decode(&body) {
                    Some(header) => {
                        let urgent = header.kind == sum::Kind::Ack;
                        assert_eq!(class, if urgent { 7 << 5 } else { 0 });
                        Content::Sum(header, body[HEADER_BYTES..].to_vec())
                    }
                    None => Content::Orca(orca::glance(&body, None).unwrap().header),
                };
                got.push(Got { host, src, content });
            }
        }
        assert_eq!(self.core.payloads().live(), 0, "no slot is left behind");
        got.sort_by_key(|got| got.host);
        got
    }

    /// Returns the number of packets that the programs have created, and how many of those were dropped.
    fn made(&self) -> (u64, u64) {
        let dropped = (0..4).map(|switch| self.core.program(switch).dropped()).sum();
        (self.core.counters().made, dropped)
    }
}

/// Checks a frame as the receiver's kernel does, and returns its source.
fn check_frame(bytes: &[u8], host: HostId) -> HostId {
    let ip = &bytes[14..];
    checksum::assert_right(bytes);
    assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
    if ip[16..20] != orca::GROUP {
        assert_eq!(
            (&bytes[..6], &ip[16..20]),
            (&mac_address(host)[..], &ip_address(host).unwrap()[..])
        );
    }
    let src = host_at([ip[12], ip[13], ip[14], ip[15]]).unwrap();
    assert_eq!(bytes[6..12], mac_address(src));
    src
}

const BOTH: [Encapsulation; 2] = [Encapsulation::Overlay, Encapsulation::Ethernet];

#[test]
fn a_leaf_switch_sums_up_and_orca_runs_beside_it() {
    for encapsulation in BOTH {
        let mut bench = Bench::new(encapsulation, 10, 1500);
        assert_eq!(bench.run(), sum::expected(), "as in the simulator");
        let mut counters = BTreeMap::new();
        for switch in 0..4 {
            for (name, count) in bench.core.program(switch).program().counters() {
                *counters.entry(name).or_insert(0) += count;
            }
        }
        assert_eq!(counters, BTreeMap::from(COUNTERS));
        assert_eq!(bench.made(), (12, 0));
    }
}

#[test]
fn packets_without_a_slot_or_beyond_the_mtu_are_dropped_and_counted() {
    let is_sum = |got: &Got| matches!(&got.content, Content::Sum(header, _) if header.kind == sum::Kind::Sum);
    let without_sums: Vec<_> = sum::expected().into_iter().filter(|got| !is_sum(got)).collect();
    for encapsulation in BOTH {
        // With one slot, the consumed vector frees it, but the acknowledgement takes it again.
        for (frames, mtu) in [(1, 1500), (10, 28 + 32 + 20)] {
            let mut bench = Bench::new(encapsulation, frames, mtu);
            assert_eq!(bench.run(), without_sums);
            assert_eq!(bench.made(), (10, 2));
        }
    }
}

#[test]
fn only_packets_of_a_system_go_to_switches_that_exist() {
    for encapsulation in BOTH {
        let bench = Bench::new(encapsulation, 10, 1500);
        let (src, _, content) = sum::script().swap_remove(2);
        let read = |switch: u32, content: &Content, spoil: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = bench.frame(src, Destination::Switch(switch).address(), content);
            spoil(&mut bytes);
            match encapsulation {
                Encapsulation::Overlay => read_datagram(&bytes, 0, src, &bench.rules),
                Encapsulation::Ethernet => read_frame(&bytes, src, &bench.rules),
            }
            .map(|packet| packet.dst)
        };
        let keep = |_: &mut Vec<u8>| {};
        assert_eq!(read(3, &content, &keep), Ok(Destination::Switch(3).address()));
        assert_eq!(read(4, &content, &keep), Err(Unfit::NoRoute));
        let no_magic = |bytes: &mut Vec<u8>| {
            let at = bytes.len() - 8 * sum::WORDS - HEADER_BYTES;
            bytes[at] ^= 1;
        };
        assert_eq!(read(3, &content, &no_magic), Err(Unfit::Malformed));
    }
}

//! Runs frames through the program ([`crate::trial`]).

mod agree;
mod rules;

use std::time::Duration;

use rackweave_core::HostId;
use rackweave_wire::Id64;
use rackweave_wire::reduce::{self, Body, Header, Open, Operator, Pairs, Rule};

use super::*;
use crate::trial::{self, MARK, SWITCH_MAC, Sender, pseudo_header, sum, udp_sum};

const SWITCH: [u8; 4] = [172, 16, 0, 0];
const SECRET: u64 = 0x0123_4567_89ab_cdef;

/// A host at an interface of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    ip: [u8; 4],
    mac: [u8; 6],
    interface: u32,
    port: u16,
}

impl Host {
    /// Hosts with odd numbers have addresses outside of 10.0.0.0/8.
    fn number(number: u8) -> Self {
        let mac = [2, 0, 0x5e, 0, 7, number];
        let ip = if number.is_multiple_of(2) { [10, 0, 0, number] } else { [192, 0, 2, number] };
        Self { ip, mac, interface: 100 + u32::from(number), port: PORT }
    }

    fn sender(&self) -> Sender {
        Sender { mac: self.mac, ip: self.ip, port: self.port }
    }

    fn id(&self) -> HostId {
        match self.ip {
            [10, a, b, c] => HostId(u32::from_be_bytes([0, a, b, c])),
            ip => HostId(u32::from_be_bytes(ip)),
        }
    }

    fn frame(&self, header: Header, payload: &[u8]) -> Vec<u8> {
        frame(self, &message(header, payload), 0)
    }
}

fn message(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    reduce::encode(&header, &mut message);
    message.extend_from_slice(payload);
    message
}

/// A frame to the switch, with this traffic class.
fn frame(from: &Host, message: &[u8], class: u8) -> Vec<u8> {
    trial::frame(from.sender(), (SWITCH, PORT), class, message)
}

/// The program in the kernel, or `None` if this machine cannot run it.
fn load(change: impl FnOnce(&mut TorConfig)) -> Option<Tor> {
    rackweave_testing::needs!(NetAdmin, None);
    rackweave_testing::needs!(Clang, None);
    let mut config = TorConfig::new(vec!["p".into()], SWITCH.into(), SECRET);
    change(&mut config);
    config.check().unwrap();
    Some(Tor::load(&config, "rackweave_trial").unwrap_or_else(|error| panic!("{error}")))
}

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Dropped,
    Passed,
    /// It became a reply that leaves by an interface.
    Reply(u32, Vec<u8>),
}

/// Runs a frame that arrives at an interface. Returns what became of it, and how long the program took.
fn run(
    tor: &mut Tor,
    frame: &[u8],
    interface: u32,
    now_ms: u64,
    gso_size: u32,
) -> (Outcome, Duration) {
    let ran = trial::run(&mut tor.classifier, frame, interface, now_ms, gso_size);
    let outcome = match (ran.verdict, ran.word(MARK)) {
        (0, 0) => {
            assert_eq!(ran.frame, frame, "a frame that passes has changed");
            Outcome::Passed
        }
        (0, interface) => Outcome::Reply(interface, ran.frame),
        _ => Outcome::Dropped,
    };
    (outcome, ran.duration)
}

/// A reply as its receiver reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    src: [u8; 4],
    dst: [u8; 4],
    /// Source and destination.
    ports: [u16; 2],
    class: u8,
    header: Header,
    payload: Vec<u8>,
}

/// Reads a reply, and verifies its lengths and checksums.
fn read(frame: &[u8]) -> Answer {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    assert_eq!(usize::from(word(16)) + 14, frame.len(), "the length of the IP packet");
    assert_eq!(usize::from(word(38)) + 34, frame.len(), "the length of the datagram");
    assert_eq!(sum(&frame[14..34]), 0xffff, "the IP checksum");
    assert_eq!((&frame[12..15], frame[23]), (&[8, 0, 0x45][..], 17));
    let decoded = reduce::decode(&frame[42..]).unwrap();
    assert_eq!(frame.len(), 42 + decoded.payload.end, "bytes behind the message");
    Answer {
        src: frame[26..30].try_into().unwrap(),
        dst: frame[30..34].try_into().unwrap(),
        ports: [word(34), word(36)],
        class: frame[15],
        header: decoded.header,
        payload: frame[42..][decoded.payload].to_vec(),
    }
}

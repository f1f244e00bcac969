//! Frames are run through the program in the kernel by BPF_PROG_TEST_RUN: it adds up, and turns frames into replies as if they had
//! arrived, but does not send them.

mod agree;
mod rules;

use std::time::Duration;

use aya::programs::{TestRun, TestRunOptions};
use rackweave_core::HostId;
use rackweave_wire::Id64;
use rackweave_wire::reduce::{self, Body, Header, Open, Operator, Pairs, Rule};

use super::*;

/// The length of `struct __sk_buff` in 32-bit words, and where fields are in it.
const SK_BUFF: usize = 48;
const MARK: usize = 2;
const CB: usize = 12;
const GSO_SIZE: usize = 44;

const SWITCH: [u8; 4] = [172, 16, 0, 0];
const SWITCH_MAC: [u8; 6] = [2, 0, 0x5e, 0, 9, 9];
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

/// The sum of 16-bit words that checksums complement (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn pseudo_header(frame: &[u8]) -> Vec<u8> {
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend_from_slice(&[0, 17, frame[38], frame[39]]);
    pseudo
}

/// The sum of a UDP datagram in a frame, including its checksum: 0xffff if that is correct.
fn udp_sum(frame: &[u8]) -> u16 {
    sum(&[&pseudo_header(frame)[..], &frame[34..]].concat())
}

/// A frame to the switch, with this traffic class.
fn frame(from: &Host, message: &[u8], class: u8) -> Vec<u8> {
    let mut frame = SWITCH_MAC.to_vec();
    frame.extend_from_slice(&from.mac);
    frame.extend_from_slice(&[8, 0, 0x45, class]);
    let length = 28 + message.len() as u16;
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0x12, 0x34, 0x40, 0, 63, 17, 0, 0]);
    frame.extend_from_slice(&from.ip);
    frame.extend_from_slice(&SWITCH);
    let check = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend_from_slice(&from.port.to_be_bytes());
    frame.extend_from_slice(&PORT.to_be_bytes());
    frame.extend_from_slice(&(length - 20).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(message);
    let check = match !udp_sum(&frame) {
        0 => 0xffff,
        check => check,
    };
    frame[40..42].copy_from_slice(&check.to_be_bytes());
    frame
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
    let mut context = [0_u8; 4 * SK_BUFF];
    let mut put = |word: usize, value: u32| {
        context[4 * word..4 * word + 4].copy_from_slice(&value.to_ne_bytes());
    };
    let now_ns = now_ms * 1_000_000;
    put(MARK, interface);
    put(CB, now_ns as u32);
    put(CB + 1, (now_ns >> 32) as u32);
    put(GSO_SIZE, gso_size);
    let (mut after, mut out) = ([0_u8; 4 * SK_BUFF], vec![0; 2048]);
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        ctx_out: Some(&mut after),
        ..TestRunOptions::new()
    };
    let result = tor.classifier.program().unwrap().test_run(options);
    let result = result.unwrap_or_else(|error| panic!("{error:?}: {frame:02x?}"));
    let outcome = if result.return_value != 0 {
        Outcome::Dropped
    } else {
        out.truncate(result.data_size_out as usize);
        let mark = after[4 * MARK..4 * MARK + 4].try_into().unwrap();
        match u32::from_ne_bytes(mark) {
            0 => {
                assert_eq!(out, frame, "a frame that passes has changed");
                Outcome::Passed
            }
            interface => Outcome::Reply(interface, out),
        }
    };
    (outcome, result.duration)
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

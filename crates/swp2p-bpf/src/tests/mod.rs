//! Frames are run through the program in the kernel by BPF_PROG_TEST_RUN: it decides, changes its maps and rewrites frames as if
//! they had arrived, but does not send them.

mod agree;
mod rules;

use std::time::Duration;

use aya::programs::{TestRun, TestRunOptions};
use rackweave_wire::frisbee::{self, Body, Chunks, Header, REPORT_MAP_BYTES};

use super::*;

/// The length of `struct __sk_buff` in 32-bit words, and where fields are in it.
const SK_BUFF: usize = 48;
const MARK: usize = 2;
const CB: usize = 12;
const GSO_SIZE: usize = 44;

const SERVER: [u8; 4] = [10, 0, 1, 0];
const IMAGE: u32 = 0x8765_4321;

/// A host at an interface of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    ip: [u8; 4],
    mac: [u8; 6],
    interface: u32,
    port: u16,
}

impl Host {
    fn number(number: u8) -> Self {
        let mac = [2, 0, 0x5e, 0, 7, number];
        Self { ip: [10, 0, 0, number], mac, interface: 100 + u32::from(number), port: PORT }
    }

    fn message(&self, body: Body, payload: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        frisbee::encode(&Header { source: self.ip, body }, &mut message);
        message.extend_from_slice(payload);
        message
    }

    fn frame(&self, body: Body, payload: &[u8]) -> Vec<u8> {
        frame(self, SERVER, &self.message(body, payload))
    }

    fn enter(&self, client: u32) -> Vec<u8> {
        self.frame(Body::Enter { client, name_len: 6 }, b"debian")
    }

    fn report(&self, window: u32, chunks: &[u32]) -> Vec<u8> {
        self.report_of(IMAGE, window, chunks)
    }

    fn report_of(&self, image: u32, window: u32, chunks: &[u32]) -> Vec<u8> {
        let mut map = [0; REPORT_MAP_BYTES as usize];
        for chunk in chunks {
            map[*chunk as usize / 8] |= 1 << (chunk % 8);
        }
        self.frame(Body::Report { image, window }, &map)
    }

    fn batch(&self, first: u32, count: u16, tries: u16) -> Vec<u8> {
        self.frame(Body::Batch(Chunks { image: IMAGE, first, count, tries }), &[])
    }

    fn give_back(&self, first: u32, count: u16, requester: &Self) -> Vec<u8> {
        let chunks = Chunks { image: IMAGE, first, count, tries: 0 };
        self.frame(Body::Return { chunks, requester: requester.ip }, &[])
    }

    fn damaged(&self, chunk: u32, holder: &Self) -> Vec<u8> {
        self.frame(Body::Damaged { image: IMAGE, chunk, holder: holder.ip }, &[])
    }

    fn exit(&self) -> Vec<u8> {
        self.frame(Body::Exit { client: 1, image: IMAGE }, &[])
    }
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

/// The checksum of a UDP datagram in a frame, including the field itself: 0xffff if it is correct.
fn udp_sum(frame: &[u8]) -> u16 {
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend_from_slice(&[0, 17, frame[38], frame[39]]);
    pseudo.extend_from_slice(&frame[34..]);
    sum(&pseudo)
}

fn frame(from: &Host, to: [u8; 4], message: &[u8]) -> Vec<u8> {
    // To the bridge's or the router's address, as frames to the server are.
    let mut frame = vec![2, 0, 0x5e, 0, 9, 9];
    frame.extend_from_slice(&from.mac);
    frame.extend_from_slice(&[8, 0, 0x45, 0]);
    let length = 28 + message.len() as u16;
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
    frame.extend_from_slice(&from.ip);
    frame.extend_from_slice(&to);
    let check = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend_from_slice(&from.port.to_be_bytes());
    frame.extend_from_slice(&PORT.to_be_bytes());
    frame.extend_from_slice(&(length - 20).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(message);
    let check = !udp_sum(&frame);
    frame[40..42].copy_from_slice(&check.to_be_bytes());
    frame
}

/// The program in the kernel, or `None` if this machine cannot run it.
fn load(change: impl FnOnce(&mut TorConfig)) -> Option<Tor> {
    rackweave_testing::needs!(NetAdmin, None);
    rackweave_testing::needs!(Clang, None);
    let mut config = TorConfig::new(vec!["p".into()], SERVER.into());
    change(&mut config);
    config.check().unwrap();
    Some(Tor::load(&config, "rackweave_trial").unwrap())
}

/// Runs a frame that arrives at an interface. Returns the interface by which it leaves, 0 if it passes, and the frame.
fn run(tor: &mut Tor, frame: &[u8], interface: u32, now_ms: u64, gso_size: u32) -> (u32, Vec<u8>) {
    let (interface, frame, _) = timed(tor, frame, interface, now_ms, gso_size);
    (interface, frame)
}

/// Also returns how long the program took.
fn timed(
    tor: &mut Tor,
    frame: &[u8],
    interface: u32,
    now_ms: u64,
    gso_size: u32,
) -> (u32, Vec<u8>, Duration) {
    let mut context = [0_u8; 4 * SK_BUFF];
    let mut put = |word: usize, value: u32| {
        context[4 * word..4 * word + 4].copy_from_slice(&value.to_ne_bytes());
    };
    // The clock never shows 0.
    let now_ns = (now_ms + 1_000_000) * 1_000_000;
    put(MARK, interface);
    put(CB, now_ns as u32);
    put(CB + 1, (now_ns >> 32) as u32);
    put(GSO_SIZE, gso_size);
    let (mut after, mut out) = ([0_u8; 4 * SK_BUFF], vec![0; frame.len() + 64]);
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        ctx_out: Some(&mut after),
        ..TestRunOptions::new()
    };
    let result = tor.classifier.program().unwrap().test_run(options);
    let result = result.unwrap_or_else(|error| panic!("{error:?}: {frame:02x?}"));
    assert_eq!(result.return_value, 0, "the frame was dropped");
    out.truncate(result.data_size_out as usize);
    let mark = after[4 * MARK..4 * MARK + 4].try_into().unwrap();
    (u32::from_ne_bytes(mark), out, result.duration)
}

/// Runs a frame of a host. Returns the address to which it goes now, if it is redirected, and checks that nothing else has
/// changed.
fn redirected(tor: &mut Tor, from: &Host, frame: &[u8], now_ms: u64) -> Option<[u8; 4]> {
    let (interface, after) = run(tor, frame, from.interface, now_ms, 0);
    if interface == 0 {
        assert_eq!(after, frame, "a frame that passes has changed");
        return None;
    }
    let ip: [u8; 4] = after[30..34].try_into().unwrap();
    let to = tor.clients().unwrap().into_iter().find(|client| client.ip.octets() == ip);
    let to = to.expect("redirected to nobody");
    assert_eq!((to.interface, to.mac), (interface, after[..6].try_into().unwrap()));
    // Addresses, port and checksums of the destination.
    let changed = [0..6, 24..26, 30..34, 36..38, 40..42];
    let mut same = frame.to_vec();
    for range in changed {
        same[range.clone()].copy_from_slice(&after[range]);
    }
    assert_eq!(same, after);
    assert_eq!(sum(&after[14..34]), 0xffff, "the IP checksum");
    if frame[40..42] == [0, 0] {
        assert_eq!(after[40..42], [0, 0]);
    } else {
        let before = udp_sum(frame);
        assert_eq!(udp_sum(&after), before, "the UDP checksum");
    }
    Some(ip)
}

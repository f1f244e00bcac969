//! Runs frames through the program ([`crate::trial`]).

mod agree;
mod rules;

use std::time::Duration;

use rackweave_wire::frisbee::{
    self, Body, CHUNK_BLOCKS, CHUNK_MAP_BYTES, Chunks, Header, REPORT_MAP_BYTES,
};

use super::*;
use crate::trial::{self, MARK, Sender, sum, udp_sum};

const SERVER: [u8; 4] = [10, 0, 1, 0];
const IMAGE: u32 = frisbee::SESSION_IMAGE;

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

    fn sender(&self) -> Sender {
        Sender { mac: self.mac, ip: self.ip, port: self.port }
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

    /// Frisbee's request for a chunk.
    fn request(&self, chunk: u32, tries: u16) -> Vec<u8> {
        if tries == 0 {
            return self.frame(Body::Request { chunk, block: 0, count: CHUNK_BLOCKS }, &[]);
        }
        let map = [0xff; CHUNK_MAP_BYTES as usize];
        self.frame(Body::PartialRequest { chunk, retries: tries.into() }, &map)
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

/// A frame to the server's address, through the bridge or the router.
fn frame(from: &Host, to: [u8; 4], message: &[u8]) -> Vec<u8> {
    trial::frame(from.sender(), (to, PORT), 0, message)
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
    // The clock never shows 0.
    let ran = trial::run(&mut tor.classifier, frame, interface, now_ms + 1_000_000, gso_size);
    assert_eq!(ran.verdict, 0, "the frame was dropped");
    (ran.word(MARK), ran.frame, ran.duration)
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

//! Frames are run through a program in the kernel by BPF_PROG_TEST_RUN: it decides, changes its maps and rewrites frames
//! as if they had arrived, but does not send them.

use std::time::Duration;

use aya::programs::{TestRun, TestRunOptions};

use crate::tc::Classifier;

/// The length of `struct __sk_buff` in 32-bit words, and where fields are in it.
pub(crate) const SK_BUFF: usize = 48;
pub(crate) const MARK: usize = 2;
pub(crate) const CB: usize = 12;
const GSO_SIZE: usize = 44;

/// What the program made of a frame.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The program's return value: 0 unless it drops the frame.
    pub(crate) verdict: u32,
    /// The context of the frame afterwards.
    after: [u8; 4 * SK_BUFF],
    pub(crate) frame: Vec<u8>,
    pub(crate) duration: Duration,
}

impl Ran {
    /// A word of the context.
    pub(crate) fn word(&self, index: usize) -> u32 {
        u32::from_ne_bytes(self.after[4 * index..4 * index + 4].try_into().unwrap())
    }
}

/// Runs a frame with these words of its context.
pub(crate) fn run_with(classifier: &mut Classifier, frame: &[u8], words: &[(usize, u32)]) -> Ran {
    let mut context = [0_u8; 4 * SK_BUFF];
    for (word, value) in words {
        context[4 * word..4 * word + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let (mut after, mut out) = ([0_u8; 4 * SK_BUFF], vec![0; frame.len().max(2048) + 64]);
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        ctx_out: Some(&mut after),
        ..TestRunOptions::new()
    };
    let result = classifier.program().unwrap().test_run(options);
    let result =
        result.unwrap_or_else(|error| panic!("{error:?}: {} bytes {frame:02x?}", frame.len()));
    out.truncate(result.data_size_out as usize);
    Ran { verdict: result.return_value, after, frame: out, duration: result.duration }
}

/// Runs a frame that arrives at an interface at a time of the kernel's clock. Afterwards the mark is the interface by which
/// it leaves, or 0.
pub(crate) fn run(
    classifier: &mut Classifier,
    frame: &[u8],
    interface: u32,
    now_ms: u64,
    gso_size: u32,
) -> Ran {
    let now_ns = now_ms * 1_000_000;
    let words = [
        (MARK, interface),
        (CB, now_ns as u32),
        (CB + 1, (now_ns >> 32) as u32),
        (GSO_SIZE, gso_size),
    ];
    run_with(classifier, frame, &words)
}

/// The sum of 16-bit words that checksums complement (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The pseudo-header of a UDP datagram in a frame.
pub(crate) fn pseudo_header(frame: &[u8]) -> Vec<u8> {
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend_from_slice(&[0, 17, frame[38], frame[39]]);
    pseudo
}

/// The sum of a UDP datagram in a frame, including its checksum: 0xffff if that is correct.
pub(crate) fn udp_sum(frame: &[u8]) -> u16 {
    sum(&[&pseudo_header(frame)[..], &frame[34..]].concat())
}

/// The MAC address of the bridge or the router, to which hosts address their frames.
pub(crate) const SWITCH_MAC: [u8; 6] = [2, 0, 0x5e, 0, 9, 9];

/// The sender of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) mac: [u8; 6],
    pub(crate) ip: [u8; 4],
    pub(crate) port: u16,
}

/// A UDP frame to an address, with this traffic class.
pub(crate) fn frame(from: Sender, to: ([u8; 4], u16), class: u8, message: &[u8]) -> Vec<u8> {
    let mut frame = SWITCH_MAC.to_vec();
    frame.extend_from_slice(&from.mac);
    frame.extend_from_slice(&[8, 0, 0x45, class]);
    let length = 28 + message.len() as u16;
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&[0x12, 0x34, 0x40, 0, 63, 17, 0, 0]);
    frame.extend_from_slice(&from.ip);
    frame.extend_from_slice(&to.0);
    let check = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend_from_slice(&from.port.to_be_bytes());
    frame.extend_from_slice(&to.1.to_be_bytes());
    frame.extend_from_slice(&(length - 20).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(message);
    // A checksum of 0 would say that there is none.
    let check = match !udp_sum(&frame) {
        0 => 0xffff,
        check => check,
    };
    frame[40..42].copy_from_slice(&check.to_be_bytes());
    frame
}

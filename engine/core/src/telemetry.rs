//! In-band network telemetry (INT): what each switch on a packet's path writes into it as it leaves.
//!
//! The layout and the units are those of HPCC (Li et al., SIGCOMM'19, section 4.1): five hops of 64 bits, behind 4 bits for their number
//! and 12 for the path. `int-header.h` of its simulator has no path, and a bit more of the queue.

use core::fmt;

use crate::packet::{Header, Rank, Slice};
use crate::time::Time;
use crate::units::Rate;

/// The most hops that a packet has room for.
pub const MAX_HOPS: usize = 5;

/// The unit of [`Hop::sent_since`], in bytes.
const SENT_UNIT: u64 = 128;
/// The unit of [`Hop::queue_bytes`], in bytes.
const QUEUE_UNIT: u64 = 80;

const TIME_BITS: u32 = 24;
const SENT_BITS: u32 = 20;
const QUEUE_BITS: u32 = 16;
const QUEUE_AT: u32 = 0;
const SENT_AT: u32 = QUEUE_BITS;
const TIME_AT: u32 = SENT_AT + SENT_BITS;
const RATE_AT: u32 = TIME_AT + TIME_BITS;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The rates that a hop can name, by their code, in Mbps. The first five are those of HPCC's simulator, the others our choice.
const RATES: [u64; 16] = [
    25_000, 50_000, 100_000, 200_000, 400_000, 1_000, 2_500, 5_000, 10_000, 20_000, 40_000, 80_000,
    160_000, 800_000, 1_600_000, 3_200_000,
];

/// The code of a rate in [`Hop`]; `None` if it has none.
#[must_use]
pub fn rate_code(rate: Rate) -> Option<u8> {
    let code = RATES.iter().position(|mbps| Rate(mbps * 1_000_000) == rate)?;
    Some(code as u8)
}

/// The rates that have a code, as text.
#[must_use]
pub fn rates() -> String {
    let mut all = RATES;
    all.sort_unstable();
    let mut all = all.map(|mbps| (mbps as f64 / 1e3).to_string()).to_vec();
    let last = all.pop().unwrap_or_default();
    format!("{} and {last} Gbps", all.join(", "))
}

/// What a port knows as a packet leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The port: a number that differs from those of other ports.
    pub port: u32,
    /// The rate of its link, as [`rate_code`].
    pub rate: u8,
    /// When the packet leaves.
    pub at: Time,
    /// The bytes that the port had sent before.
    pub sent_bytes: u64,
    /// The bytes that wait behind it.
    pub queue_bytes: u64,
}

/// What one port wrote into a packet: its rate, and its time, sent bytes and queue in the units and widths of HPCC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop(u64);

impl Hop {
    /// The hop of these 64 bits. Each value is one.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its 64 bits: rate, time, sent bytes, queue, from the highest on.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The rate of the port.
    #[must_use]
    pub const fn rate(self) -> Rate {
        Rate(RATES[(self.0 >> RATE_AT) as usize] * 1_000_000)
    }

    /// The bytes that waited at the port, in whole units of 80; longer queues than 5 MB count as that.
    #[must_use]
    pub const fn queue_bytes(self) -> u64 {
        (self.0 & mask(QUEUE_BITS)) * QUEUE_UNIT
    }

    /// The nanoseconds since an earlier packet left the same port, modulo 2^24.
    #[must_use]
    pub const fn nanoseconds_since(self, earlier: Self) -> u64 {
        (self.0 >> TIME_AT).wrapping_sub(earlier.0 >> TIME_AT) & mask(TIME_BITS)
    }

    /// The bytes that the port sent since then, in whole units of 128, modulo 2^20 of them.
    #[must_use]
    pub const fn sent_since(self, earlier: Self) -> u64 {
        ((self.0 >> SENT_AT).wrapping_sub(earlier.0 >> SENT_AT) & mask(SENT_BITS)) * SENT_UNIT
    }
}

impl From<Stamp> for Hop {
    fn from(stamp: Stamp) -> Self {
        let Stamp { rate, at, sent_bytes, queue_bytes, .. } = stamp;
        let queue = (queue_bytes / QUEUE_UNIT).min(mask(QUEUE_BITS));
        Self(
            u64::from(rate & 15) << RATE_AT
                | (at.as_ns() & mask(TIME_BITS)) << TIME_AT
                | ((sent_bytes / SENT_UNIT) & mask(SENT_BITS)) << SENT_AT
                | queue << QUEUE_AT,
        )
    }
}

/// What all ports of a path wrote into a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// The number of hops in the low 4 bits, the path in the others. The first [`MAX_HOPS`] hops are kept.
    head: u16,
    hops: [Hop; MAX_HOPS],
}

impl Stack {
    /// The bytes that it takes in a packet.
    pub const BYTES: u32 = 2 + 8 * MAX_HOPS as u32;

    /// The stack of these fields; [`Stack::head`] has the first.
    #[must_use]
    pub const fn from_parts(head: u16, hops: [Hop; MAX_HOPS]) -> Self {
        Self { head, hops }
    }

    /// The path (12 bits) and the number of hops (4 bits).
    #[must_use]
    pub const fn head(&self) -> u16 {
        self.head
    }

    /// The room for hops, used or not.
    #[must_use]
    pub const fn room(&self) -> &[Hop; MAX_HOPS] {
        &self.hops
    }

    /// A number of the path: the numbers of its ports, combined by XOR as HPCC's switches combine theirs.
    #[must_use]
    pub const fn path(&self) -> u16 {
        self.head >> 4
    }

    /// The hops, from the sender on; `None` if there were more than fit.
    #[must_use]
    pub fn hops(&self) -> Option<&[Hop]> {
        self.hops.get(..usize::from(self.head & 15))
    }

    /// Adds a hop. One that does not fit is only counted.
    pub fn push(&mut self, stamp: Stamp) {
        let count = usize::from(self.head & 15);
        if let Some(hop) = self.hops.get_mut(count) {
            *hop = stamp.into();
        }
        // Fibonacci hashing: ports with near numbers differ in many of the 12 bits.
        let port = (stamp.port.wrapping_add(1).wrapping_mul(0x9e37_79b1) >> 20) as u16;
        self.head = (self.head ^ port << 4) & !15 | (count + 1).min(15) as u16;
    }
}

/// A header on a network whose switches stamp packets, with the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped<H> {
    /// The packet's header.
    pub header: H,
    /// What switches have written into the packet, or, in an acknowledgement, into the packet that it answers.
    pub stack: Stack,
    /// Whether switches write into this packet.
    pub collects: bool,
}

impl<H: Header> Header for Stamped<H> {
    const STAMPED: bool = true;

    #[inline]
    fn payload(&self) -> Option<Slice> {
        self.header.payload()
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        self.header.path()
    }

    #[inline]
    fn rank(&self) -> Option<Rank> {
        self.header.rank()
    }

    #[inline]
    fn payload_bytes(&self) -> u32 {
        self.header.payload_bytes()
    }

    #[inline]
    fn work(&self) -> u32 {
        self.header.work()
    }

    fn exchange_id(&self) -> Option<crate::ids::MessageId> {
        self.header.exchange_id()
    }

    fn stamp(&mut self, stamp: Stamp) {
        if self.collects {
            self.stack.push(stamp);
        }
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.header.describe(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    fn stamp(port: u32, ns: u64, sent_bytes: u64, queue_bytes: u64) -> Stamp {
        let rate = rate_code(Rate::from_gbps(100)).unwrap();
        Stamp { port, rate, at: Time::ZERO + Span::from_ns(ns), sent_bytes, queue_bytes }
    }

    #[test]
    fn differences_survive_that_the_fields_wrap() {
        let full = (1 << 20) * SENT_UNIT;
        let early = Hop::from(stamp(0, (1 << 24) - 40, full - 256, 0));
        let late = Hop::from(stamp(0, (1 << 24) + 60, full + 1_024, 8_000));
        assert_eq!(late.nanoseconds_since(early), 100);
        assert_eq!(late.sent_since(early), 1_280);
        assert_eq!((early.queue_bytes(), late.queue_bytes()), (0, 8_000));
        assert_eq!(late.rate(), Rate::from_gbps(100));
        assert_eq!(Hop::from_bits(late.bits()), late);
    }

    #[test]
    fn a_queue_beyond_the_field_counts_as_its_end() {
        let hop = Hop::from(stamp(0, 0, 0, 1 << 40));
        assert_eq!(hop.queue_bytes(), 65_535 * 80);
        assert_eq!((hop.sent_since(Hop::default()), hop.rate()), (0, Rate::from_gbps(100)));
    }

    #[test]
    fn a_stack_has_room_for_five_hops_and_knows_that_there_were_more() {
        let mut stack = Stack::default();
        assert_eq!(stack.hops(), Some(&[][..]));
        for port in 0..5 {
            stack.push(stamp(port, 10, 0, 0));
        }
        assert_eq!(stack.hops().map(<[Hop]>::len), Some(5));
        let five = stack.path();
        for port in 5..40 {
            stack.push(stamp(port, 10, 0, 0));
            assert_eq!(stack.hops(), None, "{port}");
        }
        assert_ne!(stack.path(), five);
    }

    #[test]
    fn paths_that_differ_in_a_port_have_other_numbers() {
        let path = |ports: &[u32]| {
            let mut stack = Stack::default();
            ports.iter().for_each(|port| stack.push(stamp(*port, 0, 0, 0)));
            stack.path()
        };
        assert_eq!(path(&[7, 900, 31]), path(&[7, 900, 31]));
        for other in 901..932 {
            assert_ne!(path(&[7, 900, 31]), path(&[7, other, 31]));
        }
    }

    #[test]
    fn only_packets_that_collect_are_stamped() {
        #[derive(Clone, Copy, Debug)]
        struct Plain;
        impl Header for Plain {
            fn payload(&self) -> Option<Slice> {
                None
            }
        }
        for collects in [true, false] {
            let mut stamped = Stamped { header: Plain, stack: Stack::default(), collects };
            stamped.stamp(stamp(0, 0, 0, 0));
            assert_eq!(stamped.stack.hops().map(<[Hop]>::len), Some(usize::from(collects)));
        }
    }
}

//! Tests of whole hosts: the suite of all transports whose receivers acknowledge whole messages, and HPCC's own.

mod dialogue;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::telemetry::{Hop, Stack};
use rackweave_core::{MessageId, Packet, Rng, Span, frame};
use rackweave_wire::hpcc::Sack;
use rackweave_wire::hpcc::stamped::{Body, Header};

use super::{Config, Hpcc, Repair};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK};

driven_suite!(Hpcc);

/// The parameters of the tests, whose paths have up to 20 us each way.
fn usual() -> Config {
    Config::paper(LINK, Span::from_us(50))
}

impl DrivenSubject for Hpcc {
    /// The last acknowledgement of a request precedes the response.
    const EXPECT: Expect =
        Expect { acknowledgement: LINK.span_of(frame::wire_bytes(82) as u64), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p3 COMPLETE 1";

    const REPEATED: &[&str] =
        &["h1>h0 p3 COMPLETE 1", "h0>h1 p3 DATA 1 0 +100 asks", "h1>h0 p3 COMPLETE 1"];

    const KNOWN: &str = "BUSY 1";

    /// All eight packets, and the first one after each timeout: of 4, 8, 16 and 32 ms, some of them shortened by half.
    const TO_NOBODY: Range<usize> = 8 + 6..8 + 14;

    fn small() -> Config {
        usual()
    }

    fn variants() -> Vec<Config> {
        let with = |repair: Repair| Config { repair, ..usual() };
        let repair = usual().repair;
        vec![
            with(Repair { selective: true, ..repair }),
            usual(),
            with(Repair { ack_every: 7, ..repair }),
        ]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_418, 1_419, 9_329, 11_344, 11_345, 50_000, 999_999];
        (Self::variants(), [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    fn narrow() -> Config {
        Config::paper(LINK, Span::from_us(13))
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        let stack = Stack::default();
        Body::Data { message_length: length, offset, len, asks: true, stack }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        let sack = Sack::new(if rng.chance(0.5) { 0 } else { rng.next_u64() });
        let hops = [(); 5].map(|()| Hop::from_bits(rng.next_u64()));
        let stack = Stack::from_parts(rng.below(8) as u16, hops);
        match rng.below(12) {
            0 | 1 => Body::Ack { next: number(rng), sack, stack },
            2 => Body::Nack { next: number(rng), sack, stack },
            3 => Body::Complete,
            4 => Body::Busy,
            5 => Body::Unknown,
            6 => Body::Ask,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_418 } else { rng.below(1_419) as u16 },
                asks: rng.chance(0.5),
                stack,
            },
        }
    }

    fn corrupt(mut packet: Packet<Header>, rng: &mut Rng) -> Packet<Header> {
        if rng.chance(0.3) {
            packet.trim();
        }
        packet
    }

    fn line(packet: &Packet<Header>) -> String {
        let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
        let message = MessageId(packet.header.id.get());
        let _ = match packet.header.body {
            Body::Data { offset, len, asks, .. } => {
                let asks = if asks { " asks" } else { "" };
                write!(text, "DATA {message} {} +{len}{asks}", offset / 1_418)
            }
            Body::Ack { next, sack, stack } => {
                let hops = stack.head() & 15;
                write!(text, "ACK {message} next {next} sack {:b} hops {hops}", sack.bits())
            }
            Body::Nack { next, sack, stack } => {
                let hops = stack.head() & 15;
                write!(text, "NACK {message} next {next} sack {:b} hops {hops}", sack.bits())
            }
            Body::Complete => write!(text, "COMPLETE {message}"),
            Body::Busy => write!(text, "BUSY {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all transports whose receivers acknowledge whole messages, and DCQCN's own.

mod dialogue;
mod path;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_wire::dcqcn::{Body, Header, Sack};

use super::{Config, Dcqcn, Repair};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(Dcqcn);

/// Senders that ask for so few acknowledgements.
fn asking_every(ack_every: u32, selective: bool) -> Config {
    let repair = Repair { ack_every, selective, ..Repair::HPCC };
    Config { repair, ..Config::hpcc(LINK) }
}

impl DrivenSubject for Dcqcn {
    /// The last acknowledgement of a request precedes the response.
    const EXPECT: Expect = Expect { acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 COMPLETE 1";

    const REPEATED: &[&str] =
        &["h1>h0 p7 COMPLETE 1", "h0>h1 p3 DATA 1 0 +100 asks", "h1>h0 p7 COMPLETE 1"];

    const KNOWN: &str = "BUSY 1";

    /// All seven packets, and the first one after each timeout: of 4, 8, 16 and 32 ms, some of them shortened by half.
    const TO_NOBODY: Range<usize> = 7 + 6..7 + 14;

    fn small() -> Config {
        Config::hpcc(LINK)
    }

    fn variants() -> Vec<Config> {
        let selective =
            Config { repair: Repair { selective: true, ..Repair::HPCC }, ..Config::paper(LINK) };
        let rare = asking_every(7, false);
        vec![selective, Config::hpcc(LINK), rare]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 11_680, 11_681, 50_000, 999_999];
        (Self::variants(), [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    fn narrow() -> Config {
        Config { window: 12, ..Config::hpcc(LINK) }
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, asks: true }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        let sack = if rng.chance(0.5) { 0 } else { rng.next_u64() };
        match rng.below(12) {
            0 => Body::Cnp,
            1 => Body::Ack { next: number(rng), sack: Sack::new(sack) },
            2 => Body::Nack { next: number(rng), sack: Sack::new(sack) },
            3 => Body::Complete,
            4 => Body::Busy,
            5 => Body::Unknown,
            6 => Body::Ask,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
                asks: rng.chance(0.5),
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
                write!(text, "DATA {message} {} +{len}{asks}", offset / 1_460)
            }
            Body::Ack { next, sack } => {
                write!(text, "ACK {message} next {next} sack {:b}", sack.bits())
            }
            Body::Nack { next, sack } => {
                write!(text, "NACK {message} next {next} sack {:b}", sack.bits())
            }
            Body::Cnp => write!(text, "CNP {message}"),
            Body::Complete => write!(text, "COMPLETE {message}"),
            Body::Busy => write!(text, "BUSY {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all receiver-driven transports, and SIRD's own.

mod credit;
mod dialogue;
mod path;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{Ecn, MessageId, Packet, Rng, Span};
use rackweave_wire::sird::{Body, Header};

use super::{Config, CreditOrder, Sird};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(Sird);

/// The published parameters for a product of 8 full packets: 9.8 us at 10 Gbps. Losses are noticed after so long that no test mistakes
/// them for something else.
pub(super) fn paper() -> Config {
    Config { resend_after: Span::from_ms(1), ..Config::paper(LINK, 8 * 1_538) }
}

impl DrivenSubject for Sird {
    /// The last acknowledgement of a request precedes the response.
    /// Its receivers wait before they ask again for what is missing.
    const EXPECT: Expect =
        Expect { acknowledgement: control_span(), repair: Span::from_ms(3), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 ACK 1";

    const REPEATED: &[&str] =
        &["h1>h0 p7 ACK 1", "h0>h1 p7 REQUEST 1 of 100 unscheduled 1", "h1>h0 p7 ACK 1"];

    const KNOWN: &str = "BUSY 1";

    /// The packets without credit, and requests at intervals of 1 to 8 ms, some of them shortened by half.
    const TO_NOBODY: Range<usize> = 7 + 19..7 + 45;

    fn small() -> Config {
        paper()
    }

    fn variants() -> Vec<Config> {
        let in_turn = Config { order: CreditOrder::RoundRobin, srpt_percent: 0, ..paper() };
        let all_scheduled = Config { unscheduled_threshold: 0, ..paper() };
        let none_first = Config { unscheduled_threshold: u64::MAX, ..paper() };
        let quick = Config::paper(LINK, 8 * 1_538);
        vec![paper(), in_turn, all_scheduled, none_first, quick]
    }

    /// Longer messages ask for credit first: `path` has their times.
    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 11_680];
        (vec![paper()], [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    fn narrow() -> Config {
        paper()
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, unscheduled: 8, csn: false }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        match rng.below(12) {
            0 => Body::Request { message_length: number(rng), unscheduled: rng.next_u64() as u16 },
            1 => Body::Credit { packet: number(rng) },
            2 => Body::Ack,
            3 => Body::Busy,
            4 => Body::Unknown,
            5 => Body::Ask,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
                unscheduled: rng.next_u64() as u16,
                csn: rng.chance(0.5),
            },
        }
    }

    fn corrupt(mut packet: Packet<Header>, rng: &mut Rng) -> Packet<Header> {
        if rng.chance(0.3) {
            packet.trim();
        }
        if rng.chance(0.3) { packet.with_ecn(Ecn::Marked) } else { packet }
    }

    fn line(packet: &Packet<Header>) -> String {
        let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
        let message = MessageId(packet.header.id.get());
        let _ = match packet.header.body {
            Body::Request { message_length, unscheduled } => {
                write!(text, "REQUEST {message} of {message_length} unscheduled {unscheduled}")
            }
            Body::Credit { packet } => write!(text, "CREDIT {message} {packet}"),
            Body::Data { offset, len, csn, .. } => {
                let csn = if csn { " csn" } else { "" };
                write!(text, "DATA {message} {} +{len}{csn}", offset / 1_460)
            }
            Body::Ack => write!(text, "ACK {message}"),
            Body::Busy => write!(text, "BUSY {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all receiver-driven transports, and pHost's own tests.

mod dialogue;
mod path;
mod robust;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_wire::phost::{Body, Header};

use super::{Config, PHost};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(PHost);

impl DrivenSubject for PHost {
    /// The request to send precedes data, and the last acknowledgement of a request precedes the response.
    const EXPECT: Expect =
        Expect { head_start: control_span(), acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 ACK 1";

    const REPEATED: &[&str] = &["h1>h0 p7 ACK 1", "h0>h1 p7 RTS 1 of 100", "h1>h0 p7 ACK 1"];

    const KNOWN: &str = "BUSY 1";

    /// The free packets, and requests to send after 1, 2, 4 and then up to 8 ms.
    const TO_NOBODY: Range<usize> = 2 + 20..2 + 45;

    fn small() -> Config {
        dialogue::small()
    }

    fn variants() -> Vec<Config> {
        vec![Config::paper(LINK), Config::polo_slides(LINK), Config::yaps(LINK)]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 11_680, 11_681, 50_000, 999_999];
        // With `yaps` a long message waits for its first token.
        let variants = vec![Config::paper(LINK), Config::polo_slides(LINK)];
        (variants, [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    /// The round trip is one data packet there and a token back, both with the delay.
    fn covering(config: Config, delay: Span) -> Config {
        config.for_round_trip(LINK.span_of(1_538) + control_span() + delay * 2)
    }

    /// The paper's numbers, which are for a shorter round trip.
    fn narrow() -> Config {
        Config::paper(LINK)
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, free: 8, token: 0 }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        match rng.below(12) {
            0 => Body::Rts { message_length: number(rng), free: rng.next_u64() as u16 },
            1 => Body::Token { packet: number(rng), number: number(rng), missing: number(rng) },
            2 => Body::Ack,
            3 => Body::Busy,
            4 => Body::Unknown,
            5 => Body::Ask,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
                free: rng.next_u64() as u16,
                token: number(rng),
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
            Body::Rts { message_length, .. } => write!(text, "RTS {message} of {message_length}"),
            Body::Token { packet, number, .. } => {
                write!(text, "TOKEN {message} {number} for {packet}")
            }
            Body::Data { offset, len, token, .. } => {
                write!(text, "DATA {message} {} +{len} token {token}", offset / 1_460)
            }
            Body::Ack => write!(text, "ACK {message}"),
            Body::Busy => write!(text, "BUSY {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all receiver-driven transports, and NDP's own tests.

mod dialogue;
mod path;
mod return_to_sender;
mod robust;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_wire::ndp::{Body, Header};

use super::{Config, Ndp};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(Ndp);

impl DrivenSubject for Ndp {
    /// The last acknowledgement of a request precedes the response.
    const EXPECT: Expect = Expect { acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 ACK 1 complete";

    const REPEATED: &[&str] =
        &["h1>h0 p7 ACK 1 complete", "h0>h1 p0 DATA 1 0 +100 of 100", "h1>h0 p7 ACK 1 complete"];

    const KNOWN: &str = "ACK 1 complete";

    /// The first window, and one packet at each timeout except the last, after 5 to 10 ms each.
    const TO_NOBODY: Range<usize> = 3 + 16..3 + 32;

    const SENT_AGAIN: bool = false;

    fn small() -> Config {
        dialogue::small()
    }

    fn variants() -> Vec<Config> {
        vec![Config::paper(LINK), Config::polo_slides(LINK)]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_436, 1_460, 1_461, 9_329, 17_520, 17_521, 50_000, 200_000];
        (Self::variants(), [Span::ZERO, Span::from_us(2), Span::from_us(5)], sizes)
    }

    fn narrow() -> Config {
        Config { initial_window: 2, ..Config::paper(LINK) }
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, window: 15 }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        let incarnation = rng.below(2) as u16;
        match rng.below(12) {
            0 => Body::Ack {
                offset: number(rng),
                pull: number(rng),
                incarnation,
                complete: rng.chance(0.2),
            },
            1 => Body::Nack { offset: number(rng), pull: number(rng), incarnation },
            2 => Body::Pull { pull: number(rng), incarnation },
            3 => Body::Ask,
            4 => Body::Unknown,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_436 } else { rng.below(1_437) as u16 },
                window: rng.next_u64() as u16,
            },
        }
    }

    fn corrupt(mut packet: Packet<Header>, rng: &mut Rng) -> Packet<Header> {
        packet.header.path = rng.below(20) as u16;
        if rng.chance(0.3) {
            packet.trim();
        }
        packet
    }

    fn line(packet: &Packet<Header>) -> String {
        let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
        let message = MessageId(packet.header.id.get());
        let packets = |offset| offset / Config::paper(LINK).common.max_payload;
        let _ = match packet.header.body {
            Body::Data { message_length, offset, len, .. } => {
                write!(text, "DATA {message} {} +{len} of {message_length}", packets(offset))
            }
            Body::Ack { complete: true, .. } => write!(text, "ACK {message} complete"),
            Body::Ack { offset, pull, .. } => {
                write!(text, "ACK {message} {} pull {pull}", packets(offset))
            }
            Body::Nack { offset, pull, .. } => {
                write!(text, "NACK {message} {} pull {pull}", packets(offset))
            }
            Body::Pull { pull, .. } => write!(text, "PULL {message} {pull}"),
            Body::Ask => write!(text, "ASK {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
        };
        text
    }
}

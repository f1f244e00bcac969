//! Tests of whole hosts: the suite of all receiver-driven transports, and EQDS's and UET's own tests.

mod dialogue;
mod path;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_switch::config::{SwitchConfig, TrimConfig};
use rackweave_wire::Id64;
use rackweave_wire::uet::{Body, Header};

use super::{Config, Uet};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK};

driven_suite!(Uet);

const RTT: Span = Span::from_us(20);

impl DrivenSubject for Uet {
    /// The last acknowledgement of a request precedes the response.
    const EXPECT: Expect = Expect { acknowledgement: LINK.span_of(64 + 38), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 ACK 1 complete";

    /// The timeout sends an RTS, and so does the timer of a message that has nothing in flight then.
    const REPEATED: &[&str] = &[
        "h1>h0 p7 ACK 1 complete",
        "h0>h1 p7 RTS 1 target 6 backlog 6",
        "h0>h1 p7 RTS 1 target 6 backlog 6",
        "h1>h0 p7 ACK 1 complete",
        "h1>h0 p7 ACK 1 complete",
    ];

    const KNOWN: &str = "ACK 1 complete";

    /// The window, and an RTS at each timeout, after up to 40 ms.
    const TO_NOBODY: Range<usize> = 4 + 8..4 + 20;

    const SENT_AGAIN: bool = false;

    fn small() -> Config {
        dialogue::small(Config::uet(LINK, RTT))
    }

    fn variants() -> Vec<Config> {
        vec![
            Config::eqds(LINK),
            Config::uet(LINK, RTT),
            Config::nscc(LINK, RTT),
            Config::rccc(LINK, RTT),
        ]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_436, 1_460, 1_461, 9_329, 17_520, 17_521, 50_000, 200_000];
        // With credit, the first answer ends speculation, and what follows comes at 99 % of the link's rate: see `path`.
        (vec![Config::nscc(LINK, RTT)], [Span::ZERO, Span::from_us(2), Span::from_us(5)], sizes)
    }

    fn prepare(switch: &mut SwitchConfig) {
        let (data_queue_bytes, header_queue_bytes) = (32 * 1538, 1_000 * 84);
        switch.trim = Some(
            TrimConfig::NDP
                .with_queues(data_queue_bytes, header_queue_bytes)
                .with_return_to_sender(false),
        );
    }

    fn narrow() -> Config {
        Config { max_window: 3_000, ..Config::eqds(LINK) }
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data {
            message_length: length,
            offset,
            len,
            pull_target: 0,
            ack_request: false,
            retransmitted: false,
            speculative: true,
        }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        let incarnation = rng.below(2) as u16;
        match rng.below(14) {
            0 | 1 => Body::Ack {
                cumulative: number(rng),
                packet: number(rng),
                bitmap: Id64::new(rng.next_u64()),
                received: number(rng),
                incarnation,
                ecn: rng.chance(0.2),
                retransmitted: rng.chance(0.2),
                of_rts: rng.chance(0.2),
                complete: rng.chance(0.1),
            },
            2 => Body::Nack {
                packet: number(rng),
                received: number(rng),
                incarnation,
                ecn: rng.chance(0.2),
            },
            3 => Body::Pull { pull: number(rng), incarnation },
            4 => Body::Ask,
            5 => Body::Unknown,
            6 => Body::Rts {
                message_length: number(rng),
                pull_target: number(rng),
                backlog: number(rng),
            },
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_436 } else { rng.below(1_437) as u16 },
                pull_target: number(rng),
                ack_request: rng.chance(0.3),
                retransmitted: rng.chance(0.3),
                speculative: rng.chance(0.3),
            },
        }
    }

    fn corrupt(mut packet: Packet<Header>, rng: &mut Rng) -> Packet<Header> {
        packet.header.entropy = rng.below(20) as u16;
        if rng.chance(0.3) {
            packet.trim();
        }
        packet
    }

    fn line(packet: &Packet<Header>) -> String {
        let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
        let message = MessageId(packet.header.id.get());
        let _ = match packet.header.body {
            Body::Data { offset, pull_target, ack_request, retransmitted, speculative, .. } => {
                let packet = offset / Config::eqds(LINK).common.max_payload;
                let flags: String = [(speculative, 's'), (retransmitted, 'r'), (ack_request, 'a')]
                    .iter()
                    .filter_map(|(set, letter)| set.then_some(*letter))
                    .collect();
                write!(text, "DATA {message} {packet} {flags} target {pull_target}")
            }
            Body::Ack { complete: true, .. } => write!(text, "ACK {message} complete"),
            Body::Ack { cumulative, packet, bitmap, received, ecn, of_rts, .. } => {
                let of = if of_rts { " of RTS" } else { "" };
                let mark = if ecn { " ecn" } else { "" };
                let bits = bitmap.get();
                write!(
                    text,
                    "ACK {message}{of}{mark} below {cumulative} at {packet} {bits:b} received {received}"
                )
            }
            Body::Nack { packet, received, .. } => {
                write!(text, "NACK {message} {packet} received {received}")
            }
            Body::Pull { pull, .. } => write!(text, "PULL {message} {pull}"),
            Body::Rts { pull_target, backlog, .. } => {
                write!(text, "RTS {message} target {pull_target} backlog {backlog}")
            }
            Body::Ask => write!(text, "ASK {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all receiver-driven transports, and Polo's own tests.

mod dialogue;
mod path;
mod robust;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{Ecn, MessageId, Packet, Rng, Span};
use rackweave_wire::polo::{Body, Header};

use super::{Config, DriveOrder, Polo};
use crate::exchange;
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, control_span};

driven_suite!(Polo);

impl DrivenSubject for Polo {
    /// An adjoint packet may overtake data; the last acknowledgement of a request precedes the response.
    const EXPECT: Expect =
        Expect { overtaking: control_span(), acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 COMPLETE 1";

    const REPEATED: &[&str] = &[
        "h1>h0 p7 COMPLETE 1",
        "h0>h1 p7 ADJOINT 1 sent 1 epoch 0 timeout",
        "h1>h0 p7 COMPLETE 1",
    ];

    const KNOWN: &str = "COMPLETE 1";

    /// The first window, and an adjoint packet at each timeout: after 1, 2, 4 and then 8 ms, with random spreading.
    const TO_NOBODY: Range<usize> = 4 + 100..4 + 200;

    const MIDWAY: (&[u64], Span) = (&[500_000], Span::from_us(100));

    fn small() -> Config {
        dialogue::small()
    }

    /// The protocol of the slides, and its variants.
    fn variants() -> Vec<Config> {
        let slides = Config::slides;
        vec![
            slides(),
            Config { wasted_driving_rule: false, ..slides() },
            Config { recovery_2: false, ..slides() },
            Config { pause_only_if_full: false, ..slides() },
            Config { recovery_1: false, ..slides() },
            Config { first_window: 1, order: DriveOrder::FewestLeft, ..slides() },
            Config {
                common: exchange::Config { spray: true, ..slides().common },
                reorder_margin: 3,
                wake_in_quiet_epochs: false,
                ..slides()
            },
        ]
    }

    /// Messages within the first window: adjoint packets are sent between the packets of longer ones.
    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 17_520];
        (vec![Config::slides()], [Span::ZERO, Span::from_us(2), Span::from_us(50)], sizes)
    }

    fn narrow() -> Config {
        Config { first_window: 2, ..Config::slides() }
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        let (driven, retransmit) = (false, false);
        Body::Data { message_length: length, offset, len, window: 12, driven, retransmit }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        match rng.below(14) {
            0 => Body::Adjoint {
                message_length: number(rng),
                sent: number(rng),
                epoch: rng.below(5) as u32,
                window: rng.next_u64() as u16,
                timeout: rng.chance(0.3),
            },
            1 => Body::AdjointAck {
                epoch: number(rng),
                paused: rng.chance(0.5),
                tick: rng.chance(0.5),
            },
            2 => Body::Drive { upto: number(rng) },
            3 => Body::Loss { first: number(rng), count: number(rng) as u16 },
            4 => Body::Complete,
            5 => Body::Ask,
            6 => Body::Unknown,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
                window: rng.next_u64() as u16,
                driven: rng.chance(0.5),
                retransmit: rng.chance(0.2),
            },
        }
    }

    fn corrupt(packet: Packet<Header>, rng: &mut Rng) -> Packet<Header> {
        packet.with_ecn(if rng.chance(0.3) { Ecn::Marked } else { Ecn::Capable })
    }

    fn line(packet: &Packet<Header>) -> String {
        let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
        let message = MessageId(packet.header.id.get());
        let mark = |set, text| if set { text } else { "" };
        let _ = match packet.header.body {
            Body::Data { offset, len, driven, retransmit, .. } => {
                let number = offset / Config::slides().common.max_payload;
                let (driven, retransmitted) =
                    (mark(driven, " driven"), mark(retransmit, " retransmit"));
                write!(text, "DATA {message} {number} +{len}{driven}{retransmitted}")
            }
            Body::Adjoint { sent, epoch, timeout, .. } => {
                let timeout = mark(timeout, " timeout");
                write!(text, "ADJOINT {message} sent {sent} epoch {epoch}{timeout}")
            }
            Body::AdjointAck { epoch, paused, tick } => {
                let (paused, tick) = (mark(paused, " paused"), mark(tick, " tick"));
                write!(text, "ADJOINT-ACK {message} epoch {epoch}{paused}{tick}")
            }
            Body::Drive { upto } => write!(text, "DRIVE {message} upto {upto}"),
            Body::Loss { first, count } => write!(text, "LOSS {message} {first} +{count}"),
            Body::Complete => write!(text, "COMPLETE {message}"),
            Body::Ask => write!(text, "ASK {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all receiver-driven transports, and dcPIM's own tests.

mod dialogue;
mod path;
mod rounds;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_wire::dcpim::{Body, Channels, Header};

use super::{Config, DcPim};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(DcPim);

/// The parameters for paths with this delay in each direction.
fn with_delay(delay: Span) -> Config {
    Config::paper(LINK, LINK.span_of(1_538) * 2 + delay * 2, control_span() * 2 + delay * 2)
}

impl DrivenSubject for DcPim {
    /// The announcement precedes data, and the FIN of a request precedes the response.
    const EXPECT: Expect =
        Expect { head_start: control_span(), acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 FIN 1";

    const REPEATED: &[&str] = &["h1>h0 p7 FIN 1", "h0>h1 p7 NOTIFY 1 of 100", "h1>h0 p7 FIN 1"];

    const KNOWN: &str = "NOTIFY_ACK 1";

    /// The free packets, and announcements after 0.13, 0.25, 0.5 and then up to 8 ms.
    const TO_NOBODY: Range<usize> = 7 + 20..7 + 50;

    const DELAY: Span = Span::from_us(5);

    const MIDWAY: (&[u64], Span) = (&[50_000], Span::from_us(60));

    fn small() -> Config {
        with_delay(Self::DELAY)
    }

    fn variants() -> Vec<Config> {
        let usual = with_delay(Span::from_us(5));
        let (rounds, round) = (2, usual.round);
        vec![
            usual.clone(),
            usual.clone().with_channels(LINK, 8),
            Config {
                prompt: false,
                srpt_rounds: 0,
                ..usual.clone().with_rounds(LINK, rounds, round)
            },
            Config { clock_skew: usual.epoch * 10, epoch: usual.epoch + usual.round / 3, ..usual },
        ]
    }

    /// With larger messages the path is idle until the hosts are matched.
    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let usual = with_delay(Span::from_us(5));
        let variants = vec![Config { free_packets: 50, ..usual }];
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 50_000, 73_000];
        (variants, [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    /// A long message starts with the first match at the earliest.
    fn narrow() -> Config {
        with_delay(Span::from_us(5))
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, free: 8, token: 0 }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        let epoch = |rng: &mut Rng| rng.below(3) as u32;
        let few =
            |rng: &mut Rng| Channels { total: rng.below(6) as u8, prompt: rng.below(6) as u8 };
        let any =
            |rng: &mut Rng| Channels { total: rng.next_u64() as u8, prompt: rng.next_u64() as u8 };
        let channels = if rng.chance(0.5) { few(rng) } else { any(rng) };
        match rng.below(20) {
            0 => Body::Notify { message_length: number(rng), free: rng.next_u64() as u16 },
            1 | 2 => Body::Token {
                packet: number(rng),
                number: number(rng),
                missing: number(rng),
                lifetime: rng.next_u64() as u16,
                priority: rng.below(10) as u8,
            },
            3 | 4 => Body::Rts { epoch: epoch(rng), missing: number(rng), channels },
            5 | 6 => Body::Grant { epoch: epoch(rng), sender_epoch: epoch(rng), channels },
            7 | 8 => Body::Accept { epoch: number(rng), sender_epoch: epoch(rng), channels },
            9 => Body::Release { epoch: epoch(rng), channels },
            10 => Body::Fin,
            11 => Body::NotifyAck,
            12 => Body::Unknown,
            13 => Body::Ask,
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
        let of = |channels: Channels| format!("{}+{}", channels.total, channels.prompt);
        let _ = match packet.header.body {
            Body::Notify { message_length, .. } => {
                write!(text, "NOTIFY {message} of {message_length}")
            }
            Body::NotifyAck => write!(text, "NOTIFY_ACK {message}"),
            Body::Rts { missing, channels, .. } => {
                write!(text, "RTS {message} missing {missing} {}", of(channels))
            }
            Body::Grant { sender_epoch, channels, .. } => {
                write!(text, "GRANT {message} of {sender_epoch} {}", of(channels))
            }
            Body::Accept { epoch, sender_epoch, channels } => {
                write!(text, "ACCEPT {message} epoch {epoch} of {sender_epoch} {}", of(channels))
            }
            Body::Release { epoch, channels } => {
                write!(text, "RELEASE {message} epoch {epoch} {}", of(channels))
            }
            Body::Token { packet, number, priority, .. } => {
                write!(text, "TOKEN {message} {number} for {packet} p{priority}")
            }
            Body::Data { offset, len, token, .. } => {
                write!(text, "DATA {message} {} +{len} token {token}", offset / 1_460)
            }
            Body::Fin => write!(text, "FIN {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

//! Tests of whole hosts: the suite of all transports of messages, whose exchanges Swift shares, and its own.

mod dialogue;
mod path;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_wire::swift::{Body, Header, Sack};

use super::{Config, Swift};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(Swift);

impl DrivenSubject for Swift {
    /// The last acknowledgement of a request precedes the response.
    const EXPECT: Expect = Expect { acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p0 COMPLETE 1 #1 wait 0";

    const REPEATED: &[&str] = &[
        "h1>h0 p0 COMPLETE 1 #1 wait 0",
        "h0>h1 p0 DATA 1 0 +100 #2",
        "h1>h0 p0 COMPLETE 1 #2 wait 0",
    ];

    const KNOWN: &str = "BUSY 1";

    /// The message, and after the first timeouts every 10 ms what a timeout repeats.
    const TO_NOBODY: Range<usize> = 7 + 14..7 + 40;

    /// The second ends with the window.
    const MIDWAY: (&[u64], Span) = (&[50_000, 1_460 * 16], Span::from_us(15));

    fn small() -> Config {
        Config::htsim()
    }

    fn variants() -> Vec<Config> {
        let below_one = Config { initial_window: 1, ..Config::htsim() };
        // Timeouts before any measurement, and a window that never falls below one packet.
        let quick = Config {
            initial_rto: Span::from_us(50),
            min_window_millipackets: 1000,
            max_window: 15,
            max_idle_flows: 1,
            ..Config::htsim()
        };
        vec![Config::htsim(), below_one, quick]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 11_680, 11_681, 50_000, 999_999];
        (vec![Config::htsim()], [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    /// The round trip is one data packet there and an acknowledgement back, each over two links, with the path's delay.
    fn covering(config: Config, delay: Span) -> Config {
        let rtt = (LINK.span_of(1_538) + control_span()) * 2 + delay * 2;
        config.for_paths(LINK, (1, rtt), (1, rtt))
    }

    fn narrow() -> Config {
        Config { max_window: 12, initial_window: 12, ..Config::htsim() }
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, number: 1 }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        match rng.below(12) {
            0 => Body::Probe { message_length: number(rng) },
            1 | 2 => {
                let sack = if rng.chance(0.5) { 0 } else { rng.next_u64() };
                Body::Ack {
                    number: number(rng),
                    wait_ns: 0,
                    next: number(rng),
                    sack: Sack::new(sack),
                }
            }
            3 => Body::Complete { number: number(rng), wait_ns: 0 },
            4 => Body::Busy,
            5 => Body::Unknown,
            6 => Body::Ask,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
                number: number(rng),
            },
        }
    }

    fn corrupt(mut packet: Packet<Header>, rng: &mut Rng) -> Packet<Header> {
        if rng.chance(0.3) {
            packet.trim();
        }
        if let Body::Ack { wait_ns, .. } | Body::Complete { wait_ns, .. } = &mut packet.header.body
        {
            *wait_ns = rng.next_u64() as u32;
        }
        packet
    }

    fn line(packet: &Packet<Header>) -> String {
        let mut text = format!("{}>{} p{} ", packet.src, packet.dst, packet.priority);
        let message = MessageId(packet.header.id.get());
        let _ = match packet.header.body {
            Body::Data { offset, len, number, .. } => {
                write!(text, "DATA {message} {} +{len} #{number}", offset / 1_460)
            }
            Body::Probe { .. } => write!(text, "PROBE {message}"),
            Body::Ack { number, wait_ns, next, sack } => {
                let bits = sack.bits();
                write!(text, "ACK {message} #{number} next {next} sack {bits:b} wait {wait_ns}")
            }
            Body::Complete { number, wait_ns } => {
                write!(text, "COMPLETE {message} #{number} wait {wait_ns}")
            }
            Body::Busy => write!(text, "BUSY {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

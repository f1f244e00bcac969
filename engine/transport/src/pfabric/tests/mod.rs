//! Tests of whole hosts: the suite of all receiver-driven transports, whose exchanges pFabric shares, and its own.

mod dialogue;
mod path;

use std::fmt::Write as _;
use std::ops::Range;

use rackweave_core::{MessageId, Packet, Rng, Span};
use rackweave_switch::config::{BufferConfig, SwitchConfig};
use rackweave_wire::pfabric::{Body, Header, Sack};

use super::{Config, PFabric};
use crate::tests::driven::{DrivenSubject, driven_suite};
use crate::tests::suite::{Expect, LINK, control_span};

driven_suite!(PFabric);

impl DrivenSubject for PFabric {
    /// The last acknowledgement of a request precedes the response.
    const EXPECT: Expect = Expect { acknowledgement: control_span(), ..Expect::RELIABLE };

    const COMPLETE: &str = "h1>h0 p7 COMPLETE 1";

    const REPEATED: &[&str] =
        &["h1>h0 p7 COMPLETE 1", "h0>h1 p0 DATA 1 0 +100 of 100", "h1>h0 p7 COMPLETE 1"];

    const KNOWN: &str = "BUSY 1";

    /// A window, four packets, and probes at intervals of up to 1 ms, some of them shortened by half.
    const TO_NOBODY: Range<usize> = 7 + 160..7 + 330;

    fn small() -> Config {
        dialogue::small()
    }

    fn variants() -> Vec<Config> {
        let narrow = Config { initial_window: 3, max_window: 3, ..Config::paper() };
        vec![Config::paper(), narrow]
    }

    fn back_to_back() -> (Vec<Config>, [Span; 3], Vec<u64>) {
        let sizes = vec![1, 100, 1_460, 1_461, 9_329, 11_680, 11_681, 50_000, 999_999];
        (vec![Config::paper()], [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    /// The round trip is one data packet there and an acknowledgement back, each over two links, with the path's delay.
    fn covering(config: Config, delay: Span) -> Config {
        let rtt = (LINK.span_of(1_538) + control_span()) * 2 + delay * 2;
        let paper = Config::paper();
        let covering = config.for_round_trip(LINK, rtt);
        if covering.initial_window < paper.initial_window { paper } else { covering }
    }

    /// The queue of section 4.2. In an unlimited one that drops nothing, packets that are sent again every 45 us would wait for
    /// longer than a host remembers their messages.
    fn prepare(switch: &mut SwitchConfig) {
        switch.buffer = BufferConfig::PerPort { bytes: 24 * 1_538 };
        switch.options.by_remaining = true;
    }

    /// The paper's numbers, which are for a shorter round trip.
    fn narrow() -> Config {
        Config { max_window: 12, ..Config::paper() }
    }

    fn data(length: u32, offset: u32, len: u16) -> Body {
        Body::Data { message_length: length, offset, len, remaining: length }
    }

    fn any_body(rng: &mut Rng, number: fn(&mut Rng) -> u32) -> Body {
        match rng.below(12) {
            0 => Body::Probe { message_length: number(rng), remaining: number(rng) },
            1 | 2 => {
                let sack = if rng.chance(0.5) { 0 } else { rng.next_u64() };
                Body::Ack { next: number(rng), packet: number(rng), sack: Sack::new(sack) }
            }
            3 => Body::Complete,
            4 => Body::Busy,
            5 => Body::Unknown,
            6 => Body::Ask,
            _ => Body::Data {
                message_length: number(rng),
                offset: number(rng),
                len: if rng.chance(0.8) { 1_460 } else { rng.below(1_461) as u16 },
                remaining: number(rng),
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
            Body::Data { offset, len, remaining, .. } => {
                write!(text, "DATA {message} {} +{len} of {remaining}", offset / 1_460)
            }
            Body::Probe { remaining, .. } => write!(text, "PROBE {message} of {remaining}"),
            Body::Ack { next, packet, sack } => {
                write!(text, "ACK {message} {packet} next {next} sack {:b}", sack.bits())
            }
            Body::Complete => write!(text, "COMPLETE {message}"),
            Body::Busy => write!(text, "BUSY {message}"),
            Body::Unknown => write!(text, "UNKNOWN {message}"),
            Body::Ask => write!(text, "ASK {message}"),
        };
        text
    }
}

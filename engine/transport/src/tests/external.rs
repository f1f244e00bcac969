//! The suite for transports of other crates on [`Driven`].

use core::fmt::Debug;
use core::marker::PhantomData;
use std::sync::Arc;

use rackweave_core::{HostId, Packet, Rng, Span};
use rackweave_wire::Id64;
use rackweave_wire::external::{Body, Header};

use super::suite::{Expect, LINK, Limits, Subject, control_span};
use crate::common::{Driven, Parameters as _, Scheme};
use crate::external::{Acknowledged, Sender, sender};

/// A transport with the headers of [`rackweave_wire::external`], and what the tests need to know about it.
pub trait ExternalSubject: Scheme<Header = Header> {
    /// What the suite expects: by default that the last acknowledgement of a request precedes the response.
    const EXPECT: Expect = Expect { acknowledgement: control_span(), ..Expect::RELIABLE };

    /// The configurations with which the tests run. The first is the usual one.
    fn variants() -> Vec<Self::Config>;

    /// The usual configuration for a path of this round trip, on which a message alone never waits.
    fn for_round_trip(rtt: Span) -> Self::Config;
}

/// A transport that is a [`Sender`]'s rules, and what the tests need to know about it.
pub trait SenderSubject: Sender {
    /// The parameters with which the tests run. The first are the usual ones.
    fn variants() -> Vec<Self::Config>;

    /// The usual parameters for a path of this round trip, on which a message alone never waits.
    fn for_round_trip(rtt: Span) -> Self::Config;
}

impl<S: SenderSubject> ExternalSubject for Acknowledged<S> {
    /// A timeout alone tells its senders of a loss: there is no report that they could ignore.
    const EXPECT: Expect =
        Expect { acknowledgement: control_span(), repair: Span::from_secs(1), ..Expect::RELIABLE };

    fn variants() -> Vec<sender::Config<S>> {
        S::variants().into_iter().map(sender::Config::new).collect()
    }

    fn for_round_trip(rtt: Span) -> sender::Config<S> {
        sender::Config::new(S::for_round_trip(rtt))
    }
}

/// The [`Subject`] of such a transport.
#[derive(Debug)]
pub struct External<S>(PhantomData<S>);

impl<S: ExternalSubject<Config: Debug>> Subject for External<S> {
    type Config = S::Config;
    type Host = Driven<S>;

    const EXPECT: Expect = S::EXPECT;

    fn variants() -> Vec<S::Config> {
        S::variants()
    }

    fn limited(mut config: S::Config, limits: &Limits) -> S::Config {
        limits.apply(config.common_mut());
        config
    }

    fn host(id: HostId, config: &Arc<S::Config>) -> Driven<S> {
        Driven::new(id, Arc::clone(config))
    }

    fn check(host: &Driven<S>, _limits: Option<&Limits>) {
        host.check_bounds();
    }

    fn is_idle(host: &Driven<S>) -> bool {
        host.is_idle()
    }

    fn held(host: &Driven<S>) -> usize {
        host.exchanges_under_way() as usize
    }

    fn quiet_after(config: &S::Config) -> Span {
        config.common().patience * 12
    }

    fn forge(rng: &mut Rng, from: HostId) -> Packet<Header> {
        let full = S::variants().swap_remove(0).common().max_payload;
        let mut number = || match rng.below(4) {
            0 => rng.below(40) as u32,
            1 => full * rng.below(20) as u32,
            2 => rng.below(3_000_000) as u32,
            _ => u32::MAX - rng.below(3) as u32,
        };
        let words = [number(), number(), number(), number()];
        let (message_length, offset) = (number(), number());
        let tag = if rng.chance(0.5) { rng.below(4) } else { rng.below(1 << 16) } as u16;
        let len = if rng.chance(0.8) { full as u16 } else { rng.below(u64::from(full)) as u16 };
        let body = match rng.below(12) {
            0 => Body::ToReceiver { tag, words },
            1 | 2 => Body::ToSender { tag, words },
            3 => Body::Complete,
            4 => Body::Known,
            5 => Body::Unknown,
            6 => Body::Ask,
            _ => Body::Data { message_length, offset, len, tag, words: [words[0], words[1]] },
        };
        let id = Id64::new(if rng.chance(0.125) { rng.next_u64() } else { rng.below(40) });
        let header = Header { id, one_way: rng.chance(0.5), body };
        let mut packet = Packet::new(from, HostId(0), 100, header);
        if rng.chance(0.1) {
            packet.trim();
        }
        packet
    }

    fn back_to_back() -> (Vec<S::Config>, [Span; 3], Vec<u64>) {
        let full = u64::from(S::variants().swap_remove(0).common().max_payload);
        let sizes = vec![1, 100, full, full + 1, 8 * full, 50_000, 999_999];
        (S::variants(), [Span::ZERO, Span::from_us(2), Span::from_us(20)], sizes)
    }

    /// The round trip is one data packet there and an acknowledgement back, each over two links, with the path's delay.
    fn covering(_config: S::Config, delay: Span) -> S::Config {
        S::for_round_trip((LINK.span_of(1_538) + control_span()) * 2 + delay * 2)
    }
}

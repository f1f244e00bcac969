//! What the transports of RDMA NICs have in common (DCQCN and HPCC): messages that are paced, go-back-N or selective repeat over
//! switches that pause, and receivers that tell of a gap once.
//!
//! A message has the part of a queue pair, as in HPCC's simulator: it begins at the rate of the link. What its rate and its window
//! become is its [`Limit`]'s to say.
//!
//! # Loss
//! A receiver discards what arrives out of order and says which packet it expects; the sender goes back to that one. With
//! selective repeat it keeps such packets. A lost last packet costs a timeout, after which one packet is sent until the
//! receiver answers (our choice).

mod receiver;
mod sender;

use core::fmt::Debug;

use rackweave_core::{Rate, Span, Time, frame};
use rackweave_wire::hpcc::Sack;

use crate::common::{Arriving, Body, Heap, Scheme};
#[cfg(test)]
use crate::common::{Driven, Parameters as _, State};
use crate::exchange::{InvalidConfig, above_zero, rule};
use receiver::Notes;
pub use sender::Outgoing;

/// Parameters of repair and of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repair {
    /// Every n-th packet asks for an acknowledgement.
    pub ack_every: u32,
    /// Whether receivers keep packets that arrive out of order, and senders repeat only what is missing; otherwise all from the
    /// missing one on are sent again (go-back-N).
    pub selective: bool,
    /// The shortest time between two NACKs for the same packet.
    pub nack_interval: Span,
    /// Time without progress after which the first missing packet is sent again. Each further time doubles it, up to eight times.
    pub rto: Span,
    /// Priority of data in switches.
    pub data_priority: u8,
}

impl Repair {
    /// The values of HPCC's simulator; the timeout is our choice.
    pub const HPCC: Self = Self {
        ack_every: 1,
        selective: false,
        nack_interval: Span::from_us(500),
        rto: Span::from_ms(4),
        data_priority: 3,
    };

    /// The same with a timeout for processes, which may have to wait for a processor for milliseconds (our choice).
    #[must_use]
    pub(crate) const fn for_hosts(self) -> Self {
        Self { rto: Span::from_ms(16), ..self }
    }

    /// The timeout after this number of them without progress.
    pub(crate) fn timeout(&self, timeouts: u32) -> Span {
        self.rto.saturating_mul(1 << timeouts.min(3))
    }

    /// The longest timeout.
    pub(crate) fn longest_timeout(&self) -> Span {
        self.timeout(u32::MAX)
    }

    /// Checks that what must be above zero is.
    pub(crate) fn check(&self) -> Result<(), InvalidConfig> {
        above_zero(&[("ack_every", self.ack_every > 0), ("rto", self.rto > Span::ZERO)])
    }
}

/// The least rate of a message on a link: `MIN_RATE` of HPCC's simulator, but no more than a tenth of the link.
pub(crate) const fn min_rate(link: Rate) -> Rate {
    Rate(match link.0 {
        0..10_000_000 => link.0,
        10_000_000..10_000_000_000 => link.0 / 10,
        _ => 1_000_000_000,
    })
}

/// Checks that a packet of this length does not take so long at the least rate that its receiver forgets the message.
pub(crate) fn check_min_rate(
    min_rate: Rate,
    l3_bytes: u32,
    patience: Span,
) -> Result<(), InvalidConfig> {
    let packet = min_rate.span_of(frame::wire_bytes(l3_bytes).into());
    rule(packet < patience, "min_rate", || {
        format!(
            "a packet at min_rate takes {packet}, after which a receiver has forgotten its message"
        )
    })
}

/// What limits the sender of a message besides its link.
pub trait Limit<C>: Debug {
    /// That of a new message.
    fn new(config: &C) -> Self;

    /// The rate at which the message is sent; `None` for that of the link.
    fn rate(&mut self, now: Time, config: &C) -> Option<Rate>;

    /// The most packets in flight.
    fn window(&self, config: &C) -> u32;

    /// Asserts that it is within its bounds.
    #[cfg(test)]
    fn check_bounds(&self, config: &C);
}

/// A transport of RDMA NICs.
pub trait Rdma: Scheme<Outgoing = Outgoing<Self::Limit>, Incoming = Arriving> {
    /// What limits its messages.
    type Limit: Limit<Self::Config>;

    /// The rate of the host's link.
    fn link(config: &Self::Config) -> Rate;

    /// The parameters of repair.
    fn repair(config: &Self::Config) -> &Repair;

    /// Its state of a host.
    #[cfg(test)]
    fn nic(&self) -> &Nic;

    /// Its state, for changes.
    fn nic_mut(&mut self) -> &mut Nic;

    /// The body of a data packet.
    fn data(message_length: u32, offset: u32, len: u16, asks: bool) -> Body<Self>;

    /// The acknowledgement (`is_missing`: the NACK) that answers a data packet.
    fn answer(to: &Self::Header, next: u32, sack: Sack, is_missing: bool) -> Body<Self>;
}

/// The state of a host.
#[derive(Debug)]
pub struct Nic {
    /// The messages with something to send, by the time from which their rates permit it, and age.
    ready: Heap<(Time, u64)>,
    /// When the driver has polled for packets, or will before it asks when to call again.
    polled_until: Time,
    /// When the link is free again after the last packet.
    link_free_at: Time,
    /// The latest time to which a rate has put a packet off.
    paced_to: Time,
    /// For each slot, what the receiver has sent lately.
    notes: Vec<Notes>,
}

impl Default for Nic {
    fn default() -> Self {
        Self {
            ready: Heap::default(),
            polled_until: Time::ZERO,
            link_free_at: Time::ZERO,
            paced_to: Time::ZERO,
            notes: Vec::new(),
        }
    }
}

impl Nic {
    /// When the host is to be called: when a rate permits the next packet and the link has room. The network polls by itself only
    /// once the last packet has arrived, as of the time when its link was free: a packet that a rate puts off beyond that would be
    /// late.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Time {
        if self.paced_to <= self.link_free_at {
            return Time::MAX;
        }
        let Some(((free_at, _), _)) = self.ready.first() else { return Time::MAX };
        let at = free_at.max(self.link_free_at);
        if at > self.polled_until { at } else { Time::MAX }
    }

    /// Notes that a message has a packet to send from this time on.
    #[inline]
    fn set(&mut self, slot: u32, free_at: Time, birth: u64) {
        self.paced_to = self.paced_to.max(free_at);
        self.ready.set(slot, (free_at, birth));
    }

    /// The driver polls for packets after a timeout.
    pub(crate) fn woken(&mut self, now: Time) {
        if self.poll_timeout() <= now {
            self.polled_until = now;
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.ready.remove(slot);
    }
}

/// Asserts that the state of a host is within its bounds.
#[cfg(test)]
pub(crate) fn check_bounds<S: Rdma>(host: &Driven<S>) {
    let common = host.config.common();
    for exchange in host.exchanges.iter() {
        match &exchange.state {
            State::Sending(outgoing) => outgoing.check_bounds(&*host.config, common.max_gaps),
            State::Receiving(incoming) => {
                incoming.check_bounds(common.max_message_bytes, common.max_gaps);
            }
            _ => {}
        }
    }
    let nic = host.scheme.nic();
    if host.exchanges.live() == 0 {
        assert!(nic.ready.is_empty());
    }
    assert!(nic.notes.len() <= common.max_exchanges as usize);
}

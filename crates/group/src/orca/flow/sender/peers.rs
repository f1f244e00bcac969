//! What a sender knows of its receivers.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Place, Reason};

use super::super::SlowReason;
use super::course::Course;

/// How a receiver stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Invited,
    Attached,
    Alone,
    Done,
    Gone(Reason),
}

/// Things to tell a receiver.
pub(super) mod tell {
    pub(crate) const INVITE: u8 = 1;
    pub(crate) const MODE: u8 = 2;
    pub(crate) const END: u8 = 4;
    pub(crate) const BYE: u8 = 8;
}

/// Of one that holds the others up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holds {
    /// Since when.
    pub(super) since: Time,
    /// Where it was then.
    pub(super) from: u64,
    /// Looks that found it so, less those that did not.
    pub(super) looks: u64,
    /// It had all bytes below: what it is catching up with counts, too.
    pub(super) had: u64,
}

/// One receiver.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) host: HostId,
    pub(super) place: Place,
    pub(super) state: State,
    /// What it is to be told ([`tell`]); it is in the queue if there is anything.
    pub(super) tell: u8,
    pub(super) told_at: Time,
    /// When anything was last sent to it alone.
    pub(super) sent: Time,
    pub(super) tellings: u8,

    /// The first byte that it was to get.
    pub(super) begins: u64,
    /// It has all bytes below.
    pub(super) have: u64,
    /// What was sent below has reached it or was lost.
    pub(super) progress: u64,
    /// The same, at best: where only a summary is known, the one that is furthest.
    pub(super) at_best: u64,
    pub(super) limit: u64,
    pub(super) heard: Time,
    /// State since.
    pub(super) since: Time,
    /// It tells of less than it had, since: it may have begun anew.
    pub(super) less_since: Option<Time>,

    pub(super) base_rtt: Span,
    pub(super) period_rtt: Span,
    last_rtt: Option<Span>,
    /// Gaps below have been counted as lost.
    pub(super) loss_edge: u64,
    /// Bytes lost in this period.
    pub(super) lost: u64,

    rate_at: Time,
    rate_from: u64,
    /// Bytes per second, lately.
    pub(super) rate: u64,
    /// The most of `rate`, decaying.
    pub(super) peak: u64,
    /// It holds the others up.
    pub(super) holds: Option<Holds>,
    pub(super) repairs: u64,
    pub(super) detached: u8,
    pub(super) slow: Option<SlowReason>,
    pub(super) alone: Option<Box<Course>>,
}

impl Peer {
    pub(super) fn new(now: Time, host: HostId, place: Place) -> Self {
        Self {
            host,
            place,
            state: State::Invited,
            tell: 0,
            told_at: now,
            sent: now,
            tellings: 0,
            begins: 0,
            have: 0,
            progress: 0,
            at_best: 0,
            limit: 0,
            heard: now,
            since: now,
            less_since: None,
            base_rtt: Span::MAX,
            period_rtt: Span::MAX,
            last_rtt: None,
            loss_edge: 0,
            lost: 0,
            rate_at: now,
            rate_from: 0,
            rate: 0,
            peak: 0,
            holds: None,
            repairs: 0,
            detached: 0,
            slow: None,
            alone: None,
        }
    }

    pub(super) const fn is_active(&self) -> bool {
        matches!(self.state, State::Attached | State::Alone)
    }

    /// Begins (again) at an offset.
    pub(super) fn begin(&mut self, now: Time, at: u64, limit: u64) {
        (self.have, self.progress, self.at_best, self.loss_edge) = (at, at, at, at);
        (self.begins, self.limit) = (at, limit);
        (self.heard, self.since) = (now, now);
        (self.rate_at, self.rate_from) = (now, at);
        self.less_since = None;
        (self.holds, self.tellings) = (None, 0);
        self.alone = None;
    }

    pub(super) fn sample(&mut self, rtt: Span) {
        self.base_rtt = self.base_rtt.min(rtt);
        self.period_rtt = self.period_rtt.min(rtt);
        self.last_rtt = Some(rtt);
    }

    /// The standing queue of the period that ends; at the start, when it only grows, its end.
    pub(super) fn end_period(&mut self, starting: bool, path: Span) -> Option<Span> {
        let least = |last| if starting { last } else { self.period_rtt };
        let standing = self.last_rtt.map(|last| {
            let queue = least(last).0.saturating_sub(self.base_rtt.min(path).0);
            Span(queue)
        });
        (self.period_rtt, self.last_rtt, self.lost) = (Span::MAX, None, 0);
        standing
    }

    /// Measures its rate by when packets came to it: `at`, its progress then.
    pub(super) fn measure(&mut self, at: Time) {
        let span = at.since(self.rate_at);
        let bytes = self.at_best.saturating_sub(self.rate_from);
        if span < Span::from_ms(1) || bytes < 32 << 10 && span < Span::from_ms(100) {
            return;
        }
        self.rate = (u128::from(bytes) * 1_000_000_000_000 / u128::from(span.0))
            .min(u128::from(u64::MAX >> 8)) as u64;
        self.peak = self.rate.max(self.peak - self.peak / 256);
        (self.rate_at, self.rate_from) = (at, self.at_best);
    }
}

/// All receivers, by number, by host and by place.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    pub(super) list: Vec<Peer>,
    hosts: BTreeMap<HostId, u32>,
    racks: BTreeMap<u16, Box<[u32; 64]>>,
}

const NOBODY: u32 = u32::MAX;

impl Peers {
    pub(super) fn find(&self, host: HostId) -> Option<u32> {
        self.hosts.get(&host).copied()
    }

    /// Those in a rack, by port.
    pub(super) fn rack(&self, rack: u16) -> Option<&[u32; 64]> {
        self.racks.get(&rack).map(|ports| &**ports)
    }

    pub(super) fn add(&mut self, peer: Peer) -> u32 {
        let number = self.list.len() as u32;
        self.hosts.insert(peer.host, number);
        self.list.push(peer);
        self.settle(number);
        number
    }

    /// Notes the place of a receiver, in which nobody else can be then.
    pub(super) fn settle(&mut self, number: u32) {
        let place = self.list[number as usize].place;
        let ports = self.racks.entry(place.rack).or_insert_with(|| Box::new([NOBODY; 64]));
        ports[usize::from(place.port & 63)] = number;
    }

    /// It has another place now.
    pub(super) fn moved(&mut self, number: u32, place: Place) {
        let old = core::mem::replace(&mut self.list[number as usize].place, place);
        if let Some(ports) = self.racks.get_mut(&old.rack)
            && ports[usize::from(old.port & 63)] == number
        {
            ports[usize::from(old.port & 63)] = NOBODY;
        }
        self.settle(number);
    }

    pub(super) fn get(&self, number: u32) -> Option<&Peer> {
        self.list.get(number as usize)
    }
}

//! What the sender knows of its receivers.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Place, Reason};

use super::super::SlowReason;
use super::channel::Channel;

/// The state of a receiver; see [`super::super::ReceiverStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Invited,
    Attached,
    Detached,
    Completed,
    Lost(Reason),
}

/// Control packets that are to be sent to a receiver, as bits of [`Peer::pending_control`].
pub(super) mod pending {
    pub(crate) const INVITE: u8 = 1;
    pub(crate) const MODE: u8 = 2;
    pub(crate) const END: u8 = 4;
    pub(crate) const BYE: u8 = 8;
}

/// A receiver holds the others up: what it achieves meanwhile decides whether it is detached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocking {
    pub(super) since: Time,
    /// `best_progress` at that time.
    pub(super) from: u64,
    /// Checks that found it blocking, less those that did not.
    pub(super) strikes: u64,
    /// `have` at that time: a receiver that closes old gaps is working too.
    pub(super) had: u64,
}

/// One receiver.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) host: HostId,
    pub(super) place: Place,
    pub(super) state: State,
    /// The control packets that it is to be sent, bits of [`pending`]. If there are any, it is in the control queue.
    pub(super) pending_control: u8,
    /// When a control packet was last sent to it.
    pub(super) control_sent_at: Time,
    /// When any packet was last sent to it by unicast.
    pub(super) last_sent: Time,
    /// Control packets sent to it since it joined, which set the interval of the next repetition.
    pub(super) attempts: u8,

    /// The first byte that it asked for.
    pub(super) start: u64,
    /// It has all bytes below.
    pub(super) have: u64,
    /// What was sent below has reached it or was lost.
    pub(super) progress: u64,
    /// An upper bound of its progress. It differs from `progress` where only an agent's summary of several receivers is known.
    pub(super) best_progress: u64,
    /// Its receive window ends here.
    pub(super) limit: u64,
    pub(super) last_heard: Time,
    pub(super) state_since: Time,
    /// Since this time its reports claim less than earlier ones did: it may have restarted.
    pub(super) regressed_since: Option<Time>,

    pub(super) base_rtt: Span,
    pub(super) period_rtt: Span,
    last_rtt: Option<Span>,
    /// Gaps below have been counted as lost.
    pub(super) loss_edge: u64,
    /// Bytes lost in this period.
    pub(super) lost: u64,

    rate_at: Time,
    rate_from: u64,
    /// Bytes per second that it received lately.
    pub(super) rate: u64,
    /// The highest `rate` so far, decaying.
    pub(super) peak: u64,
    pub(super) blocking: Option<Blocking>,
    /// Bytes that were retransmitted to it.
    pub(super) repairs: u64,
    /// How often it was detached.
    pub(super) detach_count: u8,
    pub(super) slow_reason: Option<SlowReason>,
    /// The unicast channel of a detached receiver.
    pub(super) channel: Option<Box<Channel>>,
}

impl Peer {
    pub(super) fn new(now: Time, host: HostId, place: Place) -> Self {
        Self {
            host,
            place,
            state: State::Invited,
            pending_control: 0,
            control_sent_at: now,
            last_sent: now,
            attempts: 0,
            start: 0,
            have: 0,
            progress: 0,
            best_progress: 0,
            limit: 0,
            last_heard: now,
            state_since: now,
            regressed_since: None,
            base_rtt: Span::MAX,
            period_rtt: Span::MAX,
            last_rtt: None,
            loss_edge: 0,
            lost: 0,
            rate_at: now,
            rate_from: 0,
            rate: 0,
            peak: 0,
            blocking: None,
            repairs: 0,
            detach_count: 0,
            slow_reason: None,
            channel: None,
        }
    }

    pub(super) const fn is_active(&self) -> bool {
        matches!(self.state, State::Attached | State::Detached)
    }

    /// It joins, for the first time or again, and needs the bytes from `at` on.
    pub(super) fn on_join(&mut self, now: Time, at: u64, limit: u64) {
        (self.have, self.progress, self.best_progress, self.loss_edge) = (at, at, at, at);
        (self.start, self.limit) = (at, limit);
        (self.last_heard, self.state_since) = (now, now);
        (self.rate_at, self.rate_from) = (now, at);
        self.regressed_since = None;
        (self.blocking, self.attempts) = (None, 0);
        self.channel = None;
    }

    pub(super) fn on_rtt_sample(&mut self, rtt: Span) {
        self.base_rtt = self.base_rtt.min(rtt);
        self.period_rtt = self.period_rtt.min(rtt);
        self.last_rtt = Some(rtt);
    }

    /// Ends a congestion control period and returns its standing queue: the least RTT of the period less the least ever. While
    /// the window still grows exponentially, queues only grow, and the last RTT stands for the period.
    pub(super) fn end_period(&mut self, starting: bool, path: Span) -> Option<Span> {
        let least = |last| if starting { last } else { self.period_rtt };
        let standing = self.last_rtt.map(|last| {
            let queue = least(last).0.saturating_sub(self.base_rtt.min(path).0);
            Span(queue)
        });
        (self.period_rtt, self.last_rtt, self.lost) = (Span::MAX, None, 0);
        standing
    }

    /// Updates the rate at which it receives; `at` is when its last packet arrived.
    pub(super) fn update_rate(&mut self, at: Time) {
        let span = at.since(self.rate_at);
        let bytes = self.best_progress.saturating_sub(self.rate_from);
        if span < Span::from_ms(1) || bytes < 32 << 10 && span < Span::from_ms(100) {
            return;
        }
        self.rate = (u128::from(bytes) * 1_000_000_000_000 / u128::from(span.0))
            .min(u128::from(u64::MAX >> 8)) as u64;
        self.peak = self.rate.max(self.peak - self.peak / 256);
        (self.rate_at, self.rate_from) = (at, self.best_progress);
    }
}

/// Minima over the receivers, and how many there are in each state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watermarks {
    /// Minima over attached receivers, `u64::MAX` without any.
    pub(super) min_have: u64,
    pub(super) min_progress: u64,
    pub(super) min_limit: u64,
    /// The lowest byte that any receiver needs.
    pub(super) min_needed: u64,
    pub(super) invited: u32,
    pub(super) attached: u32,
    pub(super) detached: u32,
    pub(super) completed: u32,
}

impl Default for Watermarks {
    fn default() -> Self {
        Self {
            min_have: u64::MAX,
            min_progress: u64::MAX,
            min_limit: u64::MAX,
            min_needed: u64::MAX,
            invited: 0,
            attached: 0,
            detached: 0,
            completed: 0,
        }
    }
}

/// All receivers, by number, by host and by place.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    pub(super) list: Vec<Peer>,
    hosts: BTreeMap<HostId, u32>,
    racks: BTreeMap<u16, Box<[u32; 64]>>,
    pub(super) watermarks: Watermarks,
    /// Set when `watermarks` must be recomputed.
    pub(super) dirty: bool,
    /// The numbers of receivers with pending control packets, each once.
    pub(super) control_queue: VecDeque<u32>,
}

const NO_RECEIVER: u32 = u32::MAX;

impl Peers {
    pub(super) fn find(&self, host: HostId) -> Option<u32> {
        self.hosts.get(&host).copied()
    }

    /// The numbers of a rack's receivers, by port.
    pub(super) fn rack(&self, rack: u16) -> Option<&[u32; 64]> {
        self.racks.get(&rack).map(|ports| &**ports)
    }

    pub(super) fn add(&mut self, peer: Peer) -> u32 {
        let number = self.list.len() as u32;
        self.hosts.insert(peer.host, number);
        self.list.push(peer);
        self.index_place(number);
        number
    }

    /// Enters a receiver into the index by place. One that was there before is no longer found by its place.
    fn index_place(&mut self, number: u32) {
        let place = self.list[number as usize].place;
        let ports = self.racks.entry(place.rack).or_insert_with(|| Box::new([NO_RECEIVER; 64]));
        ports[usize::from(place.port & 63)] = number;
    }

    pub(super) fn set_place(&mut self, number: u32, place: Place) {
        let old = core::mem::replace(&mut self.list[number as usize].place, place);
        if let Some(ports) = self.racks.get_mut(&old.rack)
            && ports[usize::from(old.port & 63)] == number
        {
            ports[usize::from(old.port & 63)] = NO_RECEIVER;
        }
        self.index_place(number);
    }

    pub(super) fn get(&self, number: u32) -> Option<&Peer> {
        self.list.get(number as usize)
    }

    /// Control packets ([`pending`]) are to be sent to a receiver.
    pub(super) fn queue_control(&mut self, number: u32, packets: u8) {
        let peer = &mut self.list[number as usize];
        if peer.pending_control == 0 {
            self.control_queue.push_back(number);
        }
        peer.pending_control |= packets;
    }

    /// Recomputes the watermarks. An invited receiver may need all bytes from `released` on.
    pub(super) fn update_watermarks(&mut self, released: u64) {
        self.dirty = false;
        let mut watermarks = Watermarks::default();
        for peer in &self.list {
            match peer.state {
                State::Invited => {
                    watermarks.invited += 1;
                    watermarks.min_needed = watermarks.min_needed.min(released);
                }
                State::Attached => {
                    watermarks.attached += 1;
                    watermarks.min_have = watermarks.min_have.min(peer.have);
                    watermarks.min_progress = watermarks.min_progress.min(peer.progress);
                    watermarks.min_limit = watermarks.min_limit.min(peer.limit);
                    watermarks.min_needed = watermarks.min_needed.min(peer.have);
                }
                State::Detached => {
                    watermarks.detached += 1;
                    watermarks.min_needed = watermarks.min_needed.min(peer.have);
                }
                State::Completed => watermarks.completed += 1,
                State::Lost(_) => {}
            }
        }
        self.watermarks = watermarks;
    }
}

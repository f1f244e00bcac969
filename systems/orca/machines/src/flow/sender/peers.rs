//! The sender's state for each receiver.

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Place, Reason};

use super::super::SlowReason;
use super::channel::Channel;
use super::control::{Join, RESTART_AFTER};
use super::path::Path;

/// The state of a receiver; see [`super::super::ReceiverStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Invited,
    Attached,
    Detached,
    Completed,
    Lost(Reason),
}

/// The kinds of control packets for a receiver, as bits of [`Peer::pending_control`].
pub(super) mod pending {
    pub(crate) const INVITE: u8 = 1;
    pub(crate) const MODE: u8 = 2;
    pub(crate) const END: u8 = 4;
    pub(crate) const BYE: u8 = 8;
}

/// A receiver that delays the group: its progress meanwhile decides whether it is detached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocking {
    pub(super) since: Time,
    /// `best_progress` at that time.
    pub(super) from: u64,
    /// The number of checks that found it blocking, minus the number of checks that did not.
    pub(super) strikes: u64,
    /// `have` at that time: closing old gaps counts as progress too.
    pub(super) had: u64,
}

/// The state of one receiver.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) host: HostId,
    pub(super) place: Place,
    pub(super) state: State,
    /// The control packets to send to it, as bits of [`pending`]. While any bit is set, the receiver is in the control
    /// queue.
    pub(super) pending_control: u8,
    /// The time at which a control packet was last sent to it.
    pub(super) control_sent_at: Time,
    /// The time at which any packet was last sent to it by unicast.
    pub(super) last_sent: Time,
    /// The number of control packets sent to it since it joined, which determines the interval before the next
    /// repetition.
    pub(super) attempts: u8,

    /// The first byte that it requested.
    pub(super) start: u64,
    /// The offset below which it has all bytes.
    pub(super) have: u64,
    /// The offset below which everything sent has reached it or was lost.
    pub(super) progress: u64,
    /// An upper bound of its progress. It differs from `progress` where only an agent's summary of several receivers is
    /// known.
    pub(super) best_progress: u64,
    /// The end offset of its receive window.
    pub(super) limit: u64,
    pub(super) last_heard: Time,
    /// The time at which it last reported bytes that it had not reported before.
    pub(super) progress_at: Time,
    pub(super) state_since: Time,
    /// Whether it has answered the invitation that it cannot join yet.
    pub(super) is_preparing: bool,
    /// The time since which its reports claim less than earlier ones, which may mean that it has restarted.
    pub(super) regressed_since: Option<Time>,
    /// The number of its start ([`rackweave_wire::orca::Body::Join`]).
    pub(super) incarnation: u32,
    /// Another number with which it joins, and since when.
    pub(super) restart: Option<(u32, Time)>,

    pub(super) base_rtt: Span,
    pub(super) period_rtt: Span,
    last_rtt: Option<Span>,
    /// Gaps below this offset have been counted as lost.
    pub(super) loss_edge: u64,
    /// The number of bytes that it lost in this period.
    pub(super) lost: u64,

    rate_at: Time,
    rate_from: u64,
    /// The rate at which it recently received, in bytes per second.
    pub(super) rate: u64,
    /// The highest `rate` so far, which decays.
    pub(super) peak: u64,
    pub(super) blocking: Option<Blocking>,
    /// When it was last found to delay the group, and for how long it was excused.
    blocked_at: Time,
    excused: Span,
    /// The number of bytes retransmitted to it.
    pub(super) repairs: u64,
    /// The number of times that it was detached.
    pub(super) detach_count: u8,
    pub(super) slow_reason: Option<SlowReason>,
    /// Whether packets to the group are of no use to it, however fast it is.
    pub(super) is_apart: bool,
    pub(super) path: Path,
    /// The unicast channel of a detached receiver; `None` while it is attached.
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
            progress_at: now,
            state_since: now,
            is_preparing: false,
            regressed_since: None,
            incarnation: 0,
            restart: None,
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
            blocked_at: Time::ZERO,
            excused: Span::ZERO,
            repairs: 0,
            detach_count: 0,
            slow_reason: None,
            is_apart: false,
            path: Path::new(now),
            channel: None,
        }
    }

    pub(super) const fn is_active(&self) -> bool {
        matches!(self.state, State::Attached | State::Detached)
    }

    /// Notes a join of another start, and returns whether it counts: a late packet comes once, and is not repeated for this long.
    pub(super) fn has_restarted(&mut self, now: Time, incarnation: u32) -> bool {
        match self.restart {
            Some((of, since)) if of == incarnation => now.since(since) >= RESTART_AFTER,
            _ => {
                self.restart = Some((incarnation, now));
                false
            }
        }
    }

    /// Handles a join, the first one or a later one; the receiver needs the bytes from `join.at`.
    pub(super) fn on_join(&mut self, now: Time, join: &Join) {
        let Join { incarnation, at, limit } = *join;
        (self.incarnation, self.restart) = (incarnation, None);
        (self.have, self.progress, self.best_progress, self.loss_edge) = (at, at, at, at);
        (self.start, self.limit) = (at, limit);
        (self.last_heard, self.state_since, self.progress_at) = (now, now, now);
        (self.rate_at, self.rate_from) = (now, at);
        self.regressed_since = None;
        self.path.restart(now);
        (self.blocking, self.attempts) = (None, 0);
        self.channel = None;
    }

    pub(super) fn on_rtt_sample(&mut self, rtt: Span) {
        self.base_rtt = self.base_rtt.min(rtt);
        self.period_rtt = self.period_rtt.min(rtt);
        self.last_rtt = Some(rtt);
    }

    /// Ends a congestion control period and returns its standing queue: the lowest RTT of the period minus the lowest
    /// ever. In slow start queues only grow, so the last RTT is used for the period.
    pub(super) fn end_period(&mut self, starting: bool, path: Span) -> Option<Span> {
        let least = |last| if starting { last } else { self.period_rtt };
        let standing =
            self.last_rtt.map(|last| least(last).saturating_sub(self.base_rtt.min(path)));
        (self.period_rtt, self.last_rtt, self.lost) = (Span::MAX, None, 0);
        standing
    }

    /// Notes that it delays the group. Returns the time since the last check if that is excused: its rack may lack an agent, and it was
    /// not excused for `wait` since it last kept up for as long. A receiver alone in its rack is thus excused once.
    pub(super) fn excuse(&mut self, now: Time, may_lack_agent: bool, wait: Span) -> Option<Span> {
        let mut time = now.since(self.blocked_at);
        self.blocked_at = now;
        if time >= wait {
            (self.excused, time) = (Span::ZERO, Span::ZERO);
        }
        if !may_lack_agent || self.excused + time > wait {
            return None;
        }
        self.excused += time;
        Some(time)
    }

    /// Begins a new measurement of the rate.
    pub(super) const fn restart_rate(&mut self, now: Time) {
        (self.rate_at, self.rate_from) = (now, self.best_progress);
    }

    /// Updates the rate at which it receives; `at` is the time at which its last packet arrived.
    pub(super) fn update_rate(&mut self, at: Time) {
        let span = at.since(self.rate_at);
        let bytes = self.best_progress.saturating_sub(self.rate_from);
        if span < Span::from_ms(1) || bytes < 32 << 10 && span < Span::from_ms(100) {
            return;
        }
        self.rate = (u128::from(bytes) * u128::from(TICKS_PER_SECOND) / u128::from(span.ticks()))
            .min(u128::from(u64::MAX >> 8)) as u64;
        self.peak = self.rate.max(self.peak - self.peak / 256);
        (self.rate_at, self.rate_from) = (at, self.best_progress);
    }
}

/// Minima over the receivers, and the number of receivers in each state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watermarks {
    /// The minimum of `have` over attached receivers, `u64::MAX` without any; the following fields likewise.
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
    /// The numbers of the receivers with pending control packets, each once.
    pub(super) control_queue: VecDeque<u32>,
}

const NO_RECEIVER: u32 = u32::MAX;

impl Peers {
    pub(super) fn find(&self, host: HostId) -> Option<u32> {
        self.hosts.get(&host).copied()
    }

    /// Returns the numbers of a rack's receivers, by port.
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

    /// Adds a receiver to the index by place, replacing an earlier one at the same place.
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

    /// Queues control packets ([`pending`]) for a receiver.
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

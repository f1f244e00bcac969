//! The sending end: one stream to a changing set of receivers.
//!
//! - `peers`: the state of each receiver; `channel`: the data in flight to the group or to one detached receiver;
//!   `retransmit`: the retransmission queue; `blocks`: whether parity is cheaper; `path`: receivers that full packets do not reach.
//! - `control`: packets from receivers; `poll`: what is sent next; `tick`: timers, and the detection of slow receivers.

mod blocks;
mod channel;
mod control;
mod path;
mod peers;
mod poll;
mod retransmit;
mod tick;

use std::collections::VecDeque;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_wire::orca::{Place, Reason, Session};

use super::{FlowConfig, ReceiverStatus, ReceiverView, SenderEvent, SenderSummary, SlowReason};
use blocks::Blocks;
use channel::Channel;
use control::Join;
use peers::{Peer, Peers, State, pending};
use poll::{CatchUp, Pacer};
pub(super) use tick::TICK;
use tick::Timers;

/// The phase of the whole session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for the receivers that were invited.
    Gathering,
    /// Sends data to receivers.
    Open,
    /// Finished or failed: only late packets are answered.
    Over,
}

/// The bytes that the application has offered.
#[derive(Clone, Copy, Debug)]
struct Source {
    offered: u64,
    offered_at: Time,
    /// The length of the stream in bytes, once the application has finished it.
    length: Option<u64>,
    /// No receiver needs the bytes below this offset.
    released: u64,
    /// The driver can provide all bytes from this offset on, even those below `released`; `u64::MAX` if it keeps only
    /// what is not released.
    readable_from: u64,
    /// Whether the driver cannot provide some bytes yet, so that a lack of progress has no other cause.
    held: bool,
}

/// The sender of one session. See the [module](super) for the contract.
#[derive(Clone, Debug)]
pub struct Sender {
    session: Session,
    /// The identity of the content.
    stream: u128,
    via_agent: bool,
    /// How long a rack without progress may be one whose agent is being replaced ([`Self::set_agent_timeout`]).
    agent_wait: Span,
    config: FlowConfig,
    stage: Stage,
    /// Whether the group's labels are not known yet, so that nothing is sent to the group.
    paused: bool,
    /// The cost of a packet to everyone on the sender's link, in packets to one receiver.
    copies: u32,
    peers: Peers,
    group: Channel,
    blocks: Blocks,
    source: Source,
    catch_up: CatchUp,
    pacer: Pacer,
    timers: Timers,
    /// The numbers of receivers that get a smaller packet next.
    path_queue: VecDeque<u32>,
    /// Why the last receiver was lost, for [`SenderEvent::Failed`].
    last_loss: Reason,
    /// Scratch memory for medians over receivers, kept to avoid allocation.
    scratch: Vec<u64>,
    events: VecDeque<SenderEvent>,
    counters: SenderSummary,
}

impl Sender {
    /// Returns a session without receivers. `stream` identifies the content; with `via_agent` reports are sent through
    /// the racks' agents.
    #[must_use]
    pub fn new(
        now: Time,
        session: Session,
        stream: u128,
        via_agent: bool,
        config: FlowConfig,
    ) -> Self {
        let config = config.sane();
        Self {
            session,
            stream,
            via_agent,
            agent_wait: Span::ZERO,
            stage: Stage::Gathering,
            paused: false,
            copies: 1,
            peers: Peers::default(),
            group: Channel::new(now, 0, &config),
            blocks: Blocks::new(config.fec_block),
            source: Source {
                offered: 0,
                offered_at: now,
                length: None,
                released: 0,
                readable_from: u64::MAX,
                held: false,
            },
            catch_up: CatchUp::default(),
            pacer: Pacer::new(now),
            timers: Timers::new(now),
            path_queue: VecDeque::new(),
            last_loss: Reason::Left,
            scratch: Vec::new(),
            events: VecDeque::new(),
            counters: SenderSummary::default(),
            config,
        }
    }

    /// Returns the number of the session.
    #[must_use]
    pub const fn session(&self) -> Session {
        self.session
    }

    /// Returns whether the session has finished or failed. It then only answers late packets, and may be dropped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Invites a host. The invitation is repeated until it joins, refuses, or [`FlowConfig::patience`] is over. No effect on a
    /// host that is invited or has joined; with too many receivers the host is lost at once ([`Reason::Busy`]).
    pub fn invite(&mut self, now: Time, host: HostId, place: Place) {
        if self.stage == Stage::Over {
            return;
        }
        let number = match self.peers.find(host) {
            Some(number) => match self.peers.list[number as usize].state {
                State::Lost(_) | State::Completed => number,
                _ => return,
            },
            None if self.peers.list.len() >= self.config.max_receivers as usize => {
                self.events.push_back(SenderEvent::Lost { host, reason: Reason::Busy });
                return;
            }
            None => self.peers.add(Peer::new(now, host, place)),
        };
        self.peers.set_place(number, place);
        let peer = &mut self.peers.list[number as usize];
        (peer.state, peer.is_preparing) = (State::Invited, false);
        (peer.state_since, peer.last_heard, peer.attempts) = (now, now, 0);
        self.peers.queue_control(number, pending::INVITE);
        self.peers.dirty = true;
        self.update(now);
        self.tick_soon(now);
    }

    /// Admits a host that was not invited, from offset `at` and with a receive window up to `limit`, as its `Join`
    /// would. `incarnation` is that of its `Join`.
    pub fn admit(
        &mut self,
        now: Time,
        host: HostId,
        incarnation: u32,
        place: Place,
        at: u64,
        limit: u64,
    ) {
        self.handle_join(now, host, place, Join { incarnation, at, limit }, true);
        self.update(now);
    }

    /// Removes a host from the session.
    pub fn remove(&mut self, now: Time, host: HostId, reason: Reason) {
        if let Some(number) = self.peers.find(host) {
            self.lose_receiver(now, number, reason);
            self.peers.queue_control(number, pending::BYE);
            self.update(now);
        }
    }

    /// Ends the session for all receivers that have not completed.
    pub fn abort(&mut self, now: Time, reason: Reason) {
        if self.stage == Stage::Over {
            return;
        }
        for number in 0..self.peers.list.len() as u32 {
            self.lose_receiver(now, number, reason);
            if matches!(self.peers.list[number as usize].state, State::Lost(_)) {
                self.peers.queue_control(number, pending::BYE);
            }
        }
        self.stage = Stage::Over;
        self.timers.next_tick = Time::MAX;
        self.events.push_back(SenderEvent::Failed { reason });
    }

    /// Records that the application has written all bytes below `upto`, which is at most 2^48.
    pub fn offer(&mut self, now: Time, upto: u64) {
        let upto = upto.min((1 << 48) - 1);
        if self.source.length.is_none() && upto > self.source.offered {
            self.source.offered = upto;
            self.source.offered_at = now;
            self.update(now);
            self.tick_soon(now);
        }
    }

    /// Records that the driver can provide all bytes from `from` on, whatever was released. A receiver that joins
    /// below [`Self::released`], such as one that has lost its state in a restart, is served from there on.
    pub const fn set_readable_from(&mut self, from: u64) {
        self.source.readable_from = from;
    }

    /// Records the heartbeat timeout after which the controller replaces a silent agent. The receivers of a rack without
    /// progress are not slow for twice this time: the controller may detect the failure that late, and the new agent takes time.
    pub fn set_agent_timeout(&mut self, timeout: Span) {
        self.agent_wait = timeout.min(self.config.longest_agent_timeout()).saturating_mul(2);
    }

    /// Records that packets to the group do not reach a receiver, or that it cannot read them: from its next join on it is served by
    /// unicast as long as the session lasts.
    pub fn serve_by_unicast(&mut self, host: HostId) {
        if let Some(number) = self.peers.find(host) {
            let peer = &mut self.peers.list[number as usize];
            (peer.is_apart, peer.slow_reason) = (true, Some(SlowReason::NoMulticast));
        }
    }

    /// As [`Self::serve_by_unicast`]; a receiver that is in the group leaves it.
    pub fn take_from_group(&mut self, now: Time, host: HostId) {
        self.serve_by_unicast(host);
        let Some(number) = self.peers.find(host) else { return };
        if self.peers.list[number as usize].state == State::Attached {
            self.detach(now, number, true);
            self.events.push_back(SenderEvent::Detached { host });
            self.peers.update_watermarks(self.source.released);
            self.group.congestion.restart(&self.config);
            self.tick_soon(now);
        }
    }

    /// Records whether the driver cannot provide some bytes that were offered yet: receivers that lack them are not lost
    /// for that. Packets that it could not fill are repeated like lost ones.
    pub fn hold(&mut self, now: Time, held: bool) {
        self.source.held = held;
        self.tick_soon(now);
    }

    /// Ends the stream after the bytes that have been offered.
    pub fn finish(&mut self, now: Time) {
        if self.source.length.is_some() {
            return;
        }
        self.source.length = Some(self.source.offered);
        // If all data is sent already, no packet has carried the end mark.
        let all_sent_to_group = self.group.head >= self.source.offered;
        for number in 0..self.peers.list.len() as u32 {
            let peer = &self.peers.list[number as usize];
            let all_sent = match &peer.channel {
                Some(channel) => channel.head >= self.source.offered,
                None => all_sent_to_group,
            };
            if peer.is_active() && all_sent {
                self.peers.queue_control(number, pending::END);
            }
        }
        self.update(now);
        self.tick_soon(now);
    }

    /// Pauses the group channel until labels reach the attached receivers, or resumes it.
    pub fn pause(&mut self, now: Time, paused: bool) {
        if self.paused != paused {
            self.paused = paused;
            self.group.last_progress = now;
            self.tick_soon(now);
        }
    }

    /// Sets the cost of a packet to everyone on the sender's link, in packets to one receiver: 1 for labels and
    /// multicast, the number of racks for relays, the number of receivers for unicast. It decides whether a
    /// retransmission goes to the group or to single receivers, and all copies count towards [`FlowConfig::max_rate`].
    pub fn set_copies(&mut self, copies: u32) {
        self.copies = copies.max(1);
    }

    /// Returns the offset below which no receiver needs bytes any more.
    #[must_use]
    pub const fn released(&self) -> u64 {
        self.source.released
    }

    /// Returns the next event for the application.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// Iterates over all receivers that were ever in the session, in the order in which they were invited or joined.
    pub fn receivers(&self) -> impl Iterator<Item = ReceiverView> + '_ {
        self.peers.list.iter().map(|peer| ReceiverView {
            host: peer.host,
            place: peer.place,
            have: peer.have,
            status: match peer.state {
                State::Invited if peer.is_preparing => ReceiverStatus::Preparing,
                State::Invited => ReceiverStatus::Invited,
                State::Attached => ReceiverStatus::Attached,
                State::Detached => ReceiverStatus::Detached,
                State::Completed => ReceiverStatus::Completed,
                State::Lost(reason) => ReceiverStatus::Lost(reason),
            },
            rate: Rate(peer.rate.saturating_mul(8)),
            repairs: peer.repairs,
            slow_reason: peer.slow_reason,
            path_payload: peer.path.payload,
        })
    }

    /// Returns the session's counters.
    #[must_use]
    pub fn summary(&self) -> SenderSummary {
        SenderSummary {
            rate: Rate(self.group.congestion.rate().saturating_mul(8)),
            srtt: self.group.congestion.srtt(),
            congestion_window: self.group.congestion.window(),
            attached: self.peers.watermarks.attached,
            detached: self.peers.watermarks.detached,
            ..self.counters
        }
    }

    /// Handles that a receiver leaves the session without completing.
    fn lose_receiver(&mut self, now: Time, number: u32, reason: Reason) {
        let peer = &mut self.peers.list[number as usize];
        if !peer.is_active() && peer.state != State::Invited {
            return;
        }
        peer.state = State::Lost(reason);
        peer.state_since = now;
        peer.pending_control = 0;
        peer.channel = None;
        let host = peer.host;
        self.peers.control_queue.retain(|queued| *queued != number);
        self.catch_up.round_robin.retain(|detached| *detached != number);
        self.peers.dirty = true;
        self.last_loss = reason;
        self.events.push_back(SenderEvent::Lost { host, reason });
    }

    /// Moves a receiver to the group channel.
    fn attach(&mut self, now: Time, number: u32) {
        let payload = u64::from(self.config.payload);
        let max_cells = self.config.window_packets();
        let peer = &mut self.peers.list[number as usize];
        self.group.retransmit.extend_down_to(peer.have / payload, max_cells);
        peer.state = State::Attached;
        peer.channel = None;
        (peer.state_since, peer.blocking) = (now, None);
        (peer.best_progress, peer.loss_edge) = (peer.progress, peer.loss_edge.max(self.group.head));
        self.catch_up.round_robin.retain(|detached| *detached != number);
        self.events.push_back(SenderEvent::Attached { host: peer.host });
        self.peers.dirty = true;
        self.peers.queue_control(number, pending::MODE);
    }

    /// Moves a receiver to a unicast channel. With `caught_up` this channel begins at the group's current position,
    /// otherwise with the first byte that the receiver lacks.
    fn detach(&mut self, now: Time, number: u32, caught_up: bool) {
        let peer = &mut self.peers.list[number as usize];
        let from = if caught_up { self.group.head.max(peer.have) } else { peer.have };
        peer.state = State::Detached;
        (peer.state_since, peer.blocking) = (now, None);
        let mut channel = Channel::new(now, from, &self.config);
        channel.retransmit.forget_below(peer.have / u64::from(self.config.payload));
        peer.channel = Some(Box::new(channel));
        self.catch_up.round_robin.push_back(number);
        self.peers.dirty = true;
        self.peers.queue_control(number, pending::MODE);
    }

    /// To be called after any change: updates the watermarks, releases bytes, opens or ends the session.
    fn update(&mut self, now: Time) {
        if self.stage == Stage::Over {
            return;
        }
        if self.peers.dirty {
            self.peers.update_watermarks(self.source.released);
        }
        let watermarks = self.peers.watermarks;
        let nobody = watermarks.invited + watermarks.attached + watermarks.detached == 0;
        let someone_was = !self.peers.list.is_empty();
        let needed = match watermarks.min_needed {
            u64::MAX if someone_was && self.config.open => self.source.offered,
            u64::MAX => self.source.released,
            // The parity of a block is computed from all of its bytes.
            needed if needed < self.source.offered => {
                self.blocks.start_of(needed, u64::from(self.config.payload))
            }
            _ => self.source.offered,
        };
        self.source.released = self.source.released.max(needed);
        self.group.head = self.group.head.max(self.source.released);
        if watermarks.attached > 0 && watermarks.min_have < u64::MAX {
            // A receiver that resumes may have more than was ever sent.
            self.group.head = self.group.head.max(watermarks.min_have.min(self.source.offered));
            self.group.on_acked(watermarks.min_progress);
            self.group
                .retransmit
                .forget_below(watermarks.min_have / u64::from(self.config.payload));
            self.blocks.forget_below(watermarks.min_have / u64::from(self.config.payload));
        }
        if self.stage == Stage::Gathering && watermarks.attached + watermarks.detached > 0 {
            let late = now >= self.timers.opened.saturating_add(self.config.gather);
            if watermarks.invited == 0 || late {
                self.stage = Stage::Open;
                self.group.last_progress = now;
            }
        }
        if nobody && someone_was && (self.source.length.is_some() || !self.config.open) {
            self.stage = Stage::Over;
            self.timers.next_tick = Time::MAX;
            self.events.push_back(if watermarks.completed > 0 {
                SenderEvent::Finished
            } else {
                SenderEvent::Failed { reason: self.last_loss }
            });
        }
    }

    /// Resets the interval between ticks after a change.
    fn tick_soon(&mut self, now: Time) {
        if self.stage != Stage::Over {
            self.timers.tick_backoff = 0;
            self.timers.next_tick = self.timers.next_tick.min(now.saturating_add(TICK));
        }
    }

    /// Returns the retransmission timeout of the group channel.
    fn group_rto(&self) -> Span {
        self.group.rto(self.config.report_delay(self.via_agent))
    }

    /// Asserts that all state that can grow is within the bounds of the configuration.
    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        let peers = self.peers.list.len();
        assert!(peers <= self.config.max_receivers as usize);
        assert!(
            self.peers.control_queue.len() <= peers && self.catch_up.round_robin.len() <= peers
        );
        assert!(self.path_queue.len() <= peers);
        assert!(self.events.is_empty(), "events are taken after each call");
        let cells = self.config.window_packets();
        let [blocks, misses, owed] = self.blocks.sizes();
        let fits = cells / usize::from(self.config.fec_block.max(1)) + 2;
        assert!(blocks <= fits && misses <= peers, "{blocks} of {fits}, {misses} of {peers}");
        assert!(owed <= blocks * (1 + self.copies as usize) * 4, "{owed} of {blocks}");
        let unicast = self.peers.list.iter().filter_map(|peer| peer.channel.as_deref());
        for channel in unicast.chain([&self.group]) {
            let [ring, queue, sent, bytes] = channel.sizes();
            assert!(ring <= cells && queue <= cells, "{ring} {queue} of {cells}");
            assert!(sent <= 4096, "{sent}");
            // They are counted in bytes, since packets may be smaller than a cell.
            let most = channel.congestion.window().max(self.config.window)
                + u64::from(self.config.payload);
            assert!(
                bytes as u64 <= most,
                "{bytes} of {most} {} {}",
                self.config.window,
                channel.congestion.window()
            );
        }
    }
}

//! The sending end: one stream to a changing set of receivers.
//!
//! - `peers`: what is known of each receiver; `course`: what is on the way to everyone, or to one who is alone;
//!   `cells`: what is to be sent again; `blocks`: whether parity is cheaper.
//! - `control`: what receivers say; `poll`: what leaves next; `tick`: what time brings, and who is too slow.

mod blocks;
mod cells;
mod control;
mod course;
mod peers;
mod poll;
mod tick;

use std::collections::VecDeque;

use rackweave_core::{HostId, Rate, Span, Time};
use rackweave_wire::orca::{Place, Reason, Session};

use super::{FlowConfig, ReceiverStatus, ReceiverView, SenderEvent, SenderSummary};
use blocks::Blocks;
use course::Course;
use peers::{Peer, Peers, State, tell};
use poll::Pace;

/// How far the sender has come as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for those invited.
    Gathering,
    /// Sends.
    Open,
    /// Finished or failed: only answers.
    Over,
}

/// The least of what the receivers have, and how many there are.
#[derive(Clone, Copy, Debug, Default)]
struct Lows {
    /// Of the attached; `u64::MAX` if there are none.
    have: u64,
    progress: u64,
    limit: u64,
    /// Of all that need bytes.
    needed: u64,
    invited: u32,
    attached: u32,
    alone: u32,
    done: u32,
}

/// The sender of one session. See the [module](super) for the contract.
#[derive(Clone, Debug)]
pub struct Sender {
    session: Session,
    stream: u128,
    via_agent: bool,
    config: FlowConfig,
    stage: Stage,
    /// What goes to everyone waits, for labels.
    held: bool,
    /// What a packet to everyone costs on the sender's link, in packets to one.
    copies: u32,

    peers: Peers,
    lows: Lows,
    /// `lows` is to be counted anew.
    stale: bool,
    group: Course,
    blocks: Blocks,
    offered: u64,
    offered_at: Time,
    length: Option<u64>,
    released: u64,
    last_loss: Reason,

    /// Numbers of receivers that are to be told something, each once.
    telling: VecDeque<u32>,
    /// Those that are alone, in turn.
    turn: VecDeque<u32>,
    /// Bytes that those alone may be sent while everyone else has something to get.
    credit: u64,
    pace: Pace,
    opened: Time,
    next_tick: Time,
    /// When `poll`, which found nothing, may find something; nothing is known: never.
    wait: Time,
    /// When to see whether everyone's data has stalled.
    probe_at: Time,
    /// Receivers that are alone are being sent what they may get; so many packets to the same.
    spending: bool,
    run: u16,
    scratch: Vec<u64>,
    /// Doublings of the time between ticks.
    quiet: u8,
    events: VecDeque<SenderEvent>,
    counters: SenderSummary,
}

impl Sender {
    /// A session without receivers. `stream` names the content; `via_agent`: reports are to come by the racks' agents.
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
            stage: Stage::Gathering,
            held: false,
            copies: 1,
            peers: Peers::default(),
            lows: Lows { have: u64::MAX, progress: u64::MAX, limit: u64::MAX, ..Lows::default() },
            stale: true,
            group: Course::new(now, 0, &config),
            blocks: Blocks::new(config.fec_block),
            offered: 0,
            offered_at: now,
            length: None,
            released: 0,
            last_loss: Reason::Left,
            telling: VecDeque::new(),
            turn: VecDeque::new(),
            credit: 0,
            pace: Pace::new(now),
            opened: now,
            next_tick: Time::MAX,
            wait: Time::MAX,
            probe_at: Time::MAX,
            spending: false,
            run: 0,
            scratch: Vec::new(),
            quiet: 0,
            events: VecDeque::new(),
            counters: SenderSummary::default(),
            config,
        }
    }

    /// The session.
    #[must_use]
    pub const fn session(&self) -> Session {
        self.session
    }

    /// Finished or failed: it only answers late questions, and may be forgotten.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Invites a host, again and again until it joins, refuses, or patience ends. Nothing happens if it takes part
    /// already; if there are too many receivers it is lost at once ([`Reason::Busy`]).
    pub fn invite(&mut self, now: Time, host: HostId, place: Place) {
        if self.stage == Stage::Over {
            return;
        }
        let number = match self.peers.find(host) {
            Some(number) => match self.peers.list[number as usize].state {
                State::Gone(_) | State::Done => number,
                _ => return,
            },
            None if self.peers.list.len() >= self.config.max_receivers as usize => {
                self.events.push_back(SenderEvent::Lost { host, reason: Reason::Busy });
                return;
            }
            None => self.peers.add(Peer::new(now, host, place)),
        };
        self.peers.moved(number, place);
        let peer = &mut self.peers.list[number as usize];
        peer.state = State::Invited;
        (peer.since, peer.heard, peer.tellings) = (now, now, 0);
        self.tell(number, tell::INVITE);
        self.stale = true;
        self.settle(now);
        self.wake(now);
    }

    /// Takes a host in that joins by itself, from offset `at` on, with room below `limit`: as if its `Join` had come.
    pub fn admit(&mut self, now: Time, host: HostId, place: Place, at: u64, limit: u64) {
        self.joins(now, host, place, at, limit, true);
        self.settle(now);
    }

    /// Puts a host out of the session.
    pub fn remove(&mut self, now: Time, host: HostId, reason: Reason) {
        if let Some(number) = self.peers.find(host) {
            self.lose(now, number, reason);
            self.tell(number, tell::BYE);
            self.settle(now);
        }
    }

    /// Ends the session for all that have not completed.
    pub fn abort(&mut self, now: Time, reason: Reason) {
        if self.stage == Stage::Over {
            return;
        }
        for number in 0..self.peers.list.len() as u32 {
            self.lose(now, number, reason);
            if matches!(self.peers.list[number as usize].state, State::Gone(_)) {
                self.tell(number, tell::BYE);
            }
        }
        self.stage = Stage::Over;
        self.next_tick = Time::MAX;
        self.events.push_back(SenderEvent::Failed { reason });
    }

    /// The application has written all bytes below `upto` (2^48 at most).
    pub fn offer(&mut self, now: Time, upto: u64) {
        let upto = upto.min((1 << 48) - 1);
        if self.length.is_none() && upto > self.offered {
            self.offered = upto;
            self.offered_at = now;
            self.settle(now);
            self.wake(now);
        }
    }

    /// The stream ends with what has been offered.
    pub fn finish(&mut self, now: Time) {
        if self.length.is_some() {
            return;
        }
        self.length = Some(self.offered);
        // The last packet did not say that it was the last.
        let untold = self.group.head >= self.offered;
        for number in 0..self.peers.list.len() as u32 {
            let peer = &self.peers.list[number as usize];
            let all_sent = match &peer.alone {
                Some(course) => course.head >= self.offered,
                None => untold,
            };
            if peer.is_active() && all_sent {
                self.tell(number, tell::END);
            }
        }
        self.settle(now);
        self.wake(now);
    }

    /// While held nothing goes to everyone: until the labels reach all who are attached.
    pub fn hold(&mut self, now: Time, held: bool) {
        if self.held != held {
            self.held = held;
            self.group.moved = now;
            self.wake(now);
        }
    }

    /// What a packet to everyone costs on the sender's link, counted in packets to one: 1 for labels and multicast, the
    /// number of racks for relays, of receivers for unicast. It decides to whom repairs go.
    pub fn set_copies(&mut self, copies: u32) {
        self.copies = copies.max(1);
    }

    /// All bytes below are needed by nobody.
    #[must_use]
    pub const fn released(&self) -> u64 {
        self.released
    }

    /// The next thing for the application to know.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// All receivers that ever were, in the order in which they came.
    pub fn receivers(&self) -> impl Iterator<Item = ReceiverView> + '_ {
        self.peers.list.iter().map(|peer| ReceiverView {
            host: peer.host,
            place: peer.place,
            have: peer.have,
            status: match peer.state {
                State::Invited => ReceiverStatus::Invited,
                State::Attached => ReceiverStatus::Attached,
                State::Alone => ReceiverStatus::Detached,
                State::Done => ReceiverStatus::Completed,
                State::Gone(reason) => ReceiverStatus::Lost(reason),
            },
            rate: Rate(peer.rate.saturating_mul(8)),
            repairs: peer.repairs,
            slow_reason: peer.slow,
        })
    }

    /// Counters.
    #[must_use]
    pub fn summary(&self) -> SenderSummary {
        SenderSummary {
            rate: Rate(self.group.control.rate().saturating_mul(8)),
            srtt: self.group.control.srtt(),
            congestion_window: self.group.control.window(),
            attached: self.lows.attached,
            detached: self.lows.alone,
            ..self.counters
        }
    }

    /// A receiver is to be told something.
    fn tell(&mut self, number: u32, what: u8) {
        let peer = &mut self.peers.list[number as usize];
        if peer.tell == 0 {
            self.telling.push_back(number);
        }
        peer.tell |= what;
    }

    /// A receiver that has not completed is out.
    fn lose(&mut self, now: Time, number: u32, reason: Reason) {
        let peer = &mut self.peers.list[number as usize];
        if !peer.is_active() && peer.state != State::Invited {
            return;
        }
        peer.state = State::Gone(reason);
        peer.since = now;
        peer.tell = 0;
        peer.alone = None;
        let host = peer.host;
        self.telling.retain(|told| *told != number);
        self.turn.retain(|alone| *alone != number);
        self.stale = true;
        self.last_loss = reason;
        self.events.push_back(SenderEvent::Lost { host, reason });
    }

    /// A receiver gets what everyone gets.
    fn attach(&mut self, now: Time, number: u32) {
        let payload = u64::from(self.config.payload);
        let most = (self.config.window / payload + 2) as usize;
        let peer = &mut self.peers.list[number as usize];
        self.group.cells.remember_from(peer.have / payload, most);
        peer.state = State::Attached;
        peer.alone = None;
        (peer.since, peer.holds) = (now, None);
        (peer.at_best, peer.loss_edge) = (peer.progress, peer.loss_edge.max(self.group.head));
        self.turn.retain(|alone| *alone != number);
        self.events.push_back(SenderEvent::Attached { host: peer.host });
        self.stale = true;
        self.tell(number, tell::MODE);
    }

    /// A receiver gets its bytes alone: all that everyone was sent counts as sent to it, if `caught_up`, otherwise what it
    /// has.
    fn detach(&mut self, now: Time, number: u32, caught_up: bool) {
        let peer = &mut self.peers.list[number as usize];
        let from = if caught_up { self.group.head.max(peer.have) } else { peer.have };
        peer.state = State::Alone;
        (peer.since, peer.holds) = (now, None);
        let mut course = Course::new(now, from, &self.config);
        course.cells.forget_below(peer.have / u64::from(self.config.payload));
        peer.alone = Some(Box::new(course));
        self.turn.push_back(number);
        self.stale = true;
        self.tell(number, tell::MODE);
    }

    /// After any change: counts anew, releases, and finishes.
    fn settle(&mut self, now: Time) {
        if self.stage == Stage::Over {
            return;
        }
        if self.stale {
            self.count();
        }
        let lows = self.lows;
        let nobody = lows.invited + lows.attached + lows.alone == 0;
        let someone_was = !self.peers.list.is_empty();
        let needed = match lows.needed {
            u64::MAX if someone_was && self.config.open => self.offered,
            u64::MAX => self.released,
            // Of a block that is missed in part, all is needed for its parity.
            needed if needed < self.offered => {
                self.blocks.start_of(needed, u64::from(self.config.payload))
            }
            _ => self.offered,
        };
        self.released = self.released.max(needed);
        self.group.head = self.group.head.max(self.released);
        if lows.attached > 0 && lows.have < u64::MAX {
            // Those who resume may have more than was ever sent.
            self.group.head = self.group.head.max(lows.have.min(self.offered));
            self.group.arrived(lows.progress);
            self.group.cells.forget_below(lows.have / u64::from(self.config.payload));
            self.blocks.forget_below(lows.have / u64::from(self.config.payload));
        }
        if self.stage == Stage::Gathering && lows.attached + lows.alone > 0 {
            let late = now >= self.opened.saturating_add(self.config.gather);
            if lows.invited == 0 || late {
                self.stage = Stage::Open;
                self.group.moved = now;
            }
        }
        if nobody && someone_was && (self.length.is_some() || !self.config.open) {
            self.stage = Stage::Over;
            self.next_tick = Time::MAX;
            self.events.push_back(if lows.done > 0 {
                SenderEvent::Finished
            } else {
                SenderEvent::Failed { reason: self.last_loss }
            });
        }
    }

    fn count(&mut self) {
        self.stale = false;
        let mut lows = Lows {
            have: u64::MAX,
            progress: u64::MAX,
            limit: u64::MAX,
            needed: u64::MAX,
            ..Lows::default()
        };
        for peer in &self.peers.list {
            match peer.state {
                State::Invited => {
                    lows.invited += 1;
                    lows.needed = lows.needed.min(self.released);
                }
                State::Attached => {
                    lows.attached += 1;
                    lows.have = lows.have.min(peer.have);
                    lows.progress = lows.progress.min(peer.progress);
                    lows.limit = lows.limit.min(peer.limit);
                    lows.needed = lows.needed.min(peer.have);
                }
                State::Alone => {
                    lows.alone += 1;
                    lows.needed = lows.needed.min(peer.have);
                }
                State::Done => lows.done += 1,
                State::Gone(_) => {}
            }
        }
        self.lows = lows;
    }

    /// Something happened: ticks come often again.
    fn wake(&mut self, now: Time) {
        if self.stage != Stage::Over {
            self.quiet = 0;
            self.next_tick = self.next_tick.min(now.saturating_add(tick::TICK));
        }
    }

    /// How long reports of what was sent wait on their way.
    fn reports(config: &FlowConfig, via_agent: bool) -> Span {
        config.status_interval * if via_agent { 3 } else { 2 }
    }

    /// Everything that could grow is within what the settings allow.
    #[cfg(test)]
    pub(super) fn check_bounds(&self) {
        let peers = self.peers.list.len();
        assert!(peers <= self.config.max_receivers as usize);
        assert!(self.telling.len() <= peers && self.turn.len() <= peers);
        assert!(self.events.is_empty(), "events are taken after each call");
        let cells = (self.config.window / u64::from(self.config.payload) + 2) as usize;
        let [blocks, misses, owed] = self.blocks.sizes();
        let fits = cells / usize::from(self.config.fec_block.max(1)) + 2;
        assert!(blocks <= fits && misses <= peers, "{blocks} of {fits}, {misses} of {peers}");
        assert!(owed <= blocks * (1 + self.copies as usize) * 4, "{owed} of {blocks}");
        let alone = self.peers.list.iter().filter_map(|peer| peer.alone.as_deref());
        for course in alone.chain([&self.group]) {
            let [ring, queue, departures, repeats] = course.sizes();
            assert!(ring <= cells && queue <= cells, "{ring} {queue} of {cells}");
            assert!(departures <= 4096 && repeats <= cells + 1, "{departures} {repeats}");
        }
    }
}

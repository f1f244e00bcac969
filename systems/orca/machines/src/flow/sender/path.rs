//! Receivers that full packets do not reach, although control packets pass: on the path is a link with a smaller MTU that
//! drops them without a report (a black hole, RFC 2923 section 2.1).
//!
//! A receiver that answers but lacks the same byte for [`STALL`] gets that byte in smaller packets, of one size after the
//! other. Once one of them arrives, the receiver is detached for good, and everything else is sent to it in packets of
//! that size: a search as in Packetization Layer Path MTU Discovery (RFC 8899, section 5.2), downwards only. If none
//! arrives, the receiver is lost ([`Reason::Stalled`]). Sizes and times are our choice.

use rackweave_core::{Span, Time};
use rackweave_wire::orca::Reason;

use super::super::{Outgoing, Piece, SenderEvent, SlowReason};
use super::peers::{State, pending};
use super::{Sender, Stage};

/// The time without progress after which smaller packets are tried.
const STALL: Span = Span::from_secs(1);
/// The interval between two of them.
const TRY_INTERVAL: Span = Span::from_ms(100);
/// The time without progress after which a receiver is lost, if every size has been tried [`ROUNDS`] times.
const GIVE_UP: Span = Span::from_secs(10);
const ROUNDS: usize = 3;
/// The sizes of IP packets that are tried: MTUs of common links and tunnels, and lower plateaus of RFC 1191, section 7.1.
const SIZES: [u32; 10] = [4352, 2002, 1500, 1492, 1450, 1400, 1280, 1006, 508, 296];
/// The bytes of an Ethernet frame in addition to the IP packet, with preamble and gap, which [`FlowConfig::overhead`]
/// includes.
///
/// [`FlowConfig::overhead`]: super::super::FlowConfig::overhead
const ETHERNET: u32 = 38;

/// What is known about the path to a receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// The time at which it was last known to make progress, or to have nothing to wait for.
    pub(super) since: Time,
    /// The time of the next smaller packet.
    next: Time,
    tries: usize,
    /// The offset at which the last smaller packet ended, and its length, if it left out the end of its cell.
    tried: Option<(u64, u16)>,
    /// The largest payload that was found to arrive, if full packets do not.
    pub(super) payload: Option<u16>,
}

impl Path {
    pub(super) const fn new(now: Time) -> Self {
        Self { since: now, next: Time::ZERO, tries: 0, tried: None, payload: None }
    }

    /// Records that the receiver has joined again, over the same path.
    pub(super) const fn restart(&mut self, now: Time) {
        (self.since, self.tries, self.tried) = (now, 0, None);
    }

    /// Records that the receiver has all bytes below `have`, which is new.
    pub(super) fn on_progress(&mut self, now: Time, have: u64) {
        if let Some((end, len)) = self.tried
            && end == have
        {
            self.payload = Some(len);
        }
        (self.since, self.tries, self.tried) = (now, 0, None);
    }
}

impl Sender {
    /// Returns the payloads that are tried, largest first.
    fn smaller_payloads(&self) -> impl Iterator<Item = u16> {
        let payload = u32::from(self.config.payload);
        let headers = u32::from(self.config.overhead).saturating_sub(ETHERNET);
        let sizes = SIZES.into_iter().filter(move |size| *size < payload + headers);
        let fitting =
            sizes.filter_map(move |size| size.checked_sub(headers + 16).map(|it| it + 16));
        let half = (payload > 1).then_some(payload / 2).filter(|half| *half < 256);
        fitting.chain(half).map(|size| size as u16)
    }

    /// Checks whether data reaches a receiver. Returns true while smaller packets are tried.
    pub(super) fn check_path(&mut self, now: Time, number: u32) -> bool {
        let peer = &self.peers.list[number as usize];
        let head = peer.channel.as_deref().unwrap_or(&self.group).head;
        if peer.path.payload.is_some() && peer.state == State::Attached {
            return self.narrow(now, number);
        }
        let in_group = peer.channel.is_none();
        let waits = self.stage == Stage::Open
            && peer.have < head
            && !(in_group && self.paused)
            && !self.source.held
            // Without reports it is not the packets' size that matters.
            && now.since(peer.last_heard) < self.config.patience / 2;
        let stalled = now.since(peer.path.since);
        if !waits {
            self.peers.list[number as usize].path.since = now;
            return false;
        }
        if stalled < STALL {
            return false;
        }
        let sizes = self.smaller_payloads().count();
        let peer = &mut self.peers.list[number as usize];
        if stalled >= GIVE_UP && peer.path.tries >= ROUNDS * sizes {
            self.lose_receiver(now, number, Reason::Stalled);
            self.peers.queue_control(number, pending::BYE);
        } else if now >= peer.path.next && !self.path_queue.contains(&number) {
            peer.path.next = now.saturating_add(TRY_INTERVAL);
            self.path_queue.push_back(number);
        }
        true
    }

    /// Detaches a receiver that only smaller packets reach.
    fn narrow(&mut self, now: Time, number: u32) -> bool {
        let peer = &mut self.peers.list[number as usize];
        peer.slow_reason = Some(SlowReason::Path);
        peer.detach_count = peer.detach_count.saturating_add(1);
        let host = peer.host;
        self.detach(now, number, true);
        self.events.push_back(SenderEvent::Detached { host });
        self.tick_soon(now);
        true
    }

    /// Returns a smaller packet with the first byte that a receiver lacks.
    pub(super) fn poll_path(&mut self) -> Option<Outgoing> {
        let payload = u64::from(self.config.payload);
        while let Some(number) = self.path_queue.pop_front() {
            let peer = &self.peers.list[number as usize];
            let head = peer.channel.as_deref().unwrap_or(&self.group).head;
            let (have, tries) = (peer.have, peer.path.tries);
            if !peer.is_active() || have >= head {
                continue;
            }
            let sizes = self.smaller_payloads().count();
            let Some(size) = self.smaller_payloads().nth(tries % sizes.max(1)) else { continue };
            let cell_end = ((have / payload + 1) * payload).min(head);
            let end = cell_end.min(have + u64::from(size));
            let len = (end - have) as u16;
            let peer = &mut self.peers.list[number as usize];
            peer.path.tries += 1;
            peer.path.tried = (end < cell_end).then_some((end, len));
            peer.repairs += u64::from(len);
            self.counters.repaired_one += u64::from(len);
            let end = self.source.length == Some(end);
            let piece = Piece { offset: have, len, repair: true, end, parity: None };
            return Some(Outgoing::One(self.peers.list[number as usize].host, piece));
        }
        None
    }
}

//! Ticks: requests for missing bytes, and the detection of silent peers.

use rackweave_core::{FailReason, HostId, Time};
use rackweave_wire::homa::Body;

use super::Host;
use super::rpc::State;

/// The length of a RESEND for the first packet of a message: `HomaModule` 2023, `homa_get_resend_range`. The sender sends at
/// least a full packet.
const FIRST_PACKET: u32 = 100;

/// The longest pause between two NEED_ACKs is 64 ticks. (Our choice: some questions in the time in which a peer returns.)
const MAX_PAUSE_SHIFT: u16 = 6;

/// What an RPC waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// It waits for nothing from the peer.
    Nothing,
    /// Granted bytes that have not arrived.
    Data,
    /// The first byte of the response.
    Response,
    /// A grant of more bytes of a response or one-way message.
    Grant,
    /// The acknowledgement of a completely sent response or one-way message.
    Ack,
}

impl Host {
    /// Handles one tick of the timer.
    pub(super) fn handle_tick(&mut self, now: Time) {
        self.next_tick = Some(now.saturating_add(self.config.tick));
        let tick = self.tick(now);
        let missed_before = self.missed_ticks;
        self.missed_ticks += tick.saturating_sub(self.last_tick).saturating_sub(1);
        self.last_tick = tick;
        let is_closed = !core::mem::take(&mut self.polled);
        let mut active = false;
        self.start_repair_tick(tick);
        if self.config.one_resend_per_peer {
            self.choose_turns();
        }
        let mut next = 0;
        while let Some(slot) = self.rpcs.next_used(next) {
            next = slot + 1;
            active |= self.tick_rpc(now, (tick, missed_before), is_closed, slot);
        }
        self.start_repairs();
        if !active {
            self.next_tick = None;
        }
    }

    /// Chooses for each peer the RPC that may send a RESEND in this tick: of the due RPCs, the one whose last RESEND is the
    /// oldest (docs/protocols/homa.md#homa-loss). With any fixed order, clients that ask for responses and are answered by BUSY would take
    /// every turn, and the requests whose packets are lost would never get one.
    fn choose_turns(&mut self) {
        self.peers.clear_turns();
        let mut next = 0;
        while let Some(slot) = self.rpcs.next_used(next) {
            next = slot + 1;
            let is_asked = match self.waits_for(slot) {
                Some(Wait::Response | Wait::Grant) => true,
                Some(Wait::Data) => !self.config.paced_resends,
                Some(Wait::Nothing | Wait::Ack) | None => false,
            };
            let rpc = self.rpcs.get(slot);
            if is_asked && rpc.silent.saturating_add(1) >= rpc.next_ask {
                let candidate = (rpc.resent_at, rpc.birth, slot);
                self.peers.propose_turn(rpc.peer, candidate);
            }
        }
    }

    fn waits_for(&self, slot: u32) -> Option<Wait> {
        let rpc = self.rpcs.get(slot);
        let is_client = rpc.id & 1 == 0;
        Some(match &rpc.state {
            // Streams have timers of their own.
            State::Free(_) | State::InService | State::Stream(_) => return None,
            State::Receiving(incoming) => match incoming.received.first_gap(incoming.granted) {
                Some(_) => Wait::Data,
                None => Wait::Nothing,
            },
            State::Sending(outgoing) => {
                if outgoing.is_ready() || outgoing.needs_resend() {
                    Wait::Nothing
                } else if is_client && !rpc.one_way {
                    Wait::Response
                } else if outgoing.next < outgoing.length {
                    Wait::Grant
                } else {
                    Wait::Ack
                }
            }
        })
    }

    /// Handles a tick of one RPC; returns whether it needs further ticks.
    fn tick_rpc(
        &mut self,
        now: Time,
        (tick, missed_before): (u64, u64),
        is_closed: bool,
        slot: u32,
    ) -> bool {
        let Some(wait) = self.waits_for(slot) else { return false };
        let patience = self.config.patience();
        let request_ack_ticks = self.config.request_ack_ticks;
        let rpc = self.rpcs.get_mut(slot);
        if wait == Wait::Nothing {
            // A message that waits for others of this host waits as long as it takes, but not one that the link does not take. (Our
            // choice.)
            let is_stuck = is_closed && matches!(rpc.state, State::Sending(_));
            rpc.silent = if is_stuck { rpc.silent.saturating_add(1) } else { 0 };
            // A patience that the counter does not hold has no end here.
            let is_hopeless = u32::from(rpc.silent) >= patience;
            if is_hopeless {
                self.give_up(now, slot);
            }
            return !is_hopeless;
        }
        if wait == Wait::Data
            && let State::Receiving(incoming) = &rpc.state
            && self.config.paced_resends
            && self.repairs.is_starved(incoming.priority)
        {
            return true;
        }
        if rpc.silent == 0 {
            // The pause before this tick may have begun after the peer's last packet.
            rpc.missed_before = missed_before;
        }
        rpc.silent = rpc.silent.saturating_add(1);
        let (host, id, one_way, silent) = (rpc.host, rpc.id, rpc.one_way, rpc.silent);
        if rpc.refused > 0 && silent >= (rpc.refused - 1).saturating_add(self.config.resend_ticks) {
            // The peer has forgotten finished ids above this one (see `Peer::floor`). It cannot say whether it has received the
            // message, but sends no acknowledgement after a refusal, and one that it had sent before would have arrived by now. (Our
            // choice: the module has no refusals.)
            self.fail(now, slot, FailReason::PeerForgot);
            return false;
        }
        if wait == Wait::Ack {
            // NEED_ACK is sent at each tick from `request_ack_ticks` on (docs/protocols/homa.md#homa-loss). The limit
            // is our choice: a peer that never answers must not be asked forever. So is the growing pause after two questions:
            // those of many RPCs of a dead peer would keep the host from answering others, and a forged request would be answered by
            // thousands of packets.
            if u32::from(silent.saturating_sub(request_ack_ticks))
                >= patience.min(u32::from(u16::MAX))
            {
                self.give_up(now, slot);
                return false;
            }
            let waits = rpc.busy > 0 || rpc.asked > 0;
            let ask_at = if waits { rpc.next_ask } else { request_ack_ticks };
            if silent >= ask_at {
                rpc.asked = rpc.asked.saturating_add(1);
                let pause = 1 << (rpc.asked.saturating_sub(2)).min(MAX_PAUSE_SHIFT);
                rpc.next_ask = silent.saturating_add(pause);
                self.send_control(host, id, one_way, Body::NeedAck);
            }
            return true;
        }
        if !self.config.resends {
            return true;
        }
        if wait == Wait::Data && self.config.paced_resends {
            let hopeless = self.repair_at_tick(slot);
            if hopeless {
                self.give_up(now, slot);
            }
            return !hopeless;
        }
        if self.config.one_resend_per_peer {
            return self.ask_in_turn(now, tick, slot, wait);
        }
        let rpc = self.rpcs.get_mut(slot);
        if silent < rpc.next_ask {
            return true;
        }
        if rpc.asked >= self.config.timeout_resends {
            self.give_up(now, slot);
            return false;
        }
        rpc.asked += 1;
        let asked = rpc.asked;
        let gap = self.config.resend_interval.max(1).saturating_add(self.config.spread(id, asked));
        rpc.next_ask = silent.saturating_add(gap);
        self.count_timeout(wait);
        self.ask(slot, wait);
        true
    }

    /// Handles a tick of an RPC that waits for its peer, by the rules of `HomaModule` 2023 (`homa_timer.c`,
    /// `homa_check_rpc`): see [`super::Config::one_resend_per_peer`]. Returns whether the RPC still exists.
    fn ask_in_turn(&mut self, now: Time, tick: u64, slot: u32, wait: Wait) -> bool {
        let (interval, timeout_resends) =
            (u64::from(self.config.resend_interval), self.config.timeout_resends);
        let rpc = self.rpcs.get_mut(slot);
        let peer = self.peers.get_mut(rpc.peer);
        // The peer is found dead one tick before an RPC would be due, and without regard to the interval.
        if rpc.silent.saturating_add(1) < rpc.next_ask {
            return true;
        }
        if peer.asked >= timeout_resends {
            peer.asked = 0;
            let host = rpc.host;
            self.give_up_peer(now, host);
            return false;
        }
        let is_early = peer.asked_at.is_some_and(|at| tick.saturating_sub(at) < interval);
        let is_turn = peer.turn.is_some_and(|(.., chosen)| chosen == slot);
        if rpc.silent < rpc.next_ask || is_early || !is_turn {
            return true;
        }
        peer.asked = peer.asked.saturating_add(1);
        peer.asked_at = Some(tick);
        rpc.asked = rpc.asked.saturating_add(1);
        rpc.resent_at = tick;
        self.count_timeout(wait);
        self.ask(slot, wait);
        true
    }

    /// Counts a request for data that is late. Other requests ask for the state of a message.
    fn count_timeout(&mut self, wait: Wait) {
        self.recovery.timeouts += u64::from(matches!(wait, Wait::Data | Wait::Response));
    }

    /// Requests all gaps of a message, or the first (see [`super::Config::resend_all_gaps`]).
    pub(super) fn ask_for_data(&mut self, slot: u32) {
        self.ask(slot, Wait::Data);
    }

    /// Sends the request that matches what the RPC waits for.
    fn ask(&mut self, slot: u32, wait: Wait) {
        let rpc = self.rpcs.get(slot);
        let (host, id, one_way) = (rpc.host, rpc.id, rpc.one_way);
        match (wait, &rpc.state) {
            (Wait::Data, State::Receiving(incoming)) => {
                let most = if self.config.resend_all_gaps { usize::MAX } else { 1 };
                let gaps = incoming.received.gaps(incoming.granted).take(most);
                let bodies: Vec<_> =
                    gaps.map(|gap| self.resend(gap.start, gap.end - gap.start)).collect();
                for body in bodies {
                    self.send_control(host, id, one_way, body);
                }
            }
            // Nothing was received. The module requests one packet of it in 2023 (`homa_get_resend_range`), and everything,
            // by length -1, in 2026 (`homa_request_retrans`).
            (Wait::Response, _) => {
                let length = match (self.config.paced_resends, self.config.resend_all_gaps) {
                    // Our choice: when many responses are lost at once, one packet of each is enough to restart
                    // them.
                    (true, _) => self.config.max_payload,
                    (false, true) => u32::MAX,
                    (false, false) => FIRST_PACKET,
                };
                let body = self.resend(0, length);
                self.send_control(host, id, one_way, body);
            }
            // Our choice: a receiver that does not know the message would never grant it.
            _ => self.send_control(host, id, one_way, Body::NeedAck),
        }
    }

    fn give_up(&mut self, now: Time, slot: u32) {
        let unknown = self.rpcs.get(slot).unknown;
        let reason = if unknown { FailReason::PeerForgot } else { FailReason::PeerSilent };
        self.fail(now, slot, reason);
    }

    /// Fails all RPCs with a peer that is declared dead.
    fn give_up_peer(&mut self, now: Time, host: HostId) {
        let mut next = 0;
        while let Some(slot) = self.rpcs.next_used(next) {
            next = slot + 1;
            if self.rpcs.get(slot).host == host && self.waits_for(slot).is_some() {
                self.give_up(now, slot);
            }
        }
    }
}

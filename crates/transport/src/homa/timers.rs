//! Ticks: requests for missing bytes, and the detection of silent peers.

use rackweave_core::{FailReason, HostId, Time};
use rackweave_wire::homa::Body;

use super::Host;
use super::rpc::State;

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
        let mut active = false;
        self.start_repair_tick(tick);
        if self.config.one_resend_per_peer {
            self.choose_turns();
        }
        for slot in 0..self.rpcs.slots() {
            active |= self.tick_rpc(now, tick, slot);
        }
        self.start_repairs();
        if !active {
            self.next_tick = None;
        }
    }

    /// Chooses for each peer the RPC that may send a RESEND in this tick: of those that are due, the one whose last RESEND is the
    /// oldest (docs/sources.md#homa-loss). With any fixed order, clients that ask for responses and are answered by BUSY would take
    /// every turn, and the requests whose packets are lost would never get one.
    fn choose_turns(&mut self) {
        self.peers.clear_turns();
        for slot in 0..self.rpcs.slots() {
            let is_asked = match self.waits_for(slot) {
                Some(Wait::Response | Wait::Grant) => true,
                Some(Wait::Data) => !self.config.paced_resends,
                Some(Wait::Nothing | Wait::Ack) | None => false,
            };
            let rpc = self.rpcs.get(slot);
            if is_asked && rpc.silent.saturating_add(1) >= rpc.next_ask {
                let candidate = (rpc.resent_at, rpc.birth, slot);
                let turn = &mut self.peers.get_mut(rpc.peer).turn;
                *turn = Some(turn.map_or(candidate, |other| other.min(candidate)));
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
    fn tick_rpc(&mut self, now: Time, tick: u32, slot: u32) -> bool {
        let Some(wait) = self.waits_for(slot) else { return false };
        let patience = self.config.patience();
        let interval = self.config.resend_interval;
        let timeout_resends = self.config.timeout_resends;
        let request_ack_ticks = self.config.request_ack_ticks;
        let one_resend_per_peer = self.config.one_resend_per_peer;
        let rpc = self.rpcs.get_mut(slot);
        if wait == Wait::Nothing {
            rpc.silent = 0;
            return true;
        }
        if wait == Wait::Data
            && let State::Receiving(incoming) = &rpc.state
            && self.config.paced_resends
            && self.repairs.is_starved(incoming.priority)
        {
            return true;
        }
        rpc.silent = rpc.silent.saturating_add(1);
        let (host, id, one_way, silent) = (rpc.host, rpc.id, rpc.one_way, rpc.silent);
        if wait == Wait::Ack {
            // NEED_ACK is sent at each tick from `request_ack_ticks` on (docs/sources.md#homa-loss). The limit
            // is our choice: a peer that never answers must not be asked forever.
            if u32::from(rpc.asked) >= patience.min(u32::from(u16::MAX)) {
                self.give_up(now, slot);
                return false;
            }
            let ask_at = if rpc.busy > 0 { rpc.next_ask } else { request_ack_ticks };
            if silent >= ask_at {
                rpc.asked = rpc.asked.saturating_add(1);
                self.send_control(host, id, one_way, Body::NeedAck);
            }
            return true;
        }
        if wait == Wait::Data && self.config.paced_resends {
            let hopeless = self.repair_at_tick(slot);
            if hopeless {
                self.give_up(now, slot);
            }
            return !hopeless;
        }
        if silent < rpc.next_ask {
            return true;
        }
        let peer = self.peers.get_mut(rpc.peer);
        if rpc.asked >= timeout_resends {
            self.give_up(now, slot);
            return false;
        }
        if one_resend_per_peer {
            if peer.asked >= timeout_resends {
                self.give_up_peer(now, host);
                return false;
            }
            let is_early =
                peer.asked > 0 && tick.saturating_sub(peer.asked_at) < u32::from(interval);
            let is_turn = peer.turn.is_some_and(|(.., chosen)| chosen == slot);
            if is_early || !is_turn {
                // Another RPC with this peer has an outstanding RESEND, or its turn: this one tries again at the next tick.
                rpc.silent -= 1;
                return true;
            }
        }
        peer.asked = peer.asked.saturating_add(1);
        peer.asked_at = tick;
        rpc.asked += 1;
        rpc.resent_at = tick;
        let asked = rpc.asked;
        let gap = interval.max(1).saturating_add(self.config.spread(id, asked));
        rpc.next_ask = silent.saturating_add(gap);
        self.ask(slot, wait);
        true
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
            // Length -1 means that nothing was received (docs/sources.md#homa-loss).
            (Wait::Response, _) => {
                // Our choice: when many responses are lost at once, one packet of each is enough to restart
                // them.
                let length =
                    if self.config.paced_resends { self.config.max_payload } else { u32::MAX };
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
        for slot in 0..self.rpcs.slots() {
            if self.rpcs.get(slot).host == host && self.waits_for(slot).is_some() {
                self.give_up(now, slot);
            }
        }
    }
}

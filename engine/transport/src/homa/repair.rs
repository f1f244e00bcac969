//! Loss repair: it distinguishes lost packets from late ones, and paces RESENDs by arrivals. (Our choice,
//! because the kernel module does neither; see [`super::Config::paced_resends`].)
//!
//! Packets of low priority wait in the switch while those of higher priority fill the link. A RESEND for them
//! causes duplicates, so that the queue never drains. For this reason silence counts only in ticks in which the
//! link had room for the priority at which a message was granted.
//!
//! When a full buffer has dropped packets of many messages at once, a receiver that requests all of them in one
//! tick makes all senders retransmit at line rate and at the highest priority. These packets overflow the
//! buffer again, and scheduled packets are dropped with them. For this reason requested bytes count as
//! outstanding until they arrive, at most one window of them is outstanding, and each arrival permits the next
//! request, as grants pace first transmissions.

use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use super::config::MAX_PRIORITIES;
use super::rpc::{Incoming, State};
use super::{Control, Host};

/// Number of ticks after which requested bytes count as lost again. Our choice: a request that is sent late in
/// a tick has one whole tick to be answered.
const LOST_AFTER: u64 = 2;

/// A response that waits for its repair is given up after this multiple of the patience with a silent peer,
/// because too many other messages are repaired before it. A request or one-way message is given up after one
/// patience: its live sender learns by UNKNOWN that the message is not known, and restarts it. Four is our
/// choice: it leaves time for earlier repairs, and bounds the wait.
const RESPONSE_PATIENCE: u32 = 4;

/// The bytes that RESENDs have requested.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Repairs {
    /// Bytes of all messages that are requested and not received.
    asked: u64,
    /// Messages whose gaps are to be requested; the next one is last.
    due: Vec<u32>,
    /// Bytes of data that arrived since the last tick, by priority.
    arrived_bytes: [u64; MAX_PRIORITIES as usize],
    /// The number of that tick.
    tick: u64,
    /// Priorities below this one had no room on the link before the last tick.
    starved_below: u8,
}

impl Repairs {
    /// Counts requested bytes as arrived, or as no longer expected.
    #[inline]
    pub(super) fn release(&mut self, asked: u32) {
        self.asked -= u64::from(asked);
    }

    /// Resets the requests of a message whose sender has nothing to send now, or whose requested bytes were
    /// lost.
    pub(super) fn forget_requested(&mut self, incoming: &mut Incoming) {
        self.release(core::mem::take(&mut incoming.asked));
        incoming.asked_to = 0;
    }

    /// Counts an arriving data packet.
    #[inline]
    pub(super) fn data_arrived(&mut self, priority: u8, wire_bytes: u32) {
        self.arrived_bytes[usize::from(priority % MAX_PRIORITIES)] += u64::from(wire_bytes);
    }

    /// Whether packets of this priority may still wait behind those of higher ones.
    #[inline]
    pub(super) const fn is_starved(&self, priority: u8) -> bool {
        priority < self.starved_below
    }

    /// Whether messages wait for their gaps to be requested.
    #[inline]
    pub(super) const fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    #[cfg(test)]
    pub(super) const fn outstanding(&self) -> u64 {
        self.asked
    }
}

impl Host {
    /// Starts a tick, in which the messages that are due for repair are collected.
    pub(super) fn start_repair_tick(&mut self, tick: u64) {
        self.repairs.tick = tick;
        self.repairs.due.clear();
        // With control packets, the link is full at slightly less data.
        let full = self.config.link.bytes_in(self.config.tick) / 8 * 7;
        let mut above = 0;
        self.repairs.starved_below = 0;
        for (level, bytes) in (0..MAX_PRIORITIES).zip(&mut self.repairs.arrived_bytes).rev() {
            above += core::mem::take(bytes);
            if above >= full {
                self.repairs.starved_below = level;
                break;
            }
        }
        self.repairs.arrived_bytes = [0; MAX_PRIORITIES as usize];
    }

    /// Handles a tick for a message that lacks granted bytes. Returns whether to give it up.
    pub(super) fn repair_at_tick(&mut self, slot: u32) -> bool {
        let (patience, timeout_resends) = (self.config.patience(), self.config.timeout_resends);
        let rpc = self.rpcs.get_mut(slot);
        let (rpc_id, silent) = (rpc.id, rpc.silent);
        let (asked, next_ask) = (rpc.asked, rpc.next_ask);
        let State::Receiving(incoming) = &mut rpc.state else { return false };
        if incoming.asked > 0 && self.repairs.tick.saturating_sub(incoming.asked_at) >= LOST_AFTER {
            self.repairs.forget_requested(incoming);
        }
        if incoming.asked_to == 0 {
            if silent < next_ask {
                return false;
            }
            let is_client = rpc_id & 1 == 0;
            let most =
                if is_client { patience.saturating_mul(RESPONSE_PATIENCE) } else { patience };
            if asked >= timeout_resends || u32::from(silent) >= most {
                return true;
            }
        } else if asked > 0 {
            // The repair continues when the first of the requested bytes arrives.
            return false;
        }
        self.repairs.due.push(slot);
        false
    }

    /// Orders the collected messages and starts their repair. Messages whose last request was not answered come
    /// last; the others are in SRPT order.
    pub(super) fn start_repairs(&mut self) {
        let rpcs = &self.rpcs;
        self.repairs.due.sort_unstable_by_key(|&slot| {
            let rpc = rpcs.get(slot);
            let left = match &rpc.state {
                State::Receiving(incoming) => incoming.left,
                _ => 0,
            };
            core::cmp::Reverse((rpc.asked, left, rpc.birth))
        });
        self.repair();
    }

    /// Requests as many bytes as may be outstanding.
    pub(super) fn repair(&mut self) {
        let most = self.config.repair_window();
        while self.repairs.asked < most
            && let Some(&slot) = self.repairs.due.last()
        {
            self.repair_message(slot, most);
        }
    }

    /// Requests gaps of a message until `most` bytes are outstanding over all messages. Removes the message
    /// from the list if no gap remains.
    fn repair_message(&mut self, slot: u32, most: u64) {
        let config = &self.config;
        let packet = config.max_payload;
        let rpc = self.rpcs.get_mut(slot);
        let (host, id, one_way, asked_before) = (rpc.host, rpc.id, rpc.one_way, rpc.asked);
        let is_due = rpc.silent >= rpc.next_ask;
        let mut all = true;
        if let State::Receiving(incoming) = &mut rpc.state
            && (is_due || incoming.asked_to > 0)
        {
            let begins = incoming.asked_to == 0;
            if begins {
                incoming.ask_until = incoming.granted;
            }
            let mut end = incoming.ask_until;
            // One packet suffices to detect whether a sender that did not answer is alive.
            if begins && asked_before > 0 {
                end = incoming.received.first_missing(0).saturating_add(packet).min(end);
            }
            for gap in incoming.received.gaps(end) {
                let start = gap.start.max(incoming.asked_to);
                if start >= gap.end {
                    continue;
                }
                if self.repairs.asked >= most {
                    all = false;
                    break;
                }
                let room = (most - self.repairs.asked).min(u64::from(u32::MAX)) as u32;
                let length = room.div_ceil(packet).saturating_mul(packet).min(gap.end - start);
                self.repairs.asked += u64::from(length);
                incoming.asked += length;
                incoming.asked_to = start + length;
                let priority = config.num_priorities - 1;
                let body = Body::Resend { offset: start, length, priority };
                if self.control.len() < config.max_control as usize {
                    let header = Header { id: Id64::new(id), one_way, body };
                    self.control.push_back(Control::Other { dst: host, header });
                }
                if start + length < gap.end {
                    all = false;
                    break;
                }
            }
            incoming.asked_at = self.repairs.tick;
            if all {
                incoming.asked_to = if end < incoming.ask_until { end } else { 0 };
            }
            if begins {
                self.recovery.timeouts += 1;
                rpc.asked += 1;
                let gap =
                    config.resend_interval.max(1).saturating_add(config.spread(id, rpc.asked));
                rpc.next_ask = rpc.silent.saturating_add(gap);
            }
        }
        if all {
            self.repairs.due.pop();
        }
    }
}

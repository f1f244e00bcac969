//! Repair of losses: distinguishes lost packets from late ones, and paces RESENDs by what arrives (ours;
//! [`super::Config::paced_resends`]).
//!
//! Packets of low priority wait in the switch while those of higher priority fill the link. A RESEND for them
//! brings duplicates, and the queue never drains. So silence counts only in ticks in which the link had
//! room for the priority at which a message was granted.
//!
//! When a full buffer has dropped packets of many messages at once, a receiver that asks for all of them in one
//! tick makes all senders retransmit at line rate and at the highest priority. They overflow the buffer
//! again, and scheduled packets are dropped with them. So requested bytes count as outstanding until they
//! arrive, at most one window of them is outstanding, and each arrival allows the next request, as grants
//! pace first transmissions.

use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use super::config::MAX_PRIORITIES;
use super::rpc::{Incoming, State};
use super::{Control, Host};

/// Ticks after which requested bytes count as lost again. Ours: a request that is sent late
/// in a tick has one whole tick to be answered.
const LOST_AFTER: u32 = 2;

/// A response that has waited for its repair for this multiple of the patience with a silent peer is given up:
/// too many others are repaired first. A request or one-way message is given up after one: its sender, if it
/// is alive, learns by UNKNOWN that it is not known, and restarts it. Four is ours: it leaves time for
/// the repairs before it, and still bounds the wait.
const PATIENCES: u32 = 4;

/// The bytes that RESENDs have requested.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Bytes requested and not received, of all messages.
    asked: u64,
    /// Messages whose gaps are to be requested, the next one last.
    due: Vec<u32>,
    /// The number of the last tick.
    tick: u32,
    /// Bytes of data that arrived since then, by priority.
    arrived_bytes: [u64; MAX_PRIORITIES as usize],
    /// Levels below this one had no room on the link before the last tick.
    starved_below: u8,
}

impl Repairs {
    /// Requested bytes have arrived, or are no longer expected.
    #[inline]
    pub(super) fn release(&mut self, asked: u32) {
        self.asked -= u64::from(asked);
    }

    /// The sender has answered that it has nothing of the message to send now, or its bytes were lost again.
    pub(super) fn forget_requested(&mut self, incoming: &mut Incoming) {
        self.release(core::mem::take(&mut incoming.asked));
        incoming.asked_to = 0;
    }

    /// A data packet has arrived.
    #[inline]
    pub(super) fn data_arrived(&mut self, priority: u8, wire_bytes: u32) {
        self.arrived_bytes[usize::from(priority % MAX_PRIORITIES)] += u64::from(wire_bytes);
    }

    /// Whether packets of this priority may still be waiting for those of higher ones.
    #[inline]
    pub(super) const fn is_starved(&self, priority: u8) -> bool {
        priority < self.starved_below
    }

    /// Whether messages wait for their turn.
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
    /// A tick begins: collects which messages are due for repair.
    pub(super) fn begin_repair_tick(&mut self, tick: u32) {
        self.repairs.tick = tick;
        self.repairs.due.clear();
        // A link that carries control packets, too, is full with a little less of data.
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

    /// A message lacks granted bytes at a tick. Returns whether to give it up.
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
            let most = if is_client { patience.saturating_mul(PATIENCES) } else { patience };
            if asked >= timeout_resends || u32::from(silent) >= most {
                return true;
            }
        } else if asked > 0 {
            // It continues when the first of the requested bytes arrives.
            return false;
        }
        self.repairs.due.push(slot);
        false
    }

    /// All messages have had the tick. Those whose last request was not answered come last, and otherwise
    /// the one with the fewest bytes remaining first.
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

    /// Asks for as much as may be asked for.
    pub(super) fn repair(&mut self) {
        let most = self.config.repair_window();
        while self.repairs.asked < most
            && let Some(&slot) = self.repairs.due.last()
        {
            self.repair_message(slot, most);
        }
    }

    /// Asks for the gaps of a message, up to `most` bytes of all, and strikes it from the list if
    /// these were all.
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
            // Of one that did not answer, a packet is enough to see whether it lives.
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

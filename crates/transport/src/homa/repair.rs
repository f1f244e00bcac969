//! What is lost is told from what is late, and asked for at the pace at which it can come (ours;
//! [`super::Config::paced_resends`]).
//!
//! Packets of low priority wait in the switch for as long as those of higher priority fill the link: to ask
//! for them brings them twice, and the queue never ends. So silence counts only in ticks in which the
//! link had room for the priority at which a message was granted.
//!
//! Where a full buffer has cut into many messages at once, a receiver that asks for all of it at one
//! tick has the same bytes sent at line rate by all senders at once, at the highest priority: they
//! overflow the buffer again and take scheduled packets with them. So bytes that were asked for
//! count until they are here, one window of them is asked for at a time, and each that comes lets
//! the next be asked for: the way in which grants pace what is sent first.

use rackweave_wire::Id64;
use rackweave_wire::homa::{Body, Header};

use super::config::MAX_PRIORITIES;
use super::rpc::{Incoming, State};
use super::{Control, Host};

/// Ticks after which bytes that were asked for are taken for lost.
const LOST_AFTER: u32 = 2;

/// A response whose turn to be repaired has not come for so many times the patience with a silent peer
/// is given up: there are too many others. A request or one-way message is given up sooner: its
/// sender, if it lives, hears that it is not known, and begins anew.
const PATIENCES: u32 = 4;

/// What is asked for.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Bytes asked for and not here, of all messages.
    asked: u64,
    /// Messages whose gaps are to be asked for, the next one last.
    due: Vec<u32>,
    /// The last tick.
    tick: u32,
    /// Bytes of data that came since then, by priority.
    came: [u64; MAX_PRIORITIES as usize],
    /// Levels below this one had no room on the link before the last tick.
    starved_below: u8,
}

impl Repairs {
    /// Bytes that were asked for are here, or are not waited for any more.
    #[inline]
    pub(super) fn release(&mut self, asked: u32) {
        self.asked -= u64::from(asked);
    }

    /// The sender has said that it has nothing of it to send now.
    pub(super) fn is_late(&mut self, incoming: &mut Incoming) {
        self.release(core::mem::take(&mut incoming.asked));
        incoming.asked_to = 0;
    }

    /// A data packet has come.
    #[inline]
    pub(super) fn came(&mut self, priority: u8, wire_bytes: u32) {
        self.came[usize::from(priority % MAX_PRIORITIES)] += u64::from(wire_bytes);
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
    /// A tick begins: it will be found out whose turn it is.
    pub(super) fn begin_repairs(&mut self, tick: u32) {
        self.repairs.tick = tick;
        self.repairs.due.clear();
        // A link that carries control packets, too, is full with a little less of data.
        let full = self.config.link.bytes_in(self.config.tick) / 8 * 7;
        let mut above = 0;
        self.repairs.starved_below = 0;
        for (level, came) in (0..MAX_PRIORITIES).zip(&mut self.repairs.came).rev() {
            above += core::mem::take(came);
            if above >= full {
                self.repairs.starved_below = level;
                break;
            }
        }
        self.repairs.came = [0; MAX_PRIORITIES as usize];
    }

    /// A message lacks granted bytes at a tick. Whether it is to be given up.
    pub(super) fn repair_at_tick(&mut self, slot: u32) -> bool {
        let (patience, timeout_resends) = (self.config.patience(), self.config.timeout_resends);
        let rpc = self.rpcs.get_mut(slot);
        let (rpc_id, silent) = (rpc.id, rpc.silent);
        let (asked, next_ask) = (rpc.asked, rpc.next_ask);
        let State::Receiving(incoming) = &mut rpc.state else { return false };
        if incoming.asked > 0 && self.repairs.tick.saturating_sub(incoming.asked_at) >= LOST_AFTER {
            self.repairs.is_late(incoming);
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
            // It goes on when the first of what was asked for is here.
            return false;
        }
        self.repairs.due.push(slot);
        false
    }

    /// All messages have had the tick. Who was asked in vain is last, and the shortest remaining is
    /// first.
    pub(super) fn repairs_found(&mut self) {
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

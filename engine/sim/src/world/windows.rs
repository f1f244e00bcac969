//! Runs in windows of time, which several threads can share.
//!
//! A window is as long as the fabric's lookahead ([`crate::Fabric::lookahead`]): what happens in it at one shard reaches the
//! other shards only after it. All runs that could use several threads are divided into windows, with one thread too, and the
//! windows are multiples of their length. So the rules below give the same results for any number of shards.
//!
//! - The run ends at the end of the window in which the last measured message ends.
//! - The id of a message contains its serial number, not its slot in memory: the slots that are free depend on when the
//!   receivers of earlier messages got them.
//! - A receiver learns stream and sender of a message from its id, and a server answers a request also if its client has given it up. The sender's record of the end is made at once if both
//!   are in one shard, otherwise after the window. In an open loop this changes nothing else.
//! - A failure is recorded at the end of its window, with its time, unless the message completes in that window. (Our choice:
//!   both ends can fail a message, or one end fail it while the other receives it, and neither knows at that moment.)
//! - The largest number of packets in the network is that of the ends of windows.

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{HostId, MessageId, Span, Time};
use rackweave_switch::fabric::Partition;
use rackweave_workload::app::{MessageEnd, MessageKey, Origin, SerialIds};

use super::observe::Observed;
use super::{Control, World};
use crate::model::Model;
use crate::result::End;

/// How a run is divided.
#[derive(Clone, Debug)]
pub struct Division {
    /// The length of a window.
    pub window: Span,
    /// The shards, and the number of the one that the world is; `None` if it is all of the fabric.
    pub shard: Option<(Arc<Partition>, u32)>,
}

impl Division {
    /// Whether a host is in this world.
    #[must_use]
    pub fn has(&self, host: HostId) -> bool {
        self.shard.as_ref().is_none_or(|(partition, number)| partition.of_host(host) == *number)
    }
}

/// Events of the times up to `last` are handled; then all events before `end` have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) last: Time,
    pub(super) end: Time,
}

impl Window {
    /// The window of an event at this time, in a run up to `limit`.
    pub(super) fn of(at: Time, length: Span, limit: Time) -> Self {
        let number = at.ticks() / length.ticks();
        let end = Time::from_ticks((number + 1).saturating_mul(length.ticks()));
        if end > limit {
            return Self { last: limit, end: limit };
        }
        Self { last: Time::from_ticks(end.ticks() - 1), end }
    }
}

/// The end of a message, for the host that started it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    host: HostId,
    serial: u64,
    at: Time,
    end: MessageEnd,
}

/// The slots of one host's messages in progress, by serial number.
#[derive(Debug, Default)]
struct Slots {
    /// The serial number of the first of them.
    first: u64,
    /// [`NONE`] for messages that have ended.
    slots: VecDeque<u32>,
}

const NONE: u32 = u32::MAX;

impl Slots {
    fn insert(&mut self, key: MessageKey) {
        debug_assert_eq!(key.serial(), self.first + self.slots.len() as u64);
        self.slots.push_back(key.slot() as u32);
    }

    fn remove(&mut self, key: MessageKey) {
        let index = key.serial().wrapping_sub(self.first) as usize;
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = NONE;
        }
        while self.slots.front() == Some(&NONE) {
            self.slots.pop_front();
            self.first += 1;
        }
    }

    fn key(&self, serial: u64) -> Option<MessageKey> {
        let slot = *self.slots.get(serial.wrapping_sub(self.first) as usize)?;
        (slot != NONE).then(|| MessageKey::new(serial, u64::from(slot)))
    }
}

/// What applications keep in a run in windows.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) division: Division,
    ids: SerialIds,
    slots: Vec<Slots>,
    /// Failures, and ends of messages of other shards, until the end of the window.
    pub(super) ended: Vec<Ended>,
    /// Most packets in the network at the end of a window.
    pub(super) peak_packets: u64,
}

impl Windows {
    /// `numbers` is how many numbers messages of collectives have.
    pub(super) fn new(division: Division, hosts: u32, streams: u16, numbers: u64) -> Self {
        Self {
            division,
            ids: SerialIds::new(hosts, streams).with_numbers(numbers),
            slots: std::iter::repeat_with(Slots::default).take(hosts as usize).collect(),
            ended: Vec::new(),
            peak_packets: 0,
        }
    }

    /// The id of a message that a host starts.
    #[inline]
    pub(super) fn id(&self, host: HostId, stream: u16, key: MessageKey, number: u64) -> MessageId {
        self.ids.id(host, stream, key, number)
    }

    /// Whether ids contain the numbers of messages in collectives.
    pub(super) const fn have_numbers(&self) -> bool {
        self.ids.have_numbers()
    }

    /// What the receiver of a message knows of it.
    #[inline]
    pub(super) fn origin_at(&self, host: HostId, id: MessageId) -> Option<Origin> {
        let key = self.key_at(host, id)?;
        let (_, stream, _) = self.ids.origin(id);
        Some(Origin { stream, key, place: None, number: self.ids.number(id) })
    }

    /// The host that started a message or the exchange that it belongs to, and the stream.
    #[inline]
    pub(super) fn client(&self, id: MessageId) -> (HostId, u16) {
        let (host, stream, _) = self.ids.origin(id);
        (host, stream)
    }

    /// The key of a message at the host that receives it. Servers do not use its slot, and do not know whether the client has given
    /// it up; `None` if that is so at the client, which receives a response.
    fn key_at(&self, host: HostId, id: MessageId) -> Option<MessageKey> {
        let (client, _, serial) = self.ids.origin(id);
        if id.is_response() && host == client {
            return self.slots[client.0 as usize].key(serial);
        }
        Some(MessageKey::new(serial, 0))
    }

    /// The key of a message of this host in progress.
    pub(super) fn own_key(&self, host: HostId, id: MessageId) -> Option<MessageKey> {
        let (client, _, serial) = self.ids.origin(id);
        self.slots.get(client.0 as usize).filter(|_| client == host)?.key(serial)
    }

    pub(super) fn started(&mut self, host: HostId, key: MessageKey) {
        self.slots[host.0 as usize].insert(key);
    }

    pub(super) fn forget(&mut self, host: HostId, key: MessageKey) {
        self.slots[host.0 as usize].remove(key);
    }

    /// Notes the failure of a message, at either of its ends.
    pub(super) fn failed(&mut self, at: Time, id: MessageId, end: MessageEnd) {
        let (host, _, serial) = self.ids.origin(id);
        self.ended.push(Ended { host, serial, at, end });
    }
}

impl Ended {
    pub(super) const fn is_failure(&self) -> bool {
        matches!(self.end, MessageEnd::Failed(_))
    }

    /// The shard of the host that started the message.
    pub(super) fn shard(&self, partition: &Partition) -> u32 {
        partition.of_host(self.host)
    }
}

impl<M: Model> World<'_, M> {
    /// Records that the application of a host has a message that `sender` started.
    pub(super) fn received_in_window(&mut self, sender: HostId, key: MessageKey) {
        let (at, serial) = (self.net.now(), key.serial());
        let ended = Ended { host: sender, serial, at, end: MessageEnd::Completed };
        let Some(windows) = &mut self.apps.windows else { return };
        if windows.division.has(sender) {
            self.end_message(ended);
        } else {
            windows.ended.push(ended);
        }
    }

    /// Ends a message at the host that started it, unless it has ended.
    fn end_message(&mut self, ended: Ended) {
        let Ended { host, serial, at, end } = ended;
        let Some(windows) = &self.apps.windows else { return };
        let Some(key) = windows.slots[host.0 as usize].key(serial) else { return };
        match end {
            MessageEnd::Completed => self.apps.app(host).received_by_peer(at, key),
            MessageEnd::Failed(reason) => self.apps.app(host).fail(at, key, reason),
        }
        self.after_app(host);
    }

    /// As [`World::without_steady_state`], at the end of a window; the run then ends there.
    pub(super) fn without_steady_state_at(&mut self, reached: Time, backlog: u64) -> Option<End> {
        if reached == Time::ZERO {
            return None;
        }
        let end = self.without_steady_state(reached, backlog)?;
        self.net.advance(reached);
        Some(end)
    }

    /// Handles the events of a window.
    pub(super) fn run_window(&mut self, window: Window) {
        self.net.set_window(window.last);
        while self.step(window.last) {}
        self.give_up_lost(window.end);
    }

    /// Records the ends of messages that were not recorded in the window: ends that other shards report, and failures.
    pub(super) fn close_window(&mut self, window: Window, mut reports: Vec<Ended>) {
        if let Some(windows) = &mut self.apps.windows {
            reports.append(&mut windows.ended);
        }
        let (mut failures, completions): (Vec<Ended>, Vec<Ended>) =
            reports.into_iter().partition(Ended::is_failure);
        for ended in completions {
            self.end_message(ended);
        }
        failures.sort_unstable_by_key(|ended| {
            let Ended { host, serial, at, end } = *ended;
            let reason = match end {
                MessageEnd::Failed(reason) => Some(reason),
                MessageEnd::Completed => None,
            };
            (at, host, serial, reason)
        });
        for ended in failures {
            self.end_message(ended);
        }
        self.apps.collector.passed(window.end);
    }

    /// Runs to the end with one thread, as [`World::run_to_end`].
    pub(super) fn run_in_windows(
        &mut self,
        length: Span,
        control: &Control,
        mut observed: Option<&mut Observed>,
    ) -> End {
        let limit = Time::ZERO + self.measure.time_limit;
        let mut reached = Time::ZERO;
        loop {
            if self.apps.is_done() {
                self.net.advance(reached);
                break End::AllDone;
            }
            if self.waits_for_cut_off(reached) {
                self.net.advance(reached);
                break End::CutOff;
            }
            let backlog = self.apps.backlog;
            if let Some(end) = self.without_steady_state_at(reached, backlog) {
                break end;
            }
            let Some(next) = self.net.next_due().filter(|_| !self.net.is_idle()) else {
                break if self.is_cut_off(Time::MAX) { End::CutOff } else { End::Stalled };
            };
            if next > limit {
                self.net.advance(limit);
                break End::TimeLimit;
            }
            let window = Window::of(next, length, limit);
            self.run_window(window);
            self.close_window(window, Vec::new());
            reached = window.end;
            let packets = u64::from(self.net.packets());
            if let Some(windows) = &mut self.apps.windows {
                windows.peak_packets = windows.peak_packets.max(packets);
            }
            if packets > u64::from(control.packet_limit) {
                self.net.advance(reached);
                break End::PacketLimit;
            }
            if self.net.counters().packet_hops > self.measure.hop_limit {
                self.net.advance(reached);
                break End::HopLimit;
            }
            self.publish(control);
            if let Some(end) = control.end() {
                break end;
            }
            if let Some(observed) = &mut observed
                && let Some(end) = observed.look_if_due(self)
            {
                break end;
            }
        }
    }
}

//! Active and inactive flows, the clock of epochs, and who is driven.

use rackweave_core::Time;
use rackweave_core::rng::mix;
use rackweave_wire::polo::Body;

use super::config::DriveOrder;
use super::drives::Drives;
use super::receiver::{Incoming, Want};
use super::{Host, NO_CLOCK};
use crate::common::State;

impl Host {
    fn incoming_mut(&mut self, slot: u32) -> Option<&mut Incoming> {
        match &mut self.exchanges.get_mut(slot).state {
            State::Receiving(incoming) => Some(incoming),
            _ => None,
        }
    }

    /// A new flow: active as long as no packet was marked (slide 12), or if there is none to wait for
    /// (ours).
    pub(super) fn begin_flow(&mut self, now: Time, slot: u32) {
        if self.scheme.pausing && !self.scheme.active.is_empty() {
            self.scheme.inactive.push_back(slot);
            return;
        }
        self.activate(now, slot);
        self.appraise(slot);
    }

    fn activate(&mut self, now: Time, slot: u32) {
        let place = self.scheme.active.len() as u32;
        let Some(incoming) = self.incoming_mut(slot) else { return };
        incoming.place = Some(place);
        incoming.quiet_since = now;
        self.scheme.active.push(slot);
        if place == 0 && self.scheme.clock.is_none() {
            // Should no adjoint packet come, the receiver begins the ping-pong (ours).
            self.scheme.clock_until = now.saturating_add(self.config.rto);
        }
    }

    /// Makes the inactive flow that has waited longest active (slide 12; the order is ours).
    fn wake(&mut self, now: Time) -> Option<u32> {
        let slot = self.scheme.inactive.pop_front()?;
        self.activate(now, slot);
        let (rto, recovery_1) = (self.config.rto, self.config.recovery_1);
        let incoming = self.incoming_mut(slot)?;
        // What was sent a timeout ago and has not come is lost. Without recovery 1 only the next timeout finds
        // that out.
        let lost = recovery_1 && now.since(incoming.last_received) >= rto;
        let limit = incoming.limit;
        if lost {
            self.take_as_lost(slot, limit);
        } else {
            self.appraise(slot);
        }
        self.arm(now, slot);
        Some(slot)
    }

    /// The flow has ended, whole or not. A finished active flow is replaced by an inactive one
    /// (slide 12).
    pub(super) fn end_flow(&mut self, now: Time, slot: u32) {
        self.off_the_way(slot, u32::MAX);
        self.scheme.wanting.remove(slot);
        self.scheme.inactive.remove(slot);
        let Some(place) = self.incoming_mut(slot).and_then(|incoming| incoming.place.take()) else {
            return;
        };
        self.scheme.active.swap_remove(place as usize);
        if let Some(&moved) = self.scheme.active.get(place as usize)
            && let Some(incoming) = self.incoming_mut(moved)
        {
            incoming.place = Some(place);
        }
        let woken = self.wake(now);
        if self.scheme.active.is_empty() {
            // Nothing is known of the network any more: the next flow starts from the initial state (ours).
            (self.scheme.drives, self.scheme.pausing) = (Drives::new(), false);
            (self.scheme.clock, self.scheme.clock_until, self.scheme.quiet_epochs) =
                (None, NO_CLOCK, 0);
            self.scheme.clock_back = false;
            return;
        }
        if self.scheme.clock == Some(slot) {
            // Another flow goes on with the ping-pong.
            let end = self.scheme.epoch_began.saturating_add(self.config.min_epoch);
            if end > now && !self.scheme.drives.in_first_epoch() {
                self.scheme.clock = self.random_active();
                (self.scheme.clock_back, self.scheme.clock_until) = (true, end);
            } else {
                self.next_clock(now);
            }
        }
        if woken.is_none() && !self.config.wasted_driving_rule {
            // Nobody takes what the last packet would have brought.
            self.scheme.drives.fewer(&self.config);
        }
        self.drive_flows(now, woken);
    }

    /// So many of the flow's packets are not on the way any more.
    pub(super) fn off_the_way(&mut self, slot: u32, packets: u32) {
        let generation = self.scheme.generation;
        let Some(incoming) = self.incoming_mut(slot) else { return };
        if incoming.generation != generation {
            (incoming.generation, incoming.on_way) = (generation, 0);
        }
        let back = packets.min(incoming.on_way);
        incoming.on_way -= back;
        self.scheme.in_flight -= back;
    }

    /// What is missing of the flow before this packet is lost, whether it was asked for again or not.
    pub(super) fn take_as_lost(&mut self, slot: u32, before: u32) {
        self.off_the_way(slot, u32::MAX);
        let Some(incoming) = self.incoming_mut(slot) else { return };
        incoming.horizon = incoming.horizon.max(before);
        incoming.cursor = 0;
        self.appraise(slot);
    }

    /// Notes whether the flow is to be driven.
    pub(super) fn appraise(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        if incoming.place.is_some() && incoming.want().is_some() {
            self.scheme.wanting.set(slot, (incoming.missing, exchange.birth));
        } else {
            self.scheme.wanting.remove(slot);
        }
    }

    /// Sends as many driving and loss packets as D allows. `arrival`: the flow whose data has come.
    pub(super) fn drive_flows(&mut self, now: Time, arrival: Option<u32>) {
        let mut room = self.config.burst;
        while room > 0 {
            let allowed = self.scheme.drives.allowed(&self.config);
            if self.scheme.in_flight >= allowed {
                if !self.scheme.wanting.is_empty() || !self.scheme.inactive.is_empty() {
                    self.scheme.drives.was_limited();
                }
                return;
            }
            let Some(slot) = self.choose(now, arrival) else { return };
            let sent = self.ask(now, slot, room.min(allowed - self.scheme.in_flight));
            room = room.saturating_sub(sent.max(1));
        }
    }

    /// Whose turn it is.
    fn choose(&mut self, now: Time, arrival: Option<u32>) -> Option<u32> {
        let first = self.scheme.wanting.first().map(|(_, slot)| slot);
        let Some(arrival) = arrival else { return first };
        let wants = self.scheme.wanting.contains(arrival);
        if wants && (self.config.order == DriveOrder::Arrival || !self.config.wasted_driving_rule) {
            return Some(arrival);
        }
        if !self.config.wasted_driving_rule {
            self.waste(arrival);
            return None;
        }
        // The rule: another active flow takes it (slide 15), or else the next inactive one (ours).
        first.or_else(|| self.wake(now).filter(|slot| self.scheme.wanting.contains(*slot)))
    }

    /// Without the rule the driving packet goes to a flow that has nothing left to send. One less is
    /// on the way then: D has to grow again.
    fn waste(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        if incoming.place.is_none() {
            return;
        }
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let upto = incoming.limit;
        self.scheme.drives.fewer(&self.config);
        self.send_control(peer, id.0, one_way, Body::Drive { upto });
    }

    /// Asks the flow for what it wants, of loss at most `room` packets in one; how many it asked for.
    fn ask(&mut self, now: Time, slot: u32, room: u32) -> u32 {
        let generation = self.scheme.generation;
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let State::Receiving(incoming) = &mut exchange.state else { return 0 };
        let (body, count) = match incoming.want() {
            None => {
                self.scheme.wanting.remove(slot);
                return 0;
            }
            Some(Want::New) => {
                incoming.limit += 1;
                (Body::Drive { upto: incoming.limit }, 1)
            }
            Some(Want::Named(first)) => {
                let end = incoming.horizon.max(first + 1);
                let mut count = 1;
                while count < room && first + count < end {
                    if incoming.received.contains(first + count) {
                        break;
                    }
                    count += 1;
                }
                incoming.cursor = incoming.cursor.max(first + count);
                incoming.limit = incoming.limit.max(first + count);
                // No longer than the room, which is no longer than the burst.
                let count_field = u16::try_from(count).unwrap_or(u16::MAX);
                (Body::Loss { first, count: count_field }, count)
            }
        };
        (incoming.asked, incoming.quiet_since) = (true, now);
        if incoming.generation != generation {
            (incoming.generation, incoming.on_way) = (generation, 0);
        }
        incoming.on_way = incoming.on_way.saturating_add(count);
        self.scheme.in_flight = self.scheme.in_flight.saturating_add(count);
        self.appraise(slot);
        self.arm(now, slot);
        self.send_control(peer, id.0, one_way, body);
        count
    }

    /// After a timeout one packet is asked for whatever D is: nothing of this flow is on the way (ours).
    pub(super) fn ask_at_once(&mut self, now: Time, slot: u32) {
        if self.scheme.wanting.contains(slot) {
            self.ask(now, slot, 1);
        }
    }

    /// The ping-pong goes on with this flow.
    ///
    /// On the slides each sender's adjoint packet is answered and comes again. The receiver, whose D is
    /// one for all flows, needs one clock (ours): the adjoint packets of twenty flows would take a quarter
    /// of a link on which a round trip is four packets long.
    pub(super) fn set_clock(&mut self, now: Time, slot: u32) {
        self.scheme.clock = Some(slot);
        self.scheme.clock_until = now.saturating_add(self.config.rto);
        (self.scheme.epoch_began, self.scheme.clock_back) = (now, false);
        self.send_standing(slot, true);
    }

    /// Another flow keeps the clock, or the same if it is the only one.
    fn next_clock(&mut self, now: Time) {
        match self.random_active() {
            Some(slot) => self.set_clock(now, slot),
            None => (self.scheme.clock, self.scheme.clock_until) = (None, NO_CLOCK),
        }
    }

    /// An active flow that depends on nothing but the epoch and the host.
    fn random_active(&self) -> Option<u32> {
        let active = self.scheme.active.len() as u64;
        let at =
            mix(u64::from(self.scheme.epoch) ^ u64::from(self.id.0) << 32).checked_rem(active)?;
        self.scheme.active.get(at as usize).copied()
    }

    /// The adjoint packet has come back (slide 9): the epoch ends, or as soon as it has lasted long enough (ours).
    pub(super) fn clock_came_back(&mut self, now: Time) {
        let end = self.scheme.epoch_began.saturating_add(self.config.min_epoch);
        if end > now && !self.scheme.drives.in_first_epoch() {
            (self.scheme.clock_back, self.scheme.clock_until) = (true, end);
        } else {
            self.end_epoch(now);
        }
    }

    /// The epoch has lasted long enough; or the adjoint packet or its acknowledgement was lost.
    pub(super) fn clock_due(&mut self, now: Time) {
        if self.scheme.clock_until <= now && self.scheme.clock_back {
            self.end_epoch(now);
        } else if self.scheme.clock_until <= now {
            self.advance_epoch();
            self.next_clock(now);
        }
    }

    const fn advance_epoch(&mut self) {
        // 0 is the epoch of adjoint packets that answer nothing.
        self.scheme.epoch = if self.scheme.epoch == u32::MAX { 1 } else { self.scheme.epoch + 1 };
    }

    /// An epoch ends (slide 10).
    pub(super) fn end_epoch(&mut self, now: Time) {
        let epoch = self.scheme.drives.end_epoch(&self.config);
        self.advance_epoch();
        let had_data = core::mem::take(&mut self.scheme.active_data);
        self.scheme.quiet_epochs =
            if had_data { 0 } else { self.scheme.quiet_epochs.saturating_add(1) };
        if let Some(slot) = self.scheme.clock {
            self.set_clock(now, slot);
        }
        if self.config.recovery_2 && self.scheme.quiet_epochs >= 2 {
            return self.recover_from_silence(now);
        }
        if epoch.data && !epoch.marks {
            if self.scheme.inactive.is_empty() {
                // Ours: the slides do not say when flows cease to be paused.
                self.scheme.pausing = false;
            } else if self.config.wake_in_quiet_epochs
                && self.scheme.active.len() < self.scheme.drives.d() as usize
            {
                self.wake(now);
            }
        }
        self.drive_flows(now, None);
    }

    /// Recovery 2 (slide 11): two epochs without data of any active flow. A random one gets a loss
    /// packet; for all of them nothing is on the way any more.
    fn recover_from_silence(&mut self, now: Time) {
        self.scheme.quiet_epochs = 0;
        self.scheme.generation = self.scheme.generation.wrapping_add(1);
        self.scheme.in_flight = 0;
        let Some(slot) = self.random_active() else { return };
        if let Some(incoming) = self.incoming_mut(slot) {
            let limit = incoming.limit;
            self.take_as_lost(slot, limit);
            self.ask_at_once(now, slot);
        }
    }
}

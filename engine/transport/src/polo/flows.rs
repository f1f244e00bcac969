//! Active and inactive flows, the epoch clock, and the distribution of driving packets.

use rackweave_core::Time;
use rackweave_core::rng::mix;
use rackweave_wire::polo::Body;

use super::config::DriveOrder;
use super::drives::Drives;
use super::receiver::{Incoming, Want};
use super::timing::Timed;
use super::{Host, NO_CLOCK};
use crate::common::State;

impl Host {
    fn incoming_mut(&mut self, slot: u32) -> Option<&mut Incoming> {
        match &mut self.exchanges.get_mut(slot).state {
            State::Receiving(incoming) => Some(incoming),
            _ => None,
        }
    }

    /// Starts a flow. It is active if no packet has been marked (slide 12), or if there is no active flow whose
    /// end would activate it (our choice), or with [`super::Config::pause_only_if_full`] fewer active flows than D.
    pub(super) fn start_flow(&mut self, now: Time, slot: u32) {
        let full = if self.config.pause_only_if_full { self.scheme.drives.d().max(1) } else { 1 };
        if self.scheme.pausing && self.scheme.active.len() >= full as usize {
            self.scheme.inactive.push_back(slot);
            return;
        }
        self.activate(now, slot);
        self.update_wanting(slot);
    }

    fn activate(&mut self, now: Time, slot: u32) {
        let place = self.scheme.active.len() as u32;
        let Some(incoming) = self.incoming_mut(slot) else { return };
        incoming.place = Some(place);
        incoming.quiet_since = now;
        self.scheme.active.push(slot);
        if place == 0 {
            self.scheme.active_data_at = now;
        }
        if place == 0 && self.scheme.clock.is_none() {
            // If no adjoint packet arrives, the receiver starts the clock itself (our choice: the adjoint
            // packet may be lost).
            self.scheme.clock_until = now.saturating_add(self.config.rto);
        }
    }

    /// Activates the inactive flow that has waited longest (slide 12; the order is our choice).
    fn activate_next(&mut self, now: Time) -> Option<u32> {
        let slot = self.scheme.inactive.pop_front()?;
        self.activate(now, slot);
        let (rto, recovery_1) =
            (self.scheme.lateness.prolong(self.config.rto), self.config.recovery_1);
        let incoming = self.incoming_mut(slot)?;
        // Packets that were sent a timeout ago and have not arrived are lost. Without recovery 1 only the next
        // timeout detects that.
        let lost = recovery_1 && now.since(incoming.last_received) >= rto;
        let limit = incoming.limit;
        if lost {
            self.mark_lost(slot, limit);
        } else {
            self.update_wanting(slot);
        }
        self.arm(now, slot);
        Some(slot)
    }

    /// Removes a flow that has ended, complete or not. A finished active flow is replaced by an inactive one
    /// (slide 12).
    pub(super) fn end_flow(&mut self, now: Time, slot: u32) {
        self.remove_outstanding(slot, u32::MAX);
        self.scheme.wanting.remove(slot);
        self.scheme.waiting.remove(slot);
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
        let activated = self.activate_next(now);
        if self.scheme.active.is_empty() {
            // Without active flows the state of the network is unknown: the next flow starts from the initial
            // state (our choice).
            (self.scheme.drives, self.scheme.pausing) = (Drives::new(), false);
            (self.scheme.clock, self.scheme.clock_until, self.scheme.quiet_epochs) =
                (None, NO_CLOCK, 0);
            self.scheme.clock_returned = false;
            return;
        }
        if self.scheme.clock == Some(slot) {
            // Another flow continues the exchange of adjoint packets.
            let end = self.scheme.epoch_began.saturating_add(self.config.min_epoch);
            if end > now && !self.scheme.drives.in_first_epoch() {
                self.scheme.clock = self.random_active();
                (self.scheme.clock_returned, self.scheme.clock_until) = (true, end);
            } else {
                self.next_clock(now);
            }
        }
        if activated.is_none() && !self.config.wasted_driving_rule {
            // No flow takes the driving packet that the last arrival permits.
            self.scheme.drives.decrement(&self.config);
        }
        self.drive_flows(now, activated);
    }

    /// Counts up to `packets` requested packets of the flow as no longer outstanding.
    pub(super) fn remove_outstanding(&mut self, slot: u32, packets: u32) {
        let generation = self.scheme.generation;
        let Some(incoming) = self.incoming_mut(slot) else { return };
        if incoming.generation != generation {
            (incoming.generation, incoming.outstanding) = (generation, 0);
        }
        let back = packets.min(incoming.outstanding);
        incoming.outstanding -= back;
        self.scheme.in_flight -= back;
    }

    /// Counts all missing packets of the flow before this one as lost, requested again or not.
    pub(super) fn mark_lost(&mut self, slot: u32, before: u32) {
        self.remove_outstanding(slot, u32::MAX);
        let Some(incoming) = self.incoming_mut(slot) else { return };
        incoming.horizon = incoming.horizon.max(before);
        incoming.cursor = 0;
        self.update_wanting(slot);
    }

    /// Updates whether the flow needs driving packets, and whether it waits for one with none outstanding.
    pub(super) fn update_wanting(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        if incoming.place.is_none() || incoming.want().is_none() {
            self.scheme.wanting.remove(slot);
            self.scheme.waiting.remove(slot);
            return;
        }
        self.scheme.wanting.set(slot, (incoming.missing, exchange.birth));
        if incoming.outstanding_in(self.scheme.generation) > 0 {
            self.scheme.waiting.remove(slot);
        } else {
            self.scheme.waiting.push_back(slot);
        }
    }

    /// Sends as many driving and loss packets as D allows. `arrival` is the flow whose data packet has arrived.
    pub(super) fn drive_flows(&mut self, now: Time, arrival: Option<u32>) {
        let mut room = self.config.burst;
        while room > 0 {
            let allowed = self.scheme.drives.allowed(&self.config);
            if self.scheme.in_flight >= allowed {
                if !self.scheme.wanting.is_empty() || !self.scheme.inactive.is_empty() {
                    self.scheme.drives.note_limited();
                }
                return;
            }
            let Some(slot) = self.choose(now, arrival) else { return };
            let sent = self.request(now, slot, room.min(allowed - self.scheme.in_flight));
            room = room.saturating_sub(sent.max(1));
        }
    }

    /// The flow that gets the next driving packet.
    ///
    /// A flow whose first window arrived while D was used up has no packet outstanding, and no arrival drives it, as one would by
    /// slide 8. So it comes before those with fewer missing packets, or it would wait for as long as such flows come (our choice).
    fn choose(&mut self, now: Time, arrival: Option<u32>) -> Option<u32> {
        let shortest = self.scheme.wanting.first().map(|(_, slot)| slot);
        let first = match self.config.order {
            DriveOrder::Arrival => self.scheme.waiting.first().or(shortest),
            DriveOrder::FewestLeft => shortest,
        };
        let Some(arrival) = arrival else { return first };
        let wants = self.scheme.wanting.contains(arrival);
        if wants && (self.config.order == DriveOrder::Arrival || !self.config.wasted_driving_rule) {
            return Some(arrival);
        }
        if !self.config.wasted_driving_rule {
            self.send_wasted_drive(arrival);
            return None;
        }
        // The wasted-driving rule: another active flow gets it (slide 15), or else the next inactive one (our
        // choice).
        first.or_else(|| self.activate_next(now).filter(|slot| self.scheme.wanting.contains(*slot)))
    }

    /// Without the wasted-driving rule, sends the driving packet to a flow that has nothing left to send. One
    /// packet less is then outstanding, and D has to grow again.
    fn send_wasted_drive(&mut self, slot: u32) {
        let exchange = self.exchanges.get(slot);
        let State::Receiving(incoming) = &exchange.state else { return };
        if incoming.place.is_none() {
            return;
        }
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let upto = incoming.limit;
        self.scheme.drives.decrement(&self.config);
        self.send_control(peer, id.0, one_way, Body::Drive { upto });
    }

    /// Requests the next packets of a flow, at most `room` in one loss packet. Returns the number of requested
    /// packets.
    fn request(&mut self, now: Time, slot: u32, room: u32) -> u32 {
        let generation = self.scheme.generation;
        let exchange = self.exchanges.get_mut(slot);
        let (peer, id, one_way) = (exchange.peer, exchange.arriving(), exchange.one_way);
        let State::Receiving(incoming) = &mut exchange.state else { return 0 };
        let (body, count) = match incoming.want() {
            None => {
                self.update_wanting(slot);
                return 0;
            }
            Some(Want::New) => {
                incoming.timed[0].get_or_insert(Timed::driven(now, incoming.limit));
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
                incoming.time_lost(now, (first, count), self.scheme.lateness, &self.config);
                incoming.cursor = incoming.cursor.max(first + count);
                incoming.limit = incoming.limit.max(first + count);
                // It does not exceed the room, which does not exceed the configured burst.
                let count_field = u16::try_from(count).unwrap_or(u16::MAX);
                (Body::Loss { first, count: count_field }, count)
            }
        };
        (incoming.asked, incoming.quiet_since) = (true, now);
        if incoming.generation != generation {
            (incoming.generation, incoming.outstanding) = (generation, 0);
        }
        incoming.outstanding = incoming.outstanding.saturating_add(count);
        self.scheme.in_flight = self.scheme.in_flight.saturating_add(count);
        self.update_wanting(slot);
        self.arm(now, slot);
        self.send_control(peer, id.0, one_way, body);
        count
    }

    /// Requests one packet after a timeout, regardless of D: no packet of this flow is outstanding (our
    /// choice).
    pub(super) fn request_after_timeout(&mut self, now: Time, slot: u32) {
        if self.scheme.wanting.contains(slot) {
            self.request(now, slot, 1);
        }
    }

    /// Continues the exchange of adjoint packets with this flow.
    ///
    /// On the slides the adjoint packet of each sender is answered and returns. The receiver, which has one D
    /// for all flows, needs only one clock. (Our choice: the adjoint packets of twenty flows would take a
    /// quarter of the link if a round trip is four packets long.)
    pub(super) fn set_clock(&mut self, now: Time, slot: u32) {
        self.scheme.clock = Some(slot);
        self.scheme.clock_until = now.saturating_add(self.config.rto);
        (self.scheme.epoch_began, self.scheme.clock_returned) = (now, false);
        self.send_adjoint_ack(slot, true);
    }

    /// Moves the clock to another flow; to the same one if it is the only one.
    fn next_clock(&mut self, now: Time) {
        match self.random_active() {
            Some(slot) => self.set_clock(now, slot),
            None => (self.scheme.clock, self.scheme.clock_until) = (None, NO_CLOCK),
        }
    }

    /// A pseudo-random active flow, determined by the epoch and the host.
    fn random_active(&self) -> Option<u32> {
        let active = self.scheme.active.len() as u64;
        let at =
            mix(u64::from(self.scheme.epoch) ^ u64::from(self.id.0) << 32).checked_rem(active)?;
        self.scheme.active.get(at as usize).copied()
    }

    /// Handles the return of the adjoint packet, which ends the epoch (slide 9) or, if the epoch has not
    /// reached its minimum length, schedules its end (our choice).
    pub(super) fn on_clock_returned(&mut self, now: Time) {
        let end = self.scheme.epoch_began.saturating_add(self.config.min_epoch);
        if end > now && !self.scheme.drives.in_first_epoch() {
            (self.scheme.clock_returned, self.scheme.clock_until) = (true, end);
        } else {
            self.end_epoch(now);
        }
    }

    /// Handles the clock's timer: the epoch has reached its minimum length, or the adjoint packet or its answer
    /// was lost.
    pub(super) fn clock_due(&mut self, now: Time) {
        if self.scheme.clock_until <= now && self.scheme.clock_returned {
            self.end_epoch(now);
        } else if self.scheme.clock_until <= now {
            self.advance_epoch();
            self.next_clock(now);
        }
    }

    const fn advance_epoch(&mut self) {
        // 0 is the epoch of adjoint packets that are not part of the clock.
        self.scheme.epoch = if self.scheme.epoch == u32::MAX { 1 } else { self.scheme.epoch + 1 };
    }

    /// Ends an epoch (slide 10).
    pub(super) fn end_epoch(&mut self, now: Time) {
        let epoch = self.scheme.drives.end_epoch(&self.config);
        self.advance_epoch();
        let had_data = core::mem::take(&mut self.scheme.active_data);
        self.scheme.quiet_epochs =
            if had_data { 0 } else { self.scheme.quiet_epochs.saturating_add(1) };
        if let Some(slot) = self.scheme.clock {
            self.set_clock(now, slot);
        }
        // While data is late, adjoint packets, which have priority, still return at once, so that epochs are short.
        let is_silent = now.since(self.scheme.active_data_at) >= self.scheme.lateness.allowance();
        if self.config.recovery_2 && self.scheme.quiet_epochs >= 2 && is_silent {
            return self.recover_from_silence(now);
        }
        if epoch.data && !epoch.marks {
            if self.scheme.inactive.is_empty() {
                // Our choice, because the slides do not state when new flows cease to be paused.
                self.scheme.pausing = false;
            } else if self.config.wake_in_quiet_epochs
                && self.scheme.active.len() < self.scheme.drives.d() as usize
            {
                self.activate_next(now);
            }
        }
        self.drive_flows(now, None);
    }

    /// Recovery 2 (slide 11), after two epochs without data of any active flow. A random flow gets a loss
    /// packet, and no packet of any flow counts as outstanding.
    fn recover_from_silence(&mut self, now: Time) {
        self.scheme.quiet_epochs = 0;
        self.scheme.generation = self.scheme.generation.wrapping_add(1);
        self.scheme.in_flight = 0;
        for at in 0..self.scheme.active.len() {
            self.update_wanting(self.scheme.active[at]);
        }
        let Some(slot) = self.random_active() else { return };
        if let Some(incoming) = self.incoming_mut(slot) {
            let limit = incoming.limit;
            self.recovery.timeouts += 1;
            self.mark_lost(slot, limit);
            self.request_after_timeout(now, slot);
        }
    }
}

//! What a sender knows of the packets of one message: which are in flight, have arrived, or wait to be retransmitted.

use std::collections::VecDeque;

use rackweave_core::Time;

/// A state in place of a send time: the packet has arrived.
const ARRIVED: Time = Time::from_ticks(u64::MAX);
/// Likewise: the packet waits to be retransmitted.
const WAITS: Time = Time::from_ticks(u64::MAX - 1);

/// The state that a packet had when its acknowledgement arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// It was in flight, sent at this time.
    InFlight(Time),
    /// It waited to be retransmitted.
    Waited,
}

/// The packets of one message at its sender. NDP and EQDS retransmit what was trimmed or timed out before new packets
/// (`docs/protocols/ndp.md#ndp-sender`).
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// The first packet that was never sent.
    next: u32,
    /// The first packet that is not acknowledged.
    base: u32,
    /// Number of packets that have arrived.
    arrived: u32,
    /// For each packet of `base..next`, when it was last sent, or [`ARRIVED`] or [`WAITS`].
    states: VecDeque<Time>,
    /// Send times of the packets that may be in flight, in order. An entry that differs from `states` is
    /// outdated.
    sent: VecDeque<(Time, u32)>,
    /// Packets to retransmit.
    resends: VecDeque<u32>,
    /// Number of entries of that queue that are still to be sent: others were acknowledged meanwhile.
    waiting: u32,
}

impl Scoreboard {
    /// Resets this to the state of an unsent message, and keeps the allocations.
    pub(crate) fn reset(&mut self) {
        self.states.clear();
        self.sent.clear();
        self.resends.clear();
        (self.next, self.base, self.arrived, self.waiting) = (0, 0, 0, 0);
    }

    /// The first packet that was never sent.
    #[inline]
    pub(crate) const fn next(&self) -> u32 {
        self.next
    }

    /// The first packet that is not acknowledged.
    #[inline]
    pub(crate) const fn base(&self) -> u32 {
        self.base
    }

    /// Number of packets that have arrived.
    #[inline]
    pub(crate) const fn arrived_packets(&self) -> u32 {
        self.arrived
    }

    /// Number of packets that wait to be retransmitted.
    #[inline]
    pub(crate) const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Number of packets in flight, if nothing has arrived that was not acknowledged.
    #[inline]
    pub(crate) const fn in_flight(&self) -> u32 {
        self.next - self.arrived - self.waiting
    }

    /// When the packet was sent that has been in flight for the longest time; `None` if none is.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Time> {
        self.sent.front().map(|(at, _)| *at)
    }

    /// Takes a packet to send: one that waits, otherwise the next new one. The caller ensures that there is one.
    #[inline]
    pub(crate) fn take(&mut self, now: Time) -> Option<u32> {
        let packet = if self.waiting > 0 { self.take_resend(now)? } else { self.take_new(now) };
        self.sent.push_back((now, packet));
        Some(packet)
    }

    #[inline]
    fn take_new(&mut self, now: Time) -> u32 {
        self.states.push_back(now);
        self.next += 1;
        self.next - 1
    }

    fn take_resend(&mut self, now: Time) -> Option<u32> {
        while let Some(packet) = self.resends.pop_front() {
            if let Some(state) = self.state(packet)
                && *state == WAITS
            {
                *state = now;
                self.waiting -= 1;
                return Some(packet);
            }
        }
        None
    }

    /// The state of a packet that was sent; `None` below `base` or if it was not sent.
    #[inline]
    fn state(&mut self, packet: u32) -> Option<&mut Time> {
        let at = packet.checked_sub(self.base)?;
        self.states.get_mut(at as usize)
    }

    /// When a packet in flight was last sent; `None` if it is not in flight.
    #[inline]
    pub(crate) fn sent_at(&mut self, packet: u32) -> Option<Time> {
        self.state(packet).map(|state| *state).filter(|state| *state < WAITS)
    }

    /// Records that a packet has arrived; `None` if that was known, or if it was never sent.
    #[inline]
    pub(crate) fn arrive(&mut self, packet: u32) -> Option<Before> {
        let before = match core::mem::replace(self.state(packet)?, ARRIVED) {
            ARRIVED => return None,
            WAITS => {
                self.waiting -= 1;
                Before::Waited
            }
            sent => Before::InFlight(sent),
        };
        self.arrived += 1;
        while self.states.front() == Some(&ARRIVED) {
            self.states.pop_front();
            self.base += 1;
        }
        self.drop_old();
        Some(before)
    }

    /// Lets a packet wait to be retransmitted; false if it is not in flight.
    #[inline]
    pub(crate) fn lose(&mut self, packet: u32) -> bool {
        if self.sent_at(packet).is_none() {
            return false;
        }
        self.wait(packet);
        self.drop_old();
        true
    }

    /// Lets the packet wait that has been in flight for the longest time.
    pub(crate) fn lose_oldest(&mut self) {
        if let Some((at, packet)) = self.sent.pop_front()
            && self.state(packet).is_some_and(|state| *state == at)
        {
            self.wait(packet);
        }
        self.drop_old();
    }

    fn wait(&mut self, packet: u32) {
        if let Some(state) = self.state(packet) {
            *state = WAITS;
            self.resends.push_back(packet);
            self.waiting += 1;
        }
    }

    /// Removes send times of packets that are no longer in flight from the front of the queue.
    #[inline]
    fn drop_old(&mut self) {
        while let Some(&(at, packet)) = self.sent.front()
            && self.state(packet).is_none_or(|state| *state != at)
        {
            self.sent.pop_front();
        }
    }

    /// Number of queued entries, for tests of memory bounds.
    #[cfg(test)]
    pub(crate) fn backlog(&self) -> usize {
        self.states.len() + self.sent.len() + self.resends.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rackweave_core::Rng;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Model {
        InFlight(Time),
        Waits,
        Arrived,
    }

    /// Random operations on the scoreboard and on a map of the packets' states agree.
    #[test]
    fn agrees_with_a_map() {
        let mut rng = Rng::stream(1, 0, 0, "scoreboard");
        for _ in 0..200 {
            let (mut board, mut model) = (Scoreboard::default(), BTreeMap::new());
            for tick in 1..400 {
                let now = Time::from_ticks(tick);
                let packet = rng.below(60) as u32;
                match rng.below(4) {
                    0 => {
                        let waits = model.values().any(|state| *state == Model::Waits);
                        let taken = board.take(now).expect("a packet");
                        let expected = model.insert(taken, Model::InFlight(now));
                        assert_eq!(expected, waits.then_some(Model::Waits), "waiting ones first");
                    }
                    1 => {
                        let before = match model.get(&packet) {
                            Some(Model::InFlight(at)) => Some(Before::InFlight(*at)),
                            Some(Model::Waits) => Some(Before::Waited),
                            Some(Model::Arrived) | None => None,
                        };
                        assert_eq!(board.arrive(packet), before);
                        model.entry(packet).and_modify(|state| *state = Model::Arrived);
                    }
                    2 => {
                        let in_flight = matches!(model.get(&packet), Some(Model::InFlight(_)));
                        assert_eq!(board.lose(packet), in_flight);
                        if in_flight {
                            model.insert(packet, Model::Waits);
                        }
                    }
                    _ => {
                        let oldest = model.iter().filter_map(|(packet, state)| match state {
                            Model::InFlight(at) => Some((*at, *packet)),
                            _ => None,
                        });
                        let oldest = oldest.min();
                        assert_eq!(board.oldest(), oldest.map(|(at, _)| at));
                        board.lose_oldest();
                        if let Some((_, packet)) = oldest {
                            model.insert(packet, Model::Waits);
                        }
                    }
                }
                let count = |of: fn(&Model) -> bool| model.values().filter(|it| of(it)).count();
                assert_eq!(board.next() as usize, model.len());
                let waiting = count(|state| *state == Model::Waits);
                let in_flight = count(|state| matches!(state, Model::InFlight(_)));
                assert_eq!(
                    (board.waiting(), board.in_flight()),
                    (waiting as u32, in_flight as u32)
                );
                let base = (0..).find(|packet| model.get(packet) != Some(&Model::Arrived));
                assert_eq!(Some(board.base()), base);
            }
        }
    }
}

//! The events of an endpoint that wait to be polled.

use std::collections::VecDeque;

use rackweave_core::{HostId, MessageId};
use rustc_hash::FxHashMap;

use super::event::Event;

/// The least number of cancelled exchanges among which those without events are looked for.
const PRUNE_AT: usize = 64;

/// A queue from which the events of an exchange can be removed. They are skipped when they come to the front: after the restart of a
/// peer to which 100,000 calls are outstanding, there are as many events, and each belongs to a call that the
/// application then cancels.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<Event>,
    /// The number of events that have left the queue.
    left: u64,
    /// Exchanges that were cancelled, each with the number of events that had entered the queue before. Empty with the queue.
    cancelled: FxHashMap<(HostId, MessageId), u64>,
    /// The length of `cancelled` at which exchanges without events are next removed from it.
    prune_at: usize,
    /// The number of events that were examined.
    #[cfg(test)]
    examined: u64,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Takes the first event.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front()?;
        self.left += 1;
        self.skip_cancelled();
        Some(event)
    }

    /// Removes the events of an exchange, which is identified by the id of its response.
    pub(super) fn cancel(&mut self, peer: HostId, response: MessageId) {
        if !self.queue.is_empty() {
            self.cancelled.insert((peer, response), self.left + self.queue.len() as u64);
            self.skip_cancelled();
            if self.cancelled.len() > self.prune_at {
                // An application that always leaves events in the queue would otherwise let it grow without a bound.
                self.cancelled.retain(|_, before| self.left < *before);
                self.prune_at = PRUNE_AT.max(2 * self.cancelled.len());
            }
        }
    }

    /// Makes the first event one that is not cancelled.
    fn skip_cancelled(&mut self) {
        while !self.cancelled.is_empty()
            && let Some(event) = self.queue.front()
        {
            #[cfg(test)]
            {
                self.examined += 1;
            }
            let cancelled = event.exchange().and_then(|exchange| self.cancelled.get(&exchange));
            if cancelled.is_none_or(|before| self.left >= *before) {
                return;
            }
            self.queue.pop_front();
            self.left += 1;
        }
        if self.queue.is_empty() {
            self.cancelled.clear();
        }
    }

    /// The number of events; some may belong to cancelled exchanges.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: HostId = HostId(1);

    fn sent(number: u64) -> Event {
        Event::Sent { peer: PEER, id: MessageId::request(number) }
    }

    fn cancel(events: &mut Events, number: u64) {
        events.cancel(PEER, MessageId::request(number).response());
    }

    #[test]
    fn earlier_events_of_a_cancelled_exchange_are_removed_and_later_ones_are_not() {
        let mut events = Events::default();
        events.push(Event::PeerRestarted { peer: PEER });
        for number in [1, 2, 1, 3] {
            events.push(sent(number));
        }
        cancel(&mut events, 1);
        cancel(&mut events, 3);
        events.push(sent(1));
        let mut left = Vec::new();
        while let Some(event) = events.pop() {
            left.push(event.exchange().map(|(_, id)| id.number()));
        }
        assert_eq!(left, [None, Some(2), Some(1)]);
        assert!(events.is_empty() && events.cancelled.is_empty());
        // What follows the last event of a cancelled exchange is empty.
        events.push(sent(5));
        cancel(&mut events, 5);
        assert!(events.is_empty() && events.pop().is_none());
    }

    #[test]
    fn exchanges_whose_events_have_left_are_forgotten_though_the_queue_is_never_empty() {
        let mut events = Events::default();
        events.push(sent(0));
        for number in 1..100_000 {
            events.push(sent(number));
            assert!(events.pop().is_some());
            cancel(&mut events, number - 1);
            assert!(events.cancelled.len() <= PRUNE_AT + 1 && events.len() == 1);
        }
    }

    #[test]
    fn a_restart_costs_as_much_for_each_call_however_many_are_outstanding() {
        for calls in [1_000, 100_000] {
            let mut events = Events::default();
            (0..calls).for_each(|number| events.push(sent(number)));
            (0..calls).rev().for_each(|number| cancel(&mut events, number));
            assert!(events.is_empty());
            assert!(events.examined <= 3 * calls, "{} for {calls}", events.examined);
        }
    }
}

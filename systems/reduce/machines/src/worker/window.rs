//! The packets that a worker has sent and that are not acknowledged.

use std::collections::VecDeque;

use rackweave_core::{Span, Time};

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A packet of an epoch, by its number among them.
    Packet { epoch: u16, index: u32 },
    /// The end of an epoch.
    Fin { epoch: u16 },
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    item: Item,
    at: Time,
    status: Status,
    is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    InFlight,
    Lost,
    Acked,
}

/// What an acknowledgement was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) item: Item,
    /// The round-trip time, if the packet was sent once (Karn's rule).
    pub(super) rtt: Option<Span>,
}

/// A window of packets by sequence number. Each is acknowledged by itself, as the switch and the master both acknowledge.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    sent: VecDeque<Sent>,
    /// The sequence number of the first one.
    first: u32,
    in_flight: u32,
    lost: u32,
    /// When the latest of the packets that were acknowledged was sent: packets sent earlier were overtaken (RFC 8985, RACK).
    newest_acked: Time,
}

impl Window {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn first(&self) -> u32 {
        self.first
    }

    /// The sequence number of the next new packet.
    pub(super) fn next(&self) -> u32 {
        self.first + self.sent.len() as u32
    }

    pub(super) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// How far the next packet is ahead of the first that is not acknowledged.
    pub(super) fn span(&self) -> u32 {
        self.sent.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Adds a packet that is sent now. `None` if all sequence numbers are used up.
    pub(super) fn push(&mut self, now: Time, item: Item) -> Option<u32> {
        let seq = self.first.checked_add(self.sent.len() as u32).filter(|seq| *seq < u32::MAX)?;
        let status = Status::InFlight;
        self.sent.push_back(Sent { item, at: now, status, is_repeated: false });
        self.in_flight += 1;
        Some(seq)
    }

    /// Returns what a new acknowledgement is for.
    pub(super) fn acknowledge(&mut self, now: Time, seq: u32) -> Option<Acked> {
        let sent = self.sent.get_mut(seq.checked_sub(self.first)? as usize)?;
        match sent.status {
            Status::Acked => return None,
            Status::InFlight => self.in_flight -= 1,
            Status::Lost => self.lost -= 1,
        }
        sent.status = Status::Acked;
        let rtt = (!sent.is_repeated).then(|| now.since(sent.at));
        let item = sent.item;
        if !sent.is_repeated {
            self.newest_acked = self.newest_acked.max(sent.at);
        }
        while self.sent.front().is_some_and(|sent| sent.status == Status::Acked) {
            self.sent.pop_front();
            self.first += 1;
        }
        Some(Acked { item, rtt })
    }

    /// Marks those as lost that a later packet has overtaken by `delay`. Returns whether there are any.
    pub(super) fn find_lost(&mut self, now: Time, delay: Option<Span>) -> bool {
        let Some(delay) = delay else { return false };
        let newest = self.newest_acked;
        self.mark_lost(|sent| sent.at < newest && now >= sent.at.saturating_add(delay))
    }

    /// Marks those as lost that have been in flight for the timeout. Returns whether there are any.
    pub(super) fn time_out(&mut self, now: Time, rto: Span) -> bool {
        self.mark_lost(|sent| now >= sent.at.saturating_add(rto))
    }

    fn mark_lost(&mut self, is_lost: impl Fn(&Sent) -> bool) -> bool {
        let before = self.lost;
        for sent in &mut self.sent {
            if sent.status == Status::InFlight && is_lost(sent) {
                sent.status = Status::Lost;
                self.in_flight -= 1;
                self.lost += 1;
            }
        }
        self.lost > before
    }

    /// Takes a lost packet, which is sent again now.
    pub(super) fn next_lost(&mut self, now: Time) -> Option<(u32, Item)> {
        if self.lost == 0 {
            return None;
        }
        let index = self.sent.iter().position(|sent| sent.status == Status::Lost)?;
        let sent = &mut self.sent[index];
        (sent.status, sent.at, sent.is_repeated) = (Status::InFlight, now, true);
        self.lost -= 1;
        self.in_flight += 1;
        Some((self.first + index as u32, sent.item))
    }

    /// Returns when the first packet in flight will be lost or time out.
    pub(super) fn timer(&self, loss_delay: Option<Span>, rto: Span) -> Option<Time> {
        let in_flight = self.sent.iter().filter(|sent| sent.status == Status::InFlight);
        let at = in_flight.map(|sent| match loss_delay {
            Some(delay) if sent.at < self.newest_acked => sent.at.saturating_add(delay),
            _ => sent.at.saturating_add(rto),
        });
        at.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn packet(index: u32) -> Item {
        Item::Packet { epoch: 0, index }
    }

    #[test]
    fn each_packet_is_acknowledged_once_and_in_any_order() {
        let mut window = Window::default();
        for index in 0..4 {
            assert_eq!(window.push(Time::from_ticks(u64::from(index)), packet(index)), Some(index));
        }
        assert_eq!(window.acknowledge(Time::from_ticks(100), 4), None);
        let acked = window.acknowledge(Time::from_ticks(100), 2).unwrap();
        assert_eq!(acked, Acked { item: packet(2), rtt: Some(Span::from_ticks(98)) });
        assert_eq!((window.acknowledge(Time::from_ticks(100), 2), window.span()), (None, 4));
        assert!(window.acknowledge(Time::from_ticks(100), 0).is_some());
        assert!(window.acknowledge(Time::from_ticks(100), 1).is_some());
        assert_eq!((window.first(), window.span(), window.in_flight()), (3, 1, 1));
        assert_eq!(window.acknowledge(Time::from_ticks(100), 1), None);
    }

    #[test]
    fn what_was_overtaken_is_lost_and_what_was_not_times_out() {
        let mut window = Window::default();
        for index in 0..3 {
            let _ = window.push(Time::from_ticks(u64::from(index) * 10), packet(index));
        }
        let delay = Some(Span::from_ticks(50));
        assert_eq!(window.timer(delay, Span::from_ticks(1_000)), Some(Time::from_ticks(1_000)));
        let _ = window.acknowledge(Time::from_ticks(40), 1);
        assert_eq!(window.timer(delay, Span::from_ticks(1_000)), Some(Time::from_ticks(50)));
        assert!(
            !window.find_lost(Time::from_ticks(49), delay)
                && window.find_lost(Time::from_ticks(50), delay)
        );
        assert_eq!(window.next_lost(Time::from_ticks(50)), Some((0, packet(0))));
        assert_eq!(window.next_lost(Time::from_ticks(50)), None);
        assert!(window.time_out(Time::from_ticks(1_020), Span::from_ticks(1_000)));
        assert_eq!(window.next_lost(Time::from_ticks(1_020)), Some((2, packet(2))));
        // A packet that was sent twice gives no sample.
        assert_eq!(window.acknowledge(Time::from_ticks(1_030), 2).unwrap().rtt, None);
        let _ = window.acknowledge(Time::from_ticks(1_030), 0);
        assert!(window.is_empty() && window.timer(delay, Span::from_ticks(1)).is_none());
    }
}

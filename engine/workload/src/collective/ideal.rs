//! The machines of all ranks on a network without contention.

use rackweave_core::{HostId, Schedule as Queue, Span, Time};

use super::{Collective, Rank};

#[derive(Clone, Copy, Debug)]
enum Event {
    Wake(u32),
    Arrive { from: u32, to: u32, number: u64 },
}

/// Returns the time of a collective if each message takes a known time, whatever else is under way: from its begin to the end of the last
/// rank.
#[must_use]
pub fn ideal(collective: &Collective, mut delay: impl FnMut(HostId, HostId, u64) -> Span) -> Span {
    let hosts = collective.hosts();
    let mut ranks: Vec<Option<Rank>> =
        hosts.iter().map(|host| Rank::new(collective, *host, Time::ZERO)).collect();
    let mut events = Queue::default();
    for rank in 0..hosts.len() as u32 {
        events.push(Time::ZERO, Event::Wake(rank));
    }
    let mut last = Time::ZERO;
    while let Some((now, event)) = events.pop() {
        last = now;
        let touched = match event {
            Event::Wake(rank) => [rank, rank],
            Event::Arrive { from, to, number } => {
                if let Some(receiver) = &mut ranks[to as usize] {
                    receiver.received(now, hosts[from as usize], number);
                }
                if let Some(sender) = &mut ranks[from as usize] {
                    sender.sent(now, number);
                }
                [to, from]
            }
        };
        let twice = touched[0] == touched[1];
        for number in touched.into_iter().take(if twice { 1 } else { 2 }) {
            let Some(rank) = &mut ranks[number as usize] else { continue };
            while let Some(at) = rank.poll_timeout() {
                if at > now {
                    events.push(at, Event::Wake(number));
                    break;
                }
                let Some(message) = rank.handle_timeout(now) else { continue };
                let src = hosts[number as usize];
                let Some(to) = collective.rank_of(message.dst) else { continue };
                let at = now.saturating_add(delay(src, message.dst, message.bytes));
                events.push(at, Event::Arrive { from: number, to, number: message.number });
            }
        }
    }
    last.since(Time::ZERO)
}

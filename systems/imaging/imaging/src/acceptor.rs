//! Accepting connections, which goes on when the system refuses one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rackweave_core::{Span, Time};
use rackweave_linux::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::ipv4;

/// The shortest time between two reports of a failure.
const REPORT_EACH: Span = Span::from_secs(60);
/// How long nothing is accepted after a failure: others may close files meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections that are counted by address, with a bound for all and one for each address, so that one host cannot take the room of all.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    most_of_one: usize,
    used: RefCell<BTreeMap<Ipv4Addr, usize>>,
}

impl Slots {
    pub(crate) const fn new(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, used: RefCell::new(BTreeMap::new()) }
    }

    /// Counts another connection of an address. Returns false if there is no room for it.
    pub(crate) fn add(&self, from: Ipv4Addr) -> bool {
        let mut used = self.used.borrow_mut();
        let of_one = used.get(&from).copied().unwrap_or(0);
        let has_room = used.values().sum::<usize>() < self.most && of_one < self.most_of_one;
        if has_room {
            used.insert(from, of_one + 1);
        }
        has_room
    }

    pub(crate) fn remove(&self, from: Ipv4Addr) {
        let mut used = self.used.borrow_mut();
        match used.get_mut(&from) {
            Some(of_one) if *of_one > 1 => *of_one -= 1,
            _ => drop(used.remove(&from)),
        }
    }
}

/// A listener whose failures are reported at most once a minute.
#[derive(Debug)]
pub(crate) struct Acceptor {
    listener: TcpListener,
    clock: Clock,
    /// When a failure was reported last.
    reported: Option<Time>,
}

impl Acceptor {
    pub(crate) const fn new(listener: TcpListener, clock: Clock) -> Self {
        Self { listener, clock, reported: None }
    }

    /// Waits for a connection, and returns it with its peer's address. `report` gets the reason why the system refuses one.
    pub(crate) async fn next(&mut self, report: impl Fn(String)) -> (TcpStream, Ipv4Addr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    if let Some(from) = ipv4(from) {
                        return (stream, from);
                    }
                }
                // The peer has ended the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if self.is_due() {
                        report(error.to_string());
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Reports why this process itself does not take a connection, at most as often as failures of the system.
    pub(crate) fn refused(&mut self, report: impl Fn(String), why: impl FnOnce() -> String) {
        if self.is_due() {
            report(why());
        }
    }

    /// Whether a failure is to be reported now.
    fn is_due(&mut self) -> bool {
        let now = self.clock.now();
        let is_due = self.reported.is_none_or(|last| now.since(last) >= REPORT_EACH);
        if is_due {
            self.reported = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_does_not_take_the_room_of_all() {
        let slots = Slots::new(100, 8);
        let address = |number: u32| Ipv4Addr::from_bits(number);
        assert_eq!((0..20).filter(|_| slots.add(address(1))).count(), 8);
        assert!(slots.add(address(2)));
        slots.remove(address(1));
        assert!(slots.add(address(1)) && !slots.add(address(1)));
        assert_eq!((3..1000).filter(|number| slots.add(address(*number))).count(), 100 - 8 - 1);
        (0..8).for_each(|_| slots.remove(address(1)));
        assert!(slots.add(address(5000)) && !slots.used.borrow().contains_key(&address(1)));
    }
}

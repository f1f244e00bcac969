//! Accepting connections, which goes on when the system refuses one.

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

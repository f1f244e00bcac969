//! The I/O of protocol code over UDP: sockets, batches, the clock, and the order of work in a turn.
//!
//! quinn splits the same way, between `quinn::Endpoint` (sockets and tasks) and `quinn-proto` (state machines); smoltcp
//! does it with `phy::wait` and `Interface::poll`. [`Driver`] has everything that touches the system, and [`Driven`] is
//! what [`Driver::turn`] needs of the host around it. `Driven` is a level above [`rackweave_core::Node`], after whose
//! methods its own are named: it sees datagrams, not packets, and a host may drive several nodes.
//!
//! [`crate::TcpEndpoint`] is not `Driven`: it waits for many connections with epoll, each with a read and a write
//! position of its own, and has neither datagrams nor a batch. [`crate::switch::Switch`] is not either: it reads one
//! socket per host into a common buffer and hands over packets at the times at which they are due. Both use the same
//! [`Clock`] and [`wait::until`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use rackweave_core::{Span, Time};
use smallvec::SmallVec;

use crate::clock::{Clock, realtime_ns};
use crate::sys::{self, ReceiveBatch, SendBatch, UdpSocket, tighten_timers};
use crate::wait;

/// The most calls to receive from one socket in a turn, so that timers and sending are served under load.
const RECEIVE_CALLS: usize = 4;

/// With [`Driver::dropping_stale`], datagrams for which the socket's buffer had no room are dropped when the driver has
/// not tried to send them for this long. Then the host stood still or its link is very slow, and peers have taken the
/// packet for lost, and its exchange for ended, before. The value is how late packets may be that transports expect.
const STALE: Span = Span::from_ms(200);

/// What a [`Driver`] needs of the machine that it runs on. [`UdpSocket`] is the operating system's; a simulator provides another
/// one, so that a host's decisions above it are the same code in both.
pub trait Platform {
    /// Passes the batch on, as far as there is room; the rest stays in the batch. Returns the number of datagrams that were
    /// refused, which are lost.
    ///
    /// # Errors
    /// If the socket has failed.
    fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64>;

    /// Receives what has arrived, as far as the batch has room.
    ///
    /// # Errors
    /// If the socket has failed.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<()>;

    /// The time on a clock of this machine.
    fn now(&self, clock: Clock) -> Time;

    /// A random number that nobody can guess.
    fn random(&mut self) -> u128;

    /// The time since 1970 in nanoseconds.
    fn realtime_ns(&self) -> u64;

    /// Whether the processor has instructions for AES.
    fn has_aes(&self) -> bool;
}

impl Platform for UdpSocket {
    fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64> {
        Self::send(self, batch)
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<()> {
        Self::receive(self, batch).map(|_| ())
    }

    fn now(&self, clock: Clock) -> Time {
        clock.now()
    }

    fn random(&mut self) -> u128 {
        crate::random()
    }

    fn realtime_ns(&self) -> u64 {
        realtime_ns()
    }

    fn has_aes(&self) -> bool {
        sys::has_aes()
    }
}

/// A host that [`Driver::turn`] drives. Times passed to it never decrease.
pub trait Driven<P = UdpSocket> {
    /// The driver that belongs to this host.
    fn driver(&mut self) -> &mut Driver<P>;

    /// Handles the datagrams of one call to receive; there is at least one.
    fn handle_datagrams(&mut self, now: Time, batch: &ReceiveBatch);

    /// Serves the timers that have expired, and what else precedes sending; called in every turn. `more` means that
    /// datagrams were left in the socket's buffer. `Break` ends the turn without sending, and the next one is due at once.
    fn handle_timeout(&mut self, now: Time, more: bool) -> ControlFlow<()>;

    /// Writes packets to [`Driver::batch`] and flushes them, as far as pacing and the socket's buffer allow. Returns
    /// whether the next turn is to continue at once.
    ///
    /// # Errors
    /// If the socket has failed.
    fn transmit(&mut self, now: Time) -> io::Result<bool>;

    /// Ends a turn that left nothing to receive and nothing to send. Returns when the next one is due, if no socket
    /// becomes readable (or writable, if [`Driver::is_blocked`]) before; a time that has passed means at once.
    fn finish_turn(&mut self, now: Time) -> Option<Time>;
}

/// The counters of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// Datagrams that the kernel has accepted.
    pub sent: u64,
    /// Datagrams that the kernel has refused, or that were dropped after they had waited for room for too long; they are lost.
    pub refused: u64,
    /// System calls that sent datagrams.
    pub send_calls: u64,
    /// Trains of datagrams in those calls, each segmented by the kernel or the network interface.
    pub trains: u64,
}

/// A UDP socket with its clock and the batches in which datagrams are sent and received.
#[derive(Debug)]
pub struct Driver<P = UdpSocket> {
    clock: Clock,
    /// The latest time that was returned by [`Driver::now`].
    last_now: Time,
    socket: P,
    receive_only: Option<P>,
    /// `None` while its datagrams are handled.
    received: Option<ReceiveBatch>,
    batch: SendBatch,
    /// Whether a turn may skip receiving after one that has emptied the sockets.
    may_skip: bool,
    /// The sockets were empty in the last turn, and there was no wait since.
    drained: bool,
    sent: u64,
    refused: u64,
    receive_calls: u64,
    receive_batches: u64,
    /// Whether the last turn that received has left datagrams in a socket.
    left: bool,
    /// What had arrived by then was handled.
    emptied: Time,
    /// Whether [`STALE`] datagrams are dropped.
    drops_stale: bool,
    /// Whether the last attempt to send has left datagrams in the batch, and when that was.
    blocked: Option<Time>,
}

impl<P: Platform> Driver<P> {
    /// A driver that sends by this socket and receives from it.
    #[must_use]
    pub fn new(clock: Clock, socket: P) -> Self {
        Self {
            clock,
            last_now: Time::ZERO,
            socket,
            receive_only: None,
            received: Some(ReceiveBatch::default()),
            batch: SendBatch::default(),
            may_skip: false,
            drained: false,
            sent: 0,
            refused: 0,
            receive_calls: 0,
            receive_batches: 0,
            left: false,
            emptied: Time::ZERO,
            drops_stale: false,
            blocked: None,
        }
    }

    /// Drops datagrams that have waited for room in the socket's buffer for longer than peers take packets for delayed. This is for
    /// exchanges, which have ended by then; the data of a cast stay welcome.
    #[must_use]
    pub const fn dropping_stale(mut self) -> Self {
        self.drops_stale = true;
        self
    }

    /// Receives from a second socket too, for instance one that is bound to a multicast group.
    #[must_use]
    pub fn with_receiver(mut self, socket: Option<P>) -> Self {
        self.receive_only = socket;
        self
    }

    /// The clock to which all times of this driver refer.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// The present time, never less than a time that was returned before.
    pub fn now(&mut self) -> Time {
        self.last_now = self.peek_now();
        self.last_now
    }

    /// What [`Driver::now`] would return.
    #[must_use]
    pub fn peek_now(&self) -> Time {
        self.last_now.max(self.socket.now(self.clock))
    }

    /// The last time that [`Driver::now`] returned.
    #[must_use]
    pub const fn last_now(&self) -> Time {
        self.last_now
    }

    /// The machine that it runs on.
    pub const fn platform(&mut self) -> &mut P {
        &mut self.socket
    }

    /// The sockets; the first one is the one that sends.
    pub fn sockets(&self) -> impl Iterator<Item = &P> {
        std::iter::once(&self.socket).chain(&self.receive_only)
    }

    /// The datagrams that wait to be sent.
    pub const fn batch(&mut self) -> &mut SendBatch {
        &mut self.batch
    }

    /// Takes an address that packets were to be sent from and that this host does not have any more.
    pub fn take_lost(&mut self) -> Option<IpAddr> {
        self.batch.take_lost()
    }

    /// Whether datagrams wait because the socket's send buffer is full: the next turn is due when it is writable.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        !self.batch.is_empty()
    }

    /// The counters since the driver was created.
    #[must_use]
    pub const fn stats(&self) -> DriverStats {
        let (send_calls, trains) = self.batch.calls();
        DriverStats { sent: self.sent, refused: self.refused, send_calls, trains }
    }

    /// The number of calls to receive since the driver was created.
    #[must_use]
    pub const fn receive_calls(&self) -> u64 {
        self.receive_calls
    }

    /// The number of calls to receive that have returned datagrams.
    #[must_use]
    pub const fn receive_batches(&self) -> u64 {
        self.receive_batches
    }

    /// Whether the last turn that received may have left datagrams in a socket, so that it does not become readable again for them.
    #[must_use]
    pub const fn left_datagrams(&self) -> bool {
        self.left
    }

    /// A time by which everything that had arrived was handled.
    #[must_use]
    pub const fn emptied_at(&self) -> Time {
        self.emptied
    }

    /// Passes the batch to the kernel; what its buffer has no room for stays in the batch.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let waiting = self.batch.len();
        let refused = self.socket.send(&mut self.batch)?;
        self.refused += refused;
        self.sent += (waiting - self.batch.len()) as u64 - refused;
        self.blocked = (!self.batch.is_empty()).then_some(self.last_now);
        Ok(())
    }

    /// Drops what an earlier turn could not send, if that was too long ago. What is queued after that turn waits behind it and goes with
    /// it; of a turn that has begun nothing is in the batch yet.
    fn drop_stale(&mut self) {
        if self.drops_stale
            && let Some(since) = self.blocked
            && self.now().since(since) >= STALE
        {
            self.blocked = None;
            self.refused += self.batch.discard() as u64;
        }
    }

    /// One turn of a host: receives, serves timers, sends. Returns when the next one is due if nothing happens before; a
    /// time that has passed means at once.
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn turn<D: Driven<P>>(host: &mut D) -> io::Result<Option<Time>> {
        let more = Self::receive(host)?;
        host.driver().left = more;
        Self::serve(host, more)
    }

    /// [`Driver::turn`] without receiving, for a host that waits for the socket to become readable elsewhere: a call to
    /// receive would usually find nothing.
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn send_turn<D: Driven<P>>(host: &mut D) -> io::Result<Option<Time>> {
        Self::serve(host, false)
    }

    /// Serves timers and sends.
    fn serve<D: Driven<P>>(host: &mut D, more: bool) -> io::Result<Option<Time>> {
        host.driver().drop_stale();
        let now = host.driver().now();
        if host.handle_timeout(now, more).is_break() || host.transmit(now)? || more {
            return Ok(Some(now));
        }
        Ok(host.finish_turn(now))
    }

    /// Receives what has arrived, by a bounded number of calls. Returns whether there may be more.
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn receive<D: Driven<P>>(host: &mut D) -> io::Result<bool> {
        let driver = host.driver();
        // Before datagrams are handled, whose answers are not stale.
        driver.drop_stale();
        if std::mem::take(&mut driver.drained) {
            return Ok(false);
        }
        let mut batch = driver.received.take().unwrap_or_default();
        let result = Self::receive_into(host, &mut batch);
        let driver = host.driver();
        driver.received = Some(batch);
        driver.drained = driver.may_skip && matches!(result, Ok(false));
        result
    }

    fn receive_into<D: Driven<P>>(host: &mut D, batch: &mut ReceiveBatch) -> io::Result<bool> {
        let mut more = false;
        // An earlier time is as true, and costs no call.
        let began = host.driver().last_now;
        for index in 0..host.driver().sockets().count() {
            for call in 1..=RECEIVE_CALLS {
                let driver = host.driver();
                let mut sockets =
                    std::iter::once(&mut driver.socket).chain(&mut driver.receive_only);
                let Some(socket) = sockets.nth(index) else { break };
                socket.receive(batch)?;
                driver.receive_calls += 1;
                if !batch.is_empty() {
                    driver.receive_batches += 1;
                    let now = driver.now();
                    host.handle_datagrams(now, batch);
                }
                if !batch.was_full() {
                    break;
                }
                more |= call == RECEIVE_CALLS;
            }
        }
        if !more {
            host.driver().emptied = began;
        }
        Ok(more)
    }

    /// From now on, the first turn after one that has emptied the sockets does not receive: it sends the answers of the
    /// application to what that one delivered, and the wait that follows notices what has arrived. Never two in a row.
    pub const fn expect_wait(&mut self) {
        (self.may_skip, self.drained) = (true, false);
    }
}

impl Driver {
    /// The address that the sending socket is bound to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Waits until a socket is readable (or writable, if datagrams wait), one of `others` is readable, or a time; it polls
    /// for the span of `busy` before it sleeps. Makes the timers of the calling thread exact ([`tighten_timers`]).
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(
        &mut self,
        until: Option<Time>,
        busy: Span,
        others: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        tighten_timers();
        self.drained = false;
        let mut fds: SmallVec<[(BorrowedFd<'_>, bool); 4]> =
            self.sockets().map(|socket| (socket.as_fd(), false)).collect();
        fds[0].1 = self.is_blocked();
        fds.extend(others.iter().map(|other| (*other, false)));
        wait::until(self.clock, &fds, until, busy)
    }
}

impl AsFd for Driver {
    /// The sending socket's.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A machine that a test steps.
    struct Machine {
        now: Time,
        has_room: bool,
        inbox: VecDeque<(SocketAddr, u8, Vec<u8>)>,
        sent: Vec<Vec<u8>>,
    }

    impl Platform for Machine {
        fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64> {
            while self.has_room
                && let Some((_, _, bytes)) = batch.pop()
            {
                self.sent.push(bytes);
            }
            Ok(0)
        }

        fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<()> {
            batch.fill(&mut self.inbox);
            Ok(())
        }

        fn now(&self, _: Clock) -> Time {
            self.now
        }

        fn random(&mut self) -> u128 {
            0
        }

        fn realtime_ns(&self) -> u64 {
            0
        }

        fn has_aes(&self) -> bool {
            false
        }
    }

    /// Answers each datagram with its bytes.
    struct Echo(Driver<Machine>);

    impl Driven<Machine> for Echo {
        fn driver(&mut self) -> &mut Driver<Machine> {
            &mut self.0
        }

        fn handle_datagrams(&mut self, _: Time, batch: &ReceiveBatch) {
            for datagram in batch.datagrams() {
                let write = |out: &mut Vec<u8>| out.extend_from_slice(datagram.bytes);
                self.0.batch().push(datagram.from, 0, write, SmallVec::new());
            }
        }

        fn handle_timeout(&mut self, _: Time, _: bool) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }

        fn transmit(&mut self, _: Time) -> io::Result<bool> {
            self.0.flush().map(|()| false)
        }

        fn finish_turn(&mut self, _: Time) -> Option<Time> {
            None
        }
    }

    fn echo(drops_stale: bool) -> Echo {
        let machine =
            Machine { now: Time::ZERO, has_room: true, inbox: VecDeque::new(), sent: Vec::new() };
        let driver = Driver::new(Clock::with_origin(0), machine);
        Echo(if drops_stale { driver.dropping_stale() } else { driver })
    }

    /// A turn at this time, before which this datagram has arrived.
    fn turn(host: &mut Echo, ms: u64, arrived: u8) {
        let from = SocketAddr::from(([127, 0, 0, 1], 9));
        host.0.socket.now = Time::ZERO + Span::from_ms(ms);
        host.0.socket.inbox.push_back((from, 0, vec![arrived]));
        Driver::turn(host).unwrap();
    }

    #[test]
    fn a_host_that_was_idle_sends_its_answers() {
        let mut host = echo(true);
        for (number, ms) in [0, 199, 1000, 100_000].into_iter().enumerate() {
            turn(&mut host, ms, number as u8);
        }
        assert_eq!(host.0.socket.sent, [[0], [1], [2], [3]]);
        assert_eq!(host.0.stats().refused, 0);
    }

    #[test]
    fn what_a_host_that_stood_still_could_not_send_is_dropped_where_that_is_wanted() {
        for (drops_stale, after, sent) in
            [(true, 399, &[[1], [2], [3]][..]), (true, 400, &[[3]]), (false, 400, &[[1], [2], [3]])]
        {
            let mut host = echo(drops_stale);
            host.0.socket.has_room = false;
            // The host still takes turns: the second one is the last attempt.
            turn(&mut host, 100, 1);
            turn(&mut host, 200, 2);
            host.0.socket.has_room = true;
            turn(&mut host, after, 3);
            assert_eq!(host.0.socket.sent, sent, "{drops_stale} {after}");
            assert_eq!(host.0.stats().refused, 3 - sent.len() as u64);
        }
    }
}

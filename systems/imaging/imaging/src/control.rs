//! The socket of control messages.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use rackweave_linux::sys::disconnect;
use rackweave_wire::frisbee::{Auth, Body, Direction, Header, decode, encode};
use socket2::SockRef;
use tokio::net::UdpSocket;

use crate::ipv4;

/// Control messages to and from hosts with the same port as this one.
#[derive(Debug)]
pub(crate) struct Control {
    socket: UdpSocket,
    port: u16,
    auth: Auth,
    /// Messages that were dropped because they were not well-formed, had another source than they said, were of another session, or had no
    /// right tag.
    refused: Cell<u64>,
    /// Messages that the system did not accept for sending.
    unsent: Cell<u64>,
}

/// The session that messages belong to, and who has made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sealing {
    pub(crate) session: u64,
    pub(crate) direction: Direction,
}

/// The largest message: a report with its header and trailer has 1072 bytes.
const MOST_BYTES: usize = 2048;
/// Messages that are refused without a pause. Whoever receives has timers to look after, also during a flood.
const REFUSED_AT_ONCE: u32 = 64;

impl Control {
    pub(crate) const fn new(socket: UdpSocket, port: u16, auth: Auth) -> Self {
        Self { socket, port, auth, refused: Cell::new(0), unsent: Cell::new(0) }
    }

    /// Returns how many messages were dropped on arrival.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Returns how many messages the system did not accept for sending.
    pub(crate) const fn unsent(&self) -> u64 {
        self.unsent.get()
    }

    /// Lets the system drop all messages that do not come from this host; with `None`, from nobody. What it drops takes no room in the
    /// queue of the socket, so that a flood by others displaces nothing.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn only_from(&self, host: Option<Ipv4Addr>) -> io::Result<()> {
        match host {
            Some(host) => SockRef::from(&self.socket)
                .connect(&SocketAddr::V4(SocketAddrV4::new(host, self.port)).into()),
            None => disconnect(&self.socket),
        }
    }

    /// Sends a message whose payload `append` writes. A message that the system does not accept is lost, as in the network.
    pub(crate) fn send(
        &self,
        own: Ipv4Addr,
        to: Ipv4Addr,
        sealing: Sealing,
        body: Body,
        append: impl FnOnce(&mut Vec<u8>),
    ) {
        let header = Header { source: own.octets(), body };
        let mut bytes = Vec::with_capacity(128);
        encode(&header, &mut bytes);
        append(&mut bytes);
        self.auth.seal(&mut bytes, 0, sealing.session, sealing.direction);
        // Not by tokio: it accepts nothing before the runtime has once waited for events. The first join would be lost, which is
        // repeated half a second later.
        let to = SocketAddr::from((to, self.port)).into();
        let socket = SockRef::from(&self.socket);
        let mut sent = socket.send_to(&bytes, &to);
        if sent.as_ref().is_err_and(is_about_a_peer) {
            sent = socket.send_to(&bytes, &to);
        }
        self.unsent.set(self.unsent.get() + u64::from(sent.is_err()));
    }

    /// Waits for a message, and returns its sender, the message and its payload. `expected` is what messages of a sender must have; `None`
    /// for a host that is not listened to. Returns `None` after a number of messages that were refused.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn receive<'a>(
        &self,
        buffer: &'a mut Vec<u8>,
        expected: impl Fn(Ipv4Addr) -> Option<Sealing>,
    ) -> io::Result<Option<(Ipv4Addr, Body, &'a [u8])>> {
        buffer.resize(MOST_BYTES, 0);
        for _ in 0..REFUSED_AT_ONCE {
            let (len, from) = match self.socket.recv_from(buffer).await {
                Ok(received) => received,
                // An earlier message could not be delivered: its receiver has gone.
                Err(error) if is_about_a_peer(&error) => continue,
                Err(error) => return Err(error),
            };
            match self.read(from, &buffer[..len], &expected) {
                Some((from, body, payload)) => return Ok(Some((from, body, &buffer[payload]))),
                None => self.refused.set(self.refused.get() + 1),
            }
        }
        Ok(None)
    }

    fn read(
        &self,
        from: SocketAddr,
        bytes: &[u8],
        expected: impl Fn(Ipv4Addr) -> Option<Sealing>,
    ) -> Option<(Ipv4Addr, Body, std::ops::Range<usize>)> {
        let address = ipv4(from)?;
        let Sealing { session, direction } = expected(address)?;
        let decoded = decode(bytes).ok()?;
        // Frisbee's rule: the message names its sender, and comes from the port of the session.
        let is_from = decoded.header.source == address.octets() && from.port() == self.port;
        let is_of_session = is_from && self.auth.session(bytes, direction) == Some(session);
        is_of_session.then_some((address, decoded.header.body, decoded.payload))
    }
}

/// Whether an error of a UDP socket reports what happened to an earlier message.
fn is_about_a_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable | Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rackweave_wire::frisbee::{Chunks, Key};
    use tokio::time::timeout;

    use super::*;

    const A: Ipv4Addr = Ipv4Addr::LOCALHOST;
    const B: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    const SEALING: Sealing = Sealing { session: 9, direction: Direction::ToServer };

    fn pair(auth: Auth) -> (Control, Control) {
        let (one, _tcp) = crate::bind(SocketAddrV4::new(A, 0)).unwrap();
        let port = one.local_addr().unwrap().port();
        let (other, _tcp) = crate::bind(SocketAddrV4::new(B, port)).unwrap();
        (Control::new(one, port, auth), Control::new(other, port, auth))
    }

    async fn next(
        control: &Control,
        expected: impl Fn(Ipv4Addr) -> Option<Sealing>,
    ) -> Option<(Ipv4Addr, Body)> {
        let mut buffer = Vec::new();
        let received = control.receive(&mut buffer, expected);
        let received = timeout(Duration::from_secs(60), received).await.unwrap().unwrap();
        received.map(|(from, body, _)| (from, body))
    }

    const BATCH: Body = Body::Batch(Chunks { image: 1, first: 2, count: 3, tries: 0 });

    /// The sockets are as new as those of a client that joins.
    #[test]
    fn the_first_message_is_sent_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let received = runtime.block_on(async {
            let (one, other) = pair(Auth::Number);
            one.send(A, B, SEALING, BATCH, |_| {});
            assert_eq!(one.unsent.get(), 0);
            next(&other, |_| Some(SEALING)).await
        });
        assert_eq!(received, Some((A, BATCH)));
    }

    /// What was recorded in one session is sent in another one, and back to where it came from.
    #[tokio::test]
    async fn messages_of_another_session_direction_or_host_are_refused() {
        for auth in [Auth::Number, Auth::Key(Key::derive(b"secret"))] {
            let (one, other) = pair(auth);
            let earlier = Sealing { session: 8, ..SEALING };
            let reflected = Sealing { direction: Direction::FromServer, ..SEALING };
            one.send(A, B, earlier, BATCH, |_| {});
            one.send(A, B, reflected, BATCH, |_| {});
            one.send(B, B, SEALING, BATCH, |_| {});
            let exit = Body::Exit { client: 1, image: 2 };
            one.send(A, B, SEALING, exit, |_| {});
            let taken = next(&other, |from| (from == A).then_some(SEALING)).await;
            // Without a key, only the rule of each message tells its direction.
            let (body, refused) = if auth == Auth::Number { (BATCH, 1) } else { (exit, 3) };
            assert_eq!((taken, other.refused()), (Some((A, body)), refused), "{auth:?}");
        }
    }

    #[tokio::test]
    async fn a_flood_of_others_is_dropped_by_the_system_or_interrupted() {
        let (one, other) = pair(Auth::Number);
        let flood = |count: u32| (0..count).for_each(|_| one.send(A, B, SEALING, BATCH, |_| {}));
        flood(REFUSED_AT_ONCE);
        assert_eq!(next(&other, |_| None).await, None);
        assert_eq!(other.refused(), u64::from(REFUSED_AT_ONCE));
        other.only_from(Some(Ipv4Addr::new(127, 0, 0, 3))).unwrap();
        flood(3);
        other.only_from(None).unwrap();
        let exit = Body::Exit { client: 1, image: 2 };
        one.send(A, B, SEALING, exit, |_| {});
        assert_eq!(next(&other, |_| Some(SEALING)).await, Some((A, exit)));
    }
}

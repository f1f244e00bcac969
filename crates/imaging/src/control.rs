//! The socket of control messages.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_wire::frisbee::{Body, Header, Key, decode, encode};
use socket2::SockRef;
use tokio::net::UdpSocket;

use crate::ipv4;

/// Control messages to and from hosts with the same port as this one.
#[derive(Debug)]
pub(crate) struct Control {
    socket: UdpSocket,
    port: u16,
    key: Option<Key>,
    /// Messages that were dropped because they were not well-formed, had another source than they said, or no right tag.
    refused: Cell<u64>,
    /// Messages that the system did not accept for sending.
    unsent: Cell<u64>,
}

/// The largest message: a report with its header and tag has 1064 bytes.
const MOST_BYTES: usize = 2048;

impl Control {
    pub(crate) const fn new(socket: UdpSocket, port: u16, key: Option<Key>) -> Self {
        Self { socket, port, key, refused: Cell::new(0), unsent: Cell::new(0) }
    }

    /// Returns how many messages were dropped on arrival.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Returns how many messages the system did not accept for sending.
    pub(crate) const fn unsent(&self) -> u64 {
        self.unsent.get()
    }

    /// Sends a message whose payload `append` writes. A message that the system does not accept is lost, as in the network.
    pub(crate) fn send(
        &self,
        own: Ipv4Addr,
        to: Ipv4Addr,
        body: Body,
        append: impl FnOnce(&mut Vec<u8>),
    ) {
        let header = Header { source: own.octets(), body };
        let mut bytes = Vec::with_capacity(128);
        encode(&header, &mut bytes);
        append(&mut bytes);
        if let Some(key) = &self.key {
            key.seal(&mut bytes, 0);
        }
        // Not by tokio: it accepts nothing before the runtime has once waited for events. The first join would be lost, which is
        // repeated half a second later.
        let to = SocketAddr::from((to, self.port));
        let sent = SockRef::from(&self.socket).send_to(&bytes, &to.into());
        self.unsent.set(self.unsent.get() + u64::from(sent.is_err()));
    }

    /// Waits for a message, and returns its sender, the message and its payload.
    ///
    /// # Errors
    /// If the socket fails.
    pub(crate) async fn receive<'a>(
        &self,
        buffer: &'a mut Vec<u8>,
    ) -> io::Result<(Ipv4Addr, Body, &'a [u8])> {
        buffer.resize(MOST_BYTES, 0);
        let (from, body, payload) = loop {
            let (len, from) = match self.socket.recv_from(buffer).await {
                Ok(received) => received,
                // An earlier message could not be delivered: its receiver has gone.
                Err(error) if is_about_a_peer(&error) => continue,
                Err(error) => return Err(error),
            };
            match self.read(from, &buffer[..len]) {
                Some(read) => break read,
                None => self.refused.set(self.refused.get() + 1),
            }
        };
        Ok((from, body, &buffer[payload]))
    }

    fn read(
        &self,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Option<(Ipv4Addr, Body, std::ops::Range<usize>)> {
        let decoded = decode(bytes).ok()?;
        let address = ipv4(from)?;
        // Frisbee's rule: the message names its sender, and comes from the port of the session.
        let is_from = decoded.header.source == address.octets() && from.port() == self.port;
        let is_sealed = self.key.as_ref().is_none_or(|key| key.is_sealed(bytes));
        (is_from && is_sealed).then_some((address, decoded.header.body, decoded.payload))
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
    use std::net::SocketAddrV4;
    use std::time::Duration;

    use rackweave_wire::frisbee::Chunks;
    use tokio::time::timeout;

    use super::*;

    /// The sockets are as new as those of a client that joins.
    #[test]
    fn the_first_message_is_sent_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let chunks = Chunks { image: 1, first: 2, count: 3, tries: 0 };
        let received = runtime.block_on(async {
            let (a, b) = (Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2));
            let (one, _tcp) = crate::bind(SocketAddrV4::new(a, 0)).unwrap();
            let port = one.local_addr().unwrap().port();
            let (other, _tcp) = crate::bind(SocketAddrV4::new(b, port)).unwrap();
            let (one, other) = (Control::new(one, port, None), Control::new(other, port, None));
            one.send(a, b, Body::Batch(chunks), |_| {});
            assert_eq!(one.unsent.get(), 0);
            let mut buffer = Vec::new();
            let received = timeout(Duration::from_secs(60), other.receive(&mut buffer)).await;
            received.map(|received| received.map(|(from, body, _)| (from, body)).unwrap())
        });
        assert_eq!(received, Ok((Ipv4Addr::LOCALHOST, Body::Batch(chunks))));
    }
}

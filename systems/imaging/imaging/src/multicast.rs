//! The sockets of a Frisbee session: a group of IP multicast, at a port that all hosts of the session use.
//!
//! Messages are those of [`rackweave_wire::frisbee`]. With a key each of them is followed by a tag, of the key over the root hash of
//! the image and the message: receivers of Frisbee's packets ignore what follows a message. The root is in it because messages do not
//! name their image, so that a block of an earlier session must not count in a later one.

use std::cell::Cell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use rackweave_image::Hash;
use rackweave_linux::sys::{ReceiveBatch, SendBatch, UdpSocket};
use rackweave_wire::frisbee::{Body, Header, Key, decode, encode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::{CONTROL_TOS, ipv4};

/// Where a session takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// The multicast address.
    pub(crate) address: Ipv4Addr,
    /// The port, from which messages are sent, too.
    pub(crate) port: u16,
    /// The server's address: blocks from others are not accepted.
    pub(crate) server: Ipv4Addr,
}

/// The length of an encoded [`Group`].
pub(crate) const GROUP: usize = 10;

impl Group {
    pub(crate) fn encode(&self) -> [u8; GROUP] {
        let mut bytes = [0; GROUP];
        bytes[..4].copy_from_slice(&self.address.octets());
        bytes[4..8].copy_from_slice(&self.server.octets());
        bytes[8..].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// `None` if these are not addresses and a port of a session.
    pub(crate) fn decode(bytes: [u8; GROUP]) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, low, high] = bytes;
        let (address, server) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
        let port = u16::from_le_bytes([low, high]);
        let is_right = is_scoped(address) && port > 0 && !server.is_multicast();
        is_right.then_some(Self { address, port, server })
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.address, self.port)
    }
}

/// Whether an address is one of administratively scoped multicast (RFC 2365), which stays within a site.
pub(crate) const fn is_scoped(address: Ipv4Addr) -> bool {
    address.octets()[0] == 239
}

/// Frisbee's TTL of multicast packets.
const HOPS: u32 = 5;
/// Frisbee's buffers of sockets have 1 MiB, and 4 MiB at most.
const SEND_BUFFER: usize = 1 << 20;
const RECEIVE_BUFFER: usize = 4 << 20;

/// Registers a socket with tokio.
#[expect(
    deprecated,
    reason = "what replaces it is unsafe, and asks for what holds here: a socket owns its descriptor and never changes it"
)]
fn watch(socket: UdpSocket) -> io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

/// The sockets of one host in a session.
#[derive(Debug)]
pub(crate) struct Channel {
    /// It is bound to this host's address, by which others recognise it, and receives what is for this host alone.
    sender: AsyncFd<UdpSocket>,
    /// It is bound to the group.
    receiver: AsyncFd<UdpSocket>,
    group: Group,
    own: Ipv4Addr,
    /// The key of all hosts, and the root of the image.
    seal: Option<(Key, Hash)>,
    outgoing: SendBatch,
    incoming: ReceiveBatch,
    refused: Cell<u64>,
    unsent: u64,
}

impl Channel {
    /// Joins a session, on the interface with the address `own`.
    pub(crate) fn open(
        group: Group,
        own: Ipv4Addr,
        key: Option<Key>,
        root: &Hash,
    ) -> io::Result<Self> {
        // The sessions of all images have one port.
        let sender = UdpSocket::bind_shared(SocketAddr::from((own, group.port)), SEND_BUFFER)?;
        sender.send_groups_by(own, HOPS, false)?;
        let at = SocketAddr::from((group.address, group.port));
        let receiver = UdpSocket::bind(at, RECEIVE_BUFFER, false)?;
        receiver.set_buffers(RECEIVE_BUFFER, SEND_BUFFER)?;
        receiver.join(group.address, own)?;
        Ok(Self {
            sender: watch(sender)?,
            receiver: watch(receiver)?,
            group,
            own,
            seal: key.map(|key| (key, *root)),
            outgoing: SendBatch::default(),
            incoming: ReceiveBatch::default(),
            refused: Cell::new(0),
            unsent: 0,
        })
    }

    /// Messages that were dropped on arrival: malformed, from another host than they say, or without the right tag.
    pub(crate) const fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Messages that the system did not accept for sending.
    pub(crate) const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// The number of messages that wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.outgoing.len()
    }

    /// Adds a message to the queue of messages to send. A payload that is shorter than the message says is padded.
    pub(crate) fn push(&mut self, body: Body, payload: &[u8]) {
        let to = SocketAddr::from((self.group.address, self.group.port));
        let is_block = matches!(body, Body::Block { .. });
        let class = if is_block { 0 } else { CONTROL_TOS as u8 };
        let write = Self::writer(self.own, self.seal, body, payload);
        self.outgoing.push(to, class, write, Default::default());
    }

    /// Sends a message to one host, at once and in a packet of its own, as switches examine no others. What the system does not accept is
    /// lost.
    pub(crate) fn send_to(&mut self, to: Ipv4Addr, body: Body, payload: &[u8]) -> io::Result<()> {
        let write = Self::writer(self.own, self.seal, body, payload);
        let to = SocketAddr::from((to, self.group.port));
        let mut alone = SendBatch::default();
        alone.push(to, CONTROL_TOS as u8, write, Default::default());
        self.unsent += self.sender.get_mut().send(&mut alone)? + alone.len() as u64;
        Ok(())
    }

    /// What appends a message to a buffer.
    fn writer(
        own: Ipv4Addr,
        seal: Option<(Key, Hash)>,
        body: Body,
        payload: &[u8],
    ) -> impl FnOnce(&mut Vec<u8>) {
        let header = Header { source: own.octets(), body };
        move |out| {
            let start = out.len();
            encode(&header, out);
            out.extend_from_slice(payload);
            out.resize(start + (header.header_bytes() + header.payload_len()) as usize, 0);
            if let Some((key, root)) = &seal {
                let tag = key.tag(&[root, &out[start..]]);
                out.extend_from_slice(&tag);
            }
        }
    }

    /// Sends what waits. Returns false if the send buffer has no room for all of it.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        self.unsent += self.sender.get_mut().send(&mut self.outgoing)?;
        Ok(self.outgoing.is_empty())
    }

    /// Waits for messages. Forgets messages that were received before.
    pub(crate) async fn receive(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.receiver.readable().await?;
            if ready.get_inner().receive(&mut self.incoming)? > 0 {
                return Ok(());
            }
            ready.clear_ready();
        }
    }

    /// As [`Self::receive`], also of messages for this host alone. Returns whether such ones were received.
    pub(crate) async fn receive_any(&mut self) -> io::Result<bool> {
        loop {
            let (mut ready, is_direct) = tokio::select! {
                ready = self.receiver.readable() => (ready?, false),
                ready = self.sender.readable() => (ready?, true),
            };
            if ready.get_inner().receive(&mut self.incoming)? > 0 {
                return Ok(is_direct);
            }
            ready.clear_ready();
        }
    }

    /// Whether more may have arrived than was received at once.
    pub(crate) const fn has_more(&self) -> bool {
        self.incoming.was_full()
    }

    /// Returns the messages that were received, each with its sender and its payload. Those of this host are left out.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Ipv4Addr, Body, &[u8])> {
        self.incoming.datagrams().filter_map(|datagram| {
            let from = ipv4(datagram.from)?;
            if from == self.own {
                return None;
            }
            let read = self.read(from, datagram.from.port(), datagram.bytes);
            if read.is_none() {
                self.refused.set(self.refused.get() + 1);
            }
            read
        })
    }

    fn read<'a>(
        &self,
        from: Ipv4Addr,
        port: u16,
        bytes: &'a [u8],
    ) -> Option<(Ipv4Addr, Body, &'a [u8])> {
        let decoded = decode(bytes).ok()?;
        // Frisbee's rule: the message names its sender, and comes from the port of the session.
        if decoded.header.source != from.octets() || port != self.group.port {
            return None;
        }
        if let Some((key, root)) = &self.seal {
            let (message, tag) = bytes.split_at(decoded.payload.end);
            if !key.verify(&[root, message], tag) {
                return None;
            }
        }
        Some((from, decoded.header.body, &bytes[decoded.payload]))
    }
}

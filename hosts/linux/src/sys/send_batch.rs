//! Datagrams that wait to be sent in one call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use super::udp::Path;

/// The kernel's limits of a train: UDP_MAX_SEGMENTS, and the length of an IP packet.
const MAX_SEGMENTS: usize = 64;
const MAX_TRAIN_BYTES: usize = 65_000;

/// A datagram that waits to be sent: front bytes in the batch's arena, then the payload.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) to: Path,
    pub(super) traffic_class: u8,
    pub(super) front: Range<usize>,
    pub(super) payload: SmallVec<[Bytes; 2]>,
    pub(super) bytes: usize,
}

/// Datagrams that wait to be sent.
#[derive(Debug, Default)]
pub struct SendBatch {
    pub(super) arena: Vec<u8>,
    pub(super) datagrams: Vec<Outgoing>,
    /// The number of them that were sent.
    pub(super) done: usize,
    /// System calls so far, and trains in them.
    pub(super) calls: u64,
    pub(super) trains: u64,
    /// Datagrams before this one are sent one by one, because the system refused them as a train.
    pub(super) single_until: usize,
    /// Addresses that this host does not have any more, which were the sources of datagrams.
    lost: Vec<IpAddr>,
    /// Datagrams that were refused because they are longer than their route permits, with their lengths.
    pub(super) too_long: Vec<(Path, usize)>,
}

impl SendBatch {
    /// Adds a datagram: `write` appends its front bytes to a buffer, `payload` follows without a copy. With a [`Path`] it is sent
    /// from the path's local address; that must be the one at which the peer was heard.
    pub fn push(
        &mut self,
        to: impl Into<Path>,
        traffic_class: u8,
        write: impl FnOnce(&mut Vec<u8>),
        payload: SmallVec<[Bytes; 2]>,
    ) {
        let start = self.arena.len();
        write(&mut self.arena);
        let front = start..self.arena.len();
        let bytes = front.len() + payload.iter().map(Bytes::len).sum::<usize>();
        let to = to.into();
        self.datagrams.push(Outgoing { to, traffic_class, front, payload, bytes });
    }

    /// Takes the first datagram that waits, with its address and traffic class: for a [`Platform`](crate::Platform) that is no
    /// socket.
    pub fn pop(&mut self) -> Option<(SocketAddr, u8, Vec<u8>)> {
        let Outgoing { to, traffic_class, front, payload, bytes } =
            self.datagrams.get(self.done)?;
        let mut all = Vec::with_capacity(*bytes);
        all.extend_from_slice(&self.arena[front.clone()]);
        payload.iter().for_each(|piece| all.extend_from_slice(piece));
        let taken = (to.remote, *traffic_class, all);
        self.done += 1;
        if self.is_empty() {
            self.clear();
        }
        Some(taken)
    }

    /// Drops the datagrams that wait, and returns their number.
    pub fn discard(&mut self) -> usize {
        let waiting = self.len();
        self.clear();
        waiting
    }

    pub(super) fn clear(&mut self) {
        self.arena.clear();
        self.datagrams.clear();
        (self.done, self.single_until) = (0, 0);
    }

    /// Sorts the datagrams by address, so that those to one address form trains. The sort is stable.
    pub fn group(&mut self) {
        self.datagrams[self.done..].sort_by_key(|datagram| (datagram.to, datagram.traffic_class));
    }

    /// The number of datagrams that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.datagrams.len() - self.done
    }

    /// Returns the number of system calls that have sent datagrams of the batch, and the number of trains (of at least
    /// one datagram) in them.
    #[must_use]
    pub const fn calls(&self) -> (u64, u64) {
        (self.calls, self.trains)
    }

    /// Whether no datagram waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of datagrams from `first` on that can be sent as one train: of one length (the last may be shorter), to one
    /// address from one address, of one traffic class.
    pub(super) fn train(&self, first: usize, segmentation: bool) -> usize {
        let head = &self.datagrams[first];
        if !segmentation || first < self.single_until {
            return 1;
        }
        let mut bytes = head.bytes;
        let mut count = 1;
        for next in &self.datagrams[first + 1..] {
            bytes += next.bytes;
            if count == MAX_SEGMENTS
                || bytes > MAX_TRAIN_BYTES
                || next.to != head.to
                || next.traffic_class != head.traffic_class
                || next.bytes > head.bytes
            {
                break;
            }
            count += 1;
            if next.bytes < head.bytes {
                break;
            }
        }
        count
    }

    /// Lets the system choose the source of the next datagrams if this host does not have their source any more. Returns whether it does
    /// now.
    pub(super) fn forget_source(&mut self, count: usize) -> bool {
        let next = self.datagrams.iter().skip(self.done).take(count);
        let sources: Vec<IpAddr> = next.filter_map(|datagram| datagram.to.local).collect();
        if !sources.into_iter().any(is_lost) {
            return false;
        }
        let mut lost = None;
        for datagram in self.datagrams.iter_mut().skip(self.done).take(count) {
            lost = datagram.to.local.take().or(lost);
        }
        let Some(address) = lost else { return false };
        if !self.lost.contains(&address) {
            self.lost.push(address);
        }
        true
    }

    /// Takes the path and length of a refused datagram that is longer than its route permits.
    pub fn take_too_long(&mut self) -> Option<(Path, usize)> {
        self.too_long.pop()
    }

    /// Takes an address that was the source of datagrams and that this host does not have any more: peers cannot be sent to from there.
    pub fn take_lost(&mut self) -> Option<IpAddr> {
        self.lost.pop()
    }
}

/// Whether this host no longer has an address. The errors of sending do not say so: they are the same where the destination has no route,
/// or a segment is longer than its route permits, and then other peers are still to be answered from this address.
fn is_lost(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0))
        .is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

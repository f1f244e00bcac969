//! A UDP socket that sends and receives many datagrams in one call.

use std::collections::VecDeque;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use libc::{c_int, iovec, mmsghdr, msghdr, sockaddr_storage};
use smallvec::SmallVec;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::control::{self, Room, Writer};
use super::raw::PortClaim;
use super::send_batch::{Outgoing, SendBatch};

/// The most datagrams, or trains of them, in one call.
const CALL: usize = 32;

/// The length of a receive buffer, which holds a whole train.
const RECEIVE_BYTES: usize = 1 << 16;

/// About how many bytes one call receives if trains are long, so that they are handled while they are in the CPU's cache.
const RECEIVE_CALL_BYTES: usize = 1 << 19;

/// A UDP socket, or a raw one ([`UdpSocket::raw`]), which never blocks.
#[derive(Debug)]
pub struct UdpSocket {
    pub(super) socket: Socket,
    pub(super) address: SocketAddr,
    pub(super) segmentation: bool,
    /// The port of a raw socket.
    pub(super) _claim: Option<PortClaim>,
}

/// The two ends of an exchange of datagrams: the other host's address, and the address of this one.
///
/// A socket that is bound to all addresses of its host sends from the address of the route, unless a datagram names another one. A host
/// that was addressed by another of its addresses has to answer from that one (RFC 1122, section 4.1.3.5): who has sent there does
/// not know the address of the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The other host's address.
    pub remote: SocketAddr,
    /// This host's address. `None` for the one that the socket is bound to or, if it is bound to all, that of the route.
    pub local: Option<IpAddr>,
}

impl From<SocketAddr> for Path {
    fn from(remote: SocketAddr) -> Self {
        Self { remote, local: None }
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender's address.
    pub from: SocketAddr,
    /// The address of this host that it was sent to, if the socket is bound to all of them. `None` if it was sent to a group.
    pub local: Option<IpAddr>,
    /// The traffic class of its IP header: DSCP and ECN.
    pub traffic_class: u8,
    /// When the kernel received it, in nanoseconds of `CLOCK_REALTIME`.
    pub realtime_ns: Option<u64>,
    /// The payload of the datagram.
    pub bytes: &'a [u8],
}

impl Datagram<'_> {
    /// The path by which it has come, on which it is to be answered.
    #[must_use]
    pub const fn path(&self) -> Path {
        Path { remote: self.from, local: self.local }
    }
}

impl UdpSocket {
    /// Binds a socket that receives traffic classes, trains of datagrams and, with `stamps`, time stamps. A multicast address
    /// can be shared.
    ///
    /// # Errors
    /// If the address is in use or not local, or the system refuses an option.
    pub fn bind(address: SocketAddr, buffer_bytes: usize, stamps: bool) -> io::Result<Self> {
        // Each socket that is bound to a multicast address receives all datagrams to it.
        Self::bind_as(address, buffer_bytes, stamps, address.ip().is_multicast())
    }

    /// As [`UdpSocket::bind`], to an address that further sockets of this kind may have: for a socket that only sends. What arrives
    /// there reaches one of them.
    ///
    /// # Errors
    /// As [`UdpSocket::bind`].
    pub fn bind_shared(address: SocketAddr, buffer_bytes: usize) -> io::Result<Self> {
        Self::bind_as(address, buffer_bytes, false, true)
    }

    fn bind_as(
        address: SocketAddr,
        buffer_bytes: usize,
        stamps: bool,
        is_shared: bool,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(is_shared)?;
        // The kernel limits the sizes.
        socket.set_recv_buffer_size(buffer_bytes)?;
        socket.set_send_buffer_size(buffer_bytes)?;
        match address {
            SocketAddr::V4(_) => socket.set_recv_tos_v4(true)?,
            SocketAddr::V6(_) => socket.set_recv_tclass_v6(true)?,
        }
        socket.bind(&address.into())?;
        let this = Self { address, socket, segmentation: true, _claim: None };
        if address.ip().is_unspecified() {
            match address {
                SocketAddr::V4(_) => this.set_option(libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?,
                // Also for datagrams over IPv4.
                SocketAddr::V6(_) => {
                    this.set_option(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
                }
            }
        }
        // Without it, datagrams are received one by one.
        let _ = this.set_option(libc::SOL_UDP, libc::UDP_GRO, 1);
        if stamps {
            this.set_option(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        }
        let address = this.socket.local_addr()?.as_socket();
        let address = address.ok_or_else(|| io::Error::other("a socket without an address"))?;
        Ok(Self { address, ..this })
    }

    /// The address that it is bound to.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Sets the sizes of the receive and send buffers, beyond the system's limits if this process has CAP_NET_ADMIN. With a
    /// small send buffer, a full device queue blocks [`UdpSocket::send`] instead of causing losses.
    ///
    /// # Errors
    /// If the system refuses the sizes.
    pub fn set_buffers(&self, receive: usize, send: usize) -> io::Result<()> {
        let force = |name, bytes: usize| {
            self.set_option(libc::SOL_SOCKET, name, bytes.min(1 << 30) as c_int)
        };
        if force(libc::SO_RCVBUFFORCE, receive).is_err() {
            self.socket.set_recv_buffer_size(receive)?;
        }
        if force(libc::SO_SNDBUFFORCE, send).is_err() {
            self.socket.set_send_buffer_size(send)?;
        }
        Ok(())
    }

    /// The size of its receive buffer, in which the kernel counts the memory of packets; 0 if it is unknown.
    #[must_use]
    pub fn receive_buffer(&self) -> usize {
        self.socket.recv_buffer_size().unwrap_or(0)
    }

    /// Joins a multicast group on the interface with this address (unspecified: the system's choice).
    ///
    /// # Errors
    /// If there is no such interface, or it has no multicast.
    pub fn join(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.join_multicast_v4(&group, &interface)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// If the socket is not a member.
    pub fn leave(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket.leave_multicast_v4(&group, &interface)
    }

    /// Sends multicast by the interface with this address (unspecified: the system's choice), with a TTL of `hops`, and to
    /// sockets of this machine only with `back`.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn send_groups_by(&self, interface: Ipv4Addr, hops: u32, back: bool) -> io::Result<()> {
        self.socket.set_multicast_if_v4(&interface)?;
        self.socket.set_multicast_ttl_v4(hops)?;
        self.socket.set_multicast_loop_v4(back)
    }

    /// Has the system refuse datagrams that are longer than their route permits, instead of dividing them, as hosts with other settings do.
    #[cfg(test)]
    pub(crate) fn never_fragment(&self) {
        let (name, value) = (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
        self.set_option(libc::IPPROTO_IP, name, value).unwrap();
    }

    pub(super) fn set_option(&self, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
        let bytes = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value is an int that lives through the call, as its length says.
        let result = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends the batch as far as the send buffer has room; the rest stays in the batch. Returns the number of datagrams that
    /// the kernel has refused, which are lost.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64> {
        let mut refused = 0;
        while !batch.is_empty() {
            match self.send_some(batch) {
                Ok((trains, datagrams)) => {
                    batch.calls += 1;
                    batch.trains += trains as u64;
                    batch.done += datagrams;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(refused),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBADF | libc::ENOTSOCK) => return Err(error),
                    // This host has lost the address since: without it the datagram at least arrives.
                    Some(libc::EINVAL | libc::ENETUNREACH | libc::EADDRNOTAVAIL)
                        if batch.forget_source(batch.train(batch.done, self.segmentation)) => {}
                    // The device does not support segmentation: datagrams are sent one by one from now on.
                    Some(libc::EIO) if batch.train(batch.done, self.segmentation) > 1 => {
                        self.segmentation = false;
                    }
                    // A segment is longer than the route permits (EMSGSIZE since Linux 6.14, EINVAL before), or the socket computes no
                    // checksums. Single datagrams may pass, in fragments; trains to other addresses are not concerned.
                    Some(libc::EMSGSIZE | libc::EINVAL)
                        if batch.train(batch.done, self.segmentation) > 1 =>
                    {
                        batch.single_until =
                            batch.done + batch.train(batch.done, self.segmentation);
                    }
                    code => {
                        let lost = batch.train(batch.done, self.segmentation);
                        let Outgoing { to, bytes, .. } = batch.datagrams[batch.done];
                        let is_known = batch.too_long.iter().any(|(path, _)| *path == to);
                        if code == Some(libc::EMSGSIZE) && !is_known {
                            batch.too_long.push((to, bytes));
                        }
                        batch.done += lost;
                        refused += lost as u64;
                    }
                },
            }
        }
        batch.clear();
        Ok(refused)
    }

    /// Makes one call; returns the number of trains and of datagrams that were sent.
    fn send_some(&self, batch: &SendBatch) -> io::Result<(usize, usize)> {
        let mut vectors: SmallVec<[iovec; 256]> = SmallVec::new();
        let mut addresses: SmallVec<[SockAddr; CALL]> = SmallVec::new();
        let mut rooms: SmallVec<[Room; CALL]> = SmallVec::new();
        // The range of each message's vectors, the length of its control messages, and its number of datagrams.
        let mut parts: SmallVec<[(usize, usize, usize, usize); CALL]> = SmallVec::new();
        let mut next = batch.done;
        while next < batch.datagrams.len() && parts.len() < CALL {
            let count = batch.train(next, self.segmentation);
            let head = &batch.datagrams[next];
            let first_vector = vectors.len();
            for datagram in &batch.datagrams[next..next + count] {
                let front = &batch.arena[datagram.front.clone()];
                for piece in std::iter::once(front).chain(datagram.payload.iter().map(|b| &b[..])) {
                    if !piece.is_empty() {
                        let iov_base = piece.as_ptr().cast_mut().cast();
                        vectors.push(iovec { iov_base, iov_len: piece.len() });
                    }
                }
            }
            let mut room = Room::EMPTY;
            let mut control = Writer::new(&mut room);
            let class = c_int::from(head.traffic_class);
            match head.to.remote {
                SocketAddr::V4(_) => control.put(libc::IPPROTO_IP, libc::IP_TOS, class),
                SocketAddr::V6(_) => control.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class),
            }
            if let Some(local) = head.to.local {
                control.put_source(local, head.to.remote.is_ipv4());
            }
            if count > 1 {
                control.put(libc::SOL_UDP, libc::UDP_SEGMENT, head.bytes as u16);
            }
            let control_bytes = control.len();
            rooms.push(room);
            addresses.push(head.to.remote.into());
            parts.push((first_vector, vectors.len(), control_bytes, count));
            next += count;
        }
        let mut messages: SmallVec<[mmsghdr; CALL]> = SmallVec::new();
        for (index, &(from, to, control_bytes, _)) in parts.iter().enumerate() {
            let mut header = empty_header();
            header.msg_name = addresses[index].as_ptr().cast_mut().cast();
            header.msg_namelen = addresses[index].len();
            header.msg_iov = vectors[from..].as_mut_ptr();
            header.msg_iovlen = (to - from) as _;
            header.msg_control = rooms[index].as_mut_ptr();
            header.msg_controllen = control_bytes as _;
            messages.push(mmsghdr { msg_hdr: header, msg_len: 0 });
        }
        // SAFETY: addresses, vectors, rooms and the bytes that vectors point to live until the call returns,
        // and none of them is moved after its address was taken.
        // It is the system call, because musl's function sends one by one; what musl takes for padding is zero.
        let sent = unsafe {
            let (socket, count) = (self.socket.as_raw_fd(), messages.len() as u32);
            libc::syscall(libc::SYS_sendmmsg, socket, messages.as_mut_ptr(), count, 0)
        };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error())?;
        Ok((sent, parts[..sent].iter().map(|part| part.3).sum()))
    }

    /// Receives by one call; returns the number of buffers that were filled, which is 0 if nothing has arrived.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn receive(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        let most = batch.most();
        (batch.filled, batch.full) = (0, false);
        batch.buffers.prepare(most);
        // SAFETY: every pointer leads into `batch.buffers`, which is boxed and outlives the call; each buffer is
        // as long as its length says.
        let filled = unsafe {
            let messages = batch.buffers.messages.as_mut_ptr();
            libc::recvmmsg(self.socket.as_raw_fd(), messages, most as u32, 0, ptr::null_mut())
        };
        match usize::try_from(filled) {
            Ok(filled) => (batch.filled, batch.full) = (filled, filled == most),
            Err(_) => {
                let error = io::Error::last_os_error();
                match error.kind() {
                    // ICMP errors of datagrams that were sent before are reported by the next call.
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable => {}
                    _ => return Err(error),
                }
            }
        }
        Ok(batch.filled)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Tokio's `AsyncFd` requires it.
impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The source address of packets to another address, and the MTU of the path as far as the system knows it. Nothing is sent.
///
/// # Errors
/// If there is no route.
pub fn route_to(to: SocketAddr) -> io::Result<(SocketAddr, u32)> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&to.into())?;
    let from = socket.local_addr()?.as_socket();
    let from = from.ok_or_else(|| io::Error::other("a socket without an address"))?;
    let mut mtu: c_int = 0;
    let mut bytes = size_of::<c_int>() as libc::socklen_t;
    let (level, name) = match to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    // SAFETY: the value is an int, as its length says, and both live through the call.
    let result = unsafe {
        let value = (&raw mut mtu).cast();
        libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut bytes)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((from, mtu.max(0) as u32))
}

const fn empty_header() -> msghdr {
    // SAFETY: all fields of a msghdr are pointers and integers, for which zeros are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The buffers that datagrams are received into: two megabytes.
pub struct ReceiveBatch {
    buffers: Box<Buffers>,
    filled: usize,
    full: bool,
    /// Datagrams that came from no socket.
    pushed: Vec<(SocketAddr, u8, Vec<u8>)>,
}

struct Buffers {
    bytes: Vec<u8>,
    addresses: [sockaddr_storage; CALL],
    rooms: [Room; CALL],
    vectors: [iovec; CALL],
    messages: [mmsghdr; CALL],
}

// SAFETY: the pointers inside lead into the same box and are set by each call that uses them.
unsafe impl Send for ReceiveBatch {}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBatch").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        // SAFETY: addresses are plain data, for which zeros are valid.
        let address: sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        let buffers = Box::new(Buffers {
            bytes: vec![0; CALL * RECEIVE_BYTES],
            addresses: [address; CALL],
            rooms: [Room::EMPTY; CALL],
            vectors: [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; CALL],
            messages: [mmsghdr { msg_hdr: empty_header(), msg_len: 0 }; CALL],
        });
        Self { buffers, filled: 0, full: false, pushed: Vec::new() }
    }
}

impl Buffers {
    /// Prepares this many messages to be filled.
    fn prepare(&mut self, count: usize) {
        for index in 0..count {
            let mut header = empty_header();
            header.msg_name = (&raw mut self.addresses[index]).cast();
            header.msg_namelen = size_of::<sockaddr_storage>() as _;
            self.vectors[index] = iovec {
                iov_base: self.bytes[index * RECEIVE_BYTES..].as_mut_ptr().cast(),
                iov_len: RECEIVE_BYTES,
            };
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.rooms[index].as_mut_ptr();
            header.msg_controllen = Room::BYTES as _;
            self.messages[index] = mmsghdr { msg_hdr: header, msg_len: 0 };
        }
    }
}

impl ReceiveBatch {
    /// Whether the last [`UdpSocket::receive`] has received nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.filled == 0 && self.pushed.is_empty()
    }

    /// Replaces its datagrams by those of this queue, as far as there is room: for a [`Platform`](crate::Platform) that is no
    /// socket. Each has its sender's address and its traffic class.
    pub fn fill(&mut self, from: &mut VecDeque<(SocketAddr, u8, Vec<u8>)>) {
        self.filled = 0;
        self.pushed.clear();
        self.pushed.extend(from.drain(..from.len().min(CALL)));
        self.full = self.pushed.len() == CALL;
    }

    /// Whether the last [`UdpSocket::receive`] has filled all buffers, so that there may be more.
    #[must_use]
    pub const fn was_full(&self) -> bool {
        self.full
    }

    /// The number of buffers for the next call, if trains are as long as the last ones.
    fn most(&self) -> usize {
        let last = &self.buffers.messages[..self.filled];
        let bytes: usize = last.iter().map(|message| message.msg_len as usize).sum();
        match bytes.checked_div(self.filled) {
            Some(mean) => (RECEIVE_CALL_BYTES / mean.max(1)).clamp(1, CALL),
            None => CALL,
        }
    }

    /// The datagrams of the last [`UdpSocket::receive`]; trains are split.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let pushed = self.pushed.iter().map(|(from, traffic_class, bytes)| Datagram {
            from: *from,
            local: None,
            traffic_class: *traffic_class,
            realtime_ns: None,
            bytes,
        });
        (0..self.filled)
            .flat_map(|index| {
                let message = &self.buffers.messages[index];
                let len = (message.msg_len as usize).min(RECEIVE_BYTES);
                let start = index * RECEIVE_BYTES;
                let bytes = &self.buffers.bytes[start..start + len];
                // SAFETY: recvmmsg has filled this message, and its room is in the same box.
                let said = unsafe { control::read(&message.msg_hdr) };
                let from = address(&self.buffers.addresses[index]);
                let segment = said.segment.unwrap_or(len).max(1);
                from.into_iter().flat_map(move |from| {
                    bytes.chunks(segment).map(move |bytes| Datagram {
                        from,
                        local: said.local,
                        traffic_class: said.traffic_class,
                        realtime_ns: said.realtime_ns,
                        bytes,
                    })
                })
            })
            .chain(pushed)
    }
}

fn address(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let len = size_of::<sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel has filled it; SockAddr checks the family before it reads more.
    let parsed = unsafe {
        SockAddr::try_init(|to, to_len| {
            to.cast::<sockaddr_storage>().write(*storage);
            to_len.write(len);
            Ok(())
        })
    };
    parsed.ok()?.1.as_socket()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn socket() -> UdpSocket {
        UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)), 1 << 20, true).unwrap()
    }

    /// The datagrams received: lengths, classes, whether they have time stamps.
    fn received(socket: &UdpSocket, count: usize) -> Vec<(usize, u8, bool)> {
        let mut batch = ReceiveBatch::default();
        let mut found = Vec::new();
        for _ in 0..10_000 {
            let _ = socket.receive(&mut batch).unwrap();
            for datagram in batch.datagrams() {
                assert!(datagram.bytes.iter().all(|byte| *byte == found.len() as u8));
                let stamped = datagram.realtime_ns.is_some();
                found.push((datagram.bytes.len(), datagram.traffic_class, stamped));
            }
            if found.len() >= count {
                break;
            }
            std::thread::yield_now();
        }
        found
    }

    fn push(batch: &mut SendBatch, to: &UdpSocket, class: u8, sizes: &[usize]) {
        for (n, &size) in (0..).zip(sizes) {
            let half = Bytes::from(vec![n; size / 2]);
            let front = |out: &mut Vec<u8>| out.extend(std::iter::repeat_n(n, size - size / 2));
            batch.push(to.local_addr(), class, front, SmallVec::from_iter([half]));
        }
    }

    #[test]
    fn trains_arrive_as_single_datagrams() {
        let (mut from, to) = (socket(), socket());
        let sizes = [1000, 1000, 1000, 400, 1000, 7, 1400, 1400, 1400];
        let mut batch = SendBatch::default();
        push(&mut batch, &to, 0b1010_0010, &sizes);
        assert_eq!(from.send(&mut batch).unwrap(), 0);
        assert_eq!(batch.calls(), (1, 3));
        let found = received(&to, sizes.len());
        assert_eq!(found, sizes.map(|size| (size, 0b1010_0010, true)));
    }

    #[test]
    fn a_train_that_the_system_refuses_is_sent_one_by_one_and_others_are_not() {
        let (mut from, to) = (socket(), socket());
        // The kernel does not segment datagrams without checksums.
        from.set_option(libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let sizes = [1000; 10];
        let mut batch = SendBatch::default();
        push(&mut batch, &to, 0, &sizes);
        assert_eq!(from.send(&mut batch).unwrap(), 0);
        assert!(from.segmentation && batch.is_empty());
        assert_eq!(batch.calls().1, 10);
        assert_eq!(received(&to, 10).len(), 10);
        from.set_option(libc::SOL_SOCKET, libc::SO_NO_CHECK, 0).unwrap();
        push(&mut batch, &to, 0, &sizes);
        assert_eq!(from.send(&mut batch).unwrap(), 0);
        assert_eq!(batch.calls().1, 11);
        assert_eq!(received(&to, 10).len(), 10);
    }

    #[test]
    fn what_is_longer_than_its_route_permits_is_refused_and_named() {
        rackweave_testing::needs!(NetAdmin);
        crate::test_spaces::with_mtu("sockets", 1400, || {
            const FITS: usize = 1372;
            let (mut from, to) = (socket(), socket());
            let mut batch = SendBatch::default();
            // The system divides single datagrams, though not trains of them.
            push(&mut batch, &to, 0, &[2000; 10]);
            assert_eq!(from.send(&mut batch).unwrap(), 0);
            assert_eq!((received(&to, 10).len(), batch.take_too_long()), (10, None));
            assert!(from.segmentation);
            from.never_fragment();
            // Of each length one by one, and as trains.
            push(&mut batch, &to, 0, &[FITS + 1, 1000, FITS + 200, FITS]);
            assert_eq!(from.send(&mut batch).unwrap(), 2);
            let path = Path::from(to.local_addr());
            let long = batch.take_too_long();
            assert_eq!(long, Some((path, FITS + 1)), "one of them says that the path is narrow");
            assert_eq!(batch.take_too_long(), None);
            let lengths = |count| paths(&to, count).iter().map(|it| it.1).collect::<Vec<_>>();
            assert_eq!(lengths(2), [1000, FITS]);
            push(&mut batch, &to, 0, &[FITS + 1; 10]);
            push(&mut batch, &to, 0, &[FITS; 10]);
            assert_eq!(from.send(&mut batch).unwrap(), 10);
            assert_eq!(batch.take_too_long(), Some((path, FITS + 1)));
            assert_eq!(lengths(10), [FITS; 10]);
            assert!(from.segmentation && batch.is_empty());
        });
    }

    #[test]
    fn the_route_to_an_address_is_known() {
        let to = socket();
        let (from, mtu) = route_to(to.local_addr()).unwrap();
        assert!(from.ip().is_loopback() && mtu >= 576);
        to.set_buffers(1 << 20, 1 << 18).unwrap();
    }

    #[test]
    fn refused_datagrams_are_counted_and_do_not_block_others() {
        let (mut from, to) = (socket(), socket());
        let mut batch = SendBatch::default();
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        batch.push(nowhere, 0, |out| out.push(0), SmallVec::new());
        push(&mut batch, &to, 0, &[5, 5, 5]);
        assert_eq!(from.send(&mut batch).unwrap(), 1);
        assert!(from.segmentation && batch.is_empty());
        assert_eq!(received(&to, 3).len(), 3);
    }

    fn fill(out: &mut Vec<u8>, len: usize) {
        out.extend(std::iter::repeat_n(1, len));
    }

    fn at(address: &str) -> UdpSocket {
        UdpSocket::bind(address.parse().unwrap(), 1 << 20, true).unwrap()
    }

    /// The first datagrams that arrive: where each came from, the address that it was sent to, and its length.
    fn paths(socket: &UdpSocket, count: usize) -> Vec<(Path, usize)> {
        let mut batch = ReceiveBatch::default();
        let mut found = Vec::new();
        for _ in 0..10_000 {
            let _ = socket.receive(&mut batch).unwrap();
            found.extend(batch.datagrams().map(|it| (it.path(), it.bytes.len())));
            if found.len() >= count {
                break;
            }
            std::thread::yield_now();
        }
        found
    }

    /// With trains, and traffic classes and time stamps as well as the address.
    #[test]
    fn a_socket_at_all_addresses_answers_from_the_one_that_was_addressed() {
        let sizes = [1000, 1000, 1000, 400, 7];
        for any in ["0.0.0.0:0", "[::]:0"] {
            let (mut server, mut client) = (at(any), at("127.0.0.1:0"));
            let port = server.local_addr().port();
            for last in [1, 2, 3] {
                let to = SocketAddr::from(([127, 0, 0, last], port));
                let mut batch = SendBatch::default();
                for len in sizes {
                    batch.push(to, 0b1010_0010, |out| fill(out, len), SmallVec::new());
                }
                assert_eq!(client.send(&mut batch).unwrap(), 0);
                let came = paths(&server, sizes.len());
                assert_eq!(came.iter().map(|it| it.1).collect::<Vec<_>>(), sizes);
                for (path, len) in came {
                    assert_eq!(path.local, Some(to.ip()), "{any}");
                    batch.push(path, 0b1010_0010, |out| fill(out, len), SmallVec::new());
                }
                assert_eq!(server.send(&mut batch).unwrap(), 0);
                assert!(batch.calls().1 < batch.calls().0 * sizes.len() as u64, "trains");
                // The client is bound to one address, so that nothing needs to be known about it.
                let answer = Path::from(to);
                assert_eq!(paths(&client, sizes.len()), sizes.map(|len| (answer, len)), "{any}");
            }
        }
    }

    #[test]
    fn a_source_that_this_host_does_not_have_costs_neither_datagrams_nor_trains() {
        let (mut from, to) = (at("0.0.0.0:0"), at("127.0.0.1:0"));
        let mut batch = SendBatch::default();
        let local = Some(IpAddr::from([192, 0, 2, 1]));
        for _ in 0..5 {
            let to = Path { remote: to.local_addr(), local };
            batch.push(to, 0, |out| fill(out, 1000), SmallVec::new());
        }
        assert_eq!(from.send(&mut batch).unwrap(), 0);
        assert!(from.segmentation && batch.calls().1 == 1);
        assert_eq!((batch.take_lost(), batch.take_lost()), (local, None));
        let from = SocketAddr::from(([127, 0, 0, 1], from.local_addr().port()));
        assert_eq!(paths(&to, 5), [(from.into(), 1000); 5]);
    }

    #[test]
    fn the_address_of_a_group_is_not_answered_from() {
        rackweave_testing::needs!(Multicast);
        let (group, interface) = (Ipv4Addr::new(239, 255, 0, 77), Ipv4Addr::LOCALHOST);
        let (server, mut client) = (at("0.0.0.0:0"), at("127.0.0.1:0"));
        server.join(group, interface).unwrap();
        client.send_groups_by(interface, 1, true).unwrap();
        let mut batch = SendBatch::default();
        let to = SocketAddr::from((group, server.local_addr().port()));
        batch.push(to, 0, |out| out.push(1), SmallVec::new());
        assert_eq!(client.send(&mut batch).unwrap(), 0);
        assert_eq!(paths(&server, 1), [(client.local_addr().into(), 1)]);
        server.leave(group, interface).unwrap();
    }

    /// A route that is missing to one destination gives the same errors as a lost address, and must not cost other peers theirs.
    #[test]
    fn only_an_address_that_the_host_does_not_have_is_forgotten() {
        for (address, is_lost) in [([127, 0, 0, 2], false), ([192, 0, 2, 1], true)] {
            let local = Some(IpAddr::from(address));
            let to = Path { remote: SocketAddr::from(([127, 0, 0, 1], 9)), local };
            let mut batch = SendBatch::default();
            batch.push(to, 0, |out: &mut Vec<u8>| out.push(1), SmallVec::new());
            assert_eq!(batch.forget_source(1), is_lost, "{address:?}");
            assert_eq!(batch.take_lost(), local.filter(|_| is_lost));
        }
    }
}

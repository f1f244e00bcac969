//! A packet socket, which sends and receives Ethernet frames in batches, and options of all sockets.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::{c_int, c_void, iovec, mmsghdr, msghdr};

use super::control::{self, Room};

/// The most frames in one call.
const CALL: usize = 64;

/// The length of a receive buffer; longer frames are truncated and marked.
const RECEIVE_BYTES: usize = 2048;

/// `TP_STATUS_CSUMNOTREADY`: the sender has left the checksum to a NIC that is not there.
const CHECKSUM_NOT_READY: u32 = 1 << 3;

/// The index of `SK_MEMINFO_DROPS` in the result of `SO_MEMINFO`, and the length of that array.
const MEMINFO_DROPS: usize = 8;
const MEMINFO_VARS: usize = 9;

/// A packet socket that receives all IPv4 frames that enter by one interface, and none that leave by it. It never blocks.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// When the kernel received it, in nanoseconds of `CLOCK_REALTIME`.
    pub realtime_ns: Option<u64>,
    /// Whether it was truncated.
    pub cut: bool,
    /// Whether its sender has left the checksum to a NIC.
    pub unfinished_checksum: bool,
    /// The frame, beginning with its Ethernet header.
    pub bytes: &'a [u8],
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set_option(socket: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let bytes = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call, as its length says.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), bytes)
    };
    check(result).map(drop)
}

/// Reads an option into plain data; returns how many bytes the kernel wrote.
fn get_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut T,
) -> io::Result<usize> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let to = ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `bytes` bytes, all within the value, which is plain numbers.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut bytes) };
    check(result).map(|_| bytes as usize)
}

/// Sets the sizes of a socket's buffers, beyond the system's limits if the process has CAP_NET_ADMIN.
pub fn set_buffers(socket: BorrowedFd<'_>, bytes: usize) {
    let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
    for (force, ask) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set_option(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            // The kernel limits the sizes.
            let _ = set_option(socket, libc::SOL_SOCKET, ask, bytes);
        }
    }
}

/// The number of datagrams that a socket has dropped because its receive buffer was full.
#[must_use]
pub fn drops(socket: BorrowedFd<'_>) -> u64 {
    let mut numbers = [0_u32; MEMINFO_VARS];
    match get_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut numbers) {
        Ok(_) => u64::from(numbers[MEMINFO_DROPS]),
        Err(_) => 0,
    }
}

impl PacketSocket {
    /// Opens a socket on an interface.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface; otherwise the system's error.
    pub fn open(interface: &str, buffer_bytes: usize) -> io::Result<Self> {
        let name = std::ffi::CString::new(interface)?;
        // SAFETY: the name is a C string that lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers. Protocol 0: nothing is received before bind names the interface.
        let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: a descriptor that was just created and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let this = Self { socket };
        set_buffers(this.as_fd(), buffer_bytes);
        set_option(this.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        set_option(this.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        set_option(this.as_fd(), libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        // SAFETY: the struct holds plain numbers, for which zeros are valid.
        let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sll_family = libc::AF_PACKET as u16;
        // Unlike ETH_P_ALL, a socket of one protocol does not receive outgoing frames.
        address.sll_protocol = (libc::ETH_P_IP as u16).to_be();
        address.sll_ifindex = index as c_int;
        let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is as long as its length says, and lives through the call.
        let bound =
            unsafe { libc::bind(this.socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        check(bound)?;
        Ok(this)
    }

    /// The number of frames dropped since the last call because the buffer was full.
    #[must_use]
    pub fn new_drops(&self) -> u64 {
        // SAFETY: the struct holds plain numbers, for which zeros are valid.
        let mut stats: libc::tpacket_stats = unsafe { MaybeUninit::zeroed().assume_init() };
        match get_option(self.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats) {
            Ok(_) => u64::from(stats.tp_drops),
            Err(_) => 0,
        }
    }

    /// Receives by one call; returns the number of frames, which is 0 if nothing has arrived or the interface is down.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn receive(&self, batch: &mut FrameBatch) -> io::Result<usize> {
        batch.filled = 0;
        let buffers = &mut *batch.buffers;
        for index in 0..CALL {
            let bytes = &mut buffers.bytes[index * RECEIVE_BYTES..(index + 1) * RECEIVE_BYTES];
            buffers.vectors[index] =
                iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: RECEIVE_BYTES };
            let mut header = empty_header();
            header.msg_iov = &raw mut buffers.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = buffers.rooms[index].as_mut_ptr();
            header.msg_controllen = Room::BYTES as _;
            buffers.messages[index] = mmsghdr { msg_hdr: header, msg_len: 0 };
        }
        // SAFETY: every pointer leads into `batch.buffers`, which is boxed and outlives the call; each buffer is as
        // long as its length says.
        let filled = unsafe {
            let messages = buffers.messages.as_mut_ptr();
            libc::recvmmsg(self.socket.as_raw_fd(), messages, CALL as u32, 0, ptr::null_mut())
        };
        match check(filled) {
            Ok(filled) => batch.filled = filled as usize,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => {}
                _ => return Err(error),
            },
        }
        Ok(batch.filled)
    }

    /// Returns whether a call of [`PacketSocket::receive`] that filled this many buffers may have left frames in the
    /// socket.
    #[must_use]
    pub const fn was_full(filled: usize) -> bool {
        filled == CALL
    }

    /// Sends frames, and returns how many the kernel refused.
    pub fn send<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) -> u64 {
        let mut frames = frames.into_iter();
        let mut refused = 0;
        loop {
            let mut vectors = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; CALL];
            let mut count = 0;
            for (vector, frame) in vectors.iter_mut().zip(frames.by_ref()) {
                *vector =
                    iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
                count += 1;
            }
            if count == 0 {
                return refused;
            }
            refused += self.send_call(&mut vectors[..count]);
        }
    }

    /// Sends as many frames as one call takes, and returns how many were refused.
    fn send_call(&self, vectors: &mut [iovec]) -> u64 {
        let mut messages = [mmsghdr { msg_hdr: empty_header(), msg_len: 0 }; CALL];
        for (message, vector) in messages.iter_mut().zip(vectors.iter_mut()) {
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
        }
        let (mut next, end, mut refused) = (0, vectors.len(), 0);
        while next < end {
            let left = &mut messages[next..end];
            // SAFETY: vectors, messages and the frames they point to live until the call returns; the kernel only
            // reads the frames.
            let sent = unsafe {
                let count = left.len() as u32;
                libc::sendmmsg(self.socket.as_raw_fd(), left.as_mut_ptr(), count, 0)
            };
            match check(sent) {
                Ok(sent) => next += sent as usize,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The first frame is lost, as on a link that is full or down.
                Err(_) => {
                    next += 1;
                    refused += 1;
                }
            }
        }
        refused
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const fn empty_header() -> msghdr {
    // SAFETY: all fields of a msghdr are pointers and integers, for which zeros are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The buffers that frames are received into.
pub struct FrameBatch {
    buffers: Box<Buffers>,
    filled: usize,
}

struct Buffers {
    bytes: Vec<u8>,
    rooms: [Room; CALL],
    vectors: [iovec; CALL],
    messages: [mmsghdr; CALL],
}

// SAFETY: the pointers inside lead into the same box and are set by each call that uses them.
unsafe impl Send for FrameBatch {}

impl std::fmt::Debug for FrameBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameBatch").field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl Default for FrameBatch {
    fn default() -> Self {
        let buffers = Buffers {
            bytes: vec![0; CALL * RECEIVE_BYTES],
            rooms: [Room::EMPTY; CALL],
            vectors: [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; CALL],
            messages: [mmsghdr { msg_hdr: empty_header(), msg_len: 0 }; CALL],
        };
        Self { buffers: Box::new(buffers), filled: 0 }
    }
}

impl FrameBatch {
    /// The frames of the last [`PacketSocket::receive`].
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        (0..self.filled).map(|index| {
            let message = &self.buffers.messages[index];
            let len = (message.msg_len as usize).min(RECEIVE_BYTES);
            let start = index * RECEIVE_BYTES;
            // SAFETY: recvmmsg has filled this message, and its room is in the same box.
            let (said, unfinished_checksum) = unsafe {
                (control::read(&message.msg_hdr), has_unfinished_checksum(&message.msg_hdr))
            };
            Frame {
                realtime_ns: said.realtime_ns,
                cut: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                unfinished_checksum,
                bytes: &self.buffers.bytes[start..start + len],
            }
        })
    }
}

/// Whether `PACKET_AUXDATA` reports that the checksum is not computed.
///
/// # Safety
/// `message` must have been filled by `recvmmsg`, and its control buffer must be alive.
unsafe fn has_unfinished_checksum(message: &msghdr) -> bool {
    // SAFETY: the caller guarantees that the message is valid; the macros stay inside msg_controllen.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give whole headers inside the buffer or null; the data are read
        // as plain numbers, and only if they are as long as those.
        unsafe {
            let header = *at;
            let whole = libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) as usize;
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
                && header.cmsg_len as usize >= whole
            {
                let data: *const c_void = libc::CMSG_DATA(at).cast();
                let status = data.cast::<libc::tpacket_auxdata>().read_unaligned().tp_status;
                return status & CHECKSUM_NOT_READY != 0;
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    false
}

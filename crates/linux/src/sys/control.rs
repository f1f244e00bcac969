//! Control messages of `sendmsg` and `recvmsg`.

use std::mem::size_of;

use libc::{c_int, c_void, cmsghdr, msghdr};

/// Room for the control messages of one call, aligned as they must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Room([u8; Self::BYTES]);

impl Room {
    /// A time stamp, a traffic class and a segment size, with headers and padding: 32 + 24 + 24.
    pub(super) const BYTES: usize = 128;

    pub(super) const EMPTY: Self = Self([0; Self::BYTES]);

    pub(super) const fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Appends control messages to a [`Room`].
pub(super) struct Writer<'a> {
    room: &'a mut Room,
    used: usize,
}

impl<'a> Writer<'a> {
    pub(super) const fn new(room: &'a mut Room) -> Self {
        Self { room, used: 0 }
    }

    /// Appends a control message; `T` is plain data of at most 8 bytes.
    pub(super) fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        const { assert!(size_of::<T>() <= 8) };
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        let (space, len) = unsafe {
            let bytes = size_of::<T>() as u32;
            (libc::CMSG_SPACE(bytes) as usize, libc::CMSG_LEN(bytes) as usize)
        };
        assert!(self.used + space <= Room::BYTES, "Room::BYTES is enough for all control messages");
        // SAFETY: all fields of a cmsghdr are integers, for which zeros are valid; musl's has one more, which is padding.
        let mut header: cmsghdr = unsafe { std::mem::zeroed() };
        (header.cmsg_len, header.cmsg_level, header.cmsg_type) = (len as _, level, kind);
        // SAFETY: `used + space` bytes are inside the room, which is aligned to 8 as `cmsghdr` wants, and
        // `space` is a multiple of 8; the data follow the header, aligned to 8 too.
        unsafe {
            let at = self.room.0.as_mut_ptr().add(self.used);
            at.cast::<cmsghdr>().write(header);
            at.add(size_of::<cmsghdr>()).cast::<T>().write(value);
        }
        self.used += space;
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }
}

/// The control messages of a received datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ControlData {
    pub(super) traffic_class: u8,
    pub(super) segment: Option<usize>,
    pub(super) realtime_ns: Option<u64>,
}

/// Reads the control messages of a received message.
///
/// # Safety
/// `message` must have been filled by `recvmsg` or `recvmmsg`, and its control buffer must be alive.
pub(super) unsafe fn read(message: &msghdr) -> ControlData {
    let mut said = ControlData::default();
    // SAFETY: the caller guarantees that the message is valid; the macros stay inside msg_controllen.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give whole headers inside the buffer or null.
        let header = unsafe { *at };
        // SAFETY: as above.
        let data = unsafe { libc::CMSG_DATA(at) };
        // SAFETY: CMSG_LEN only computes.
        let bytes =
            (header.cmsg_len as usize).saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        // SAFETY: each read is of a plain type, from data as long as `bytes`, which is checked.
        unsafe {
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) if bytes >= 1 => said.traffic_class = *data,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if bytes >= size_of::<c_int>() => {
                    said.traffic_class = data.cast::<c_int>().read_unaligned() as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) if bytes >= size_of::<c_int>() => {
                    let segment = data.cast::<c_int>().read_unaligned();
                    said.segment = usize::try_from(segment).ok().filter(|segment| *segment > 0);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)
                    if bytes >= size_of::<libc::timespec>() =>
                {
                    let time = data.cast::<libc::timespec>().read_unaligned();
                    said.realtime_ns =
                        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
    said
}

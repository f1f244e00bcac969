//! Control messages of `sendmsg` and `recvmsg`.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{c_int, c_void, cmsghdr, msghdr};

/// Room for the control messages of one call, aligned as they must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Room([u8; Self::BYTES]);

impl Room {
    /// A time stamp, a traffic class, a segment size and an address of IPv6 with its interface, with headers and padding:
    /// 32 + 24 + 24 + 40.
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

    /// Appends a control message; `T` is plain data without padding, of at most 20 bytes and aligned to at most 8.
    pub(super) fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        const { assert!(size_of::<T>() <= 20 && align_of::<T>() <= 8) };
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

    /// Appends the source address of a datagram, to an IPv4 or an IPv6 address. An interface is not named: the route chooses it.
    pub(super) fn put_source(&mut self, local: IpAddr, to_v4: bool) {
        match (local, to_v4) {
            (IpAddr::V4(local), true) => {
                let ipi_spec_dst = libc::in_addr { s_addr: u32::from(local).to_be() };
                let ipi_addr = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr };
                self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            (_, false) => {
                let local = match local {
                    IpAddr::V4(local) => local.to_ipv6_mapped(),
                    IpAddr::V6(local) => local,
                };
                let ipi6_addr = libc::in6_addr { s6_addr: local.octets() };
                let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
                self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
            // No datagram from there has an IPv4 address.
            (IpAddr::V6(_), true) => {}
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }
}

/// The control messages of a received datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ControlData {
    pub(super) traffic_class: u8,
    /// The address of this host that the datagram was sent to; `None` if that is not known, or a group's.
    pub(super) local: Option<IpAddr>,
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
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if bytes >= size_of::<libc::in_pktinfo>() => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    // ip(7): `ipi_addr` is the destination in the header, `ipi_spec_dst` the address of this host. They differ
                    // for groups and broadcasts.
                    let [to, own] = [info.ipi_addr, info.ipi_spec_dst]
                        .map(|address| Ipv4Addr::from(u32::from_be(address.s_addr)));
                    said.local = (to == own).then_some(IpAddr::V4(to));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                    if bytes >= size_of::<libc::in6_pktinfo>() =>
                {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let to = Ipv6Addr::from(info.ipi6_addr.s6_addr).to_canonical();
                    said.local = (!to.is_multicast()).then_some(to);
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

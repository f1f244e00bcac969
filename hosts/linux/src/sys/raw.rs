//! Raw sockets: packets of an IP protocol of their own, without UDP.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};

use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::udp::UdpSocket;

/// Ports that the system may choose, as HomaModule's clients have (`HOMA_MIN_DEFAULT_PORT`).
const CHOSEN_PORTS: std::ops::RangeInclusive<u16> = 0x8000..=u16::MAX;

/// Keeps a port for this process. The kernel knows no ports of this protocol, so the name of a socket in the network namespace stands for
/// each.
#[derive(Debug)]
pub(super) struct PortClaim {
    _socket: UnixDatagram,
}

impl PortClaim {
    fn of(protocol: u8, port: u16) -> io::Result<Self> {
        let name = format!("rackweave-ip-protocol-{protocol}-port-{port}");
        let address = UnixAddress::from_abstract_name(name)?;
        Ok(Self { _socket: UnixDatagram::bind_addr(&address)? })
    }

    /// Claims any port that is free.
    fn any(protocol: u8) -> io::Result<(Self, u16)> {
        let (first, count) = (u32::from(*CHOSEN_PORTS.start()), CHOSEN_PORTS.len() as u32);
        let start = crate::random() as u32 % count;
        for index in 0..count {
            let port = (first + (start + index) % count) as u16;
            match Self::of(protocol, port) {
                Ok(claim) => return Ok((claim, port)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

impl UdpSocket {
    /// Opens a raw socket for an IP protocol whose header begins with the ports of its sender and its receiver, as UDP's does. It has
    /// the methods of a UDP socket, but for these differences:
    ///
    /// - what is received begins with IP's header, and its sender's address has no port;
    /// - what is sent begins after IP's header; the port of an address is not used.
    ///
    /// With port 0 one above 32,767 is chosen. Only packets to the port are received; no other process of this network namespace gets the
    /// same port here.
    ///
    /// # Errors
    /// If this process lacks CAP_NET_RAW, the address is not local, or the port is in use.
    pub fn raw(address: SocketAddrV4, protocol: u8, buffer_bytes: usize) -> io::Result<Self> {
        let kind = Type::RAW;
        let socket = Socket::new(Domain::IPV4, kind, Some(Protocol::from(i32::from(protocol))))?;
        let (claim, port) = match address.port() {
            0 => PortClaim::any(protocol)?,
            port => (PortClaim::of(protocol, port)?, port),
        };
        socket.attach_filter(&to_port(port))?;
        socket.set_nonblocking(true)?;
        socket.set_recv_tos_v4(true)?;
        // The kernel's address of a raw socket has no port.
        socket.bind(&SocketAddrV4::new(*address.ip(), 0).into())?;
        let address = SocketAddr::from((*address.ip(), port));
        let all = address.ip().is_unspecified();
        let this = Self { socket, address, segmentation: false, _claim: Some(claim) };
        if all {
            this.set_option(libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        this.set_buffers(buffer_bytes, buffer_bytes)?;
        Ok(this)
    }
}

/// A filter of packets that begin with IPv4's header: it passes those whose next header has this port as its second 16-bit field.
fn to_port(port: u16) -> [SockFilter; 5] {
    let (load, jump, end) = (libc::BPF_LDX, libc::BPF_JMP, libc::BPF_RET);
    let word = |code: u32, k: u32| SockFilter::new(code as u16, 0, 0, k);
    [
        // The length of IP's header.
        word(load | libc::BPF_B | libc::BPF_MSH, 0),
        word(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 2),
        SockFilter::new((jump | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, port.into()),
        word(end | libc::BPF_K, u32::MAX),
        word(end | libc::BPF_K, 0),
    ]
}

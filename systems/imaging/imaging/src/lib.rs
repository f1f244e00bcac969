//! Images of disks over sockets: a server that sends an image once, and clients that fetch it and serve each other. The protocol is
//! that of [`rackweave_swp2p::p2p`], whose machines run in the simulator too.
//!
//! ```text
//!  client                                      server
//!  Session  ── TCP: name of the image ───────> Sessions      validates the client's address, and its key
//!     | <───── TCP: manifest ──────────────────── |
//!     | ────── TCP: status, each second ────────> |          for people; and a client that is gone is noticed
//!  Client   <─ UDP: control messages ─────────> Server       machines; switches may redirect requests
//!     | <───── TCP: chunks ────────────────────── |          the holder connects to the requester
//!     |                                      other clients
//!     | <───── TCP: chunks ────────────────────── |
//!  verified ──> cache ──> disk thread: expanded, written
//!                 └─────> other clients
//! ```
//!
//! - A process uses one port, for UDP and TCP ([`PORT`](rackweave_wire::frisbee::PORT)), at one IPv4 address. Packets identify hosts
//!   by their address, so two processes of one machine need two addresses.
//! - A server can multicast its images, too: a Frisbee session for each ([`rackweave_swp2p::frisbee`]), which clients learn of in
//!   their session over TCP. A client goes on without multicast where it does not arrive.
//! - All tasks of a process run on one thread, so that the machine is in a `RefCell`; disks are read and written by other threads.
//! - Only chunks that have the hash in the manifest count, are written, or are served ([`rackweave_image::StoredChunk`]).

mod acceptor;
mod buffers;
#[doc(hidden)]
pub mod checks;
mod client;
mod control;
mod frames;
mod hello;
mod multicast;
mod page;
mod peers;
mod rate;
mod server;
pub mod status;
mod uploads;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

pub use client::{
    FetchConfig, FetchError, FetchEvent, Fetched, FrisbeeFetchConfig, FrisbeeFetchError,
    FrisbeeFetchEvent, FrisbeeFetched, RedirectedConfig, SessionError, fetch, fetch_frisbee, list,
};
pub use hello::HelloError;
pub use page::PageConfig;
pub use server::{
    Catalog, CatalogError, FrisbeeChange, MulticastConfig, ServeConfig, ServeError, ServeEvent,
    Served, SessionCounts, serve,
};

/// Returns the IPv4 address of a peer, also of one that a dual-stack socket shows as an IPv6 address.
fn ipv4(address: SocketAddr) -> Option<Ipv4Addr> {
    match rackweave_linux::addresses::plain(address) {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    }
}

/// Opens the UDP socket and the TCP listener of a process at one address and port.
fn bind(address: SocketAddrV4) -> io::Result<(tokio::net::UdpSocket, tokio::net::TcpListener)> {
    use socket2::{Domain, Protocol, Socket, Type};
    let udp = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    udp.set_nonblocking(true)?;
    // Requests of many clients may arrive at once.
    udp.set_recv_buffer_size(4 << 20)?;
    // Class selector 6: networks that honour it send control messages before chunks.
    udp.set_tos_v4(CONTROL_TOS)?;
    udp.bind(&SocketAddr::V4(address).into())?;
    // The same port for both; the system has chosen it if it was 0.
    let port = udp.local_addr()?.as_socket_ipv4().map_or(address.port(), |it| it.port());
    let tcp = listen(SocketAddrV4::new(*address.ip(), port))?;
    Ok((tokio::net::UdpSocket::from_std(udp.into())?, tcp))
}

/// Opens a TCP listener.
fn listen(address: SocketAddrV4) -> io::Result<tokio::net::TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let tcp = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    tcp.set_nonblocking(true)?;
    // A process that returns after a crash finds connections of the former one in TIME_WAIT.
    tcp.set_reuse_address(true)?;
    tcp.bind(&SocketAddr::V4(address).into())?;
    tcp.listen(1024)?;
    tokio::net::TcpListener::from_std(tcp.into())
}

/// The TOS byte of control messages: DSCP CS6.
const CONTROL_TOS: u32 = 0xc0;

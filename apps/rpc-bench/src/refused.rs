//! Whether a process listens at a port, as far as its host says so.

use std::io::{ErrorKind, Result};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use crate::Setup;

/// How long the answer of a host is waited for: many round trips inside a data center.
const WAIT: Duration = Duration::from_millis(20);

impl Setup {
    /// Returns whether the host at this address says that no process listens at the port: to a TCP segment by RST, to a UDP datagram by ICMP port
    /// unreachable (RFC 1122, section 4.1.3.1). A process that listens ignores the empty datagram, and the connection without a byte.
    /// Firewalls may hide either answer, so `false` proves nothing. Without UDP nothing is asked.
    #[must_use]
    pub fn is_refused(&self, server: SocketAddr) -> bool {
        if self.is_of_module() {
            return false;
        }
        let asked = if self.protocol() == "TCP" { connect(server) } else { ask(server) };
        asked.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }
}

fn connect(server: SocketAddr) -> Result<()> {
    TcpStream::connect_timeout(&server, WAIT).map(drop)
}

fn ask(server: SocketAddr) -> Result<()> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // The kernel reports the ICMP error to a connected socket only.
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.send(&[])?;
    socket.recv(&mut [0; 1]).map(drop)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::Transport;

    #[test]
    fn a_port_without_a_process_is_refused_and_one_with_a_process_is_not() {
        let [udp, tcp] = [Transport::Homa, Transport::Tcp].map(Setup::new);
        // Each at a port at which nothing listens by the other protocol.
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        assert!(!udp.is_refused(address) && tcp.is_refused(address));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(udp.is_refused(address) && !tcp.is_refused(address));
    }
}

//! Whether a process listens at a UDP port, as far as its host says so.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// How long the answer of a host is waited for: many round trips inside a data center.
const WAIT: Duration = Duration::from_millis(20);

/// Returns whether the host at this address answers an empty datagram by saying that no process listens at the port (ICMP port
/// unreachable, RFC 1122, section 4.1.3.1). A process that listens ignores the datagram. Firewalls may hide either, so `false` proves
/// nothing.
#[must_use]
pub fn is_refused(server: SocketAddr) -> bool {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // The kernel reports the ICMP error to a connected socket only.
    let asked = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(WAIT))?;
        socket.send(&[])?;
        socket.recv(&mut [0; 1])
    };
    asked().is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_a_process_is_refused_and_one_with_a_process_is_not() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        assert!(!is_refused(address));
        assert!(is_refused(rackweave_testing::free_address()));
    }
}

//! Ports for tests that need to know a port before a socket has it, or to have the same one twice.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The first of the ports that are given out, and their number: they lie below the ports that the kernel assigns by
/// itself (`ip_local_port_range`), so that no other socket of the tests takes one of them meanwhile.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

/// Returns the first of `count` ports in a row that no socket of this machine has, for UDP and TCP, at any address. No two calls in a
/// process return the same.
///
/// # Panics
/// If there are none, or the kernel does not list its sockets.
#[must_use]
pub fn free_ports(count: u16) -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run at a time begin at places far from each other.
    let begin = std::process::id().wrapping_mul(7919) % COUNT;
    // They are not bound in order to try them: a process that another test starts holds all sockets between its fork and its exec,
    // and would have the ports for that time.
    let used = used();
    for _ in 0..COUNT {
        let taken = TAKEN.fetch_add(u32::from(count), Ordering::Relaxed);
        assert!(taken < COUNT, "all ports have been given out");
        let offset = (begin + taken) % COUNT;
        let Ok(first) = u16::try_from(FIRST + offset) else { continue };
        let is_free = (first..first + count).all(|port| used.binary_search(&port).is_err());
        if is_free && offset + u32::from(count) <= COUNT {
            return first;
        }
    }
    panic!("no {count} ports in a row are free");
}

/// Returns an address of loopback with a port of [`free_ports`].
///
/// # Panics
/// As [`free_ports`].
#[must_use]
pub fn free_address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_ports(1)))
}

/// The ports of all sockets, in order.
fn used() -> Vec<u16> {
    let mut ports = Vec::new();
    for table in ["udp", "tcp", "udp6", "tcp6"] {
        match std::fs::read_to_string(format!("/proc/net/{table}")) {
            Ok(lines) => ports.extend(lines.lines().filter_map(port)),
            // A kernel without IPv6 has no such table.
            Err(_) if table.ends_with('6') => {}
            Err(error) => panic!("/proc/net/{table}: {error}"),
        }
    }
    ports.sort_unstable();
    ports
}

/// The local port in a line of the kernel's table of sockets: `  0: 0100007F:1F90 00000000:0000 …`.
fn port(line: &str) -> Option<u16> {
    let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
    u16::from_str_radix(port, 16).ok()
}

/// Binds an address that a socket of this process has just left, and tries again while it is in use: a process that another test
/// starts holds copies of all sockets between its fork and its exec.
///
/// # Errors
/// The last one of `bind`, if the address stays in use for 20 s or it fails for another reason.
pub fn bind_again<T, E: Error + 'static>(mut bind: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut tries = 4000;
    loop {
        match bind() {
            Err(error) if is_in_use(&error) && tries > 0 => tries -= 1,
            result => return result,
        }
        pause(Duration::from_millis(5));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel does not say when an address is free again"
)]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// Whether an address in use is the error or its cause.
fn is_in_use(error: &(dyn Error + 'static)) -> bool {
    let this = error.downcast_ref::<io::Error>();
    this.is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        || error.source().is_some_and(is_in_use)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn free_ports_can_be_bound_and_are_given_out_once() {
        let ports: Vec<u16> = (1..20).map(free_ports).collect();
        for (first, count) in ports.iter().zip(1..) {
            for port in *first..first + count {
                drop(UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
                drop(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
            }
        }
        for (at, first) in ports.iter().enumerate() {
            let length = u16::try_from(at).unwrap() + 1;
            assert!(
                ports.iter().all(|port| port == first || !(*first..first + length).contains(port))
            );
        }
    }

    #[test]
    fn a_socket_is_among_those_of_the_kernel() {
        let sockets =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let used = used();
        for address in [sockets.0.local_addr(), sockets.1.local_addr()] {
            assert!(used.binary_search(&address.unwrap().port()).is_ok());
        }
    }

    #[test]
    fn an_address_is_bound_once_it_is_left() {
        let first = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = first.local_addr().unwrap();
        let leaves = std::thread::spawn(move || {
            pause(Duration::from_millis(50));
            drop(first);
        });
        assert_eq!(bind_again(|| UdpSocket::bind(address)).unwrap().local_addr().unwrap(), address);
        leaves.join().unwrap();
        let error = bind_again(|| UdpSocket::bind("192.0.2.1:0")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
}

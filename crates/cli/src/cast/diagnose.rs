//! Why nobody answers.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rackweave_linux::sys::route_to;

/// How long an answer of the host's system is waited for.
const WAIT: Duration = Duration::from_millis(300);

/// One paragraph about a receiver of which nothing was heard.
pub(super) fn silent(to: SocketAddr, keyed: bool, mismatches: u64) -> String {
    let (from, mtu) = match route_to(to) {
        Ok(found) => found,
        Err(error) => return format!("{to}: this host knows no way there: {error}"),
    };
    let way = format!("packets to it leave from {} (MTU {mtu})", from.ip());
    if mismatches > 0 {
        return format!(
            "{to}: {way}, and packets come back that were made with another key or without one: \
             give both ends the same --key FILE, or neither"
        );
    }
    let why = match refused(to) {
        Ok(true) => format!(
            "its system says that nothing listens at UDP port {}: start `rackweave cast receive` there",
            to.port()
        ),
        Ok(false) => {
            let admit = if keyed {
                "it was not started with the same --key".to_owned()
            } else {
                format!(
                    "it was not started with `--from {}` (or, at both ends, --key FILE)",
                    from.ip()
                )
            };
            format!(
                "nothing came back at all: the host is down, a firewall drops UDP port {}, or {admit}",
                to.port()
            )
        }
        Err(error) => format!("the network says: {error}"),
    };
    format!("{to}: {way}; {why}")
}

/// Whether the host's system refuses packets to the port.
fn refused(to: SocketAddr) -> std::io::Result<bool> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(WAIT))?;
    // No packet of ours is so short: whoever listens drops it.
    socket.send(&[0])?;
    match socket.recv(&mut [0; 16]) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(false)
        }
        Err(error) => Err(error),
        Ok(_) => Ok(false),
    }
}

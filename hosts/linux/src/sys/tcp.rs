//! Options of TCP sockets.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// The time since the last acknowledgement, if data or probes are unacknowledged.
///
/// # Errors
/// If the system refuses TCP_INFO.
pub fn unanswered_for(socket: &impl AsFd) -> io::Result<Option<Duration>> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut bytes = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is as long as `bytes` says, and both live through the call. The kernel writes at most that much;
    // all fields are integers, so the zeros in unwritten fields are valid.
    let info = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        let to = info.as_mut_ptr().cast();
        if libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut bytes) != 0 {
            return Err(io::Error::last_os_error());
        }
        info.assume_init()
    };
    let waits = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
    Ok(waits.then(|| Duration::from_millis(info.tcpi_last_ack_recv.into())))
}

/// Makes the system choose the port of a bound socket when it connects (`IP_BIND_ADDRESS_NO_PORT`), so that ports in use
/// with other destinations can be reused.
///
/// # Errors
/// If the system refuses the option.
pub fn bind_late(socket: &impl AsFd) -> io::Result<()> {
    let (on, bytes): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value is an int that lives through the call, as its length says.
    let result = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
        libc::setsockopt(fd, level, name, (&raw const on).cast(), bytes)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a UDP socket that was connected to one peer receive from all again.
///
/// # Errors
/// If the system refuses it.
pub fn disconnect(socket: &impl AsFd) -> io::Result<()> {
    Ok(rustix::net::connect_unspec(socket)?)
}

/// Sets how many bytes must have arrived before a socket is readable (`SO_RCVLOWAT`), so that a reader of long messages wakes less
/// often. The end of the stream makes it readable in any case.
///
/// # Errors
/// If the system refuses the option.
pub fn set_receive_low_water(socket: &impl AsFd, least: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(least).unwrap_or(libc::c_int::MAX);
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call, as its length says.
    let result = unsafe {
        let fd = socket.as_fd().as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), bytes)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! What an engine needs of its machine.

use std::io;
use std::net::Ipv4Addr;

use rackweave_linux::Platform;
use rackweave_linux::sys::UdpSocket;

use crate::sink::SinkWork;

/// What an [`Engine`](super::Engine) needs of the machine that it runs on, besides datagrams, a clock and random numbers.
/// [`UdpSocket`] is the operating system's; a simulator provides another one, so that an engine's decisions are the same code in both.
pub trait EnginePlatform: Platform {
    /// Joins a multicast group on an interface, or leaves it.
    ///
    /// # Errors
    /// If the system refuses.
    fn set_member(&self, group: Ipv4Addr, interface: Ipv4Addr, is_member: bool) -> io::Result<()>;

    /// Starts the work of a sink in parallel with the engine.
    ///
    /// # Errors
    /// If the system refuses. The sink counts as ended then.
    fn start(&mut self, work: SinkWork) -> io::Result<()>;
}

impl EnginePlatform for UdpSocket {
    fn set_member(&self, group: Ipv4Addr, interface: Ipv4Addr, is_member: bool) -> io::Result<()> {
        match is_member {
            true => self.join(group, interface),
            false => self.leave(group, interface),
        }
    }

    fn start(&mut self, work: SinkWork) -> io::Result<()> {
        work.start()
    }
}

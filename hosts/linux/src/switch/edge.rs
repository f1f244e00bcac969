//! The edge of the fabric: one socket for each host.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rackweave_core::{DropReason, HostId, Packet, Time};
use rackweave_switch::system::System;
use rackweave_wire::frame::ETHERNET_HEADER;
use smallvec::SmallVec;

use super::checksum;
use super::config::{Edge, SwitchConfig, SwitchError};
use super::core::{Core, Departure};
use super::frame::{self, Carried, Encapsulation, Rules, Unfit};
use super::stats::Counters;
use crate::clock::{Clock, realtime_to_boot_ns};
use crate::endpoint::Network;
use crate::sys::{self, Frame, FrameBatch, PacketSocket, ReceiveBatch, SendBatch, UdpSocket};

/// The most calls to receive from one socket in a turn, so that the other sockets are served too.
const RECEIVE_CALLS: usize = 8;

/// The most datagrams that wait for one socket's send buffer; more are dropped.
const MOST_WAITING: usize = 1024;

/// The socket that connects a host.
#[derive(Debug)]
enum Port {
    Udp(UdpPort),
    Interface(InterfacePort),
}

#[derive(Debug)]
struct UdpPort {
    socket: UdpSocket,
    /// The host's address, once it is known.
    host: Option<SocketAddr>,
    /// The address that the host had before, if it was learnt.
    before: Option<SocketAddr>,
    /// Whether the address was configured and is not learnt.
    fixed: bool,
    batch: SendBatch,
}

#[derive(Debug)]
struct InterfacePort {
    socket: PacketSocket,
    /// The slots and lengths of frames to be sent.
    out: Vec<(u32, usize)>,
    drops: u64,
}

/// The sockets of all hosts.
#[derive(Debug)]
pub(super) struct Edges<S> {
    ports: Vec<Port>,
    learn_from: Vec<Network>,
    rules: Rules<S>,
    datagrams: ReceiveBatch,
    frames: FrameBatch,
    /// Ports with frames to be sent.
    touched: Vec<u32>,
    /// The times at which the frames of the last [`Edges::send`] were due.
    due: Vec<Time>,
    /// The counters of the sockets.
    pub(super) counters: Counters,
}

/// Converts the kernel's receive time stamps to the switch's clock.
#[derive(Clone, Copy, Debug)]
struct Stamps {
    clock: Clock,
    now: Time,
    to_boot: i64,
}

impl Stamps {
    fn receive_time(&self, realtime_ns: Option<u64>) -> Time {
        realtime_ns.map_or(self.now, |realtime| {
            self.clock.time_of_boot_ns(realtime.saturating_add_signed(self.to_boot)).min(self.now)
        })
    }
}

impl<S: System> Edges<S> {
    pub(super) fn open(config: &SwitchConfig<Arc<S>>, switches: u32) -> Result<Self, SwitchError> {
        let mut ports = Vec::with_capacity(config.edges.len());
        for (number, edge) in config.edges.iter().enumerate() {
            ports.push(match edge {
                Edge::Udp { bind, host } => {
                    let socket = UdpSocket::bind(*bind, config.socket_buffer, true);
                    let socket = socket.map_err(|source| SwitchError::Bind {
                        host: HostId(number as u32),
                        address: *bind,
                        source,
                    })?;
                    sys::set_buffers(socket.as_fd(), config.socket_buffer);
                    let (host, fixed) = (*host, host.is_some());
                    Port::Udp(UdpPort {
                        socket,
                        host,
                        before: None,
                        fixed,
                        batch: SendBatch::default(),
                    })
                }
                Edge::Interface { name } => {
                    let socket = PacketSocket::open(name, config.socket_buffer);
                    let socket = socket.map_err(|source| interface_error(name, source))?;
                    Port::Interface(InterfacePort { socket, out: Vec::new(), drops: 0 })
                }
            });
        }
        Ok(Self {
            ports,
            learn_from: config.learn_from.clone(),
            rules: Rules {
                hosts: config.fabric.topology.hosts(),
                switches,
                mtu: config.mtu as usize,
                system: Arc::clone(&config.system),
            },
            datagrams: ReceiveBatch::default(),
            frames: FrameBatch::default(),
            touched: Vec::new(),
            due: Vec::new(),
            counters: Counters::default(),
        })
    }

    pub(super) const fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns how packets are encapsulated in frames, which is the same for all hosts.
    pub(super) const fn encapsulation(&self) -> Encapsulation {
        match self.ports.as_slice() {
            [Port::Interface(_), ..] => Encapsulation::Ethernet,
            _ => Encapsulation::Overlay,
        }
    }

    /// The local address of each host's UDP socket.
    pub(super) fn udp_ports(&self) -> Vec<Option<SocketAddr>> {
        let address = |port: &Port| match port {
            Port::Udp(port) => Some(port.socket.local_addr()),
            Port::Interface(_) => None,
        };
        self.ports.iter().map(address).collect()
    }

    /// All sockets, in the order of their hosts.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().map(|port| match port {
            Port::Udp(port) => port.socket.as_fd(),
            Port::Interface(port) => port.socket.as_fd(),
        })
    }

    /// Frames that the kernel has dropped because a receive buffer was full.
    pub(super) fn kernel_drops(&mut self) -> u64 {
        let drops = |port: &mut Port| match port {
            Port::Udp(port) => sys::drops(port.socket.as_fd()),
            Port::Interface(port) => {
                port.drops += port.socket.new_drops();
                port.drops
            }
        };
        self.ports.iter_mut().map(drops).sum()
    }

    /// Reads the sockets of these hosts. Afterwards all frames have been read that the kernel received before the time that
    /// is returned: `now`, or less if a socket still has frames.
    pub(super) fn receive(
        &mut self,
        ready: &[u32],
        clock: Clock,
        now: Time,
        core: &mut Core<S>,
    ) -> Result<Time, SwitchError> {
        let stamps = Stamps { clock, now, to_boot: realtime_to_boot_ns() };
        let mut horizon = now;
        for &host in ready {
            let last = match &self.ports[host as usize] {
                Port::Udp(_) => self.receive_datagrams(host, &stamps, core),
                Port::Interface(_) => self.receive_frames(host, &stamps, core),
            };
            let host = HostId(host);
            if let Some(last) = last.map_err(|source| SwitchError::Socket { host, source })? {
                horizon = horizon.min(last);
            }
        }
        Ok(horizon)
    }

    /// Reads a UDP socket. Returns the time of the last datagram if there may be more.
    fn receive_datagrams(
        &mut self,
        host: u32,
        stamps: &Stamps,
        core: &mut Core<S>,
    ) -> io::Result<Option<Time>> {
        let Port::Udp(port) = &mut self.ports[host as usize] else { return Ok(None) };
        let mut last = stamps.now;
        for _ in 0..RECEIVE_CALLS {
            port.socket.receive(&mut self.datagrams)?;
            for datagram in self.datagrams.datagrams() {
                last = stamps.receive_time(datagram.realtime_ns);
                if port.host != Some(datagram.from) {
                    let from = datagram.from.ip();
                    if port.fixed || !self.learn_from.iter().any(|net| net.contains(from)) {
                        self.counters.foreign += 1;
                        continue;
                    }
                }
                let (bytes, class) = (datagram.bytes, datagram.traffic_class);
                let read = if bytes.len() + 28 > self.rules.mtu {
                    Err(Unfit::Oversized)
                } else {
                    frame::read_datagram(bytes, class, HostId(host), &self.rules)
                };
                if read.is_ok() && port.host != Some(datagram.from) {
                    // A process that returns has another port. One that is heard again was there all the time, next to
                    // the other.
                    self.counters.contested += u64::from(port.before == Some(datagram.from));
                    port.before = port.host.replace(datagram.from);
                    self.counters.learnt += 1;
                }
                // A HELLO that a host addresses to itself announces its address to the switch.
                if !read.is_ok_and(|packet| packet.dst.0 == host) {
                    admit(core, &mut self.counters, last, HostId(host), read, bytes);
                }
            }
            if !self.datagrams.was_full() {
                return Ok(None);
            }
        }
        Ok(Some(last))
    }

    /// Reads an interface. Returns the time of the last frame if there may be more.
    fn receive_frames(
        &mut self,
        host: u32,
        stamps: &Stamps,
        core: &mut Core<S>,
    ) -> io::Result<Option<Time>> {
        let Port::Interface(port) = &mut self.ports[host as usize] else { return Ok(None) };
        let mut last = stamps.now;
        for _ in 0..RECEIVE_CALLS {
            let filled = port.socket.receive(&mut self.frames)?;
            for Frame { realtime_ns, cut, unfinished_checksum, bytes } in self.frames.frames() {
                last = stamps.receive_time(realtime_ns);
                let read = match cut {
                    true => Err(Unfit::Oversized),
                    false => frame::read_frame(bytes, HostId(host), &self.rules),
                };
                let counters = &mut self.counters;
                let slot = admit(core, counters, last, HostId(host), read, bytes);
                let Some(slot) = slot else { continue };
                if unfinished_checksum {
                    self.counters.unfinished_checksums += 1;
                    let frame = &mut core.payloads().get_mut(slot)[..bytes.len()];
                    checksum::finish(&mut frame[ETHERNET_HEADER as usize..]);
                }
            }
            if !PacketSocket::was_full(filled) {
                return Ok(None);
            }
        }
        Ok(Some(last))
    }

    /// Sends the frames that have reached their hosts' ports; [`Edges::due`] has the times at which they were due.
    pub(super) fn send(&mut self, core: &mut Core<S>) -> Result<(), SwitchError> {
        self.due.clear();
        while let Some(Departure { due, host, packet }) = core.departure() {
            self.push(core, host, &packet);
            self.due.push(due);
        }
        let mut touched = std::mem::take(&mut self.touched);
        let mut failed = None;
        touched.retain(|host| match self.flush(*host, core) {
            Ok(waits) => waits,
            Err(source) => {
                failed = Some(SwitchError::Socket { host: HostId(*host), source });
                false
            }
        });
        self.touched = touched;
        failed.map_or(Ok(()), Err)
    }

    /// The times at which the frames of the last [`Edges::send`] were due.
    pub(super) fn due(&self) -> &[Time] {
        &self.due
    }

    /// Whether frames wait because a socket's send buffer is full.
    pub(super) fn is_blocked(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Appends a frame to the frames that are sent to a host.
    fn push(&mut self, core: &mut Core<S>, host: HostId, packet: &Packet<Carried<S::View>>) {
        let slot = packet.header.slot;
        match &mut self.ports[host.0 as usize] {
            Port::Udp(port) => {
                let Some(to) = port.host else {
                    self.counters.no_address += 1;
                    return core.payloads().release(slot);
                };
                if port.batch.is_empty() {
                    self.touched.push(host.0);
                }
                let (class, bytes) = frame::finish_datagram(core.payloads(), packet, host);
                port.batch.push(to, class, |out| out.extend_from_slice(bytes), SmallVec::new());
                core.payloads().release(slot);
            }
            Port::Interface(port) => {
                if port.out.is_empty() {
                    self.touched.push(host.0);
                }
                port.out.push((slot, frame::finish_frame(core.payloads(), packet, host)));
            }
        }
        self.counters.forwarded += 1;
        self.counters.forwarded_bytes += u64::from(packet.wire_bytes);
    }

    /// Passes a host's frames to the kernel; returns whether some are left.
    fn flush(&mut self, host: u32, core: &mut Core<S>) -> io::Result<bool> {
        match &mut self.ports[host as usize] {
            Port::Udp(port) => {
                self.counters.send_refused += port.socket.send(&mut port.batch)?;
                if port.batch.len() > MOST_WAITING {
                    self.counters.send_refused += port.batch.len() as u64;
                    port.batch = SendBatch::default();
                }
                Ok(!port.batch.is_empty())
            }
            Port::Interface(port) => {
                let frames = core.payloads();
                let bytes = port.out.iter().map(|(slot, len)| &frames.get(*slot)[..*len]);
                let refused = port.socket.send(bytes);
                for (slot, _) in port.out.drain(..) {
                    frames.release(slot);
                }
                self.counters.send_refused += refused;
                Ok(false)
            }
        }
    }
}

/// Passes a frame to the fabric and returns its slot, or counts the reason why it is dropped.
fn admit<S: System>(
    core: &mut Core<S>,
    counters: &mut Counters,
    at: Time,
    host: HostId,
    read: Result<Packet<Carried<S::View>>, Unfit>,
    bytes: &[u8],
) -> Option<u32> {
    let packet = match read {
        Ok(packet) => packet,
        Err(unfit) => {
            let counter = match unfit {
                Unfit::Malformed => &mut counters.malformed,
                Unfit::Foreign => &mut counters.foreign,
                Unfit::Ignored => &mut counters.ignored,
                Unfit::Oversized => &mut counters.oversized,
                Unfit::NoRoute => &mut counters.drops[DropReason::NoRoute as usize],
            };
            *counter += 1;
            return None;
        }
    };
    let slot = core.payloads().insert(bytes);
    match slot {
        Some(slot) => core.arrive(at, host, packet.map(|carried| carried.with_slot(slot))),
        None => counters.no_memory += 1,
    }
    slot
}

fn interface_error(name: &str, source: io::Error) -> SwitchError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => SwitchError::NoInterface { name },
        io::ErrorKind::PermissionDenied => SwitchError::NotPermitted { name },
        _ => SwitchError::Interface { name, source },
    }
}

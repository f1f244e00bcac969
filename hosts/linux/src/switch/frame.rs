//! Frames: the slots that hold their bytes, the metadata by which the fabric forwards them, and the changes made on
//! exit.

use core::fmt;
use std::sync::Arc;

use rackweave_core::{
    Destination, Ecn, Header, HostId, MessageId, Packet, PayloadStore, Rank, Rng, Slice,
};
use rackweave_switch::system::{Outgoing, Parsed, Protocol, System};
use rackweave_wire::frame::{
    ETHERNET_HEADER, host_at, ip_address, mac_address, traffic_class, with_traffic_class,
};
use rackweave_wire::{Id64, overlay};

use super::checksum::{self, replace_word};

/// The length of the longest frame that the switch forwards.
pub const MAX_FRAME: usize = 2048;

/// The number of slots that are allocated together.
const CHUNK: usize = 256;

const ETHERNET: usize = ETHERNET_HEADER as usize;
const IP: usize = 20;
const TTL: u8 = 64;
const UDP: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const FRAGMENT: u16 = 0x3fff;
const OFFSET: u16 = 0x1fff;

/// How packets are encapsulated in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// The overlay's header in the payload of a UDP datagram. Hosts are attached by UDP ports.
    #[default]
    Overlay,
    /// Ethernet, IPv4 and UDP. Hosts are attached by interfaces.
    Ethernet,
}

/// The value of the path field if the sender has named no path.
const NO_PATH: u16 = u16::MAX;

/// The kind of frames that belong to no group system; see [`Protocol::kind`].
const NO_SYSTEM: u8 = 0;

/// The header of a packet that is a frame: the location of its bytes, and the view `V` of them for a switch program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried<V> {
    /// The slot in [`Frames`] that holds the bytes.
    pub slot: u32,
    /// The length of the frame.
    len: u16,
    /// The offset at which its IP and UDP headers end.
    body: u16,
    /// The length to which trimming cuts it.
    header_end: u16,
    path: u16,
    /// Whether it is a packet of one of our transports: such a packet may be trimmed, and all fields of its traffic
    /// class have our meaning.
    overlay: bool,
    /// The kind of the group system's protocol, or [`NO_SYSTEM`].
    kind: u8,
    /// The offset at which the bytes begin that programs read and write.
    payload_at: u16,
    /// What a queue in the order of remaining size compares: the message, and how much of it remains.
    rank: Option<(Id64, u32)>,
    view: Option<V>,
}

impl<V: Copy + fmt::Debug> Header for Carried<V> {
    fn payload(&self) -> Option<Slice> {
        None
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        (self.path != NO_PATH).then_some(self.path)
    }

    #[inline]
    fn rank(&self) -> Option<Rank> {
        let (message, remaining) = self.rank?;
        Some(Rank { message: MessageId(message.get()), remaining })
    }
}

impl<V: Copy> Carried<V> {
    /// Creates the header of a frame of `len` bytes whose content is irrelevant to switches.
    #[must_use]
    pub const fn opaque(slot: u32, len: u16, path: Option<u16>) -> Self {
        let path = match path {
            Some(path) => path,
            None => NO_PATH,
        };
        Self {
            slot,
            len,
            body: 0,
            header_end: len,
            path,
            overlay: false,
            kind: NO_SYSTEM,
            payload_at: len,
            rank: None,
            view: None,
        }
    }

    /// Returns the view for the program of the packet's system; `None` if it belongs to no system or is damaged.
    #[inline]
    #[must_use]
    pub const fn view(&self) -> Option<V> {
        self.view
    }

    /// Most bytes that captures keep of a frame that is no packet of a transport: Ethernet's, IPv4's and TCP's headers
    /// at their longest, rounded up.
    pub const SNAP: usize = 144;

    /// Where the overlay's envelope begins in a packet of a transport. `None`: it is another frame.
    pub(super) const fn envelope_at(&self) -> Option<usize> {
        if self.overlay { Some(self.body as usize) } else { None }
    }

    /// Bytes of the whole frame, as captures count them.
    pub(super) const fn frame_bytes(&self) -> u32 {
        self.len as u32
    }

    /// Returns the same header with another slot.
    pub(super) const fn with_slot(self, slot: u32) -> Self {
        Self { slot, ..self }
    }

    /// Returns the offset at which the system's packet begins.
    const fn system_at(&self) -> usize {
        match self.body {
            0 => overlay::BYTES as usize,
            body => body as usize + UDP,
        }
    }

    /// Returns the same header for a packet of the protocol `kind`, after its system has parsed it; `None` means that
    /// the packet is damaged.
    fn parsed(self, kind: u8, parsed: Option<Parsed<V>>) -> Self {
        let (view, payload_at) = match parsed {
            Some(Parsed { view, payload_at, .. }) => (Some(view), self.system_at() + payload_at),
            None => (None, self.len.into()),
        };
        Self { kind, view, payload_at: payload_at as u16, ..self }
    }

    /// Returns the range of the bytes that programs read and write.
    const fn payload_range(&self, trimmed: bool) -> core::ops::Range<usize> {
        self.payload_at as usize..self.travels(trimmed)
    }

    /// Returns the number of bytes that are transmitted: fewer if the packet was trimmed.
    const fn travels(&self, trimmed: bool) -> usize {
        (if trimmed { self.header_end } else { self.len }) as usize
    }
}

/// Why a frame is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It is damaged, or its format is not one that the switch forwards.
    Malformed,
    /// Its source address is not that of the host which sent it.
    Foreign,
    /// It is not IPv4 between hosts.
    Ignored,
    /// It is longer than a link can carry, because the host's segmentation offload is on.
    Oversized,
    /// The destination does not exist.
    NoRoute,
}

/// Slots for the bytes of frames. They are allocated on demand, up to a limit.
#[derive(Debug)]
pub struct Frames<S> {
    /// The system, which parses packets again after damage.
    system: Arc<S>,
    chunks: Vec<Box<[u8]>>,
    free: Vec<u32>,
    made: u32,
    limit: u32,
}

impl<S> Frames<S> {
    /// Creates an empty store for at most `limit` frames.
    #[must_use]
    pub const fn new(limit: u32, system: Arc<S>) -> Self {
        Self { system, chunks: Vec::new(), free: Vec::new(), made: 0, limit }
    }

    /// Allocates a slot.
    fn slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.made >= self.limit {
            return None;
        }
        let slot = self.made;
        if slot as usize == self.chunks.len() * CHUNK {
            self.chunks.push(vec![0; CHUNK * MAX_FRAME].into());
        }
        self.made += 1;
        Some(slot)
    }

    /// Copies a frame, at most [`MAX_FRAME`] bytes of it, into a slot. Returns `None` if there is no room.
    pub fn insert(&mut self, bytes: &[u8]) -> Option<u32> {
        let slot = self.slot()?;
        self.get_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        Some(slot)
    }

    /// Returns the bytes of a slot.
    #[must_use]
    pub fn get(&self, slot: u32) -> &[u8] {
        let start = slot as usize % CHUNK * MAX_FRAME;
        &self.chunks[slot as usize / CHUNK][start..start + MAX_FRAME]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize % CHUNK * MAX_FRAME;
        &mut self.chunks[slot as usize / CHUNK][start..start + MAX_FRAME]
    }

    /// Frees the slot of a frame that has left or was dropped.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Returns the number of frames in the store.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.made - self.free.len() as u32
    }
}

impl<S: System> PayloadStore<Carried<S::View>> for Frames<S> {
    fn release(&mut self, packet: &Packet<Carried<S::View>>) {
        self.release(packet.header.slot);
    }

    fn duplicate(&mut self, packet: &mut Packet<Carried<S::View>>) -> bool {
        let of = packet.header;
        let mut bytes = [0; MAX_FRAME];
        let len = usize::from(of.len);
        bytes[..len].copy_from_slice(&self.get(of.slot)[..len]);
        let Some(slot) = self.insert(&bytes[..len]) else { return false };
        packet.header = of.with_slot(slot);
        true
    }

    /// Flips bits of a frame behind its IP and UDP headers: one to three in a packet of our transports, whose check
    /// detects all such damage, and one in others, because the Internet checksum misses some pairs. A packet without a check
    /// ([`Protocol::has_check`]) is not damaged but lost, and so is one in the overlay that no system here knows.
    fn damage(&mut self, packet: &mut Packet<Carried<S::View>>, rng: &mut Rng) -> bool {
        let carried = packet.header;
        let (from, to) = (usize::from(carried.body), carried.travels(packet.is_trimmed()));
        let has_check = match (carried.kind, carried.body) {
            (NO_SYSTEM, 0) => carried.overlay,
            (NO_SYSTEM, _) => true,
            (kind, _) => {
                let mut protocols = self.system.protocols();
                protocols.any(|protocol| protocol.kind == kind && protocol.has_check)
            }
        };
        if !has_check {
            return false;
        }
        let Some(bits) = to.checked_sub(from).filter(|bytes| *bytes > 0).map(|bytes| bytes * 8)
        else {
            return true;
        };
        let flips = if carried.overlay { 1 + rng.below(3) } else { 1 };
        let bytes = &mut self.get_mut(carried.slot)[from..to];
        let mut flipped: [Option<usize>; 3] = [None; 3];
        for n in 0..flips as usize {
            let bit = rng.below(bits as u64) as usize;
            // Flipping the same bit twice would be no damage.
            if !flipped.contains(&Some(bit)) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                flipped[n] = Some(bit);
            }
        }
        if carried.kind != NO_SYSTEM {
            // Parse the packet again, so that programs see the damaged fields.
            let bytes = &self.get(carried.slot)[carried.system_at()..to];
            let parsed = self.system.parse(carried.kind, bytes);
            packet.header = carried.parsed(carried.kind, parsed);
        }
        true
    }

    /// The headers of a packet of a transport; of other frames at most [`Carried::SNAP`] bytes.
    fn head(&self, packet: &Packet<Carried<S::View>>) -> &[u8] {
        let carried = packet.header;
        let most =
            if carried.overlay { carried.header_end.into() } else { Carried::<S::View>::SNAP };
        &self.get(carried.slot)[..most.min(carried.len.into())]
    }

    /// Returns the payload of the system's packet; see [`Parsed::payload_at`].
    fn read(&self, packet: &Packet<Carried<S::View>>) -> &[u8] {
        let carried = packet.header;
        self.get(carried.slot).get(carried.payload_range(packet.is_trimmed())).unwrap_or_default()
    }

    fn write(&mut self, packet: &Packet<Carried<S::View>>) -> &mut [u8] {
        let carried = packet.header;
        let range = carried.payload_range(packet.is_trimmed());
        let bytes = self.get_mut(carried.slot);
        if carried.kind == NO_SYSTEM || range.is_empty() {
            return &mut [];
        }
        if carried.body > 0 {
            // A UDP checksum would become wrong, and the receiver's kernel would drop the packet, so it is set to 0,
            // which means "none". The system has a check of its own, which its program updates.
            let check = usize::from(carried.body) + UDP - 2;
            bytes[check..check + 2].fill(0);
        }
        &mut bytes[range]
    }

    fn combine(
        &mut self,
        into: &Packet<Carried<S::View>>,
        from: &Packet<Carried<S::View>>,
        combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool {
        if into.header.slot == from.header.slot {
            return false;
        }
        let mut bytes = [0; MAX_FRAME];
        let from = PayloadStore::read(self, from);
        let len = from.len();
        bytes[..len].copy_from_slice(from);
        combine(PayloadStore::write(self, into), &bytes[..len]);
        true
    }

    /// Allocates a slot for the frame that `header` describes. Programs may write its last `len` bytes.
    fn make(&mut self, header: Carried<S::View>, len: usize) -> Option<Carried<S::View>> {
        let frame = usize::from(header.len);
        if frame > MAX_FRAME || len > frame {
            return None;
        }
        let slot = self.slot()?;
        self.get_mut(slot)[..frame].fill(0);
        Some(Carried { payload_at: (frame - len) as u16, ..header.with_slot(slot) })
    }
}

/// Encodes a program's packet as a frame that [`read_datagram`] or [`read_frame`] could read, into `frame`, which must
/// be empty. The packet's slot is not set yet. Returns `None` if the encapsulation cannot express an address, or if the
/// packet is longer than `mtu`.
pub(super) fn encode<S: System>(
    system: &S,
    made: &Outgoing<'_, S::Made>,
    encapsulation: Encapsulation,
    mtu: u32,
    frame: &mut Vec<u8>,
) -> Option<Packet<Carried<S::View>>> {
    let front = match encapsulation {
        Encapsulation::Overlay => overlay::BYTES as usize,
        Encapsulation::Ethernet => ETHERNET + IP + UDP,
    };
    frame.resize(front, 0);
    let kind = system.encode(made, frame);
    let body_bytes = frame.len() - front;
    let l3_bytes = match encapsulation {
        Encapsulation::Overlay => IP + UDP + frame.len(),
        Encapsulation::Ethernet => frame.len() - ETHERNET,
    };
    if l3_bytes > mtu as usize || frame.len() > MAX_FRAME {
        return None;
    }
    let protocol = system.protocols().find(|protocol| protocol.kind == kind)?;
    let header = Carried {
        body: match encapsulation {
            Encapsulation::Overlay => 0,
            Encapsulation::Ethernet => (ETHERNET + IP) as u16,
        },
        ..Carried::opaque(0, frame.len() as u16, None)
    };
    let header = header.parsed(kind, system.parse(kind, &frame[front..]));
    let packet = Packet::new(made.src, made.dst, l3_bytes as u32, header)
        .with_ports(protocol.port, protocol.port)
        .with_priority(made.priority.min(7))
        .with_ecn(made.ecn);
    match encapsulation {
        Encapsulation::Overlay => {
            let envelope = overlay::group_envelope(kind, made.src, made.dst, body_bytes as u16);
            frame[..front].copy_from_slice(&envelope);
        }
        Encapsulation::Ethernet => {
            let group = system.protocols().filter_map(|protocol| protocol.group);
            let group = group.into_iter().find(|(_, dst)| *dst == made.dst);
            let dst = ip_address(made.dst).or(group.map(|(address, _)| address))?;
            put_front(&mut frame[..], &packet, [ip_address(made.src)?, dst]);
        }
    }
    Some(packet)
}

/// Writes the IP and UDP headers. The MAC addresses are set when the frame leaves.
fn put_front<V: Copy + fmt::Debug>(
    frame: &mut [u8],
    packet: &Packet<Carried<V>>,
    addresses: [[u8; 4]; 2],
) {
    let total = (frame.len() - ETHERNET) as u16;
    frame[12..14].copy_from_slice(&ETHERTYPE_IPV4);
    let ip = &mut frame[ETHERNET..];
    ip[0] = 0x45; // version 4, five words
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[6] = 0x40; // don't fragment
    ip[8..10].copy_from_slice(&[TTL, PROTOCOL_UDP]);
    // The checksum is that of the fields written here; each change of a field below updates it too.
    let sum = [0x45, 0, ip[2], ip[3], 0x40, 0, TTL, PROTOCOL_UDP];
    let (words, _) = sum.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    replace_word(ip, 0, [0x45, traffic_class(packet)]);
    for (address, at) in addresses.iter().zip([12, 16]) {
        replace_word(ip, at, [address[0], address[1]]);
        replace_word(ip, at + 2, [address[2], address[3]]);
    }
    let udp = &mut ip[IP..];
    udp[..4].copy_from_slice(&packet.ports.to_be_bytes());
    udp[4..6].copy_from_slice(&(total - IP as u16).to_be_bytes());
    checksum::begin_udp(ip);
    checksum::finish(ip);
}

/// The limits that incoming frames are checked against.
#[derive(Clone, Debug)]
pub(super) struct Rules<S> {
    /// The number of hosts.
    pub(super) hosts: u32,
    /// The number of switches.
    pub(super) switches: u32,
    /// The length of the largest IP packet in bytes.
    pub(super) mtu: usize,
    /// The group system whose packets are recognised.
    pub(super) system: Arc<S>,
}

impl<S: System> Rules<S> {
    /// Returns whether the fabric can deliver to this destination.
    fn has_route(&self, dst: HostId) -> bool {
        match Destination::from_address(dst) {
            Destination::Host(HostId(host)) if host < self.hosts => true,
            Destination::Switch(switch) => switch < self.switches,
            _ => self.system.resolves(dst),
        }
    }

    /// Returns the destination that an IPv4 multicast address denotes.
    fn group(&self, address: &[u8]) -> Option<HostId> {
        let mut groups = self.system.protocols().filter_map(|protocol| protocol.group);
        groups.find(|(group, _)| group == address).map(|(_, dst)| dst)
    }

    /// Returns the first of the system's protocols for which `wanted` is true.
    fn protocol(&self, wanted: impl Fn(&Protocol) -> bool) -> Option<Protocol> {
        self.system.protocols().find(wanted)
    }
}

/// Parses a datagram from a host's socket. The packet's slot is not set yet.
pub(super) fn read_datagram<S: System>(
    bytes: &[u8],
    class: u8,
    from: HostId,
    rules: &Rules<S>,
) -> Result<Packet<Carried<S::View>>, Unfit> {
    if bytes.len() > MAX_FRAME {
        return Err(Unfit::Oversized);
    }
    let glance = overlay::glance(bytes).map_err(|_| Unfit::Malformed)?;
    let envelope = glance.envelope;
    if envelope.src != from {
        return Err(Unfit::Foreign);
    }
    let l3_bytes = (IP + UDP + bytes.len()) as u32;
    let overlay::Kind::Group(kind) = envelope.kind else {
        return of_overlay(&glance, class, bytes.len(), 0, l3_bytes, rules.hosts);
    };
    let mut carried = Carried::opaque(0, bytes.len() as u16, None);
    let mut ports = (0, 0);
    if let Some(protocol) = rules.protocol(|protocol| protocol.kind == kind) {
        let parsed = rules.system.parse(kind, &bytes[overlay::BYTES as usize..]);
        let parsed = parsed.ok_or(Unfit::Malformed)?;
        match parsed.addresses {
            Some((src, _)) if src != from => return Err(Unfit::Foreign),
            Some((_, dst)) if dst != envelope.dst => return Err(Unfit::Malformed),
            _ => carried = carried.parsed(kind, Some(parsed)),
        }
        ports = (protocol.port, protocol.port);
    }
    // A switch or group has no use for packets other than those of a group system.
    if !rules.has_route(envelope.dst) || carried.kind == NO_SYSTEM && envelope.dst.0 >= rules.hosts
    {
        return Err(Unfit::NoRoute);
    }
    let packet = Packet::new(from, envelope.dst, l3_bytes, carried);
    Ok(of_class(packet.with_ports(ports.0, ports.1), class))
}

/// Applies the traffic class of a packet of a foreign transport: only the priority and the ECN bits have the same
/// meaning as in Rackweave's.
fn of_class<V: Copy + fmt::Debug>(packet: Packet<Carried<V>>, class: u8) -> Packet<Carried<V>> {
    let ecn = match class & 3 {
        0 => Ecn::NotCapable,
        3 => Ecn::Marked,
        _ => Ecn::Capable,
    };
    packet.with_priority(class >> 5).with_ecn(ecn)
}

/// Parses a packet of one of our transports, which begins at `body` of the frame.
fn of_overlay<V: Copy + fmt::Debug>(
    glance: &overlay::Glance,
    class: u8,
    len: usize,
    body: usize,
    l3_bytes: u32,
    hosts: u32,
) -> Result<Packet<Carried<V>>, Unfit> {
    let envelope = glance.envelope;
    if envelope.dst.0 >= hosts {
        return Err(Unfit::NoRoute);
    }
    let carried = Carried {
        slot: 0,
        len: len as u16,
        body: body as u16,
        header_end: (body + glance.header_end) as u16,
        path: glance.path.unwrap_or(NO_PATH),
        overlay: true,
        kind: NO_SYSTEM,
        payload_at: len as u16,
        rank: glance.rank.map(|rank| (Id64::new(rank.message.0), rank.remaining)),
        view: None,
    };
    let packet = Packet::new(envelope.src, envelope.dst, l3_bytes, carried)
        .with_ports(glance.ports.source, glance.ports.destination);
    let packet = with_traffic_class(packet, class);
    // A trimmed packet from a host is invalid: only switches trim.
    if packet.is_trimmed() { Err(Unfit::Malformed) } else { Ok(packet) }
}

/// Updates a datagram on its way to a host with its traffic class and its length after the fabric, and returns its
/// bytes.
pub(super) fn finish_datagram<'a, S: System>(
    frames: &'a mut Frames<S>,
    packet: &Packet<Carried<S::View>>,
    host: HostId,
) -> (u8, &'a [u8]) {
    let len = packet.header.travels(packet.is_trimmed());
    let bytes = &mut frames.get_mut(packet.header.slot)[..len];
    if packet.is_returned() {
        overlay::return_to_sender(bytes);
    }
    if packet.header.kind != NO_SYSTEM
        && let Ok(envelope) = overlay::decode_group(bytes)
        && envelope.dst != host
        && !matches!(Destination::from_address(envelope.dst), Destination::Group(_))
    {
        // The frame is a copy for another host than the addressee, or was redirected.
        overlay::readdress_group(bytes, host);
    }
    (traffic_class(packet), bytes)
}

/// Parses an Ethernet frame from a host's interface. The packet's slot is not set yet.
pub(super) fn read_frame<S: System>(
    bytes: &[u8],
    from: HostId,
    rules: &Rules<S>,
) -> Result<Packet<Carried<S::View>>, Unfit> {
    if bytes.len() < ETHERNET || bytes[12..14] != ETHERTYPE_IPV4 {
        return Err(Unfit::Ignored);
    }
    if bytes.len() > ETHERNET + rules.mtu {
        return Err(Unfit::Oversized);
    }
    let ip = &bytes[ETHERNET..];
    let header = usize::from(ip.first().map_or(0, |first| first & 0xf)) * 4;
    if ip.len() < IP || ip[0] >> 4 != 4 || header < IP || header > ip.len() {
        return Err(Unfit::Malformed);
    }
    let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    let total = usize::from(word(2));
    if total < header || total > ip.len() {
        return Err(Unfit::Malformed);
    }
    let host = |at: usize| {
        let address = [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
        host_at(address).or_else(|| rules.group(&address))
    };
    if ip_address(from).is_none_or(|address| ip[12..16] != address) {
        // Frames that are addressed to no host either are the kernel's own multicast or broadcast.
        return Err(if host(16).is_some() { Unfit::Foreign } else { Unfit::Ignored });
    }
    let Some(dst) = host(16) else { return Err(Unfit::Ignored) };
    if !rules.has_route(dst) {
        return Err(Unfit::NoRoute);
    }
    let (class, protocol) = (ip[1], ip[9]);
    let l4 = &ip[header..total];
    let datagram = match l4 {
        // The length in the UDP header is the one by which receivers read it.
        [_, _, _, _, high, low, _, _, rest @ ..]
            if word(6) & FRAGMENT == 0
                && protocol == PROTOCOL_UDP
                && usize::from(u16::from_be_bytes([*high, *low])) == l4.len() =>
        {
            Some(rest)
        }
        _ => None,
    };
    if let Some(datagram) = datagram
        && let Ok(glance) = overlay::glance(datagram)
        && glance.envelope.src == from
        && glance.envelope.dst == dst
    {
        let (len, body) = (ETHERNET + total, ETHERNET + header + UDP);
        return of_overlay(&glance, class, len, body, total as u32, rules.hosts);
    }
    let ports = match l4 {
        [a, b, c, d, ..]
            if word(6) & OFFSET == 0 && matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP) =>
        {
            (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))
        }
        _ => (0, 0),
    };
    let len = bytes.len() as u16;
    let body = (ETHERNET + header) as u16;
    let carried = Carried { body, ..Carried::opaque(0, len, None) };
    let packet = Packet::new(from, dst, (bytes.len() - ETHERNET) as u32, carried);
    let mut packet = of_class(packet.with_ports(ports.0, ports.1), class);
    let known = rules.protocol(|known| known.port == ports.1);
    if let (Some(known), Some(datagram)) = (known, datagram) {
        read_system(&mut packet, datagram, from, known, rules)?;
    } else if dst.0 >= rules.hosts {
        // The frame is addressed to a system's group but is not one of the system's packets.
        return Err(Unfit::Ignored);
    }
    Ok(packet)
}

/// Parses a UDP datagram that is addressed to the port of a system.
fn read_system<S: System>(
    packet: &mut Packet<Carried<S::View>>,
    bytes: &[u8],
    from: HostId,
    protocol: Protocol,
    rules: &Rules<S>,
) -> Result<(), Unfit> {
    let group = protocol.group.map(|(_, dst)| dst);
    let to_group = group == Some(packet.dst);
    let Some(parsed) = rules.system.parse(protocol.kind, bytes) else {
        // Between two hosts another application may use the same port, but not towards a group or a switch.
        return if packet.dst.0 < rules.hosts { Ok(()) } else { Err(Unfit::Malformed) };
    };
    if let Some((src, dst)) = parsed.addresses {
        if src != from {
            return Err(Unfit::Foreign);
        }
        if to_group {
            packet.dst = dst;
        }
        if packet.dst != dst || !rules.has_route(dst) {
            return Err(Unfit::Malformed);
        }
    }
    packet.header = packet.header.parsed(protocol.kind, Some(parsed));
    let carried = &mut packet.header;
    // This excludes the bytes with which Ethernet pads short frames.
    carried.len = (usize::from(carried.body) + UDP + bytes.len()) as u16;
    carried.header_end = carried.len;
    Ok(())
}

/// Updates an Ethernet frame on its way to a host with the changes made in the fabric, and returns how many of its
/// bytes are transmitted.
pub(super) fn finish_frame<S: System>(
    frames: &mut Frames<S>,
    packet: &Packet<Carried<S::View>>,
    host: HostId,
) -> usize {
    let carried = packet.header;
    let len = carried.travels(packet.is_trimmed());
    let frame = &mut frames.get_mut(carried.slot)[..len];
    let group = multicast_mac(&frame[ETHERNET + 16..ETHERNET + 20]);
    frame[..6].copy_from_slice(&group.unwrap_or_else(|| mac_address(host)));
    frame[6..12].copy_from_slice(&mac_address(packet.src));
    apply_class(frame, packet);
    let ip = &mut frame[ETHERNET..];
    if carried.kind != NO_SYSTEM
        && group.is_none()
        && let Some(address) = ip_address(host)
        && ip[16..20] != address
    {
        // The frame is a copy for another host than the addressee, or was redirected.
        checksum::readdress(ip, usize::from(carried.body) - ETHERNET, address);
    }
    if packet.is_trimmed() {
        let total = (len - ETHERNET) as u16;
        replace_word(ip, 2, total.to_be_bytes());
        let udp = usize::from(carried.body) - ETHERNET - UDP;
        let udp_bytes = total - udp as u16;
        ip[udp + 4..udp + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        // The datagram has checks of its own; a UDP checksum of 0 means "none".
        ip[udp + 6..udp + 8].fill(0);
        if packet.is_returned() {
            // Exchanging the addresses does not change the sum over them.
            swap(ip, 12, 4);
            swap(ip, udp, 2);
            overlay::return_to_sender(&mut ip[udp + UDP..]);
        }
    }
    len
}

/// Writes a packet's traffic class, which the fabric may have changed, into its Ethernet frame.
pub(super) fn apply_class<V: Copy + fmt::Debug>(frame: &mut [u8], packet: &Packet<Carried<V>>) {
    let ip = &mut frame[ETHERNET..];
    let first = ip[0];
    let class = match packet.header.overlay {
        true => traffic_class(packet),
        // Leave ECT(1) unchanged.
        false if packet.ecn() == Ecn::Marked => ip[1] | 3,
        false => ip[1],
    };
    replace_word(ip, 0, [first, class]);
}

/// Returns the MAC address of an IPv4 multicast group: its low 23 bits (RFC 1112 section 6.4). `None` if the address is
/// not one of a group.
fn multicast_mac(address: &[u8]) -> Option<[u8; 6]> {
    match *address {
        [224..=239, b, c, d] => Some([0x01, 0x00, 0x5e, b & 0x7f, c, d]),
        _ => None,
    }
}

/// Exchanges two adjacent fields of `len` bytes.
fn swap(bytes: &mut [u8], at: usize, len: usize) {
    let (first, rest) = bytes[at..].split_at_mut(len);
    first.swap_with_slice(&mut rest[..len]);
}

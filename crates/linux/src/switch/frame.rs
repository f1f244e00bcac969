//! Frames: their bytes in slots, what the fabric needs to know of them, and how they look when they leave.

use rackweave_core::{Ecn, Header, HostId, Packet, Rng, Slice};
use rackweave_group::orca::view::{View, Visible};
use rackweave_switch::Bodies;
use rackweave_wire::frame::{
    ETHERNET_HEADER, ip_address, mac_address, traffic_class, with_traffic_class,
};
use rackweave_wire::{Malformed, orca, overlay};

/// The longest frame that is carried.
pub const MAX_FRAME: usize = 2048;

/// Slots that are made together.
const CHUNK: usize = 256;

const ETHERNET: usize = ETHERNET_HEADER as usize;
const IP: usize = 20;
const UDP: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const FRAGMENT: u16 = 0x3fff;
const OFFSET: u16 = 0x1fff;

/// Where frames to Orca's group go (RFC 1112 section 6.4: the address's low 23 bits).
const GROUP_MAC: [u8; 6] =
    [0x01, 0x00, 0x5e, orca::GROUP[1] & 0x7f, orca::GROUP[2], orca::GROUP[3]];

/// No path was named.
const NO_PATH: u16 = u16::MAX;

/// What goes through the fabric in place of a transport's header: where the frame's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Its slot.
    pub slot: u32,
    /// Its bytes.
    len: u16,
    /// Where its IP and UDP headers end.
    body: u16,
    /// How much of it is left without its payload.
    header_end: u16,
    path: u16,
    /// A packet of a transport of ours: may be trimmed, and its class says all that ours say.
    overlay: bool,
    /// What the switches' program sees of it.
    view: View,
}

impl Visible for Carried {
    fn view(&self) -> View {
        self.view
    }
}

impl Header for Carried {
    fn payload(&self) -> Option<Slice> {
        None
    }

    #[inline]
    fn path(&self) -> Option<u16> {
        (self.path != NO_PATH).then_some(self.path)
    }
}

impl Carried {
    /// A frame of `len` bytes whose content is of no interest.
    #[must_use]
    pub const fn opaque(slot: u32, len: u16, path: Option<u16>) -> Self {
        let path = match path {
            Some(path) => path,
            None => NO_PATH,
        };
        Self { slot, len, body: 0, header_end: len, path, overlay: false, view: View::Other }
    }

    /// The same in another slot.
    pub(super) const fn at(self, slot: u32) -> Self {
        Self { slot, ..self }
    }

    /// Where its Orca packet begins, if it is one.
    const fn orca_at(&self) -> Option<usize> {
        match (self.view, self.body) {
            (View::Other, _) => None,
            (_, 0) => Some(overlay::BYTES as usize),
            (_, body) => Some(body as usize + UDP),
        }
    }

    /// Its bytes that still travel.
    const fn travels(&self, trimmed: bool) -> usize {
        (if trimmed { self.header_end } else { self.len }) as usize
    }
}

/// Why a frame is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// No datagram or packet of a kind that is carried, or damaged.
    Malformed,
    /// It says that it comes from another host than it does.
    Foreign,
    /// Not IPv4 between hosts: of no interest.
    Ignored,
    /// Larger than a link can carry: an offload is on.
    Oversized,
    /// No such host.
    NoRoute,
}

/// Slots for the bytes of frames, made as they are needed, up to a limit.
#[derive(Debug)]
pub struct Frames {
    /// With which Orca's control packets are checked.
    key: Option<orca::Key>,
    chunks: Vec<Box<[u8]>>,
    free: Vec<u32>,
    made: u32,
    limit: u32,
}

impl Frames {
    /// No frame yet, and never more than `limit`.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { key: None, chunks: Vec::new(), free: Vec::new(), made: 0, limit }
    }

    /// The same, where Orca's packets have this key.
    #[must_use]
    pub(super) fn with_key(self, key: Option<orca::Key>) -> Self {
        Self { key, ..self }
    }

    /// A free slot.
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

    /// Keeps a frame's bytes, at most [`MAX_FRAME`]. `None`: there is no room.
    pub fn insert(&mut self, bytes: &[u8]) -> Option<u32> {
        let slot = self.slot()?;
        self.get_mut(slot)[..bytes.len()].copy_from_slice(bytes);
        Some(slot)
    }

    /// A slot's bytes.
    #[must_use]
    pub fn get(&self, slot: u32) -> &[u8] {
        let start = slot as usize % CHUNK * MAX_FRAME;
        &self.chunks[slot as usize / CHUNK][start..start + MAX_FRAME]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut [u8] {
        let start = slot as usize % CHUNK * MAX_FRAME;
        &mut self.chunks[slot as usize / CHUNK][start..start + MAX_FRAME]
    }

    /// A frame has left, or is dropped.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Frames that are kept.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.made - self.free.len() as u32
    }
}

impl Bodies<Carried> for Frames {
    fn release(&mut self, packet: &Packet<Carried>) {
        self.release(packet.header.slot);
    }

    /// Keeps the bytes once more.
    fn copy(&mut self, packet: &Packet<Carried>) -> Option<Carried> {
        let of = packet.header;
        let mut bytes = [0; MAX_FRAME];
        let len = usize::from(of.len);
        bytes[..len].copy_from_slice(&self.get(of.slot)[..len]);
        Some(of.at(self.insert(&bytes[..len])?))
    }

    /// Flips bits of a frame behind its IP and UDP headers. One to three in a packet of ours, whose check finds
    /// every such damage; one in others: the Internet checksum misses some pairs.
    fn damage(&mut self, packet: &mut Packet<Carried>, rng: &mut Rng) -> bool {
        let carried = packet.header;
        let (from, to) = (usize::from(carried.body), carried.travels(packet.is_trimmed()));
        let Some(bits) = to.checked_sub(from).filter(|bytes| *bytes > 0).map(|bytes| bytes * 8)
        else {
            return true;
        };
        let flips = if carried.overlay { 1 + rng.below(3) } else { 1 };
        let bytes = &mut self.get_mut(carried.slot)[from..to];
        let mut flipped: [Option<usize>; 3] = [None; 3];
        for n in 0..flips as usize {
            let bit = rng.below(bits as u64) as usize;
            // The same one twice would be no damage.
            if !flipped.contains(&Some(bit)) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                flipped[n] = Some(bit);
            }
        }
        if let Some(at) = carried.orca_at() {
            // Switches go by what is left of it.
            let orca = &self.get(carried.slot)[at..to];
            let view = look(orca, self.key.as_ref()).map_or(View::Control, |(view, _)| view);
            packet.header.view = view;
        }
        true
    }
}

/// What frames are read by.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// Number of hosts.
    pub(super) hosts: u32,
    /// The largest IP packet.
    pub(super) mtu: usize,
    /// The switches know Orca.
    pub(super) orca: bool,
    /// With which Orca's control packets are checked.
    pub(super) key: Option<orca::Key>,
}

impl Rules {
    /// Whether something can be sent there.
    fn leads_to(&self, dst: HostId) -> bool {
        dst.0 < self.hosts || self.orca && (dst == orca::TO_GROUP || dst == orca::TO_AGENT)
    }
}

/// What a switch sees of an Orca packet; of a control packet also who says it and to whom.
fn look(
    bytes: &[u8],
    key: Option<&orca::Key>,
) -> Result<(View, Option<(HostId, HostId)>), Malformed> {
    let orca::Glance { header, verified, .. } = orca::glance(bytes, key)?;
    let view = match header.view() {
        // What is not proven is only passed on.
        View::SetActive { .. } | View::Sync { .. } | View::Ping { .. } if !verified => {
            View::Control
        }
        view => view,
    };
    let who = match header {
        orca::Header::Control(control) => Some((control.from, control.to)),
        orca::Header::Data(_) => None,
    };
    Ok((view, who))
}

/// Reads a datagram that came from a host's socket. The packet's slot is not set yet.
pub(super) fn read_datagram(
    bytes: &[u8],
    class: u8,
    from: HostId,
    rules: &Rules,
) -> Result<Packet<Carried>, Unfit> {
    if bytes.len() > MAX_FRAME {
        return Err(Unfit::Oversized);
    }
    let glance = overlay::glance(bytes).map_err(|_| Unfit::Malformed)?;
    let envelope = glance.envelope;
    if envelope.src != from {
        return Err(Unfit::Foreign);
    }
    let l3_bytes = (IP + UDP + bytes.len()) as u32;
    if envelope.kind != overlay::Kind::Orca {
        return of_overlay(&glance, class, bytes.len(), 0, l3_bytes, rules.hosts);
    }
    let mut carried = Carried::opaque(0, bytes.len() as u16, None);
    if rules.orca {
        let (view, who) = look(&bytes[overlay::BYTES as usize..], rules.key.as_ref())
            .map_err(|_| Unfit::Malformed)?;
        match who {
            Some((says, _)) if says != from => return Err(Unfit::Foreign),
            Some((_, to)) if to != envelope.dst => return Err(Unfit::Malformed),
            _ => carried.view = view,
        }
    }
    if !rules.leads_to(envelope.dst) {
        return Err(Unfit::NoRoute);
    }
    let packet = Packet::new(from, envelope.dst, l3_bytes, carried);
    Ok(of_class(packet.with_ports(orca::PORT, orca::PORT), class))
}

/// What the class of a packet says that is not one of our transports': only the priority and the ECN bits mean what ours do.
fn of_class(packet: Packet<Carried>, class: u8) -> Packet<Carried> {
    let ecn = match class & 3 {
        0 => Ecn::NotCapable,
        3 => Ecn::Marked,
        _ => Ecn::Capable,
    };
    packet.with_priority(class >> 5).with_ecn(ecn)
}

/// A packet of one of our transports, which begins at `body` of the frame.
fn of_overlay(
    glance: &overlay::Glance,
    class: u8,
    len: usize,
    body: usize,
    l3_bytes: u32,
    hosts: u32,
) -> Result<Packet<Carried>, Unfit> {
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
        view: View::Other,
    };
    let packet = Packet::new(envelope.src, envelope.dst, l3_bytes, carried)
        .with_ports(glance.ports.source, glance.ports.destination);
    let packet = with_traffic_class(packet, class);
    // Only switches trim.
    if packet.is_trimmed() { Err(Unfit::Malformed) } else { Ok(packet) }
}

/// Writes into a datagram what became of it in the fabric on its way to a host: its traffic class, and its bytes.
pub(super) fn finish_datagram<'a>(
    frames: &'a mut Frames,
    packet: &Packet<Carried>,
    host: HostId,
) -> (u8, &'a [u8]) {
    let len = packet.header.travels(packet.is_trimmed());
    let bytes = &mut frames.get_mut(packet.header.slot)[..len];
    if packet.is_turned_back() {
        overlay::turn_back(bytes);
    }
    if is_copy_for(packet, host) {
        overlay::readdress_orca(bytes, host);
    }
    (traffic_class(packet), bytes)
}

/// Whether this is an Orca packet to another host, of which a switch has made a copy for this one (the controller's words
/// to all agents of a rack).
fn is_copy_for(packet: &Packet<Carried>, host: HostId) -> bool {
    let to_one = ip_address(packet.dst).is_some();
    packet.header.view != View::Other && to_one && packet.dst != host
}

/// Reads an Ethernet frame that came from a host's interface. The packet's slot is not set yet.
pub(super) fn read_frame(
    bytes: &[u8],
    from: HostId,
    rules: &Rules,
) -> Result<Packet<Carried>, Unfit> {
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
    let host = |at: usize| match ip[at..at + 4] {
        [10, x, y, z] => Some(HostId(u32::from_be_bytes([0, x, y, z]))),
        ref address if rules.orca && *address == orca::GROUP => Some(orca::TO_GROUP),
        _ => None,
    };
    if ip_address(from).is_none_or(|address| ip[12..16] != address) {
        // What is not sent to a host either is a greeting of the kernel's: multicast, broadcast.
        return Err(if host(16).is_some() { Unfit::Foreign } else { Unfit::Ignored });
    }
    let Some(dst) = host(16) else { return Err(Unfit::Ignored) };
    if !rules.leads_to(dst) {
        return Err(Unfit::NoRoute);
    }
    let (class, protocol) = (ip[1], ip[9]);
    let l4 = &ip[header..total];
    let whole = word(6) & FRAGMENT == 0;
    if whole && protocol == PROTOCOL_UDP && l4.len() > UDP {
        let said = usize::from(u16::from_be_bytes([l4[4], l4[5]]));
        if said == l4.len()
            && let Ok(glance) = overlay::glance(&l4[UDP..])
            && glance.envelope.src == from
            && glance.envelope.dst == dst
        {
            let (len, body) = (ETHERNET + total, ETHERNET + header + UDP);
            return of_overlay(&glance, class, len, body, total as u32, rules.hosts);
        }
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
    if rules.orca && whole && protocol == PROTOCOL_UDP && ports.1 == orca::PORT {
        see_orca(&mut packet, &l4[UDP.min(l4.len())..], from, rules)?;
    } else if dst == orca::TO_GROUP {
        return Err(Unfit::Ignored);
    }
    Ok(packet)
}

/// What a switch sees of a UDP datagram at Orca's port.
fn see_orca(
    packet: &mut Packet<Carried>,
    bytes: &[u8],
    from: HostId,
    rules: &Rules,
) -> Result<(), Unfit> {
    let (view, who) = match look(bytes, rules.key.as_ref()) {
        Ok(seen) => seen,
        Err(_) if packet.dst == orca::TO_GROUP => return Err(Unfit::Malformed),
        // Somebody else's at the same port.
        Err(_) => return Ok(()),
    };
    if let Some((says, to)) = who {
        if says != from {
            return Err(Unfit::Foreign);
        }
        if packet.dst == orca::TO_GROUP {
            packet.dst = to;
        }
        if packet.dst != to || !rules.leads_to(to) {
            return Err(Unfit::Malformed);
        }
    }
    packet.header.view = view;
    Ok(())
}

/// Writes into an Ethernet frame what became of it in the fabric on its way to a host; how many of its bytes travel.
pub(super) fn finish_frame(frames: &mut Frames, packet: &Packet<Carried>, host: HostId) -> usize {
    let carried = packet.header;
    let len = carried.travels(packet.is_trimmed());
    let frame = &mut frames.get_mut(carried.slot)[..len];
    let to_all = frame[ETHERNET + 16..ETHERNET + 20] == orca::GROUP;
    frame[..6].copy_from_slice(&if to_all { GROUP_MAC } else { mac_address(host) });
    frame[6..12].copy_from_slice(&mac_address(packet.src));
    let ip = &mut frame[ETHERNET..];
    let first = ip[0];
    let class = match carried.overlay {
        true => traffic_class(packet),
        // ECT(1) stays what it was.
        false if packet.ecn() == Ecn::Marked => ip[1] | 3,
        false => ip[1],
    };
    replace_word(ip, 0, [first, class], 10);
    if !to_all
        && is_copy_for(packet, host)
        && let Some([a, b, c, d]) = ip_address(host)
    {
        replace_word(ip, 16, [a, b], 10);
        replace_word(ip, 18, [c, d], 10);
        // Orca has checks of its own; 0 is "none".
        let udp = usize::from(carried.body) - ETHERNET;
        ip[udp + 6..udp + 8].fill(0);
    }
    if packet.is_trimmed() {
        let total = (len - ETHERNET) as u16;
        replace_word(ip, 2, total.to_be_bytes(), 10);
        let udp = usize::from(carried.body) - ETHERNET - UDP;
        let udp_bytes = total - udp as u16;
        ip[udp + 4..udp + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        // The datagram has checks of its own; 0 is "none".
        ip[udp + 6..udp + 8].fill(0);
        if packet.is_turned_back() {
            // The sum over addresses stays what it was.
            swap(ip, 12, 4);
            swap(ip, udp, 2);
            overlay::turn_back(&mut ip[udp + UDP..]);
        }
    }
    len
}

/// Writes the checksum that a host has left to its NIC into a frame that [`read_frame`] has read: until then there is
/// the sum over the pseudo header in its place.
pub(super) fn finish_checksum(frame: &mut [u8]) {
    let ip = &mut frame[ETHERNET..];
    let header = usize::from(ip[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let at = match ip[9] {
        PROTOCOL_TCP => 16,
        PROTOCOL_UDP => 6,
        _ => return,
    };
    let l4 = &mut ip[header..total];
    if l4.len() < at + 2 {
        return;
    }
    let (pairs, rest) = l4.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum += rest.iter().map(|last| u64::from(*last) << 8).sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // In UDP, zero is "none".
    let check = match !(sum as u16) {
        0 if ip[9] == PROTOCOL_UDP => 0xffff,
        check => check,
    };
    ip[header + at..header + at + 2].copy_from_slice(&check.to_be_bytes());
}

/// Exchanges two neighbours of `len` bytes.
fn swap(bytes: &mut [u8], at: usize, len: usize) {
    let (first, rest) = bytes[at..].split_at_mut(len);
    first.swap_with_slice(&mut rest[..len]);
}

/// Replaces two bytes that the Internet checksum at `check` covers (RFC 1624: HC' = ~(~HC + ~m + m')).
fn replace_word(bytes: &mut [u8], at: usize, new: [u8; 2], check: usize) {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (old, sum) = (word(at), word(check));
    let mut new_sum = u32::from(!sum) + u32::from(!old) + u32::from(u16::from_be_bytes(new));
    new_sum = (new_sum & 0xffff) + (new_sum >> 16);
    new_sum = (new_sum & 0xffff) + (new_sum >> 16);
    bytes[at..at + 2].copy_from_slice(&new);
    bytes[check..check + 2].copy_from_slice(&(!(new_sum as u16)).to_be_bytes());
}

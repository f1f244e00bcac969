//! The program of a plain switch, and a payload store for simulated packets whose bytes matter to switch programs.

use core::fmt;
use core::marker::PhantomData;
use core::num::NonZeroU32;

use rackweave_core::{
    Header, Mixed, Packet, PayloadStore, Port, Rng, SwitchProgram, Time, Verdict,
};

/// The program of a switch that only forwards. The network never calls it.
pub struct ForwardOnly<H>(PhantomData<H>);

impl<H> ForwardOnly<H> {
    /// Creates the program, which has no state.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<H> Default for ForwardOnly<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Clone for ForwardOnly<H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for ForwardOnly<H> {}

impl<H> fmt::Debug for ForwardOnly<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ForwardOnly")
    }
}

impl<H: Header> SwitchProgram for ForwardOnly<H> {
    type Header = H;

    const ACTIVE: bool = false;

    fn handle_packet<S: PayloadStore<H>>(
        &mut self,
        _now: Time,
        _port: Port,
        _packet: &mut Packet<H>,
        _payloads: &mut S,
    ) -> Verdict {
        Verdict::Route
    }
}

/// The name of a payload in a [`Slab`]: the index of its buffer plus 1, so that an optional name takes no more room in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadId(NonZeroU32);

impl PayloadId {
    const fn of_buffer(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    const fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// A header that can name a payload in a [`Slab`].
pub trait HasPayload: Header {
    /// The payload that the packet owns, if it has one.
    fn payload_id(&self) -> Option<PayloadId>;

    /// The same header with another payload.
    #[must_use]
    fn with_payload(self, id: PayloadId) -> Self;
}

/// Packets of transports name no payload: their bytes stay at the hosts.
impl<T: Header, G: HasPayload> HasPayload for Mixed<T, G> {
    #[inline]
    fn payload_id(&self) -> Option<PayloadId> {
        match self {
            Self::Transport(_) => None,
            Self::Group(header) => header.payload_id(),
        }
    }

    fn with_payload(self, id: PayloadId) -> Self {
        match self {
            Self::Transport(_) => self,
            Self::Group(header) => Self::Group(header.with_payload(id)),
        }
    }
}

/// A payload store for simulated packets that carry real bytes. Buffers of released payloads are reused, so
/// that packets eventually cost no allocation.
#[derive(Debug)]
pub struct Slab {
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    limit: u32,
}

/// A store without a limit.
impl Default for Slab {
    fn default() -> Self {
        Self::new(u32::MAX)
    }
}

impl Slab {
    /// An empty store of at most `limit` payloads.
    #[must_use]
    pub const fn new(limit: u32) -> Self {
        Self { buffers: Vec::new(), free: Vec::new(), limit }
    }

    /// The number of payloads in use.
    #[must_use]
    pub fn live(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    /// Stores a payload; `None` if the store is full.
    pub fn insert(&mut self, bytes: &[u8]) -> Option<PayloadId> {
        let id = self.buffer()?;
        self.buffers[id as usize].extend_from_slice(bytes);
        Some(PayloadId::of_buffer(id))
    }

    /// A payload's bytes.
    #[must_use]
    pub fn get(&self, id: PayloadId) -> &[u8] {
        &self.buffers[id.index() as usize]
    }

    /// The index of an empty buffer; `None` if the store is full.
    fn buffer(&mut self) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            self.buffers[id as usize].clear();
            return Some(id);
        }
        let id = u32::try_from(self.buffers.len()).ok().filter(|id| *id < self.limit)?;
        self.buffers.push(Vec::new());
        Some(id)
    }
}

impl<H: HasPayload> PayloadStore<H> for Slab {
    fn release(&mut self, packet: &Packet<H>) {
        self.free.extend(packet.header.payload_id().map(PayloadId::index));
    }

    fn duplicate(&mut self, packet: &mut Packet<H>) -> bool {
        let Some(from) = packet.header.payload_id() else { return true };
        let Some(to) = self.buffer() else { return false };
        let mut buffer = std::mem::take(&mut self.buffers[to as usize]);
        buffer.extend_from_slice(self.get(from));
        self.buffers[to as usize] = buffer;
        packet.header = packet.header.with_payload(PayloadId::of_buffer(to));
        true
    }

    fn damage(&mut self, packet: &mut Packet<H>, rng: &mut Rng) -> bool {
        let bytes = self.write(packet);
        let bits = bytes.len() as u64 * 8;
        if bits == 0 {
            return false;
        }
        let bit = rng.below(bits) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        true
    }

    fn read(&self, packet: &Packet<H>) -> &[u8] {
        packet.header.payload_id().map_or(&[], |id| self.get(id))
    }

    fn write(&mut self, packet: &Packet<H>) -> &mut [u8] {
        match packet.header.payload_id() {
            Some(id) => &mut self.buffers[id.index() as usize],
            None => &mut [],
        }
    }

    fn combine(
        &mut self,
        into: &Packet<H>,
        from: &Packet<H>,
        combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool {
        let (Some(into), Some(from)) = (into.header.payload_id(), from.header.payload_id()) else {
            return false;
        };
        let ids = [into.index() as usize, from.index() as usize];
        let Ok([into, from]) = self.buffers.get_disjoint_mut(ids) else { return false };
        combine(into, from);
        true
    }

    fn make(&mut self, header: H, len: usize) -> Option<H> {
        let id = self.buffer()?;
        self.buffers[id as usize].resize(len, 0);
        Some(header.with_payload(PayloadId::of_buffer(id)))
    }
}

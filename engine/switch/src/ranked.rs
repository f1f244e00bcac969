//! pFabric's queue (Alizadeh et al., SIGCOMM'13, section 4.2): packets in the order of the bytes that remain of their
//! messages.
//!
//! Queues are short, two bandwidth-delay products by section 5.1, so that a search through all of it at each packet costs
//! little; the paper's hardware compares all in parallel.

use rackweave_core::{Header, HostId, MessageId, PacketRef, Pool};

/// What the queue compares of a packet.
#[derive(Clone, Copy, Debug)]
struct Entry {
    message: MessageId,
    source: HostId,
    remaining: u32,
    packet: PacketRef,
}

/// The packets of one port, in the order of their arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranked {
    entries: Vec<Entry>,
}

impl Ranked {
    pub(crate) fn push<H: Header>(&mut self, pool: &Pool<H>, packet: PacketRef) {
        let header = pool.get(packet);
        // A packet without a rank precedes data: in the paper, acknowledgements have the highest priority.
        let (message, remaining) = match header.header.rank() {
            Some(rank) => (rank.message, rank.remaining),
            None => (MessageId(u64::MAX), 0),
        };
        self.entries.push(Entry { message, source: header.src, remaining, packet });
    }

    /// Where the packet is that is sent next. Section 4.2: the earliest packet of the flow that has the packet of the highest
    /// priority, so that the first packets of a flow do not wait for its later ones, which have less remaining.
    fn next(&self) -> Option<usize> {
        // The first of equals, so that messages of the same size do not alternate.
        let best = self.entries.iter().min_by_key(|entry| entry.remaining)?;
        let (message, source) = (best.message, best.source);
        self.entries.iter().position(|entry| entry.message == message && entry.source == source)
    }

    pub(crate) fn front(&self) -> Option<PacketRef> {
        self.next().map(|at| self.entries[at].packet)
    }

    pub(crate) fn pop(&mut self) -> Option<PacketRef> {
        let at = self.next()?;
        Some(self.entries.remove(at).packet)
    }

    /// Removes the packet that is dropped when the queue is full: the one of the lowest priority, of equals the last.
    pub(crate) fn evict(&mut self) -> Option<PacketRef> {
        // `max_by_key` returns the last of equals.
        let (at, _) = self.entries.iter().enumerate().max_by_key(|(_, entry)| entry.remaining)?;
        Some(self.entries.remove(at).packet)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

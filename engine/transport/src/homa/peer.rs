//! The state that a host keeps for each of its peers.

use rackweave_core::{HostId, prefetch};
use rustc_hash::FxHashMap;

use super::cutoffs::Cutoffs;
use super::grantable::Grantable;
use super::windows::PeerPath;

/// A peer: another host with which this one has, or recently had, RPCs. What packets read comes first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Peer {
    /// Its unscheduled levels and their version; `None` before its first CUTOFFS packet.
    pub(super) cutoffs: Option<Box<(Cutoffs, u16)>>,
    /// Local ids of finished RPCs that are still to be acknowledged.
    pub(super) acks: Vec<u64>,
    /// Its messages that are not completely granted.
    pub(super) grantable: Grantable,
    pub(super) host: HostId,
    /// Number of RPCs in progress with it.
    pub(super) rpcs: u32,
    /// The last tick in which an RPC with it started or ended.
    pub(super) used: u64,
    /// One more than the tick in which this host last sent its own CUTOFFS; 0 if it has not.
    pub(super) cutoffs_sent: u64,
    /// Number of RESENDs since the peer's last packet.
    pub(super) asked: u16,
    /// The tick of the last RESEND to it.
    pub(super) asked_at: Option<u64>,
    /// Of the RPCs whose RESEND is due in this tick, the slot of the one whose last RESEND is the oldest, behind that RESEND's tick and
    /// the RPC's birth.
    pub(super) turn: Option<(u64, u64, u32)>,
    /// Local ids up to this one are refused until `floor_until`, because their state was forgotten for lack of
    /// room.
    pub(super) floor: u64,
    /// The tick until which `floor` is valid.
    pub(super) floor_until: u64,
    /// Leverage Homa's measurements of the path; `None` before the first.
    pub(super) path: Option<Box<PeerPath>>,
}

/// The peers of a host.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Peers {
    slots: Vec<Peer>,
    index: FxHashMap<HostId, u32>,
    /// Slots that are not in use, for later peers.
    free: Vec<u32>,
    /// The peers that have a [`Peer::turn`].
    turns: Vec<u32>,
    /// Number of peers at which idle ones are removed.
    sweep_at: usize,
}

/// Minimum of [`Peers::sweep_at`].
const MIN_SWEEP: usize = 256;

impl Peers {
    /// The slot of a peer, which is created if it is new; `None` if there are `max` peers and none is idle.
    ///
    /// A peer that has had no RPC for `idle_ticks` is removed to make room.
    pub(super) fn get_or_insert(
        &mut self,
        host: HostId,
        tick: u64,
        idle_ticks: u32,
        max: usize,
    ) -> Option<u32> {
        if let Some(&peer) = self.index.get(&host) {
            return Some(peer);
        }
        if self.index.len() >= self.sweep_at.max(MIN_SWEEP).min(max) {
            self.sweep(tick, idle_ticks);
            self.sweep_at = 2 * self.index.len();
            if self.index.len() >= max {
                return None;
            }
        }
        let peer = Peer {
            host,
            rpcs: 0,
            used: tick,
            cutoffs: None,
            cutoffs_sent: 0,
            asked: 0,
            asked_at: None,
            turn: None,
            acks: Vec::new(),
            grantable: Grantable::default(),
            floor: 0,
            floor_until: 0,
            path: None,
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = peer;
            slot
        } else {
            self.slots.push(peer);
            self.slots.len() as u32 - 1
        };
        self.index.insert(host, slot);
        Some(slot)
    }

    /// Starts the choice of RPCs that send a RESEND in a tick.
    pub(super) fn clear_turns(&mut self) {
        for peer in self.turns.drain(..) {
            self.slots[peer as usize].turn = None;
        }
    }

    /// Proposes an RPC with this peer: see [`Peer::turn`].
    pub(super) fn propose_turn(&mut self, peer: u32, candidate: (u64, u64, u32)) {
        let turn = &mut self.slots[peer as usize].turn;
        if turn.is_none() {
            self.turns.push(peer);
        }
        *turn = Some(turn.map_or(candidate, |other| other.min(candidate)));
    }

    fn sweep(&mut self, tick: u64, idle_ticks: u32) {
        for (slot, peer) in self.slots.iter().enumerate() {
            let slot = slot as u32;
            if peer.rpcs == 0
                && tick.saturating_sub(peer.used) > u64::from(idle_ticks)
                && peer.floor_until <= tick
                && self.index.get(&peer.host) == Some(&slot)
            {
                self.index.remove(&peer.host);
                self.free.push(slot);
            }
        }
    }

    /// The peer with this address, if it is known.
    #[inline]
    pub(super) fn find(&mut self, host: HostId) -> Option<&mut Peer> {
        let slot = *self.index.get(&host)?;
        Some(&mut self.slots[slot as usize])
    }

    /// All known peers.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        let known =
            |(slot, peer): &(usize, &Peer)| self.index.get(&peer.host) == Some(&(*slot as u32));
        self.slots.iter().enumerate().filter(known).map(|(_, peer)| peer)
    }

    /// Bytes of a message that a peer is granted beyond those received; 0 if its round trip is not known.
    pub(super) fn scheduled_window(&self, peer: u32) -> u32 {
        self.slots[peer as usize].path.as_deref().map_or(0, |path| path.scheduled)
    }

    /// Bytes of a message to a peer that are sent without grants; 0 if its round trip is not known.
    pub(super) fn unscheduled_window(&self, peer: u32) -> u32 {
        self.slots[peer as usize].path.as_deref().map_or(0, |path| path.unscheduled)
    }

    /// Requests the cache line that packets of this peer read.
    #[inline]
    pub(super) fn prefetch(&self, peer: u32) {
        prefetch(&self.slots[peer as usize]);
    }

    /// The slot of the peer with this address, if it is known.
    pub(super) fn slot(&self, host: HostId) -> Option<u32> {
        self.index.get(&host).copied()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, peer: u32) -> &mut Peer {
        &mut self.slots[peer as usize]
    }

    /// Number of known peers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_peers_make_room() {
        let mut peers = Peers::default();
        let mut add = |host, tick| peers.get_or_insert(HostId(host), tick, 10, 300);
        let busy = add(0, 0).unwrap();
        for host in 1..300 {
            assert!(add(host, 0).is_some());
        }
        assert_eq!(add(1_000, 10), None, "none is idle for long enough");
        assert_eq!(add(299, 10), Some(299), "a known one needs no room");
        peers.get_mut(busy).rpcs = 1;
        assert!(peers.get_or_insert(HostId(1_000), 11, 10, 300).is_some());
        assert_eq!(peers.len(), 2);
        assert!(peers.find(HostId(0)).is_some());
        assert!(peers.find(HostId(5)).is_none());
    }
}

//! Changes of circuits while the network runs.
//!
//! A change begins when it is requested, and the following happens at that time:
//!
//! 1. Its ports go dark, all or only the moved ones ([`Dark`]). Packets on their links are lost, in both directions,
//!    and so are packets that wait at a `ToR`'s port: a switch whose link goes down flushes the port's queue, and has
//!    no way to take packets out of it to route them again. All of them count as [`DropReason::Reconfiguration`].
//! 2. Links get their new far ends, and the `ToR`s the forwarding tables of the new circuits. A packet on an uplink thus
//!    reaches the server's former `ToR`, which sends it through the fabric to the new one.
//!
//! After [`Pod::dark_time`](crate::pod::Pod::dark_time) the ports are up. Until then a NIC holds packets back, since its link is down, and a
//! `ToR` drops what it would send into a dark port. Between `ToR`s packets take other paths meanwhile, if there are any.
//! A caller that wants nothing lost lets the moved servers fall silent before it requests a change.
//!
//! A further change may begin while ports are dark. Ports that it moves, too, start their dark time again.

use rackweave_core::{DropReason, PayloadStore, SwitchProgram, Time};

use super::nic::Edge;
use super::{LinkKind, Net, ports_into};
use crate::Fabric;
use crate::config::{CircuitError, Circuits, Dark, Move};

/// The optical circuit switch of a network.
#[derive(Debug)]
pub(super) struct Ocs {
    /// The changes that are still to come, latest first.
    moves: Vec<Move>,
    /// For each link, when it comes up, if it is dark.
    dark_until: Vec<Option<Time>>,
    /// The circuits since the network began, and when each of them came into force.
    history: Vec<(Time, Circuits)>,
}

impl Ocs {
    pub(super) fn new(mut moves: Vec<Move>, fabric: &Fabric) -> Self {
        // Of changes at the same time the last one holds.
        moves.sort_by_key(|change| change.at);
        moves.reverse();
        let first = fabric.pod().map_or(Circuits::None, |pod| pod.circuits.clone());
        let links = fabric.links().len();
        Self { moves, dark_until: vec![None; links], history: vec![(Time::ZERO, first)] }
    }
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    pub(super) fn start_moves(&mut self) {
        for change in self.ocs.iter().flat_map(|ocs| &ocs.moves) {
            self.events.push_timer(change.at, self.components.ocs);
        }
    }

    /// Changes the circuits now. Returns when the ports that go dark for it are up again: now, if no circuit changes.
    ///
    /// # Errors
    /// If the fabric has no optical circuit switch, or these circuits are impossible; then nothing happens.
    pub fn reconfigure<E: Edge<P::Header>>(
        &mut self,
        edge: &mut E,
        circuits: &Circuits,
    ) -> Result<Time, CircuitError> {
        let fabric = self.fabric.with_circuits(circuits)?;
        let (Some(ocs), Some(pod)) = (&mut self.ocs, fabric.pod()) else { return Ok(self.now) };
        let links = 0..fabric.links().len() as u32;
        let has_moved = |link: &u32| fabric.reverse(*link) != self.fabric.reverse(*link);
        let moved: Vec<u32> = links.clone().filter(has_moved).collect();
        if moved.is_empty() {
            return Ok(self.now);
        }
        let up = self.now + pod.dark_time();
        let dark: Vec<u32> = match pod.ocs.dark {
            Dark::Moved => moved.clone(),
            Dark::All => links.filter(|link| fabric.is_at_ocs(*link)).collect(),
        };
        for link in dark {
            ocs.dark_until[link as usize] = Some(up);
        }
        ocs.history.push((self.now, circuits.clone()));
        self.take_links_down_and_up(edge, DropReason::Reconfiguration);
        self.fabric = std::sync::Arc::new(fabric);
        self.relink(&moved);
        self.mark_faulty_links();
        self.reroute();
        if self.has_faults() {
            // A fault at a server's link follows the server.
            self.on_fault(edge);
        }
        self.events.push_timer(up, self.components.ocs);
        Ok(up)
    }

    /// Gives links the far ends that the fabric has now.
    fn relink(&mut self, moved: &[u32]) {
        for &number in moved {
            let spec = &self.fabric.links()[number as usize];
            let kind =
                LinkKind { ticks_per_byte_q16: spec.ticks_per_byte_q16(), delay: spec.delay };
            let known = self.kinds.iter().position(|known| *known == kind);
            let kind = known.unwrap_or_else(|| {
                self.kinds.push(kind);
                self.kinds.len() - 1
            });
            let link = &mut self.links[number as usize];
            (link.to, link.kind) = (spec.to.into(), kind as u16);
        }
        self.towards_switches.clear();
        if P::ACTIVE {
            self.to_ports = ports_into(&self.fabric);
        }
    }

    /// Begins the changes that are due, and takes up the links whose dark time is over.
    pub(super) fn on_circuits<E: Edge<P::Header>>(&mut self, edge: &mut E) {
        let now = self.now;
        let Some(ocs) = &mut self.ocs else { return };
        let mut due = None;
        while ocs.moves.last().is_some_and(|change| change.at <= now) {
            due = ocs.moves.pop();
        }
        let mut lit = false;
        for (link, dark) in self.links.iter_mut().zip(&mut ocs.dark_until) {
            if dark.is_none_or(|until| until > now) {
                continue;
            }
            *dark = None;
            lit = true;
            // What was lost on a longer link before the move is still on its way there; the next packet arrives after it.
            if let Some(last) = link.in_flight.back() {
                let delay = self.kinds[usize::from(link.kind)].delay;
                let end =
                    Time::from_ticks(self.pool.time(last).ticks().saturating_sub(delay.ticks()));
                link.busy_until = link.busy_until.max(end);
            }
        }
        if lit {
            self.take_links_down_and_up(edge, DropReason::Reconfiguration);
            self.mark_faulty_links();
            self.reroute();
        }
        if let Some(change) = due {
            // Impossible ones are left out: see `NetConfig::moves`.
            let _ = self.reconfigure(edge, &change.circuits);
        }
    }

    /// The circuits since the network began, and the time from which each of them was in force; the last are the current
    /// ones. Empty without an optical circuit switch.
    #[must_use]
    pub fn circuits(&self) -> &[(Time, Circuits)] {
        self.ocs.as_ref().map_or(&[], |ocs| &ocs.history)
    }

    /// Whether a link is down for want of a circuit, or because its port is dark.
    pub(super) fn has_no_light(&self, link: u32) -> bool {
        self.ocs.as_ref().is_some_and(|ocs| {
            ocs.dark_until[link as usize].is_some() || !self.fabric.is_connected(link)
        })
    }

    /// Why packets for a link that is down are dropped.
    #[cold]
    pub(super) fn why_down(&self, link: u32) -> DropReason {
        match self.faults.down.get(link as usize) {
            Some(false) if self.has_no_light(link) => DropReason::Reconfiguration,
            _ => DropReason::LinkDown,
        }
    }

    /// Why a switch has no port for a packet.
    #[cold]
    pub(super) fn why_no_route(&self) -> DropReason {
        let is_dark = |ocs: &Ocs| ocs.dark_until.iter().any(Option::is_some);
        match &self.ocs {
            Some(ocs) if is_dark(ocs) => DropReason::Reconfiguration,
            _ => DropReason::NoRoute,
        }
    }
}

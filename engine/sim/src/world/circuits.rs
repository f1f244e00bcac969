//! Changes of circuits, and the ideal times under the circuits of the time.

use std::cell::RefCell;

use rackweave_core::{Framing, HostId, Span, Time};

use super::World;
use crate::Fabric;
use crate::config::{CircuitError, Circuits};
use crate::model::Model;

impl<M: Model> World<'_, M> {
    /// Changes the circuits now, as a control plane does that decides during the run: [`rackweave_switch::Net::reconfigure`].
    /// Changes at known times are in [`RunConfig::moves`](crate::RunConfig::moves). Returns when the ports that go dark are up again.
    ///
    /// # Errors
    /// If the fabric has no optical circuit switch, or these circuits are impossible.
    pub fn reconfigure(&mut self, circuits: &Circuits) -> Result<Time, CircuitError> {
        self.net.reconfigure(&mut self.hosts, circuits)
    }

    /// The circuits since the run began, and the time from which each of them was in force. Empty without an optical circuit
    /// switch.
    #[must_use]
    pub fn circuits(&self) -> &[(Time, Circuits)] {
        self.net.circuits()
    }

    /// The ideal time of a message that starts at a given time, under the circuits of that time. It is cheap for messages in
    /// the order of their start.
    pub(super) fn ideal(&self) -> impl Fn(HostId, HostId, u64, Framing, Time) -> Span + '_ {
        let changes = self.net.circuits();
        let cached: RefCell<Option<(usize, Fabric)>> = RefCell::new(None);
        move |src, dst, bytes, framing, at| {
            let now = changes.partition_point(|(from, _)| *from <= at);
            if now == changes.len() {
                return self.ideal_fabric.ideal(src, dst, bytes, framing);
            }
            let mut cached = cached.borrow_mut();
            if cached.as_ref().is_none_or(|(of, _)| *of != now) {
                let circuits = &changes[now.saturating_sub(1)].1;
                *cached = self.ideal_fabric.with_circuits(circuits).ok().map(|it| (now, it));
            }
            let fabric = cached.as_ref().map_or(&*self.ideal_fabric, |(_, fabric)| fabric);
            fabric.ideal(src, dst, bytes, framing)
        }
    }
}

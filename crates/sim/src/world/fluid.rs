//! The transfers of nodes: flows in place of packets.

use std::sync::Arc;

use rackweave_core::{HostId, Time};

use super::{World, wake};
use crate::fluid::{Config, Fluid};
use crate::model::{GroupNode, Model};

/// The flows of a run.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) fluid: Fluid,
    /// The earliest wake-up that is pending.
    armed: Time,
}

impl<M: Model> World<'_, M> {
    /// Lets nodes send transfers. Called before the run; without it what [`GroupNode::poll_transfer`] returns is not asked for.
    /// Transfers do not notice changes of circuits: they keep the paths of the first ones.
    #[must_use]
    pub fn with_transfers(mut self, config: Config) -> Self {
        let fluid = Fluid::new(config, Arc::new(self.net.fabric().clone()));
        self.transfers = Some(Box::new(Transfers { fluid, armed: Time::MAX }));
        self.takes_requests = true;
        self
    }

    /// The flows of a run with transfers.
    #[must_use]
    pub fn fluid(&self) -> Option<&Fluid> {
        self.transfers.as_ref().map(|transfers| &transfers.fluid)
    }

    /// Takes a node's transfers, and the circuits that it requests. Called after each of its other methods.
    #[inline]
    pub(super) fn take_requests(&mut self, node: u32) {
        if M::Group::EXISTS && self.takes_requests {
            self.start_transfers(node);
            self.take_circuits(node);
        }
    }

    fn start_transfers(&mut self, node: u32) {
        let now = self.net.now();
        let host = self.hosts.nodes.hosts(node)[0];
        let Some(transfers) = &mut self.transfers else { return };
        while let Some(message) = self.hosts.nodes.poll_transfer(node) {
            transfers.fluid.start(now, host, message);
        }
        self.arm_transfers();
    }

    fn arm_transfers(&mut self) {
        let Some(transfers) = &mut self.transfers else { return };
        if let Some(at) = transfers.fluid.poll_timeout()
            && at < transfers.armed
        {
            transfers.armed = at;
            self.net.wake_at(at, wake::FLUID);
        }
    }

    /// Flows have begun, ended or changed.
    pub(super) fn on_transfers(&mut self) {
        let now = self.net.now();
        while let Some((host, event)) =
            self.transfers.as_mut().and_then(|transfers| transfers.fluid.poll(now))
        {
            let state = &self.hosts.all[host.0 as usize];
            let Some((node, _)) = state.node().filter(|_| state.is_up()) else { continue };
            self.flush(host);
            self.hosts.nodes.handle_transfer(node, now, event);
            self.changed(host);
            self.start_transfers(node);
        }
        if let Some(transfers) = &mut self.transfers
            && transfers.armed <= now
        {
            transfers.armed = Time::MAX;
        }
        self.arm_transfers();
    }

    pub(super) fn crash_transfers(&mut self, host: HostId) {
        let now = self.net.now();
        if let Some(transfers) = &mut self.transfers {
            transfers.fluid.crash(now, host);
            self.arm_transfers();
        }
    }
}

//! The transfers of nodes: flows in place of packets.

use std::sync::Arc;

use rackweave_core::{Event, HostId, Submit, Time};

use super::{World, wake};
use crate::fluid::{Config, Fluid};
use crate::model::{GroupNode as _, Model, Transfers};

/// The flows of a run whose nodes are `G`.
#[derive(Debug)]
pub(super) struct Flows<G> {
    pub(super) fluid: Fluid,
    /// The methods of [`Transfers`], which nodes of other runs do not have.
    poll: fn(&mut G) -> Option<Submit>,
    handle: fn(&mut G, Time, Event),
    /// The earliest wake-up that is pending.
    armed: Time,
}

impl<M: Model> World<'_, M> {
    /// Lets nodes send transfers. Called before the run; without it they are not polled for any.
    /// Transfers do not notice changes of circuits: they keep the paths of the first ones.
    pub fn carry_transfers(&mut self, config: Config)
    where
        M::Group: Transfers,
    {
        self.flows = Some(Box::new(Flows {
            fluid: Fluid::new(config, Arc::new(self.net.fabric().clone())),
            poll: M::Group::poll_transfer,
            handle: M::Group::handle_transfer,
            armed: Time::MAX,
        }));
    }

    /// The flows of a run with transfers.
    #[must_use]
    pub fn fluid(&self) -> Option<&Fluid> {
        self.flows.as_ref().map(|flows| &flows.fluid)
    }

    /// Takes a node's transfers. Called after each of its other methods.
    #[inline]
    pub(super) fn start_transfers(&mut self, node: u32) {
        if M::Group::EXISTS && self.flows.is_some() {
            self.take_transfers(node);
        }
    }

    fn take_transfers(&mut self, node: u32) {
        let now = self.net.now();
        let host = self.hosts.nodes.hosts(node)[0];
        let Some(flows) = &mut self.flows else { return };
        while let Some(message) = (flows.poll)(self.hosts.nodes.node(node)) {
            flows.fluid.start(now, host, message);
        }
        self.arm_transfers();
    }

    fn arm_transfers(&mut self) {
        let Some(flows) = &mut self.flows else { return };
        if let Some(at) = flows.fluid.poll_timeout()
            && at < flows.armed
        {
            flows.armed = at;
            self.net.wake_at(at, wake::FLUID);
        }
    }

    /// Flows have begun, ended or changed.
    pub(super) fn on_transfers(&mut self) {
        let now = self.net.now();
        while let Some(flows) = &mut self.flows
            && let Some((host, event)) = flows.fluid.poll(now)
        {
            let handle = flows.handle;
            let state = &self.hosts.all[host.0 as usize];
            let Some((node, _)) = state.node().filter(|_| state.is_up()) else { continue };
            self.flush(host);
            handle(self.hosts.nodes.node_at(node, now), now, event);
            self.hosts.nodes.note(node);
            self.changed(host);
            self.start_transfers(node);
        }
        if let Some(flows) = &mut self.flows
            && flows.armed <= now
        {
            flows.armed = Time::MAX;
        }
        self.arm_transfers();
    }

    pub(super) fn crash_transfers(&mut self, host: HostId) {
        let now = self.net.now();
        if let Some(flows) = &mut self.flows {
            flows.fluid.crash(now, host);
            self.arm_transfers();
        }
    }
}

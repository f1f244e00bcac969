//! Kinds of workload on real hosts.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use rackweave_core::{HostId, Time};
use rackweave_sim::Fabric;
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::{End, RunResult};
use rackweave_transport::TransportConfig;

use super::TestbedError;
use super::protocol::{Bind, Command, HostEnd, Setup, SwitchEnd};
use crate::scenario::PointSpec;
use crate::study::{StudyDetail, StudySummary};
use crate::systems::Systems;

/// What the testbed needs of a kind of workload that it runs.
pub(crate) trait OnTestbed {
    /// Refuses what the testbed does not do.
    fn check(&self, point: &PointSpec, overlay: bool) -> Result<(), TestbedError>;

    /// Returns the number of hosts that may receive at the rate of their links.
    fn busy_hosts(&self) -> usize;

    /// Returns the systems that the switches run.
    fn systems(&self) -> Systems;

    /// Returns the transport of the kernel's connections, if there are any.
    fn carrier(&self) -> Option<&TransportConfig> {
        None
    }

    /// Returns whether the workload runs under circuits that move.
    fn moves_circuits(&self) -> bool {
        false
    }

    /// Runs a host until it is stopped.
    ///
    /// # Errors
    /// In words, why it cannot go on.
    fn run_host(&self, host: &HostProcess<'_>) -> Result<(), String>;

    /// Returns the results of a run from what its hosts have reported, and inserts them into those that every run has.
    fn results(
        &self,
        ends: &Ends<'_>,
        result: &mut RunResult,
    ) -> (StudySummary, Option<StudyDetail>);
}

/// The process of a host, and what it has been given.
pub(crate) struct HostProcess<'a> {
    pub(in crate::testbed) this: HostId,
    pub(in crate::testbed) setup: &'a Setup,
    pub(in crate::testbed) point: &'a PointSpec,
    pub(in crate::testbed) bind: &'a Bind,
    pub(in crate::testbed) commands: &'a Receiver<Command>,
}

/// What the processes of a run have reported at its end.
pub(crate) struct Ends<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) fabric: &'a Fabric,
    pub(crate) end: End,
    pub(crate) ended_at: Time,
    pub(crate) hosts: &'a BTreeMap<u32, HostEnd>,
    pub(crate) switch: &'a SwitchEnd,
    /// How often the control plane has changed circuits.
    pub(crate) reconfigurations: u64,
}

impl Ends<'_> {
    /// Returns whether something happened before the end of the run: what happens while the workers are being stopped is too late.
    pub(crate) fn is_in_time(&self, at: Time) -> bool {
        self.end != End::TimeLimit || at <= self.ended_at
    }
}

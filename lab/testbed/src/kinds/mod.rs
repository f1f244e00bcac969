//! Kinds of workload on real hosts: which of them the testbed runs, and how.

mod cast;
mod image;
mod reduce;

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use rackweave_core::{HostId, Time};
use rackweave_lab::scenario::PointSpec;
use rackweave_lab::study::{Study, StudyDetail, StudySummary};
use rackweave_sim::Fabric;
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::{End, RunResult};
use rackweave_transport::TransportConfig;

use crate::TestbedError;
use crate::protocol::{Bind, Command, HostEnd, Setup, SwitchEnd};
use crate::systems::Systems;

/// Why the testbed does not run a kind of workload.
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// What runs it.
    pub(crate) help: &'static str,
}

/// Returns how the testbed runs what a point measures, or why it does not; `None` for messages.
pub(crate) fn of(study: &Study) -> Option<Result<&dyn OnTestbed, Refusal>> {
    let refused = |message, help| Some(Err(Refusal { message, help }));
    match study {
        Study::Messages(_) => None,
        Study::Cast(cast) => Some(Ok(&**cast)),
        Study::Image(image) => Some(Ok(&**image)),
        Study::Reduce(reduce) => Some(Ok(&**reduce)),
        Study::Plan(_) => {
            let message = "[workload.plan] has no packets".to_owned();
            refused(message, "`rackweave run` computes its plans")
        }
        // A kind that is new, too.
        _ => {
            let kind = study.table().unwrap_or_default();
            let message = format!("the testbed runs no [workload.{kind}]");
            refused(message, "`rackweave run` simulates it")
        }
    }
}

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

    /// Returns what is to be known of all its results.
    fn note(&self) -> Option<&'static str> {
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

    /// Returns the results of a run from what its hosts have reported, and inserts them into the results that every run
    /// has.
    fn results(
        &self,
        ends: &Ends<'_>,
        result: &mut RunResult,
    ) -> (StudySummary, Option<StudyDetail>);
}

/// The process of a host, and what it has been given.
pub(crate) struct HostProcess<'a> {
    pub(crate) this: HostId,
    pub(crate) setup: &'a Setup,
    pub(crate) point: &'a PointSpec,
    pub(crate) bind: &'a Bind,
    pub(crate) commands: &'a Receiver<Command>,
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

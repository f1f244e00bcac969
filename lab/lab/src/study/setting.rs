//! What the runs of all kinds share: the network that they run on, and what is taken from it at the end.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackweave_core::{DropReason, Mixed, PayloadStore, Span, SwitchProgram, Time};
use rackweave_sim::config::RunConfig;
use rackweave_sim::result::{Counters, End, Goodput, MessageRecord, RunResult};
use rackweave_sim::{
    Attached, BuildError, Control, Fabric, GroupModel, GroupNode, World, group_world,
};
use rackweave_wire::Header;
use rackweave_wire::frame::Unframeable;
use rackweave_wire::homa::Layout;
use rackweave_wire::pcapng::{Frame, Framed};

use crate::results::{capture_layout, frames};
use crate::scenario::PointSpec;

/// Why a study cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The faults or the places of hosts are invalid.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A captured packet could not be encoded.
    #[error(transparent)]
    Capture(#[from] Unframeable),
    /// What only its kind knows.
    #[error(transparent)]
    Kind(Box<dyn std::error::Error + Send + Sync>),
}

impl StudyError {
    /// Returns an error that only one kind of workload has.
    pub(crate) fn of_kind(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Kind(error.into())
    }
}

/// Where a study runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) fabric: &'a Arc<Fabric>,
    pub(crate) control: &'a Control,
    /// The layout of Homa's headers in captures.
    layout: Layout,
}

impl<'a> Setting<'a> {
    pub(crate) fn of(point: &'a PointSpec, control: &'a Control) -> Self {
        let layout = capture_layout(point);
        Self { config: &point.config, fabric: &point.fabric, control, layout }
    }

    /// Returns a world with these nodes, and a program for each switch.
    pub(crate) fn world<N, P, B>(
        &self,
        nodes: Vec<Attached<N>>,
        programs: impl FnMut(u32) -> P + 'a,
    ) -> Result<World<'a, GroupModel<N, P, B>>, BuildError>
    where
        N: GroupNode + Debug,
        P: SwitchProgram<Header = Mixed<Header, N::Header>>,
        B: PayloadStore<Mixed<Header, N::Header>> + Default,
    {
        // Progress is measured by simulated time only.
        self.control.wanted.store(u64::MAX, Ordering::Relaxed);
        group_world(self.config, Arc::clone(self.fabric), nodes, programs)
    }

    /// Divides a world's report into the result and the captured packets.
    pub(crate) fn divide<H: Framed>(
        &self,
        report: RunResult<H>,
    ) -> Result<(RunResult, Vec<Frame>), Unframeable> {
        let (result, captured) = report.split_capture();
        Ok((result, frames(&captured, self.layout)?))
    }
}

/// Returns the result of a workload that is computed, with no network: only its messages.
pub(super) fn computed(messages: Vec<MessageRecord>, end: End) -> RunResult {
    RunResult {
        end,
        ended_at: Time::ZERO,
        measured: Span::ZERO,
        messages,
        ranks: Vec::new(),
        delivered_bytes: vec![0],
        delivered_by_sender: Vec::new(),
        goodput: Goodput::default(),
        round_trips: Vec::new(),
        recovery: Vec::new(),
        counters: Counters { drops: [0; DropReason::ALL.len()], ..Counters::default() },
        dropped_before: Some(0),
        refused: 0,
        mean_queue_bytes: 0.0,
        max_queue_bytes: 0,
        queue_series: Vec::new(),
        links: Vec::new(),
        traffic: Vec::new(),
        circuits: Vec::new(),
        capture_names: Vec::new(),
        capture: Vec::new(),
        waiting: Vec::new(),
        backlog: None,
        deadlock: Vec::new(),
        peak_packets: 0,
        verified_messages: 0,
    }
}

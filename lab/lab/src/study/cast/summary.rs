//! The results of a cast in `summary.json`.

use std::borrow::Cow;

use rackweave_core::{FailReason, Span};
use rackweave_orca::app::{ReceiverTimes, Results};
use rackweave_orca::scale::ScaleReport;
use serde::{Deserialize, Serialize};

use super::CastConfig;
use crate::results::stats::percentile;

/// The results of a cast, in either world.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct CastResult {
    /// The results of the application.
    pub app: Results,
    /// The number of bytes that the sender's links have carried, including Ethernet's preamble and gap.
    pub sender_link_bytes: u64,
    /// The control-plane tables, if they were built.
    pub plane: Option<Box<ScaleReport>>,
}

/// What files and charts show of a cast in addition to its summary.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum CastDetail {
    /// The results for every file and receiver.
    Run(CastResult),
    /// Of finished results: the send times of files, and the times that receivers waited, in microseconds.
    Times([Vec<f64>; 2]),
}

impl CastDetail {
    /// Returns the send times of the files if `sending`, or else the wait times of the receivers, in microseconds.
    pub(crate) fn times_us(&self, sending: bool) -> Vec<f64> {
        let us = Span::as_us_f64;
        match self {
            Self::Run(result) if sending => result.app.send_times().map(us).collect(),
            Self::Run(result) => result.app.wait_times().map(us).collect(),
            Self::Times([sent, waited]) => if sending { sent } else { waited }.clone(),
        }
    }
}

/// Statistics of a distribution. Without values they are NaN (`null` in JSON).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Quantiles {
    /// The 10th percentile (nearest rank).
    pub p10: f64,
    /// The median (nearest rank).
    pub p50: f64,
    /// The 90th percentile (nearest rank).
    pub p90: f64,
    /// The 99th percentile (nearest rank).
    pub p99: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The largest value.
    pub max: f64,
}

impl Quantiles {
    fn of(times: impl Iterator<Item = Span>) -> Self {
        let mut values: Vec<f64> = times.map(Span::as_us_f64).collect();
        values.sort_unstable_by(f64::total_cmp);
        Self {
            p10: percentile(&values, 0.1),
            p50: percentile(&values, 0.5),
            p90: percentile(&values, 0.9),
            p99: percentile(&values, 0.99),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            max: values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// The object `cast` of a point in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CastSummary {
    /// Who copies the data, as [`CastConfig::copied_by`] names it.
    pub copied_by: Cow<'static, str>,
    /// The execution time: from the first buffer of the first file to the last acknowledgement of the last file.
    pub execution_us: f64,
    /// The number of files.
    pub files: u64,
    /// The number of bytes of all files together.
    pub total_bytes: u64,
    /// The rate at which each receiver receives, averaged over the execution time.
    pub receiver_gbps: f64,
    /// The execution time per byte of the files.
    pub ns_per_byte: f64,
    /// The send times of files: from the first buffer of a file to its last acknowledgement.
    pub send_us: Quantiles,
    /// The wait times of receivers: from the delivery of a file to the delivery of the next one.
    pub wait_us: Quantiles,
    /// The bytes on the sender's links, including Ethernet's preamble and gap, per byte of the files. It is close to
    /// the number of copies that the sender sends.
    pub copies: f64,
    /// The number of bytes of the files that were retransmitted.
    pub repaired_bytes: u64,
    /// The number of times that a receiver was served by unicast because it was too slow for the group.
    pub detached: u64,
    /// The number of receivers that the sender gave up.
    pub lost: u64,
    /// The number of bytes that receivers on hosts that did not crash lack at the end.
    pub missing_bytes: u64,
    /// The number of bytes that differ from the ones sent or arrived at a wrong offset.
    pub wrong_bytes: u64,
    /// The number of times that the controller declared an agent silent.
    pub silent_agents: u64,
    /// The longest time for which the other receivers in the rack of a crashed host got nothing, minus the longest such
    /// time before the crash; `None` if no host crashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_us: Option<f64>,
    /// The sizes of the control-plane tables, if they were built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane: Option<PlaneSummary>,
    /// The results of each receiver, in the order of the configuration.
    pub receivers: Vec<ReceiverSummary>,
}

/// The sizes of filled control-plane tables on a separate fabric, as measured in memory.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlaneSummary {
    /// The number of hosts; all are agents.
    pub hosts: u32,
    /// The number of sessions.
    pub sessions: u32,
    /// The number of members of all sessions together.
    pub members: u64,
    /// The number of bits in a label.
    pub label_bits: u32,
    /// The number of bytes of a label in packets.
    pub label_bytes: u32,
    /// The state of a `ToR` switch in bytes.
    pub tor_state_bytes: u32,
    /// The state of any other switch in bytes.
    pub other_state_bytes: u32,
    /// The number of entries of all `ToR` switches together if each had a table of its sessions instead.
    pub group_entries: u64,
    /// The size of the controller's store in bytes.
    pub controller_bytes: u64,
    /// The size of the controller's store in bytes per session.
    pub controller_bytes_per_session: f64,
    /// The number of sessions in the largest agent table.
    pub agent_sessions: u32,
    /// The size of that table in bytes.
    pub agent_bytes: u64,
    /// The size of that table in bytes per session in it.
    pub agent_bytes_per_session: f64,
    /// The number of the controller's `Sync` packets per change of members.
    pub syncs_per_change: f64,
    /// The number of confirmations per change of members.
    pub confirmations_per_change: f64,
    /// The number of racks without members to which pilot labels lead, per rack with members.
    pub redundant_copies: f64,
    /// Bytes that packets of 1500 bytes put on all links, over those of an ideal tree without labels, less 1.
    pub overhead: f64,
    /// The same for Elmo.
    pub elmo_overhead: f64,
    /// The mean size of Elmo's headers in bytes.
    pub elmo_header_bytes: f64,
    /// The size of Elmo's longest header in bytes.
    pub elmo_longest_header_bytes: u32,
    /// The number of entries in the group tables of Elmo's leaf switches.
    pub elmo_entries: u64,
}

impl From<&ScaleReport> for PlaneSummary {
    fn from(report: &ScaleReport) -> Self {
        Self {
            hosts: report.hosts,
            sessions: report.sessions,
            members: report.members,
            label_bits: report.label_bits,
            label_bytes: report.label_bytes,
            tor_state_bytes: report.tor_state_bytes,
            other_state_bytes: report.other_state_bytes,
            group_entries: report.group_entries,
            controller_bytes: report.controller_bytes,
            controller_bytes_per_session: report.controller_bytes_per_session(),
            agent_sessions: report.agent_sessions.1,
            agent_bytes: report.agent_bytes,
            agent_bytes_per_session: report.agent_bytes_per_session(),
            syncs_per_change: report.syncs_per_change,
            confirmations_per_change: report.confirmations_per_change,
            redundant_copies: report.redundant_copies,
            overhead: report.overhead,
            elmo_overhead: report.elmo.overhead,
            elmo_header_bytes: report.elmo.header_bytes,
            elmo_longest_header_bytes: report.elmo.longest_header_bytes,
            elmo_entries: report.elmo.entries,
        }
    }
}

/// The results of one receiver in `summary.json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReceiverSummary {
    /// The number of its host.
    pub host: u32,
    /// The index of its rack.
    pub rack: Option<usize>,
    /// The time at which it had all files; NaN (`null` in JSON) if it never had.
    pub completed_us: f64,
    /// The number of files that it has received completely.
    pub files: u64,
    /// The longest interval without a new byte.
    pub longest_gap_us: f64,
    /// Whether the sender gave it up.
    pub lost: bool,
    /// Why it does not have all files: `"host crashed"`, `"sender crashed"`, the sender's reason for giving it up, such as `"peer silent"`,
    /// or `"unfinished"` at the end of the run; `None` if it has them.
    pub incomplete: Option<Cow<'static, str>>,
}

impl CastSummary {
    /// Names the receivers that do not have all files, with the reason for each; `None` if all have.
    #[must_use]
    pub(crate) fn incomplete(&self) -> Option<String> {
        let of = |receiver: &ReceiverSummary| {
            receiver.incomplete.as_ref().map(|why| format!("host {}: {why}", receiver.host))
        };
        let found: Vec<String> = self.receivers.iter().filter_map(of).collect();
        let (shown, count) = (found.iter().take(4).cloned().collect::<Vec<_>>(), found.len());
        let more = if count > 4 { ", ..." } else { "" };
        let all = self.receivers.len();
        let shown = shown.join(", ");
        (count > 0).then(|| format!("{count} of {all} receivers lack files ({shown}{more})"))
    }

    /// Computes the summary of a run with this configuration.
    #[must_use]
    pub fn new(config: &CastConfig, result: &CastResult) -> Self {
        let app = &result.app;
        let total = app.measured().iter().sum::<u64>();
        let execution_us = app.execution().map_or(f64::NAN, Span::as_us_f64);
        Self {
            copied_by: config.copied_by().into(),
            execution_us,
            files: app.measured().len() as u64,
            total_bytes: total,
            receiver_gbps: total as f64 * 8e-3 / execution_us,
            ns_per_byte: execution_us * 1e3 / total as f64,
            send_us: Quantiles::of(app.send_times()),
            wait_us: Quantiles::of(app.wait_times()),
            copies: result.sender_link_bytes as f64 / config.bytes() as f64,
            repaired_bytes: app.repaired_bytes,
            detached: app.detached,
            lost: app.receivers.iter().filter(|receiver| receiver.failed.is_some()).count() as u64,
            missing_bytes: app.missing_bytes(),
            wrong_bytes: app.wrong_bytes,
            silent_agents: app.silent_agents,
            failover_us: failover(config, app),
            plane: result.plane.as_deref().map(PlaneSummary::from),
            receivers: app
                .receivers
                .iter()
                .map(|receiver| receiver_summary(config, receiver))
                .collect(),
        }
    }
}

fn receiver_summary(config: &CastConfig, receiver: &ReceiverTimes) -> ReceiverSummary {
    let whole = receiver.completed.len() == config.files.len();
    let last = receiver.completed.last().filter(|_| whole);
    ReceiverSummary {
        host: receiver.host.0,
        rack: config.rack_of(receiver.host),
        completed_us: last.map_or(f64::NAN, |at| at.as_us_f64()),
        files: receiver.completed.len() as u64,
        longest_gap_us: receiver.longest_gap.max(receiver.longest_gap_before).as_us_f64(),
        lost: receiver.failed.is_some(),
        incomplete: (!whole).then_some(Cow::Borrowed(match receiver.failed {
            _ if receiver.crashed => "host crashed",
            Some(FailReason::HostCrashed) => "sender crashed",
            Some(FailReason::PeerSilent) => "peer silent",
            Some(FailReason::PeerForgot) => "peer forgot",
            Some(FailReason::Cancelled) => "cancelled",
            Some(FailReason::Deadline) => "deadline exceeded",
            None => "unfinished",
        })),
    }
}

/// Returns how long the racks of crashed hosts got nothing, beyond the longest such time before the crash.
fn failover(config: &CastConfig, result: &Results) -> Option<f64> {
    let racks: Vec<_> = config.crashed.iter().map(|host| config.rack_of(*host)).collect();
    let others = result
        .receivers
        .iter()
        .filter(|receiver| !receiver.crashed && racks.contains(&config.rack_of(receiver.host)));
    others
        .map(|receiver| {
            receiver.longest_gap.saturating_sub(receiver.longest_gap_before).as_us_f64()
        })
        .max_by(f64::total_cmp)
}

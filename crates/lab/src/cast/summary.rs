//! What came of it.

use rackweave_core::Span;
use rackweave_group::app::{ReceiverTimes, Results};
use rackweave_group::orca::scale::ScaleReport;
use serde::Serialize;

use super::CastConfig;
use crate::results::stats::percentile;

/// The results of files to many, in either world.
#[derive(Clone, Debug)]
pub struct CastResult {
    /// The application's results.
    pub app: Results,
    /// Bytes that the sender's links have carried, as on Ethernet.
    pub sender_link_bytes: u64,
    /// The control plane's tables.
    pub plane: Option<ScaleReport>,
}

impl CastResult {
    /// The send times of the casts, or the wait times of the receivers, in microseconds.
    pub(crate) fn times_us(&self, sending: bool) -> Vec<f64> {
        let us = Span::as_us_f64;
        if sending {
            self.app.send_times().map(us).collect()
        } else {
            self.app.wait_times().map(us).collect()
        }
    }
}

/// A distribution; of no values, `null`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// A tenth is at most this.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// Nine tenths.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
    /// Mean.
    pub mean: f64,
    /// Largest.
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

/// `cast` of a point in `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct CastSummary {
    /// Who makes the copies.
    pub copied_by: &'static str,
    /// From the first chunk of the first file to the last acknowledgement of the last.
    pub execution_us: f64,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub total_bytes: u64,
    /// What each receiver gets over the whole execution time.
    pub receiver_gbps: f64,
    /// Execution time for each byte.
    pub ns_per_byte: f64,
    /// From the first chunk of a file to the last acknowledgement.
    pub send_us: Quantiles,
    /// From a receiver's acknowledgement of a file to the moment when the next one is there.
    pub wait_us: Quantiles,
    /// Bytes on the sender's links, as on Ethernet, for each byte of the files: about the number of copies that it sends.
    pub copies: f64,
    /// Bytes of the files that were sent again.
    pub repaired_bytes: u64,
    /// How often a receiver was served alone because it was too slow for the others.
    pub detached: u64,
    /// Receivers that the sender gave up.
    pub lost: u64,
    /// Bytes that receivers whose hosts did not crash lack at the end.
    pub missing_bytes: u64,
    /// Bytes that came to a wrong place.
    pub wrong_bytes: u64,
    /// Agents that fell silent, as their controller sees it.
    pub silent_agents: u64,
    /// Of a run in which a host crashed: the longest time in which the other receivers of its rack got nothing, less the
    /// longest before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover_us: Option<f64>,
    /// The control plane's tables, if they were built.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plane: Option<PlaneSummary>,
    /// Every receiver.
    pub receivers: Vec<ReceiverSummary>,
}

/// The control plane's tables on a fabric of their own, filled: sizes are of what is in memory.
#[derive(Clone, Debug, Serialize)]
pub struct PlaneSummary {
    /// Hosts, all of them agents.
    pub hosts: u32,
    /// Sessions.
    pub sessions: u32,
    /// Members of all sessions.
    pub members: u64,
    /// Bits of a label.
    pub label_bits: u32,
    /// Bytes of a label in packets.
    pub label_bytes: u32,
    /// Bytes that a `ToR` switch remembers.
    pub tor_state_bytes: u32,
    /// Bytes that another switch remembers.
    pub other_state_bytes: u32,
    /// Entries of all `ToR` switches together if each had a table of its sessions instead.
    pub group_entries: u64,
    /// Bytes of the controller's store.
    pub controller_bytes: u64,
    /// The same for each session.
    pub controller_bytes_per_session: f64,
    /// Sessions in the fullest agent's table.
    pub agent_sessions: u32,
    /// Bytes of that table.
    pub agent_bytes: u64,
    /// The same for each of its sessions.
    pub agent_bytes_per_session: f64,
    /// `Sync` packets of the controller for a change of members.
    pub syncs_per_change: f64,
    /// Confirmations for a change.
    pub confirmations_per_change: f64,
    /// Racks without members to which pilot labels lead, for each rack with some.
    pub redundant_copies: f64,
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
        }
    }
}

/// A receiver in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct ReceiverSummary {
    /// Its host.
    pub host: u32,
    /// Its rack.
    pub rack: Option<usize>,
    /// When its last file was whole; `null`: never.
    pub completed_us: f64,
    /// Files that it has.
    pub files: u64,
    /// The longest time without a new byte.
    pub longest_gap_us: f64,
    /// The sender gave it up.
    pub lost: bool,
}

impl CastSummary {
    /// Works out the numbers.
    #[must_use]
    pub fn new(config: &CastConfig, result: &CastResult) -> Self {
        let app = &result.app;
        let total = app.measured().iter().sum::<u64>();
        let execution = app.execution().map_or(f64::NAN, |span| span.0 as f64);
        Self {
            copied_by: config.copied_by(),
            execution_us: execution / 1e6,
            files: app.measured().len() as u64,
            total_bytes: total,
            receiver_gbps: total as f64 * 8e3 / execution,
            ns_per_byte: execution / 1e3 / total as f64,
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
            plane: result.plane.as_ref().map(PlaneSummary::from),
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
    }
}

/// How long the racks of crashed hosts got nothing, beyond what is normal.
fn failover(config: &CastConfig, result: &Results) -> Option<f64> {
    let racks: Vec<_> = config.crashed.iter().map(|host| config.rack_of(*host)).collect();
    let others = result
        .receivers
        .iter()
        .filter(|receiver| !receiver.crashed && racks.contains(&config.rack_of(receiver.host)));
    others
        .map(|receiver| {
            Span(receiver.longest_gap.0.saturating_sub(receiver.longest_gap_before.0)).as_us_f64()
        })
        .max_by(f64::total_cmp)
}

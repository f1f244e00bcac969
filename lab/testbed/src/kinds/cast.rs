//! Casts on real hosts.

use rackweave_core::HostId;
use rackweave_lab::scenario::{PointSpec, TcpBy};
use rackweave_lab::study::cast::{CastConfig, CastDetail, CastResult, CastSummary, Scheme};
use rackweave_lab::study::{StudyDetail, StudySummary};
use rackweave_orca::app::Cost;
use rackweave_orca::host::Spread;
use rackweave_sim::config::Topology;
use rackweave_sim::result::RunResult;
use rackweave_transport::TransportConfig;

use super::{Ends, HostProcess, OnTestbed};
use crate::systems::{self, Systems};
use crate::{LONGEST_MESSAGE, StudyEnd, TestbedError, refused, run_cast};

impl OnTestbed for CastConfig {
    fn check(&self, point: &PointSpec, overlay: bool) -> Result<(), TestbedError> {
        check(self, point, overlay)
    }

    fn busy_hosts(&self) -> usize {
        self.receivers.len()
    }

    fn systems(&self) -> Systems {
        systems::of_scheme(&self.scheme)
    }

    fn carrier(&self) -> Option<&TransportConfig> {
        match &self.scheme {
            Scheme::Streams { transport, .. } => Some(transport),
            _ => None,
        }
    }

    fn run_host(&self, host: &HostProcess<'_>) -> Result<(), String> {
        run_cast(self, host)
    }

    fn results(
        &self,
        ends: &Ends<'_>,
        result: &mut RunResult,
    ) -> (StudySummary, Option<StudyDetail>) {
        let mut collector = self.collector(ends.config, ends.ended_at);
        let mut sender_link_bytes = 0;
        for (host, end) in ends.hosts {
            let (host, Some(StudyEnd::Cast(end))) = (HostId(*host), &end.study) else { continue };
            collector.add(host, &end.report);
            if self.senders.contains(&host) {
                sender_link_bytes += end.link_bytes;
            }
        }
        let cast = CastResult { app: collector.results(), sender_link_bytes, plane: None };
        cast.put_into(ends.fabric, result);
        let summary = StudySummary::Cast(CastSummary::new(self, &cast));
        (summary, Some(StudyDetail::Cast(CastDetail::Run(cast))))
    }
}

fn check(cast: &CastConfig, point: &PointSpec, overlay: bool) -> Result<(), TestbedError> {
    let in_simulator = "`rackweave run` simulates it";
    if overlay {
        return Err(refused(
            "the overlay carries no files to many: `rackweave cast` has a separate UDP socket",
            "without --overlay (as root) hosts are network namespaces",
        ));
    }
    if !matches!(point.config.fabric.topology, Topology::SingleSwitch { .. }) {
        let message = "the testbed sends files to many only through a single switch";
        return Err(refused(message, "set topology = \"single-switch\""));
    }
    if !point.config.streams.is_empty() {
        let message = "the testbed carries no [[background]] streams with files to many";
        return Err(refused(message, in_simulator));
    }
    if cast.senders.len() > 1 || cast.processes > 1 {
        let message = "the testbed's sender of files has one port and one process";
        return Err(refused(message, in_simulator));
    }
    if cast.cost != Cost::default() {
        let message = "[workload.cast.cpu] is simulated: real senders take the time they take";
        return Err(refused(message, "leave it out here"));
    }
    if !cast.crashed.is_empty() {
        let message = "the testbed does not crash senders and receivers of files";
        return Err(refused(message, in_simulator));
    }
    let total = cast.bytes();
    if total > LONGEST_MESSAGE {
        return Err(refused(
            format!("files of {total} bytes in all: the testbed takes {LONGEST_MESSAGE} at most"),
            "each host holds them in memory to verify received bytes",
        ));
    }
    match &cast.scheme {
        Scheme::Unicast { .. } => {
            let message = "the testbed has no cast-unicast: its UDP copies are not repaired";
            Err(refused(message, "orca with spread = \"unicast\" sends copies and repairs them"))
        }
        Scheme::Orca(orca) => match orca.spread {
            Spread::Labels => {
                let message = "the testbed's hosts have no labels, because they have no controller";
                Err(refused(message, "set spread to \"multicast\", \"relay\" or \"unicast\""))
            }
            Spread::Relay | Spread::Multicast | Spread::Unicast => Ok(()),
        },
        Scheme::Streams { .. } if cast.files.len() > 1 => {
            let message = "the testbed sends only one file over cast-tcp and cast-chain";
            Err(refused(message, in_simulator))
        }
        Scheme::Streams { .. } if point.testbed.tcp == TcpBy::Machine => {
            let message = "the testbed sends files to many only over the kernel's TCP";
            Err(refused(message, "leave out testbed.tcp"))
        }
        Scheme::Streams { .. } => Ok(()),
    }
}

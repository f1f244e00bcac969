//! What the processes of a point have reported, as results of the simulator are.

use rackweave_core::{Framing, HostId, RecoveryCounters, Span, Time, frame};
use rackweave_lab::study::reduce::ControlPlane;
use rackweave_sim::result::{
    Counters, End, Goodput, MeasuredRoundTrip, Outcome, RunResult, TransportRecovery,
};

use super::{PointOutcome, PointRun};
use crate::kinds::Ends;
use crate::protocol::{HostWork, SwitchEnd};
use crate::{PointWork, captured_links};

/// The size of the smallest packet on a link, which answers data in a base round trip.
const SMALLEST: u32 = frame::wire_bytes(0);
/// Full frames with a UDP header and no other transport header.
const PLAIN: Framing = Framing {
    max_payload: frame::MTU - frame::IPV4 - 8,
    header_bytes: frame::IPV4 + 8,
    spray_above_bytes: u32::MAX,
};

impl PointRun<'_> {
    pub(super) fn result(&mut self, end: End, ended_at: Time, switch: &SwitchEnd) -> PointOutcome {
        let since = self.point.config.measure.warmup.ticks().min(ended_at.ticks());
        let until = match (end, self.collector.last_end()) {
            (End::AllDone, Some(last)) => last.max(since),
            (End::AllDone, None) => since,
            _ => ended_at.ticks(),
        };
        let mut messages = self.collector.messages(&self.fabric);
        for message in &mut messages {
            // Messages that ended while the workers were being stopped were too late.
            if matches!(message.outcome, Outcome::Completed(at) if end == End::TimeLimit && at > ended_at)
            {
                message.outcome = Outcome::Unfinished;
            }
        }
        let (delivered_bytes, delivered_by_sender) = self.collector.delivered(until);
        let ends = self.host_ends.values();
        let counters =
            Counters { events: ends.clone().map(|end| end.packets).sum(), ..switch.counters };
        let links = switch.links.clone();
        let ports = links.get(self.fabric.hosts() as usize..).unwrap_or_default();
        let mean = ports.iter().map(|port| port.mean_queue_bytes).sum::<f64>();
        let mut result = RunResult {
            end,
            ended_at,
            measured: Span::from_ticks(until - since),
            messages,
            ranks: Vec::new(),
            delivered_bytes,
            delivered_by_sender,
            goodput: Goodput::default(),
            round_trips: self.round_trips(),
            recovery: self.recovery(),
            counters,
            dropped_before: None,
            refused: ends.clone().map(|end| end.refused).sum(),
            mean_queue_bytes: mean / ports.len().max(1) as f64,
            max_queue_bytes: ports.iter().map(|port| port.max_queue_bytes).max().unwrap_or(0),
            queue_series: switch.queues.clone(),
            links,
            traffic: Vec::new(),
            circuits: switch
                .circuits
                .iter()
                .map(|(at, circuits)| (Time::from_ticks(*at), circuits.clone().into()))
                .collect(),
            capture_names: captured_links(self.point, &self.fabric)
                .into_iter()
                .map(|link| self.fabric.link_name(link))
                .collect(),
            capture: Vec::new(),
            waiting: Vec::new(),
            backlog: None,
            deadlock: Vec::new(),
            peak_packets: 0,
            verified_messages: ends.clone().map(|end| end.verified).sum(),
        };
        let cpu_s = switch.cpu_s + ends.map(|end| end.cpu_s).sum::<f64>();
        let kind = crate::kinds::of(&self.point.study).and_then(Result::ok);
        let study = kind.map(|kind| {
            let ends = Ends {
                config: &self.point.config,
                fabric: &self.fabric,
                end,
                ended_at,
                hosts: &self.host_ends,
                switch,
                reconfigurations: self.plane.as_ref().map_or(0, ControlPlane::reconfigurations),
            };
            kind.results(&ends, &mut result)
        });
        let (work, doubts) = (self.work(switch), self.doubts(switch));
        let counters = self.began.as_ref().zip(self.ended.as_ref());
        let machine = counters
            .and_then(|(began, ended)| began.until(ended, switch.late_p99, self.round_trip()));
        PointOutcome { result, study, capture: Vec::new(), cpu_s, work, doubts, machine }
    }

    /// Returns the work of all processes, with the bytes of hosts' links.
    fn work(&self, switch: &SwitchEnd) -> PointWork {
        let bytes = |link: u32| switch.links.get(link as usize).map_or(0, |link| link.bytes);
        let host = |host| HostWork {
            sent_bytes: bytes(host),
            received_bytes: bytes(self.fabric.downlink(HostId(host))),
            ..self.host_ends.get(&host).map_or(HostWork::default(), |end| end.work)
        };
        PointWork { hosts: self.hosts().map(host).collect(), switch: switch.work }
    }

    /// The repairs of each transport that is not the kernel's. Hosts that have not reported are missing in the sums.
    fn recovery(&self) -> Vec<TransportRecovery> {
        let streams_of = |number: usize| -> Vec<u16> {
            let streams = (0..).zip(&self.endpoints.of_stream);
            streams
                .filter(|(_, of)| usize::from(**of) == number)
                .map(|(stream, _)| stream)
                .collect()
        };
        let endpoints = self.endpoints.endpoints.iter().enumerate();
        let known = endpoints.filter(|(_, endpoint)| endpoint.kernel.is_none());
        known
            .map(|(number, _)| {
                let mut counters = RecoveryCounters::default();
                for (of, counted) in self.host_ends.values().flat_map(|end| &end.recovery) {
                    if usize::from(*of) == number {
                        counters += *counted;
                    }
                }
                TransportRecovery { streams: streams_of(number), counters }
            })
            .collect()
    }

    fn round_trips(&self) -> Vec<MeasuredRoundTrip> {
        let mut measured = Vec::new();
        for (number, endpoint) in self.endpoints.endpoints.iter().enumerate() {
            let first = self.endpoints.of_stream.iter().position(|of| usize::from(*of) == number);
            let framing = endpoint.transport.framing();
            for (host, end) in &self.host_ends {
                let src = HostId(*host);
                let of_it = end.round_trips.iter().filter(|of| usize::from(of.endpoint) == number);
                let trips = of_it.flat_map(|of| &of.trips);
                let trips = trips.filter(|trip| trip.peer.0 < self.fabric.hosts());
                measured.extend(trips.filter(|trip| trip.peer != src).map(|trip| {
                    let dst = trip.peer;
                    MeasuredRoundTrip {
                        stream: first.unwrap_or(0) as u16,
                        src,
                        dst,
                        min: trip.min,
                        recent: trip.recent,
                        base: self.fabric.base_rtt_between(src, dst, framing, SMALLEST),
                        samples: trip.samples,
                    }
                }));
            }
        }
        measured
    }

    /// The round trip of the idle fabric.
    fn round_trip(&self) -> Span {
        let framing =
            self.endpoints.endpoints.first().map_or(PLAIN, |endpoint| endpoint.transport.framing());
        self.fabric.base_rtt(framing, SMALLEST)
    }

    /// Returns reasons to doubt the results: if the machine did not keep up, they measure the machine instead of the
    /// transports.
    fn doubts(&self, switch: &SwitchEnd) -> Vec<String> {
        let round_trip = self.round_trip();
        let mut doubts = Vec::new();
        let late = switch.late_p99;
        if late > round_trip {
            let worst = switch.late_max;
            doubts.push(format!(
                "the switch was late: 1 of 100 packets by more than {late} (at most {worst}), and an idle round \
                 trip of this fabric is {round_trip}"
            ));
        }
        let lost: Vec<String> = (switch.lost.iter())
            .filter(|(_, packets)| *packets > 0)
            .map(|(where_, packets)| format!("{packets} {where_}"))
            .collect();
        if !lost.is_empty() {
            let lost = lost.join(", ");
            doubts.push(format!("packets were lost elsewhere than in the fabric's queues: {lost}"));
        }
        for (host, end) in &self.host_ends {
            doubts.extend(end.study.iter().flat_map(|end| end.doubts(*host)));
        }
        let slowest = self.host_ends.iter().max_by_key(|(_, end)| end.lag.p99);
        if let Some((host, end)) = slowest
            && end.lag.p99 > round_trip
        {
            let (lag, worst) = (end.lag.p99, end.lag.max);
            doubts.push(format!(
                "host {host} started messages late: 1 of 100 by more than {lag} (at most {worst}), which counts as \
                 part of their latency"
            ));
        }
        doubts
    }
}

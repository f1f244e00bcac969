//! A host of a run with jobs: the machines of the simulator's host, over the socket of the product.

use rackweave_aggregation::packet::packet;
use rackweave_core::{Ecn, Header as _, HostId, Mixed, Node as _, Span, Time};
use rackweave_lab::study::reduce::ReduceConfig;
use rackweave_lab::study::reduce::job::{JobNode, Record};
use rackweave_linux::Clock;
use rackweave_reduce::{Attachment, Machine, Net};
use rackweave_sim::GroupNode as _;
use rackweave_wire::frame::ip_address;
use rackweave_wire::reduce::{Header, PORT};

use super::meter::{Calls, UploadMeter};
use super::timeline::{TimeLine, pause};
use super::{POLL_EVERY, REPORT_EVERY, next_command, process_cpu_s, send, writer};
use crate::kinds::HostProcess;
use crate::protocol::{
    Bind, Command, HostEnd, JobEnd, Records, ReduceEnd, StudyEnd, WorkerMessage,
};

fn failed(error: std::io::Error) -> String {
    format!("its socket failed: {error}")
}

pub(crate) fn run(reduce: &ReduceConfig, process: &HostProcess<'_>) -> Result<(), String> {
    let &HostProcess { this, bind, commands, .. } = process;
    let node = JobNode::new(this, reduce.job.clone(), &reduce.carrier, &reduce.jobs);
    let line = TimeLine::new(bind);
    let mut net = bound(this, bind, line)?;
    let mut host = Host {
        this,
        node: node.with_deferred_comparison(),
        clock: line.clock,
        packets: 0,
        meter: UploadMeter::default(),
        was_done: false,
    };
    send(&WorkerMessage::Bound(vec![Some(net.local_addr())]));
    net.announce().map_err(failed)?;
    let (lines, written) = writer();
    let mut reported: Option<(Time, bool, usize)> = None;
    loop {
        match next_command(commands) {
            Some(Command::Stop) => break,
            Some(Command::Grant { job, slots }) => {
                host.node.grant(line.since(), job, reduce.job.aggregation_of(slots));
            }
            _ => {}
        }
        let Some(now) = line.now() else {
            pause(Span::from_ms(1));
            continue;
        };
        let due = net.turn(&mut host).map_err(failed)?;
        host.end_upload(Calls::of(&net));
        let (idle, steps) = (host.node.is_done(), host.steps());
        if reported.is_none_or(|(at, was, after)| {
            was != idle || after != steps || now >= at + REPORT_EVERY
        }) {
            reported = Some((now, idle, steps));
            let jobs = host.jobs();
            let records = Records { until: now.ticks(), idle, jobs, ..Records::default() };
            // The writer ends only with the process.
            let _ = lines.send(WorkerMessage::Records(records));
        }
        // After a comparison the host has something to reduce, which `due` does not know of.
        let until = [due, host.node.poll_timeout(), Some(net.now() + POLL_EVERY)];
        net.wait(until.into_iter().flatten().min()).map_err(failed)?;
    }
    drop(lines);
    written.join().map_err(|_| "it could not write".to_owned())?;
    let jobs = host.jobs();
    send(&WorkerMessage::HostEnd(Box::new(HostEnd {
        cpu_s: process_cpu_s(),
        packets: host.packets,
        work: host.meter.work(host.clock, Calls::of(&net)),
        study: Some(StudyEnd::Reduce(ReduceEnd { jobs })),
        ..HostEnd::default()
    })));
    Ok(())
}

/// Binds the socket, whose times are those since the load started.
fn bound(this: HostId, bind: &Bind, line: TimeLine) -> Result<Net, String> {
    let own = ip_address(this).ok_or_else(|| format!("host {} has no address", this.0))?;
    let attachment = match bind.switch {
        Some(port) => Attachment::Overlay { port, me: this },
        None => Attachment::Udp((own, PORT).into()),
    };
    let clock = Clock::with_origin(line.clock.origin_ns() + line.start.as_ns());
    Net::bind(attachment, true, clock).map_err(|error| error.to_string())
}

/// The machines of a host, whose packets are counted.
struct Host {
    this: HostId,
    node: JobNode,
    clock: Clock,
    packets: u64,
    meter: UploadMeter,
    /// Whether all jobs of the host had ended at the last turn.
    was_done: bool,
}

impl Host {
    /// Returns how far the jobs have come whose master is here.
    fn jobs(&self) -> Vec<JobEnd> {
        self.node.records().map(|(job, record)| JobEnd::new(job.number, record)).collect()
    }

    /// Counts the steps that they have made; each is reported at once.
    fn steps(&self) -> usize {
        let of = |record: &Record| {
            let times =
                [record.started, record.ready, record.granted, record.uploaded, record.finished];
            times.iter().flatten().count() + usize::from(record.failed.is_some())
        };
        self.node.records().map(|(_, record)| of(record)).sum()
    }

    /// Notes the end of an upload, and compares the result of one whose master is here.
    fn end_upload(&mut self, calls: Calls) {
        let is_done = self.node.is_done();
        let is_uploaded = self.node.has_to_compare();
        if is_uploaded || (is_done && !self.was_done) {
            self.meter.end(self.clock, calls);
        }
        self.was_done = is_done;
        if is_uploaded {
            let node = &mut self.node;
            self.meter.exclude(|| node.compare());
        }
    }
}

impl Machine for Host {
    fn handle(&mut self, now: Time, from: HostId, header: &Header, marked: bool, payload: &[u8]) {
        let ecn = if marked { Ecn::Marked } else { Ecn::NotCapable };
        let packet = packet(from, self.this, *header).with_ecn(ecn).map(Mixed::Group);
        self.packets += 1;
        self.meter.received(packet.header.work());
        self.node.receive(now, &packet, payload);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.node.handle_timeout(now);
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.node.poll_timeout()
    }

    fn poll(&mut self, now: Time) -> Option<(HostId, Header, &[u8])> {
        loop {
            let packet = self.node.poll_transmit(now, 0)?;
            // Without data to send to workers, the transport is silent.
            let Mixed::Group(header) = packet.header else { continue };
            self.packets += 1;
            self.meter.sent(self.clock, header.work());
            return Some((packet.dst, header.message, self.node.payload()));
        }
    }
}

//! A host of a run with jobs: the machines of the simulator's host, over a UDP socket.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;

use rackweave_core::{Ecn, Header as _, HostId, Mixed, Node as _, Span, Time};
use rackweave_group::reduce::job::{JobNode, Record};
use rackweave_group::reduce::packet::packet;
use rackweave_linux::sys::{ReceiveBatch, SendBatch, UdpSocket};
use rackweave_linux::wait;
use rackweave_wire::frame::{ip_address, traffic_class};
use rackweave_wire::overlay;
use rackweave_wire::reduce::{KIND, PORT, address_of, decode, encode, number_of};
use smallvec::SmallVec;

use super::meter::UploadMeter;
use super::timeline::TimeLine;
use super::{POLL_EVERY, REPORT_EVERY, next_command, process_cpu_s, send, writer};
use crate::study::reduce::ReduceConfig;
use crate::testbed::kind::HostProcess;
use crate::testbed::protocol::{
    Bind, Command, HostEnd, JobEnd, Records, ReduceEnd, StudyEnd, WorkerMessage,
};

/// The most datagrams that wait for the socket.
const SEND_AT_ONCE: usize = 256;
/// The most calls to receive before timers and sending are served.
const RECEIVE_CALLS: usize = 8;
const BUFFER: usize = 8 << 20;
/// ECN's codepoint of a packet that a queue has marked.
const MARKED: u8 = 3;

pub(crate) fn run(reduce: &ReduceConfig, process: &HostProcess<'_>) -> Result<(), String> {
    let &HostProcess { this, bind, commands, .. } = process;
    let node = JobNode::new(this, reduce.job.clone(), &reduce.carrier, &reduce.jobs);
    let node = node.with_deferred_comparison();
    let mut host = Host::bind(this, node, bind)?;
    send(&WorkerMessage::Bound(vec![Some(host.socket.local_addr())]));
    host.announce()?;
    let (lines, written) = writer();
    let mut reported: Option<(Time, bool, usize)> = None;
    loop {
        match next_command(commands) {
            Some(Command::Stop) => break,
            Some(Command::Grant(job)) => {
                let now = host.line.since();
                host.node.grant(now, job, reduce.job.aggregation);
            }
            _ => {}
        }
        let idle = host.turn()?;
        let steps = host.steps();
        if let Some(now) = host.line.now()
            && reported.is_none_or(|(at, was, after)| {
                was != idle || after != steps || now >= at + REPORT_EVERY
            })
        {
            reported = Some((now, idle, steps));
            let ready = std::iter::from_fn(|| host.node.poll_ready()).collect();
            let jobs = host.jobs();
            let records = Records { until: now.ticks(), idle, jobs, ready, ..Records::default() };
            // The writer ends only with the process.
            let _ = lines.send(WorkerMessage::Records(records));
        }
    }
    drop(lines);
    written.join().map_err(|_| "it could not write".to_owned())?;
    let jobs = host.jobs();
    send(&WorkerMessage::HostEnd(Box::new(HostEnd {
        cpu_s: process_cpu_s(),
        packets: host.packets,
        work: host.meter.work(host.line.clock, host.batch.calls().0),
        study: Some(StudyEnd::Reduce(ReduceEnd { jobs })),
        ..HostEnd::default()
    })));
    Ok(())
}

struct Host {
    this: HostId,
    node: JobNode,
    line: TimeLine,
    socket: UdpSocket,
    /// In the overlay, the switch's port for this host.
    port: Option<SocketAddr>,
    received: Option<ReceiveBatch>,
    batch: SendBatch,
    packets: u64,
    meter: UploadMeter,
    /// Whether all jobs of the host had ended at the last turn.
    was_done: bool,
}

fn failed(error: std::io::Error) -> String {
    format!("its socket failed: {error}")
}

impl Host {
    fn bind(this: HostId, node: JobNode, bind: &Bind) -> Result<Self, String> {
        let own = ip_address(this).ok_or_else(|| format!("host {} has no address", this.0))?;
        let at = match bind.switch {
            Some(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            None => SocketAddr::from((own, PORT)),
        };
        let socket = UdpSocket::bind(at, 1 << 18, false)
            .map_err(|error| format!("it cannot bind {at}: {error}"))?;
        socket.set_buffers(BUFFER, 1 << 20).map_err(failed)?;
        Ok(Self {
            this,
            node,
            line: TimeLine::new(bind),
            socket,
            port: bind.switch,
            received: Some(ReceiveBatch::default()),
            batch: SendBatch::default(),
            packets: 0,
            meter: UploadMeter::default(),
            was_done: false,
        })
    }

    /// Returns how far the jobs have come whose master is here.
    fn jobs(&self) -> Vec<JobEnd> {
        self.node.records().map(|(job, record)| JobEnd::new(job.number, record)).collect()
    }

    /// Counts the steps that they have made, each of which is reported at once.
    fn steps(&self) -> usize {
        let of = |record: &Record| {
            let times =
                [record.started, record.ready, record.granted, record.uploaded, record.finished];
            times.iter().flatten().count() + usize::from(record.failed.is_some())
        };
        self.node.records().map(|(_, record)| of(record)).sum()
    }

    /// Announces this host's address to the switch of the overlay.
    fn announce(&mut self) -> Result<(), String> {
        if let Some(port) = self.port {
            let this = self.this;
            let hello = |out: &mut Vec<u8>| overlay::encode_hello(this, this, 0, 0, out);
            self.batch.push(port, 0, hello, SmallVec::new());
            self.socket.send(&mut self.batch).map_err(failed)?;
        }
        Ok(())
    }

    /// One turn, with a wait at its end. Returns whether all jobs of the host have ended.
    fn turn(&mut self) -> Result<bool, String> {
        let Some(now) = self.line.now() else {
            super::timeline::pause(Span::from_ms(1));
            return Ok(false);
        };
        self.receive()?;
        if self.node.poll_timeout().is_some_and(|at| at <= now) {
            self.node.handle_timeout(now);
        }
        self.transmit()?;
        self.end_upload();
        let now = self.line.since();
        let mut until = now + POLL_EVERY;
        if let Some(at) = self.node.poll_timeout() {
            until = until.min(at);
        }
        if self.batch.len() < SEND_AT_ONCE && until > now {
            let until = until.saturating_add(self.line.start);
            let fds = [(self.socket.as_fd(), !self.batch.is_empty())];
            wait::until(self.line.clock, &fds, Some(until), Span::ZERO).map_err(failed)?;
        }
        Ok(self.node.is_done())
    }

    /// Notes the end of an upload, and compares the result of one whose master is here.
    fn end_upload(&mut self) {
        let (clock, is_done) = (self.line.clock, self.node.is_done());
        let is_uploaded = self.node.has_to_compare();
        if is_uploaded || (is_done && !self.was_done) {
            self.meter.end(clock, self.batch.calls().0);
        }
        self.was_done = is_done;
        if is_uploaded {
            let node = &mut self.node;
            self.meter.exclude(|| node.compare());
        }
    }

    fn receive(&mut self) -> Result<(), String> {
        let mut batch = self.received.take().unwrap_or_default();
        for _ in 0..RECEIVE_CALLS {
            self.socket.receive(&mut batch).map_err(failed)?;
            if !batch.is_empty() {
                self.meter.received_batch();
            }
            for datagram in batch.datagrams() {
                let now = self.line.since();
                let ecn = match datagram.traffic_class & 3 {
                    MARKED => Ecn::Marked,
                    _ => Ecn::NotCapable,
                };
                let read = read(self.this, self.port, datagram.from, datagram.bytes);
                let Some((from, header, payload)) = read else { continue };
                self.packets += 1;
                self.meter.received(header.work());
                let packet = packet(from, self.this, header).with_ecn(ecn).map(Mixed::Group);
                self.node.receive(now, &packet, payload);
            }
            if !batch.was_full() {
                break;
            }
        }
        self.received = Some(batch);
        Ok(())
    }

    fn transmit(&mut self) -> Result<(), String> {
        while self.batch.len() < SEND_AT_ONCE {
            let now = self.line.since();
            let Some(packet) = self.node.poll_transmit(now, 0) else { break };
            // Without data to send to workers, the transport is silent.
            let Mixed::Group(header) = packet.header else { continue };
            let (message, to) = (header.message, packet.dst);
            self.meter.sent(self.line.clock, message.work());
            let address = self.port.or_else(|| Some((address_of(to)?, PORT).into()));
            let Some(address) = address else { continue };
            let (payload, overlay) = (self.node.payload(), self.port.is_some());
            let this = self.this;
            let write = |out: &mut Vec<u8>| {
                if overlay {
                    let len = message.header_bytes() + message.payload_len();
                    overlay::encode_group(KIND, this, to, len as u16, out);
                }
                encode(&message, out);
                out.extend_from_slice(payload);
            };
            self.batch.push(address, traffic_class(&packet), write, SmallVec::new());
            self.packets += 1;
        }
        self.socket.send(&mut self.batch).map_err(failed)?;
        Ok(())
    }
}

/// Reads a datagram: its sender, the message, and its payload.
fn read(
    this: HostId,
    port: Option<SocketAddr>,
    from: SocketAddr,
    bytes: &[u8],
) -> Option<(HostId, rackweave_wire::reduce::Header, &[u8])> {
    let (source, bytes) = match (port, from) {
        (Some(port), from) => {
            let envelope = overlay::decode_group(bytes).ok()?;
            let is_ours = from == port && envelope.dst == this;
            (is_ours.then_some(envelope.src)?, &bytes[overlay::BYTES as usize..])
        }
        (None, SocketAddr::V4(from)) => (number_of(*from.ip())?, bytes),
        (None, SocketAddr::V6(_)) => return None,
    };
    let decoded = decode(bytes).ok()?;
    Some((source, decoded.header, &bytes[decoded.payload]))
}

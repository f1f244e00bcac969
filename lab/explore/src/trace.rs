//! The packets of one message, hop by hop.
//!
//! A trace is taken by running the point again from its beginning with a filter on the message: a run is a function of its scenario, so
//! that the message has the same packets again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rackweave_core::{DropReason, HostId, Span, Time};
use rackweave_lab::run::PointEnd;
use rackweave_lab::{Batch, Scenario};
use rackweave_sim::Fabric;
use rackweave_sim::fabric::Node;
use rackweave_sim::result::End;
use rackweave_sim::world::{Next, Observer, Step, TraceStep, Traced, View};
use rackweave_workload::app::MessageStart;
use serde::Serialize;

use crate::lane::chain;

/// The most events of a trace.
const MOST_EVENTS: usize = 200_000;
/// The interval at which the run of a trace is looked at.
const LOOKS: Span = Span::from_us(50);
/// How long the trace goes on after the end of its message for packets that are still under way.
const AFTER: Span = Span::from_ms(1);

/// A packet's way over one link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Hop {
    /// The link.
    pub(crate) link: u32,
    /// When it began to wait for the link, in nanoseconds; `None` if the link was free.
    pub(crate) queued: Option<f64>,
    /// The bytes that waited before it.
    pub(crate) behind: u64,
    /// Whether the queue marked it.
    pub(crate) marked: bool,
    /// Whether the queue trimmed it.
    pub(crate) trimmed: bool,
    /// When its first bit was sent; `None` if it was dropped, or waited when the trace ended.
    pub(crate) sent: Option<f64>,
    /// When its last bit was sent.
    pub(crate) until: Option<f64>,
    /// When the next node had it.
    pub(crate) arrival: Option<f64>,
}

/// How a packet's way ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fate {
    /// At its host.
    Delivered { at: f64 },
    /// In a queue, on a link or at a host.
    Dropped { at: f64, why: String },
    /// The trace ended first.
    UnderWay,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PacketTrace {
    /// The host that sent it.
    pub(crate) src: u32,
    pub(crate) bytes: u16,
    pub(crate) priority: u8,
    /// Whether it was sent with bytes of the message.
    pub(crate) has_payload: bool,
    /// The protocol's name and the header's fields.
    pub(crate) text: String,
    pub(crate) hops: Vec<Hop>,
    pub(crate) fate: Fate,
}

/// A message with its packets.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MessageTrace {
    pub(crate) lane: usize,
    pub(crate) stream: u16,
    pub(crate) src: u32,
    pub(crate) dst: u32,
    pub(crate) bytes: u64,
    /// When it started, in nanoseconds.
    pub(crate) start: f64,
    /// When it ended; `None` if it had not.
    pub(crate) end: Option<f64>,
    /// The simulated time at which the trace ended.
    pub(crate) traced_to: f64,
    /// Whether there were more events than are kept.
    pub(crate) is_cut: bool,
    pub(crate) packets: Vec<PacketTrace>,
}

/// Nanoseconds since the beginning; ticks are hundredths of them.
pub(crate) fn ns(time: Time) -> f64 {
    time.ticks() as f64 * (Span::TICK.as_us_f64() * 1e3)
}

/// Joins the events of each packet to hops.
pub(crate) fn packets(events: &[Step], traced_to: Time, fabric: &Fabric) -> Vec<PacketTrace> {
    let mut all: BTreeMap<u32, PacketTrace> = BTreeMap::new();
    for event in events {
        let packet = all.entry(event.packet).or_insert_with(|| PacketTrace {
            src: event.src.0,
            bytes: event.wire_bytes,
            priority: event.priority,
            has_payload: event.has_payload,
            text: event.text.clone(),
            hops: Vec::new(),
            fate: Fate::UnderWay,
        });
        let at = ns(event.at);
        let is_open =
            packet.hops.last().is_some_and(|it| it.sent.is_none() && it.link == event.link);
        if !is_open && !matches!(event.step, TraceStep::Dropped(_)) {
            packet.hops.push(Hop {
                link: event.link,
                queued: None,
                behind: 0,
                marked: false,
                trimmed: false,
                sent: None,
                until: None,
                arrival: None,
            });
        }
        let Some(hop) = packet.hops.last_mut() else { continue };
        match event.step {
            TraceStep::Queued { behind, marked } => {
                (hop.queued, hop.behind, hop.marked) = (Some(at), behind, marked);
            }
            TraceStep::Trimmed | TraceStep::Returned => {
                hop.queued = hop.queued.or(Some(at));
                hop.trimmed = true;
            }
            TraceStep::Sent { until, arrival } => {
                (hop.sent, hop.until, hop.arrival) = (Some(at), Some(ns(until)), Some(ns(arrival)));
                let is_last = matches!(fabric.links()[hop.link as usize].to, Node::Host(_));
                packet.fate = match is_last && arrival <= traced_to {
                    true => Fate::Delivered { at: ns(arrival) },
                    false => Fate::UnderWay,
                };
            }
            TraceStep::Dropped(reason) => {
                packet.fate = Fate::Dropped { at, why: why(reason).to_owned() };
            }
        }
    }
    all.into_values().collect()
}

const fn why(reason: DropReason) -> &'static str {
    match reason {
        DropReason::QueueFull => "the port's buffer was full",
        DropReason::SharedBufferFull => "the port's share of the switch's buffer was full",
        DropReason::HeaderQueueFull => "the queue of trimmed headers was full",
        DropReason::NoRoute => "there was no path",
        DropReason::FaultLoss => "a fault lost it",
        DropReason::Corrupted => "a fault damaged it",
        DropReason::LinkDown => "the link went down",
        DropReason::HostDown => "the host was down",
        DropReason::HostPaused => "the host was paused and its receive ring full",
        DropReason::WrongProtocol => "no transport of the host takes it",
        DropReason::Program => "a switch program dropped it",
        DropReason::NoBuffer => "there was no room for a copy",
        DropReason::Reconfiguration => "circuits changed",
        DropReason::Selective => "selective dropping above the threshold",
    }
}

/// A trace that is being taken, seen from other threads.
#[derive(Debug, Default)]
pub(crate) struct Tracing {
    pub(crate) cancel: AtomicBool,
    /// The simulated time that it has reached, in ticks.
    pub(crate) at: AtomicU64,
}

/// Looks at the run of a trace.
#[derive(Debug)]
struct Tracer {
    message: MessageStart,
    /// A message that has not ended by then is not waited for.
    horizon: Time,
    fabric: Arc<Fabric>,
    tracing: Arc<Tracing>,
    found: Arc<Mutex<Option<(Traced, Time)>>>,
    has_begun: bool,
}

impl Tracer {
    fn keep(&self, view: &dyn View) {
        let found = view.traced().map(|traced| (traced, view.now()));
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

impl Observer for Tracer {
    fn is_due(&mut self) -> bool {
        self.tracing.cancel.load(Ordering::Relaxed)
    }

    fn look(&mut self, view: &mut dyn View) -> Next {
        let now = view.now();
        self.tracing.at.store(now.ticks(), Ordering::Relaxed);
        if !self.has_begun {
            self.has_begun = true;
            view.trace(self.message, MOST_EVENTS);
        }
        if self.tracing.cancel.load(Ordering::Relaxed) {
            return Next::Cancel;
        }
        let Some(ended) = view.trace_ended() else {
            if now >= self.horizon {
                self.keep(view);
                return Next::Cancel;
            }
            // Nothing is to be seen before it starts.
            let next = if now < self.message.at { self.message.at } else { now + LOOKS };
            return Next::Until(next.min(self.horizon));
        };
        let is_last = |link: u32| matches!(self.fabric.links()[link as usize].to, Node::Host(_));
        let is_settled = view.traced().is_some_and(|traced| traced.is_settled(now, is_last));
        if is_settled || now >= ended + AFTER {
            self.keep(view);
            return Next::Cancel;
        }
        Next::Until(now + LOOKS)
    }

    fn end(&mut self, view: &mut dyn View, end: End) {
        if end != End::Cancelled {
            self.keep(view);
        }
    }
}

/// Runs a scenario of one point up to the end of a message, or to a time at which it had not ended, and returns its packets.
pub(crate) fn take(
    scenario: Scenario,
    message: MessageStart,
    horizon: Time,
    tracing: &Arc<Tracing>,
) -> Result<MessageTrace, String> {
    let fabric = Arc::clone(&scenario.points[0].fabric);
    let found = Arc::new(Mutex::new(None));
    let tracer = Tracer {
        message,
        horizon,
        fabric: Arc::clone(&fabric),
        tracing: Arc::clone(tracing),
        found: Arc::clone(&found),
        has_begun: false,
    };
    let batch = Batch::new(scenario).with_observer(0, Box::new(tracer));
    match batch.simulate(0) {
        Ok(PointEnd::Failed(failure)) => return Err(failure.message),
        Ok(_) => {}
        Err(error) => return Err(chain(&error)),
    }
    let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some((traced, now)) = found else {
        return Err("no such message starts in this run".to_owned());
    };
    let MessageStart { stream, src: HostId(src), dst: HostId(dst), bytes, at } = message;
    Ok(MessageTrace {
        lane: 0,
        stream,
        src,
        dst,
        bytes,
        start: ns(at),
        end: traced.ended.map(ns),
        traced_to: ns(now),
        is_cut: traced.is_cut,
        packets: packets(&traced.events, now, &fabric),
    })
}

/// The hops of a trace as CSV. Times are in nanoseconds of simulated time.
pub(crate) fn csv(trace: &MessageTrace, names: &[String]) -> Result<Vec<u8>, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "packet",
        "source",
        "bytes",
        "priority",
        "header",
        "hop",
        "link",
        "queued_ns",
        "bytes_before",
        "sent_ns",
        "sent_until_ns",
        "arrival_ns",
        "marked",
        "trimmed",
        "fate",
    ])?;
    let time = |at: Option<f64>| at.map_or(String::new(), |at| at.to_string());
    for (number, packet) in trace.packets.iter().enumerate() {
        for (nth, hop) in packet.hops.iter().enumerate() {
            let fate = match &packet.fate {
                _ if nth + 1 < packet.hops.len() => "",
                Fate::Delivered { .. } => "delivered",
                Fate::Dropped { why, .. } => why,
                Fate::UnderWay => "under way",
            };
            writer.write_record([
                number.to_string().as_str(),
                &packet.src.to_string(),
                &packet.bytes.to_string(),
                &packet.priority.to_string(),
                packet.text.as_str(),
                &nth.to_string(),
                names.get(hop.link as usize).map_or("", String::as_str),
                &time(hop.queued),
                &hop.behind.to_string(),
                &time(hop.sent),
                &time(hop.until),
                &time(hop.arrival),
                &hop.marked.to_string(),
                &hop.trimmed.to_string(),
                fate,
            ])?;
        }
    }
    writer.into_inner().map_err(|error| error.into_error().into())
}

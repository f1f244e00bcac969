//! What the page gets of a session, as JSON.

use rackweave_core::{HostId, Span, Time};
use rackweave_lab::results::end_name;
use rackweave_sim::result::{MessageRecord, Outcome as MessageEnd, Waiting};
use serde::Serialize;
use serde_json::{Value, json};

use crate::lane::{Outcome, Picture};
use crate::trace::ns;

/// A share as thousandths.
fn thousandths(share: f64) -> u32 {
    (share * 1000.0).round().clamp(0.0, 1000.0) as u32
}

/// A message that waits or has ended.
#[derive(Debug, Serialize)]
struct Message {
    stream: u16,
    src: u32,
    dst: u32,
    bytes: u64,
    /// When it started, in ticks: with the other fields it names the message.
    at: u64,
    start_ns: f64,
}

impl Message {
    fn new((stream, src, dst): (u16, HostId, HostId), bytes: u64, at: Time) -> Self {
        Self { stream, src: src.0, dst: dst.0, bytes, at: at.ticks(), start_ns: ns(at) }
    }
}

fn waiting(it: &Waiting) -> Value {
    let message = Message::new((it.stream, it.src, it.dst), it.bytes, it.since);
    json!({ "message": message, "left": it.left })
}

/// A measured message; `number` is its line in messages.csv.
pub(crate) fn record(number: usize, it: &MessageRecord) -> Value {
    let message = Message::new((it.stream, it.src, it.dst), it.bytes, it.start);
    let took = took(it);
    json!({
        "number": number,
        "message": message,
        "latency_ns": took.map(|span| ns(Time::ZERO + span)),
        "slowdown": slowdown(it),
        "outcome": match it.outcome {
            MessageEnd::Completed(_) => "completed".to_owned(),
            MessageEnd::Failed(reason) => reason.to_string(),
            MessageEnd::Unfinished => "unfinished".to_owned(),
        },
    })
}

fn took(it: &MessageRecord) -> Option<Span> {
    let MessageEnd::Completed(at) = it.outcome else { return None };
    Some(at.since(it.start))
}

pub(crate) fn slowdown(it: &MessageRecord) -> Option<f64> {
    let ideal = it.ideal.ticks().max(1) as f64;
    took(it).map(|span| span.ticks() as f64 / ideal)
}

/// The slowest messages that have ended, with their lines in messages.csv.
pub(crate) fn slowest(messages: &[MessageRecord], most: usize) -> Vec<Value> {
    let mut all: Vec<(f64, usize)> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        all.extend(slowdown(message).map(|slowdown| (slowdown, index)));
    }
    all.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    all.truncate(most);
    all.into_iter().map(|(_, index)| record(index + 1, &messages[index])).collect()
}

/// The state of a lane.
pub(crate) fn picture(picture: &Picture) -> Value {
    let Picture { at, state, before, speed, messages, slowest, waits, end } = picture;
    // The statistics of links begin again after the warm-up.
    let before = before.as_ref().filter(|before| before.state.since == state.since);
    let from = before.map_or(state.since, |before| before.at);
    let span = at.since(from.min(*at)).ticks().max(1) as f64;
    let util = state.links.iter().enumerate().map(|(nth, link)| {
        let earlier = before.and_then(|before| before.state.links.get(nth));
        let busy = link.busy.ticks().saturating_sub(earlier.map_or(0, |it| it.busy.ticks()));
        thousandths(busy as f64 / span)
    });
    let total = |bytes: &[u64]| bytes.iter().sum::<u64>();
    let goodput = state.goodput.bytes.iter().enumerate().map(|(nth, bytes)| {
        let earlier = picture.before.as_ref();
        let was = earlier.and_then(|it| it.state.goodput.bytes.get(nth)).map_or(0, |it| total(it));
        let since = earlier.map_or(Time::ZERO, |it| it.at);
        let seconds = at.since(since.min(*at)).as_secs_f64();
        (total(bytes) - was.min(total(bytes))) as f64 * 8.0 / 1e9 / seconds.max(1e-12)
    });
    json!({
        "at_ns": ns(*at),
        "waits": waits,
        "end": end.map(end_name),
        "speed": speed,
        "interval_ns": span * Span::TICK.as_us_f64() * 1e3,
        "util": util.collect::<Vec<_>>(),
        "queue": state.links.iter().map(|link| link.queue_bytes).collect::<Vec<_>>(),
        "drops": state.links.iter().map(|link| link.drops).collect::<Vec<_>>(),
        "goodput_gbps": goodput.collect::<Vec<_>>(),
        "series": {
            "interval_ns": ns(Time::ZERO + state.goodput.interval),
            "bytes": &state.goodput.bytes,
        },
        "started": state.messages.0,
        "ended": state.messages.1,
        "wanted": state.wanted,
        "unfinished": state.unfinished,
        "backlog": state.backlog,
        "packets": state.packets,
        "events": state.counters.events,
        "all_drops": state.counters.dropped(),
        "marks": state.counters.ecn_marks,
        "trims": state.counters.trims,
        "waiting": state.waiting.iter().map(waiting).collect::<Vec<_>>(),
        "messages": messages.as_ref().map(|all| all.len()),
        "slowest": &**slowest,
    })
}

pub(crate) fn outcome(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Finished { table, .. } => json!({ "state": "finished", "text": table }),
        Outcome::Stopped => json!({ "state": "stopped", "text": "" }),
        Outcome::Failed(why) => json!({ "state": "failed", "text": why }),
    }
}

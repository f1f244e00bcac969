//! How long a run with open-loop load goes on after its last measured message has started: until the longest of them have ended.
//!
//! Every link of a host is taken for a queue that serves the message with the least left first, at a rate below that of the link.
//! A long message then waits for all shorter ones that arrive meanwhile, at its sender's link and at its receiver's, and the run for the
//! unluckiest long message of all hosts.
//!
//! The messages are the very ones that the run draws from its seed: how long it takes depends on a few messages of a heavy-tailed
//! distribution, so that a mean over seeds can be wrong by two for one of them. Where there are too many to draw, they are drawn from
//! streams of random numbers of this estimate, for the links that matter or for a share of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rackweave_core::{HostId, Rng, Span};
use rackweave_workload::{Generator, SizeDist};

/// The share of a link that transports use under load: fitted to the runs of the test `estimates_are_within_twice_what_runs_took`.
const USED_SHARE: f64 = 0.95;
/// The highest load of a queue. Near 1 the time is without bound, and depends on details that the queues do not have.
const MAX_LOAD: f64 = 0.98;
/// The number of times that a share of the links is simulated; the estimate is the mean.
const RUNS: u64 = 2;
/// The most messages until the last measured one that are drawn as the run draws them. With more the links are alike, and a share of
/// them is simulated.
const MAX_MEASURED: f64 = 1e6;
/// The most messages that are drawn as the run draws them, which takes about 0.2 s. What follows is drawn for the links that matter only.
const MAX_DRAWN: u64 = 2_000_000;
/// The number of messages that are drawn at a time once all measured ones have started.
const AT_A_TIME: f64 = 100_000.0;

/// The number of all messages that are not measured.
const OTHER: u32 = u32::MAX;

/// The load for which the end of a run is estimated.
pub(crate) struct Load<'a> {
    pub(crate) sizes: &'a SizeDist,
    /// Bytes on the link of a message of a size, with what is sent back for it.
    pub(crate) wire_bytes: &'a dyn Fn(u64) -> f64,
    /// For the links of senders, and for those of receivers: their number, and the messages of each in a second.
    pub(crate) links: [(u64, f64); 2],
    /// What the run draws its messages from.
    pub(crate) generator: Generator,
    pub(crate) hosts: u32,
    /// The number of measured messages; `None` for all that start between the warm-up and `last_start`.
    pub(crate) messages: Option<u64>,
    /// The rate of the narrowest links, as a share of a host.
    pub(crate) link_bps: f64,
    /// What other traffic takes of it.
    pub(crate) taken_bps: f64,
    pub(crate) warmup: Span,
    /// When the last measured message starts, on average over seeds.
    pub(crate) last_start: Span,
    /// Whether the load ends then; otherwise it goes on until the last measured message has ended, or until `stop`.
    pub(crate) is_stopped: bool,
    pub(crate) stop: Span,
    pub(crate) time_limit: Span,
}

/// A message at a link.
#[derive(Clone, Copy)]
struct Arrival {
    at: f64,
    bits: u64,
    is_measured: bool,
}

/// A measured message, with the time that it spends at its two links.
struct Measured {
    start: f64,
    bits: u64,
    at_links: f64,
}

/// A message of the run, with its sender and its receiver.
struct Message {
    arrival: Arrival,
    ends: [HostId; 2],
}

impl Load<'_> {
    /// Returns the time at which the last measured message ends.
    pub(crate) fn end(mut self) -> Span {
        let drawn = self.rate() * self.last_start.as_secs_f64();
        let seconds =
            if drawn <= MAX_MEASURED { self.end_of_drawn() } else { self.end_of_share(drawn) };
        Span::from_secs_f64(seconds).min(self.time_limit)
    }

    /// Returns the number of messages in a second.
    const fn rate(&self) -> f64 {
        self.links[0].0 as f64 * self.links[0].1
    }

    /// Returns when the last of the messages that the run measures ends, in seconds.
    fn end_of_drawn(&mut self) -> f64 {
        let mut next: Vec<Option<Message>> =
            (0..self.hosts).map(|host| self.draw(HostId(host))).collect();
        let bps = self.bps();
        let mut links = [const { Vec::new() }; 2];
        for queues in &mut links {
            queues.resize_with(self.hosts as usize, || Queue::new(bps));
        }
        let (limit, mut until) = (self.time_limit.as_secs_f64(), self.last_start.as_secs_f64());
        let (mut left, mut last_start, mut drawn) = (self.messages, 0.0, 0);
        let (mut measured, mut have_started): (Vec<Measured>, _) = (Vec::new(), false);
        loop {
            let mut messages = Vec::new();
            // What waits behind nothing that is measured delays nothing that is.
            let delays = |message: &Message| {
                let mut queues = links.iter().zip(message.ends);
                queues.any(|(queues, host)| queues[host.0 as usize].measured > 0)
            };
            for host in (0..self.hosts).map(HostId) {
                while let Some(message) =
                    next[host.0 as usize].take_if(|next| next.arrival.at <= until)
                {
                    drawn += 1;
                    if !have_started || delays(&message) {
                        messages.push(message);
                    }
                    next[host.0 as usize] = self.draw(host);
                }
            }
            messages.sort_by(|a, b| a.arrival.at.total_cmp(&b.arrival.at));
            for Message { mut arrival, ends } in messages {
                let has_started =
                    left.map_or(arrival.at > self.last_start.as_secs_f64(), |left| left == 0);
                if has_started && self.is_stopped {
                    continue;
                }
                arrival.is_measured &= !has_started;
                if arrival.is_measured {
                    left = left.map(|left| left - 1);
                    last_start = arrival.at;
                    let Arrival { at: start, bits, .. } = arrival;
                    measured.push(Measured { start, bits, at_links: 0.0 });
                }
                let number = measured.len().saturating_sub(1) as u32;
                for (queues, host) in links.iter_mut().zip(ends) {
                    let queue = &mut queues[host.0 as usize];
                    if !has_started || queue.measured > 0 {
                        queue.serve_until(arrival.at);
                        queue.push(arrival, number);
                    }
                }
            }
            have_started = left.is_none_or(|left| left == 0);
            let is_over = next.iter().all(Option::is_none) || have_started && self.is_stopped;
            let mut queues = links.iter_mut().flatten().filter(|queue| queue.measured > 0);
            if is_over {
                queues.for_each(|queue| queue.serve_until(f64::INFINITY));
            } else if !have_started || queues.any(|queue| queue.is_measured_at(until)) {
                if until >= limit {
                    return limit;
                }
                if drawn > MAX_DRAWN && have_started {
                    if !self.drain(&mut links, until, last_start) {
                        return limit;
                    }
                } else {
                    until = (until + AT_A_TIME / self.rate()).min(limit);
                    continue;
                }
            }
            for &(number, end) in links.iter().flatten().flat_map(|queue| &queue.ended) {
                let message = &mut measured[number as usize];
                message.at_links += end - message.start;
            }
            // It is sent and received at once, while neither link is taken by another: the waits add up, and the time that it takes
            // by itself is in both.
            let end =
                |message: &Measured| message.start + message.at_links - message.bits as f64 / bps;
            return measured.iter().map(end).fold(last_start, f64::max);
        }
    }

    /// Draws the next message of a host.
    fn draw(&mut self, host: HostId) -> Option<Message> {
        let arrival = self.generator.next(host)?;
        let at = Span::from_ticks(arrival.at.ticks());
        let bits = ((self.wire_bytes)(arrival.bytes) * 8.0) as u64;
        let is_measured = at >= self.warmup;
        let ends = [host, arrival.dst];
        Some(Message { arrival: Arrival { at: at.as_secs_f64(), bits, is_measured }, ends })
    }

    /// Goes on with messages that are not those of the run from `now` on, until no measured ones are left. Returns whether they ended
    /// in time.
    fn drain(&self, links: &mut [Vec<Queue>; 2], now: f64, last_start: f64) -> bool {
        let mut are_over = true;
        for (kind, (queues, (_, rate))) in (0..).zip(links.iter_mut().zip(self.links)) {
            for (number, queue) in (0..).zip(queues) {
                let mut rng = Rng::stream(1, 0, kind << 32 | number, "estimate");
                let first = now + rng.exponential(1.0 / rate);
                self.last_end(queue, first, rate, last_start, rng);
                are_over &= queue.measured == 0;
            }
        }
        are_over
    }

    /// Returns when the last measured message ends, in seconds: the mean over draws of messages for a share of the links.
    fn end_of_share(&self, drawn: f64) -> f64 {
        let bps = self.bps();
        let share = MAX_MEASURED / (drawn * RUNS as f64 * 2.0);
        let last_start = self.last_start.as_secs_f64();
        let mut sum = 0.0;
        for run in 0..RUNS {
            let mut last = last_start;
            for (kind, (links, rate)) in (0..).zip(self.links) {
                let simulated = ((links as f64 * share).ceil() as u64).max(1);
                for number in 0..simulated {
                    let mut rng = Rng::stream(1, run, kind << 32 | number, "estimate");
                    let first = rng.exponential(1.0 / rate);
                    let mut queue = Queue::new(bps);
                    last = last.max(self.last_end(&mut queue, first, rate, last_start, rng));
                }
            }
            sum += last;
        }
        sum / RUNS as f64
    }

    /// Returns the rate at which a link serves messages.
    fn bps(&self) -> f64 {
        let mean = self.sizes.mean_of(self.wire_bytes);
        let busiest = self.links.iter().map(|(_, rate)| rate * mean * 8.0).fold(0.0, f64::max);
        (self.link_bps * USED_SHARE - self.taken_bps).max(busiest / MAX_LOAD)
    }

    /// Returns when the last measured message of a link ends, in seconds, with arrivals that are drawn from `next` on; 0 without any.
    fn last_end(
        &self,
        queue: &mut Queue,
        mut next: f64,
        rate: f64,
        last_start: f64,
        mut rng: Rng,
    ) -> f64 {
        let (warmup, limit) = (self.warmup.as_secs_f64(), self.time_limit.as_secs_f64());
        let stop = if self.is_stopped { last_start } else { self.stop.as_secs_f64() };
        while (queue.measured > 0 || next <= last_start) && queue.now <= limit {
            if next > stop {
                queue.serve_until(f64::INFINITY);
                break;
            }
            queue.serve_until(next);
            let bits = ((self.wire_bytes)(self.sizes.sample(&mut rng)) * 8.0) as u64;
            let is_measured = (warmup..=last_start).contains(&next);
            queue.push(Arrival { at: next, bits, is_measured }, 0);
            next += rng.exponential(1.0 / rate);
        }
        if queue.measured > 0 { limit } else { queue.ended.last().map_or(0.0, |(_, end)| *end) }
    }
}

/// A link that serves the message with the least left first.
#[derive(Clone)]
struct Queue {
    bps: f64,
    now: f64,
    /// The bits that are left of its messages, and the numbers of the measured ones. Of two with the same bits left, measured ones
    /// come first, as they came before most others.
    left: BinaryHeap<Reverse<(u64, u32)>>,
    /// The number of measured messages that have not ended.
    measured: u64,
    /// The measured ones that have ended, and when.
    ended: Vec<(u32, f64)>,
}

impl Queue {
    const fn new(bps: f64) -> Self {
        Self { bps, now: 0.0, left: BinaryHeap::new(), measured: 0, ended: Vec::new() }
    }

    /// Adds a message, which is the measured one of this number if it is measured.
    fn push(&mut self, arrival: Arrival, number: u32) {
        self.measured += u64::from(arrival.is_measured);
        let number = if arrival.is_measured { number } else { OTHER };
        self.left.push(Reverse((arrival.bits, number)));
    }

    /// Serves messages until a time, and returns whether measured ones are left.
    fn is_measured_at(&mut self, time: f64) -> bool {
        self.serve_until(time);
        self.measured > 0
    }

    fn serve_until(&mut self, time: f64) {
        while let Some(Reverse((bits, number))) = self.left.pop() {
            let end = self.now + bits as f64 / self.bps;
            if end > time {
                let left = bits.saturating_sub(((time - self.now) * self.bps) as u64).max(1);
                self.left.push(Reverse((left, number)));
                break;
            }
            self.now = end;
            if number != OTHER {
                self.measured -= 1;
                self.ended.push((number, end));
            }
        }
        // With nothing left the link is idle until then.
        if time.is_finite() {
            self.now = time;
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Time;
    use rackweave_workload::{LoadCounts, Pattern, WorkloadConfig};

    use super::*;

    fn end(sizes: &SizeDist, load: f64) -> f64 {
        end_with(sizes, load, Span::MAX)
    }

    fn end_with(sizes: &SizeDist, load: f64, stop: Span) -> f64 {
        load_of(sizes, load, stop).end().as_us_f64()
    }

    fn load_of(sizes: &SizeDist, load: f64, stop: Span) -> Load<'_> {
        let rate = load * 25e9 / 8.0 / sizes.mean();
        let pattern = Pattern::OpenLoop { sizes: sizes.clone(), load, counts: LoadCounts::Payload };
        let config = WorkloadConfig { stop, ..WorkloadConfig::new(pattern) };
        let gap = Span::from_secs_f64(1.0 / rate);
        Load {
            sizes,
            wire_bytes: &|bytes| bytes as f64,
            links: [(64, rate), (64, rate)],
            generator: Generator::new(&config, 64, Some(gap), 1, 0, 0).unwrap(),
            hosts: 64,
            messages: None,
            link_bps: 25e9,
            taken_bps: 0.0,
            warmup: Span::from_ms(1),
            last_start: Span::from_ms(2).min(stop),
            is_stopped: false,
            stop,
            time_limit: Span::from_secs(10),
        }
    }

    #[test]
    fn short_messages_end_at_once_and_long_ones_wait_for_the_short_ones() {
        // A packet takes half a microsecond, and few of them meet.
        let short = end(&SizeDist::fixed(1500).unwrap(), 0.5);
        assert!((2000.0..2020.0).contains(&short), "{short}");
        let w3 = SizeDist::named("W3").unwrap();
        let (low, high) = (end(&w3, 0.3), end(&w3, 0.8));
        // 15 MB take 4.9 ms, if any of them is measured.
        assert!(low > 2100.0 && high > low * 1.5, "{low} {high}");
    }

    #[test]
    fn long_messages_end_sooner_if_no_others_follow() {
        let w3 = SizeDist::named("W3").unwrap();
        let (goes_on, stops) = (end(&w3, 0.8), end_with(&w3, 0.8, Span::from_ms(2)));
        assert!(stops > 2000.0 && stops < goes_on, "{stops} {goes_on}");
        // What has not started by then does not count.
        assert!(end_with(&w3, 0.8, Span::from_us(1500)) < stops);
    }

    /// Runs with other seeds have other longest messages, and end at other times.
    #[test]
    fn the_messages_are_those_of_the_run() {
        let w3 = SizeDist::named("W3").unwrap();
        let mut load = load_of(&w3, 0.5, Span::MAX);
        let mut sizes = Vec::new();
        let mut generator = load.generator.clone();
        for host in (0..64).map(HostId) {
            let until = Time::ZERO + load.last_start;
            while let Some(arrival) = generator.next(host).filter(|arrival| arrival.at <= until) {
                sizes.extend((arrival.at >= Time::ZERO + load.warmup).then_some(arrival.bytes));
            }
        }
        load.messages = Some(sizes.len() as u64);
        let all = load.end();
        // The longest of them cannot end earlier, whatever else there is.
        let longest = *sizes.iter().max().unwrap() as f64 * 8.0 / (25e9 * USED_SHARE);
        assert!(all.as_secs_f64() > longest + 0.001, "{all:?} {longest}");
        // One message ends when it has been sent.
        let mut load = load_of(&w3, 0.5, Span::MAX);
        load.messages = Some(1);
        let one = load.end().as_us_f64();
        assert!((1000.0..1100.0).contains(&one), "{one}");
    }

    #[test]
    fn a_load_beyond_the_link_still_has_an_end() {
        let w3 = SizeDist::named("W3").unwrap();
        assert!(end(&w3, 1.0) <= 10e6);
    }
}

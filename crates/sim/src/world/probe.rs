//! Statistics of links and queues, samples over time, captures.

use rackweave_core::{PacketRef, Span, Time, Transport};

use super::World;
use crate::config::CapturePort;
use crate::result::{CapturedPacket, End, LinkReport, QueueSample, RunResult};

/// What is counted at the port before a link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkStats {
    /// Integral of waiting bytes over time, in byte picoseconds.
    area: u128,
    changed_at: Time,
    max_bytes: u64,
    pub(super) drops: u64,
}

impl LinkStats {
    /// The queue goes from `before` to `after` bytes.
    #[inline]
    pub(super) fn queue_changes(&mut self, now: Time, before: u64, after: u64) {
        self.area += u128::from(before) * u128::from(now.since(self.changed_at).0);
        self.changed_at = now;
        self.max_bytes = self.max_bytes.max(after);
    }
}

/// What is recorded while the run goes on.
#[derive(Debug)]
pub(super) struct Probe<H> {
    series: Vec<QueueSample>,
    /// Since when ports are measured.
    ports_since: Option<Time>,
    /// Interface of each captured link.
    captured_links: Vec<(u32, u32)>,
    names: Vec<String>,
    packets: Vec<CapturedPacket<H>>,
}

impl<H> Default for Probe<H> {
    fn default() -> Self {
        let (series, captured_links, names) = (Vec::new(), Vec::new(), Vec::new());
        Self { series, ports_since: None, captured_links, names, packets: Vec::new() }
    }
}

impl<T: Transport> World<'_, T> {
    pub(super) fn start_probes(&mut self) {
        for port in &self.measure.capture {
            let links = match *port {
                CapturePort::HostSends(host) => vec![host.0],
                CapturePort::HostReceives(host) => vec![self.fabric.downlink(host)],
                CapturePort::CoreLink(cable) => {
                    let (up, down) = self.fabric.core_links()[cable as usize];
                    vec![up, down]
                }
            };
            for link in links {
                self.probe.captured_links.push((link, self.probe.names.len() as u32));
                self.probe.names.push(self.fabric.link_name(link));
                self.links[link as usize].special = true;
            }
        }
        self.events.push(Time(self.measure.warmup.0), self.components.measure);
        if let Some(from) = self.measure.ports_from {
            self.events.push(Time(from.0), self.components.ports);
        }
        if self.measure.sample_every > Span::ZERO {
            self.events.push(Time::ZERO, self.components.sample);
        }
    }

    /// Whether packets on a link are kept.
    pub(super) fn captures(&self, link: u32) -> bool {
        self.probe.captured_links.iter().any(|(captured, _)| *captured == link)
    }

    /// Makes all decisions that were due by now.
    fn settle_all(&mut self) {
        for host in 0..self.hosts.len() as u32 {
            self.settle(host);
        }
        for link in self.hosts.len() as u32..self.links.len() as u32 {
            self.catch_up(link, self.now);
        }
    }

    /// The warm-up is over: messages count.
    pub(super) fn on_measure(&mut self) {
        if self.measure.ports_from.is_none() {
            self.on_ports();
        }
    }

    /// Statistics of ports begin.
    pub(super) fn on_ports(&mut self) {
        let now = self.now;
        self.probe.ports_since = Some(now);
        self.settle_all();
        for (link, stats) in self.links.iter_mut().zip(&mut self.stats) {
            *stats = LinkStats { changed_at: now, ..LinkStats::default() };
            link.busy = link.busy_until.since(now);
        }
        for (link, stats) in self.links.iter().zip(&mut self.stats) {
            stats.max_bytes = link.queue.bytes();
        }
    }

    /// Looks at all queues.
    pub(super) fn on_sample(&mut self) {
        let (mut max_bytes, mut total_bytes) = (0, 0);
        for link in self.hosts.len() as u32..self.links.len() as u32 {
            self.catch_up(link, self.now);
            let bytes = self.links[link as usize].queue.bytes();
            max_bytes = bytes.max(max_bytes);
            total_bytes += bytes;
        }
        self.probe.series.push(QueueSample { at: self.now, max_bytes, total_bytes });
        // Sampling alone must not keep a run alive that has nothing else to do.
        if !self.events.is_empty() {
            self.events.push(self.now + self.measure.sample_every, self.components.sample);
        }
    }

    /// Keeps a packet, if its link is captured and there is room.
    #[cold]
    pub(super) fn capture(&mut self, link: u32, packet: PacketRef, at: Time) {
        if self.probe.packets.len() >= self.measure.capture_limit {
            return;
        }
        for (captured, interface) in &self.probe.captured_links {
            if *captured == link {
                let packet = *self.pool.get(packet);
                let interface = *interface;
                self.probe.packets.push(CapturedPacket { at, interface, packet });
            }
        }
    }

    /// All that the run found out.
    pub(super) fn report(mut self, end: End) -> RunResult<T::Header> {
        let now = self.now;
        self.settle_all();
        if self.probe.ports_since.is_none() {
            // The run ended before: nothing was measured.
            self.stats.fill(LinkStats { changed_at: now, ..LinkStats::default() });
            for link in &mut self.links {
                link.busy = link.busy_until.since(now);
            }
        }
        let since = Time(self.measure.warmup.0).min(now);
        let until = if end == End::AllDone { self.apps.last_end().unwrap_or(since).max(since) } else { now };
        let observed = now.since(self.probe.ports_since.unwrap_or(now)).0.max(1);
        let n_hosts = self.hosts.len();
        let mut links = Vec::with_capacity(self.links.len());
        for (number, link) in self.links.iter().enumerate() {
            let mut stats = self.stats[number];
            stats.queue_changes(now, link.queue.bytes(), link.queue.bytes());
            // What is still being sent counts up to now only.
            let busy = link.busy.0.saturating_sub(link.busy_until.since(now).0);
            links.push(LinkReport {
                name: self.fabric.link_name(number as u32),
                utilisation: busy as f64 / observed as f64,
                mean_queue_bytes: stats.area as f64 / observed as f64,
                max_queue_bytes: stats.max_bytes,
                drops: stats.drops,
            });
        }
        let ports = links.get(n_hosts..).unwrap_or_default();
        let mut capture = std::mem::take(&mut self.probe.packets);
        // Decisions are made lazily, so links are not captured in the order of time.
        capture.sort_by_key(|packet| (packet.at, packet.interface));
        RunResult {
            end,
            ended_at: now,
            measured: until.since(since),
            messages: self.records(),
            delivered_bytes: self.apps.delivered_bytes(),
            delivered_by_sender: self.apps.delivered_by_sender(),
            round_trips: self.round_trips(),
            mean_queue_bytes: ports.iter().map(|port| port.mean_queue_bytes).sum::<f64>()
                / ports.len().max(1) as f64,
            max_queue_bytes: ports.iter().map(|port| port.max_queue_bytes).max().unwrap_or(0),
            links,
            counters: self.counters,
            queue_series: self.probe.series,
            capture_names: self.probe.names,
            capture,
            peak_packets: self.pool.capacity_used() as u64,
            verified_messages: self.apps.verified(),
        }
    }
}

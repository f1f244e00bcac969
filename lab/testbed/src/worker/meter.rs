//! What a host with jobs does during their uploads.

use rackweave_core::Time;
use rackweave_linux::Clock;
use rackweave_reduce::Net;

use super::{process_cpu_s, sleeps};
use crate::protocol::HostWork;

/// The system calls of a host's socket that have sent packets, and that have received some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    pub(super) sent: u64,
    pub(super) received: u64,
}

impl Calls {
    pub(super) const fn of(net: &Net) -> Self {
        let driver = net.driver();
        Self { sent: driver.stats().send_calls, received: driver.receive_batches() }
    }
}

/// Measures the work of a process from its first packet to the end of its last upload. Before that a worker draws its text, and after it a
/// master compares the result with the text: neither is a cost of pairs.
#[derive(Debug)]
pub(super) struct UploadMeter {
    /// The clock of processor time.
    cpu_s: fn() -> f64,
    /// When the first packet was sent, and the processor time and the sleeps until then.
    began: Option<(Time, f64, u64)>,
    /// What was sent and received until now.
    counts: HostWork,
    /// Processor time that is no part of the work.
    excluded_s: f64,
    /// The work until the last upload ended.
    ended: Option<HostWork>,
}

impl Default for UploadMeter {
    fn default() -> Self {
        Self {
            cpu_s: process_cpu_s,
            began: None,
            counts: HostWork::default(),
            excluded_s: 0.0,
            ended: None,
        }
    }
}

impl UploadMeter {
    /// Counts a packet that the host sends, with this number of pairs. The first one begins the measurement.
    pub(super) fn sent(&mut self, clock: Clock, pairs: u32) {
        self.began.get_or_insert_with(|| (clock.now(), (self.cpu_s)(), sleeps()));
        self.counts.sent += 1;
        self.counts.sent_pairs += u64::from(pairs);
    }

    /// Counts a packet that the host has received, with this number of pairs.
    pub(super) fn received(&mut self, pairs: u32) {
        self.counts.received += 1;
        self.counts.received_pairs += u64::from(pairs);
    }

    /// An upload has ended: what follows counts if another one does.
    pub(super) fn end(&mut self, clock: Clock, calls: Calls) {
        self.ended = self.now(clock, calls).or(self.ended);
    }

    /// Runs something whose processor time is no part of the work.
    pub(super) fn exclude<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = (self.cpu_s)();
        let result = work();
        self.excluded_s += (self.cpu_s)() - before;
        result
    }

    /// Returns the work until the end of the last upload, or until now if none has ended.
    pub(super) fn work(&self, clock: Clock, calls: Calls) -> HostWork {
        self.ended.or_else(|| self.now(clock, calls)).unwrap_or_default()
    }

    /// Returns the work until now; `None` before the first packet.
    fn now(&self, clock: Clock, calls: Calls) -> Option<HostWork> {
        let (at, cpu_s, slept) = self.began?;
        Some(HostWork {
            seconds: clock.now().since(at).as_secs_f64(),
            cpu_s: (self.cpu_s)() - cpu_s - self.excluded_s,
            sleeps: sleeps().saturating_sub(slept),
            send_calls: calls.sent,
            receive_batches: calls.received,
            ..self.counts
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A processor's time that passes by a millisecond whenever it is read. Other tests are threads of the same process.
    fn ticking() -> f64 {
        thread_local!(static READ: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });
        READ.set(READ.get() + 1);
        f64::from(READ.get()) / 1e3
    }

    #[test]
    fn work_counts_from_the_first_packet_to_the_end_of_the_upload_without_what_is_excluded() {
        let clock = Clock::start();
        let calls = |sent| Calls { sent, received: sent / 2 };
        let mut meter = UploadMeter { cpu_s: ticking, ..UploadMeter::default() };
        assert_eq!(meter.work(clock, calls(7)).send_calls, 0, "nothing has begun");
        meter.end(clock, calls(1));
        (0..100).for_each(|_| _ = ticking());
        meter.sent(clock, 0);
        meter.sent(clock, 64);
        meter.received(3);
        meter.exclude(|| (0..100).for_each(|_| _ = ticking()));
        ticking();
        meter.end(clock, calls(2));
        ticking();
        meter.sent(clock, 5);
        let work = meter.work(clock, calls(9));
        // Since the first packet the time was read once before what is excluded, and twice after it.
        assert!((work.cpu_s - 0.003).abs() < 1e-9, "{work:?}");
        let counts = [work.sent, work.sent_pairs, work.received, work.received_pairs];
        assert_eq!((counts, work.send_calls, work.receive_batches), ([2, 64, 1, 3], 2, 1));
        meter.end(clock, calls(9));
        let work = meter.work(clock, calls(10));
        assert_eq!((work.sent, work.send_calls), (3, 9));
    }
}

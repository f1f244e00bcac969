//! The traffic engineering database: from registered jobs and from the counters of `ToR`s, the demand of a series of periods.

use std::collections::BTreeMap;

use rackweave_core::{Rate, Span, Time};

use crate::cost::transfer_time;
use crate::demand::{Broadcast, DemandError, Flow, JobId, Period, Upload};
use crate::jobs::{Distribution, Job};

/// The bits after the point of the averages.
const FRACTION: u32 = 8;
/// An average with the newest value at one quarter.
const WEIGHT: u64 = 4;
/// The most periods of one forecast.
pub const MAX_PERIODS: usize = 100_000;

/// The database.
#[derive(Clone, Debug)]
pub struct Ted {
    servers: u32,
    server_rate: Rate,
    period: Span,
    /// When the phases of each job are expected.
    jobs: BTreeMap<JobId, (Job, Timeline)>,
    /// The average bytes of a period between servers, in 1/256 bytes.
    background: BTreeMap<(u32, u32), u64>,
}

/// The phases of a job in time, at the rate of the servers' links and without other traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The start and end of the distribution of the input.
    pub map: (Time, Time),
    /// The start and end of the transfers between workers.
    pub shuffle: (Time, Time),
    /// The start and end of the upload.
    pub upload: (Time, Time),
    /// The end of the job.
    pub end: Time,
}

impl Ted {
    /// Creates a database for a pod with `servers` servers and links of this rate, which forecasts in periods of this length.
    ///
    /// # Panics
    /// If the period is empty.
    #[must_use]
    pub fn new(servers: u32, server_rate: Rate, period: Span) -> Self {
        assert!(period > Span::ZERO, "a period must have a length");
        let (jobs, background) = (BTreeMap::new(), BTreeMap::new());
        Self { servers, server_rate, period, jobs, background }
    }

    /// Expects a registered job to start at this time. A job that is known already gets the new time.
    pub fn expect(&mut self, id: JobId, job: Job, start: Time) {
        let timeline = self.timeline(&job, start);
        self.expect_at(id, job, timeline);
    }

    /// Expects the phases of a registered job at these times.
    pub fn expect_at(&mut self, id: JobId, job: Job, timeline: Timeline) {
        self.jobs.insert(id, (job, timeline));
    }

    /// Returns the length of a period.
    #[must_use]
    pub const fn period(&self) -> Span {
        self.period
    }

    /// Forgets a job that has ended.
    pub fn forget(&mut self, id: JobId) {
        self.jobs.remove(&id);
    }

    /// Takes in the counters of one period: the bytes between servers that belong to no registered job. Demand that is not
    /// counted decays.
    pub fn observe(&mut self, counters: &[Flow]) {
        for value in self.background.values_mut() {
            *value -= value.div_ceil(WEIGHT);
        }
        for flow in counters {
            if flow.src < self.servers && flow.dst < self.servers && flow.src != flow.dst {
                let bytes = flow.bytes.min(crate::demand::MAX_TRANSFER_BYTES);
                let value = self.background.entry((flow.src, flow.dst)).or_insert(0);
                *value = value.saturating_add((bytes << FRACTION) / WEIGHT);
            }
        }
        self.background.retain(|_, value| *value >> FRACTION > 0);
    }

    /// Takes in the bytes that each server has sent and received in one period, where a switch counts them by server and not by
    /// pair: the bytes between two servers are taken to be proportional to what the one has sent and the other received (the
    /// gravity model).
    pub fn observe_totals(&mut self, sent: &[u64], received: &[u64]) {
        let all: u128 = received.iter().map(|&bytes| u128::from(bytes)).sum();
        let mut flows = Vec::new();
        for (src, &out) in (0..).zip(sent) {
            // A server does not send to itself.
            let own = received.get(src as usize).copied().unwrap_or(0);
            let others = all - u128::from(own);
            for (dst, &taken) in (0..).zip(received) {
                if src != dst && others > 0 {
                    let bytes = u128::from(out) * u128::from(taken) / others;
                    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                    flows.push(Flow { src, dst, bytes });
                }
            }
        }
        flows.retain(|flow| flow.bytes > 0);
        self.observe(&flows);
    }

    /// Returns when the phases of a job take place if its transfers have the servers' links for themselves and nothing is
    /// aggregated.
    #[must_use]
    pub fn timeline(&self, job: &Job, start: Time) -> Timeline {
        let rate = self.server_rate;
        let workers = job.workers.len() as u64;
        let sent = match job.distribution {
            Distribution::Scatter | Distribution::Multicast => job.input,
            Distribution::Unicast => job.input.saturating_mul(workers),
        };
        let mapped = start.saturating_add(transfer_time(sent, rate));
        let shuffle = mapped.saturating_add(job.map);
        let mut busiest: BTreeMap<(u32, bool), u64> = BTreeMap::new();
        for it in &job.shuffle {
            for key in [(job.workers[it.from], true), (job.workers[it.to], false)] {
                let bytes = busiest.entry(key).or_insert(0);
                *bytes = bytes.saturating_add(it.bytes);
            }
        }
        let most = busiest.values().copied().max().unwrap_or(0);
        let shuffled = shuffle.saturating_add(transfer_time(most, rate));
        let upload = shuffled.saturating_add(job.combine);
        let all = job.upload.iter().fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
        let uploaded = upload.saturating_add(transfer_time(all, rate));
        Timeline {
            map: (start, mapped),
            shuffle: (shuffle, shuffled),
            upload: (upload, uploaded),
            end: uploaded.saturating_add(job.reduce),
        }
    }

    /// Returns the demand of a number of periods from `now` on: the matrix server x server x period, the uploads and
    /// the broadcasts. A phase that lies in several periods is divided in proportion to time.
    ///
    /// # Errors
    /// If a job's transfers are impossible, or too many for one period.
    pub fn forecast(&self, now: Time, periods: usize) -> Result<Vec<Period>, DemandError> {
        let mut parts: Vec<Parts> = Vec::new();
        parts.resize_with(periods.min(MAX_PERIODS), Parts::default);
        for (&(src, dst), value) in &self.background {
            let flow = Flow { src, dst, bytes: value >> FRACTION };
            parts.iter_mut().for_each(|part| part.flows.push(flow));
        }
        for (&id, (job, timeline)) in &self.jobs {
            // Nothing can be said of a job whose workers are not known yet.
            if job.workers.is_empty() {
                continue;
            }
            self.divide(timeline.map, now, &mut parts, |part, share| job.add_map(id, part, share))?;
            self.divide(timeline.shuffle, now, &mut parts, |part, share| {
                for it in &job.shuffle {
                    part.flow(job.workers[it.from], job.workers[it.to], share.of(it.bytes));
                }
                Ok(())
            })?;
            if job.upload.iter().all(|&bytes| bytes == 0) {
                continue;
            }
            let whole = job.upload_of(id)?;
            self.divide(timeline.upload, now, &mut parts, |part, share| {
                let workers = whole.workers().iter().map(|&(it, bytes)| (it, share.of(bytes)));
                let workers: Vec<_> = workers.filter(|it| it.1 > 0).collect();
                let low = workers.iter().map(|it| it.1).max().unwrap_or(0);
                let high = workers.iter().map(|it| it.1).sum();
                if low > 0 {
                    let distinct = share.of(whole.distinct()).clamp(low, high);
                    let upload = Upload::new(id, whole.master(), workers, distinct)?;
                    part.uploads.push(upload.with_master_rate(job.reduce_rate));
                }
                Ok(())
            })?;
        }
        let build =
            |part: Parts| Period::new(self.servers, part.flows, part.uploads, part.broadcasts);
        parts.into_iter().map(build).collect()
    }

    /// Calls `add` for each period that a phase overlaps, with the share of the phase.
    fn divide(
        &self,
        (start, end): (Time, Time),
        now: Time,
        parts: &mut [Parts],
        mut add: impl FnMut(&mut Parts, Share) -> Result<(), DemandError>,
    ) -> Result<(), DemandError> {
        let whole = end.since(start);
        if whole == Span::ZERO || end <= now {
            return Ok(());
        }
        let first = start.since(now).ticks() / self.period.ticks();
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        for (index, part) in parts.iter_mut().enumerate().skip(first) {
            let from = now.saturating_add(self.period.saturating_mul(index as u64));
            let to = from.saturating_add(self.period);
            if from >= end {
                break;
            }
            let (from, to) = (from.max(start).since(start), to.min(end).since(start));
            add(part, Share { from, to, whole })?;
        }
        Ok(())
    }
}

/// A part of a phase, by time.
#[derive(Clone, Copy)]
struct Share {
    from: Span,
    to: Span,
    whole: Span,
}

impl Share {
    /// The bytes of this part. The parts of a phase add up to all of it.
    fn of(self, bytes: u64) -> u64 {
        let until = |time: Span| {
            (u128::from(bytes) * u128::from(time.ticks()) / u128::from(self.whole.ticks())) as u64
        };
        until(self.to) - until(self.from)
    }
}

#[derive(Default)]
struct Parts {
    flows: Vec<Flow>,
    uploads: Vec<Upload>,
    broadcasts: Vec<Broadcast>,
}

impl Parts {
    fn flow(&mut self, src: u32, dst: u32, bytes: u64) {
        if src != dst && bytes > 0 {
            self.flows.push(Flow { src, dst, bytes });
        }
    }
}

impl Job {
    fn add_map(&self, id: JobId, part: &mut Parts, share: Share) -> Result<(), DemandError> {
        let bytes = share.of(self.input);
        match self.distribution {
            Distribution::Scatter => {
                let each = bytes / self.workers.len() as u64;
                self.workers.iter().for_each(|&worker| part.flow(self.master, worker, each));
            }
            Distribution::Unicast => {
                self.workers.iter().for_each(|&worker| part.flow(self.master, worker, bytes));
            }
            Distribution::Multicast => {
                part.broadcasts.push(Broadcast::new(id, self.master, self.workers.clone(), bytes)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Shuffle;
    use crate::jobs::tests::job;

    fn ms(time: u64) -> Time {
        Time::ZERO + Span::from_ms(time)
    }

    #[test]
    fn phases_fall_into_the_periods_that_they_overlap() {
        let mut ted = Ted::new(8, Rate::from_gbps(10), Span::from_ms(50));
        let mut it = job(0, &[1, 2, 3, 4]);
        it.shuffle = vec![Shuffle { from: 0, to: 1, bytes: 12_500_000 }];
        // 80 MB at 10 Gbps: 64 ms. Map until 164 ms, shuffle of 10 ms, combine of 50 ms, upload of 40 MB in 32 ms.
        let timeline = ted.timeline(&it, ms(0));
        assert_eq!(timeline.map, (ms(0), ms(64)));
        assert_eq!(timeline.shuffle, (ms(164), ms(174)));
        assert_eq!(timeline.upload, (ms(224), ms(256)));
        assert_eq!(timeline.end, ms(276));
        ted.expect(JobId(5), it, ms(0));
        let periods = ted.forecast(ms(0), 8).unwrap();
        let bytes: Vec<u64> = periods.iter().map(Period::bytes).collect();
        assert_eq!(bytes, [62_500_000, 17_500_000, 0, 12_500_000, 32_500_000, 7_500_000, 0, 0]);
        assert_eq!(periods[3].flows(), [Flow { src: 1, dst: 2, bytes: 12_500_000 }]);
        let [last] = periods[5].uploads() else { panic!("{periods:?}") };
        assert_eq!(last.workers().len(), 4);
        // Later, the first periods are over.
        let later = ted.forecast(ms(200), 2).unwrap();
        assert_eq!(later[0], periods[4]);
        ted.forget(JobId(5));
        assert_eq!(ted.forecast(ms(0), 8).unwrap(), vec![Period::default(); 8]);
    }

    #[test]
    fn multicast_is_a_broadcast_and_unicast_is_not() {
        for (distribution, bytes) in [
            (Distribution::Scatter, 80_000_000),
            (Distribution::Unicast, 320_000_000),
            (Distribution::Multicast, 320_000_000),
        ] {
            let mut ted = Ted::new(8, Rate::from_gbps(10), Span::from_secs(10));
            let mut it = job(0, &[1, 2, 3, 4]);
            it.distribution = distribution;
            it.upload = vec![0; 4];
            ted.expect(JobId(1), it, ms(0));
            let period = ted.forecast(ms(0), 1).unwrap().remove(0);
            assert_eq!(period.bytes(), bytes, "{distribution:?}");
            let broadcasts = usize::from(distribution == Distribution::Multicast);
            assert_eq!(period.broadcasts().len(), broadcasts);
        }
    }

    #[test]
    fn totals_of_servers_are_divided_among_pairs() {
        let mut ted = Ted::new(4, Rate::from_gbps(10), Span::from_ms(50));
        ted.observe_totals(&[4000, 0, 0, 0], &[0, 3000, 1000, 0]);
        let period = ted.forecast(ms(0), 1).unwrap().remove(0);
        let of = |dst, bytes| Flow { src: 0, dst, bytes };
        assert_eq!(period.flows(), [of(1, 750), of(2, 250)], "a quarter of each, as averages have");
    }

    #[test]
    fn counters_are_averaged_and_decay() {
        let mut ted = Ted::new(4, Rate::from_gbps(10), Span::from_ms(50));
        let counters = [
            Flow { src: 0, dst: 1, bytes: 4000 },
            Flow { src: 9, dst: 1, bytes: 4000 },
            Flow { src: 2, dst: 2, bytes: 4000 },
            Flow { src: 3, dst: 1, bytes: u64::MAX },
        ];
        ted.observe(&counters[..3]);
        let bytes = |ted: &Ted| ted.forecast(ms(0), 2).unwrap()[1].bytes();
        assert_eq!(bytes(&ted), 1000);
        (0..40).for_each(|_| ted.observe(&counters[..3]));
        assert!((3990..=4000).contains(&bytes(&ted)), "{}", bytes(&ted));
        (0..60).for_each(|_| ted.observe(&[]));
        assert_eq!(bytes(&ted), 0);
        (0..60).for_each(|_| ted.observe(&counters));
        assert!(ted.forecast(ms(0), 2).is_ok(), "counters are bounded");
    }
}

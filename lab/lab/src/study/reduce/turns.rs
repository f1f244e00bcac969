//! How the uploads of jobs follow one another.

use rackweave_core::Time;

use super::job::{Job, Record};

/// How the uploads of jobs follow one another. Shares without a base are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turns {
    /// The share of the time of uploads in which more than one was under way.
    pub(super) overlap: f64,
    /// Of two uploads in succession, the share that are of different groups.
    pub(super) alternation: f64,
    /// The share of the time of uploads in which a job of another group was before its upload.
    pub(super) beside_map: f64,
}

/// An upload, and the time before it in which the job's data were sent and mapped.
struct Phases {
    group: usize,
    start: Time,
    ready: Time,
    granted: Time,
    uploaded: Time,
}

impl Turns {
    /// Job `i` is of group `i` modulo the number of groups; without groups each job is one.
    pub(super) fn of(jobs: &[(Job, Record)], groups: usize) -> Self {
        let phases = |(job, record): &(Job, Record)| {
            let number = usize::from(job.number);
            Some(Phases {
                group: number.checked_rem(groups).unwrap_or(number),
                start: record.started?,
                ready: record.ready?,
                granted: record.granted?,
                uploaded: record.uploaded?,
            })
        };
        let mut all: Vec<Phases> = jobs.iter().filter_map(phases).collect();
        all.sort_by_key(|job| (job.granted, job.uploaded));
        let mut times: Vec<Time> =
            all.iter().flat_map(|job| [job.start, job.ready, job.granted, job.uploaded]).collect();
        times.sort_unstable();
        times.dedup();
        let (mut some, mut several, mut beside) = (0.0, 0.0, 0.0);
        for slice in times.windows(2) {
            let (from, length) = (slice[0], slice[1].since(slice[0]).as_secs_f64());
            let uploads = || all.iter().filter(|job| job.granted <= from && from < job.uploaded);
            let Some(first) = uploads().next() else { continue };
            some += length;
            if uploads().count() > 1 {
                several += length;
            }
            let maps = |job: &Phases| job.start <= from && from < job.ready;
            if all.iter().any(|job| job.group != first.group && maps(job)) {
                beside += length;
            }
        }
        let changes = all.windows(2).filter(|pair| pair[0].group != pair[1].group).count();
        Self {
            overlap: several / some,
            alternation: changes as f64 / all.len().saturating_sub(1) as f64,
            beside_map: beside / some,
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{HostId, Span};

    use super::*;

    fn job(number: u16, [start, ready, granted, uploaded]: [u64; 4]) -> (Job, Record) {
        let at = |seconds| Some(Time::ZERO + Span::from_secs(seconds));
        let record = Record {
            started: at(start),
            ready: at(ready),
            granted: at(granted),
            uploaded: at(uploaded),
            ..Record::default()
        };
        let (start, master) = (Time::ZERO, HostId(0));
        (Job { number, start, master, workers: vec![HostId(1)], bytes: 1 }, record)
    }

    #[test]
    fn groups_that_take_turns_map_while_the_other_uploads() {
        let jobs = [job(0, [0, 10, 10, 20]), job(1, [0, 15, 20, 30]), job(2, [20, 30, 30, 40])];
        let turns = Turns::of(&jobs, 2);
        let expected = Turns { overlap: 0.0, alternation: 1.0, beside_map: 15.0 / 30.0 };
        assert_eq!(turns, expected);
        // Of one group they do not alternate.
        assert_eq!(Turns::of(&jobs, 1).alternation, 0.0);
        let both = [job(0, [0, 10, 10, 20]), job(1, [0, 15, 15, 25])];
        assert_eq!(Turns::of(&both, 2).overlap, 5.0 / 15.0);
        assert!(Turns::of(&[], 2).overlap.is_nan());
    }
}

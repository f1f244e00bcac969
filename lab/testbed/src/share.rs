//! What the processes of a point get of the machine: their waits for a processor, and the time that the hypervisor steals.

use std::collections::BTreeMap;
use std::path::Path;

use rackweave_core::{Span, Time};
use rackweave_lab::results::MachineShare;

use super::process::Workers;
use super::protocol::Role;

/// The counters of the kernel at a moment.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    at: Time,
    /// For each thread of each process, the time for which it was ready to run and did not, in nanoseconds.
    waited: BTreeMap<(Role, u64), u64>,
    /// The processors' time that was stolen, and all of it, in the kernel's ticks.
    stolen: (u64, u64),
}

impl Counters {
    /// Reads the counters of the kernel.
    pub(super) fn read(workers: &Workers, at: Time) -> Self {
        let mut waited = BTreeMap::new();
        for (role, worker) in workers {
            let tasks = Path::new("/proc").join(worker.id().to_string()).join("task");
            for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
                let thread = task.file_name().to_str().and_then(|id| id.parse().ok());
                let text = std::fs::read_to_string(task.path().join("schedstat"));
                if let (Some(thread), Some(wait)) = (thread, text.ok().as_deref().and_then(wait_of))
                {
                    waited.insert((*role, thread), wait);
                }
            }
        }
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self { at, waited, stolen: stolen_of(&stat).unwrap_or_default() }
    }

    /// Returns what processes got from these counters to `later`; `None` where the kernel keeps none. A thread that is
    /// new has waited since it began.
    pub(super) fn until(
        &self,
        later: &Self,
        switch_late: Span,
        round_trip: Span,
    ) -> Option<MachineShare> {
        let elapsed_ns = later.at.since(self.at).as_ns() as f64;
        let wait_of = |(key, wait): (&(Role, u64), &u64)| {
            (key.0, wait.saturating_sub(self.waited.get(key).copied().unwrap_or(0)))
        };
        let (role, wait_ns) = later.waited.iter().map(wait_of).max_by_key(|(_, wait)| *wait)?;
        let (stolen, all) = (
            later.stolen.0.saturating_sub(self.stolen.0),
            later.stolen.1.saturating_sub(self.stolen.1),
        );
        Some(MachineShare {
            waited: wait_ns as f64 / elapsed_ns.max(1.0),
            waited_by: role.to_string(),
            stolen: stolen as f64 / all.max(1) as f64,
            switch_late_us: switch_late.as_us_f64(),
            round_trip_us: round_trip.as_us_f64(),
        })
    }
}

/// The wait in a thread's `schedstat`: time on a processor, time ready to run, slices.
fn wait_of(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

/// The stolen time and all time in the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal,
/// and guests' time, which is part of the users'.
fn stolen_of(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> =
        line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
    Some((*times.get(7)?, times.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        assert_eq!(wait_of("1830144 24915 12\n"), Some(24915));
        assert_eq!(wait_of(""), None);
        let stat = "cpu  10 1 20 60 2 3 4 5 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(stolen_of(stat), Some((5, 105)));
        assert_eq!(stolen_of("cpu  1 2"), None);
    }

    #[test]
    fn the_thread_that_waited_longest_stands_for_its_process() {
        let counters = |ms: u64, waits: &[(Role, u64, u64)], stolen| Counters {
            at: Time::ZERO + Span::from_ms(ms),
            waited: waits.iter().map(|(role, thread, wait)| ((*role, *thread), *wait)).collect(),
            stolen,
        };
        let before =
            counters(100, &[(Role::Switch, 1, 500), (Role::Host(3), 7, 9_000_000)], (5, 1000));
        let waits = [
            (Role::Switch, 1, 10_000_500),
            (Role::Host(3), 7, 29_000_000),
            (Role::Host(3), 8, 6_000_000),
        ];
        let after = counters(1100, &waits, (7, 1200));
        let share = before.until(&after, Span::from_us(3), Span::from_us(40)).unwrap();
        assert_eq!((share.waited, &*share.waited_by, share.stolen), (0.02, "host 3", 0.01));
        assert_eq!((share.switch_late_us, share.round_trip_us), (3.0, 40.0));
        assert_eq!(before.until(&counters(2, &[], (0, 0)), Span::ZERO, Span::ZERO), None);
    }
}

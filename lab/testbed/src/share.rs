//! What the processes of a point get of the machine: their waits for a processor, and the time that the hypervisor steals.

use std::collections::BTreeMap;
use std::path::Path;

use rackweave_core::{Span, Time};
use rackweave_lab::results::MachineShare;

use super::process::Workers;
use super::protocol::Role;

/// The bit of a kernel's thread in the flags of `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The counters of the kernel at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    at: Time,
    /// For each thread of each process, the time for which it was ready to run and did not, in nanoseconds.
    waited: BTreeMap<(Role, u64), u64>,
    /// The time for which each process of the run and each thread of the kernel ran, by its number, in nanoseconds. The
    /// kernel's carry packets between namespaces.
    ran: BTreeMap<u32, u64>,
    processors: Processors,
}

/// The times of all processors since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Processors {
    /// For which programs and the kernel on their behalf ran, in nanoseconds.
    busy_ns: u64,
    /// Which was stolen, and all, in the kernel's ticks.
    stolen: u64,
    all: u64,
}

impl Counters {
    /// Reads the counters of the kernel.
    pub(super) fn read(workers: &Workers, at: Time) -> Self {
        let mut this = Self { at, ..Self::default() };
        for (role, worker) in workers {
            let mut ran = 0;
            for (thread, times) in threads(worker.id()) {
                ran += times.ran;
                this.waited.insert((*role, thread), times.waited);
            }
            this.ran.insert(worker.id(), ran);
        }
        let own = std::process::id();
        this.ran.insert(own, threads(own).map(|(_, times)| times.ran).sum());
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let number = process.file_name().to_str().and_then(|id| id.parse().ok());
            let Some(number) = number.filter(|_| is_kernel_thread(&process.path())) else {
                continue;
            };
            if let Some(times) = times_of(&process.path()) {
                this.ran.insert(number, times.ran);
            }
        }
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        this.processors =
            processors_of(&stat, rustix::param::clock_ticks_per_second()).unwrap_or_default();
        this
    }

    /// Returns what processes got from these counters to `later`; `None` where the kernel keeps none. A thread that is
    /// new has waited since it began.
    pub(super) fn until(
        &self,
        later: &Self,
        switch_late: Span,
        round_trip: Span,
    ) -> Option<MachineShare> {
        let elapsed_ns = (later.at.since(self.at).as_ns() as f64).max(1.0);
        let wait_of = |(key, wait): (&(Role, u64), &u64)| {
            (key.0, wait.saturating_sub(self.waited.get(key).copied().unwrap_or(0)))
        };
        let (role, wait_ns) = later.waited.iter().map(wait_of).max_by_key(|(_, wait)| *wait)?;
        let ran_of = |(number, ran): (&u32, &u64)| {
            ran.saturating_sub(self.ran.get(number).copied().unwrap_or(0))
        };
        let own_ns: u64 = later.ran.iter().map(ran_of).sum();
        let (before, after) = (self.processors, later.processors);
        let others_ns = after.busy_ns.saturating_sub(before.busy_ns).saturating_sub(own_ns);
        let stolen = after.stolen.saturating_sub(before.stolen);
        Some(MachineShare {
            waited: wait_ns as f64 / elapsed_ns,
            waited_by: role.to_string(),
            others: others_ns as f64 / elapsed_ns,
            stolen: stolen as f64 / after.all.saturating_sub(before.all).max(1) as f64,
            switch_late_us: switch_late.as_us_f64(),
            round_trip_us: round_trip.as_us_f64(),
        })
    }
}

/// How long a thread ran, and was ready to and did not, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    ran: u64,
    waited: u64,
}

/// Returns the threads of a process with their times; none if it has ended.
fn threads(process: u32) -> impl Iterator<Item = (u64, Times)> {
    let tasks = Path::new("/proc").join(process.to_string()).join("task");
    std::fs::read_dir(tasks).into_iter().flatten().flatten().filter_map(|task| {
        let thread = task.file_name().to_str()?.parse().ok()?;
        Some((thread, times_of(&task.path())?))
    })
}

fn times_of(task: &Path) -> Option<Times> {
    times_in(&std::fs::read_to_string(task.join("schedstat")).ok()?)
}

/// The times in a thread's `schedstat`: time on a processor, time ready to run, slices.
fn times_in(schedstat: &str) -> Option<Times> {
    let mut numbers = schedstat.split_whitespace().map_while(|number| number.parse().ok());
    Some(Times { ran: numbers.next()?, waited: numbers.next()? })
}

/// Returns whether a process is a thread of the kernel.
fn is_kernel_thread(process: &Path) -> bool {
    std::fs::read_to_string(process.join("stat"))
        .ok()
        .and_then(|stat| flags_of(&stat))
        .is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// The flags in a process's `stat`: number, name in parentheses, state, parent, group, session, terminal, its group, flags.
fn flags_of(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(6)?.parse().ok()
}

/// The times in the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, and guests' time,
/// which is part of the users'.
fn processors_of(stat: &str, ticks_per_second: u64) -> Option<Processors> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<u64> =
        line.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
    let tick_ns = 1_000_000_000 / ticks_per_second.max(1);
    let busy: u64 = times.iter().take(3).sum();
    Some(Processors {
        busy_ns: busy.saturating_mul(tick_ns),
        stolen: *times.get(7)?,
        all: times.iter().sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        assert_eq!(times_in("1830144 24915 12\n"), Some(Times { ran: 1_830_144, waited: 24915 }));
        assert_eq!(times_in(""), None);
        let stat = "cpu  10 1 20 60 2 3 4 5 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let processors = Processors { busy_ns: 310_000_000, stolen: 5, all: 105 };
        assert_eq!(processors_of(stat, 100), Some(processors));
        assert_eq!(processors_of("cpu  1 2", 100), None);
        let kernels = "14 (ksoft) (irqd/0) S 2 0 0 0 -1 69238848 0 0 0 0";
        assert_eq!(flags_of(kernels).map(|flags| flags & KERNEL_THREAD), Some(KERNEL_THREAD));
        assert!(!is_kernel_thread(Path::new("/proc/self")));
    }

    #[test]
    fn the_thread_that_waited_longest_stands_for_its_process() {
        let counters = |ms: u64, waits: &[(Role, u64, u64)], stolen, all| Counters {
            at: Time::ZERO + Span::from_ms(ms),
            waited: waits.iter().map(|(role, thread, wait)| ((*role, *thread), *wait)).collect(),
            processors: Processors { busy_ns: 0, stolen, all },
            ..Counters::default()
        };
        let before =
            counters(100, &[(Role::Switch, 1, 500), (Role::Host(3), 7, 9_000_000)], 5, 1000);
        let waits = [
            (Role::Switch, 1, 10_000_500),
            (Role::Host(3), 7, 29_000_000),
            (Role::Host(3), 8, 6_000_000),
        ];
        let after = counters(1100, &waits, 7, 1200);
        let share = before.until(&after, Span::from_us(3), Span::from_us(40)).unwrap();
        assert_eq!((share.waited, &*share.waited_by, share.stolen), (0.02, "host 3", 0.01));
        assert_eq!((share.switch_late_us, share.round_trip_us), (3.0, 40.0));
        assert_eq!(before.until(&counters(2, &[], 0, 0), Span::ZERO, Span::ZERO), None);
    }

    #[test]
    fn others_have_what_neither_the_run_nor_the_kernel_used() {
        let counters = |ms: u64, busy_ms: u64, ran_ms: &[(u32, u64)]| Counters {
            at: Time::ZERO + Span::from_ms(ms),
            waited: [((Role::Switch, 1), 0)].into(),
            ran: ran_ms.iter().map(|(number, ms)| (*number, ms * 1_000_000)).collect(),
            processors: Processors { busy_ns: busy_ms * 1_000_000, stolen: 0, all: ms },
        };
        let before = counters(0, 5000, &[(10, 100), (20, 700)]);
        // Process 30 is new.
        let after = counters(1000, 6500, &[(10, 500), (20, 900), (30, 400)]);
        let share = before.until(&after, Span::ZERO, Span::ZERO).unwrap();
        assert_eq!(share.others, 0.5);
        // Ticks are coarser than the run's own times.
        let coarse = counters(1000, 5000, &[(10, 500), (20, 900)]);
        assert_eq!(before.until(&coarse, Span::ZERO, Span::ZERO).unwrap().others, 0.0);
    }

    /// A thread of this process burns a processor, which is the run's own for one and another's for the other.
    #[test]
    fn a_process_that_is_not_of_the_run_is_counted_on_this_machine() {
        let read = |at_ms| Counters::read(&Workers::new(), Time::ZERO + Span::from_ms(at_ms));
        let before = read(0);
        let mut child =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let ran = || threads(child.id()).map(|(_, times)| times.ran).sum::<u64>();
        while ran() < 300_000_000 {
            std::thread::yield_now();
        }
        let after = read(1000);
        child.kill().unwrap();
        child.wait().unwrap();
        let others = after.processors.busy_ns - before.processors.busy_ns;
        // Threads of this process may end meanwhile.
        let ran = |(number, ran): (&u32, &u64)| {
            ran.saturating_sub(before.ran.get(number).copied().unwrap_or(0))
        };
        let own: u64 = after.ran.iter().map(ran).sum();
        assert!(others.saturating_sub(own) > 200_000_000, "{others} {own}");
    }
}

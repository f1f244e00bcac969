//! What the processes of a run on real hosts got of their machine.

use serde::{Deserialize, Serialize};

use crate::report::number;

/// The most of a run's time that its processes may lack a processor before its numbers are those of the machine. Claims
/// about both worlds allow 15 %: with a third of that, most of a difference is still that of the two worlds.
pub const MOST_LACKING: f64 = 0.05;

/// What the processes of a run on real hosts got of their machine, from the start of the load to its end.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MachineShare {
    /// The share of the time for which the process that waited longest for a processor was ready to run and did not: the
    /// kernel's run-queue wait, of its thread with the longest.
    pub waited: f64,
    /// That process: "host 3", "the switch".
    pub waited_by: String,
    /// The processors' time that processes outside of the run used, over the run's time: 1 is one processor.
    pub others: f64,
    /// The share of the processors' time that the hypervisor gave to others.
    pub stolen: f64,
    /// By how much 1 of 100 packets left the switch late, in microseconds.
    pub switch_late_us: f64,
    /// The round trip of the idle fabric, with which it is compared, in microseconds.
    pub round_trip_us: f64,
}

impl MachineShare {
    /// Returns the share of the time for which a process lacked a processor that somebody else had. What hosts of one
    /// run take from each other is the testbed's own, and the same on a quiet machine.
    #[must_use]
    pub fn lacking(&self) -> f64 {
        self.waited.min(self.others) + self.stolen
    }

    /// Says what was measured.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "{} waited for a processor for {} of the time, others used {} of one, {} of the processors' time was stolen, \
             and 1 of 100 packets left the switch more than {} late",
            self.waited_by,
            percent(self.waited),
            percent(self.others),
            percent(self.stolen),
            number::micros(self.switch_late_us),
        )
    }

    /// Says why the run measured the machine rather than the protocols; `None` if it did not.
    #[must_use]
    pub fn busy(&self) -> Option<String> {
        if self.lacking() > MOST_LACKING {
            return Some(format!(
                "{} lacked a processor for {} of the time, for which others had it (at most {})",
                self.waited_by,
                percent(self.lacking()),
                percent(MOST_LACKING),
            ));
        }
        (self.switch_late_us > self.round_trip_us).then(|| {
            format!(
                "1 of 100 packets left the switch more than {} late (at most a round trip, {})",
                number::micros(self.switch_late_us),
                number::micros(self.round_trip_us),
            )
        })
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_busy_if_processes_lack_it_or_the_switch_is_late() {
        let share = |waited, others, stolen, switch_late_us| MachineShare {
            waited,
            waited_by: "host 3".to_owned(),
            others,
            stolen,
            switch_late_us,
            round_trip_us: 100.0,
        };
        assert_eq!(share(0.03, 0.5, 0.01, 99.0).busy(), None);
        // Hosts that wait for each other only, and others on processors that no host wanted.
        assert_eq!(share(0.3, 0.03, 0.0, 1.0).busy(), None);
        assert_eq!(share(0.03, 0.9, 0.0, 1.0).busy(), None);
        let of_wait = share(0.3, 0.04, 0.02, 1.0).busy().unwrap();
        assert_eq!(
            of_wait,
            "host 3 lacked a processor for 6.0 % of the time, for which others had it (at most 5.0 %)"
        );
        assert!(share(0.0, 0.0, 0.0, 101.0).busy().unwrap().contains("(at most a round trip, 100"));
    }
}

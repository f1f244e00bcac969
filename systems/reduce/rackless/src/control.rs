//! The control plane of a running fabric: which upload has the switch, and which circuits there are meanwhile.
//!
//! As in P4-ORDC (section 2) it knows the jobs and their phases, plans the circuits for what they transfer now, and gives the slots of the
//! programmable switch to one upload after the other. Its messages to hosts and switches are not in the network: it sees and acts
//! at intervals, which stands for its delay. What it acts on is [`Controlled`].

use std::collections::{BTreeMap, VecDeque};

use rackweave_core::{Rng, Time};

use crate::config::Configuration;
use crate::demand::{Flow, JobId, Period};
use crate::fabric::Fabric;
use crate::jobs::Job;
use crate::plan::{Options, plan};

/// When circuits are planned. The paper does not say it; an architecture that plans more often than another one has an
/// advantage, or a disadvantage where each move costs more than it saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Occasion {
    /// Whenever a job begins or ends to transfer data or to upload.
    #[default]
    Phases,
    /// When uploads begin.
    Uploads,
}

/// What a job transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Its input, to the workers.
    Input,
    /// Its pairs, to the master.
    Upload,
}

/// How far a job has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The job.
    pub job: JobId,
    /// What it transfers; `None` while it computes, and after its upload.
    pub transfer: Option<Transfer>,
    /// Whether its upload has ended, well or not.
    pub has_ended: bool,
}

/// The hosts and switches that a control plane acts on.
pub trait Controlled {
    /// Returns how far all jobs have come, and adds those to `ready` whose workers have become ready to upload.
    fn look(&mut self, ready: &mut VecDeque<JobId>) -> Vec<Status>;

    /// Lets the upload of a job begin.
    fn grant(&mut self, now: Time, job: JobId);

    /// Changes circuits. Returns when the ports that are dark for it are lit again; `None` if circuits have not changed.
    fn reconfigure(&mut self, to: &Configuration) -> Option<Time>;
}

/// The control plane of a run.
#[derive(Clone, Debug)]
pub struct Controller {
    jobs: BTreeMap<JobId, Job>,
    /// What circuits can be; `None` if there are none to move.
    fabric: Option<(Fabric, Options)>,
    /// Whether a switch adds up, which one upload has at a time.
    adds_up: bool,
    occasion: Occasion,
    rng: Rng,
    /// Jobs whose workers are ready, in the order in which they became so.
    ready: VecDeque<JobId>,
    /// The job whose upload has the switch.
    active: Option<JobId>,
    /// Jobs whose uploads begin when the circuits that were planned for them are up.
    chosen: Vec<JobId>,
    /// When the circuits are up.
    up: Time,
    reconfigurations: u64,
    /// What jobs transferred when circuits were planned last.
    planned: Vec<(JobId, Transfer)>,
}

impl Controller {
    /// A control plane for these jobs. `fabric` is what circuits can be and how they are planned, `None` if there are none to move;
    /// `adds_up`: a switch adds up, and one upload has it at a time. Planning draws from `rng`.
    #[must_use]
    pub const fn new(
        jobs: BTreeMap<JobId, Job>,
        fabric: Option<(Fabric, Options)>,
        adds_up: bool,
        occasion: Occasion,
        rng: Rng,
    ) -> Self {
        Self {
            jobs,
            fabric,
            adds_up,
            occasion,
            rng,
            ready: VecDeque::new(),
            active: None,
            chosen: Vec::new(),
            up: Time::ZERO,
            reconfigurations: 0,
            planned: Vec::new(),
        }
    }

    /// Returns how often circuits have changed.
    #[must_use]
    pub const fn reconfigurations(&self) -> u64 {
        self.reconfigurations
    }

    /// Looks at the jobs, and decides.
    pub fn act(&mut self, controlled: &mut impl Controlled, now: Time) {
        let mut jobs = controlled.look(&mut self.ready);
        jobs.sort_by_key(|status| status.job);
        let was_chosen = self.chosen.len();
        if self.adds_up {
            self.share_switch(&jobs);
        } else {
            // Nothing is shared, so that uploads do not wait for one another.
            self.chosen.extend(self.ready.drain(..));
        }
        let transfers = self.transfers(&jobs);
        let is_due = match self.occasion {
            Occasion::Phases => transfers != self.planned,
            Occasion::Uploads => self.chosen.len() > was_chosen,
        };
        if is_due {
            self.move_circuits(controlled, now, &transfers);
            self.planned = transfers;
        }
        if self.up <= now {
            for job in std::mem::take(&mut self.chosen) {
                controlled.grant(now, job);
            }
        }
    }

    /// One upload after the other has the switch.
    fn share_switch(&mut self, jobs: &[Status]) {
        let has_ended =
            |job: JobId| jobs.iter().any(|status| status.job == job && status.has_ended);
        if self.active.is_some_and(has_ended) {
            self.active = None;
        }
        if self.active.is_none()
            && let Some(next) = self.ready.pop_front()
        {
            self.active = Some(next);
            self.chosen.push(next);
        }
    }

    /// What jobs transfer, and are about to.
    fn transfers(&self, jobs: &[Status]) -> Vec<(JobId, Transfer)> {
        let transfer = |status: &Status| {
            let is_chosen = self.chosen.contains(&status.job);
            Some((status.job, if is_chosen { Transfer::Upload } else { status.transfer? }))
        };
        jobs.iter().filter_map(transfer).collect()
    }

    /// Plans circuits for what the jobs transfer, and moves to them if that saves time.
    fn move_circuits(
        &mut self,
        controlled: &mut impl Controlled,
        now: Time,
        transfers: &[(JobId, Transfer)],
    ) {
        let Some((fabric, options)) = &mut self.fabric else { return };
        let mut flows = Vec::new();
        let mut uploads = Vec::new();
        for &(id, transfer) in transfers {
            let Some(job) = self.jobs.get(&id) else { continue };
            if transfer == Transfer::Upload && self.adds_up {
                uploads.extend(job.upload_of(id).ok());
                continue;
            }
            // Each worker is taken to receive an equal part, also where it receives all.
            let share = job.input / job.workers.len().max(1) as u64;
            for (&worker, &upload) in job.workers.iter().zip(&job.upload) {
                let (src, dst, bytes) = match transfer {
                    Transfer::Input => (job.master, worker, share),
                    Transfer::Upload => (worker, job.master, upload),
                };
                if src != dst {
                    flows.push(Flow { src, dst, bytes });
                }
            }
        }
        let Ok(period) = Period::new(fabric.pod().servers(), flows, uploads, Vec::new()) else {
            return;
        };
        let Ok(plan) = plan(fabric, &[period], options, &mut self.rng) else { return };
        let Some(step) = plan.steps.first().filter(|step| step.is_reconfigured()) else { return };
        if let Some(up) = controlled.reconfigure(&step.configuration) {
            *fabric = fabric.clone().starting_from(step.configuration.clone());
            self.up = self.up.max(up).max(now);
            self.reconfigurations += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Span;

    use super::*;
    use crate::cost::{Reconfiguration, Scope};
    use crate::fabric::Architecture;
    use crate::jobs::tests::job;
    use crate::plan::Algorithm;
    use crate::pod::Pod;

    /// Two jobs that a test moves.
    struct Run {
        ready: Vec<JobId>,
        jobs: Vec<Status>,
        granted: Vec<JobId>,
        moved: u32,
        lit: Time,
    }

    impl Controlled for Run {
        fn look(&mut self, ready: &mut VecDeque<JobId>) -> Vec<Status> {
            ready.extend(self.ready.drain(..));
            self.jobs.clone()
        }

        fn grant(&mut self, _now: Time, job: JobId) {
            self.granted.push(job);
        }

        fn reconfigure(&mut self, _to: &Configuration) -> Option<Time> {
            self.moved += 1;
            Some(self.lit)
        }
    }

    #[test]
    fn an_upload_begins_when_it_has_the_switch_and_its_circuits_are_up() {
        let ids = [JobId(1), JobId(2)];
        // The second group of servers is below other ToRs.
        let jobs = BTreeMap::from([(ids[0], job(0, &[1, 2, 3])), (ids[1], job(4, &[5, 6, 7]))]);
        let reconfiguration = Reconfiguration { delay: Span::from_ms(1), scope: Scope::All };
        let fabric = Fabric::new(Pod::paper(), Architecture::P4Ordc);
        let fabric = Some((fabric, Options::new(Algorithm::Exact, reconfiguration)));
        let rng = Rng::stream(1, 0, 0, "control plane");
        let mut controller = Controller::new(jobs, fabric, true, Occasion::Uploads, rng);
        let status = |job| Status { job, transfer: None, has_ended: false };
        let at = |ms| Time::ZERO + Span::from_ms(ms);
        let mut run = Run {
            ready: ids.to_vec(),
            jobs: ids.map(status).to_vec(),
            granted: Vec::new(),
            moved: 0,
            lit: at(5),
        };
        controller.act(&mut run, at(0));
        assert_eq!((&run.granted[..], run.moved), (&ids[..1], 0), "it is below the switch");
        run.jobs[0].transfer = Some(Transfer::Upload);
        controller.act(&mut run, at(1));
        assert_eq!(run.granted, ids[..1], "the switch is taken");
        run.jobs[0] = Status { has_ended: true, ..status(ids[0]) };
        controller.act(&mut run, at(2));
        assert_eq!((&run.granted[..], run.moved), (&ids[..1], 1), "ports are dark");
        controller.act(&mut run, at(5));
        assert_eq!((&run.granted[..], controller.reconfigurations()), (&ids[..], 1));
    }
}

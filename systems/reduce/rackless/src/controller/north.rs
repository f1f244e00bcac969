//! North: what masters of jobs ask and report. Each call can be repeated.

use rackweave_core::Time;

use super::job::{DeclarationError, Declared, Entry, Phase, check_name};
use super::record::Measured;
use super::{Controller, Event, Standing};
use crate::demand::JobId;
use crate::jobs::JobError;

/// The most kinds of jobs that are remembered; the one that has had fewest jobs goes first.
const MOST_LEARNED: usize = 4096;

/// Why a request of a master is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// What it declares makes no sense.
    #[error(transparent)]
    Declaration(#[from] DeclarationError),
    /// The job is impossible.
    #[error(transparent)]
    Job(#[from] JobError),
    /// There are too many jobs.
    #[error("the pod has {0} jobs, which is the limit; try again when one has ended")]
    Full(usize),
    /// The tenant has too many.
    #[error("this tenant has {0} jobs, which is its limit; try again when one has ended")]
    TenantFull(usize),
    /// There is no such job of this tenant.
    #[error("this tenant has no {0}")]
    NoSuchJob(JobId),
    /// Another controller commands.
    #[error("another controller commands this pod")]
    Standby,
}

impl Controller {
    /// Registers a job. A repetition with the same `nonce` of the same tenant returns the same number.
    ///
    /// # Errors
    /// See [`Refusal`]; then nothing has changed.
    pub fn register(
        &mut self,
        now: Time,
        tenant: &str,
        nonce: u64,
        declared: Declared,
    ) -> Result<JobId, Refusal> {
        if self.standing(now) == Standing::Standby {
            return Err(Refusal::Standby);
        }
        check_name(tenant)?;
        declared.check()?;
        let own = self.entries.values_mut().filter(|it| it.tenant == tenant);
        let mut count = 0;
        for entry in own {
            if entry.nonce == nonce {
                entry.heard = now;
                return Ok(entry.id);
            }
            count += 1;
        }
        if self.entries.len() >= self.config.most_jobs {
            return Err(Refusal::Full(self.config.most_jobs));
        }
        if count >= self.config.most_of_tenant {
            return Err(Refusal::TenantFull(self.config.most_of_tenant));
        }
        let learned = self.learned.get(&format!("{tenant}/{}", declared.name));
        let id = self.handler.register(declared.job(learned))?;
        self.head.next_job = self.handler.next();
        self.dirty_head = true;
        let entry = Entry {
            id,
            tenant: tenant.to_owned(),
            nonce,
            declared,
            phase: Phase::Registered,
            since: Some(now),
            heard: now,
            measured: Measured::default(),
            ready: 0,
            chosen: None,
            grant: None,
        };
        let (tenant, name) = (entry.tenant.clone(), entry.declared.name.clone());
        self.note(now, Event::Registered { job: id.0, tenant, name });
        self.entries.insert(id, entry);
        self.dirty_jobs.insert(id);
        self.step(now);
        Ok(id)
    }

    /// Returns a job of a tenant, whose master has been heard of.
    ///
    /// # Errors
    /// If there is none.
    pub fn heard(&mut self, now: Time, tenant: &str, id: JobId) -> Result<&Entry, Refusal> {
        self.entry(now, tenant, id).map(|entry| &*entry)
    }

    /// A job has come to a phase. One that it has passed already changes nothing: messages can overtake one another.
    ///
    /// # Errors
    /// If there is no such job.
    pub fn phase(
        &mut self,
        now: Time,
        tenant: &str,
        id: JobId,
        phase: Phase,
    ) -> Result<(), Refusal> {
        let entry = self.entry(now, tenant, id)?;
        let has_ended = entry.phase <= Phase::Upload && phase > Phase::Upload;
        if !entry.advance(now, phase) {
            return Ok(());
        }
        if phase == Phase::Ready {
            self.readies += 1;
            let order = self.readies;
            self.entry(now, tenant, id)?.ready = order;
        }
        self.dirty_jobs.insert(id);
        self.note(now, Event::Phase { job: id.0, phase });
        if has_ended {
            self.give_back(id);
        }
        self.step(now);
        Ok(())
    }

    /// The workers of a job are ready to upload. What has become known of it replaces what was declared.
    ///
    /// # Errors
    /// If there is no such job, or it is impossible; then nothing has changed.
    pub fn ready(
        &mut self,
        now: Time,
        tenant: &str,
        id: JobId,
        known: impl FnOnce(&mut Declared),
    ) -> Result<(), Refusal> {
        self.announce(now, tenant, id, known)?;
        self.phase(now, tenant, id, Phase::Ready)
    }

    /// Replaces what was declared of a job by what has become known.
    ///
    /// # Errors
    /// If there is no such job, or it is impossible; then nothing has changed.
    pub fn announce(
        &mut self,
        now: Time,
        tenant: &str,
        id: JobId,
        known: impl FnOnce(&mut Declared),
    ) -> Result<(), Refusal> {
        let entry = self.entry(now, tenant, id)?;
        let mut declared = entry.declared.clone();
        known(&mut declared);
        if declared == entry.declared {
            return Ok(());
        }
        let kind = entry.kind();
        declared.check()?;
        self.handler.announce(id, declared.job(self.learned.get(&kind)))?;
        self.entry(now, tenant, id)?.declared = declared;
        self.dirty_jobs.insert(id);
        Ok(())
    }

    /// A job is over, or is given up by its master.
    ///
    /// # Errors
    /// If there is no such job.
    pub fn end(&mut self, now: Time, tenant: &str, id: JobId) -> Result<(), Refusal> {
        let entry = self.entry(now, tenant, id)?;
        // The phase that was its last one has ended now.
        if entry.phase == Phase::Upload {
            entry.advance(now, Phase::Reduce);
        } else if entry.phase == Phase::Reduce {
            entry.measured.reduce_ns = entry.since.map(|since| now.since(since).as_ns());
        }
        let (kind, measured, phase) = (entry.kind(), entry.measured, entry.phase);
        if phase == Phase::Reduce {
            self.learn(kind, id, &measured);
        }
        self.note(now, Event::Ended { job: id.0 });
        self.remove(id);
        self.step(now);
        Ok(())
    }

    fn entry(&mut self, now: Time, tenant: &str, id: JobId) -> Result<&mut Entry, Refusal> {
        let entry = self.entries.get_mut(&id).filter(|entry| entry.tenant == tenant);
        let entry = entry.ok_or(Refusal::NoSuchJob(id))?;
        entry.heard = now;
        Ok(entry)
    }

    fn learn(&mut self, kind: String, id: JobId, measured: &Measured) {
        let Some(job) = self.handler.get(id) else { return };
        let upload = job.upload.iter().fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
        let distinct = job.distinct.unwrap_or(0);
        self.learned.entry(kind.clone()).or_default().add(measured, upload, distinct);
        self.dirty_learned.insert(kind);
        if self.learned.len() > MOST_LEARNED {
            let least = self.learned.iter().min_by_key(|(_, it)| it.runs);
            if let Some(kind) = least.map(|(kind, _)| kind.clone()) {
                self.learned.remove(&kind);
                self.dirty_learned.insert(kind);
            }
        }
    }

    pub(super) fn remove(&mut self, id: JobId) {
        self.give_back(id);
        self.entries.remove(&id);
        self.ted.forget(id);
        self.handler.release(id);
        self.dirty_jobs.insert(id);
    }

    fn give_back(&mut self, id: JobId) {
        self.regions.release(id);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.chosen = None;
        }
        self.agents.renew();
    }
}

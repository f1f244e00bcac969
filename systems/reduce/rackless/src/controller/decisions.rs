//! What follows from news: who uploads next, whether circuits move, and which uploads begin.

use std::collections::BTreeSet;

use rackweave_core::Time;

use super::job::{Entry, Phase};
use super::message::Wiring;
use super::record::Grant;
use super::{Controller, Event, Standing};
use crate::config::Configuration;
use crate::demand::{JobId, Period};
use crate::fabric::Reach;
use crate::plan::gathered;

impl Controller {
    pub(super) fn step(&mut self, now: Time) {
        let standing = self.standing(now);
        let is_active = standing == Standing::Active;
        if is_active != std::mem::replace(&mut self.was_active, is_active) {
            let term = self.head.term;
            // Until now the agents have only been asked for the lease.
            self.agents.renew();
            self.note(now, if is_active { Event::Active { term } } else { Event::NotActive });
        }
        if standing == Standing::Standby {
            return;
        }
        self.choose(now);
        if is_active {
            self.plan(now);
        }
        self.grant(now);
    }

    /// The INC scheduler: lets the next of the waiting uploads have the programmable `ToR`.
    fn choose(&mut self, now: Time) {
        loop {
            let uses = |entry: &&Entry| entry.chosen.is_some() || entry.phase == Phase::Upload;
            if self.entries.values().filter(uses).count() >= self.config.uploads.max(1) as usize {
                return;
            }
            let Some(id) = self.next_upload() else { return };
            let version = self.head.version;
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.chosen = Some((now, version));
                self.last_group = entry.group();
            }
        }
    }

    /// The TPE module: moves circuits if the sequence that is best from now on begins with other ones.
    fn plan(&mut self, now: Time) {
        let architecture = self.config.fabric.architecture();
        if !architecture.is_rackless() && !architecture.has_circuits() {
            return;
        }
        let is_settled = self.agents.has_applied(self.head.term, self.head.version);
        if !is_settled && self.head.version > 0 {
            return;
        }
        let planned = self.replan(now).unwrap_or_else(|why| {
            self.note(now, Event::NotPlanned { why });
            None
        });
        // Circuits of an upload that goes on remain: it was granted with them. Its end is the next occasion.
        let planned = planned.filter(|next| !self.moves_an_upload(next));
        let gathered = self.gathered(now, planned.as_ref());
        if let Some(next) = gathered.filter(|next| !self.moves_an_upload(next)).or(planned) {
            self.change_to(now, next);
        }
    }

    /// The racks with the group of the chosen upload below a programmable `ToR`, where an upload is added up as a whole or not at all
    /// ([`Reach::Rack`]), if that saves the upload more than the change takes. The plan minimises the time of the busiest link of a
    /// period, which may be another job's, so that it leaves groups where they are which would gain. The rule is Rackweave's.
    fn gathered(&self, now: Time, planned: Option<&Configuration>) -> Option<Configuration> {
        let fabric = &self.config.fabric;
        if fabric.reach() != Reach::Rack || !self.planning.may_change(now) {
            return None;
        }
        let is_next = |it: &&Entry| it.chosen.is_some() && it.grant.is_none();
        let id = self.entries.values().find(is_next)?.id;
        let job = self.handler.get(id)?;
        let upload = job.upload_of(id).ok()?;
        let (cost, current) = (self.agents.reconfiguration()?, self.planning.current()?);
        let base = planned.unwrap_or(current);
        let found = gathered(&fabric.clone().starting_from(base.clone()), &upload);
        let next = found.into_iter().next().filter(|next| next != base)?;
        let servers = fabric.pod().servers();
        let period = Period::new(servers, Vec::new(), vec![upload], Vec::new()).ok()?;
        let time = |to: &Configuration| fabric.cost_after(&period, current, to, cost).time;
        (time(&next) < time(base)).then_some(next)
    }

    fn change_to(&mut self, now: Time, next: Configuration) {
        let moves = self.planning.current().map_or(0, |it| it.moves_to(&next).len());
        self.head.version += 1;
        self.head.wiring = Some(Wiring::of(&next));
        self.dirty_head = true;
        self.planning.move_to(next);
        for entry in self.entries.values_mut() {
            if let Some((_, version)) = entry.chosen.as_mut().filter(|_| entry.grant.is_none()) {
                *version = self.head.version;
            }
        }
        self.agents.renew();
        let (version, racks) = (self.head.version, self.racks());
        self.note(now, Event::Moving { version, moves, racks });
    }

    fn moves_an_upload(&self, next: &Configuration) -> bool {
        let Some(current) = self.planning.current() else { return false };
        let moved: BTreeSet<u32> = current.moves_to(next).iter().map(|it| it.server).collect();
        let uploads = self.entries.values().filter(|it| it.phase == Phase::Upload);
        uploads.flat_map(Entry::group).any(|server| moved.contains(&server))
    }

    fn racks(&self) -> Vec<Vec<u32>> {
        let tors = self.config.fabric.pod().tors().len();
        self.planning.current().map_or_else(Vec::new, |it| it.racks(tors))
    }

    /// Lets the chosen uploads begin whose circuits are there.
    fn grant(&mut self, now: Time) {
        let (term, is_active) = (self.head.term, self.standing(now) == Standing::Active);
        let waiting = self.entries.values().filter(|entry| entry.grant.is_none());
        let chosen: Vec<_> = waiting
            .filter_map(|it| it.chosen.map(|(since, version)| (it.id, since, version)))
            .collect();
        for (id, since, version) in chosen {
            let is_there = version == 0 || self.agents.has_applied(term, version);
            let is_up = is_active && is_there && self.agents.lit().is_none_or(|lit| lit <= now);
            let is_late = now.since(since) >= self.config.patience;
            if !is_up && !is_late {
                continue;
            }
            let grant = self.grant_for(now, id);
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.advance(now, Phase::Upload);
            let slots = grant.slots;
            entry.grant = Some(grant);
            self.dirty_jobs.insert(id);
            self.agents.renew();
            self.note(now, Event::Granted { job: id.0, slots, is_late: !is_up });
        }
    }

    /// Whether an upload may have the slots of this `ToR` ([`Reach`]). Of a job whose workers are not known, the master decides.
    fn passes(&self, id: JobId, tor: u16) -> bool {
        if self.config.fabric.reach() != Reach::Rack {
            return true;
        }
        let (Some(at), Some(entry)) = (self.planning.current(), self.entries.get(&id)) else {
            return true;
        };
        let is_below = |server: &u32| at.tor_of().get(*server as usize) == Some(&tor);
        let (group, workers) = (entry.group(), &entry.declared.workers);
        if self.config.fabric.fits_below_programmable(group.len()) {
            return group.iter().all(is_below);
        }
        is_below(&entry.declared.master) || workers.iter().all(is_below)
    }

    /// The slots of an upload: none if no agent answers for a programmable `ToR`.
    fn grant_for(&mut self, now: Time, id: JobId) -> Grant {
        let is_active = self.standing(now) == Standing::Active;
        let pod = self.config.fabric.pod();
        let Some(tor) = pod.programmable().filter(|_| is_active) else { return Grant::default() };
        let tor = u16::try_from(tor).unwrap_or(u16::MAX);
        if !self.passes(id, tor) {
            return Grant::default();
        }
        let Some(ability) = self.agents.aggregator(tor) else { return Grant::default() };
        let address = ability.address.clone();
        let each = pod.tors()[usize::from(tor)].slots.min(u64::from(ability.slots))
            / u64::from(self.config.uploads.max(1));
        let region = self.regions.region(id).or_else(|| self.regions.allocate(id, each));
        let slots = region.map_or(0, |region| u32::try_from(region.len).unwrap_or(u32::MAX));
        if slots == 0 { Grant::default() } else { Grant { switch: address, slots, tor } }
    }
}

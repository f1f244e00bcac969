//! The agent of a switch: whose commands it follows, and what it reports.
//!
//! It follows one [`Holder`]. An agent that changes circuits lends a lease: until it ends, no other controller is followed, and afterwards only
//! one with a higher term. The other agents follow the highest term, which only the holder of the lease has. So two controllers never
//! both command.

use std::collections::VecDeque;

use rackweave_core::{Span, Time};

use super::message::{Abilities, Applied, Command, Counters, Holder, Report, RouteEntry, Wiring};

/// How often an agent reports without news.
const REPORT_EVERY: Span = Span::from_ms(100);
/// The longest lease that an agent lends.
pub const LONGEST_LEASE: Span = Span::from_secs(60);

/// The agent of a switch.
#[derive(Clone, Debug)]
pub struct Agent {
    name: String,
    boot: u64,
    abilities: Abilities,
    sequence: u64,
    holder: Option<Holder>,
    lease_until: Time,
    echo_ns: u64,
    applied: Option<Applied>,
    /// When the ports that are dark are lit again.
    lit: Time,
    wiring: Option<Wiring>,
    /// The command whose circuits the switch is changing to.
    changing: Option<(u64, u64, Wiring)>,
    /// Changes that the driver has not taken yet.
    changes: VecDeque<Wiring>,
    routes: Vec<RouteEntry>,
    next_report: Time,
    every: Span,
    refused: u64,
}

impl Agent {
    /// An agent of this name. `boot` is another number after each start; `wiring` are the present circuits.
    #[must_use]
    pub const fn new(
        name: String,
        boot: u64,
        abilities: Abilities,
        wiring: Option<Wiring>,
        now: Time,
    ) -> Self {
        Self {
            name,
            boot,
            abilities,
            sequence: 0,
            holder: None,
            lease_until: Time::ZERO,
            echo_ns: 0,
            applied: None,
            lit: Time::ZERO,
            wiring,
            changing: None,
            changes: VecDeque::new(),
            routes: Vec::new(),
            next_report: now,
            every: REPORT_EVERY,
            refused: 0,
        }
    }

    /// The same agent, which reports this often without news.
    #[must_use]
    pub const fn reporting_every(mut self, every: Span) -> Self {
        self.every = every;
        self
    }

    /// Whose commands it follows.
    #[must_use]
    pub const fn holder(&self) -> Option<Holder> {
        self.holder
    }

    /// The number of commands that were not followed.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The routes of what is transferred.
    #[must_use]
    pub fn routes(&self) -> &[RouteEntry] {
        &self.routes
    }

    /// Handles a command.
    pub fn handle(&mut self, now: Time, command: Command) {
        // Whoever commands learns from the answer whom the agent follows.
        self.next_report = now;
        if !self.follows(now, command.holder) {
            self.refused += 1;
            return;
        }
        self.holder = Some(command.holder);
        let lease = Span::from_ns(command.lease_ns.min(LONGEST_LEASE.as_ns()));
        self.lease_until = self.lease_until.max(now.saturating_add(lease));
        // Commands can overtake one another.
        if command.sent_ns < self.echo_ns {
            return;
        }
        self.echo_ns = command.sent_ns;
        self.routes = command.routes;
        let term = command.holder.term;
        let last = self.changing.as_ref().map(|(term, version, _)| (*term, *version));
        let last = last.or(self.applied.as_ref().map(|it| (it.term, it.version)));
        let Some(wiring) = command.wiring else { return };
        if command.version == 0 || last.is_some_and(|last| last >= (term, command.version)) {
            return;
        }
        let present = self.changing.as_ref().map(|(.., wiring)| wiring).or(self.wiring.as_ref());
        if present == Some(&wiring) {
            // Another controller wants the present circuits: nothing moves.
            match &mut self.changing {
                Some(changing) => (changing.0, changing.1) = (term, command.version),
                None => {
                    let version = command.version;
                    self.applied = Some(Applied { term, version, dark_ns: 0, refused: None });
                }
            }
            return;
        }
        self.changing = Some((term, command.version, wiring.clone()));
        self.changes.clear();
        self.changes.push_back(wiring);
    }

    /// Whether a controller is followed. A new holder's clock has nothing to do with its predecessor's.
    fn follows(&mut self, now: Time, claimant: Holder) -> bool {
        let Some(holder) = self.holder else { return true };
        if claimant.term < holder.term {
            return false;
        }
        if claimant.controller == holder.controller {
            // Copies of one database: the first is followed, and the other takes another number.
            if claimant.term == holder.term && claimant.start != holder.start {
                return false;
            }
            if claimant.term > holder.term {
                self.echo_ns = 0;
            }
            return true;
        }
        let is_free = !self.abilities.has_circuits() || now >= self.lease_until;
        let follows = claimant.term > holder.term && is_free;
        if follows {
            self.echo_ns = 0;
        }
        follows
    }

    /// Circuits to which the switch is to change now; [`changed`](Self::changed) says what has become of it.
    pub fn poll_change(&mut self) -> Option<Wiring> {
        self.changes.pop_front()
    }

    /// The switch has begun to change its circuits to these, and its ports are dark for this long; or it has refused.
    pub fn changed(&mut self, now: Time, to: &Wiring, result: Result<Span, String>) {
        let (dark, refused) = match result {
            Ok(dark) => (dark, None),
            Err(why) => (Span::ZERO, Some(why)),
        };
        if refused.is_none() {
            self.wiring = Some(to.clone());
            self.lit = self.lit.max(now.saturating_add(dark));
        }
        // Meanwhile there may have been another command.
        if let Some((term, version, _)) = self.changing.take_if(|(.., wiring)| wiring == to) {
            self.applied = Some(Applied { term, version, dark_ns: 0, refused });
            self.next_report = now;
        }
    }

    /// A report, if one is due. `counters` are what the switch has counted.
    pub fn poll_report(&mut self, now: Time, counters: Option<Counters>) -> Option<Report> {
        if now < self.next_report {
            return None;
        }
        self.next_report = now.saturating_add(self.every);
        self.sequence += 1;
        let dark_ns = self.lit.since(now).as_ns();
        Some(Report {
            agent: self.name.clone(),
            boot: self.boot,
            sequence: self.sequence,
            abilities: self.abilities.clone(),
            holder: self.holder,
            echo_ns: self.echo_ns,
            applied: self.applied.clone().map(|it| Applied { dark_ns, ..it }),
            wiring: self.wiring.clone(),
            counters,
        })
    }

    /// When [`poll_report`](Self::poll_report) has something.
    #[must_use]
    pub const fn poll_timeout(&self) -> Time {
        self.next_report
    }
}

//! The agents of switches, as a controller knows them.

use std::collections::BTreeMap;

use rackweave_core::{Span, Time};

use super::event::Event;
use super::message::{Counters, Holder, Report, TorAbility, Wiring};
use super::{Config, Standing};
use crate::cost::Reconfiguration;

/// The most agents.
const MOST_AGENTS: usize = 256;
/// Counters that have not changed for this long say that nothing was sent.
const COUNTED_WITHIN: Span = Span::from_ms(500);
/// How long reports of a switch's earlier start can be on their way.
const STRAGGLING: Span = Span::from_secs(2);
/// How long a command waits for its report before it is repeated.
const REPEAT: Span = Span::from_ms(100);

/// An agent.
#[derive(Clone, Debug)]
pub struct AgentState {
    report: Report,
    heard: Time,
    /// When this start of it reported first.
    since: Time,
    /// Whether an earlier start of it still reports.
    has_twin: bool,
    is_up: bool,
    /// Why it is not believed.
    problem: Option<String>,
    next_command: Time,
    sent_ns: u64,
    /// When the ports that are dark are lit again.
    lit: Time,
    /// The counters from which the next ones are counted on, and when they were.
    counted: Option<(Time, Counters)>,
    rates: Counters,
}

impl AgentState {
    /// Its last report.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Whether it reports.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.is_up
    }

    /// Why its reports are not believed.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Bytes per second from and to each server between its last two reports.
    #[must_use]
    pub const fn rates(&self) -> &Counters {
        &self.rates
    }

    pub(super) const fn wiring(&self) -> Option<&Wiring> {
        self.report.wiring.as_ref()
    }

    /// Why it has refused this command.
    pub(super) fn refusal(&self, term: u64, version: u64) -> Option<&str> {
        let applied = self.report.applied.as_ref()?;
        let is_this = (applied.term, applied.version) == (term, version);
        applied.refused.as_deref().filter(|_| is_this)
    }
}

/// What a report has brought.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) events: Vec<Event>,
    /// Whether the report is the newest of its agent.
    pub(super) is_taken: bool,
    /// Another controller that the agent follows.
    pub(super) overtaken: Option<Holder>,
    /// The bytes from and to each server in one period.
    pub(super) totals: Option<(Vec<u64>, Vec<u64>)>,
}

/// All agents.
#[derive(Clone, Debug)]
pub(super) struct Agents {
    all: BTreeMap<String, AgentState>,
    /// The name of the agent that lends the lease.
    arbiter: Option<String>,
    lease_until: Time,
    /// The bytes by server since this time.
    window: (Time, Counters),
}

impl Agents {
    pub(super) fn new(config: &Config, now: Time) -> Self {
        let none = vec![0; config.fabric.pod().servers() as usize];
        let window = (now, Counters { sent: none.clone(), received: none });
        Self { all: BTreeMap::new(), arbiter: None, lease_until: Time::ZERO, window }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &AgentState)> {
        self.all.iter().map(|(name, state)| (name.as_str(), state))
    }

    /// The agent that changes circuits.
    pub(super) fn arbiter(&self) -> Option<&AgentState> {
        self.all.get(self.arbiter.as_ref()?).filter(|it| it.is_up)
    }

    pub(super) fn standing(&self, now: Time, holder: Holder) -> Standing {
        let Some(arbiter) = self.arbiter() else { return Standing::Alone };
        if self.lease_until > now {
            return Standing::Active;
        }
        match arbiter.report.holder {
            Some(other) if other.controller != holder.controller => Standing::Standby,
            _ => Standing::Alone,
        }
    }

    /// Whether circuits are as commanded.
    pub(super) fn has_applied(&self, term: u64, version: u64) -> bool {
        let applied = self.arbiter().and_then(|it| it.report.applied.as_ref());
        applied.is_some_and(|it| it.term == term && it.version >= version && it.refused.is_none())
    }

    /// When ports are lit.
    pub(super) fn lit(&self) -> Option<Time> {
        self.arbiter().map(|it| it.lit)
    }

    /// What a change of circuits costs.
    pub(super) fn reconfiguration(&self) -> Option<Reconfiguration> {
        self.arbiter().map(|it| it.report.abilities.reconfiguration())
    }

    /// The programmable `ToR` of this number.
    pub(super) fn aggregator(&self, tor: u16) -> Option<&TorAbility> {
        let mut tors = self
            .all
            .values()
            .filter(|it| it.is_up && it.problem.is_none())
            .flat_map(|it| &it.report.abilities.tors);
        tors.find(|it| it.tor == tor && it.slots > 0)
    }

    pub(super) fn handle(
        &mut self,
        now: Time,
        report: Report,
        holder: Holder,
        config: &Config,
    ) -> News {
        let mut news = News::default();
        let name = report.agent.clone();
        let has_room = self.all.len() < MOST_AGENTS;
        let known = self.all.get_mut(&name);
        // The numbers of boots may begin again when a machine does.
        let is_late = known.as_ref().is_some_and(|it| {
            let is_old = report.boot < it.report.boot && now.since(it.heard) < config.silence;
            let is_same = report.boot == it.report.boot;
            is_old || is_same && report.sequence <= it.report.sequence
        });
        let has_room = known.is_some() || has_room;
        if is_late || !has_room || super::check_name(&name).is_err() {
            let twin = known.filter(|it| report.boot < it.report.boot && !it.has_twin);
            if let Some(it) = twin.filter(|it| now.since(it.since) > STRAGGLING) {
                it.has_twin = true;
                let why = "another switch has this name".to_owned();
                news.events.push(Event::AgentRefused { agent: name, why });
            }
            return news;
        }
        news.is_taken = true;
        let is_new = known.is_none_or(|it| !it.is_up || it.report.boot != report.boot);
        let mut problem = self.problem(&report, config);
        if is_new && problem.is_none() {
            news.events.push(Event::AgentUp { agent: name.clone() });
        }
        let mut state = self.all.remove(&name).unwrap_or_else(|| AgentState {
            report: report.clone(),
            heard: now,
            since: now,
            has_twin: false,
            is_up: true,
            problem: None,
            next_command: now,
            sent_ns: 0,
            lit: now,
            counted: None,
            rates: Counters::default(),
        });
        if is_new {
            (state.since, state.has_twin) = (now, false);
        }
        if problem.is_none() {
            if is_new {
                state.counted = None;
                state.next_command = now;
            }
            if let Some(counters) = &report.counters {
                problem = self.count(now, &mut state, counters).err();
            }
            self.follow(now, &mut state, &report, holder, config.lease, &mut news);
        }
        if problem != state.problem {
            if let Some(why) = problem.clone() {
                news.events.push(Event::AgentRefused { agent: name.clone(), why });
            }
            state.problem = problem;
        }
        (state.heard, state.is_up, state.report) = (now, true, report);
        self.all.insert(name, state);
        news.totals = self.take_window(now, config.period);
        news
    }

    /// Takes in whom the agent follows, and what it has applied.
    fn follow(
        &mut self,
        now: Time,
        state: &mut AgentState,
        report: &Report,
        holder: Holder,
        lease: Span,
        news: &mut News,
    ) {
        let has_circuits = report.abilities.has_circuits();
        if has_circuits {
            self.arbiter = Some(report.agent.clone());
        }
        match report.holder {
            Some(followed) if followed == holder => {
                if report.echo_ns >= state.sent_ns {
                    let sent = Time::ZERO.saturating_add(Span::from_ns(state.sent_ns));
                    let third = Span::from_ticks(lease.ticks() / 3);
                    state.next_command = state.next_command.max(sent.saturating_add(third));
                }
                if has_circuits {
                    // The lease began after the command was sent. An eighth is for clocks that differ in speed.
                    let sent = Span::from_ns(report.echo_ns.min(now.as_ns()));
                    let safe = sent + lease - Span::from_ticks(lease.ticks() / 8);
                    self.lease_until = self.lease_until.max(Time::ZERO.saturating_add(safe));
                }
            }
            Some(other) => {
                news.overtaken = Some(other);
                let is_other = (other.controller, other.start) != (holder.controller, holder.start);
                if has_circuits && is_other {
                    self.lease_until = Time::ZERO;
                }
            }
            None => {}
        }
        let Some(applied) = &report.applied else { return };
        let dark_ns = applied.dark_ns.min(report.abilities.dark_ns);
        state.lit = now.saturating_add(Span::from_ns(dark_ns));
        let before = state.report.applied.as_ref().map(|it| it.version);
        let is_ours = report.holder == Some(holder) && applied.term == holder.term;
        if is_ours && applied.refused.is_none() && before != Some(applied.version) {
            let (version, dark_ns) = (applied.version, applied.dark_ns);
            news.events.push(Event::Moved { version, dark_ns });
        }
    }

    /// What is wrong with a report.
    fn problem(&self, report: &Report, config: &Config) -> Option<String> {
        let pod = config.fabric.pod();
        let contradiction = report.abilities.contradiction(pod, config.patience);
        if contradiction.is_some() {
            return contradiction;
        }
        let other = self.arbiter.as_ref().filter(|name| **name != report.agent);
        if let Some(other) = other.filter(|_| report.abilities.has_circuits())
            && self.arbiter().is_some()
        {
            return Some(format!("`{other}` changes the circuits of this pod already"));
        }
        let wiring = report.wiring.as_ref()?;
        wiring.configuration(pod).err().map(|error| error.to_string())
    }

    /// Takes in counters.
    fn count(
        &mut self,
        now: Time,
        state: &mut AgentState,
        counters: &Counters,
    ) -> Result<(), String> {
        let servers = self.window.1.sent.len();
        if counters.sent.len() != servers || counters.received.len() != servers {
            return Err(format!("it counts for another number of servers than {servers}"));
        }
        // An agent reports more often than its switch counts.
        let is_old = |(since, before): &(Time, Counters)| {
            before == counters && now.since(*since) < COUNTED_WITHIN
        };
        if state.counted.as_ref().is_some_and(is_old) {
            return Ok(());
        }
        let Some((since, before)) = state.counted.replace((now, counters.clone())) else {
            return Ok(());
        };
        let less = |new: &[u64], old: &[u64]| new.iter().zip(old).any(|(new, old)| new < old);
        if less(&counters.sent, &before.sent) || less(&counters.received, &before.received) {
            return Err("its counters run backwards".to_owned());
        }
        let ns = now.since(since).as_ns().max(1);
        let rate = |new: &[u64], old: &[u64], sums: &mut [u64]| -> Vec<u64> {
            let all = new.iter().zip(old).zip(sums);
            let one = |((new, old), sum): ((&u64, &u64), &mut u64)| {
                let bytes = new - old;
                *sum = sum.saturating_add(bytes);
                u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(ns))
                    .unwrap_or(u64::MAX)
            };
            all.map(one).collect()
        };
        let sums = &mut self.window.1;
        state.rates = Counters {
            sent: rate(&counters.sent, &before.sent, &mut sums.sent),
            received: rate(&counters.received, &before.received, &mut sums.received),
        };
        Ok(())
    }

    /// The bytes of a period, once one is over.
    fn take_window(&mut self, now: Time, period: Span) -> Option<(Vec<u64>, Vec<u64>)> {
        let length = now.since(self.window.0);
        if length < period {
            return None;
        }
        let scale = |all: &mut [u64]| -> Vec<u64> {
            let one = |bytes: &mut u64| {
                let bytes = u128::from(std::mem::take(bytes));
                let scaled = bytes * u128::from(period.ticks()) / u128::from(length.ticks().max(1));
                u64::try_from(scaled).unwrap_or(u64::MAX)
            };
            all.iter_mut().map(one).collect()
        };
        self.window.0 = now;
        Some((scale(&mut self.window.1.sent), scale(&mut self.window.1.received)))
    }

    /// Notes which agents are silent.
    pub(super) fn expire(&mut self, now: Time, silence: Span) -> Vec<Event> {
        let mut events = Vec::new();
        for (name, state) in &mut self.all {
            if state.is_up && now.since(state.heard) > silence {
                state.is_up = false;
                events.push(Event::AgentDown { agent: name.clone() });
            }
        }
        events
    }

    /// Commands are due at once, because there is news.
    pub(super) fn renew(&mut self) {
        self.all.values_mut().for_each(|state| state.next_command = Time::ZERO);
    }

    /// The next agent to which a command is due, and whether it changes circuits.
    pub(super) fn due(
        &mut self,
        now: Time,
        is_active: bool,
        lease: Span,
    ) -> Option<(String, bool)> {
        let (name, state) = self.all.iter_mut().find(|(_, state)| {
            let is_told = is_active || state.report.abilities.has_circuits();
            state.is_up && state.problem.is_none() && is_told && state.next_command <= now
        })?;
        // A claim that is not followed has time.
        let again = if is_active { REPEAT } else { Span::from_ticks(lease.ticks() / 6) };
        state.next_command = now.saturating_add(again);
        state.sent_ns = now.as_ns();
        Some((name.clone(), state.report.abilities.has_circuits()))
    }

    /// When a command is due.
    pub(super) fn next_command(&self) -> Time {
        let up = self.all.values().filter(|it| it.is_up && it.problem.is_none());
        up.map(|it| it.next_command).min().unwrap_or(Time::MAX)
    }
}

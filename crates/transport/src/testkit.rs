//! Schedules of faults, and what must hold of messages under any of them: the same in the simulated world and
//! in the real one.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::{Event, HostId, Kind, MessageId, Rng, Span};

use crate::TransportConfig;

/// Checks that a test's list has every transport that answers requests, so that a new one is not forgotten in it.
///
/// # Panics
/// If a transport other than datagrams is missing.
pub fn assert_complete<'a>(list: impl Iterator<Item = &'a TransportConfig>) {
    let listed: BTreeSet<_> = list.map(TransportConfig::name).collect();
    for name in TransportConfig::names().filter(|name| *name != "datagram") {
        assert!(listed.contains(name), "the list has no {name}");
    }
}

/// What happens to packets between hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Share of packets that are lost.
    pub loss: f64,
    /// Share of packets that arrive twice.
    pub duplication: f64,
    /// Share of packets (and of second copies) that are late.
    pub reordering: f64,
    /// How late they are at most.
    pub lateness: Span,
}

/// Messages between hosts, in 16 steps, and what goes wrong meanwhile.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// All else that is random comes from it.
    pub seed: u64,
    /// How many hosts.
    pub hosts: u32,
    /// How many messages.
    pub messages: u64,
    /// Bytes of the longest.
    pub longest: u64,
    /// What happens to packets.
    pub faults: Faults,
    /// Of 16 steps, which restart a host ...
    pub restarts: u16,
    /// ... or cut it off.
    pub outages: u16,
}

impl Schedule {
    /// Any schedule, with up to these shares of packets lost, doubled and late.
    #[must_use]
    pub fn any(seed: u64, most: Faults) -> Self {
        let mut rng = Rng::stream(seed, 0, 0, "any schedule");
        let mut share = |most: f64| most * rng.below(1001) as f64 / 1000.0;
        let loss = share(most.loss);
        let duplication = share(most.duplication);
        let reordering = share(most.reordering);
        let lateness = Span(rng.below(most.lateness.0 + 1));
        let (restarts, outages) = (rng.below(1 << 16), rng.below(1 << 16));
        let rare = rng.below(1 << 16);
        Self {
            seed,
            hosts: 2 + rng.below(3) as u32,
            messages: 1 + rng.below(39),
            longest: 1 + rng.below(59_999),
            faults: Faults { loss, duplication, reordering, lateness },
            restarts: (restarts & outages & rare) as u16,
            outages: (outages & !restarts & rare) as u16,
        }
    }

    /// Who sends how many bytes to whom.
    pub fn message(&self, rng: &mut Rng) -> (u32, u32, Kind, u64) {
        let from = rng.below(u64::from(self.hosts)) as u32;
        let to = (from + 1 + rng.below(u64::from(self.hosts - 1)) as u32) % self.hosts;
        let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
        (from, to, kind, 1 + rng.below(self.longest))
    }

    /// How many messages begin in a step.
    #[must_use]
    pub const fn messages_in(&self, step: u64) -> u64 {
        self.messages / 16 + (step < self.messages % 16) as u64
    }
}

/// The last event of a message at its sender.
#[derive(Debug, Default)]
struct Fate {
    sent: u32,
    answered: u32,
    failed: u32,
    delivered: u32,
}

/// What became of messages.
#[derive(Debug, Default)]
pub struct Fates {
    /// By sender, receiver and id.
    submitted: BTreeMap<(u32, u32, MessageId), Kind>,
    fates: BTreeMap<(u32, u32, MessageId), Fate>,
    /// Receiver, sender, id: in this life of the receiver.
    delivered: BTreeSet<(u32, u32, MessageId)>,
    /// Hosts that have restarted.
    restarted: BTreeSet<u32>,
    /// Lost packets are not repaired: what was sent need not have arrived.
    loses: bool,
}

impl Fates {
    /// Of a transport that repairs losses, or not.
    #[must_use]
    pub fn new(repairs: bool) -> Self {
        Self { loses: !repairs, ..Self::default() }
    }

    /// A host has submitted a message.
    pub fn submitted(&mut self, from: u32, to: u32, id: MessageId, kind: Kind) {
        self.submitted.insert((from, to, id), kind);
    }

    /// A host has restarted.
    pub fn restarted(&mut self, host: u32) {
        self.restarted.insert(host);
        self.delivered.retain(|(receiver, ..)| *receiver != host);
    }

    /// An event of a host.
    ///
    /// # Errors
    /// If it can't be.
    pub fn record_event(&mut self, host: HostId, event: &Event) -> Result<(), String> {
        match *event {
            Event::Delivered { peer, id, kind, .. } => {
                if !self.delivered.insert((host.0, peer.0, id)) {
                    return Err(format!("{id} from {peer} is delivered twice to {host}"));
                }
                if kind == Kind::Response {
                    self.fate(host, peer, MessageId(id.0 ^ 1)).answered += 1;
                } else if self.submitted.get(&(peer.0, host.0, id)) != Some(&kind) {
                    return Err(format!("{event:?} at {host}: nobody sent it"));
                } else {
                    self.fate(peer, host, id).delivered += 1;
                }
            }
            Event::Sent { peer, id } if !id.is_response() => self.fate(host, peer, id).sent += 1,
            Event::Failed { peer, id, .. }
                if self.submitted.contains_key(&(host.0, peer.0, id)) =>
            {
                self.fate(host, peer, id).failed += 1;
            }
            Event::Sent { .. } | Event::Failed { .. } | Event::Stream(_) => {}
        }
        Ok(())
    }

    fn fate(&mut self, from: HostId, to: HostId, id: MessageId) -> &mut Fate {
        self.fates.entry((from.0, to.0, id)).or_default()
    }

    fn ended(kind: Kind, fate: &Fate) -> u32 {
        fate.failed + if kind == Kind::Request { fate.answered } else { fate.sent }
    }

    /// How many messages have not ended whose sender has lived all the time.
    #[must_use]
    pub fn open(&self) -> usize {
        let open = |(&(from, to, id), &kind): (&(u32, u32, MessageId), &Kind)| {
            let ended = self.fates.get(&(from, to, id)).map_or(0, |fate| Self::ended(kind, fate));
            ended == 0 && !self.restarted.contains(&from)
        };
        self.submitted.iter().filter(|entry| open(*entry)).count()
    }

    /// Checks that each message has ended once, and was delivered once if it was to be.
    ///
    /// # Errors
    /// Which has not.
    pub fn check(&self) -> Result<(), String> {
        for (&(from, to, id), &kind) in &self.submitted {
            let none = Fate::default();
            let fate = self.fates.get(&(from, to, id)).unwrap_or(&none);
            let ended = Self::ended(kind, fate);
            let over = ended == 1 || self.restarted.contains(&from);
            let once = fate.delivered <= 1 || self.restarted.contains(&to);
            let arrived = fate.answered + fate.sent == 0 || fate.delivered > 0 || self.loses;
            if ended > 1 || fate.sent > 1 || !over || !once || !arrived {
                return Err(format!("{from}>{to} {id}: {fate:?}"));
            }
        }
        Ok(())
    }
}

//! Schedules of faults, and the properties that messages must have under any of them, in the simulator and on
//! real hosts.

use std::collections::{BTreeMap, BTreeSet};

use rackweave_core::{Event, HostId, Kind, MessageId, Rng, Span};

/// Probabilities of faults of packets between hosts, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplication: f64,
    /// Probability that a packet, or its duplicate, is delayed.
    pub reordering: f64,
    /// Maximum delay of a delayed packet.
    pub lateness: Span,
}

/// Messages between hosts in 16 steps, with packet faults, restarts and outages.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Seed of all other random choices.
    pub seed: u64,
    /// Number of hosts.
    pub hosts: u32,
    /// Number of messages.
    pub messages: u64,
    /// Maximum message length, in bytes.
    pub longest: u64,
    /// Faults of packets.
    pub faults: Faults,
    /// Bit `i` is set if a host restarts in step `i`.
    pub restarts: u16,
    /// Bit `i` is set if a host is cut off in step `i`.
    pub outages: u16,
}

impl Schedule {
    /// Draws a schedule whose fault probabilities do not exceed `most`.
    #[must_use]
    pub fn any(seed: u64, most: Faults) -> Self {
        let mut rng = Rng::stream(seed, 0, 0, "any schedule");
        let mut share = |most: f64| most * rng.below(1001) as f64 / 1000.0;
        let loss = share(most.loss);
        let duplication = share(most.duplication);
        let reordering = share(most.reordering);
        let lateness = Span::from_ticks(rng.below(most.lateness.ticks() + 1));
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

    /// Draws the sender, receiver, kind and length of a message.
    pub fn message(&self, rng: &mut Rng) -> (u32, u32, Kind, u64) {
        let from = rng.below(u64::from(self.hosts)) as u32;
        let to = (from + 1 + rng.below(u64::from(self.hosts - 1)) as u32) % self.hosts;
        let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
        (from, to, kind, 1 + rng.below(self.longest))
    }

    /// Number of messages that start in a step.
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

/// Records the outcome of every message.
#[derive(Debug, Default)]
pub struct Fates {
    /// Submitted messages, by sender, receiver and id.
    submitted: BTreeMap<(u32, u32, MessageId), Kind>,
    fates: BTreeMap<(u32, u32, MessageId), Fate>,
    /// Messages delivered to the current incarnation of the receiver, by receiver, sender and id.
    delivered: BTreeSet<(u32, u32, MessageId)>,
    /// Hosts that have restarted.
    restarted: BTreeSet<u32>,
    /// Whether the transport leaves losses unrepaired, so that a message reported as sent need not arrive.
    loses: bool,
}

impl Fates {
    /// Creates an empty record for a transport that repairs losses, or one that does not.
    #[must_use]
    pub fn new(repairs: bool) -> Self {
        Self { loses: !repairs, ..Self::default() }
    }

    /// Records that a host has submitted a message.
    pub fn submitted(&mut self, from: u32, to: u32, id: MessageId, kind: Kind) {
        self.submitted.insert((from, to, id), kind);
    }

    /// Records that a host has restarted.
    pub fn restarted(&mut self, host: u32) {
        self.restarted.insert(host);
        self.delivered.retain(|(receiver, ..)| *receiver != host);
    }

    /// Records an event of a host.
    ///
    /// # Errors
    ///
    /// If the event contradicts earlier ones.
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

    /// Number of messages that have not ended although their sender has never restarted.
    #[must_use]
    pub fn open(&self) -> usize {
        let open = |(&(from, to, id), &kind): (&(u32, u32, MessageId), &Kind)| {
            let ended = self.fates.get(&(from, to, id)).map_or(0, |fate| Self::ended(kind, fate));
            ended == 0 && !self.restarted.contains(&from)
        };
        self.submitted.iter().filter(|entry| open(*entry)).count()
    }

    /// Checks that each message has ended once, and was delivered once if it was to be delivered.
    ///
    /// # Errors
    ///
    /// Names a message that violates this.
    pub fn check(&self) -> Result<(), String> {
        for (&(from, to, id), &kind) in &self.submitted {
            let none = Fate::default();
            let fate = self.fates.get(&(from, to, id)).unwrap_or(&none);
            let ended = Self::ended(kind, fate);
            let over = ended == 1 || self.restarted.contains(&from);
            let once = fate.delivered <= 1 || self.restarted.contains(&to);
            let arrived = fate.answered + fate.sent == 0 || fate.delivered > 0 || self.loses;
            if ended > 1 || fate.sent > 1 || !over || !once || !arrived {
                let rule = match (over, ended, once, arrived) {
                    (false, ..) => "it has not ended, and its sender has not restarted",
                    (_, 2.., ..) => "it has ended more than once",
                    (_, _, false, _) => "it was delivered more than once",
                    (.., false) => {
                        "its sender was told that it has arrived, and it was not delivered"
                    }
                    _ => "it was reported as sent more than once",
                };
                return Err(format!("message {id} from h{from} to h{to}: {rule} ({fate:?})"));
            }
        }
        Ok(())
    }
}

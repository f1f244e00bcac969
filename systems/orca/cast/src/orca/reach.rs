//! Which hosts multicast reaches: probes before a cast, and of hosts that were silent then when they join.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rackweave_core::{HostId, Span, Time};
use rackweave_linux::Driver;
use rackweave_linux::sys::{Path, UdpSocket};
use rackweave_orca::host::Spread;

use super::probe::{self, Probe};
use super::{Engine, EnginePlatform};
use crate::source::Payload;

/// The time between two probes of the hosts that were silent: all of them at once, since each member of the group answers.
const EVERY: Span = Span::from_ms(200);
/// The number of answers to its own probes after which a host that answers no probe of the group is not reached by it.
const ENOUGH: u8 = 4;
/// The most probes of a host while it is in the group.
const MOST: u8 = 20;

/// How hosts are reached, as [`Engine::probe`] has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Multicast if it reaches several of the hosts, or all that answer.
    pub spread: Spread,
    /// The hosts that do not answer. With multicast they are probed again when they are members of the group.
    pub silent: Vec<HostId>,
    /// The hosts that answer, but are not reached by multicast. In sessions with that spread they get copies of their own.
    pub apart: Vec<HostId>,
}

/// The outstanding probes, and the answers to them.
#[derive(Debug, Default)]
pub(super) struct Probes {
    nonce: u64,
    asked: Time,
    one: BTreeMap<HostId, Span>,
    group: BTreeMap<HostId, Span>,
    /// The hosts that were silent.
    late: BTreeMap<HostId, Late>,
    /// When members of the group among these are next probed.
    next: Option<Time>,
    /// The hosts that have answered a probe of the group.
    reached: BTreeSet<HostId>,
    /// The hosts that multicast does not reach.
    apart: BTreeSet<HostId>,
}

/// A host that was silent before the cast. It is probed while it is in the group: otherwise it does not listen there.
#[derive(Clone, Copy, Debug, Default)]
struct Late {
    /// When it has been told to listen for long enough; `None` if it is not in the group.
    member_from: Option<Time>,
    probes: u8,
    answers: u8,
}

impl Late {
    fn is_member(&self, now: Time) -> bool {
        self.member_from.is_some_and(|from| from <= now)
    }
}

impl Engine<UdpSocket> {
    /// Determines which of these hosts answer, which of those are reached by multicast, and thereby how a stream to all of them is best
    /// spread. It returns as soon as the answers suffice.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn probe(&mut self, hosts: &[HostId]) -> io::Result<Reach> {
        self.start_probe(hosts);
        let began = self.driver.now();
        let mut repeat_at = began + Span::from_ms(2);
        loop {
            self.send(self.driver.last_now())?;
            Driver::receive(self)?;
            let now = self.driver.now();
            let all =
                |heard: &BTreeMap<HostId, Span>| hosts.iter().all(|it| heard.contains_key(it));
            if all(&self.probes.group) {
                break;
            }
            // If multicast reaches a host at all, the host answers the group's probe about as fast as its own.
            let slowest = self.probes.one.values().max().copied().unwrap_or_default();
            let limit = if all(&self.probes.one) {
                began + Span::from_ms(5).max(slowest * 3)
            } else {
                began + Span::from_ms(25)
            };
            if now >= limit {
                break;
            }
            if now >= repeat_at {
                self.send_probes(hosts);
                repeat_at = now + Span::from_ms(5);
                continue;
            }
            self.wait(Some(limit.min(repeat_at)))?;
        }
        Ok(self.probes.found(hosts))
    }
}

impl Probes {
    fn found(&mut self, hosts: &[HostId]) -> Reach {
        let Self { one, group, .. } = &*self;
        let reached = hosts.iter().filter(|it| group.contains_key(it)).count();
        // A host that is absent gets no copies, so it does not matter whether multicast reaches it.
        let is_apart = |it: &&HostId| one.contains_key(it) && !group.contains_key(it);
        let apart: Vec<HostId> = hosts.iter().filter(is_apart).copied().collect();
        // Two hosts that multicast reaches cost one copy less than by unicast, whatever the others need.
        let by_group = reached > 1 || (reached == 1 && apart.is_empty());
        let answers = |it: &HostId| one.contains_key(it) || group.contains_key(it);
        let silent: Vec<HostId> = hosts.iter().filter(|it| !answers(it)).copied().collect();
        self.apart.extend(&apart);
        let spread = match by_group && hosts.len() > 1 {
            true => Spread::Multicast,
            false => Spread::Unicast,
        };
        if spread == Spread::Multicast {
            self.late.extend(silent.iter().map(|host| (*host, Late::default())));
        }
        Reach { spread, silent, apart }
    }

    /// Whether multicast reaches a host; `None` if that is not known.
    pub(super) fn reaches(&self, host: HostId) -> Option<bool> {
        match (self.reached.contains(&host), self.apart.contains(&host)) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }

    fn heard(&mut self, now: Time, host: HostId, answer: Probe) {
        let span = now.since(self.asked);
        if answer == Probe::GroupReply {
            self.group.entry(host).or_insert(span);
            self.reached.insert(host);
            // Sessions that are open go on with copies of its own.
            self.apart.remove(&host);
            self.late.remove(&host);
            return;
        }
        self.one.entry(host).or_insert(span);
        if let Some(late) = self.late.get_mut(&host).filter(|late| late.is_member(now)) {
            late.answers = late.answers.saturating_add(1);
        }
    }
}

impl<P: EnginePlatform> Engine<P> {
    pub(super) fn handle_probe(&mut self, now: Time, from: Path, bytes: &[u8]) {
        let Some((probe, nonce)) = probe::decode(bytes, self.secret.as_ref()) else {
            self.stats.malformed += 1;
            return;
        };
        let answer = match probe {
            Probe::Unicast => Probe::UnicastReply,
            Probe::Group => Probe::GroupReply,
            Probe::UnicastReply | Probe::GroupReply => {
                if nonce == self.probes.nonce
                    && let Some(host) = self.peers.find(now, from)
                {
                    self.probes.heard(now, host, probe);
                }
                return;
            }
        };
        // Only receivers of streams answer probes.
        if self.accept.is_some() && self.peers.admits_sender(from.remote) {
            let bytes = probe::encode(answer, nonce, self.secret.as_ref());
            self.reply(from, &bytes);
        }
    }

    fn send_probe(&mut self, to: impl Into<Path>, probe: Probe, nonce: u64) {
        let bytes = probe::encode(probe, nonce, self.secret.as_ref());
        self.push(to, |out| out.extend_from_slice(&bytes), Payload::new());
    }

    /// Starts to probe these hosts, each by unicast and all of them by multicast. What is known of others stays.
    pub(super) fn start_probe(&mut self, hosts: &[HostId]) {
        let probes = &mut self.probes;
        (probes.one, probes.group) = (BTreeMap::new(), BTreeMap::new());
        self.forget_reach(hosts);
        self.probes.nonce = self.driver.platform().random() as u64;
        self.probes.asked = self.driver.now();
        self.send_probes(hosts);
    }

    pub(super) fn send_probes(&mut self, hosts: &[HostId]) {
        let nonce = self.probes.nonce;
        for host in hosts {
            if let Some(path) = self.peers.path(*host) {
                self.send_probe(path, Probe::Unicast, nonce);
            }
        }
        if !hosts.is_empty() && self.config.bind.is_ipv4() {
            self.send_probe(self.group_address(), Probe::Group, nonce);
        }
    }

    /// A host is in the group from now on, and is probed if it was silent before.
    pub(super) fn probe_member(&mut self, now: Time, host: HostId) {
        if let Some(late) = self.probes.late.get_mut(&host) {
            late.member_from = Some(now + EVERY);
            self.probes.next = self.probes.next.or(late.member_from);
        }
    }

    /// A host is not in the group any more.
    pub(super) fn stop_probing(&mut self, host: HostId) {
        if let Some(late) = self.probes.late.get_mut(&host) {
            late.member_from = None;
        }
    }

    /// Forgets which of these hosts multicast reaches, as the user says how they are to be reached.
    pub fn forget_reach(&mut self, hosts: &[HostId]) {
        for host in hosts {
            self.probes.late.remove(host);
            self.probes.reached.remove(host);
            self.probes.apart.remove(host);
        }
    }

    /// When hosts that were silent are next probed.
    pub(super) const fn next_probe(&self) -> Option<Time> {
        self.probes.next
    }

    /// Probes hosts that were silent before their cast and are in its group now. The ones that multicast does not reach leave it.
    pub(super) fn probe_late_hosts(&mut self, now: Time) {
        if self.next_probe().is_none_or(|at| at > now) {
            return;
        }
        let (mut due, mut apart) = (Vec::new(), Vec::new());
        let mut waits = false;
        for (host, late) in self.probes.late.iter_mut() {
            if !late.is_member(now) {
                waits |= late.member_from.is_some();
            } else if late.answers >= ENOUGH {
                apart.push(*host);
            } else if late.probes == MOST {
                // It is not known.
                late.member_from = None;
            } else {
                late.probes += 1;
                due.push(*host);
            }
        }
        self.probes.next = (waits || !due.is_empty()).then(|| now + EVERY);
        if !due.is_empty() {
            self.send_probes(&due);
        }
        for host in apart {
            self.probes.late.remove(&host);
            self.probes.apart.insert(host);
            for (session, sending) in &self.sending {
                if sending.is_to_group(host) {
                    self.host.take_from_group(now, *session, host);
                }
            }
        }
    }
}

//! The tree of relays, for networks without label switches. The sender sends one copy to each rack, whose receivers forward it.
//!
//! Orca needs label switches; this tree for networks without them is our extension. A rack's receivers in the order of
//! their ports form a tree with [`FANOUT`] children each. A relay's label is the set of its children's ports, and it
//! gets the label by `Sync`, as agents get labels from the controller. Children have higher ports than their relay and
//! no relay sends to lower ones, so outdated labels may duplicate packets but never make them circulate. Receivers that
//! no relay with a confirmed label reaches get a copy from the sender.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Place};

use crate::agent::ANY_RACK;

/// The number of copies that a relay sends. With one, the tree is a chain in which each link carries the stream once.
const FANOUT: usize = 1;
/// The interval before the first repetition of a `Sync`; it doubles up to the maximum.
const RETRY: Span = Span::from_ms(5);
const RETRY_MAX: Span = Span::from_ms(500);
/// The time of silence, while data is in flight, after which a relay is bypassed until a packet arrives from it.
const SUSPECT_AFTER: Span = Span::from_ms(250);

#[derive(Clone, Debug)]
struct Node {
    place: Place,
    last_heard: Time,
    suspect: bool,
    /// The label that it should have, and the version of the `Sync` that carries it.
    ports: u64,
    version: u32,
    acked: bool,
    retry_at: Time,
    attempts: u8,
    /// Whether it has left the tree. It is removed once it has confirmed an empty label.
    leaving: bool,
}

/// The relays of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    nodes: BTreeMap<HostId, Node>,
    version: u32,
}

impl Tree {
    /// Adds a host to the tree, or removes it.
    pub(super) fn set(&mut self, now: Time, host: HostId, place: Place, takes_part: bool) {
        if takes_part {
            let node = self.nodes.entry(host).or_insert(Node {
                place,
                last_heard: now,
                suspect: false,
                ports: 0,
                version: 0,
                // A host without a label already relays nothing.
                acked: true,
                retry_at: now,
                attempts: 0,
                leaving: false,
            });
            (node.leaving, node.last_heard) = (false, now);
        } else if let Some(node) = self.nodes.get_mut(&host) {
            node.leaving = true;
        }
        self.assign_labels(now);
    }

    /// Records a packet from this host. Returns whether that changes the tree.
    pub(super) fn mark_alive(&mut self, now: Time, host: HostId) -> bool {
        let Some(node) = self.nodes.get_mut(&host) else { return false };
        node.last_heard = now;
        if !node.suspect {
            return false;
        }
        node.suspect = false;
        self.assign_labels(now);
        true
    }

    /// Bypasses relays that have been silent while data was in flight, since `busy`. Returns whether the tree changed.
    pub(super) fn suspect_silent(&mut self, now: Time, busy: Time) -> bool {
        let mut changed = false;
        for node in self.nodes.values_mut().filter(|node| !node.suspect && node.ports != 0) {
            node.suspect = now.since(node.last_heard.max(busy)) >= SUSPECT_AFTER;
            changed |= node.suspect;
        }
        if changed {
            self.assign_labels(now);
        }
        changed
    }

    /// Returns the time at which [`Tree::suspect_silent`] may next find a silent relay.
    pub(super) fn next_suspicion(&self, busy: Time) -> Option<Time> {
        let relays = self.nodes.values().filter(|node| !node.suspect && node.ports != 0);
        relays.map(|node| node.last_heard.max(busy).saturating_add(SUSPECT_AFTER)).min()
    }

    /// Handles a relay's confirmation of its label. Returns whether it is the current label.
    pub(super) fn confirm(&mut self, host: HostId, version: u32) -> bool {
        let Some(node) = self.nodes.get_mut(&host).filter(|node| node.version == version) else {
            return false;
        };
        node.acked = true;
        if node.leaving {
            self.nodes.remove(&host);
        }
        true
    }

    /// Assigns labels to all relays.
    fn assign_labels(&mut self, now: Time) {
        let mut racks: BTreeMap<u16, Vec<(u8, HostId)>> = BTreeMap::new();
        for (host, node) in self.nodes.iter().filter(|(_, node)| !node.leaving) {
            racks.entry(node.place.rack).or_default().push((node.place.port, *host));
        }
        let mut labels: BTreeMap<HostId, u64> = BTreeMap::new();
        for members in racks.values_mut() {
            members.sort_unstable();
            // Suspects do not relay, and get a separate copy.
            members.retain(|(_, host)| !self.nodes[host].suspect);
            for (n, (_, host)) in members.iter().enumerate() {
                let children = members.iter().skip(FANOUT * n + 1).take(FANOUT);
                let ports = children.fold(0, |ports, (port, _)| ports | 1 << (port & 63));
                labels.insert(*host, ports);
            }
        }
        for (host, node) in &mut self.nodes {
            let ports = labels.get(host).copied().unwrap_or(0);
            if ports != node.ports {
                self.version += 1;
                (node.ports, node.version, node.acked) = (ports, self.version, false);
                (node.retry_at, node.attempts) = (now, 0);
            }
        }
        self.nodes.retain(|_, node| !node.leaving || !node.acked && node.attempts < 6);
    }

    /// Returns the hosts that need a copy from the sender.
    pub(super) fn roots(&self) -> Vec<HostId> {
        let mut reached: BTreeMap<u16, u64> = BTreeMap::new();
        let mut roots = Vec::new();
        let mut order: Vec<_> = self.nodes.iter().filter(|(_, node)| !node.leaving).collect();
        // Parents come before their children.
        order.sort_unstable_by_key(|(host, node)| (node.place.rack, node.place.port, **host));
        for (host, node) in order {
            let in_rack = reached.entry(node.place.rack).or_default();
            if *in_rack >> (node.place.port & 63) & 1 == 0 || node.suspect {
                roots.push(*host);
            }
            if node.acked && !node.suspect {
                *in_rack |= node.ports;
            }
        }
        roots
    }

    /// Returns the next `Sync` to send.
    pub(super) fn poll(&mut self, now: Time) -> Option<(HostId, Body)> {
        self.nodes.retain(|_, node| !(node.leaving && node.attempts >= 6));
        let due = |node: &Node| !node.acked && node.retry_at <= now;
        let (host, node) = self.nodes.iter_mut().map(|(h, n)| (*h, n)).find(|(_, n)| due(n))?;
        let wait = (RETRY * (1 << node.attempts.min(10))).min(RETRY_MAX);
        node.retry_at = now.saturating_add(wait);
        node.attempts = node.attempts.saturating_add(1);
        Some((host, Body::Sync { rack: ANY_RACK, ports: node.ports, version: node.version }))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.nodes.values().filter(|node| !node.acked).map(|node| node.retry_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(host: u32) -> Place {
        Place { rack: (host / 64) as u16, port: (host % 64) as u8 }
    }

    fn confirm_all(tree: &mut Tree, now: Time) -> usize {
        let mut syncs = 0;
        while let Some((host, Body::Sync { version, .. })) = tree.poll(now) {
            tree.confirm(host, version);
            syncs += 1;
        }
        syncs
    }

    #[test]
    fn one_copy_a_rack_once_relays_have_confirmed() {
        let mut tree = Tree::default();
        let hosts = [3, 1, 2, 70, 66, 200];
        for host in hosts {
            tree.set(Time::ZERO, HostId(host), place(host), true);
        }
        let all: Vec<_> = [1, 2, 3, 66, 70, 200].map(HostId).into();
        assert_eq!(tree.roots(), all, "no relay has confirmed");
        assert_eq!(confirm_all(&mut tree, Time::ZERO), 3);
        assert_eq!(tree.roots(), [1, 66, 200].map(HostId));
        // A relay leaves: the receivers behind it get copies until the new relay has confirmed its label.
        tree.set(Time::ZERO, HostId(2), place(2), false);
        assert_eq!(tree.roots(), [1, 3, 66, 200].map(HostId));
        assert_eq!(confirm_all(&mut tree, Time::ZERO), 2);
        assert_eq!(tree.roots(), [1, 66, 200].map(HostId));
    }

    #[test]
    fn a_silent_relay_is_passed_over_until_it_is_heard() {
        let mut tree = Tree::default();
        for host in 1..4 {
            tree.set(Time::ZERO, HostId(host), place(host), true);
        }
        confirm_all(&mut tree, Time::ZERO);
        assert_eq!(tree.next_suspicion(Time::ZERO), Some(Time::ZERO + SUSPECT_AFTER));
        let late = Time::ZERO + SUSPECT_AFTER;
        tree.mark_alive(late, HostId(2));
        assert!(tree.suspect_silent(late, Time::ZERO));
        confirm_all(&mut tree, late);
        assert_eq!(tree.roots(), [1, 2].map(HostId), "3 is behind 2");
        assert!(tree.mark_alive(late, HostId(1)));
        confirm_all(&mut tree, late);
        assert_eq!(tree.roots(), [1].map(HostId));
        assert!(!tree.suspect_silent(late, late));
    }
}

//! One session that this host sends: the stream's machine, and the ways by which its packets reach everyone.

use std::collections::BTreeSet;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Label, Labelled};

use super::Spread;
use super::client::Client;
use super::tree::Tree;
use crate::orca::flow;
use crate::orca::label::Layout;

/// Longest wait of a stream's start for labels.
const HOLD: Span = Span::from_ms(10);

/// A sender that was its rack's active agent, and got none of so many packets back, is it no longer.
const ELSEWHERE: u32 = 1 << 14;

/// Where a copy of what is for everyone goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// `None`: to all members.
    pub(super) to: Option<HostId>,
    pub(super) labelled: Labelled,
    pub(super) label: Label,
}

/// A session that this host sends.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) flow: flow::Sender,
    spread: Spread,
    attached: BTreeSet<HostId>,
    pub(super) client: Option<Client>,
    tree: Tree,
    /// Copies of each piece; computed anew when it is not up to date.
    copies: Vec<Copy>,
    stale: bool,
    /// This host is the active agent of its rack: what is to come back to the rack comes to the one host that has it.
    is_active: bool,
    /// Packets with a pilot label since one has come back.
    gone: u32,
    /// Since when data has been under way.
    busy: Option<Time>,
    offered: u64,
    /// Until then the stream waits for labels, lest it begin with a copy for each.
    hold_until: Option<Time>,
    is_holding: bool,
    /// Kept for late questions until then.
    pub(super) over_at: Option<Time>,
}

impl Copy {
    const fn one(host: HostId) -> Self {
        Self { to: Some(host), labelled: Labelled::Host, label: Label(0) }
    }
}

impl Sending {
    pub(super) fn new(now: Time, flow: flow::Sender, spread: Spread) -> Self {
        Self {
            flow,
            spread,
            attached: BTreeSet::new(),
            client: (spread == Spread::Labels).then(|| Client::new(now)),
            tree: Tree::default(),
            copies: Vec::new(),
            stale: true,
            is_active: false,
            gone: 0,
            busy: None,
            offered: 0,
            hold_until: None,
            is_holding: false,
            over_at: None,
        }
    }

    pub(super) fn offer(&mut self, now: Time, upto: u64) {
        self.offered = self.offered.max(upto);
        self.flow.offer(now, upto);
    }

    /// What goes to everyone is to reach this host, or need not any more.
    pub(super) fn attach(&mut self, now: Time, host: HostId, layout: &Layout, attached: bool) {
        let changed =
            if attached { self.attached.insert(host) } else { self.attached.remove(&host) };
        if !changed {
            return;
        }
        self.stale = true;
        if let Some(client) = &mut self.client {
            client.want(now, host, attached);
            self.hold_until.get_or_insert(now.saturating_add(HOLD));
        }
        if self.spread == Spread::Relay {
            self.tree.set(now, host, layout.place(host), attached);
        }
    }

    pub(super) fn handle_control(&mut self, now: Time, from: HostId, body: &Body) {
        if self.spread == Spread::Relay {
            self.stale |= self.tree.hear(now, from);
        }
        match body {
            Body::SyncDone { version, .. } => self.stale |= self.tree.confirm(from, *version),
            _ => self.flow.handle_control(now, from, body),
        }
    }

    pub(super) fn handle_controller(&mut self, now: Time, body: &Body) {
        if let Some(client) = &mut self.client {
            self.stale |= client.handle(now, body);
        }
    }

    /// The sender's own data has come to it as to its rack's active agent. Ours: it labels for its rack by its own table then, lest the driver have
    /// to relay what it sends.
    pub(super) fn comes_back(&mut self) {
        self.stale |= !self.is_active;
        (self.is_active, self.gone) = (true, 0);
    }

    /// So many packets go with a pilot label.
    pub(super) fn goes(&mut self, packets: u32) {
        self.gone = self.gone.saturating_add(packets);
        if self.is_active && self.gone >= ELSEWHERE {
            (self.is_active, self.stale) = (false, true);
        }
    }

    /// A rack has lost its last agent, or has one again.
    pub(super) fn served(&mut self, now: Time, rack: u16, agent: bool, layout: &Layout) {
        if let Some(client) = &mut self.client {
            self.stale |= client.served(now, rack, agent, layout);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.flow.handle_timeout(now);
        if let Some(busy) = self.busy {
            self.stale |= self.tree.check(now, busy);
        }
    }

    /// Nothing is left to do for it but to answer late questions.
    pub(super) fn close(&mut self, now: Time) {
        if let Some(client) = &mut self.client {
            client.close(now);
        }
        for host in std::mem::take(&mut self.attached) {
            // Relays need not be told: nothing comes that they could send on.
            self.tree.set(now, host, Default::default(), false);
        }
        self.tree = Tree::default();
        self.stale = true;
    }

    /// Whether the controller still has to be told.
    pub(super) fn is_closing(&self) -> bool {
        self.client.as_ref().is_some_and(|client| !client.is_closed())
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let check = self.busy.and_then(|busy| self.tree.check_at(busy));
        [
            self.flow.poll_timeout(),
            self.client.as_ref().and_then(Client::poll_timeout),
            self.tree.poll_timeout(),
            check,
            self.hold_until.filter(|_| self.is_holding),
            // It is not forgotten before the controller knows.
            self.over_at.filter(|_| !self.is_closing()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What is to be told to the controller or to relays.
    pub(super) fn poll_plane(&mut self, now: Time) -> Option<(Option<HostId>, Body)> {
        if let Some(body) = self.client.as_mut().and_then(|client| client.poll(now)) {
            return Some((None, body));
        }
        self.tree.poll(now).map(|(host, body)| (Some(host), body))
    }

    /// Notes whether data is under way: relays are expected to speak only then.
    pub(super) fn note_progress(&mut self, now: Time) {
        if self.spread == Spread::Relay {
            let under_way = self.flow.released() < self.offered;
            self.busy = under_way.then(|| self.busy.unwrap_or(now));
        }
    }

    /// The copies of what goes to everyone, from a host that sees `ports` links.
    pub(super) fn copies(&mut self, now: Time, me: HostId, layout: &Layout, ports: u8) -> &[Copy] {
        if self.stale || self.is_holding {
            self.hold(now, layout);
        }
        if self.stale {
            self.stale = false;
            self.copies.clear();
            self.fill_copies(me, layout, ports);
            self.flow.set_copies(self.copies.len() as u32);
        }
        &self.copies
    }

    /// At its start the stream waits until at most one receiver needs a copy of its own, but not for long.
    fn hold(&mut self, now: Time, layout: &Layout) {
        let (Some(client), Some(until)) = (&self.client, self.hold_until) else { return };
        let is_reached = |host: &HostId| {
            client.covered().contains(host) && !client.is_dark(layout.place(*host).rack)
        };
        let unreached = self.attached.iter().filter(|host| !is_reached(host));
        self.is_holding = now < until && unreached.take(2).count() == 2;
        self.flow.hold(now, self.is_holding);
    }

    fn fill_copies(&mut self, me: HostId, layout: &Layout, ports: u8) {
        let copies = &mut self.copies;
        match self.spread {
            Spread::Unicast => copies.extend(self.attached.iter().copied().map(Copy::one)),
            Spread::Multicast if !self.attached.is_empty() => {
                copies.push(Copy { to: None, labelled: Labelled::Host, label: Label(0) });
            }
            Spread::Multicast => {}
            Spread::Relay => {
                copies.extend(
                    self.tree
                        .roots()
                        .into_iter()
                        .map(|host| Copy { labelled: Labelled::Pilot, ..Copy::one(host) }),
                );
            }
            Spread::Labels => {
                let Some(client) = &self.client else { return };
                let (pilot, own) = client.labels();
                let (covered, own_rack) = (client.covered(), layout.place(me).rack);
                let at_home = |host: &HostId| ports == 1 && layout.place(*host).rack == own_rack;
                // Where the pilot label can't lead back, or only to this host, or doesn't lead anywhere, the sender's rack gets a copy labelled
                // by the sender's own table ("application flow"), for which it needs no agent.
                let any_home = self.attached.iter().any(|it| covered.contains(it) && at_home(it));
                let label_home =
                    any_home && (pilot.0 == 0 || !layout.reaches_own_rack() || self.is_active);
                let by_table = |it: &HostId| covered.contains(it) && label_home && at_home(it);
                let by_agent = |it: &HostId| {
                    let is_dark = || client.is_dark(layout.place(*it).rack);
                    covered.contains(it) && !by_table(it) && !is_dark()
                };
                if self.attached.iter().any(by_agent) {
                    copies.push(Copy { to: None, labelled: Labelled::Pilot, label: pilot });
                }
                if label_home {
                    let label = layout.rack_label(own);
                    copies.push(Copy { to: None, labelled: Labelled::Rack, label });
                }
                let alone = self.attached.iter().filter(|it| !by_table(it) && !by_agent(it));
                copies.extend(alone.copied().map(Copy::one));
            }
        }
    }
}

//! One session that this host sends: its flow, and the copies by which its packets reach all receivers.

use std::collections::BTreeSet;

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Label, Labelled};

use super::Spread;
use super::client::Client;
use super::tree::Tree;
use crate::flow;
use crate::label::Layout;

/// The longest time for which the start of a stream waits for labels.
const LABEL_WAIT: Span = Span::from_ms(10);

/// A sender that was its rack's active agent no longer counts as such after this many packets without one that came
/// back.
const ACTIVE_TIMEOUT_PACKETS: u32 = 1 << 14;

/// The destination of one copy of data for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// The host to send to, or `None` for the group.
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
    /// The copies of each piece, recomputed when `dirty`.
    copies: Vec<Copy>,
    /// The hosts that labels have reached, and the ones that got copies of their own in the place of labels.
    labelled: BTreeSet<HostId>,
    unlabelled: BTreeSet<HostId>,
    dirty: bool,
    /// Whether this host is the active agent of its rack, so that data for the rack comes back to it.
    is_active: bool,
    /// The number of packets with a pilot label that were sent since one came back.
    pilots_sent: u32,
    /// The time since which data has been in flight without interruption.
    busy_since: Option<Time>,
    offered: u64,
    /// The time until which the start of the stream waits for labels, so that it does not begin with a copy for each
    /// receiver.
    paused_until: Option<Time>,
    is_paused: bool,
    /// The session is over; it is kept until this time to answer late packets.
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
            labelled: BTreeSet::new(),
            unlabelled: BTreeSet::new(),
            dirty: true,
            is_active: false,
            pilots_sent: 0,
            busy_since: None,
            offered: 0,
            paused_until: None,
            is_paused: false,
            over_at: None,
        }
    }

    pub(super) fn offer(&mut self, now: Time, upto: u64) {
        self.offered = self.offered.max(upto);
        self.flow.offer(now, upto);
    }

    /// Adds a host that data for the group must reach, or removes it.
    pub(super) fn attach(&mut self, now: Time, host: HostId, layout: &Layout, attached: bool) {
        let changed =
            if attached { self.attached.insert(host) } else { self.attached.remove(&host) };
        if !changed {
            return;
        }
        self.dirty = true;
        if let Some(client) = &mut self.client {
            client.set_member(now, host, attached);
            self.paused_until.get_or_insert(now.saturating_add(LABEL_WAIT));
        }
        if self.spread == Spread::Relay {
            self.tree.set(now, host, layout.place(host), attached);
        }
    }

    pub(super) fn handle_control(&mut self, now: Time, from: HostId, body: &Body) {
        if self.spread == Spread::Relay {
            self.dirty |= self.tree.mark_alive(now, from);
        }
        match body {
            Body::SyncDone { version, .. } => self.dirty |= self.tree.confirm(from, *version),
            _ => self.flow.handle_control(now, from, body),
        }
    }

    pub(super) fn handle_controller(&mut self, now: Time, body: &Body) {
        if let Some(client) = &mut self.client {
            self.dirty |= client.handle(now, body);
            if let Body::Labels { timeout_us, .. } = *body {
                self.flow.set_agent_timeout(Span::from_us(u64::from(timeout_us)));
            }
        }
    }

    /// Handles that the sender's own data has come back to it as its rack's active agent. From then on it labels the
    /// copy for its rack by its own table, so that the driver need not forward what it sends. This is our optimization:
    /// an agent of the paper would send the packet to its switch once more.
    pub(super) fn on_own_data(&mut self) {
        self.dirty |= !self.is_active;
        (self.is_active, self.pilots_sent) = (true, 0);
    }

    /// Counts packets sent with a pilot label.
    pub(super) fn on_pilot_sent(&mut self, packets: u32) {
        self.pilots_sent = self.pilots_sent.saturating_add(packets);
        if self.is_active && self.pilots_sent >= ACTIVE_TIMEOUT_PACKETS {
            (self.is_active, self.dirty) = (false, true);
        }
    }

    /// Records that a rack has lost its last agent, or has one again.
    pub(super) fn set_rack_served(&mut self, now: Time, rack: u16, agent: bool, layout: &Layout) {
        if let Some(client) = &mut self.client {
            self.dirty |= client.set_rack_served(now, rack, agent, layout);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.flow.handle_timeout(now);
        if let Some(busy) = self.busy_since {
            self.dirty |= self.tree.suspect_silent(now, busy);
        }
    }

    /// Ends the session and leaves the control plane.
    pub(super) fn close(&mut self, now: Time) {
        if let Some(client) = &mut self.client {
            client.close(now);
        }
        for host in std::mem::take(&mut self.attached) {
            // Relays need no new labels, because no further data arrives for them to forward.
            self.tree.set(now, host, Default::default(), false);
        }
        self.tree = Tree::default();
        self.dirty = true;
    }

    /// Returns whether the controller has not yet confirmed the end of the session.
    pub(super) fn is_closing(&self) -> bool {
        self.client.as_ref().is_some_and(|client| !client.is_closed())
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let check = self.busy_since.and_then(|busy| self.tree.next_suspicion(busy));
        [
            self.flow.poll_timeout(),
            self.client.as_ref().and_then(Client::poll_timeout),
            self.tree.poll_timeout(),
            check,
            self.paused_until.filter(|_| self.is_paused),
            // The session is kept until the controller has confirmed its end.
            self.over_at.filter(|_| !self.is_closing()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns the next control packet, for the controller (`None`) or for a relay.
    pub(super) fn poll_control_plane(&mut self, now: Time) -> Option<(Option<HostId>, Body)> {
        if let Some(body) = self.client.as_mut().and_then(|client| client.poll(now)) {
            return Some((None, body));
        }
        self.tree.poll(now).map(|(host, body)| (Some(host), body))
    }

    /// Updates whether data is in flight; relays are expected to send reports only then.
    pub(super) fn update_progress(&mut self, now: Time) {
        if self.spread == Spread::Relay {
            let under_way = self.flow.released() < self.offered;
            self.busy_since = under_way.then(|| self.busy_since.unwrap_or(now));
        }
    }

    /// Returns whether a host that labels are to reach has got copies of its own only.
    pub(super) fn is_unlabelled(&self, host: HostId) -> bool {
        self.unlabelled.contains(&host) && !self.labelled.contains(&host)
    }

    /// Returns the copies of data for the group, from a host with this number of ports.
    pub(super) fn copies(&mut self, now: Time, me: HostId, layout: &Layout, ports: u8) -> &[Copy] {
        if self.dirty || self.is_paused {
            self.update_pause(now, layout);
        }
        if self.dirty {
            self.dirty = false;
            self.copies.clear();
            self.fill_copies(me, layout, ports);
            self.flow.set_copies(self.copies.len() as u32);
        }
        &self.copies
    }

    /// Lets the start of the stream wait, up to [`LABEL_WAIT`], until at most one receiver needs a separate copy.
    fn update_pause(&mut self, now: Time, layout: &Layout) {
        let (Some(client), Some(until)) = (&self.client, self.paused_until) else { return };
        let is_reached = |host: &HostId| {
            client.covered().contains(host) && !client.is_unserved(layout.place(*host).rack)
        };
        let unreached = self.attached.iter().filter(|host| !is_reached(host));
        self.is_paused = now < until && unreached.take(2).count() == 2;
        self.flow.pause(now, self.is_paused);
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
                let in_own_rack =
                    |host: &HostId| ports == 1 && layout.place(*host).rack == own_rack;
                // Where the pilot label cannot lead back to the sender's rack, is empty, or leads back to this host,
                // the rack gets a copy labelled by the sender's own table, which needs no agent (the "application flow"
                // of the evaluation, section IV.B).
                let any_in_own_rack =
                    self.attached.iter().any(|it| covered.contains(it) && in_own_rack(it));
                let label_own_rack = any_in_own_rack
                    && (pilot.0 == 0 || !layout.reaches_own_rack() || self.is_active);
                let by_table =
                    |it: &HostId| covered.contains(it) && label_own_rack && in_own_rack(it);
                let by_agent = |it: &HostId| {
                    let is_unserved = || client.is_unserved(layout.place(*it).rack);
                    covered.contains(it) && !by_table(it) && !is_unserved()
                };
                if self.attached.iter().any(by_agent) {
                    copies.push(Copy { to: None, labelled: Labelled::Pilot, label: pilot });
                }
                if label_own_rack {
                    let label = layout.rack_label(own);
                    copies.push(Copy { to: None, labelled: Labelled::Rack, label });
                }
                for host in &self.attached {
                    if by_table(host) || by_agent(host) {
                        self.labelled.insert(*host);
                    } else {
                        copies.push(Copy::one(*host));
                        self.unlabelled.insert(*host);
                    }
                }
            }
        }
    }
}

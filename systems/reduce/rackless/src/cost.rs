//! How long a period's transfers take under a configuration: the bottleneck bound.
//!
//! The transfers of a period are fluid, all start with it, and take as long as the busiest link needs for the bytes that
//! cross it: `T = max over links of bytes / rate`, each direction of a link by itself. The links are those of servers, and
//! the uplinks of each `ToR` together (below packet switches that never limit) or the circuits between two `ToR`s. An upload
//! counts on each link with the bytes that are left after the aggregation before that link:
//!
//! - a worker's link carries the worker's bytes;
//! - a programmable `ToR` aggregates the workers below it, and what arrives from elsewhere if it is the master's `ToR`
//!   or the detour ([`Reach`]); it sends on the distinct bytes ([`Upload::union`]), plus what found no slot ([`TableUse::FirstCome`]);
//! - the master's link carries what its `ToR` sends on. A master that is slower than its link counts with its own rate
//!   ([`Upload::with_master_rate`]).
//!
//! A reconfiguration takes a delay in which either all ports are dark, or only the moved ones ([`Scope`]). In
//! the second case, bytes whose end or circuit has moved are *late*: a link needs
//! `max(bytes / rate, delay + late bytes / rate)`, which is exact for transfers with two release times. The output of
//! an aggregation is late if one of its inputs is, because it is complete only then.

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Rate, Span};
use serde::{Deserialize, Serialize};

use crate::config::{Circuits, Configuration};
use crate::demand::{Broadcast, Period, Upload};
use crate::fabric::{Fabric, Reach};
use crate::pod::{Pod, TableUse};

/// The cost of a change of configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reconfiguration {
    /// The time from the command to the optical switch until packets pass again: mirrors or wavelengths, and the
    /// links' coming up.
    pub delay: Span,
    /// The ports that are dark meanwhile.
    pub scope: Scope,
}

/// The ports that are dark during a reconfiguration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All ports of the optical switch.
    #[default]
    All,
    /// Only the ports of moved servers, or of circuits between `ToR`s that change.
    Moved,
}

/// A link, as far as it can be a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// A server's link, from the server.
    ServerOut(u32),
    /// A server's link, to the server.
    ServerIn(u32),
    /// The uplinks of a `ToR`, away from it.
    UplinkOut(u16),
    /// The uplinks of a `ToR`, to it.
    UplinkIn(u16),
    /// The circuits from one `ToR` to another.
    Circuit {
        /// The sending `ToR`.
        from: u16,
        /// The receiving `ToR`.
        to: u16,
    },
    /// No sequence of circuits leads from a sender to its receiver.
    Missing,
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::ServerOut(server) => format!("server {server} out"),
            Self::ServerIn(server) => format!("server {server} in"),
            Self::UplinkOut(tor) => format!("ToR {tor} up"),
            Self::UplinkIn(tor) => format!("ToR {tor} down"),
            Self::Circuit { from, to } => format!("circuit {from}-{to}"),
            Self::Missing => "no circuit".to_owned(),
        };
        f.pad(&text)
    }
}

/// What a period costs under a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The time from the start of the period, or of the reconfiguration before it, until the last byte has passed the busiest
    /// link. [`Span::MAX`] if that would take 213 days, or for ever.
    pub time: Span,
    /// The busiest link; `None` if nothing is transferred over a link.
    pub bottleneck: Option<Link>,
    /// The bytes of uploads that the `ToR`s absorbed.
    pub absorbed: u64,
    /// The bytes that `ToR`s sent on uplinks.
    pub crossing: u64,
}

/// An end of a transfer between `ToR`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// A server.
    Server(u32),
    /// The aggregation in a `ToR`.
    Tor(u16),
}

/// Where a transfer of the demand comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A flow of the matrix.
    Flow,
    /// A job's upload.
    Upload(crate::demand::JobId),
    /// A job's broadcast.
    Broadcast(crate::demand::JobId),
}

/// A transfer from one `ToR` to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) bytes: u64,
    pub(crate) late: bool,
    pub(crate) src: Endpoint,
    pub(crate) dst: Endpoint,
    pub(crate) origin: Origin,
}

/// Receives what the transfers of a period put on the links.
pub(crate) trait Visitor {
    /// Bytes from a server to its `ToR`.
    fn server_out(&mut self, server: u32, bytes: u64, late: bool);
    /// Bytes from a server's `ToR` to it.
    fn server_in(&mut self, server: u32, bytes: u64, late: bool);
    /// Bytes between two different `ToR`s.
    fn segment(&mut self, segment: Segment);
    /// The same bytes from a `ToR` to several others.
    fn multicast(&mut self, segment: Segment, tors: &[u16]);
    /// Bytes that a `ToR` has absorbed.
    fn absorbed(&mut self, bytes: u64);
    /// Whether what goes from one `ToR` to another passes changed circuits.
    fn is_late(&self, from: u16, to: u16) -> bool;
}

/// Places the transfers of a period on links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement<'a> {
    pub(crate) fabric: &'a Fabric,
    pub(crate) tor_of: &'a [u16],
    /// Whether each server has moved; empty if none has.
    pub(crate) moved: &'a [bool],
}

/// Data of an upload that arrives at a `ToR`.
#[derive(Clone, Copy, Debug)]
struct Arrivals {
    tor: u16,
    /// The bytes of the workers that have contributed, before any aggregation.
    sum: u64,
    /// The largest of them.
    max: u64,
    /// The bytes that arrive.
    bytes: u64,
    late: bool,
}

impl Placement<'_> {
    fn is_moved(&self, server: u32) -> bool {
        self.moved.get(server as usize).is_some_and(|&moved| moved)
    }

    fn tor(&self, server: u32) -> u16 {
        self.tor_of[server as usize]
    }

    pub(crate) fn visit(&self, period: &Period, visitor: &mut impl Visitor) {
        for flow in period.flows() {
            let (from, to) = (self.tor(flow.src), self.tor(flow.dst));
            let late =
                self.is_moved(flow.src) || self.is_moved(flow.dst) || visitor.is_late(from, to);
            visitor.server_out(flow.src, flow.bytes, late);
            visitor.server_in(flow.dst, flow.bytes, late);
            if from != to {
                visitor.segment(Segment {
                    from,
                    to,
                    bytes: flow.bytes,
                    late,
                    src: Endpoint::Server(flow.src),
                    dst: Endpoint::Server(flow.dst),
                    origin: Origin::Flow,
                });
            }
        }
        for upload in period.uploads() {
            self.upload(upload, period.uploads().len(), visitor);
        }
        for broadcast in period.broadcasts() {
            self.broadcast(broadcast, visitor);
        }
    }

    pub(crate) fn broadcast(&self, broadcast: &Broadcast, visitor: &mut impl Visitor) {
        if broadcast.bytes() == 0 || broadcast.dsts().is_empty() {
            return;
        }
        let (src, bytes) = (broadcast.src(), broadcast.bytes());
        let from = self.tor(src);
        let mut tors: Vec<u16> = Vec::new();
        // The source's link carries the data once, which can be complete only when every receiver is reachable.
        let mut any_late = self.is_moved(src);
        for &dst in broadcast.dsts() {
            let to = self.tor(dst);
            let late = self.is_moved(src) || self.is_moved(dst) || visitor.is_late(from, to);
            visitor.server_in(dst, bytes, late);
            any_late |= late;
            if to != from && !tors.contains(&to) {
                tors.push(to);
            }
        }
        visitor.server_out(src, bytes, any_late);
        if !tors.is_empty() {
            let origin = Origin::Broadcast(broadcast.job());
            let (src, dst) = (Endpoint::Server(src), Endpoint::Tor(from));
            let segment = Segment { from, to: from, bytes, late: any_late, src, dst, origin };
            visitor.multicast(segment, &tors);
        }
    }

    /// Places an upload, which is one of `uploads` in its period.
    pub(crate) fn upload(&self, upload: &Upload, uploads: usize, visitor: &mut impl Visitor) {
        let master = upload.master();
        let home = self.tor(master);
        let origin = Origin::Upload(upload.job());
        let tors = self.fabric.pod().tors();
        let adds_up = self.fabric.architecture().aggregates() && self.may_be_added_up(upload);
        let aggregates = |tor: u16| adds_up && tors[usize::from(tor)].is_programmable();
        let by_way = match self.fabric.pod().programmable() {
            Some(tor)
                if self.fabric.reach() == Reach::Detour
                    && self.fabric.architecture().aggregates()
                    && !aggregates(home) =>
            {
                Some(tor as u16)
            }
            _ => None,
        };
        let next = by_way.unwrap_or(home);
        let dst = match by_way {
            Some(tor) => Endpoint::Tor(tor),
            None if aggregates(home) => Endpoint::Tor(home),
            None => Endpoint::Server(master),
        };
        let mut groups: Vec<Arrivals> = Vec::new();
        let mut at_next = Arrivals { tor: next, sum: 0, max: 0, bytes: 0, late: false };
        for &(server, bytes) in upload.workers() {
            if server == master {
                continue;
            }
            let tor = self.tor(server);
            let late = self.is_moved(server) || self.is_moved(master) || visitor.is_late(tor, next);
            visitor.server_out(server, bytes, late);
            let arrival = Arrivals { tor, sum: bytes, max: bytes, bytes, late };
            if tor == next {
                at_next.join(&arrival);
            } else if aggregates(tor) {
                match groups.iter_mut().find(|group| group.tor == tor) {
                    Some(group) => group.join(&arrival),
                    None => groups.push(arrival),
                }
            } else {
                let src = Endpoint::Server(server);
                visitor.segment(Segment { from: tor, to: next, bytes, late, src, dst, origin });
                at_next.join(&arrival);
            }
        }
        for group in groups {
            let sent = self.aggregate(upload, &group, uploads, visitor);
            let (from, src) = (group.tor, Endpoint::Tor(group.tor));
            let late = group.late;
            visitor.segment(Segment { from, to: next, bytes: sent, late, src, dst, origin });
            at_next.join(&Arrivals { bytes: sent, ..group });
        }
        if at_next.bytes == 0 {
            return;
        }
        let mut bytes = at_next.bytes;
        if aggregates(next) {
            bytes = self.aggregate(upload, &at_next, uploads, visitor);
        }
        let mut late = at_next.late;
        if next != home {
            late |= visitor.is_late(next, home);
            let (src, dst) = (Endpoint::Tor(next), Endpoint::Server(master));
            visitor.segment(Segment { from: next, to: home, bytes, late, src, dst, origin });
        }
        let rate = self.fabric.pod().server_rate();
        visitor.server_in(master, upload.at_master(bytes, rate), late);
    }

    /// Whether the servers of an upload are where [`Reach`] wants them.
    fn may_be_added_up(&self, upload: &Upload) -> bool {
        if self.fabric.reach() != Reach::Rack {
            return true;
        }
        let home = self.tor(upload.master());
        upload.workers().iter().all(|&(server, _)| self.tor(server) == home)
            || !self.fabric.fits_below_programmable(upload.servers())
    }

    /// Returns the bytes that a programmable `ToR` sends on.
    fn aggregate(
        &self,
        upload: &Upload,
        arrivals: &Arrivals,
        uploads: usize,
        visitor: &mut impl Visitor,
    ) -> u64 {
        let union = upload.union(arrivals.sum, arrivals.max).min(arrivals.bytes);
        let pod = self.fabric.pod();
        let sent = match pod.table() {
            TableUse::KeyRanges => union,
            TableUse::FirstCome => {
                let slots = pod.tors()[usize::from(arrivals.tor)].slots / uploads.max(1) as u64;
                let held = u128::from(slots) * u128::from(pod.pair_bytes());
                let saved = u128::from(arrivals.bytes - union);
                // The keys with a slot are `held / union` of all, and save this share of the bytes.
                let saved = match u128::from(union) {
                    union if held >= union => saved,
                    union => saved * held / union,
                };
                arrivals.bytes - saved as u64
            }
        };
        visitor.absorbed(arrivals.bytes - sent);
        sent
    }
}

impl Arrivals {
    fn join(&mut self, other: &Self) {
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.bytes += other.bytes;
        self.late |= other.late;
    }
}

/// The circuits as a network: the next `ToR` on a shortest path, and which paths have changed.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    tors: usize,
    next: Vec<Option<u16>>,
    late: Vec<bool>,
}

impl Paths {
    /// Finds shortest paths (fewest circuits in sequence, then the lowest numbers of `ToR`s).
    pub(crate) fn new(circuits: &Circuits, before: Option<&Circuits>, tors: usize) -> Self {
        let mut this = Self { tors, next: vec![None; tors * tors], late: vec![false; tors * tors] };
        let changed = |a, b| before.is_some_and(|it| it.between(a, b) != circuits.between(a, b));
        for to in 0..tors {
            let (mut queue, mut head) = (vec![to], 0);
            while let Some(&via) = queue.get(head) {
                head += 1;
                for from in 0..tors {
                    let known = from == to || this.next[from * tors + to].is_some();
                    if !known && circuits.between(from, via) > 0 {
                        this.next[from * tors + to] = Some(via as u16);
                        let rest = via != to && this.late[via * tors + to];
                        this.late[from * tors + to] = rest || changed(from, via);
                        queue.push(from);
                    }
                }
            }
        }
        this
    }

    /// Calls `hop` for each pair of `ToR`s on the way; false if there is no way.
    pub(crate) fn walk(&self, from: u16, to: u16, mut hop: impl FnMut(usize, usize)) -> bool {
        let mut at = usize::from(from);
        while at != usize::from(to) {
            let Some(next) = self.next[at * self.tors + usize::from(to)] else { return false };
            hop(at, usize::from(next));
            at = usize::from(next);
        }
        true
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    total: u64,
    late: u64,
}

/// The loads of all links. It can be reused for another configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loads {
    servers: usize,
    tors: usize,
    links: Vec<Load>,
    paths: Option<Paths>,
    missing: bool,
    absorbed: u64,
    crossing: u64,
}

impl Loads {
    fn add(&mut self, link: usize, bytes: u64, late: bool) {
        let load = &mut self.links[link];
        load.total += bytes;
        load.late += if late { bytes } else { 0 };
    }

    fn reset(&mut self, servers: usize, tors: usize, paths: Option<Paths>) {
        let between = if paths.is_some() { tors * tors } else { 2 * tors };
        self.links.clear();
        self.links.resize(2 * servers + between, Load::default());
        (self.servers, self.tors, self.paths) = (servers, tors, paths);
        (self.missing, self.absorbed, self.crossing) = (false, 0, 0);
    }

    fn link(&self, index: usize) -> Link {
        let (servers, tors) = (self.servers, self.tors);
        match index {
            _ if index < servers => Link::ServerOut(index as u32),
            _ if index < 2 * servers => Link::ServerIn((index - servers) as u32),
            _ if self.paths.is_some() => {
                let pair = index - 2 * servers;
                Link::Circuit { from: (pair / tors) as u16, to: (pair % tors) as u16 }
            }
            _ if index < 2 * servers + tors => Link::UplinkOut((index - 2 * servers) as u16),
            _ => Link::UplinkIn((index - 2 * servers - tors) as u16),
        }
    }

    fn rate(&self, link: Link, pod: &Pod, circuits: Option<&Circuits>) -> Rate {
        match link {
            Link::ServerOut(_) | Link::ServerIn(_) => pod.server_rate(),
            Link::UplinkOut(tor) | Link::UplinkIn(tor) => {
                pod.tors()[usize::from(tor)].uplink_capacity()
            }
            Link::Circuit { from, to } => {
                let (a, b) = (usize::from(from), usize::from(to));
                let one = pod.tors()[a].uplink_rate.min(pod.tors()[b].uplink_rate);
                let count = circuits.map_or(0, |circuits| circuits.between(a, b));
                Rate(one.0.saturating_mul(u64::from(count)))
            }
            Link::Missing => Rate(0),
        }
    }

    fn cost(&self, pod: &Pod, circuits: Option<&Circuits>, delay: Span) -> Cost {
        let mut time = Span::ZERO;
        let mut bottleneck = None;
        if self.missing {
            (time, bottleneck) = (Span::MAX, Some(Link::Missing));
        }
        let mut consider = |index: usize, load: Load| {
            let link = self.link(index);
            let rate = self.rate(link, pod, circuits);
            let mut needs = transfer_time(load.total, rate);
            if load.late > 0 {
                needs = needs.max(plus(delay, transfer_time(load.late, rate)));
            }
            if needs > time {
                (time, bottleneck) = (needs, Some(link));
            }
        };
        // Links of servers have one rate, so that only the busiest by bytes, or by late bytes, matter.
        let servers = &self.links[..2 * self.servers];
        let busiest = |key: fn(&Load) -> u64| {
            let mut best: Option<(usize, u64)> = None;
            for (index, load) in servers.iter().enumerate() {
                let bytes = key(load);
                if bytes > 0 && best.is_none_or(|(_, most)| bytes > most) {
                    best = Some((index, bytes));
                }
            }
            best
        };
        for (index, _) in
            [busiest(|load| load.total), busiest(|load| load.late)].into_iter().flatten()
        {
            consider(index, self.links[index]);
        }
        for (index, &load) in self.links.iter().enumerate().skip(2 * self.servers) {
            if load.total > 0 {
                consider(index, load);
            }
        }
        Cost { time, bottleneck, absorbed: self.absorbed, crossing: self.crossing }
    }
}

impl Visitor for Loads {
    fn server_out(&mut self, server: u32, bytes: u64, late: bool) {
        self.add(server as usize, bytes, late);
    }

    fn server_in(&mut self, server: u32, bytes: u64, late: bool) {
        self.add(self.servers + server as usize, bytes, late);
    }

    fn segment(&mut self, segment: Segment) {
        let Segment { from, to, bytes, late, .. } = segment;
        let (base, tors) = (2 * self.servers, self.tors);
        if let Some(paths) = self.paths.take() {
            self.missing |= !paths.walk(from, to, |a, b| {
                self.crossing += bytes;
                self.add(base + a * tors + b, bytes, late);
            });
            self.paths = Some(paths);
        } else {
            self.crossing += bytes;
            self.add(base + usize::from(from), bytes, late);
            self.add(base + tors + usize::from(to), bytes, late);
        }
    }

    fn multicast(&mut self, segment: Segment, tors: &[u16]) {
        let Segment { from, bytes, late, .. } = segment;
        let (base, count) = (2 * self.servers, self.tors);
        if let Some(paths) = self.paths.take() {
            let mut tree = Vec::new();
            for &to in tors {
                self.missing |= !paths.walk(from, to, |a, b| {
                    if !tree.contains(&(a, b)) {
                        tree.push((a, b));
                    }
                });
            }
            self.crossing += bytes * tree.len() as u64;
            tree.into_iter().for_each(|(a, b)| self.add(base + a * count + b, bytes, late));
            self.paths = Some(paths);
        } else {
            self.crossing += bytes;
            self.add(base + usize::from(from), bytes, late);
            tors.iter().for_each(|&to| self.add(base + count + usize::from(to), bytes, late));
        }
    }

    fn absorbed(&mut self, bytes: u64) {
        self.absorbed += bytes;
    }

    fn is_late(&self, from: u16, to: u16) -> bool {
        let pair = usize::from(from) * self.tors + usize::from(to);
        self.paths.as_ref().is_some_and(|paths| paths.late[pair])
    }
}

/// Returns the time to transmit `bytes`, rounded up to a tick; [`Span::MAX`] if it is longer than that.
#[must_use]
pub fn transfer_time(bytes: u64, rate: Rate) -> Span {
    if bytes == 0 {
        return Span::ZERO;
    }
    let bits = u128::from(bytes) * 8 * u128::from(TICKS_PER_SECOND);
    let span = bits.checked_div(u128::from(rate.0)).map(|whole| {
        let rest = whole * u128::from(rate.0) < bits;
        whole + u128::from(rest)
    });
    Span::from_ticks(span.and_then(|span| u64::try_from(span).ok()).unwrap_or(u64::MAX))
}

/// Returns the sum, or [`Span::MAX`] on overflow.
#[must_use]
pub(crate) const fn plus(a: Span, b: Span) -> Span {
    a.saturating_add(b)
}

impl Fabric {
    /// Returns the cost of a period under a configuration that is in place when it starts.
    #[must_use]
    pub fn cost(&self, period: &Period, configuration: &Configuration) -> Cost {
        self.cost_with(period, configuration, &mut Loads::default())
    }

    /// As [`Fabric::cost`], with memory that is reused.
    pub(crate) fn cost_with(
        &self,
        period: &Period,
        configuration: &Configuration,
        loads: &mut Loads,
    ) -> Cost {
        let pod = self.pod();
        let (servers, tors) = (pod.servers() as usize, pod.tors().len());
        let circuits = configuration.circuits();
        loads.reset(servers, tors, circuits.map(|circuits| Paths::new(circuits, None, tors)));
        let tor_of = configuration.tor_of();
        Placement { fabric: self, tor_of, moved: &[] }.visit(period, loads);
        loads.cost(pod, circuits, Span::ZERO)
    }

    /// Returns the cost of a period that starts with a reconfiguration: its time includes the delay, as far as it holds
    /// up transfers. If both configurations are the same, there is none.
    #[must_use]
    pub fn cost_after(
        &self,
        period: &Period,
        from: &Configuration,
        to: &Configuration,
        reconfiguration: Reconfiguration,
    ) -> Cost {
        self.cost_after_with(period, from, to, reconfiguration, &mut Loads::default())
    }

    /// As [`Fabric::cost_after`], with memory that is reused.
    pub(crate) fn cost_after_with(
        &self,
        period: &Period,
        from: &Configuration,
        to: &Configuration,
        reconfiguration: Reconfiguration,
        loads: &mut Loads,
    ) -> Cost {
        if from == to {
            return self.cost_with(period, to, loads);
        }
        let Reconfiguration { delay, scope } = reconfiguration;
        if scope == Scope::All {
            let cost = self.cost_with(period, to, loads);
            return Cost { time: plus(cost.time, delay), ..cost };
        }
        let pod = self.pod();
        let (servers, tors) = (pod.servers() as usize, pod.tors().len());
        let paths = to.circuits().map(|circuits| Paths::new(circuits, from.circuits(), tors));
        loads.reset(servers, tors, paths);
        let pairs = from.tor_of().iter().zip(to.tor_of());
        let moved: Vec<bool> = pairs.map(|(before, after)| before != after).collect();
        Placement { fabric: self, tor_of: to.tor_of(), moved: &moved }.visit(period, loads);
        loads.cost(pod, to.circuits(), delay)
    }
}

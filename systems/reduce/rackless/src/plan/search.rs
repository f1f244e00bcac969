//! Local search: swaps of servers between racks, in passes after Kernighan and Lin, for one or several periods with the same
//! configuration.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rackweave_core::Rng;
use rackweave_core::time::TICKS_PER_SECOND;
use smallvec::SmallVec;

use crate::config::Configuration;
use crate::cost::{Placement, Segment, Visitor};
use crate::demand::Period;
use crate::fabric::Fabric;

/// The most swaps of one pass; the best beginning of them is kept.
const PASS: usize = 8;
/// Above this number of seats, only the racks that are near to a server are tried, and the first swap that gains is taken.
const FEW_SEATS: usize = 16;
/// The bits of a `ToR` in [`Search::key`], so that the servers of a small pod fit a word.
const KEY_BITS: u32 = 4;
/// The most swaps that are tried in a larger pod, so that 128 servers and 24 periods are planned in a second.
const TRIES: usize = 2500;
/// How many near racks are tried.
const NEAR: usize = 3;
/// The weight of the sum of all uplinks' times, compared with the busiest link's. It guides the search on plateaus.
const SPREAD: f64 = 1e-3;
/// An objective below this part of another is better, not a rounding error.
const GAIN: f64 = 1.0 - 1e-9;

/// A period with what each server takes part in.
pub(crate) struct Prepared<'a> {
    period: &'a Period,
    /// The servers with which each server exchanges bytes: peer, bytes to it, bytes from it.
    peers: Vec<Vec<(u32, u64, u64)>>,
    /// The uploads, then the broadcasts, of each server, by index.
    items: Vec<Vec<u32>>,
    /// The bytes of each server's busiest direction that do not depend on the configuration.
    fixed: u64,
    /// The bytes to each master besides the uploads to it.
    inward: Vec<u64>,
    masters: Vec<u32>,
    /// What the period adds to an objective under each configuration of a small pod that has been tried.
    known: RefCell<Known>,
}

/// Objectives by [`Search::key`].
pub(crate) type Known = BTreeMap<u64, f64>;

impl<'a> Prepared<'a> {
    pub(crate) fn new(fabric: &Fabric, period: &'a Period) -> Self {
        let servers = fabric.pod().servers() as usize;
        let mut peers = vec![Vec::new(); servers];
        let (mut inward, mut outward) = (vec![0; servers], vec![0; servers]);
        for flow in period.flows() {
            let (src, dst) = (flow.src as usize, flow.dst as usize);
            peers[src].push((flow.dst, flow.bytes, 0));
            peers[dst].push((flow.src, 0, flow.bytes));
            outward[src] += flow.bytes;
            inward[dst] += flow.bytes;
        }
        for list in &mut peers {
            list.sort_unstable();
            list.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                if same {
                    kept.1 += next.1;
                    kept.2 += next.2;
                }
                same
            });
        }
        let mut items = vec![Vec::new(); servers];
        for (index, upload) in (0..).zip(period.uploads()) {
            let members = upload.workers().iter().map(|&(server, _)| server);
            for server in members.chain([upload.master()]) {
                if items[server as usize].last() != Some(&index) {
                    items[server as usize].push(index);
                }
            }
            for &(server, bytes) in upload.workers().iter().filter(|it| it.0 != upload.master()) {
                outward[server as usize] += bytes;
            }
        }
        let uploads = period.uploads().len() as u32;
        for (index, broadcast) in (uploads..).zip(period.broadcasts()) {
            let members = broadcast.dsts().iter().copied();
            members.chain([broadcast.src()]).for_each(|it| items[it as usize].push(index));
            for &dst in broadcast.dsts() {
                inward[dst as usize] += broadcast.bytes();
            }
            if !broadcast.dsts().is_empty() {
                outward[broadcast.src() as usize] += broadcast.bytes();
            }
        }
        let fixed = outward.iter().chain(&inward).copied().max().unwrap_or(0);
        let mut masters: Vec<u32> = period.uploads().iter().map(|upload| upload.master()).collect();
        masters.sort_unstable();
        masters.dedup();
        let known = RefCell::default();
        Self { period, peers, items, fixed, inward, masters, known }
    }

    /// Adds the bytes that each pair of servers would like to keep inside a rack to a matrix.
    pub(crate) fn add_affinity(&self, matrix: &mut [f64]) {
        let servers = self.peers.len();
        let mut add = |a: u32, b: u32, bytes: f64| {
            matrix[a as usize * servers + b as usize] += bytes;
            matrix[b as usize * servers + a as usize] += bytes;
        };
        for flow in self.period.flows() {
            add(flow.src, flow.dst, flow.bytes as f64);
        }
        for upload in self.period.uploads() {
            for &(worker, bytes) in upload.workers().iter().filter(|it| it.0 != upload.master()) {
                add(worker, upload.master(), bytes as f64);
            }
        }
        for broadcast in self.period.broadcasts() {
            for &dst in broadcast.dsts() {
                let share = broadcast.bytes() as f64 / broadcast.dsts().len() as f64;
                add(dst, broadcast.src(), share);
            }
        }
    }

    pub(crate) const fn period(&self) -> &Period {
        self.period
    }
}

/// The bytes that one upload or broadcast puts on the links that depend on the configuration.
#[derive(Clone, Debug, Default)]
struct Contribution {
    up: SmallVec<[(u16, u64); 8]>,
    down: SmallVec<[(u16, u64); 8]>,
    /// The bytes to the master.
    master: u64,
}

impl Visitor for Contribution {
    fn server_out(&mut self, _: u32, _: u64, _: bool) {}

    fn server_in(&mut self, _: u32, bytes: u64, _: bool) {
        self.master = bytes;
    }

    fn segment(&mut self, segment: Segment) {
        self.up.push((segment.from, segment.bytes));
        self.down.push((segment.to, segment.bytes));
    }

    fn multicast(&mut self, segment: Segment, tors: &[u16]) {
        self.up.push((segment.from, segment.bytes));
        self.down.extend(tors.iter().map(|&tor| (tor, segment.bytes)));
    }

    fn absorbed(&mut self, _: u64) {}

    fn is_late(&self, _: u16, _: u16) -> bool {
        false
    }
}

/// The loads of one period.
struct State {
    up: Vec<u64>,
    down: Vec<u64>,
    items: Vec<Contribution>,
    /// The bytes to each server from uploads.
    uploads_in: Vec<u64>,
}

/// A configuration that is being improved.
pub(crate) struct Search<'a> {
    fabric: &'a Fabric,
    periods: Vec<&'a Prepared<'a>>,
    states: Vec<State>,
    /// The `ToR` of each seat. Seats beyond the servers are free ports.
    tor_of: Vec<u16>,
    server_ticks: f64,
    uplink_ticks: Vec<f64>,
    /// The objectives of the configurations of a small pod that have been tried for these periods.
    known: Known,
}

/// The ticks that a byte takes.
fn ticks_per_byte(rate: rackweave_core::Rate) -> f64 {
    8.0 * TICKS_PER_SECOND as f64 / rate.0.max(1) as f64
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        fabric: &'a Fabric,
        periods: Vec<&'a Prepared<'a>>,
        start: &Configuration,
    ) -> Self {
        let tors = fabric.pod().tors();
        let mut tor_of = start.tor_of().to_vec();
        for (number, tor) in (0..).zip(tors) {
            let used = start.tor_of().iter().filter(|&&it| it == number).count() as u32;
            tor_of.extend((used..tor.ports).map(|_| number));
        }
        let server_ticks = ticks_per_byte(fabric.pod().server_rate());
        let uplink_ticks = tors.iter().map(|tor| ticks_per_byte(tor.uplink_capacity())).collect();
        let mut this = Self {
            fabric,
            periods,
            states: Vec::new(),
            tor_of,
            server_ticks,
            uplink_ticks,
            known: Known::new(),
        };
        this.states = this.periods.iter().map(|prepared| this.state(prepared)).collect();
        this
    }

    fn state(&self, prepared: &Prepared<'_>) -> State {
        let (servers, tors) = (prepared.peers.len(), self.uplink_ticks.len());
        let mut state = State {
            up: vec![0; tors],
            down: vec![0; tors],
            items: Vec::new(),
            uploads_in: vec![0; servers],
        };
        for flow in prepared.period.flows() {
            let (from, to) = (self.tor_of[flow.src as usize], self.tor_of[flow.dst as usize]);
            if from != to {
                state.up[usize::from(from)] += flow.bytes;
                state.down[usize::from(to)] += flow.bytes;
            }
        }
        let items = prepared.period.uploads().len() + prepared.period.broadcasts().len();
        for item in 0..items {
            let contribution = self.contribution(prepared, item);
            state.add(prepared, item, &contribution);
            state.items.push(contribution);
        }
        state
    }

    fn contribution(&self, prepared: &Prepared<'_>, item: usize) -> Contribution {
        let placement = Placement { fabric: self.fabric, tor_of: &self.tor_of, moved: &[] };
        let mut contribution = Contribution::default();
        let uploads = prepared.period.uploads();
        match uploads.get(item) {
            Some(upload) => placement.upload(upload, uploads.len(), &mut contribution),
            None => {
                let broadcast = &prepared.period.broadcasts()[item - uploads.len()];
                placement.broadcast(broadcast, &mut contribution);
            }
        }
        contribution
    }

    /// Takes over what an earlier search for the same periods has tried.
    pub(crate) fn knowing(self, known: Known) -> Self {
        Self { known, ..self }
    }

    /// Returns what has been tried.
    pub(crate) fn into_known(self) -> Known {
        self.known
    }

    /// The sum of the periods' times, in ticks, with a little of the sum of all uplinks' times.
    pub(crate) fn objective(&self) -> f64 {
        self.periods
            .iter()
            .zip(&self.states)
            .map(|(prepared, state)| self.time(prepared, state))
            .sum()
    }

    /// What a period adds to the objective.
    fn time(&self, prepared: &Prepared<'_>, state: &State) -> f64 {
        let mut busiest = prepared.fixed as f64 * self.server_ticks;
        for &master in &prepared.masters {
            let master = master as usize;
            let bytes = prepared.inward[master] + state.uploads_in[master];
            busiest = busiest.max(bytes as f64 * self.server_ticks);
        }
        let mut sum = 0.0;
        for ((&up, &down), ps) in state.up.iter().zip(&state.down).zip(&self.uplink_ticks) {
            let time = up.max(down) as f64 * ps;
            busiest = busiest.max(time);
            sum += time;
        }
        busiest + SPREAD * sum
    }

    /// The racks of all servers as a number, in a small pod.
    fn key(&self) -> Option<u64> {
        let servers = &self.tor_of[..self.fabric.pod().servers() as usize];
        let fits = self.tor_of.len() <= FEW_SEATS && self.uplink_ticks.len() <= 1 << KEY_BITS;
        fits.then(|| servers.iter().fold(0, |key, &tor| key << KEY_BITS | u64::from(tor)))
    }

    /// The objective with the racks of two seats exchanged. A small pod has few configurations, which the searches of all windows of
    /// periods meet again and again.
    fn objective_after(&mut self, a: usize, b: usize) -> f64 {
        self.tor_of.swap(a, b);
        let Some(key) = self.key() else {
            self.tor_of.swap(a, b);
            let undo = self.swap(a, b);
            let objective = self.objective();
            self.restore(a, b, undo);
            return objective;
        };
        let objective = self.known.get(&key).copied().unwrap_or_else(|| {
            let of_period = |prepared: &&Prepared<'_>| {
                let known = prepared.known.borrow().get(&key).copied();
                known.unwrap_or_else(|| {
                    let time = self.time(prepared, &self.state(prepared));
                    prepared.known.borrow_mut().insert(key, time);
                    time
                })
            };
            self.periods.iter().map(of_period).sum()
        });
        self.known.insert(key, objective);
        self.tor_of.swap(a, b);
        objective
    }

    /// Exchanges the racks of two seats, and returns what restores them.
    fn swap(&mut self, a: usize, b: usize) -> Vec<(usize, usize, Contribution)> {
        let (rack_a, rack_b) = (self.tor_of[a], self.tor_of[b]);
        self.move_flows(a, rack_b);
        self.move_flows(b, rack_a);
        let mut undo = Vec::new();
        for index in 0..self.periods.len() {
            let prepared = self.periods[index];
            let items = |seat: usize| prepared.items.get(seat).map_or(&[][..], Vec::as_slice);
            for &item in items(a).iter().chain(items(b).iter().filter(|it| !items(a).contains(it)))
            {
                let item = item as usize;
                let new = self.contribution(prepared, item);
                let state = &mut self.states[index];
                let old = std::mem::replace(&mut state.items[item], new.clone());
                state.remove(prepared, item, &old);
                state.add(prepared, item, &new);
                undo.push((index, item, old));
            }
        }
        undo
    }

    fn restore(&mut self, a: usize, b: usize, undo: Vec<(usize, usize, Contribution)>) {
        let (rack_a, rack_b) = (self.tor_of[a], self.tor_of[b]);
        self.move_flows(a, rack_b);
        self.move_flows(b, rack_a);
        for (index, item, old) in undo {
            let (prepared, state) = (self.periods[index], &mut self.states[index]);
            let new = std::mem::take(&mut state.items[item]);
            state.remove(prepared, item, &new);
            state.add(prepared, item, &old);
            state.items[item] = old;
        }
    }

    /// Moves a seat to a rack, and its flows with it.
    fn move_flows(&mut self, seat: usize, to: u16) {
        let from = self.tor_of[seat];
        self.tor_of[seat] = to;
        if from == to {
            return;
        }
        for (prepared, state) in self.periods.iter().zip(&mut self.states) {
            let Some(peers) = prepared.peers.get(seat) else { continue };
            for &(peer, sent, received) in peers {
                let other = self.tor_of[peer as usize];
                if other != from {
                    state.up[usize::from(from)] -= sent;
                    state.down[usize::from(other)] -= sent;
                    state.up[usize::from(other)] -= received;
                    state.down[usize::from(from)] -= received;
                }
                if other != to {
                    state.up[usize::from(to)] += sent;
                    state.down[usize::from(other)] += sent;
                    state.up[usize::from(other)] += received;
                    state.down[usize::from(to)] += received;
                }
            }
        }
    }

    /// The seats whose move can relieve the busiest link of some period.
    fn candidates(&self) -> Vec<usize> {
        let mut chosen = vec![false; self.tor_of.len()];
        for (prepared, state) in self.periods.iter().zip(&self.states) {
            let time =
                |tor: usize| state.up[tor].max(state.down[tor]) as f64 * self.uplink_ticks[tor];
            let mut busiest = prepared.fixed as f64 * self.server_ticks;
            let mut rack = None;
            for tor in 0..self.uplink_ticks.len() {
                if time(tor) > busiest {
                    (busiest, rack) = (time(tor), Some(tor as u16));
                }
            }
            let mut master = None;
            for &it in &prepared.masters {
                let bytes = prepared.inward[it as usize] + state.uploads_in[it as usize];
                if bytes as f64 * self.server_ticks > busiest {
                    busiest = bytes as f64 * self.server_ticks;
                    master = Some(it);
                }
            }
            if let Some(master) = master {
                chosen[master as usize] = true;
                let uploads = prepared.period.uploads();
                for upload in uploads.iter().filter(|upload| upload.master() == master) {
                    upload.workers().iter().for_each(|&(it, _)| chosen[it as usize] = true);
                }
            } else if let Some(rack) = rack {
                for (seat, &tor) in self.tor_of.iter().enumerate() {
                    chosen[seat] |= tor == rack;
                }
            }
        }
        (0..chosen.len()).filter(|&seat| chosen[seat]).collect()
    }

    /// The racks that may be worth a server's move: all of a small pod, else those with which it exchanges most.
    fn near_racks(&self, seat: usize) -> Vec<bool> {
        let tors = self.uplink_ticks.len();
        if self.tor_of.len() <= FEW_SEATS {
            return vec![true; tors];
        }
        let mut bytes = vec![0_u64; tors];
        let mut add = |server: u32, more: u64| {
            let tor = usize::from(self.tor_of[server as usize]);
            bytes[tor] = bytes[tor].saturating_add(more);
        };
        for prepared in &self.periods {
            let Some(peers) = prepared.peers.get(seat) else { continue };
            peers.iter().for_each(|&(peer, sent, received)| add(peer, sent + received));
            let uploads = prepared.period.uploads();
            for &item in &prepared.items[seat] {
                let Some(upload) = uploads.get(item as usize) else { continue };
                if upload.master() as usize == seat {
                    upload.workers().iter().for_each(|&(worker, more)| add(worker, more));
                } else {
                    add(upload.master(), upload.workers()[0].1);
                }
            }
        }
        let mut order: Vec<usize> = (0..tors).collect();
        order.sort_by_key(|&tor| (u64::MAX - bytes[tor], tor));
        order.retain(|&tor| tor != usize::from(self.tor_of[seat]));
        let quiet = |tor: &usize| -> u64 {
            self.states
                .iter()
                .map(|state| state.up[*tor].saturating_add(state.down[*tor]))
                .fold(0, u64::saturating_add)
        };
        let quietest = order.iter().copied().min_by_key(|tor| (quiet(tor), *tor));
        let programmable =
            self.fabric.pod().programmable().filter(|_| self.fabric.architecture().aggregates());
        let mut near = vec![false; tors];
        for tor in order.into_iter().take(NEAR).chain(quietest).chain(programmable) {
            near[tor] = true;
        }
        near
    }

    /// The best swap of unlocked seats, with the objective after it.
    fn best_swap(&mut self, locked: &[bool]) -> Option<(usize, usize, f64)> {
        let servers = self.fabric.pod().servers() as usize;
        let candidates = self.candidates();
        let mut tried = vec![false; self.tor_of.len()];
        let mut best: Option<(usize, usize, f64)> = None;
        for a in candidates {
            tried[a] = true;
            if locked[a] {
                continue;
            }
            let near = self.near_racks(a);
            for b in 0..self.tor_of.len() {
                let same = self.tor_of[a] == self.tor_of[b] || (a >= servers && b >= servers);
                if locked[b] || tried[b] || same || !near[usize::from(self.tor_of[b])] {
                    continue;
                }
                let objective = self.objective_after(a, b);
                if best.is_none_or(|(_, _, least)| objective < least) {
                    best = Some((a, b, objective));
                }
            }
        }
        best
    }

    /// Improves the configuration until no swap gains, or too many have been tried.
    pub(crate) fn descend(&mut self) {
        if self.tor_of.len() <= FEW_SEATS {
            while self.pass() {}
            return;
        }
        let mut tries = TRIES;
        while self.sweep(&mut tries) {}
    }

    /// Makes the best swaps one after the other, each server once, swaps that make it worse included, and goes back to
    /// the best configuration on the way. False if that is the first one.
    fn pass(&mut self) -> bool {
        let (mut least, mut keep) = (self.objective(), 0);
        let mut locked = vec![false; self.tor_of.len()];
        let mut done = Vec::new();
        while done.len() < PASS {
            let Some((a, b, objective)) = self.best_swap(&locked) else { break };
            let undo = self.swap(a, b);
            (locked[a], locked[b]) = (true, true);
            done.push((a, b, undo));
            if objective < least * GAIN {
                (least, keep) = (objective, done.len());
            }
        }
        while done.len() > keep {
            if let Some((a, b, undo)) = done.pop() {
                self.restore(a, b, undo);
            }
        }
        keep > 0
    }

    /// Makes each swap that gains, over all candidates. False if there was none, or too many have been tried.
    fn sweep(&mut self, tries: &mut usize) -> bool {
        let servers = self.fabric.pod().servers() as usize;
        let mut least = self.objective();
        let mut gained = false;
        for a in self.candidates() {
            let near = self.near_racks(a);
            for b in 0..self.tor_of.len() {
                let same = self.tor_of[a] == self.tor_of[b] || (a >= servers && b >= servers);
                if same || !near[usize::from(self.tor_of[b])] {
                    continue;
                }
                let Some(left) = tries.checked_sub(1) else { return false };
                *tries = left;
                let undo = self.swap(a, b);
                let objective = self.objective();
                if objective < least * GAIN {
                    (least, gained) = (objective, true);
                } else {
                    self.restore(a, b, undo);
                }
            }
        }
        gained
    }

    /// Exchanges random pairs of seats, to begin a search at another place.
    pub(crate) fn disturb(&mut self, swaps: usize, rng: &mut Rng) {
        for _ in 0..swaps {
            let seats = self.tor_of.len() as u64;
            let (a, b) = (rng.below(seats) as usize, rng.below(seats) as usize);
            if self.tor_of[a] != self.tor_of[b] {
                self.swap(a, b);
            }
        }
    }

    /// Returns the configuration.
    pub(crate) fn configuration(&self) -> Configuration {
        Configuration::trusted(&self.tor_of[..self.fabric.pod().servers() as usize])
    }
}

impl State {
    fn add(&mut self, prepared: &Prepared<'_>, item: usize, contribution: &Contribution) {
        contribution.up.iter().for_each(|&(tor, bytes)| self.up[usize::from(tor)] += bytes);
        contribution.down.iter().for_each(|&(tor, bytes)| self.down[usize::from(tor)] += bytes);
        if let Some(upload) = prepared.period.uploads().get(item) {
            self.uploads_in[upload.master() as usize] += contribution.master;
        }
    }

    fn remove(&mut self, prepared: &Prepared<'_>, item: usize, contribution: &Contribution) {
        contribution.up.iter().for_each(|&(tor, bytes)| self.up[usize::from(tor)] -= bytes);
        contribution.down.iter().for_each(|&(tor, bytes)| self.down[usize::from(tor)] -= bytes);
        if let Some(upload) = prepared.period.uploads().get(item) {
            self.uploads_in[upload.master() as usize] -= contribution.master;
        }
    }
}

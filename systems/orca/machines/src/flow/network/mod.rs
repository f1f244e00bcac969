//! Senders and receivers of flows as the hosts of a simulated network with one switch. It asserts that only stored bytes are read, and that no packet carries released bytes.

mod switch;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use rackweave_core::{HostId, Packet, RangeSet, Rate, Rng, Span, Time};
use rackweave_switch::Fabric;
use rackweave_switch::config::{FaultKind, FaultPlace, Topology};
use rackweave_switch::net::{Edge, Net, NetConfig, NetEvent};
use rackweave_wire::orca::{
    Body, Control, Data, Header, Label, Labelled, Place, Reason, Session, TO_AGENT, TO_GROUP,
};

use self::switch::{Ports, Switch};
use super::{
    FlowConfig, Outgoing, Piece, Placement, Receiver, ReceiverEvent, Recovery, Sender, SenderEvent,
    Summary,
};
use crate::harness::{always, recover};
use crate::label::tests::fabric;

/// Bytes of headers of a data packet, with Ethernet's.
pub(super) const HEADERS: u64 = 20 + 8 + 20 + 38;
/// Bytes of a control packet, with its headers up to IP's.
const CONTROL: u32 = 110;

/// A link to a receiver, and its faults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) rate: Rate,
    pub(super) buffer: u64,
    pub(super) delay: Span,
    /// Packets of a million that are lost, duplicated, or delayed by up to `late_by`.
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) late: u64,
    pub(super) late_by: Span,
    /// The longest scheduling delay, after which packets are handled in batches.
    pub(super) noise: Span,
}

impl Link {
    pub(super) const fn new(mbps: u64) -> Self {
        Self {
            rate: Rate(mbps * 1_000_000),
            buffer: 512 << 10,
            delay: Span::from_us(25),
            lost: 0,
            twice: 0,
            late: 0,
            late_by: Span::ZERO,
            noise: Span::ZERO,
        }
    }
}

/// The behaviour of a receiver's application.
#[derive(Clone, Copy, Debug)]
pub(super) struct App {
    pub(super) room: u64,
    /// The rate at which it consumes; `None` if at once.
    pub(super) takes: Option<Rate>,
    /// Whether it confirms the end by itself.
    pub(super) completes: bool,
    /// The first byte that it needs.
    pub(super) at: u64,
}

impl Default for App {
    fn default() -> Self {
        Self { room: 16 << 20, takes: None, completes: true, at: 0 }
    }
}

/// An action of a test.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Offer(u64),
    Finish,
    Crash(usize),
    /// The receiver's host is up again after a crash with at most this many bytes from the beginning, and joins without an
    /// invitation.
    Return(usize, u64),
    Leave(usize, Reason),
    /// The receiver joins without an invitation.
    Join(usize),
    Remove(usize),
    SetRate(usize, Rate),
    /// The receiver's host does nothing for this time.
    Sleep(usize, Span),
}

/// The side of one receiver.
pub(super) struct End {
    pub(super) host: HostId,
    pub(super) place: Place,
    pub(super) link: Link,
    pub(super) app: App,
    pub(super) machine: Option<Receiver>,
    /// Whether it ever joined.
    pub(super) joined: bool,
    /// The number of its last start.
    starts: u32,
    /// The index of its source.
    pub(super) of: usize,
    pub(super) down: bool,
    stored: RangeSet<u64>,
    parities: BTreeSet<(u64, u8)>,
    /// The number of recovered cells.
    pub(super) recovered: u64,
    pub(super) read: u64,
    pub(super) consumed: u64,
    pub(super) ended: Option<Time>,
    pub(super) closed: Option<Time>,
    pub(super) failed: Option<Reason>,
    /// The receiver whose link it uses: itself, or another one on the same host.
    pub(super) port: usize,
    pub(super) dropped: u64,
    /// Until then its host handles nothing.
    wakes_at: Time,
    /// The packets that have arrived since its host last handled one.
    held: Vec<Packet<Header>>,
    consuming: bool,
    /// The number of packets sent since the machine was last called.
    polls: u32,
    /// The time of the last call, if the machine may have more to send.
    called: Option<Time>,
    rng: Rng,
}

impl End {
    fn poll_transmit(&mut self, at: Time, first_agent: u32) -> Option<Packet<Header>> {
        if self.down || at < self.wakes_at {
            return None;
        }
        let machine = self.machine.as_mut()?;
        let Some((to, body)) = machine.poll(at) else {
            let next = machine.poll_timeout();
            assert!(next.is_none_or(|next| next > at), "a timer is never due after polling");
            self.called = None;
            if machine.is_over() {
                self.machine = None;
            }
            return None;
        };
        self.polls += 1;
        assert!(self.polls <= 16, "a receiver's poll ends");
        let dst = if to == TO_AGENT {
            assert!(matches!(body, Body::Status(_)), "only reports go to agents");
            HostId(first_agent + u32::from(self.place.rack))
        } else {
            to
        };
        Some(control(self.host, dst, Session(self.of as u32 + 1), body))
    }

    fn poll_timeout(&self) -> Option<Time> {
        let at = self.machine.as_ref().filter(|_| !self.down)?.poll_timeout()?;
        // What is due now is sent when the link is free.
        self.called.is_none_or(|called| at > called).then_some(at.max(self.wakes_at))
    }

    fn on_data(&mut self, now: Time, data: &Data, payload: u16) {
        let Some(machine) = &mut self.machine else { return };
        let room = self.app.room.max(u64::from(payload));
        match machine.handle_data(now, data) {
            Some(Placement::Store { offset, skip, len, .. }) => {
                assert!(data.parity.is_none() && len > 0 && skip + len <= data.len);
                assert_eq!(offset, data.offset + u64::from(skip));
                assert!(offset >= self.read, "bytes below were read already");
                assert!(offset + u64::from(len) <= self.consumed + room);
                self.stored.insert(offset..offset + u64::from(len));
            }
            Some(Placement::Keep { block, end: to, index, .. }) => {
                assert!(data.parity.is_some_and(|parity| parity.index == index));
                assert!(block == data.offset && to > self.read && to <= self.consumed + room);
                assert!(self.parities.insert((block, index)), "each is kept once");
            }
            None => {}
        }
    }

    /// Reads what has become readable, and returns whether there was anything.
    fn drain_events(&mut self, now: Time) -> bool {
        let before = self.read;
        let Some(machine) = self.machine.as_mut().filter(|_| !self.down) else { return false };
        while let Some(event) = machine.poll_event() {
            match event {
                ReceiverEvent::Readable { upto } => {
                    assert!(upto > self.read, "grows");
                    let whole = self.stored.contains_range(self.read..upto);
                    assert!(whole, "all readable bytes were stored");
                    self.read = upto;
                }
                ReceiverEvent::Ended { length } => {
                    assert_eq!(self.read, length, "all of it");
                    assert!(self.ended.is_none(), "once");
                    self.ended = Some(now);
                    if self.app.completes {
                        machine.complete(now);
                    }
                }
                ReceiverEvent::Recover(recovery) => {
                    let Recovery { block, end: to, missing, parities, .. } = recovery;
                    assert!(missing != 0 && missing.count_ones() <= parities.count_ones());
                    assert!(block >= self.app.at && to > self.read);
                    let held = |index: &u8| self.parities.contains(&(block, *index));
                    assert!((0..32).filter(|index| parities >> index & 1 == 1).all(|i| held(&i)));
                    recover(&mut self.stored, &recovery);
                    self.parities.retain(|held| held.0 != block);
                    self.recovered += u64::from(missing.count_ones());
                    machine.recovered(now, block, true);
                }
                ReceiverEvent::Detached | ReceiverEvent::Rejoined => {}
                ReceiverEvent::Failed { reason } => self.failed = Some(reason),
                ReceiverEvent::Closed => self.closed = Some(now),
            }
        }
        self.read > before
    }
}

/// The side of one sender.
pub(super) struct Source {
    pub(super) host: HostId,
    pub(super) machine: Sender,
    /// The link on which it sends, which sources may share.
    pub(super) link: usize,
    pub(super) events: Vec<(Time, SenderEvent)>,
    pub(super) sent_bytes: u64,
    pub(super) controls: u64,
    /// Whether the application can provide bytes that were released.
    pub(super) keeps_all: bool,
    pub(super) statuses: u64,
}

impl Source {
    fn poll_transmit(&mut self, now: Time, payload: u16) -> Option<Packet<Header>> {
        let session = self.machine.session();
        let data = |dst, piece: Piece| {
            let Piece { offset, len, repair, end, parity } = piece;
            let labelled = Labelled::Host;
            let label = Label(0);
            let data = Data { labelled, label, session, offset, len, repair, end, parity };
            let l3_bytes = HEADERS as u32 - 38 + u32::from(len);
            Packet::new(self.host, dst, l3_bytes, Header::Data(data))
        };
        let out = self.machine.poll(now)?;
        let packet = match out {
            Outgoing::Everyone(piece) => data(TO_GROUP, piece),
            Outgoing::One(host, piece) => data(host, piece),
            Outgoing::Control(host, body) => {
                self.controls += 1;
                control(self.host, host, session, body)
            }
        };
        if let Outgoing::Everyone(piece) | Outgoing::One(_, piece) = out {
            let released = if self.keeps_all { 0 } else { self.machine.released() };
            assert!(piece.len > 0 && piece.len <= payload);
            assert!(piece.offset >= released, "bytes are released: {piece:?} {released}");
        }
        self.sent_bytes += u64::from(packet.wire_bytes);
        Some(packet)
    }

    fn drain_events(&mut self, now: Time, attached: &mut BTreeSet<HostId>) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                SenderEvent::Attached { host } => {
                    attached.insert(host);
                }
                SenderEvent::Detached { host }
                | SenderEvent::Lost { host, .. }
                | SenderEvent::Completed { host } => {
                    attached.remove(&host);
                }
                _ => {}
            }
            self.events.push((now, event));
        }
    }
}

fn control(from: HostId, to: HostId, session: Session, body: Body) -> Packet<Header> {
    Packet::new(from, to, CONTROL, Header::Control(Control { from, to, session, body }))
}

/// The agent of a rack, which sends summaries of its receivers' reports.
#[derive(Default)]
struct Agent {
    /// By source.
    summaries: BTreeMap<usize, Summary>,
    due: Option<Time>,
    out: VecDeque<(usize, Body)>,
}

/// All hosts, in this order: receivers, links of sources, agents.
struct Hosts<'a> {
    sources: &'a mut [Source],
    ends: &'a mut [End],
    agents: &'a mut [Agent],
    /// For each link, the source that it serves next.
    turns: &'a mut [usize],
    ports: &'a RefCell<Ports>,
    payload: u16,
}

impl Edge<Header> for Hosts<'_> {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<Header>> {
        let first_agent = self.ends.len() + self.turns.len();
        let number = host.0 as usize;
        if let Some(end) = self.ends.get_mut(number) {
            return end.poll_transmit(at, first_agent as u32);
        }
        if number >= first_agent {
            let (of, body) = self.agents[number - first_agent].out.pop_front()?;
            return Some(control(host, self.sources[of].host, Session(of as u32 + 1), body));
        }
        // The sources of a link send in turn.
        let turn = &mut self.turns[number - self.ends.len()];
        let count = self.sources.len();
        for step in 0..count {
            let next = (*turn + step) % count;
            let source = &mut self.sources[next];
            if source.host != host {
                continue;
            }
            let packet = source.poll_transmit(at, self.payload);
            source.drain_events(at, &mut self.ports.borrow_mut().attached[next]);
            if packet.is_some() {
                *turn = next + 1;
                return packet;
            }
        }
        None
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        let number = host.0 as usize;
        let at = match number.checked_sub(self.ends.len()) {
            None => self.ends[number].poll_timeout(),
            Some(link) if link < self.turns.len() => {
                let sources = self.sources.iter().filter(|source| source.host == host);
                sources.filter_map(|source| source.machine.poll_timeout()).min()
            }
            Some(other) => self.agents[other - self.turns.len()].due,
        };
        at.unwrap_or(Time::MAX)
    }
}

/// The network. It is built from its sources and ends at the first [`Network::run`].
pub(super) struct Network {
    pub(super) now: Time,
    pub(super) rate: Rate,
    pub(super) config: FlowConfig,
    pub(super) sources: Vec<Source>,
    pub(super) ends: Vec<End>,
    /// The interval of the agents' summaries, if there are agents.
    pub(super) agents: Option<Span>,
    agent_hosts: Vec<Agent>,
    actions: Vec<(Time, Action)>,
    turns: Vec<usize>,
    ports: Rc<RefCell<Ports>>,
    net: Option<Net<Switch>>,
    seed: u64,
}

impl Network {
    pub(super) fn new(seed: u64, mbps: u64, config: FlowConfig) -> Self {
        let rate = Rate(mbps * 1_000_000);
        Self {
            now: Time::ZERO,
            rate,
            config,
            sources: Vec::new(),
            ends: Vec::new(),
            agents: None,
            agent_hosts: Vec::new(),
            actions: Vec::new(),
            turns: Vec::new(),
            ports: Rc::new(RefCell::new(Ports::new(rate))),
            net: None,
            seed,
        }
    }

    /// Adds a sender, on a new link or on that of others.
    pub(super) fn source(&mut self, link: Option<usize>) -> usize {
        let number = self.sources.len();
        let link = link.unwrap_or_else(|| {
            self.turns.push(0);
            self.turns.len() - 1
        });
        let session = Session(number as u32 + 1);
        let via = self.agents.is_some();
        self.sources.push(Source {
            host: HostId(u32::MAX),
            machine: Sender::new(self.now, session, 77, via, self.config),
            link,
            events: Vec::new(),
            sent_bytes: 0,
            controls: 0,
            keeps_all: false,
            statuses: 0,
        });
        number
    }

    /// Adds a receiver of a source, which has not joined yet.
    pub(super) fn end(&mut self, of: usize, link: Link, app: App) -> usize {
        let number = self.ends.len();
        let place = Place { rack: (number / 64) as u16, port: (number % 64) as u8 };
        self.ends.push(End {
            host: HostId(number as u32),
            place,
            link,
            app,
            machine: None,
            joined: false,
            starts: 0,
            of,
            down: false,
            stored: RangeSet::new(),
            parities: BTreeSet::new(),
            recovered: 0,
            read: app.at,
            consumed: app.at,
            ended: None,
            closed: None,
            failed: None,
            port: number,
            dropped: 0,
            wakes_at: Time::ZERO,
            held: Vec::new(),
            consuming: false,
            polls: 0,
            called: None,
            rng: Rng::stream(self.seed, 0, number as u64, "noise"),
        });
        number
    }

    pub(super) fn invite(&mut self, end: usize) {
        let End { host, place, of, .. } = self.ends[end];
        self.sources[of].machine.invite(self.now, host, place);
    }

    /// Requests an action before the first run.
    pub(super) fn at(&mut self, at: Time, what: Action) {
        assert!(self.net.is_none(), "the network is built");
        self.actions.push((at, what));
    }

    fn build(&mut self) -> Net<Switch> {
        let ends = self.ends.len();
        let mut ports = self.ports.borrow_mut();
        for end in &self.ends {
            ports.add(end.link.rate, end.link.buffer, end.port);
        }
        ports.attached = vec![BTreeSet::new(); self.sources.len()];
        drop(ports);
        for source in &mut self.sources {
            source.host = HostId((ends + source.link) as u32);
        }
        if self.agents.is_some() {
            self.agent_hosts.resize_with(ends.div_ceil(64), Agent::default);
        }
        let others = self.turns.len() + self.agent_hosts.len();
        let topology =
            Topology::SingleSwitch { hosts: (ends + others) as u32, host_link: self.rate };
        let mut config = fabric(topology).config().clone();
        config.host_link_delays = self.ends.iter().map(|end| end.link.delay).collect();
        config.host_link_delays.extend(vec![Span::from_us(25); others]);
        let faults = self.ends.iter().flat_map(|end| {
            let [loss, twice, late] =
                [end.link.lost, end.link.twice, end.link.late].map(|packets| packets as f64 / 1e6);
            let reordering = FaultKind::Reordering { probability: late, delay: end.link.late_by };
            [FaultKind::Loss(loss), FaultKind::Duplication(twice), reordering]
                .map(|kind| always(FaultPlace::HostLink(end.host), kind))
        });
        let config = NetConfig {
            faults: faults.collect(),
            wakes: (2 * ends + self.actions.len()) as u32,
            ..NetConfig::new(Arc::new(Fabric::new(&config).expect("a fabric")), self.seed, 0)
        };
        let mut net = Net::new(config, (), |_| Switch(Rc::clone(&self.ports)));
        for (number, (at, _)) in self.actions.iter().enumerate() {
            net.wake_at(*at, (2 * ends + number) as u32);
        }
        net
    }

    fn split(&mut self) -> (&mut Net<Switch>, Hosts<'_>) {
        let hosts = Hosts {
            sources: &mut self.sources,
            ends: &mut self.ends,
            agents: &mut self.agent_hosts,
            turns: &mut self.turns,
            ports: &self.ports,
            payload: self.config.payload,
        };
        (self.net.as_mut().expect("the network is built"), hosts)
    }

    /// Runs until this time.
    pub(super) fn run(&mut self, until: Time) {
        if self.net.is_none() {
            self.net = Some(self.build());
        }
        self.change_all();
        let mut steps = 0;
        loop {
            let (net, mut hosts) = self.split();
            let Some(event) = net.step(&mut hosts, until) else { break };
            let now = net.now();
            steps = if now > self.now { 0 } else { steps + 1 };
            assert!(steps < 100_000, "time goes on");
            self.now = now;
            match event {
                NetEvent::Arrived { host, packet } => {
                    let packet = self.split().0.take(packet);
                    self.flush(host);
                    self.arrived(host, packet);
                }
                NetEvent::Timer(host) => {
                    self.flush(host);
                    self.changed(host);
                }
                NetEvent::Wake(number) => self.woken(number as usize),
                _ => {}
            }
        }
        self.split().0.advance(until);
        self.flush_all();
        self.now = until;
        for (end, queue) in self.ends.iter_mut().zip(&self.ports.borrow().queues) {
            end.dropped = queue.dropped;
        }
    }

    fn flush(&mut self, host: HostId) {
        let (net, mut hosts) = self.split();
        net.flush(&mut hosts, host);
    }

    /// Flushes all hosts before calls of any of them.
    fn flush_all(&mut self) {
        (0..self.split().0.hosts()).for_each(|host| self.flush(HostId(host)));
    }

    /// Drives all hosts after calls of any of them.
    fn change_all(&mut self) {
        (0..self.split().0.hosts()).for_each(|host| self.changed(HostId(host)));
    }

    fn wake_at(&mut self, at: Time, number: usize) {
        self.split().0.wake_at(at, number as u32);
    }

    /// Drives a host after a call, or when its timer is due.
    fn changed(&mut self, host: HostId) {
        let (now, number) = (self.now, host.0 as usize);
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if let Some(end) = self.ends.get_mut(number) {
            // A host that sleeps handles its timer later.
            if now >= end.wakes_at {
                if let Some(machine) = &mut end.machine
                    && due(machine.poll_timeout())
                {
                    machine.handle_timeout(now);
                }
                (end.polls, end.called) = (0, Some(now));
            }
            while self.ends[number].drain_events(now) && !self.ends[number].consuming {
                self.consume(number);
            }
        }
        if let Some(rack) = number.checked_sub(self.ends.len() + self.turns.len()) {
            let agent = &mut self.agent_hosts[rack];
            if due(agent.due) {
                agent.due = None;
                for (of, summary) in &mut agent.summaries {
                    let statuses = summary.statuses().map(|status| (*of, Body::Status(status)));
                    agent.out.extend(statuses);
                    summary.clear();
                }
            }
        }
        let mut ports = self.ports.borrow_mut();
        for (source, attached) in self.sources.iter_mut().zip(&mut ports.attached) {
            if source.host == host {
                if due(source.machine.poll_timeout()) {
                    source.machine.handle_timeout(now);
                }
                source.drain_events(now, attached);
            }
        }
        drop(ports);
        let (net, mut hosts) = self.split();
        net.wake(&mut hosts, host);
    }

    /// Consumes what the application can, and goes on later with the rest.
    fn consume(&mut self, number: usize) {
        let (now, later) = (self.now, self.ends.len() + number);
        let end = &mut self.ends[number];
        end.consuming = false;
        let Some(machine) = &mut end.machine else { return };
        let rate = end.app.takes.map(|rate| rate.bytes_in(Span::from_ms(1)).max(1));
        end.consumed = end.read.min(end.consumed.saturating_add(rate.unwrap_or(u64::MAX)));
        machine.consume(now, end.consumed);
        end.consuming = end.consumed < end.read;
        if end.consuming {
            self.wake_at(now + Span::from_ms(1), later);
        }
    }

    fn woken(&mut self, number: usize) {
        let (now, ends) = (self.now, self.ends.len());
        if number >= 2 * ends {
            return self.act(self.actions[number - 2 * ends].1);
        }
        let host = HostId((number % ends) as u32);
        self.flush(host);
        let end = &mut self.ends[number % ends];
        if number >= ends {
            self.consume(number - ends);
        } else if now >= end.wakes_at {
            for packet in std::mem::take(&mut end.held) {
                self.deliver(number, &packet);
            }
        }
        self.changed(host);
    }

    fn arrived(&mut self, host: HostId, packet: Packet<Header>) {
        let (now, number) = (self.now, host.0 as usize);
        if let Some(end) = self.ends.get_mut(number) {
            if end.held.is_empty() && now >= end.wakes_at && end.link.noise > Span::ZERO {
                end.wakes_at = now + Span::from_ticks(end.rng.below(end.link.noise.ticks() + 1));
                let at = end.wakes_at;
                self.wake_at(at, number);
            }
            let end = &mut self.ends[number];
            if now < end.wakes_at || !end.held.is_empty() {
                return end.held.push(packet);
            }
            return self.deliver(number, &packet);
        }
        let Header::Control(Control { from, session, body, .. }) = packet.header else {
            panic!("data for {host}")
        };
        let of = session.0 as usize - 1;
        if let Some(rack) = number.checked_sub(self.ends.len() + self.turns.len()) {
            let Body::Status(status) = body else { panic!("only reports go to agents") };
            let agent = &mut self.agent_hosts[rack];
            agent.summaries.entry(of).or_default().add(&status);
            let interval = self.agents.expect("there are agents");
            agent.due.get_or_insert(now + interval);
        } else {
            let source = &mut self.sources[of];
            source.statuses += u64::from(matches!(body, Body::Status(_)));
            source.machine.handle_control(now, from, &body);
        }
        self.changed(host);
    }

    fn deliver(&mut self, number: usize, packet: &Packet<Header>) {
        if self.ends[number].down {
            return;
        }
        match &packet.header {
            Header::Data(data) => self.ends[number].on_data(self.now, data, self.config.payload),
            Header::Control(control) => {
                if let Body::Invite { .. } = control.body {
                    self.joins(number);
                }
                if let Some(machine) = &mut self.ends[number].machine {
                    machine.handle_control(self.now, &control.body);
                }
            }
        }
        self.changed(HostId(number as u32));
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        self.flush_all();
        match action {
            Action::Offer(upto) => self.sources[0].machine.offer(now, upto),
            Action::Finish => self.sources[0].machine.finish(now),
            Action::Crash(end) => {
                self.ends[end].down = true;
                self.ends[end].machine = None;
            }
            Action::Return(number, keeps) => {
                let end = &mut self.ends[number];
                if end.down && end.closed.is_none() {
                    (end.down, end.read) = (false, end.read.min(keeps));
                    end.consumed = end.read;
                    (end.ended, end.failed) = (None, None);
                    end.stored.clear();
                    end.stored.insert(0..end.read);
                    end.parities.clear();
                    self.joins(number);
                }
            }
            Action::Leave(end, reason) => {
                if let Some(machine) = &mut self.ends[end].machine {
                    machine.leave(now, reason);
                }
            }
            Action::Join(end) => self.joins(end),
            Action::Remove(end) => {
                let End { of, host, .. } = self.ends[end];
                self.sources[of].machine.remove(now, host, Reason::Left);
            }
            Action::SetRate(end, rate) => self.ports.borrow_mut().queues[end].rate = rate,
            Action::Sleep(end, span) => {
                self.ends[end].wakes_at = now + span;
                self.wake_at(now + span, end);
            }
        }
        self.change_all();
    }

    fn joins(&mut self, number: usize) {
        let end = &mut self.ends[number];
        if end.machine.is_some() || end.down || end.closed.is_some() {
            return;
        }
        let via = self.agents.is_some();
        end.joined = true;
        end.starts += 1;
        end.machine = Some(Receiver::new(
            self.now,
            Session(end.of as u32 + 1),
            end.starts,
            77,
            self.sources[end.of].host,
            end.place,
            end.read,
            end.app.room,
            via,
            self.config,
        ));
    }

    /// Asserts that no state exceeds its bounds.
    pub(super) fn check_bounds(&self) {
        for source in &self.sources {
            source.machine.check_bounds();
        }
        for end in &self.ends {
            if let Some(machine) = &end.machine {
                machine.check_bounds();
            }
        }
    }
}

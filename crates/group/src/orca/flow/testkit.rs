//! A small deterministic network for flows, in virtual time: a link from each sender, a link with a queue to each receiver, loss,
//! duplication, reordering, delay and crashes. It asserts that only stored bytes are read, and that no packet carries released
//! bytes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use rackweave_core::{HostId, Rate, Rng, Span, Time};
use rackweave_wire::orca::{Body, Data, Label, Labelled, Place, Reason, Session, Status, TO_AGENT};

use super::{
    FlowConfig, Outgoing, Piece, Placement, Receiver, ReceiverEvent, Recovery, Sender, SenderEvent,
    Summary,
};

/// Bytes of headers of a data packet, with Ethernet's.
pub(super) const HEADERS: u64 = 20 + 8 + 20 + 38;
const CONTROL: u64 = 84 + 64;

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

#[derive(Debug)]
enum Happening {
    /// The sender's link is free.
    Free(usize),
    SenderTimer(usize),
    ReceiverTimer(usize),
    Data(usize, Data),
    ToReceiver(usize, Body),
    ToSender(usize, HostId, Body),
    Consume(usize),
    AgentSends(u16),
    /// An action of the test.
    Do(Action),
}

/// An action of a test.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Offer(u64),
    Finish,
    Crash(usize),
    Leave(usize, Reason),
    /// The receiver joins without an invitation.
    Join(usize),
    Remove(usize),
    SetRate(usize, Rate),
    /// The receiver's host does nothing for this time.
    Sleep(usize, Span),
}

struct Event {
    at: Time,
    order: u64,
    what: Happening,
}
impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
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
    /// The index of its source.
    pub(super) of: usize,
    pub(super) down: bool,
    stored: BTreeMap<u64, u64>,
    parities: BTreeSet<(u64, u8)>,
    /// The number of recovered cells.
    pub(super) recovered: u64,
    pub(super) read: u64,
    pub(super) consumed: u64,
    pub(super) ended: Option<Time>,
    pub(super) closed: Option<Time>,
    pub(super) failed: Option<Reason>,
    pub(super) detached: bool,
    /// The receiver whose link it uses: itself, or another one on the same host.
    pub(super) port: usize,
    busy_until: Time,
    queued: VecDeque<(Time, u64)>,
    backlog: u64,
    pub(super) dropped: u64,
    pub(super) statuses: u64,
    timer: Time,
    wakes_at: Time,
    consuming: bool,
    rng: Rng,
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
    pub(super) statuses: u64,
    pub(super) attached: Vec<bool>,
    timer: Time,
    waiting: bool,
}

/// The network.
pub(super) struct Net {
    pub(super) now: Time,
    pub(super) rate: Rate,
    pub(super) delay: Span,
    pub(super) config: FlowConfig,
    pub(super) sources: Vec<Source>,
    pub(super) ends: Vec<End>,
    /// The interval of the agents' summaries, if there are agents.
    pub(super) agents: Option<Span>,
    summaries: BTreeMap<(u16, usize), Summary>,
    /// When each link is free, and the source that it serves next.
    links: Vec<(Time, usize)>,
    heap: BinaryHeap<Reverse<Event>>,
    order: u64,
    /// Events at the same time.
    steps: u64,
    seed: u64,
}

impl Net {
    pub(super) fn new(seed: u64, mbps: u64, config: FlowConfig) -> Self {
        Self {
            now: Time::ZERO,
            rate: Rate(mbps * 1_000_000),
            delay: Span::from_us(25),
            config,
            sources: Vec::new(),
            ends: Vec::new(),
            agents: None,
            summaries: BTreeMap::new(),
            links: Vec::new(),
            heap: BinaryHeap::new(),
            order: 0,
            steps: 0,
            seed,
        }
    }

    /// Adds a sender, on a new link or on that of others.
    pub(super) fn source(&mut self, link: Option<usize>) -> usize {
        let number = self.sources.len();
        let link = link.unwrap_or_else(|| {
            self.links.push((self.now, 0));
            self.links.len() - 1
        });
        let session = Session(number as u32 + 1);
        let via = self.agents.is_some();
        self.sources.push(Source {
            host: HostId(1_000_000 + number as u32),
            machine: Sender::new(self.now, session, 77, via, self.config),
            link,
            events: Vec::new(),
            sent_bytes: 0,
            controls: 0,
            statuses: 0,
            attached: Vec::new(),
            timer: Time::MAX,
            waiting: false,
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
            of,
            down: false,
            stored: BTreeMap::new(),
            parities: BTreeSet::new(),
            recovered: 0,
            read: app.at,
            consumed: app.at,
            ended: None,
            closed: None,
            failed: None,
            detached: false,
            port: number,
            busy_until: Time::ZERO,
            queued: VecDeque::new(),
            backlog: 0,
            dropped: 0,
            statuses: 0,
            timer: Time::MAX,
            wakes_at: Time::ZERO,
            consuming: false,
            rng: Rng::stream(self.seed, 0, number as u64, "link"),
        });
        number
    }

    pub(super) fn invite(&mut self, end: usize) {
        let (host, place, of) = (self.ends[end].host, self.ends[end].place, self.ends[end].of);
        self.sources[of].machine.invite(self.now, host, place);
        self.after_source(of);
    }

    pub(super) fn at(&mut self, at: Time, what: Action) {
        self.push(at, Happening::Do(what));
    }

    fn push(&mut self, at: Time, what: Happening) {
        self.order += 1;
        self.heap.push(Reverse(Event { at, order: self.order, what }));
    }

    /// Runs until nothing happens any more, or this time.
    pub(super) fn run(&mut self, until: Time) {
        while let Some(Reverse(event)) = self.heap.peek() {
            if event.at > until {
                break;
            }
            let Some(Reverse(event)) = self.heap.pop() else { break };
            if event.at > self.now {
                self.steps = 0;
            }
            self.steps += 1;
            assert!(self.steps < 100_000, "time goes on");
            self.now = event.at;
            self.happen(event.what);
        }
    }

    fn happen(&mut self, what: Happening) {
        let now = self.now;
        match what {
            Happening::Free(source) => {
                self.sources[source].waiting = false;
                self.after_source(source);
            }
            Happening::SenderTimer(source) => {
                if self.sources[source].timer == now {
                    self.sources[source].timer = Time::MAX;
                    self.sources[source].machine.handle_timeout(now);
                    self.after_source(source);
                }
            }
            Happening::ReceiverTimer(end) => {
                if self.ends[end].timer == now {
                    self.ends[end].timer = Time::MAX;
                    if let Some(machine) = &mut self.ends[end].machine {
                        machine.handle_timeout(now);
                    }
                    self.after_end(end);
                }
            }
            Happening::Data(end, data) => self.data(end, data),
            Happening::ToReceiver(end, body) => self.control(end, body),
            Happening::ToSender(source, from, body) => {
                if let Body::Status(_) = body {
                    self.sources[source].statuses += 1;
                }
                self.sources[source].machine.handle_control(now, from, &body);
                self.after_source(source);
            }
            Happening::Consume(end) => self.consume(end),
            Happening::AgentSends(rack) => self.agent_sends(rack),
            Happening::Do(action) => self.act(action),
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Offer(upto) => {
                self.sources[0].machine.offer(now, upto);
                self.after_source(0);
            }
            Action::Finish => {
                self.sources[0].machine.finish(now);
                self.after_source(0);
            }
            Action::Crash(end) => {
                self.ends[end].down = true;
                self.ends[end].machine = None;
            }
            Action::Leave(end, reason) => {
                if let Some(machine) = &mut self.ends[end].machine {
                    machine.leave(now, reason);
                    self.after_end(end);
                }
            }
            Action::Join(end) => self.joins(end),
            Action::Remove(end) => {
                let of = self.ends[end].of;
                let host = self.ends[end].host;
                self.sources[of].machine.remove(now, host, Reason::Left);
                self.after_source(of);
            }
            Action::SetRate(end, rate) => self.ends[end].link.rate = rate,
            Action::Sleep(end, span) => self.ends[end].wakes_at = now + span,
        }
    }

    fn joins(&mut self, number: usize) {
        let end = &mut self.ends[number];
        if end.machine.is_some() || end.down || end.closed.is_some() {
            return;
        }
        let via = self.agents.is_some();
        end.joined = true;
        end.machine = Some(Receiver::new(
            self.now,
            Session(end.of as u32 + 1),
            77,
            self.sources[end.of].host,
            end.place,
            end.read,
            end.app.room,
            via,
            self.config,
        ));
        self.after_end(number);
    }

    fn control(&mut self, number: usize, body: Body) {
        if self.ends[number].down {
            return;
        }
        if let Body::Invite { .. } = body {
            self.joins(number);
        }
        if let Some(machine) = &mut self.ends[number].machine {
            machine.handle_control(self.now, &body);
        }
        self.after_end(number);
    }

    fn data(&mut self, number: usize, data: Data) {
        let end = &mut self.ends[number];
        let Some(machine) = end.machine.as_mut().filter(|_| !end.down) else { return };
        let room = end.app.room.max(u64::from(self.config.payload));
        match machine.handle_data(self.now, &data) {
            Some(Placement::Store { offset, skip, len, .. }) => {
                assert!(data.parity.is_none() && len > 0 && skip + len <= data.len);
                assert_eq!(offset, data.offset + u64::from(skip));
                assert!(offset >= end.read, "bytes below were read already");
                assert!(offset + u64::from(len) <= end.consumed + room);
                store(&mut end.stored, offset, offset + u64::from(len));
            }
            Some(Placement::Keep { block, end: to, index, .. }) => {
                assert!(data.parity.is_some_and(|parity| parity.index == index));
                assert!(block == data.offset && to > end.read && to <= end.consumed + room);
                assert!(end.parities.insert((block, index)), "each is kept once");
            }
            None => {}
        }
        self.after_end(number);
    }

    fn consume(&mut self, number: usize) {
        let now = self.now;
        let end = &mut self.ends[number];
        end.consuming = false;
        let Some(machine) = &mut end.machine else { return };
        let step = match end.app.takes {
            Some(rate) => rate.bytes_in(Span::from_ms(1)).max(1),
            None => u64::MAX,
        };
        end.consumed = end.read.min(end.consumed.saturating_add(step));
        machine.consume(now, end.consumed);
        if end.consumed < end.read {
            end.consuming = true;
            self.push(now + Span::from_ms(1), Happening::Consume(number));
        }
        self.after_end(number);
    }

    fn after_end(&mut self, number: usize) {
        let now = self.now;
        let mut out = Vec::new();
        let mut consume = false;
        let end = &mut self.ends[number];
        if end.down {
            return;
        }
        let Some(machine) = &mut end.machine else { return };
        while let Some(event) = machine.poll_event() {
            match event {
                ReceiverEvent::Readable { upto } => {
                    assert!(upto > end.read, "grows");
                    let (&from, &to) = end.stored.first_key_value().expect("something is stored");
                    assert!(from <= end.read && to >= upto, "all readable bytes were stored");
                    end.read = upto;
                    consume = !end.consuming;
                }
                ReceiverEvent::Ended { length } => {
                    assert_eq!(end.read, length, "all of it");
                    assert!(end.ended.is_none(), "once");
                    end.ended = Some(now);
                    if end.app.completes {
                        machine.complete(now);
                    }
                }
                ReceiverEvent::Recover(recovery) => {
                    let Recovery { block, end: to, payload, missing, parities } = recovery;
                    assert!(missing != 0 && missing.count_ones() <= parities.count_ones());
                    assert!(block >= end.app.at && to > end.read);
                    let held = |index: &u8| end.parities.contains(&(block, *index));
                    assert!((0..32).filter(|index| parities >> index & 1 == 1).all(|i| held(&i)));
                    let (mut at, mut cell) = (block, 0);
                    while at < to {
                        let next = (at + u64::from(payload)).min(to);
                        if missing >> cell & 1 == 0 {
                            let (_, &known) = end.stored.range(..=at).next_back().expect("stored");
                            assert!(known >= next, "a cell that is here is stored");
                        }
                        (at, cell) = (next, cell + 1);
                    }
                    store(&mut end.stored, block, to);
                    end.parities.retain(|held| held.0 != block);
                    end.recovered += u64::from(missing.count_ones());
                    machine.recovered(now, block, true);
                }
                ReceiverEvent::Detached => end.detached = true,
                ReceiverEvent::Rejoined => end.detached = false,
                ReceiverEvent::Failed { reason } => end.failed = Some(reason),
                ReceiverEvent::Closed => end.closed = Some(now),
            }
        }
        let mut packets = 0;
        while let Some((to, body)) = machine.poll(now) {
            packets += 1;
            assert!(packets <= 16, "a receiver's poll ends");
            out.push((to, body));
        }
        let next = machine.poll_timeout();
        if machine.is_over() {
            end.machine = None;
        } else if let Some(next) = next {
            let at = next.max(now);
            if end.timer > at || end.timer <= now {
                assert!(next > now, "a timer is never due after polling");
                end.timer = at;
                self.push(at, Happening::ReceiverTimer(number));
            }
        }
        for (to, body) in out {
            self.send_to_sender(number, to, body);
        }
        if consume {
            self.ends[number].consuming = true;
            self.push(now, Happening::Consume(number));
        }
    }

    fn send_to_sender(&mut self, number: usize, to: HostId, body: Body) {
        let (of, host, link) = {
            let end = &mut self.ends[number];
            if matches!(body, Body::Status(_)) {
                end.statuses += 1;
            }
            (end.of, end.host, end.link)
        };
        if to == TO_AGENT {
            let Body::Status(status) = body else { panic!("only reports go to agents") };
            self.aggregate(of, status);
            return;
        }
        for at in self.arrivals(number, self.now + link.delay + self.delay) {
            self.push(at, Happening::ToSender(of, host, body));
        }
    }

    fn aggregate(&mut self, of: usize, status: Status) {
        let interval = self.agents.expect("there are agents");
        let rack = status.rack;
        let quiet = self.summaries.range((rack, 0)..=(rack, usize::MAX)).all(|(_, s)| s.is_empty());
        self.summaries.entry((rack, of)).or_default().add(&status);
        if quiet {
            self.push(self.now + interval, Happening::AgentSends(rack));
        }
    }

    fn agent_sends(&mut self, rack: u16) {
        let at = self.now + self.delay * 2;
        let mut out = Vec::new();
        for ((_, of), summary) in self.summaries.range_mut((rack, 0)..=(rack, usize::MAX)) {
            out.extend(summary.statuses().map(|status| (*of, status)));
            summary.clear();
        }
        for (of, status) in out {
            self.push(at, Happening::ToSender(of, HostId(9_999_999), Body::Status(status)));
        }
    }

    /// When the copies of a packet arrive that would arrive at `at` without faults.
    fn arrivals(&mut self, number: usize, at: Time) -> impl Iterator<Item = Time> + use<> {
        let end = &mut self.ends[number];
        let link = end.link;
        let mut copies = [None, None];
        if !end.rng.chance(link.lost as f64 / 1e6) {
            copies[0] = Some(at);
        }
        if end.rng.chance(link.twice as f64 / 1e6) {
            copies[1] = Some(at + Span(end.rng.below(link.late_by.0 + 1)));
        }
        for copy in copies.iter_mut().flatten() {
            if end.rng.chance(link.late as f64 / 1e6) {
                *copy += Span(end.rng.below(link.late_by.0 + 1));
            }
            if *copy >= end.wakes_at && link.noise > Span::ZERO {
                let sleeps = end.rng.below(link.noise.0 + 1);
                end.wakes_at = *copy + Span(sleeps);
            }
            *copy = (*copy).max(end.wakes_at);
        }
        copies.into_iter().flatten()
    }

    fn after_source(&mut self, number: usize) {
        let now = self.now;
        let source = &mut self.sources[number];
        while let Some(event) = source.machine.poll_event() {
            let (host, attached) = match event {
                SenderEvent::Attached { host } => (host, true),
                SenderEvent::Detached { host }
                | SenderEvent::Lost { host, .. }
                | SenderEvent::Completed { host } => (host, false),
                _ => (HostId(u32::MAX), false),
            };
            if host != HostId(u32::MAX) {
                let at = host.0 as usize;
                if source.attached.len() <= at {
                    source.attached.resize(at + 1, false);
                }
                source.attached[at] = attached;
            }
            source.events.push((now, event));
        }
        let link = source.link;
        self.serve(link);
        let source = &mut self.sources[number];
        if let Some(next) = source.machine.poll_timeout() {
            let at = next.max(now);
            if source.timer > at || source.timer <= now {
                source.timer = at;
                self.push(at, Happening::SenderTimer(number));
            }
        }
    }

    /// Sends from the sources of a link, round robin, as long as it is free.
    fn serve(&mut self, link: usize) {
        let now = self.now;
        let mut polls = 0;
        while self.links[link].0 <= now {
            let on: Vec<usize> =
                (0..self.sources.len()).filter(|at| self.sources[*at].link == link).collect();
            let turn = self.links[link].1;
            let mut found = None;
            for step in 0..on.len() {
                let at = (turn + step) % on.len();
                if let Some(out) = self.sources[on[at]].machine.poll(now) {
                    found = Some((at, on[at], out));
                    break;
                }
            }
            let Some((at, source, out)) = found else {
                return;
            };
            polls += 1;
            assert!(polls < 100_000, "polling ends");
            self.links[link].1 = at + 1;
            let bytes = match out {
                Outgoing::Everyone(piece) | Outgoing::One(_, piece) => {
                    HEADERS + u64::from(piece.len)
                }
                Outgoing::Control(..) => CONTROL,
            };
            self.links[link].0 = now + self.rate.span_of(bytes);
            self.sources[source].sent_bytes += bytes;
            self.transmit(source, self.links[link].0 + self.delay, out);
        }
        let at = self.links[link].0;
        if let Some(source) = (0..self.sources.len()).find(|at| self.sources[*at].link == link)
            && !self.sources[source].waiting
        {
            self.sources[source].waiting = true;
            self.push(at, Happening::Free(source));
        }
    }

    fn transmit(&mut self, source: usize, at: Time, out: Outgoing) {
        let released = self.sources[source].machine.released();
        let check = |piece: &Piece| {
            assert!(piece.len > 0 && piece.len <= self.config.payload);
            assert!(piece.offset >= released, "bytes are released: {piece:?} {released}");
        };
        match out {
            Outgoing::Everyone(piece) => {
                check(&piece);
                for end in 0..self.ends.len() {
                    if self.ends[end].of == source
                        && self.sources[source].attached.get(end) == Some(&true)
                    {
                        self.transmit_to(source, end, at, piece);
                    }
                }
            }
            Outgoing::One(host, piece) => {
                check(&piece);
                self.transmit_to(source, host.0 as usize, at, piece);
            }
            Outgoing::Control(host, body) => {
                self.sources[source].controls += 1;
                let end = host.0 as usize;
                let at = self.queue_at_port(end, at, CONTROL);
                let Some(at) = at else { return };
                for at in self.arrivals(end, at) {
                    self.push(at, Happening::ToReceiver(end, body));
                }
            }
        }
    }

    fn transmit_to(&mut self, source: usize, end: usize, at: Time, piece: Piece) {
        let Some(at) = self.queue_at_port(end, at, HEADERS + u64::from(piece.len)) else { return };
        let data = Data {
            labelled: Labelled::Host,
            label: Label(0),
            session: Session(source as u32 + 1),
            offset: piece.offset,
            len: piece.len,
            repair: piece.repair,
            end: piece.end,
            parity: piece.parity,
        };
        for at in self.arrivals(end, at) {
            self.push(at, Happening::Data(end, data));
        }
    }

    /// When a packet that reaches a receiver's port at `at` has passed its link; `None` if the queue is full.
    fn queue_at_port(&mut self, number: usize, at: Time, bytes: u64) -> Option<Time> {
        let port = self.ends[number].port;
        let end = &mut self.ends[port];
        while let Some(&(gone, bytes)) = end.queued.front()
            && gone <= at
        {
            end.queued.pop_front();
            end.backlog -= bytes;
        }
        if end.backlog + bytes > end.link.buffer {
            end.dropped += bytes;
            return None;
        }
        // Cut-through, if nothing is queued and the link is no slower.
        let own = end.link.rate.span_of(bytes);
        let feed = self.rate.span_of(bytes);
        let start = Time(at.0 - feed.0.min(own.0)).max(end.busy_until);
        end.busy_until = start + own;
        end.backlog += bytes;
        end.queued.push_back((end.busy_until, bytes));
        Some(end.busy_until + end.link.delay)
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

/// Adds a stored range.
fn store(stored: &mut BTreeMap<u64, u64>, from: u64, to: u64) {
    let (mut from, mut to) = (from, to);
    while let Some((&start, &end)) = stored.range(..=to).next_back() {
        if end < from {
            break;
        }
        from = from.min(start);
        to = to.max(end);
        stored.remove(&start);
    }
    stored.insert(from, to);
}

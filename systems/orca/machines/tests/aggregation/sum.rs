//! A group system with in-network aggregation: a leaf switch adds the vectors that workers send to it and sends the sum
//! to a master. It is the example of `docs/adding-a-group-system.md`, and runs unchanged in the simulator and on
//! frames.

use rackweave_core::{
    Destination, DropReason, Header as AnyHeader, HostId, Packet, PayloadStore, Port, Rate, Span,
    Time, Verdict,
};
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, SwitchConfig};
use rackweave_switch::system::{Outgoing, Parsed, Protocol, System, SystemError, SystemProgram};
use rackweave_wire::orca::{self, Body, Control, Session};

pub(crate) const KIND: u8 = 9;
pub(crate) const PORT: u16 = 7009;
pub(crate) const HEADER_BYTES: usize = 5;
const MAGIC: u8 = 0xad;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A worker's vector, addressed to the switch.
    Add,
    /// The switch's acknowledgement of a vector.
    Ack,
    /// The sum of all workers' vectors, addressed to the master.
    Sum,
}

/// The header of each packet. In `Add` and `Sum` a vector of big-endian numbers follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) round: u16,
    pub(crate) worker: u8,
}

impl Header {
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let [high, low] = self.round.to_be_bytes();
        out.extend_from_slice(&[MAGIC, self.kind as u8, high, low, self.worker]);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [MAGIC, kind, high, low, worker, ..] = *bytes else { return None };
        let kind = [Kind::Add, Kind::Ack, Kind::Sum].into_iter().find(|k| *k as u8 == kind)?;
        Some(Self { kind, round: u16::from_be_bytes([high, low]), worker })
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    /// The number of workers, at most 64.
    pub(crate) workers: u8,
    /// The number of 32-bit words in a vector.
    pub(crate) words: usize,
    pub(crate) master: HostId,
}

impl System for Sum {
    type View = Header;
    type Program = Adder;
    type Made = Header;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        std::iter::once(Protocol { kind: KIND, port: PORT, group: None, has_check: true })
    }

    fn resolves(&self, _dst: HostId) -> bool {
        false
    }

    fn parse(&self, _kind: u8, bytes: &[u8]) -> Option<Parsed<Header>> {
        let view = Header::decode(bytes)?;
        Some(Parsed { view, addresses: None, payload_at: HEADER_BYTES })
    }

    fn encode(&self, packet: &Outgoing<'_, Header>, out: &mut Vec<u8>) -> u8 {
        packet.header.encode(out);
        out.extend_from_slice(packet.payload);
        KIND
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Adder>, SystemError> {
        if self.workers > 64 {
            return Err(SystemError::new("at most 64 workers"));
        }
        let address = |switch| Destination::Switch(switch).address();
        Ok((0..fabric.switches()).map(|switch| Adder::new(address(switch), self)).collect())
    }
}

/// The program of each switch, which handles the vectors addressed to its own switch.
#[derive(Clone, Debug)]
pub(crate) struct Adder {
    me: HostId,
    master: HostId,
    /// The bit set of all workers.
    all: u64,
    round: u16,
    /// The bit set of workers whose vectors of this round are in the sum.
    seen: u64,
    sum: Vec<u8>,
    ack: Option<(HostId, Header)>,
    is_sum_due: bool,
    duplicates: u64,
}

impl Adder {
    fn new(me: HostId, system: &Sum) -> Self {
        let all = 1_u64.checked_shl(system.workers.into()).unwrap_or(0).wrapping_sub(1);
        let sum = vec![0; system.words * 8];
        let (master, ack) = (system.master, None);
        Self { me, master, all, round: 0, seen: 0, sum, ack, is_sum_due: false, duplicates: 0 }
    }

    /// Adds a vector unless it was added before.
    fn add(&mut self, header: Header, vector: &[u8]) -> Verdict {
        let bit = 1_u64.checked_shl(header.worker.into()).unwrap_or(0);
        let ahead = header.round.wrapping_sub(self.round) as i16;
        let is_next = ahead == 1 && self.seen == self.all;
        if bit & self.all == 0 || vector.len() != self.sum.len() || ahead > 0 && !is_next {
            return Verdict::Drop(DropReason::Program);
        }
        if is_next {
            (self.round, self.seen) = (header.round, 0);
            self.sum.fill(0);
        }
        if ahead < 0 || self.seen & bit != 0 {
            self.duplicates += 1;
            return Verdict::Consume;
        }
        for (sum, number) in self.sum.as_chunks_mut().0.iter_mut().zip(vector.as_chunks().0) {
            let total = u64::from_be_bytes(*sum).wrapping_add(u64::from_be_bytes(*number));
            *sum = total.to_be_bytes();
        }
        self.seen |= bit;
        self.is_sum_due = self.seen == self.all;
        Verdict::Consume
    }
}

impl SystemProgram for Adder {
    type View = Header;
    type Made = Header;

    fn handle_packet<H: AnyHeader, S: PayloadStore<H>>(
        &mut self,
        _now: Time,
        _port: Port,
        view: Header,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        if packet.dst != self.me {
            return Verdict::Route;
        }
        let verdict = match view.kind {
            Kind::Add => self.add(view, payloads.read(packet)),
            Kind::Ack | Kind::Sum => Verdict::Drop(DropReason::Program),
        };
        if verdict == Verdict::Consume {
            // A duplicate is acknowledged as well: the first acknowledgement may be lost.
            self.ack = Some((packet.src, Header { kind: Kind::Ack, ..view }));
        }
        verdict
    }

    fn poll_transmit(&mut self, _now: Time) -> Option<Outgoing<'_, Header>> {
        if let Some((worker, header)) = self.ack.take() {
            return Some(Outgoing { priority: 7, ..Outgoing::new(self.me, worker, header) });
        }
        if !std::mem::take(&mut self.is_sum_due) {
            return None;
        }
        let header = Header { kind: Kind::Sum, round: self.round, worker: 0 };
        Some(Outgoing::new(self.me, self.master, header).with_payload(&self.sum))
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        std::iter::once(("duplicates", self.duplicates))
    }
}

// What both worlds run: four workers in two racks, next to Orca.

/// The switch that adds: the leaf of rack 0, to which hosts 0 to 2 are attached.
pub(crate) const LEAF: HostId = Destination::Switch(0).address();
pub(crate) const MASTER: HostId = HostId(5);
pub(crate) const WORKERS: [HostId; 4] = [HostId(0), HostId(1), HostId(2), HostId(4)];
pub(crate) const WORDS: usize = 16;

pub(crate) const fn system() -> Sum {
    Sum { workers: WORKERS.len() as u8, words: WORDS, master: MASTER }
}

pub(crate) fn fabric() -> Fabric {
    let (host_link, core_link) = (Rate::from_gbps(1), Rate::from_gbps(1));
    Fabric::new(
        &FabricConfig::leaf_spine(2, 3, 2, host_link)
            .with_core_link(core_link)
            .with_link_delay(Span::from_us(1))
            .without_host_delays()
            .with_switch(SwitchConfig::unlimited()),
    )
    .unwrap()
}

/// The content of a packet that a host sends or receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Orca(orca::Header),
    Sum(Header, Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) host: HostId,
    pub(crate) src: HostId,
    pub(crate) content: Content,
}

fn vector(round: u16, worker: usize) -> Vec<u64> {
    (0..WORDS as u64).map(|word| word << 32 | u64::from(round) << 8 | worker as u64).collect()
}

fn bytes(vector: &[u64]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn control(to: HostId, body: Body) -> (HostId, HostId, Content) {
    let control = Control { from: WORKERS[0], to, session: Session(1), body };
    (WORKERS[0], to, Content::Orca(orca::Header::Control(control)))
}

/// Returns the packets that hosts send, in order: source, destination and content.
pub(crate) fn script() -> Vec<(HostId, HostId, Content)> {
    let add = |round, worker: usize| {
        let header = Header { kind: Kind::Add, round, worker: worker as u8 };
        (WORKERS[worker], LEAF, Content::Sum(header, bytes(&vector(round, worker))))
    };
    vec![
        control(orca::TO_AGENT, Body::End { length: 1 }),
        control(HostId(1), Body::SetActive { rack: 0, agent: 2, epoch: 1 }),
        add(0, 0),
        add(0, 1),
        add(0, 3),
        add(0, 1),
        add(1, 0),
        add(0, 2),
        control(orca::TO_AGENT, Body::End { length: 2 }),
        add(1, 3),
        add(0, 2),
        add(1, 2),
        add(1, 1),
        add(1, 0),
    ]
}

/// Returns the packets that hosts receive from [`script`], by host and time. `to_agent` is the last packet for the
/// agent.
pub(crate) fn expected() -> Vec<Got> {
    let made = |host, kind, round, worker, payload| {
        let header = Header { kind, round, worker };
        Got { host, src: LEAF, content: Content::Sum(header, payload) }
    };
    let ack =
        |worker: usize, round| made(WORKERS[worker], Kind::Ack, round, worker as u8, Vec::new());
    let sum = |round| {
        let of_word = |word| (0..4).map(|worker| vector(round, worker)[word]).sum();
        let sum: Vec<u64> = (0..WORDS).map(of_word).collect();
        made(MASTER, Kind::Sum, round, 0, bytes(&sum))
    };
    let (src, _, content) = control(orca::TO_AGENT, Body::End { length: 2 });
    let to_agent = Got { host: HostId(2), src, content };
    vec![
        ack(0, 0),
        ack(0, 1),
        ack(1, 0),
        ack(1, 0),
        ack(1, 1),
        ack(2, 0),
        to_agent,
        ack(2, 0),
        ack(2, 1),
        ack(3, 0),
        ack(3, 1),
        sum(0),
        sum(1),
    ]
}

/// The counters of both systems' programs, summed over all switches.
pub(crate) const COUNTERS: [(&str, u64); 2] = [("duplicates", 2), ("no_agent", 1)];

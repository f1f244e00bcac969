//! How many pairs a core handles: `cargo bench -p rackweave-aggregation --bench reduce`.
//!
//! - `switch`: whole packets of pairs through the switch's program, to their acknowledgement.
//! - `table`: the slots without packets.
//! - `worker`: what a worker encodes of its words, for as many epochs as a table of 16,384 slots takes.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rackweave_aggregation::key::Key;
use rackweave_aggregation::packet::{self, packet};
use rackweave_aggregation::source::{Order, Pairs};
use rackweave_aggregation::switch::{Config, Program};
use rackweave_aggregation::table::Table;
use rackweave_core::{Destination, HostId, Packet, PayloadStore, Port, Rng, Time, Verdict};
use rackweave_switch::system::{SystemProgram as _, Visible as _};
use rackweave_wire::Id64;
use rackweave_wire::reduce::{
    Body, Header, MAX_PAIRS, MAX_WINDOW, Open, Operator, Pairs as PairFields, Rule,
};

const MASTER: HostId = HostId(0);
const WORKER: HostId = HostId(1);
const SLOTS: u32 = 1 << 18;
/// Words by which a packet's pairs are chosen: those fit the first cache, those the last, and those memory.
const WORDS: [(&str, u32); 3] =
    [("64 words", 64), ("30,000 words", 30_000), ("120,000 words", 120_000)];

/// The payload of the packet that is being handled.
struct Payload(Vec<u8>);

impl PayloadStore<packet::Header> for Payload {
    fn release(&mut self, _packet: &Packet<packet::Header>) {}

    fn duplicate(&mut self, _packet: &mut Packet<packet::Header>) -> bool {
        false
    }

    fn damage(&mut self, _packet: &mut Packet<packet::Header>, _rng: &mut Rng) -> bool {
        false
    }

    fn read(&self, _packet: &Packet<packet::Header>) -> &[u8] {
        &self.0
    }

    fn write(&mut self, _packet: &Packet<packet::Header>) -> &mut [u8] {
        &mut self.0
    }

    fn combine(
        &mut self,
        _into: &Packet<packet::Header>,
        _from: &Packet<packet::Header>,
        _combine: impl FnOnce(&mut [u8], &[u8]),
    ) -> bool {
        false
    }

    fn make(&mut self, _header: packet::Header, _len: usize) -> Option<packet::Header> {
        None
    }
}

fn key(number: u32) -> Key {
    Key::new(format!("word{number:08}").as_bytes()).expect("a key of 12 bytes fits")
}

fn header(worker: u8, body: Body) -> Header {
    Header { job: 1, attempt: 0, worker, token: Id64::new(7), body }
}

/// Sends a message to the switch, and returns the answer.
fn send(program: &mut Program, from: HostId, header: Header, payload: &mut Payload) -> Header {
    let me = Destination::Switch(0).address();
    let mut packet = packet(from, me, header);
    let view = packet.header.view().expect("it is a message of aggregation");
    let verdict = program.handle_packet(Time::ZERO, Port(0), view, &mut packet, payload);
    assert!(matches!(verdict, Verdict::Consume));
    program.poll_transmit(Time::ZERO).expect("every message is answered").header
}

/// A switch with one job of one worker.
fn program() -> Program {
    let mut program = Program::new(0, Config::new(SLOTS, 3));
    let mut open = Open {
        cookie: Id64::new(0),
        slots: SLOTS,
        first_epoch: 0,
        window: MAX_WINDOW,
        copies: 1,
        operator: Operator::Sum,
        workers: 1,
        rule: Rule::Exact,
    };
    let mut addresses = Payload(WORKER.0.to_be_bytes().to_vec());
    let challenge = send(&mut program, MASTER, header(0, Body::Open(open)), &mut addresses);
    let Body::Challenge { cookie, .. } = challenge.body else { panic!("{challenge:?}") };
    open.cookie = cookie;
    let opened = send(&mut program, MASTER, header(0, Body::Open(open)), &mut addresses);
    assert!(matches!(opened.body, Body::Opened { slots: SLOTS, .. }));
    program
}

/// Packets of 64 pairs of these words at random.
fn payloads(words: u32) -> Vec<Payload> {
    let mut rng = Rng::stream(1, 0, 0, "words");
    let mut pair = || {
        let word = rng.below(u64::from(words)) as u32;
        [&key(word).0[..], &1_u32.to_be_bytes()].concat()
    };
    (0..2048).map(|_| Payload((0..MAX_PAIRS).flat_map(|_| pair()).collect())).collect()
}

fn switch(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("switch");
    group.throughput(Throughput::Elements(u64::from(MAX_PAIRS)));
    for (name, words) in WORDS {
        let (mut program, mut payloads) = (program(), payloads(words));
        let mut seq = 0_u32;
        group.bench_function(format!("packets of 64 pairs, {name}"), |bencher| {
            bencher.iter(|| {
                let at = seq as usize % payloads.len();
                let body = Body::Data(PairFields { seq, epoch: 0, count: MAX_PAIRS });
                seq += 1;
                send(&mut program, WORKER, header(0, body), &mut payloads[at])
            });
        });
    }
    group.finish();
}

fn table(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("table");
    group.throughput(Throughput::Elements(1));
    for (name, words) in WORDS {
        let mut table = Table::new(SLOTS, 8);
        let mut rng = Rng::stream(1, 0, 0, "words");
        let keys: Vec<_> = (0..words).map(key).map(|key| (key.hash(7), key)).collect();
        let order: Vec<_> = (0..1 << 16).map(|_| rng.below(u64::from(words)) as usize).collect();
        let mut next = 0;
        group.bench_function(format!("pairs, {name}"), |bencher| {
            bencher.iter(|| {
                next = (next + 1) % order.len();
                let (hash, key) = keys[order[next]];
                table.add(0..SLOTS, hash, key, Operator::Sum, 1)
            });
        });
    }
    group.finish();
}

fn worker(criterion: &mut Criterion) {
    const COUNT: u32 = 60_000;
    let mut group = criterion.benchmark_group("worker");
    group.throughput(Throughput::Elements(u64::from(COUNT)));
    let mut pairs = Pairs::new(Operator::Sum);
    for number in 0..COUNT {
        pairs.add(&key(number).0[..12], u64::from(number));
    }
    group.bench_function("encode 60,000 pairs in 20 epochs", |bencher| {
        bencher.iter_batched(
            || (),
            |()| pairs.encode(20, 7, Order::default()).expect("keys are short"),
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group!(benches, switch, table, worker);
criterion_main!(benches);

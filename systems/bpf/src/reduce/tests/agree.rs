//! Compares the program in the kernel with the program in Rust, packet by packet: masters and workers of a few jobs, which take their
//! slots from one another, lose memory, repeat, and forge.

use rackweave_aggregation::packet::{self, packet};
use rackweave_aggregation::switch::{Config, Program};
use rackweave_core::{Destination, Ecn, Packet, PayloadStore, Port, Rng, Span, Time, Verdict};
use rackweave_switch::system::{SystemProgram, Visible as _};

use super::*;

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

/// The same switch twice: in this process, and in the kernel.
struct Twins {
    ours: Program,
    kernel: Tor,
    now_ms: u64,
    hosts: Vec<Host>,
    /// The replies that were compared, by their kind.
    compared: std::collections::BTreeMap<&'static str, u32>,
}

impl Twins {
    fn new(slots: u32, ways: u8, share: u8) -> Option<Self> {
        let kernel = load(|config| {
            (config.slots, config.ways, config.share) = (slots, ways, share);
        })?;
        let ours = Program::new(0, Config { ways, share, ..Config::new(slots, SECRET) });
        let hosts = (1..=8).map(Host::number).collect();
        Some(Self { ours, kernel, now_ms: 1_000_000, hosts, compared: Default::default() })
    }

    /// What the program in Rust answers.
    fn ours(&mut self, from: &Host, message: &[u8], marked: bool) -> Option<Answer> {
        let now = Time::ZERO + Span::from_ms(self.now_ms);
        if self.ours.poll_timeout().is_some_and(|at| at <= now) {
            self.ours.handle_timeout(now);
        }
        let decoded = reduce::decode(message).ok()?;
        let me = Destination::Switch(0).address();
        let ecn = if marked { Ecn::Marked } else { Ecn::Capable };
        let mut packet = packet(from.id(), me, decoded.header).with_ecn(ecn);
        let mut payload = Payload(message[decoded.payload].to_vec());
        let view = packet.header.view().unwrap();
        match self.ours.handle_packet(now, Port(0), view, &mut packet, &mut payload) {
            Verdict::Drop(_) => None,
            Verdict::Consume => {
                let made = self.ours.poll_transmit(now).unwrap();
                let address = |id: HostId| {
                    let host = self.hosts.iter().find(|host| host.id() == id);
                    host.map_or(SWITCH, |host| host.ip)
                };
                let class = made.priority << 5
                    | match made.ecn {
                        Ecn::NotCapable => 0,
                        Ecn::Capable => 2,
                        Ecn::Marked => 3,
                    };
                let payload = made.payload.to_vec();
                let (src, dst, ports) = (address(made.src), address(made.dst), [PORT, PORT]);
                let answer = Answer { src, dst, ports, class, header: made.header, payload };
                assert!(self.ours.poll_transmit(now).is_none());
                Some(answer)
            }
            verdict => panic!("{verdict:?}"),
        }
    }

    /// Compares both for one message, and returns the answer.
    fn compare(&mut self, host: usize, message: &[u8], marked: bool) -> Option<Answer> {
        let from = self.hosts[host];
        let frame = frame(&from, message, if marked { 3 } else { 2 });
        let ours = self.ours(&from, message, marked);
        let (outcome, _) = run(&mut self.kernel, &frame, from.interface, self.now_ms, 0);
        let kernel = match outcome {
            Outcome::Dropped => None,
            Outcome::Passed => panic!("a message for the switch passed"),
            Outcome::Reply(interface, frame) => {
                let answer = read(&frame);
                assert_eq!(udp_sum(&frame), 0xffff, "the UDP checksum");
                let to = self.hosts.iter().find(|host| host.ip == answer.dst).unwrap();
                assert_eq!((interface, &frame[..6]), (to.interface, &to.mac[..]));
                assert_eq!(&frame[6..12], SWITCH_MAC);
                Some(answer)
            }
        };
        assert_eq!(kernel, ours, "{from:?} {:?}", reduce::decode(message));
        if let Some(answer) = &kernel {
            *self.compared.entry(kind(&answer.header.body)).or_default() += 1;
        }
        kernel
    }

    fn compare_counters(&self) {
        let kernel = self.kernel.counters().unwrap();
        let ours = self.ours.counts();
        assert_eq!(
            (kernel.packets, kernel.pairs, kernel.absorbed, kernel.residual, kernel.duplicates),
            (ours.packets, ours.pairs, ours.absorbed, ours.residual, ours.duplicates)
        );
        assert_eq!(
            (kernel.fetched, kernel.stale, kernel.refused, kernel.emitted),
            (ours.fetched, ours.stale, ours.refused, ours.emitted)
        );
        assert_eq!(kernel.wrong_checksums + kernel.super_packets + kernel.busy + kernel.lost, 0);
    }
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Residual(_) => "residual",
        Body::Ack { .. } => "ack",
        Body::Challenge { .. } => "challenge",
        Body::Opened { .. } => "opened",
        Body::Refused { .. } => "refused",
        Body::Values { .. } => "values",
        Body::Cleared { .. } => "cleared",
        Body::Unknown => "unknown",
        other => panic!("not a message of a switch: {other:?}"),
    }
}

/// A master and what it knows.
#[derive(Clone, Debug)]
struct Master {
    host: usize,
    job: u16,
    token: u64,
    attempt: u16,
    cookie: u64,
    reservation: u16,
    epoch: u16,
    open: Open,
    workers: Vec<usize>,
    /// The next sequence number of each worker.
    next: Vec<u32>,
}

impl Master {
    fn new(rng: &mut Rng, hosts: usize) -> Self {
        let count = 1 + rng.below(4) as usize;
        let workers = (0..count).map(|_| rng.below(hosts as u64) as usize).collect::<Vec<_>>();
        let open = Open {
            cookie: Id64::new(0),
            slots: [0, 7, 64, 300, 1 << 20][rng.below(5) as usize],
            first_epoch: if rng.below(8) == 0 { 65_534 } else { rng.below(3) as u16 },
            window: [1, 4, 64, 1024][rng.below(4) as usize],
            copies: 1 + rng.below(2) as u8,
            operator: [Operator::Sum, Operator::Min, Operator::Max, Operator::Count]
                [rng.below(4) as usize],
            workers: count as u8,
            rule: if rng.below(6) == 0 { Rule::Counter } else { Rule::Exact },
        };
        Self {
            host: rng.below(hosts as u64) as usize,
            job: rng.below(6) as u16 * 13_107,
            token: rng.next_u64(),
            attempt: rng.below(3) as u16,
            cookie: 0,
            reservation: 0,
            epoch: open.first_epoch,
            open,
            workers,
            next: vec![0; count],
        }
    }

    fn header(&self, worker: u8, body: Body) -> Header {
        let (job, attempt, token) = (self.job, self.attempt, Id64::new(self.token));
        Header { job, attempt, worker, token, body }
    }
}

fn pairs(rng: &mut Rng, count: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let mut key = [0; 16];
        // One in many keys is impossible: that of an empty slot.
        let name = rng.below(400);
        if name > 0 {
            let text = format!("word {name}");
            key[..text.len()].copy_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(&(rng.next_u64() as u32).to_be_bytes());
    }
    bytes
}

/// The next message of some host: its sender, and its bytes.
fn next(rng: &mut Rng, masters: &mut [Master], hosts: usize) -> (usize, usize, Vec<u8>) {
    let which = rng.below(masters.len() as u64) as usize;
    let master = &mut masters[which];
    let near = |rng: &mut Rng, epoch: u16| {
        epoch.wrapping_add([0, 0, 0, 1, 2, 65_535][rng.below(6) as usize])
    };
    let (mut from, header, payload) = match rng.below(100) {
        0..10 => {
            let open = Open { cookie: Id64::new(master.cookie), ..master.open };
            let ids = master
                .workers
                .iter()
                .flat_map(|worker| Host::number(*worker as u8 + 1).id().0.to_be_bytes());
            (master.host, master.header(0, Body::Open(open)), ids.collect())
        }
        10..75 => {
            let worker = rng.below(master.workers.len() as u64) as usize;
            let count = [1, 3, 64, 1 + rng.below(64) as u8][rng.below(4) as usize];
            let next = &mut master.next[worker];
            let seq = match rng.below(20) {
                0 => next.saturating_sub(rng.below(70) as u32),
                1 => next.saturating_add(rng.below(1000) as u32),
                2 => u32::MAX - rng.below(2) as u32,
                _ => *next,
            };
            *next = (*next).max(seq.min(1 << 20).saturating_add(1));
            let epoch = near(rng, master.epoch);
            let body = Body::Data(Pairs { seq, epoch, count });
            (master.workers[worker], master.header(worker as u8, body), pairs(rng, count))
        }
        75..87 => {
            let epoch = near(rng, master.epoch);
            let first =
                [rng.below(400) as u32, 0, 52, rng.next_u64() as u32][rng.below(4) as usize];
            (
                master.host,
                master.header(0, Body::Fetch { epoch, reservation: master.reservation, first }),
                Vec::new(),
            )
        }
        87..94 => {
            let epoch = near(rng, master.epoch);
            (
                master.host,
                master.header(0, Body::Clear { epoch, reservation: master.reservation }),
                Vec::new(),
            )
        }
        94..95 => (master.host, master.header(0, Body::Close), Vec::new()),
        95..97 => {
            // Something was lost: the next attempt, seldom with another shape.
            master.attempt = master.attempt.saturating_add(1);
            master.next.fill(0);
            if rng.below(5) == 0 {
                master.open.window = 16;
            }
            (
                master.host,
                master.header(
                    0,
                    Body::Clear { epoch: master.epoch, reservation: master.reservation },
                ),
                Vec::new(),
            )
        }
        _ => {
            // Messages that only others handle.
            let body = match rng.below(3) {
                0 => Body::Ack { seq: 1, marked: false },
                1 => Body::Unknown,
                _ => Body::Fin { seq: 1, epoch: 0, long_bytes: 0, pairs: 0 },
            };
            (master.host, master.header(0, body), Vec::new())
        }
    };
    let mut header = header;
    // Forgeries: another sender, token, attempt or worker.
    match rng.below(40) {
        0 => from = rng.below(hosts as u64) as usize,
        1 => header.token = Id64::new(rng.next_u64()),
        2 => header.attempt = header.attempt.wrapping_sub(1),
        3 => header.worker = rng.below(64) as u8,
        4 => header.job = rng.below(7) as u16,
        _ => {}
    }
    (which, from, message(header, &payload))
}

fn compare_at_random((slots, ways, share): (u32, u8, u8), seed: u64, messages: u32) -> bool {
    let Some(mut twins) = Twins::new(slots, ways, share) else { return false };
    let mut rng = Rng::stream(seed, 0, 0, "messages");
    let hosts = twins.hosts.len();
    let mut masters: Vec<_> = (0..5).map(|_| Master::new(&mut rng, hosts)).collect();
    let mut last = None;
    for _ in 0..messages {
        twins.now_ms += match rng.below(400) {
            0 => 11_000,
            1..10 => 500,
            _ => 1,
        };
        if rng.below(300) == 0 {
            let which = rng.below(masters.len() as u64) as usize;
            masters[which] = Master::new(&mut rng, hosts);
        }
        let repeated = last.take().filter(|_| rng.below(8) == 0);
        let (which, from, mut message) =
            repeated.unwrap_or_else(|| next(&mut rng, &mut masters, hosts));
        match rng.below(60) {
            0 => {
                let at = rng.below(message.len() as u64) as usize;
                message[at] ^= 1 << rng.below(8);
            }
            1 => message.truncate(rng.below(message.len() as u64) as usize),
            2 => message.extend_from_slice(b"trailing bytes"),
            _ => {}
        }
        let answer = twins.compare(from, &message, rng.below(5) == 0);
        let master = &mut masters[which];
        if let Some(Answer { header, .. }) = answer
            && header.job == master.job
        {
            match header.body {
                Body::Challenge { cookie, .. } => master.cookie = cookie.get(),
                // Seldom the master has another reservation in mind.
                Body::Opened { instance, .. } if rng.below(20) > 0 => {
                    master.reservation = instance as u16;
                }
                Body::Cleared { epoch } if epoch == master.epoch => {
                    master.epoch = epoch.saturating_add(1);
                    master.open.first_epoch = master.epoch;
                }
                _ => {}
            }
        }
        last = Some((which, from, message));
    }
    twins.compare_counters();
    for what in
        ["ack", "residual", "challenge", "opened", "refused", "values", "cleared", "unknown"]
    {
        assert!(twins.compared.contains_key(what), "no {what} in {:?}", twins.compared);
    }
    true
}

#[test]
fn the_kernel_answers_as_the_program_in_rust_does() {
    let tables = [(64, 8, 100), (1000, 1, 50), (4096, 16, 100), (96, 3, 50), (512, 8, 7)];
    for (seed, table) in (1..).zip(tables) {
        if !compare_at_random(table, seed, 10_000) {
            return;
        }
    }
}

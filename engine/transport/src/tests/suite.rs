//! The tests that every transport passes. [`transport_suite!`] instantiates them for one [`Subject`]. What the
//! suite expects of a transport beyond the contract is in its [`Subject::EXPECT`].
#![allow(
    missing_docs,
    reason = "the names of tests, and of what they are made of, say what they are"
)]

use core::fmt::Debug;
use std::sync::Arc;

pub use proptest;
use proptest::prelude::*;
use rackweave_core::{
    Event, Framing, HostId, Kind, MessageId, Node, Packet, Rate, Refused, Rng, Span, Submit, Time,
    Transport,
};
use rackweave_switch::config::{SwitchConfig, Topology};

use super::chaos::{self, Plan};
use super::network::{Network, fabric};
use crate::exchange;
use crate::testkit::{Faults, Schedule};

pub const LINK: Rate = Rate::from_gbps(10);

/// Transmission time of a control packet: all are as short as a frame can be.
pub const fn control_span() -> Span {
    LINK.span_of(84)
}

/// The differences between transports that are visible to the suite.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Whether it carries requests and their responses; otherwise only one-way messages.
    pub requests: bool,
    /// Whether it repairs losses; otherwise a message with a lost packet is not delivered.
    pub repairs: bool,
    /// Number of state entries ([`Subject::held`]) per message in progress.
    pub held_per_message: usize,
    /// Maximum message length, if [`Limits`] cannot reduce it.
    pub longest: Option<u64>,
    /// Time before the first data packet of a message.
    pub head_start: Span,
    /// Delay of the last data packet by control packets that overtake it in a queue.
    pub overtaking: Span,
    /// Transmission time of what the receiver of a request sends before its response.
    pub acknowledgement: Span,
    /// Longest delay of a message if the network takes one packet out of its middle, or trims it where that is allowed. It tells a
    /// transport that repairs by what its receivers report (gaps, NACKs) from one that waits for a timer.
    pub repair: Span,
}

impl Expect {
    /// A transport of messages with requests, which repairs losses and sends data at once.
    pub const RELIABLE: Self = Self {
        requests: true,
        repairs: true,
        held_per_message: 1,
        longest: None,
        head_start: Span::ZERO,
        overtaking: Span::ZERO,
        acknowledgement: Span::ZERO,
        repair: Span::from_us(100),
    };
}

/// Bounds of a host's memory, for the tests that reach them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of messages in progress.
    pub live: u32,
    /// Maximum number of queued control packets.
    pub control: u32,
    /// Maximum number of finished messages that are remembered.
    pub finished: u32,
    /// Maximum number of gaps in an arriving message.
    pub gaps: u16,
    /// Maximum message length, in bytes.
    pub message_bytes: u32,
}

impl Limits {
    const LOW: Self =
        Self { live: 30, control: 50, finished: 20, gaps: 10, message_bytes: 10_000_000 };

    /// Sets the bounds of a transport on [`Driven`](crate::common::Driven).
    pub const fn apply(&self, config: &mut exchange::Config) {
        config.max_exchanges = self.live;
        config.max_control = self.control;
        config.max_finished = self.finished;
        config.max_gaps = self.gaps;
        config.max_message_bytes = self.message_bytes;
    }
}

pub type HeaderOf<S> = <<S as Subject>::Host as Node>::Header;

/// A transport in the suite.
pub trait Subject {
    /// The transport's parameters.
    type Config: Clone;
    /// The transport's state machine.
    type Host: Transport + Debug;

    const EXPECT: Expect;

    /// The configurations with which all tests of faults run. The first is the usual one.
    fn variants() -> Vec<Self::Config>;

    /// Further configurations, with which moderate faults may make messages fail.
    fn fragile() -> Vec<Self::Config> {
        Vec::new()
    }

    /// `config` with these bounds.
    fn limited(config: Self::Config, limits: &Limits) -> Self::Config;

    fn host(id: HostId, config: &Arc<Self::Config>) -> Self::Host;

    /// Asserts that all state is within these limits, which are those of its configuration.
    fn check(host: &Self::Host, limits: Option<&Limits>);

    /// Whether nothing is in progress and nothing is queued.
    fn is_idle(host: &Self::Host) -> bool;

    /// Number of entries of a host's state of messages and connections.
    fn held(host: &Self::Host) -> usize;

    /// Time of silence after which a host holds no state of any peer.
    fn quiet_after(config: &Self::Config) -> Span;

    /// A packet from this host to host 0 with random fields. Small numbers match state, large ones overflow.
    fn forge(rng: &mut Rng, from: HostId) -> Packet<HeaderOf<Self>>;

    /// Configurations, delays of the path, and message lengths for which the path is never idle within a
    /// message.
    fn back_to_back() -> (Vec<Self::Config>, [Span; 3], Vec<u64>);

    /// Changes the switch of the networks, whose queues are unlimited, to one that the transport needs.
    fn prepare(_switch: &mut SwitchConfig) {}

    /// `config` with a first window (or equivalent) that covers the round trip, if the usual one does not.
    fn covering(config: Self::Config, _delay: Span) -> Self::Config {
        config
    }
}

pub fn at(span: Span) -> Time {
    Time::ZERO + span
}

/// The id of message `n`.
pub fn id(n: u64) -> MessageId {
    MessageId::request(n)
}

pub fn usual<S: Subject>() -> S::Config {
    S::variants().swap_remove(0)
}

/// Configuration `number` among all configurations.
fn any_variant<S: Subject>(number: usize) -> S::Config {
    let mut all = all_variants::<S>();
    all.swap_remove(number % all.len())
}

fn all_variants<S: Subject>() -> Vec<S::Config> {
    [S::variants(), S::fragile()].concat()
}

fn makes<S: Subject>(config: S::Config) -> impl Fn(HostId) -> S::Host {
    let config = Arc::new(config);
    move |id| S::host(id, &config)
}

fn is_idle<S: Subject>(host: &S::Host) -> bool {
    S::check(host, None);
    S::is_idle(host)
}

/// How the schedules of faults treat this transport.
fn plan<S: Subject>() -> Plan {
    Plan { requests: S::EXPECT.requests, repairs: S::EXPECT.repairs }
}

pub fn network_with<S: Subject>(
    config: &S::Config,
    hosts: u32,
    delay: Span,
    faults: Faults,
) -> Network<S::Host> {
    let topology = Topology::SingleSwitch { hosts, host_link: LINK };
    let mut fabric = fabric(topology, delay);
    S::prepare(&mut fabric.switch);
    let hosts = (0..hosts).map(HostId).map(makes::<S>(config.clone())).collect();
    let mut network = Network::on(&fabric, hosts, 1, faults);
    network.keep_packets = true;
    network
}

pub fn network<S: Subject>(config: &S::Config, hosts: u32, delay: Span) -> Network<S::Host> {
    network_with::<S>(config, hosts, delay, Faults::default())
}

pub fn submit<T: Transport>(
    network: &mut Network<T>,
    from: u32,
    to: u32,
    n: u64,
    bytes: u64,
    kind: Kind,
) {
    network.submit(from, to, id(n), bytes, kind).expect("taken");
}

/// Takes all events so far.
pub fn events<T: Transport>(network: &mut Network<T>) -> Vec<String> {
    let text = |(_, host, event): (Time, HostId, Event)| match event {
        Event::Delivered { peer, id, bytes, kind } => {
            format!("{host}: {kind:?} {id} of {bytes} bytes from {peer}")
        }
        Event::Sent { peer, id } => format!("{host}: {id} sent to {peer}"),
        Event::Failed { peer, id, reason } => format!("{host}: {id} with {peer} failed: {reason}"),
        Event::Stream(event) => format!("{host}: {event:?}"),
    };
    network.events.drain(..).map(text).collect()
}

/// When and where messages were delivered.
pub fn deliveries<T: Transport>(network: &Network<T>) -> impl Iterator<Item = (Time, HostId)> + '_ {
    let delivered = |event: &Event| matches!(event, Event::Delivered { .. });
    let events = network.events.iter().filter(move |(.., event)| delivered(event));
    events.map(|(at, host, _)| (*at, *host))
}

/// Runs the network until the hosts have forgotten all peers.
fn run_until_quiet<S: Subject>(network: &mut Network<S::Host>, config: &S::Config) {
    let quiet = network.now() + S::quiet_after(config);
    let is_quiet = network.run_until(quiet);
    let unended = network.unended();
    let after = S::quiet_after(config);
    assert!(is_quiet, "{after} later hosts still send packets or set timers\n{unended}");
    for (n, host) in network.hosts.iter().enumerate() {
        assert!(is_idle::<S>(host), "h{n} is not idle {after} later\n{unended}");
        let left = (host.poll_timeout(), S::held(host));
        assert_eq!(left, (None, 0), "timer and messages of h{n} {after} later\n{unended}");
    }
    assert!(network.nothing_arrives(), "a host without messages has a part of one");
}

// --- refusals and duplicates

pub fn what_cannot_be_sent_is_refused<S: Subject>() {
    let limits = Limits { live: 2, message_bytes: 1_000_000, ..Limits::LOW };
    let longest = S::EXPECT.longest.unwrap_or(1_000_000);
    let mut host = S::host(HostId(0), &S::limited(usual::<S>(), &limits).into());
    let mut submit = |n: MessageId, bytes, kind| {
        host.submit(Time::ZERO, Submit { id: n, peer: HostId(1), bytes, kind })
    };
    assert_eq!(submit(id(1), 0, Kind::OneWay), Err(Refused::Empty));
    assert_eq!(submit(id(1), longest + 1, Kind::OneWay), Err(Refused::TooLong { max: longest }));
    assert_eq!(submit(id(1).response(), 1, Kind::OneWay), Err(Refused::WrongId));
    let mut second = Kind::OneWay;
    if S::EXPECT.requests {
        assert_eq!(submit(id(1), 1, Kind::Response), Err(Refused::WrongId));
        assert_eq!(submit(id(1).response(), 1, Kind::Request), Err(Refused::WrongId));
        let unknown = submit(id(1).response(), 1, Kind::Response);
        assert_eq!(unknown, Err(Refused::UnknownRequest));
        second = Kind::Request;
    } else {
        assert_eq!(submit(id(1), 1, Kind::Request), Err(Refused::Unsupported));
        assert_eq!(submit(id(1).response(), 1, Kind::Response), Err(Refused::Unsupported));
    }
    assert_eq!(submit(id(1), 1, Kind::OneWay), Ok(()));
    assert_eq!(submit(id(1), 1, second), Err(Refused::DuplicateId));
    assert_eq!(submit(id(2), 1, second), Ok(()));
    assert_eq!(submit(id(3), 1, second), Err(Refused::Busy));
}

pub fn a_late_duplicate_has_no_effect<S: Subject>() {
    let kinds =
        if S::EXPECT.requests { &[Kind::OneWay, Kind::Request][..] } else { &[Kind::OneWay] };
    for &kind in kinds {
        let config = usual::<S>();
        let mut network = network::<S>(&config, 2, Span::from_us(1));
        submit(&mut network, 0, 1, 1, 100, kind);
        network.run_until(at(Span::from_ms(10)));
        let first = network.packets[0].1;
        network.events.clear();
        for ms in [11, 90, 150] {
            network.run_until(at(Span::from_ms(ms)));
            network.inject(first);
        }
        network.run_until(at(Span::from_ms(155)));
        let told = events(&mut network);
        assert!(
            told.is_empty(),
            "a late copy of a finished message's packet had effects: {told:?}"
        );
        run_until_quiet::<S>(&mut network, &config);
    }
}

pub fn timers_stop_and_a_spurious_timeout_does_nothing<S: Subject>() {
    let config = usual::<S>();
    let mut network = network::<S>(&config, 2, Span::from_us(1));
    let kind = if S::EXPECT.requests { Kind::Request } else { Kind::OneWay };
    submit(&mut network, 0, 1, 1, 50_000, kind);
    let now = at(Span::from_us(20));
    network.run_until(now);
    let before = format!("{:?}", network.hosts);
    for host in &mut network.hosts {
        assert!(host.poll_timeout().is_none_or(|timeout| timeout > now), "a timer in the past");
        host.handle_timeout(now);
    }
    let is_same = before == format!("{:?}", network.hosts);
    assert!(is_same, "`handle_timeout` at a time at which no timer has expired changes a host");
    run_until_quiet::<S>(&mut network, &config);
}

// --- forged packets and floods

/// Feeds a host with forged packets, and its applications with work.
fn flood<S: Subject>(config: S::Config, limits: &Limits, seed: u64, packets: u32, sources: u64) {
    let mut rng = Rng::stream(seed, 0, 0, "flood");
    let mut host = S::host(HostId(0), &S::limited(config, limits).into());
    let mut now = Time::ZERO;
    let mut next_id = 0;
    for _ in 0..packets {
        now += Span::from_us(rng.below(300));
        if host.poll_timeout().is_some_and(|at| at <= now) {
            host.handle_timeout(now);
            let is_later = host.poll_timeout().is_none_or(|at| at > now);
            assert!(is_later, "after `handle_timeout` the next timer is in the future");
        }
        if rng.chance(0.05) {
            next_id += 1;
            let (peer, bytes) = (HostId(1 + rng.below(sources) as u32), 1 + rng.below(50_000));
            let kind = if rng.chance(0.5) { Kind::Request } else { Kind::OneWay };
            let _ = host.submit(now, Submit { id: id(next_id % 20), peer, bytes, kind });
        }
        let from = HostId(1 + rng.below(sources) as u32);
        let _ = host.handle_packet(now, 0, &S::forge(&mut rng, from));
        while let Some(event) = host.poll_event() {
            if let Event::Delivered { peer, id, kind: Kind::Request, .. } = event
                && rng.chance(0.5)
            {
                let bytes = 1 + rng.below(50_000);
                let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                host.submit(now, response).expect("the request is in service");
            }
        }
        for _ in 0..rng.below(3) {
            let _ = host.poll_transmit(now, 0);
        }
    }
    S::check(&host, Some(limits));
}

pub fn forged_packets_do_no_harm<S: Subject>(seed: u64, variant: usize) {
    flood::<S>(any_variant::<S>(variant), &Limits::LOW, seed, 3_000, 5);
}

pub fn a_flood_from_everywhere_is_bounded<S: Subject>() {
    let limits = Limits { live: 100, finished: 100, ..Limits::LOW };
    flood::<S>(usual::<S>(), &limits, 1, 60_000, 1 << 30);
}

pub fn spoofed_sources_leave_nothing_behind<S: Subject>() {
    for config in all_variants::<S>() {
        let limits = Limits { live: 5_000, control: 1 << 20, finished: 1 << 20, ..Limits::LOW };
        let quiet = S::quiet_after(&config);
        let most = S::EXPECT.held_per_message * limits.live as usize;
        chaos::spoofed_sources(makes::<S>(S::limited(config, &limits)), S::held, most, quiet);
    }
}

pub fn forged_packets_of_all_types_leave_nothing_behind<S: Subject>() {
    let limits = Limits { live: 200, control: 100, finished: 100, ..Limits::LOW };
    for config in all_variants::<S>() {
        let quiet = S::quiet_after(&config);
        let check = |host: &S::Host| S::check(host, Some(&limits));
        let makes = makes::<S>(S::limited(config, &limits));
        chaos::flood(makes, S::forge, check, S::held, quiet);
    }
}

// --- networks that lose, damage, duplicate, reorder and delay, and hosts that restart

pub fn each_message_arrives_once_or_fails<S: Subject>(
    schedule: &Schedule,
    variant: usize,
) -> Result<(), TestCaseError> {
    chaos::run(schedule, plan::<S>(), makes::<S>(any_variant::<S>(variant)), is_idle::<S>)
}

pub fn moderate_faults_fail_nothing<S: Subject>() {
    for config in S::variants() {
        chaos::moderate_faults_fail_nothing(plan::<S>(), makes::<S>(config));
    }
}

pub fn packets_later_than_all_timers_do_no_harm<S: Subject>() {
    for config in S::variants() {
        let late = Span::from_ms(60);
        chaos::late_packets_do_no_harm(plan::<S>(), makes::<S>(config), is_idle::<S>, late);
    }
}

pub fn a_silent_peer_leaves_nothing_behind<S: Subject>() {
    for config in all_variants::<S>() {
        chaos::silent_peer(plan::<S>(), makes::<S>(config), is_idle::<S>, S::held);
    }
}

/// Messages are cancelled at either end, at any time, while others are in progress.
pub fn cancelled_messages_leave_nothing_behind<S: Subject>() {
    for config in all_variants::<S>() {
        for seed in 0..10 {
            let mut rng = Rng::stream(seed, 0, 0, "cancellations");
            let faults = Faults { loss: 0.02, duplication: 0.02, ..Faults::default() };
            let mut network = network_with::<S>(&config, 3, Span::from_us(3), faults);
            network.keep_packets = false;
            let mut cancelled = Vec::new();
            for n in 1..=60 {
                let from = rng.below(3) as u32;
                let to = (from + 1 + rng.below(2) as u32) % 3;
                let request = S::EXPECT.requests && rng.chance(0.5);
                let kind = if request { Kind::Request } else { Kind::OneWay };
                submit(&mut network, from, to, n, 1 + rng.below(60_000), kind);
                network.run_until(network.now() + Span::from_us(rng.below(100)));
                if rng.chance(0.4) {
                    let (at, peer) = if rng.chance(0.7) { (from, to) } else { (to, from) };
                    let known =
                        at == from || network.hosts[at as usize].is_arriving(HostId(peer), id(n));
                    network.cancel(at, peer, id(n));
                    if known {
                        cancelled.push((at, peer, id(n), network.events.len()));
                    }
                }
            }
            run_until_quiet::<S>(&mut network, &config);
            for (at, peer, id, after) in cancelled {
                let mut events = network.events[after..].iter();
                let about = events.find(|(_, host, event)| {
                    host.0 == at
                        && matches!(*event, Event::Sent { peer: p, id: i }
                            | Event::Delivered { peer: p, id: i, .. }
                            | Event::Failed { peer: p, id: i, .. } if p.0 == peer && i.0 & !1 == id.0)
                });
                assert_eq!(about, None, "seed {seed}: {id} was cancelled at h{at}");
            }
        }
    }
}

/// Many senders and one receiver, which sends to each of them at the same time: everything is delivered, and
/// the receiver's link is utilised most of the time.
pub fn many_messages_to_one_receiver_arrive<S: Subject>() {
    const SENDERS: u32 = 12;
    for config in S::variants() {
        let mut network = network::<S>(&config, SENDERS + 1, Span::from_us(3));
        network.keep_packets = false;
        let (mut n, mut bytes) = (0, 0);
        for round in 0..10_u64 {
            for sender in 1..=SENDERS {
                let size = 1 + u64::from(sender) * 997 * round * round;
                submit(&mut network, sender, 0, n + 1, size, Kind::OneWay);
                submit(&mut network, 0, sender, n + 2, 1 + size / 10, Kind::OneWay);
                (n, bytes) = (n + 2, bytes + size);
            }
        }
        network.run_until(at(Span::from_secs(5)));
        network.assert_ended();
        assert_eq!(deliveries(&network).count() as u64, n, "deliveries of {n} messages");
        let failed = |event: &Event| matches!(event, Event::Failed { .. });
        let failures = (0..=SENDERS).map(|host| network.count(host, failed)).sum::<usize>();
        assert_eq!(failures, 0, "messages that failed although nothing was lost");
        let last = deliveries(&network).map(|(time, _)| time).max().expect("deliveries");
        let ideal = LINK.span_of(bytes);
        assert!(
            last < at(ideal * 2),
            "the last message arrived at {last}, and the receiver's link was busy for {ideal}: in an incast it idles less than half of the time"
        );
        run_until_quiet::<S>(&mut network, &config);
    }
}

/// From one byte to a megabyte, in both directions, one after another.
pub fn messages_of_all_sizes_arrive<S: Subject>() {
    for config in S::variants() {
        let mut network = network::<S>(&config, 2, Span::from_us(3));
        network.keep_packets = false;
        let sizes = [1, 2, 1_000, 1_461, 30_000, 300_001, 999_999];
        for (n, &bytes) in (1..).zip(&sizes) {
            let kind = if S::EXPECT.requests { Kind::Request } else { Kind::OneWay };
            submit(&mut network, n as u32 % 2, 1 - n as u32 % 2, n, bytes, kind);
            network.run_until(network.now() + Span::from_ms(100));
            network.assert_ended();
            assert_eq!(
                deliveries(&network).count(),
                n as usize * if kind == Kind::OneWay { 1 } else { 2 }
            );
        }
        run_until_quiet::<S>(&mut network, &config);
    }
}

/// A report of a loss that is ignored costs no message, since timers repair too, but time.
pub fn a_packet_that_is_taken_is_repaired_in_time<S: Subject>() {
    const BYTES: u64 = 100_000;
    const TAKEN: u32 = 20;
    if !S::EXPECT.repairs {
        return;
    }
    let delay = Span::from_us(3);
    for (number, config) in S::variants().into_iter().enumerate() {
        let config = S::covering(config, delay);
        let arrival = |takes: bool| {
            let mut network = network::<S>(&config, 2, delay);
            let mut sent = 0;
            network.fate = Some(Box::new(move |_, packet| {
                sent += u32::from(packet.src == HostId(0) && packet.payload().is_some());
                match takes && sent == TAKEN && packet.payload().is_some() {
                    true if packet.is_trimmable() => packet.trim(),
                    true => {
                        sent += 1;
                        return Vec::new();
                    }
                    false => {}
                }
                vec![Span::ZERO]
            }));
            submit(&mut network, 0, 1, 1, BYTES, Kind::OneWay);
            network.run_until(at(Span::from_secs(5)));
            network.assert_ended();
            deliveries(&network).next().expect("a delivery").0
        };
        let later = arrival(true).since(arrival(false));
        assert!(
            later <= S::EXPECT.repair,
            "configuration {number}: without one of its packets, which is trimmed where that is allowed, a message arrives {later} later, and \
             not within {} (`Expect::repair`): what the receiver reports of it does nothing, and a timer repairs it",
            S::EXPECT.repair
        );
    }
}

// --- times on an idle path

pub fn a_message_on_an_idle_path_goes_back_to_back<S: Subject>() {
    let (configs, delays, sizes) = S::back_to_back();
    for delay in delays {
        for config in &configs {
            let config = S::covering(config.clone(), delay);
            for &bytes in &sizes {
                let mut network = network::<S>(&config, 2, delay);
                submit(&mut network, 0, 1, 1, bytes, Kind::OneWay);
                network.run_until(at(Span::from_secs(1)));
                network.assert_ended();
                let ideal = S::EXPECT.head_start + network.ideal(bytes, framing::<S>(&network));
                let delivered =
                    Event::Delivered { peer: HostId(0), id: id(1), bytes, kind: Kind::OneWay };
                let sent = Event::Sent { peer: HostId(1), id: id(1) };
                assert_eq!(network.events_at(0).collect::<Vec<_>>(), [sent]);
                assert_eq!(network.events_at(1).collect::<Vec<_>>(), [delivered]);
                let time = deliveries(&network).next().expect("a delivery").0;
                let latest = at(ideal + S::EXPECT.overtaking);
                assert!(
                    (at(ideal)..=latest).contains(&time),
                    "a message of {bytes} bytes on an idle path of {delay} arrived at {time}, and not at {ideal}: its packets do not follow each \
                     other at line rate, or are not as long as `framing` says (a window that covers the path is `Subject::covering`'s)"
                );
                run_until_quiet::<S>(&mut network, &config);
            }
        }
    }
}

fn framing<S: Subject>(network: &Network<S::Host>) -> Framing {
    network.hosts[0].framing()
}

pub fn a_request_and_its_response_take_both_ideal_times<S: Subject>() {
    if !S::EXPECT.requests {
        return;
    }
    let delay = Span::from_us(2);
    let config = S::covering(S::back_to_back().0.swap_remove(0), delay);
    for bytes in S::back_to_back().2 {
        let mut network = network::<S>(&config, 2, delay);
        submit(&mut network, 0, 1, 1, bytes, Kind::Request);
        network.run_until(at(Span::from_secs(1)));
        network.assert_ended();
        let one_way = S::EXPECT.head_start + network.ideal(bytes, framing::<S>(&network));
        let delivered: Vec<_> = deliveries(&network).collect();
        let [(there, HostId(1)), (back, HostId(0))] = delivered[..] else {
            panic!("{delivered:?}")
        };
        let latest = at(one_way + S::EXPECT.overtaking);
        let what = format!("of {bytes} bytes on an idle path");
        assert!((at(one_way)..=latest).contains(&there), "a request {what}: {there} for {one_way}");
        let soonest = there + S::EXPECT.acknowledgement + one_way;
        let latest = soonest + S::EXPECT.overtaking;
        assert!((soonest..=latest).contains(&back), "a response {what}: {back} for {soonest}");
        run_until_quiet::<S>(&mut network, &config);
    }
}

/// The configuration of a slow property test: a tenth of the usual cases.
#[must_use]
pub fn tenth() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: (config.cases / 10).max(1), ..config }
}

/// Instantiates these tests for one [`Subject`].
#[macro_export]
macro_rules! transport_suite {
    ($subject:ident) => {
        $crate::transport_suite!(
            $subject,
            what_cannot_be_sent_is_refused,
            a_late_duplicate_has_no_effect,
            timers_stop_and_a_spurious_timeout_does_nothing,
            a_flood_from_everywhere_is_bounded,
            spoofed_sources_leave_nothing_behind,
            forged_packets_of_all_types_leave_nothing_behind,
            moderate_faults_fail_nothing,
            packets_later_than_all_timers_do_no_harm,
            a_silent_peer_leaves_nothing_behind,
            cancelled_messages_leave_nothing_behind,
            many_messages_to_one_receiver_arrive,
            messages_of_all_sizes_arrive,
            a_packet_that_is_taken_is_repaired_in_time,
            a_message_on_an_idle_path_goes_back_to_back,
            a_request_and_its_response_take_both_ideal_times
        );

        $crate::tests::suite::proptest::proptest! {
            #[test]
            fn each_message_arrives_once_or_fails(
                schedule in $crate::tests::chaos::schedules(), variant: usize
            ) {
                $crate::tests::suite::each_message_arrives_once_or_fails::<$subject>(&schedule, variant)?;
            }
        }

        $crate::tests::suite::proptest::proptest! {
            #![proptest_config($crate::tests::suite::tenth())]

            #[test]
            fn forged_packets_do_no_harm(seed: u64, variant: usize) {
                $crate::tests::suite::forged_packets_do_no_harm::<$subject>(seed, variant);
            }
        }
    };
    ($subject:ident, $($test:ident),+) => {
        $(#[test]
        fn $test() {
            $crate::tests::suite::$test::<$subject>();
        })+
    };
}
pub use transport_suite;

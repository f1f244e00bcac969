//! The scenario of a seed.

use std::fmt::Write as _;

use rackweave_core::{Rate, Rng, Span, Time};
use rackweave_rpc::Transport;

/// All failures begin before this, and the last process is up again soon after it.
const FAILURES_UNTIL: Span = Span::from_secs(4);

/// A pause longer than the first is as long as the second: beyond every timeout, and what transports remember. So does a suspended
/// machine look to its processes, whose clock goes on.
const STANDSTILL: (Span, Span) = (Span::from_secs(2), Span::from_secs(12));

/// Calls begin before this.
const CALLS_UNTIL: Span = Span::from_secs(6);

/// The transports of `rackweave rpc` over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Homa,
    LeverageHoma,
    Polo,
    Tcp,
    Dctcp,
}

impl Protocol {
    pub(super) const ALL: [Self; 5] =
        [Self::Homa, Self::LeverageHoma, Self::Polo, Self::Tcp, Self::Dctcp];

    pub(super) fn transport(self, link: Rate) -> Transport {
        match self {
            Self::Homa => Transport::homa(link),
            Self::LeverageHoma => Transport::leverage_homa(link),
            Self::Polo => Transport::polo(link),
            Self::Tcp => Transport::tcp(link),
            Self::Dctcp => Transport::dctcp(link),
        }
    }

    const fn has_streams(self) -> bool {
        !matches!(self, Self::Polo)
    }
}

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is killed, and started again later.
    Kill,
    /// It handles nothing for a time.
    Pause,
}

/// A fault of one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) host: usize,
    pub(super) at: Span,
    /// How long it takes, or until the process is started again.
    pub(super) lasts: Span,
    pub(super) fault: Fault,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A request that is answered.
    Call,
    /// A message without an answer.
    OneWay,
    /// A stream: the server answers when it has read the client's direction to its end.
    Stream {
        /// The time between the pieces that the client writes.
        gap: Span,
    },
}

/// A call, a message or a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) at: Span,
    pub(super) client: usize,
    pub(super) server: usize,
    pub(super) what: What,
    pub(super) request: usize,
    pub(super) response: usize,
    /// How long the server takes to answer.
    pub(super) work: Span,
    /// When the client cancels it, after its start.
    pub(super) cancel: Option<Span>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    /// The largest IP packet on its link, in bytes.
    pub(super) mtu: usize,
    pub(super) delay: Span,
    /// The bytes that wait for its link at most.
    pub(super) send_buffer: usize,
    /// What its clock reads when the process starts, each time.
    pub(super) clock: Time,
    /// How far its time of day jumps when the process is started again, in seconds.
    pub(super) realtime_jump_s: i64,
    /// Whether its processor has instructions for AES, which decides the cipher.
    pub(super) has_aes: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) protocol: Protocol,
    pub(super) key: bool,
    /// Whether hosts know each other's numbers, or learn of clients when these send.
    pub(super) known: bool,
    pub(super) link: Rate,
    pub(super) hosts: Vec<Host>,
    pub(super) calls: Vec<Call>,
    pub(super) loss: f64,
    pub(super) duplication: f64,
    pub(super) reordering: f64,
    /// The mean time between datagrams of somebody who records and forges them; [`Span::ZERO`] for nobody.
    pub(super) attack: Span,
    pub(super) failures: Vec<Failure>,
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Up to this long, and most often much shorter.
fn moment(rng: &mut Rng, until: Span) -> Span {
    let most = if rng.chance(0.7) { until.as_ps() / 20 } else { until.as_ps() };
    Span::from_ps(rng.below(most))
}

fn length(rng: &mut Rng) -> usize {
    let length = match rng.below(8) {
        0..=3 => rng.below(500),
        4 | 5 => rng.below(20_000),
        6 => rng.below(200_000),
        _ => rng.below(1_000_000),
    };
    length as usize
}

/// What clocks read at the end of their range, less an hour.
fn late() -> Time {
    Time::from_ticks(u64::MAX - Span::from_secs(3600).ticks())
}

fn host(rng: &mut Rng) -> Host {
    Host {
        mtu: if rng.chance(0.05) {
            pick(rng, &[1400, 1300, 600])
        } else {
            pick(rng, &[1500, 1500, 9000])
        },
        delay: Span::from_us(pick(rng, &[5, 20, 200])),
        send_buffer: pick(rng, &[16 << 10, 200 << 10, 4 << 20]),
        clock: pick(rng, &[Time::ZERO, Time::ZERO + Span::from_secs(1_000_000), late()]),
        realtime_jump_s: pick(rng, &[0, 0, 0, 1, -1, -3600, 86_400]),
        has_aes: rng.chance(0.7),
    }
}

fn call(rng: &mut Rng, hosts: usize, protocol: Protocol) -> Call {
    let server = rng.below(hosts as u64) as usize;
    let client = (server + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
    let what = match rng.below(10) {
        0 | 1 if protocol.has_streams() => {
            What::Stream { gap: Span::from_us(pick(rng, &[0, 100, 20_000, 300_000])) }
        }
        2 => What::OneWay,
        _ => What::Call,
    };
    let (request, response) = (length(rng), length(rng));
    let work = if rng.chance(0.5) { Span::ZERO } else { moment(rng, Span::from_secs(1)) };
    let cancel = rng.chance(0.1).then(|| moment(rng, Span::from_ms(200)));
    Call { at: moment(rng, CALLS_UNTIL), client, server, what, request, response, work, cancel }
}

/// Draws the scenario of a seed.
pub(super) fn scenario(seed: u64) -> Scenario {
    let rng = &mut Rng::stream(seed, 0, 0, "rpc");
    let protocol = pick(rng, &Protocol::ALL);
    let key = rng.chance(0.6);
    let count = 2 + rng.below(3) as usize;
    let hosts: Vec<Host> = (0..count).map(|_| host(rng)).collect();
    let calls = 1 + rng.below(60);
    let mut calls: Vec<Call> = (0..calls).map(|_| call(rng, count, protocol)).collect();
    calls.sort_by_key(|call| call.at);
    let mut failures: Vec<Failure> = (0..rng.below(6))
        .map(|_| Failure {
            host: rng.below(count as u64) as usize,
            at: moment(rng, FAILURES_UNTIL),
            lasts: moment(rng, FAILURES_UNTIL) + Span::from_us(1),
            fault: if rng.chance(0.7) { Fault::Kill } else { Fault::Pause },
        })
        .map(|failure| match failure.fault {
            Fault::Pause if failure.lasts > STANDSTILL.0 => {
                Failure { lasts: STANDSTILL.1, ..failure }
            }
            _ => failure,
        })
        .collect();
    failures.sort_by_key(|failure| (failure.at, failure.host));
    let chance = |rng: &mut Rng| pick(rng, &[0.0, 0.0, 0.001, 0.02]);
    Scenario {
        seed,
        protocol,
        key,
        known: rng.chance(0.5),
        link: Rate(pick(rng, &[100, 1000, 10_000]) * 1_000_000),
        hosts,
        calls,
        loss: chance(rng),
        duplication: chance(rng),
        reordering: chance(rng),
        attack: Span::from_us(pick(rng, &[0, 200, 2000, 20_000])),
        failures,
    }
}

impl Scenario {
    /// Returns it as text, for people; the seed alone gives the same run.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let Self { seed, protocol, key, known, link, attack, .. } = self;
        let Self { loss, duplication, reordering, .. } = self;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# Drawn by `rackweave chaos rpc --seed {seed}`, which repeats the run.\n\
             protocol = \"{protocol:?}\"\nkey = {key}\nknown = {known}\nlink = \"{link}\"\n\
             loss = {loss}\nduplication = {duplication}\nreordering = {reordering}\nattack = \"{attack}\""
        );
        for (number, host) in self.hosts.iter().enumerate() {
            let Host { mtu, delay, send_buffer, clock, realtime_jump_s, has_aes } = host;
            let _ = writeln!(
                text,
                "\n[[host]]\nnumber = {number}\nmtu = {mtu}\ndelay = \"{delay}\"\nsend_buffer = {send_buffer}\n\
                 clock_ticks = {}\nrealtime_jump_s = {realtime_jump_s}\nhas_aes = {has_aes}",
                clock.ticks()
            );
        }
        for (number, call) in self.calls.iter().enumerate() {
            let Call { at, client, server, what, request, response, work, cancel } = call;
            let _ = writeln!(
                text,
                "\n[[call]]\nnumber = {number}\nat = \"{at}\"\nclient = {client}\nserver = {server}\nwhat = \"{what:?}\"\n\
                 request = {request}\nresponse = {response}\nwork = \"{work}\"\ncancel = \"{cancel:?}\""
            );
        }
        for Failure { host, at, lasts, fault } in &self.failures {
            let _ = writeln!(
                text,
                "\n[[failure]]\nhost = {host}\nkind = \"{fault:?}\"\nat = \"{at}\"\nlasts = \"{lasts}\""
            );
        }
        text
    }
}

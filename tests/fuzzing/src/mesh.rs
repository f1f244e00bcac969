//! A network whose every event the fuzzer chooses: which packet arrives next, twice, or never, and how time passes.

use rackweave_core::{Span, Time};

use crate::input::Input;

/// Packets on their way. Beyond this number the oldest are lost.
const MOST_FLIGHTS: usize = 512;
/// Packets that a host's link takes at one time.
const LINK: usize = 64;
/// How long a packet may be under way. Transports remember a message for longer than its sender tries, by more than this: later packets
/// of it would be taken for a new one's.
const LIFE: Span = Span::from_ms(20);
/// Timers that expire in one step of time, which otherwise ends earlier.
const TIMERS: u32 = 2_000;
/// Timers that may expire without time passing.
const MOST_AT_ONCE: u32 = 20_000;

/// The machines of one host, or of one switch.
pub(crate) trait Station {
    type Packet: Clone;

    fn receive(&mut self, now: Time, packet: &Self::Packet);
    fn expire(&mut self, now: Time);
    fn poll(&mut self, now: Time) -> Option<Self::Packet>;
    fn deadline(&self) -> Option<Time>;

    /// What the application does after any of the others.
    fn work(&mut self, _now: Time) {}

    /// Whether the packet is for this station.
    fn is_for(&self, packet: &Self::Packet) -> bool;
}

/// Stations, and the packets between them.
#[derive(Debug)]
pub(crate) struct Mesh<S: Station> {
    pub(crate) now: Time,
    pub(crate) stations: Vec<S>,
    pub(crate) flights: Vec<S::Packet>,
    /// When each of the flights began.
    begun: Vec<Time>,
    /// Timers that have expired at this time.
    at_once: u32,
}

impl<S: Station> Mesh<S> {
    pub(crate) fn new(now: Time, stations: Vec<S>) -> Self {
        let mut this = Self { now, stations, flights: Vec::new(), begun: Vec::new(), at_once: 0 };
        this.pump();
        this
    }

    /// Lets every station send as many packets as its link takes. To be called after any other change of a station.
    pub(crate) fn pump(&mut self) {
        for station in &mut self.stations {
            station.work(self.now);
            for _ in 0..LINK {
                let Some(packet) = station.poll(self.now) else { break };
                self.flights.push(packet);
                self.begun.push(self.now);
                station.work(self.now);
            }
        }
        let is_old = |begun: &Time| self.now.since(*begun) > LIFE;
        let old = self.begun.iter().take_while(|begun| is_old(begun)).count();
        let lost = old.max(self.flights.len().saturating_sub(MOST_FLIGHTS));
        self.flights.drain(..lost);
        self.begun.drain(..lost);
    }

    pub(crate) fn deliver(&mut self, packet: &S::Packet) {
        for station in &mut self.stations {
            if station.is_for(packet) {
                station.receive(self.now, packet);
                station.work(self.now);
            }
        }
        self.pump();
    }

    fn choose(&self, input: &mut Input<'_>) -> Option<usize> {
        let at = usize::from(input.u16());
        (!self.flights.is_empty()).then(|| at % self.flights.len())
    }

    /// One event of the network.
    pub(crate) fn step(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0..3 if !self.flights.is_empty() => {
                let packet = self.take(0);
                self.deliver(&packet);
            }
            3 => {
                let Some(at) = self.choose(input) else { return };
                let packet = self.take(at);
                self.deliver(&packet);
            }
            4 => {
                let Some(at) = self.choose(input) else { return };
                let packet = self.flights[at].clone();
                self.deliver(&packet);
            }
            5 => {
                let Some(at) = self.choose(input) else { return };
                let _lost = self.take(at);
            }
            6 => {
                // From nanoseconds to minutes.
                let (bits, below) = (u32::from(input.u8()) % 46, u64::from(input.u8()));
                self.pass(self.now + Span::from_ticks(((256 + below) << bits) >> 8));
            }
            _ => {
                self.next_timer(Time::MAX);
            }
        }
    }

    fn take(&mut self, at: usize) -> S::Packet {
        self.begun.remove(at);
        self.flights.remove(at)
    }

    /// Lets time pass. Timers expire when they are due.
    fn pass(&mut self, to: Time) {
        for _ in 0..TIMERS {
            if !self.next_timer(to) {
                return self.advance(to);
            }
        }
    }

    fn advance(&mut self, to: Time) {
        if to > self.now {
            (self.now, self.at_once) = (to, 0);
        }
        self.expire();
    }

    fn expire(&mut self) {
        for station in &mut self.stations {
            if station.deadline().is_some_and(|at| at <= self.now) {
                station.expire(self.now);
            }
        }
        self.pump();
    }

    /// Lets time pass to the next timer, if it is not later than `until`.
    fn next_timer(&mut self, until: Time) -> bool {
        let next = self.stations.iter().filter_map(Station::deadline).min();
        let Some(next) = next.filter(|next| *next <= until) else { return false };
        self.at_once += 1;
        assert!(self.at_once < MOST_AT_ONCE, "time stands still at {}", self.now);
        self.advance(self.now.max(next));
        true
    }

    /// Goes on without losses, with 10 us for each packet, until `is_over`, or for the given time and number of rounds. Returns whether
    /// it is over.
    pub(crate) fn finish(
        &mut self,
        span: Span,
        rounds: u32,
        is_over: impl Fn(&[S]) -> bool,
    ) -> bool {
        let end = self.now + span;
        for _ in 0..rounds {
            if is_over(&self.stations) {
                return true;
            }
            let flights = core::mem::take(&mut self.flights);
            self.begun.clear();
            if flights.is_empty() {
                if !self.next_timer(end) {
                    break;
                }
                continue;
            }
            self.advance(self.now + Span::from_us(10));
            for packet in &flights {
                self.deliver(packet);
            }
        }
        is_over(&self.stations)
    }
}

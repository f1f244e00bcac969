//! A flow: all packets from this host to one peer, their round trips, losses and windows.

use std::collections::VecDeque;

use rackweave_core::{HostId, RttEstimator, Span, Time};

use super::config::Config;
use super::congestion::{Ack, Rules, Scaling, Window};

/// A packet counts as lost once one that was sent at least this many later is known to have arrived. (Section 3.6 has holes in a
/// bitmap that indicate "potentially" lost packets. This is the packet threshold of RFC 9002, section 6.1.1; htsim waits for three
/// duplicate acknowledgements.)
const REORDERING: usize = 3;

/// The weight of an endpoint's delay in its moving average is the inverse of this. (Section 3.3 filters that delay, and
/// gives no weight; this is that of RFC 6298.)
const ENDPOINT_WEIGHT: u64 = 8;

/// A packet of a message, by the exchange that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) slot: u32,
    /// Distinguishes the exchanges that have used the slot.
    pub(super) birth: u64,
    pub(super) packet: u32,
}

/// What the message of a packet knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It has arrived.
    Arrived,
    /// It is not known to have arrived.
    Missing,
    /// The message needs it no more.
    Moot,
}

/// A packet that was sent, until it counts as arrived or lost.
#[derive(Clone, Copy, Debug)]
struct Sent {
    piece: Piece,
    at: Time,
    is_acked: bool,
}

/// What the acknowledgement of a data packet measures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) piece: Piece,
    /// When it was sent: t1 of section 3.1 (`unverified`).
    pub(super) sent_at: Time,
    /// The number of packets that were in flight before the acknowledgement.
    in_flight: u32,
}

/// The state of one host's packets to one peer.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) peer: HostId,
    /// The target of the path without flow-based scaling.
    path_target: Span,
    /// `fcwnd`.
    fabric: Window,
    /// `ecwnd`.
    endpoint: Window,
    /// The moving average of the endpoints' delay.
    endpoint_delay: Span,
    rtt: RttEstimator,
    /// `retransmit_cnt` of Algorithm 1: timeouts since the last acknowledgement.
    timeouts: u32,
    /// The number of the next packet.
    next_number: u32,
    /// The packets before `next_number` without gaps, as far as they may be in flight.
    sent: VecDeque<Sent>,
    /// The number of packets at the front of `sent` up to the last one that is acknowledged.
    acked_to: usize,
    in_flight: u32,
    /// Packets to be sent again.
    pub(super) lost: VecDeque<Piece>,
    /// The messages that have packets that were not sent yet, in turn.
    pub(super) queue: VecDeque<u32>,
    /// When the retransmission timeout expires; [`Time::MAX`] while nothing is in flight.
    rto_at: Time,
    last_sent: Option<Time>,
    /// A timeout has expired, and nothing was sent since.
    repairs: bool,
    /// When the first packet was sent that the peer has not answered; `None` if it has answered all.
    silent_since: Option<Time>,
}

impl Flow {
    pub(super) fn new(host: HostId, peer: HostId, config: &Config) -> Self {
        Self {
            peer,
            path_target: config.path_target(host, peer),
            fabric: Window::new(config),
            endpoint: Window::new(config),
            endpoint_delay: Span::ZERO,
            rtt: RttEstimator::new(),
            timeouts: 0,
            next_number: 1,
            sent: VecDeque::new(),
            acked_to: 0,
            in_flight: 0,
            lost: VecDeque::new(),
            queue: VecDeque::new(),
            rto_at: Time::MAX,
            last_sent: None,
            repairs: false,
            silent_since: None,
        }
    }

    /// The effective window (section 3.3, `unverified`): the smaller one.
    pub(super) const fn window(&self) -> f64 {
        self.fabric.packets().min(self.endpoint.packets())
    }

    /// Whether there is something to send.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.lost.is_empty()
    }

    /// Whether there is nothing to send, and nothing in flight.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_work() && self.in_flight == 0
    }

    /// When the peer counts as dead, unless it answers before.
    pub(super) fn dead_at(&self, config: &Config) -> Time {
        self.silent_since.map_or(Time::MAX, |at| at.saturating_add(config.common.patience))
    }

    /// Notes that a packet of the peer has arrived.
    pub(super) const fn on_answer(&mut self) {
        self.silent_since = None;
    }

    pub(super) const fn rto_at(&self) -> Time {
        self.rto_at
    }

    fn smoothed(&self, config: &Config) -> Span {
        self.rtt.smoothed().unwrap_or(config.initial_rto)
    }

    fn rto(&self, config: &Config) -> Span {
        let base = self.rtt.rto().map_or(config.initial_rto, |rto| rto.max(config.min_rto));
        let doubled = base.ticks().saturating_mul(1 << self.timeouts.min(20));
        Span::from_ticks(doubled.min(config.max_rto.max(base).ticks()))
    }

    /// When the next packet may be sent; [`Time::MAX`] if not before an acknowledgement or a timeout.
    ///
    /// Section 3.4: a window below one packet is a distance of RTT / cwnd between packets. As in htsim, the packets in
    /// flight do not count then, but for the largest window. A timing wheel keeps the time that it was given. Here the
    /// time follows from the window of the moment, because the machine is asked when its link is free. It is at most
    /// the longest timeout (our choice: the window of a path that has failed is a thousandth of a packet). What a
    /// timeout repeats is sent at once, as in htsim: timeouts have distances of their own.
    pub(super) fn release_at(&self, config: &Config) -> Time {
        let window = self.window();
        let room = if window < 1.0 { u32::from(config.max_window) } else { window as u32 };
        match self.last_sent {
            _ if self.in_flight >= room => Time::MAX,
            _ if self.repairs => Time::ZERO,
            Some(last) if window < 1.0 => {
                let distance = self.smoothed(config).ticks() as f64 / window;
                last.saturating_add(Span::from_ticks(distance as u64).min(config.max_rto))
            }
            _ => Time::ZERO,
        }
    }

    /// Notes that a packet is sent, and returns its number.
    pub(super) fn on_sent(&mut self, now: Time, piece: Piece, config: &Config) -> u32 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.sent.push_back(Sent { piece, at: now, is_acked: false });
        self.in_flight += 1;
        self.last_sent = Some(now);
        self.repairs = false;
        self.silent_since.get_or_insert(now);
        if self.rto_at == Time::MAX {
            self.rto_at = now.saturating_add(self.rto(config));
        }
        number
    }

    /// Notes that the packet with this number has arrived; `None` if it is not in flight.
    pub(super) fn on_acked(&mut self, number: u32) -> Option<Sample> {
        let first = self.next_number.wrapping_sub(self.sent.len() as u32);
        let at = number.wrapping_sub(first) as usize;
        let sent = self.sent.get_mut(at).filter(|sent| !sent.is_acked)?;
        sent.is_acked = true;
        let (piece, sent_at, in_flight) = (sent.piece, sent.at, self.in_flight);
        self.acked_to = self.acked_to.max(at + 1);
        self.in_flight -= 1;
        Some(Sample { piece, sent_at, in_flight })
    }

    /// Decides about the packets that were sent long enough before an acknowledged one: packets that their message
    /// knows to have arrived count as acknowledged, others as lost. Returns the number of either.
    pub(super) fn resolve(&mut self, fate: impl Fn(Piece) -> Fate) -> (u32, u32) {
        let (mut acked, mut lost) = (0, 0);
        while let Some(sent) = self.sent.front()
            && (sent.is_acked || self.acked_to > REORDERING)
        {
            if !sent.is_acked {
                self.in_flight -= 1;
                match fate(sent.piece) {
                    Fate::Arrived => acked += 1,
                    Fate::Missing => {
                        lost += 1;
                        self.lost.push_back(sent.piece);
                    }
                    Fate::Moot => {}
                }
            }
            self.sent.pop_front();
            self.acked_to = self.acked_to.saturating_sub(1);
        }
        (acked, lost)
    }

    /// Changes the windows after an acknowledgement that measures something (Algorithm 1, for both of them). `wait` is the
    /// remote queuing delay; the delay of the fabric is the rest (section 3.1, `unverified`). Our hosts have no timestamps of their NICs,
    /// so that the local one is part of the fabric's.
    pub(super) fn on_measured(
        &mut self,
        now: Time,
        sample: &Sample,
        wait: Span,
        acked: u32,
        windows: (&Rules, &Scaling),
        config: &Config,
    ) {
        let (rules, scaling) = windows;
        let rtt = now.since(sample.sent_at);
        let wait = wait.min(rtt);
        self.timeouts = 0;
        self.rtt.sample(rtt);
        let average = self.endpoint_delay.ticks();
        self.endpoint_delay =
            Span::from_ticks(average - average / ENDPOINT_WEIGHT + wait.ticks() / ENDPOINT_WEIGHT);
        // RFC 9002, section 7.8 (our choice: the paper's flows always have something to send).
        let window = self.window();
        let can_grow = window < 1.0 || sample.in_flight >= window as u32;
        let ack = Ack { now, rtt: self.smoothed(config), acked, can_grow };
        let target = self.path_target.saturating_add(scaling.extra(self.fabric.packets()));
        self.fabric.on_ack(&ack, rtt.saturating_sub(wait), target, rules);
        self.endpoint.on_ack(&ack, self.endpoint_delay, config.endpoint_target, rules);
    }

    /// Changes the windows after losses that acknowledgements show.
    pub(super) fn on_loss(&mut self, now: Time, rules: &Rules, config: &Config) {
        let rtt = self.smoothed(config);
        self.fabric.on_loss(now, rtt, rules);
        self.endpoint.on_loss(now, rtt, rules);
    }

    /// Restarts the retransmission timeout (RFC 6298, section 5; section 3.6 has the same estimate).
    pub(super) fn restart_timeout(&mut self, now: Time, config: &Config) {
        let rto = self.rto(config);
        self.rto_at = if self.in_flight == 0 { Time::MAX } else { now.saturating_add(rto) };
    }

    /// Handles a retransmission timeout: all that is in flight counts as lost (as in htsim), unless no message needs it.
    pub(super) fn on_timeout(
        &mut self,
        now: Time,
        fate: impl Fn(Piece) -> Fate,
        rules: &Rules,
        config: &Config,
    ) -> bool {
        let mut is_loss = false;
        for sent in self.sent.drain(..) {
            if !sent.is_acked && fate(sent.piece) == Fate::Missing {
                is_loss = true;
                self.lost.push_back(sent.piece);
            }
        }
        (self.acked_to, self.in_flight, self.rto_at) = (0, 0, Time::MAX);
        if !is_loss {
            return false;
        }
        self.repairs = true;
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts >= u32::from(config.reset_after) {
            self.fabric.reset(now, rules);
            self.endpoint.reset(now, rules);
        } else {
            self.on_loss(now, rules, config);
        }
        true
    }

    #[cfg(test)]
    pub(super) fn check_bounds(&self, rules: &Rules, config: &Config) {
        self.fabric.check_bounds(rules);
        self.endpoint.check_bounds(rules);
        let unacked = self.sent.iter().filter(|sent| !sent.is_acked).count();
        assert_eq!(unacked, self.in_flight as usize);
        assert!(self.in_flight as usize + self.lost.len() <= usize::from(config.max_window));
        // What is acknowledged out of order is within the window of what is not.
        assert!(self.acked_to <= self.sent.len() && self.acked_to <= REORDERING + 1);
        assert_eq!(self.in_flight == 0, self.rto_at == Time::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn piece(packet: u32) -> Piece {
        Piece { slot: 0, birth: 0, packet }
    }

    fn flow(config: &Config) -> Flow {
        Flow::new(HostId(0), HostId(1), config)
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    fn windows(config: &Config) -> (Rules, Scaling) {
        (Rules::new(config), Scaling::new(config))
    }

    /// Section 3.4: below one packet, packets are RTT / cwnd apart.
    #[test]
    fn a_window_below_one_packet_is_a_distance() {
        let config = Config { initial_window: 1, ..Config::htsim() };
        let mut flow = flow(&config);
        let (rules, scaling) = windows(&config);
        assert_eq!(flow.release_at(&config), Time::ZERO);
        let number = flow.on_sent(at(0), piece(0), &config);
        assert_eq!(flow.release_at(&config), Time::MAX, "the window is full");
        let sample = flow.on_acked(number).unwrap();
        flow.resolve(|_| Fate::Arrived);
        // 800 us: 0.8 of the excess is above the largest decrease.
        flow.on_measured(at(800), &sample, Span::ZERO, 1, (&rules, &scaling), &config);
        assert!((flow.window() - 0.5).abs() < 1e-9);
        assert_eq!(flow.release_at(&config), at(1_600), "800 us / 0.5 after the last packet");
        // Three more of 4 ms: 0.0625 packets, whose distance would be 20 ms and more.
        for n in 1..=3 {
            let number = flow.on_sent(at(5_000 * n), piece(0), &config);
            let sample = flow.on_acked(number).unwrap();
            let now = at(5_000 * n + 4_000);
            flow.on_measured(now, &sample, Span::ZERO, 1, (&rules, &scaling), &config);
        }
        assert!(flow.window() < 0.07);
        assert_eq!(flow.release_at(&config), at(15_000) + config.max_rto);
    }

    #[test]
    fn a_packet_is_lost_when_the_third_later_one_has_arrived() {
        let config = Config::htsim();
        let mut flow = flow(&config);
        for packet in 0..6 {
            flow.on_sent(at(0), piece(packet), &config);
        }
        for number in [2, 3] {
            assert!(flow.on_acked(number).is_some());
            assert_eq!(flow.resolve(|_| Fate::Missing), (0, 0));
        }
        assert!(flow.on_acked(3).is_none(), "known");
        assert!(flow.on_acked(4).is_some());
        assert_eq!(flow.resolve(|_| Fate::Missing), (0, 1));
        assert_eq!((flow.lost.pop_front(), flow.in_flight), (Some(piece(0)), 2));
        assert!(flow.on_acked(0).is_none() && flow.on_acked(7).is_none(), "not in flight");
        assert!(flow.on_acked(1).is_none(), "counts as lost");
    }

    /// An acknowledgement was lost, but a later one says that the packet has arrived.
    #[test]
    fn a_packet_that_has_arrived_is_not_lost() {
        let config = Config::htsim();
        let mut flow = flow(&config);
        for packet in 0..4 {
            flow.on_sent(at(0), piece(packet), &config);
        }
        flow.on_acked(4);
        assert_eq!(flow.resolve(|_| Fate::Arrived), (1, 0));
        assert!(flow.lost.is_empty());
    }

    /// Numbers are modulo 2^32.
    #[test]
    fn numbers_wrap() {
        let config = Config::htsim();
        let mut flow = flow(&config);
        flow.next_number = u32::MAX;
        let numbers: Vec<u32> =
            (0..3).map(|packet| flow.on_sent(at(0), piece(packet), &config)).collect();
        assert_eq!(numbers, [u32::MAX, 0, 1]);
        assert_eq!(flow.on_acked(1).unwrap().piece, piece(2));
        assert_eq!(flow.on_acked(u32::MAX).unwrap().piece, piece(0));
    }

    /// RFC 6298: SRTT + 4 RTTVAR, doubled by each timeout up to the limit, and the reset of Algorithm 1 at the fifth.
    #[test]
    fn timeouts_double_and_reset_the_window() {
        let config = Config::htsim();
        let (rules, _) = windows(&config);
        let mut flow = flow(&config);
        let mut now = at(0);
        let (mut waits, mut seen) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            flow.on_sent(now, piece(0), &config);
            waits.push(flow.rto_at().since(now).as_us());
            now = flow.rto_at();
            flow.on_timeout(now, |_| Fate::Missing, &rules, &config);
            seen.push(flow.window());
            assert_eq!(flow.release_at(&config), Time::ZERO, "not paced");
            flow.lost.clear();
        }
        assert_eq!(waits, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!(seen, [7.5, 3.75, 1.875, 0.9375, 0.001, 0.001]);
    }

    #[test]
    fn a_timeout_of_what_no_message_needs_is_no_loss() {
        let config = Config::htsim();
        let (rules, _) = windows(&config);
        let mut flow = flow(&config);
        flow.on_sent(at(0), piece(0), &config);
        flow.on_timeout(at(1_000), |_| Fate::Moot, &rules, &config);
        assert!(flow.is_idle() && flow.timeouts == 0);
        assert!((flow.window() - 15.0).abs() < 1e-9);
    }

    /// Section 3.3: the remote wait concerns the endpoint's window only, and is filtered.
    #[test]
    fn the_delay_of_the_endpoint_is_that_of_its_own_window() {
        let config = Config { endpoint_target: Span::from_us(10), ..Config::htsim() };
        let (rules, scaling) = windows(&config);
        let mut flow = flow(&config);
        for packet in 0..15 {
            flow.on_sent(at(0), piece(packet), &config);
        }
        let mut seen = Vec::new();
        for number in 1..=2 {
            let sample = flow.on_acked(number).unwrap();
            flow.resolve(|_| Fate::Arrived);
            // Of 200 us all but 10 at the remote host: averages of 23.75 and 44.5 us.
            let wait = Span::from_us(190);
            flow.on_measured(at(200), &sample, wait, 1, (&rules, &scaling), &config);
            seen.push((flow.fabric.packets(), flow.endpoint.packets()));
        }
        assert!((seen[0].0 - (15.0 + 1.0 / 15.0)).abs() < 1e-9, "{seen:?}");
        assert!((seen[0].1 - 15.0 * (1.0 - 0.8 * 13.75 / 23.75)).abs() < 1e-6, "{seen:?}");
        assert_eq!(seen[1].1, seen[0].1, "once in a round trip");
        assert!((flow.window() - seen[1].1).abs() < 1e-9, "the smaller one counts");
    }
}

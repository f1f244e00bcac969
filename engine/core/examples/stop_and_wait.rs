//! Which share of a link does a sender use that waits for each acknowledgement, and what do losses cost it?
//!
//! The protocol is a [`Node`]: it sends nothing itself and reads no clock. The loop below is its driver, in virtual time.
//!
//! `cargo run -p rackweave-core --example stop_and_wait`

use rackweave_core::{Header, HostId, Node, Packet, Rate, Rng, Slice, Span, Time};

const LINK: Rate = Rate::from_gbps(10);
const DELAY: Span = Span::from_us(1);
const TIMEOUT: Span = Span::from_us(10);
const PACKETS: u32 = 20_000;

/// The number of a packet, or of the one that is acknowledged.
#[derive(Clone, Copy, Debug)]
struct Number(u32);

impl Header for Number {
    fn payload(&self) -> Option<Slice> {
        None
    }
}

/// Sends packets of 1500 bytes, one at a time.
#[derive(Debug, Default)]
struct Sender {
    number: u32,
    is_sent: bool,
    resend_at: Option<Time>,
}

impl Node for Sender {
    type Header = Number;
    type Event = ();
    type Placement = ();

    fn handle_packet(&mut self, _now: Time, _port: u8, packet: &Packet<Number>) {
        if packet.header.0 == self.number {
            *self = Self { number: self.number + 1, ..Self::default() };
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        if self.resend_at.is_some_and(|at| at <= now) {
            (self.is_sent, self.resend_at) = (false, None);
        }
    }

    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Number>> {
        if std::mem::replace(&mut self.is_sent, true) {
            return None;
        }
        self.resend_at = Some(now + TIMEOUT);
        Some(Packet::new(HostId(0), HostId(1), 1500, Number(self.number)))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.resend_at
    }

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// The share of the link that the sender uses if packets are lost with this probability, in either direction.
fn share(loss: f64) -> f64 {
    let mut rng = Rng::stream(1, 0, 0, "losses");
    let (mut sender, mut now) = (Sender::default(), Time::ZERO);
    let flight = |bytes: u16| LINK.span_of(bytes.into()) + DELAY;
    while sender.number < PACKETS {
        if let Some(data) = sender.poll_transmit(now, 0)
            && !rng.chance(loss)
        {
            // The receiver acknowledges at once.
            let ack = Packet::new(data.dst, data.src, 46, data.header);
            now += flight(data.wire_bytes) + flight(ack.wire_bytes);
            if !rng.chance(loss) {
                sender.handle_packet(now, 0, &ack);
            }
        } else if let Some(at) = sender.poll_timeout() {
            now = at;
            sender.handle_timeout(now);
        }
    }
    let sent = LINK.span_of(1538) * u64::from(PACKETS);
    sent.ticks() as f64 / now.since(Time::ZERO).ticks() as f64
}

/// Compares the measured shares with arithmetic.
pub(crate) fn main() {
    for loss in [0.0, 0.01, 0.1] {
        let sent_us = 1538.0 * 8.0 / 10_000.0;
        let round_trip_us = sent_us + 84.0 * 8.0 / 10_000.0 + 2.0;
        let failures = 1.0 / ((1.0 - loss) * (1.0 - loss)) - 1.0;
        let expected = sent_us / (round_trip_us + failures * 10.0);
        let share = share(loss);
        println!("losses {loss:>4}: {share:.3} of the link, by arithmetic {expected:.3}");
        assert!((share / expected - 1.0).abs() < 0.03);
    }
}

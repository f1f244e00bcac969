//! Transports that are a sender's rules only: the receiver acknowledges each packet.

use core::fmt::Debug;
use core::marker::PhantomData;

use rackweave_core::{Ecn, FailReason, HostId, Packet, Placement, Span, Time};

use super::{Arriving, Body, Due, Header, Piece, Sequence, size, told};
use crate::common::{Driven, Heap, Jitter, Parameters, Scheme, Sending};
use crate::exchange::{self, InvalidConfig};
use crate::profile::Surroundings;

/// The sender's half of a message, in a transport whose receivers acknowledge each packet with the number of packets that have arrived
/// in order. How many packets are in flight, which message goes first, and what acknowledgements and timeouts change, are its rules; it
/// repeats all that has not arrived after a timeout ([`Sequence`]).
pub trait Sender: Debug + Sized {
    /// The transport's parameters.
    type Config: Debug + Clone + PartialEq;

    /// The transport's name.
    const NAME: &'static str;
    /// Whether data is ECN-capable, so that [`Ack::is_marked`] says what switches marked.
    const COUNTS_MARKS: bool = false;

    /// The state of a message that has sent nothing.
    fn new(config: &Self::Config) -> Self;

    /// The most packets in flight.
    fn window(&self, config: &Self::Config) -> u32;

    /// Of a host's messages that may send, the lowest rank goes first, and of several the oldest.
    fn rank(&self, packets: &Sequence) -> u64;

    /// The time without progress after which what has not arrived is sent again.
    fn timeout(&self, config: &Self::Config) -> Span;

    /// The receiver has answered a packet. The message is not complete.
    fn on_ack(&mut self, ack: &Ack, config: &Self::Config);

    /// The timeout has passed.
    fn on_timeout(&mut self, config: &Self::Config);
}

/// What the answer to a data packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// When it arrived.
    pub now: Time,
    /// The number of packets that the message's sender did not know to have arrived; 0 if the answer is late, or other packets are
    /// missing before the one that it answers.
    pub packets: u32,
    /// Whether a switch marked the packet. Always `false` without [`Sender::COUNTS_MARKS`].
    pub is_marked: bool,
    /// The time from the packet's departure to this answer's arrival.
    pub round_trip: Span,
}

/// The parameters of a transport that is a [`Sender`].
#[derive(Debug)]
pub struct Config<S: Sender> {
    /// What all transports have.
    pub common: exchange::Config,
    /// The transport's own.
    pub own: S::Config,
}

impl<S: Sender> Config<S> {
    /// These parameters, and the usual ones of all transports.
    #[must_use]
    pub const fn new(own: S::Config) -> Self {
        Self { common: exchange::Config::USUAL, own }
    }
}

// Derived, they would ask for the same of `S`.
impl<S: Sender> Clone for Config<S> {
    fn clone(&self) -> Self {
        Self { common: self.common, own: self.own.clone() }
    }
}

impl<S: Sender> PartialEq for Config<S> {
    fn eq(&self, other: &Self) -> bool {
        (&self.common, &self.own) == (&other.common, &other.own)
    }
}

impl<S: Sender> Parameters for Config<S> {
    type Scheme = Acknowledged<S>;

    const NAMES: &'static [&'static str] = &[S::NAME];
    const DATA_BYTES: u32 = size::WORDS;
    const CONTROL_BYTES: u32 = size::WORDS;

    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.common.patience / 16
    }

    /// An acknowledgement for each packet.
    fn control_packets(&self, _bytes: f64, packets: f64, _at: &Surroundings) -> [f64; 2] {
        [0.0, packets]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let first = S::new(&self.own);
        let timeout = first.timeout(&self.own);
        let own =
            [("timeout", timeout > Span::ZERO), ("the first window", first.window(&self.own) > 0)];
        self.common.check(&own, &[])?;
        self.common.check_patience(timeout.saturating_mul(4), "four times the first timeout")
    }
}

/// The scheme of a [`Sender`]: which messages of a host may send, by rank and age.
#[derive(Debug)]
pub struct Acknowledged<S> {
    ready: Heap<(u64, u64)>,
    sender: PhantomData<S>,
}

/// The sender's state of a message.
#[derive(Debug)]
pub struct Outgoing<S> {
    packets: Sequence,
    sender: S,
}

type Host<S> = Driven<Acknowledged<S>>;

/// Lets a message whose state has changed take its turn, and sets its timer.
fn changed<S: Sender>(host: &mut Host<S>, slot: u32) {
    let Some(message) = host.sending(slot) else { return };
    let Sending { outgoing: Outgoing { packets, sender }, scheme, config, birth, .. } = message;
    if packets.may_send(sender.window(&config.own)) {
        scheme.ready.set(slot, (sender.rank(packets), birth));
    } else {
        scheme.ready.remove(slot);
    }
    let deadline = packets.deadline();
    host.wake(slot, deadline);
}

/// Handles what a receiver says has arrived, in answer to a data packet or to a question.
fn on_answer<S: Sender>(host: &mut Host<S>, now: Time, packet: &Packet<Header>) {
    let Body::ToSender { tag, words: [arrived, marked, sent_ns, _] } = packet.header.body else {
        return;
    };
    let Some(slot) = host.outgoing_slot(packet.src, packet.header.id.get()) else { return };
    let Some(Sending { outgoing, config, .. }) = host.sending(slot) else { return };
    let Outgoing { packets, sender } = outgoing;
    let before = packets.left();
    packets.acknowledge(now, arrived, sender.timeout(&config.own));
    if tag == told::OF_DATA {
        let ack = Ack {
            now,
            packets: before.saturating_sub(packets.left()),
            is_marked: S::COUNTS_MARKS && marked != 0,
            round_trip: Span::from_ns(u64::from((now.as_ns() as u32).wrapping_sub(sent_ns))),
        };
        sender.on_ack(&ack, &config.own);
    }
    changed(host, slot);
}

impl<S: Sender> Scheme for Acknowledged<S> {
    type Config = Config<S>;
    type Header = Header;
    type Outgoing = Outgoing<S>;
    type Incoming = Arriving;

    fn new(_: HostId, _: &Config<S>) -> Self {
        Self { ready: Heap::default(), sender: PhantomData }
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Complete)
    }

    fn outgoing(&mut self, _: Time, bytes: u32, _: Jitter, config: &Config<S>) -> Outgoing<S> {
        let packets = Sequence::new(bytes, &config.common);
        Outgoing { packets, sender: S::new(&config.own) }
    }

    fn submitted(host: &mut Host<S>, _: Time, slot: u32) {
        changed(host, slot);
    }

    fn on_packet(host: &mut Host<S>, now: Time, packet: &Packet<Header>) -> Placement {
        match packet.header.body {
            Body::Data { .. } => return host.acknowledge(now, packet),
            Body::ToSender { .. } => on_answer(host, now, packet),
            Body::ToReceiver { words: [bytes, ..], .. } => host.answer(now, packet, bytes),
            _ => host.handle_common(now, packet.src, &packet.header),
        }
        Placement::Discard
    }

    fn next_data(host: &mut Host<S>, now: Time) -> Option<Packet<Header>> {
        let (_, slot) = host.scheme().ready.first()?;
        let Sending { outgoing, config, recovery, .. } = host.sending(slot)?;
        let Outgoing { packets, sender } = outgoing;
        let piece: Piece = packets.send(now, sender.timeout(&config.own), &config.common);
        recovery.retransmissions += u64::from(piece.is_repeated);
        let bytes = packets.bytes();
        changed(host, slot);
        let ecn = if S::COUNTS_MARKS { Ecn::Capable } else { Ecn::NotCapable };
        Some(host.data(slot, bytes, piece, [now.as_ns() as u32, 0])?.with_ecn(ecn))
    }

    fn sender_deadline(outgoing: &Outgoing<S>, _: &Config<S>) -> Time {
        outgoing.packets.deadline()
    }

    fn receiver_deadline(&self, incoming: &Arriving, _: Time, config: &Config<S>) -> Time {
        incoming.last_received().saturating_add(config.common.patience)
    }

    fn sender_due(host: &mut Host<S>, now: Time, slot: u32) {
        let Some(Sending { outgoing, config, recovery, .. }) = host.sending(slot) else { return };
        let Outgoing { packets, sender } = outgoing;
        let Due { is_silent, has_timed_out, asks } = packets.due(now, &config.common);
        if is_silent {
            return host.fail(now, slot, FailReason::PeerSilent);
        }
        if has_timed_out {
            recovery.timeouts += 1;
            sender.on_timeout(&config.own);
        }
        let bytes = packets.bytes();
        changed(host, slot);
        if asks {
            host.ask(slot, bytes);
        }
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
    }

    #[cfg(any(test, feature = "suite"))]
    fn check_bounds(host: &Host<S>) {
        if host.exchanges_under_way() == 0 {
            assert!(host.scheme().ready.is_empty(), "a message has ended and may still send");
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::{Kind, MessageId, Rate};
    use rackweave_wire::Id64;

    use super::*;
    use crate::tests::Network;

    /// A fixed window, which notes its acknowledgements.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Two {
        acks: Vec<Ack>,
        timeouts: u32,
    }

    impl Sender for Two {
        type Config = u32;

        const NAME: &'static str = "two";
        const COUNTS_MARKS: bool = true;

        fn new(_: &u32) -> Self {
            Self::default()
        }

        fn window(&self, window: &u32) -> u32 {
            *window
        }

        fn rank(&self, packets: &Sequence) -> u64 {
            u64::from(packets.left())
        }

        fn timeout(&self, _: &u32) -> Span {
            Span::from_ms(1)
        }

        fn on_ack(&mut self, ack: &Ack, _: &u32) {
            self.acks.push(*ack);
        }

        fn on_timeout(&mut self, _: &u32) {
            self.timeouts += 1;
        }
    }

    const LINK: Rate = Rate::from_gbps(10);
    const DELAY: Span = Span::from_us(3);

    fn network() -> Network<Host<Two>> {
        let host = |id| Driven::new(HostId(id), Config::new(2).into());
        Network::new(vec![host(0), host(1)], LINK, DELAY)
    }

    fn state(network: &mut Network<Host<Two>>) -> Two {
        let host = network.host_mut(0);
        let slot = host.outgoing_slot(HostId(1), 2).expect("the message is under way");
        host.sending(slot).expect("it is sent").outgoing.sender.clone()
    }

    #[test]
    fn an_acknowledgement_says_what_has_arrived_when_it_was_sent_and_what_was_marked() {
        let mut network = network();
        network.mark = Some(|packet| matches!(packet.header.body, Body::Data { offset: 1460, .. }));
        network.submit(0, 1, MessageId(2), 100_000, Kind::OneWay).unwrap();
        network.run_until(Time::ZERO + Span::from_us(13));
        let acks = state(&mut network).acks;
        let [first, second, ..] = acks[..] else { panic!("{acks:?}") };
        assert_eq!((first.packets, first.is_marked), (1, false));
        assert_eq!((second.packets, second.is_marked), (1, true));
        // A data packet of 1538 bytes and an answer of 84, each over two links of the path.
        let idle = (LINK.span_of(1538) + LINK.span_of(84)) * 2 + DELAY * 2;
        let off = |ack: Ack| ack.round_trip.as_us_f64() - idle.as_us_f64();
        assert!(off(first).abs() < 0.01 && off(second).abs() < 0.01, "{acks:?} for {idle}");
    }

    #[test]
    fn an_answer_to_a_question_or_a_late_one_is_no_progress() {
        let mut network = network();
        network.lose = Some(|packet| matches!(packet.header.body, Body::Data { offset: 0, .. }));
        network.submit(0, 1, MessageId(2), 100_000, Kind::OneWay).unwrap();
        network.run_until(Time::ZERO + Span::from_ms(45));
        let Two { acks, timeouts } = state(&mut network);
        assert!(timeouts > 10 && !acks.is_empty(), "{acks:?}");
        assert!(acks.iter().all(|ack| ack.packets == 0), "only what lies behind a gap has arrived");
        // A question has been asked and answered since: an answer to data would be counted.
        let header = Header {
            id: Id64::new(2),
            one_way: true,
            body: Body::ToSender { tag: told::OF_ASK, words: [0; 4] },
        };
        network.inject(Packet::new(HostId(1), HostId(0), 72, header));
        assert_eq!(state(&mut network).acks, acks);
    }

    #[test]
    fn a_timeout_or_a_window_of_zero_is_refused() {
        let wrong = |window| Config::<Two>::new(window).validate().map_err(|it| it.to_string());
        assert_eq!(wrong(1), Ok(()));
        assert_eq!(wrong(0), Err("the first window must be above zero".to_owned()));
    }
}

//! `fixed-window`: each message has a fixed number of packets in flight, the message with the fewest packets left goes first, and
//! each packet is acknowledged. After a timeout the window is one packet, and grows by one with each acknowledgement.
//!
//! `Driven` (rackweave_transport) has what most transports share: exchanges, answers to late packets, timers, bounds of memory.

use rackweave::core::{FailReason, Packet, Placement, Rate, Span, Time};
use rackweave::scenario::derived::{Amount, Far, Grid, Rule};
use rackweave::scenario::item::About;
use rackweave::scenario::keys::{Carried, Place};
use rackweave::scenario::path::Path;
use rackweave::scenario::problem::Problem;
use rackweave::scenario::transport::External;
use rackweave::scenario::values::{AtLeast, Unit};
use rackweave::sim::Fabric;
use rackweave::transport::external::{
    Arriving, Body, Driven, Header, Heap, Jitter, Parameters, Scheme, Sending, of_data, size,
};
use rackweave::transport::{InvalidConfig, exchange};

rackweave::scenario::keys! {
    /// The keys in `[transport]`.
    struct Keys for Config {
        /// Packets of a message in flight. Default: a round trip.
        window: AtLeast<1> => window,
        /// Time without progress after which packets are sent again. Default: 1 ms, or three round trips.
        timeout: Unit<Span> => timeout,
    }
}

impl External for Keys {
    type Config = Config;

    const ABOUT: About = About {
        name: "fixed-window",
        description: "a fixed number of packets of each message in flight",
        profiles: &[],
        sources: &[concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"))],
    };

    const RULES: &'static [Rule<Config>] = &[Rule {
        key: "window",
        of: |config| Some(Amount::Packets(u64::from(config.window))),
        why: "a bandwidth-delay product",
        far: Far::WINDOW,
        grid: Grid::Factors(&[0.5, 2.0]), // what `tune` tries
    }];

    fn resolve(&self, at: Place<'_>, fabric: &Fabric, all: Carried<'_>) -> Result<Config, Problem> {
        let mut config =
            Config::for_round_trip(fabric.host_rate(), Path::longest(fabric).base_rtt());
        self.apply(&mut config);
        at.refuse_longer_messages(all, config.common.max_message_bytes)?;
        Ok(config)
    }
}

/// The parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    common: exchange::Config,
    window: u32,
    timeout: Span,
}

impl Config {
    fn for_round_trip(link: Rate, rtt: Span) -> Self {
        let window = (link.bytes_in(rtt) as u32).div_ceil(1538).max(1);
        let timeout = Span::from_ms(1).max(rtt * 3);
        Self { common: exchange::Config::USUAL, window, timeout }
    }
}

impl Parameters for Config {
    type Scheme = FixedWindow;

    const NAMES: &'static [&'static str] = &[Keys::ABOUT.name];
    const DATA_BYTES: u32 = size::WORDS; // on real hosts
    const CONTROL_BYTES: u32 = size::WORDS;
    const PACKETS_BACK: f64 = 1.0; // for each data packet: for estimates of cost

    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.common.patience / 16
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        self.common.check(&[("timeout", self.timeout > Span::ZERO)], &[])?;
        self.common.check_patience(self.timeout * 4, "4 timeouts")
    }
}

/// The state of a host: the messages that may send a packet, by packets left and age.
#[derive(Debug)]
pub struct FixedWindow {
    ready: Heap<(u32, u64)>,
}

/// The sender's state of a message, in packets.
#[derive(Debug)]
pub struct Outgoing {
    bytes: u32,
    packets: u32,
    acked: u32, // those below have arrived
    next: u32,
    sent_to: u32,
    window: u32,
    timeouts: u32, // since the last progress
    resend_at: Time,
    probe_at: Time,
    silent_since: Option<Time>, // when the first packet was sent that has no answer
}

impl Outgoing {
    fn sends(&mut self, now: Time, config: &Config) {
        self.silent_since.get_or_insert(now);
        self.probe_at = now + config.common.patience / 4;
    }
}

/// Puts a message in the heap of the messages that may send a packet, or removes it, and returns its deadline.
fn rank(slot: u32, message: Sending<'_, FixedWindow>) -> Time {
    let Sending { outgoing: out, scheme, .. } = message;
    if out.next < out.packets.min(out.acked + out.window) {
        scheme.ready.set(slot, (out.packets - out.acked, message.birth));
    } else {
        scheme.ready.remove(slot);
    }
    out.resend_at.min(out.probe_at)
}

fn on_data(host: &mut Driven<FixedWindow>, now: Time, packet: &Packet<Header>) -> Placement {
    let Some(place) = of_data(packet) else { return Placement::Discard };
    let gaps = host.config().common.max_gaps;
    let Some(arrival) = host.arrived(now, packet.src, &packet.header, place, gaps) else {
        return Placement::Discard;
    };
    let answer = match arrival.acknowledged {
        Some((next, _)) => Body::ToSender { tag: 0, words: [next, 0, 0, 0] },
        None => Body::Complete,
    };
    host.send_control(arrival.peer, arrival.id, arrival.one_way, answer);
    arrival.placement
}

fn on_ack(host: &mut Driven<FixedWindow>, now: Time, packet: &Packet<Header>, acked: u32) {
    let Some(slot) = host.outgoing_slot(packet.src, packet.header.id.get()) else { return };
    let Some(message) = host.sending(slot) else { return };
    let (out, config) = (&mut *message.outgoing, message.config);
    if acked > out.sent_to || acked >= out.packets {
        return; // forged: a receiver that has all of it says so otherwise
    }
    out.silent_since = None;
    // Less than before is late, or, after timeouts, of a receiver that has restarted.
    if acked > out.acked || (acked < out.acked && out.timeouts > 1) {
        out.window = (out.window + 1).min(config.window);
        (out.acked, out.next, out.timeouts) = (acked, out.next.max(acked), 0);
        out.resend_at = if out.next > acked { now + config.timeout } else { Time::MAX };
    }
    let deadline = rank(slot, message);
    host.wake(slot, deadline);
}

impl Scheme for FixedWindow {
    type Config = Config;
    type Header = Header;
    type Outgoing = Outgoing;
    type Incoming = Arriving;

    fn new(_: rackweave::core::HostId, _: &Config) -> Self {
        Self { ready: Heap::default() }
    }

    fn complete(_: &Header) -> Option<Body> {
        Some(Body::Complete)
    }

    fn outgoing(&mut self, _: Time, bytes: u32, _: Jitter, config: &Config) -> Outgoing {
        let (packets, window) = (config.common.packets(bytes), config.window);
        let (resend_at, probe_at, silent_since) = (Time::MAX, Time::MAX, None);
        let (acked, next, sent_to, timeouts) = (0, 0, 0, 0);
        Outgoing {
            bytes,
            packets,
            acked,
            next,
            sent_to,
            window,
            timeouts,
            resend_at,
            probe_at,
            silent_since,
        }
    }

    fn submitted(host: &mut Driven<Self>, _: Time, slot: u32) {
        host.sending(slot).map(|message| rank(slot, message));
    }

    fn on_packet(host: &mut Driven<Self>, now: Time, packet: &Packet<Header>) -> Placement {
        let (from, header) = (packet.src, &packet.header);
        match header.body {
            Body::Data { .. } => return on_data(host, now, packet),
            Body::ToSender { words: [acked, ..], .. } => on_ack(host, now, packet, acked),
            Body::ToReceiver { words: [bytes, ..], .. } => {
                if let Some((acked, _)) = host.probed(now, from, header, bytes) {
                    let answer = Body::ToSender { tag: 0, words: [acked, 0, 0, 0] };
                    host.send_control(from, header.id.get(), header.one_way, answer);
                }
            }
            _ => host.handle_common(now, from, header),
        }
        Placement::Discard
    }

    fn next_data(host: &mut Driven<Self>, now: Time) -> Option<Packet<Header>> {
        let (_, slot) = host.scheme().ready.first()?;
        let message = host.sending(slot)?;
        let (out, config) = (&mut *message.outgoing, message.config);
        let offset = out.next * config.common.max_payload;
        let len = config.common.max_payload.min(out.bytes - offset) as u16;
        message.recovery.retransmissions += u64::from(out.next < out.sent_to);
        out.next += 1;
        out.sent_to = out.sent_to.max(out.next);
        out.resend_at = out.resend_at.min(now + config.timeout);
        out.sends(now, config);
        let body = Body::Data { message_length: out.bytes, offset, len, tag: 0, words: [0; 2] };
        let header = Header { id: message.id, one_way: message.one_way, body };
        let (peer, bytes) = (message.peer, config.common.header_bytes + u32::from(len));
        let deadline = rank(slot, message);
        host.wake(slot, deadline);
        Some(host.packet(peer, bytes, 0, header))
    }

    fn sender_deadline(out: &Outgoing, _: &Config) -> Time {
        out.resend_at.min(out.probe_at)
    }

    fn receiver_deadline(&self, incoming: &Arriving, _: Time, config: &Config) -> Time {
        incoming.last_received() + config.common.patience
    }

    fn sender_due(host: &mut Driven<Self>, now: Time, slot: u32) {
        let Some(message) = host.sending(slot) else { return };
        let (out, config) = (&mut *message.outgoing, message.config);
        if out.silent_since.is_some_and(|since| now.since(since) >= config.common.patience) {
            return host.fail(now, slot, FailReason::PeerSilent);
        }
        if out.resend_at <= now {
            message.recovery.timeouts += 1;
            (out.next, out.window, out.timeouts) = (out.acked, 1, out.timeouts + 1);
            out.resend_at = Time::MAX;
        }
        let is_quiet = out.probe_at <= now;
        if is_quiet {
            out.sends(now, config);
        }
        let (peer, id, one_way, bytes) =
            (message.peer, message.id.get(), message.one_way, out.bytes);
        let deadline = rank(slot, message);
        host.wake(slot, deadline);
        if is_quiet {
            host.send_control(
                peer,
                id,
                one_way,
                Body::ToReceiver { tag: 0, words: [bytes, 0, 0, 0] },
            );
        }
    }

    fn leave_lists(&mut self, slot: u32) {
        self.ready.remove(slot);
    }
}

#[cfg(test)]
mod tests {
    use rackweave::transport::tests::external::{External, ExternalSubject};

    use super::*;

    type Subject = External<FixedWindow>;
    rackweave::transport::transport_suite!(Subject);

    impl ExternalSubject for FixedWindow {
        fn variants() -> Vec<Config> {
            let usual = Config::for_round_trip(Rate::from_gbps(10), Span::from_us(20));
            vec![usual.clone(), Config { window: 2, ..usual }]
        }

        fn for_round_trip(rtt: Span) -> Config {
            Config::for_round_trip(Rate::from_gbps(10), rtt)
        }
    }
}

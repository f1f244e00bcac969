//! All transports as one enum type, so that packets stay `Copy` and calls are dispatched statically.

use std::error::Error;
use std::sync::Arc;

use rackweave_core::carried::{Carried, Carrier};
use rackweave_core::telemetry::{Stack, Stamped};
use rackweave_core::{
    Event, Framing, HostId, MessageId, Node, Open, Packet, Placement, Rate, RecoveryCounters,
    Refused, RoundTrip, Span, Submit, Time, Transport,
};
use rackweave_wire::Header;
use rackweave_wire::homa::Layout;

use crate::profile::{Control, Profile, Surroundings};

/// Defines the enums over all transports in [`rackweave_wire::transports!`]. Each transport is a module with a
/// `Config`, which implements [`Profile`], and a `Host`.
macro_rules! define_transports {
    ($($(#[$doc:meta])* $variant:ident => $module:ident,)+) => {
        /// A transport and its parameters, which hosts share.
        #[derive(Clone, Debug, PartialEq)]
        pub enum TransportConfig {
            $($(#[$doc])* $variant(Arc<crate::$module::Config>),)+
        }

        $(impl From<crate::$module::Config> for TransportConfig {
            fn from(config: crate::$module::Config) -> Self {
                Self::$variant(Arc::new(config))
            }
        })+

        /// One host's instance of any transport.
        #[derive(Debug)]
        #[repr(u64)]
        pub enum Machine {
            $($(#[$doc])* $variant(crate::$module::Host),)+
        }

        /// Evaluates an expression for the configuration of any variant.
        macro_rules! for_config {
            ($self:expr, $config:ident => $value:expr) => {
                match $self {
                    $(TransportConfig::$variant($config) => $value,)+
                }
            };
        }

        /// Evaluates an expression for the machine of any variant.
        macro_rules! delegate {
            ($self:expr, $machine:ident => $value:expr) => {
                match $self {
                    $(Machine::$variant($machine) => $value,)+
                }
            };
        }

        impl TransportConfig {
            /// The names of all transports. Each is the [`TransportConfig::name`] of some parameters.
            pub fn names() -> impl Iterator<Item = &'static str> {
                [$(<crate::$module::Config as Profile>::NAMES),+].into_iter().flatten().copied()
            }

            /// Parameters of every transport, for tests and fuzzing; see [`Profile::examples`].
            #[cfg(any(test, feature = "testkit"))]
            #[must_use]
            pub fn examples(link: Rate) -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend(<crate::$module::Config as Profile>::examples(link).into_iter().map(Self::from));)+
                all
            }

            /// Creates the state machine of this transport at a host.
            #[must_use]
            pub fn machine(&self, host: HostId) -> Machine {
                match self {
                    $(Self::$variant(config) => {
                        Machine::$variant(Profile::host(Arc::clone(config), host))
                    })+
                }
            }
        }

        impl Machine {
            #[inline]
            fn handle(&mut self, now: Time, port: u8, packet: &Packet<Header>) -> Placement {
                match (self, packet.header) {
                    $((Self::$variant(machine), Header::$variant(header)) => {
                        machine.handle_packet(now, port, &packet.map(|_| header.into()))
                    })+
                    // A packet of another transport at this one's port.
                    _ => Placement::Discard,
                }
            }

            #[inline]
            fn read_ahead(&self, packet: &Packet<Header>) {
                match (self, packet.header) {
                    $((Self::$variant(machine), Header::$variant(header)) => {
                        machine.prefetch_for(&packet.map(|_| header.into()));
                    })+
                    _ => {}
                }
            }
        }
    };
}
rackweave_wire::transports!(define_transports);

impl TransportConfig {
    /// The name of the transport in scenarios and results; see [`Profile::name`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        for_config!(self, config => config.name())
    }

    /// Checks whether the state machine can run with these parameters.
    ///
    /// # Errors
    /// See [`Profile::check`].
    pub fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        for_config!(self, config => Ok(Profile::check(&**config)?))
    }

    /// How messages are divided into packets.
    #[must_use]
    pub fn framing(&self) -> Framing {
        for_config!(self, config => Profile::framing(&**config))
    }

    /// The packets other than data of a message of this length; see [`Profile::control`].
    #[must_use]
    pub fn control(&self, bytes: u64, at: &Surroundings) -> Control {
        for_config!(self, config => config.control(bytes, at))
    }

    /// The number of packets of a message of this length in both directions, if none is lost: an estimate.
    #[must_use]
    pub fn packets_of(&self, bytes: u64, at: &Surroundings) -> f64 {
        let Control { there, back, .. } = self.control(bytes, at);
        bytes.div_ceil(u64::from(self.framing().max_payload)).max(1) as f64 + there + back
    }

    /// The bytes on the link of a message of this length, and those of the packets that its receiver sends back, if none is lost:
    /// an estimate.
    #[must_use]
    pub fn wire_bytes_of(&self, bytes: u64, at: &Surroundings) -> [f64; 2] {
        let Control { there, back, wire_bytes } = self.control(bytes, at);
        let data = self.framing().message_wire_bytes(bytes) as f64;
        [data + there * f64::from(wire_bytes), back * f64::from(wire_bytes)]
    }

    /// The bytes on the link of what a receiver sends back for a message, if the loads in the transport's paper count them
    /// ([`Profile::counts_feedback`]), and otherwise 0.
    #[must_use]
    pub fn counted_feedback(&self, bytes: u64, link: Rate) -> f64 {
        let alone = Surroundings::alone(link, Span::ZERO);
        let counts = for_config!(self, config => config.counts_feedback());
        if counts { self.wire_bytes_of(bytes, &alone)[1] } else { 0.0 }
    }

    /// The length of the longest message; see [`Profile::max_message_bytes`].
    #[must_use]
    pub fn max_message_bytes(&self) -> u64 {
        for_config!(self, config => Profile::max_message_bytes(&**config))
    }

    /// Whether the transport has streams.
    #[must_use]
    pub fn has_streams(&self) -> bool {
        for_config!(self, config => config.has_streams())
    }

    /// Whether the transport needs switches that write into its packets; see [`Profile::reads_stamps`].
    #[must_use]
    pub fn reads_stamps(&self) -> bool {
        for_config!(self, config => Profile::reads_stamps(&**config))
    }

    /// When messages are lost, if the transport repairs nothing; see [`Profile::lost_after`].
    #[must_use]
    pub fn lost_after(&self) -> Option<Span> {
        for_config!(self, config => config.lost_after())
    }

    /// The same transport inside UDP datagrams; see [`Profile::over_udp`].
    #[must_use]
    pub fn over_udp(&self) -> Self {
        for_config!(self, config => Profile::over_udp(config.as_ref().clone()).into())
    }

    /// How long messages wait for a silent peer; see [`Profile::patience`].
    #[must_use]
    pub fn patience(&self) -> Span {
        for_config!(self, config => Profile::patience(&**config))
    }

    /// The same transport with a longer timeout for silent peers; see [`Profile::patient`].
    #[must_use]
    pub fn patient(&self, at_least: Span) -> Self {
        for_config!(self, config => Profile::patient(config.as_ref().clone(), at_least).into())
    }

    /// The wire layout of Homa's headers. Other transports ignore it.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Self::Homa(config) => config.layout(),
            _ => Layout::default(),
        }
    }
}

impl Node for Machine {
    type Header = Header;
    type Event = Event;
    type Placement = Placement;

    #[inline]
    fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) -> Placement {
        self.handle(now, port, packet)
    }

    #[inline]
    fn handle_timeout(&mut self, now: Time) {
        delegate!(self, machine => machine.handle_timeout(now));
    }

    #[inline]
    fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        delegate!(self, machine => {
            machine.poll_transmit(now, port).map(|packet| packet.map(Header::from))
        })
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        delegate!(self, machine => machine.poll_timeout())
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        delegate!(self, machine => machine.poll_event())
    }

    #[inline]
    fn prefetch(&self) {
        delegate!(self, machine => machine.prefetch());
    }

    #[inline]
    fn prefetch_transmit(&self) {
        delegate!(self, machine => machine.prefetch_transmit());
    }

    #[inline]
    fn prefetch_for(&self, packet: &Packet<Header>) {
        self.read_ahead(packet);
    }
}

impl Transport for Machine {
    fn submit(&mut self, now: Time, message: Submit) -> Result<(), Refused> {
        delegate!(self, machine => machine.submit(now, message))
    }

    fn cancel(&mut self, now: Time, peer: HostId, id: MessageId) {
        delegate!(self, machine => machine.cancel(now, peer, id));
    }

    fn is_arriving(&self, peer: HostId, id: MessageId) -> bool {
        delegate!(self, machine => machine.is_arriving(peer, id))
    }

    fn is_leaving(&self, peer: HostId, id: MessageId) -> bool {
        delegate!(self, machine => machine.is_leaving(peer, id))
    }

    fn poll_left(&mut self) -> Option<(HostId, MessageId)> {
        delegate!(self, machine => machine.poll_left())
    }

    #[inline]
    fn arrived_until(&mut self, at: Time) {
        delegate!(self, machine => machine.arrived_until(at));
    }

    fn framing(&self) -> Framing {
        delegate!(self, machine => machine.framing())
    }

    fn open(&mut self, now: Time, stream: Open) -> Result<(), Refused> {
        delegate!(self, machine => machine.open(now, stream))
    }

    fn write(
        &mut self,
        now: Time,
        peer: HostId,
        id: MessageId,
        bytes: u64,
        end: bool,
    ) -> Result<(), Refused> {
        delegate!(self, machine => machine.write(now, peer, id, bytes, end))
    }

    fn consume(&mut self, now: Time, peer: HostId, id: MessageId, bytes: u64) {
        delegate!(self, machine => machine.consume(now, peer, id, bytes));
    }

    fn peer_restarted(&mut self, now: Time, peer: HostId) {
        delegate!(self, machine => machine.peer_restarted(now, peer));
    }

    fn round_trips(&self) -> Vec<RoundTrip> {
        delegate!(self, machine => machine.round_trips())
    }

    fn not_admitted(&self) -> u64 {
        delegate!(self, machine => machine.not_admitted())
    }

    fn recovery_counters(&self) -> RecoveryCounters {
        delegate!(self, machine => machine.recovery_counters())
    }
}

/// The packets of a [`Machine`] on a network whose switches write into packets with room.
#[derive(Debug)]
pub struct Stamping(core::convert::Infallible);

impl Carrier<Machine> for Stamping {
    type Header = Stamped<Header>;

    #[inline]
    fn handle_packet(
        machine: &mut Machine,
        now: Time,
        port: u8,
        packet: &Packet<Self::Header>,
    ) -> Placement {
        let Stamped { header, stack, .. } = packet.header;
        match (machine, header) {
            (Machine::Hpcc(machine), Header::Hpcc(header)) => {
                machine.handle_packet(now, port, &packet.map(|_| header.with_stack(stack)))
            }
            (machine, header) => machine.handle(now, port, &packet.map(|_| header)),
        }
    }

    #[inline]
    fn poll_transmit(machine: &mut Machine, now: Time, port: u8) -> Option<Packet<Self::Header>> {
        if let Machine::Hpcc(machine) = machine {
            return Some(machine.poll_transmit(now, port)?.map(Stamped::from));
        }
        let (stack, collects) = (Stack::default(), false);
        Some(machine.poll_transmit(now, port)?.map(|header| Stamped { header, stack, collects }))
    }
}

/// A [`Machine`] on a network whose switches write into packets, which transports need that
/// [read stamps](TransportConfig::reads_stamps).
pub type StampedMachine = Carried<Machine, Stamping>;

#[cfg(test)]
mod tests {
    use rackweave_core::frame::{self, MTU};

    use super::*;

    #[test]
    fn each_name_has_an_example() {
        let examples = TransportConfig::examples(Rate::from_gbps(1));
        for name in TransportConfig::names() {
            assert!(examples.iter().any(|config| config.name() == name), "{name}");
        }
        assert!(examples.iter().all(|config| config.check().is_ok()));
    }

    #[test]
    fn a_full_packet_is_a_full_frame_with_every_transport() {
        for config in TransportConfig::examples(Rate::from_gbps(1)) {
            let framing = config.over_udp().framing();
            assert_eq!(framing.packet_wire_bytes(framing.max_payload), frame::wire_bytes(MTU));
            assert_eq!(config.over_udp(), config.over_udp().over_udp(), "once is enough");
            assert!(framing.header_bytes > config.framing().header_bytes);
        }
    }
}

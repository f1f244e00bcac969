//! The parameters of the transports on [`Driven`], as its host and all drivers see them.

use core::fmt::Debug;
use std::sync::Arc;

#[cfg(any(test, feature = "testkit"))]
use rackweave_core::Rate;
use rackweave_core::{Framing, HostId, Span, frame};

use super::{Driven, Scheme};
use crate::exchange::{Config, InvalidConfig};
use crate::profile::{Control, Profile, Surroundings, UDP_FRONT};

/// The most finished exchanges that a host remembers because its patience was raised: 48 MB, and more than a million
/// exchanges a second with patience of two seconds. The value is our choice.
const MAX_FINISHED: u32 = 1 << 22;

/// The parameters of a transport on [`Driven`]; [`Profile`] follows from them.
pub trait Parameters: Debug + Clone {
    /// The transport.
    type Scheme: Scheme<Config = Self>;

    /// Its name; see [`Profile::NAMES`].
    const NAMES: &'static [&'static str];
    /// Size of a data packet's header (`rackweave_wire`).
    const DATA_BYTES: u32;
    /// Size of the longest other packet.
    const CONTROL_BYTES: u32;
    /// See [`Profile::counts_feedback`].
    const COUNTS_FEEDBACK: bool = false;

    /// See [`Profile::reads_stamps`].
    const READS_STAMPS: bool = false;

    /// What it has in common with the others.
    fn common(&self) -> &Config;

    /// The same, for changes.
    fn common_mut(&mut self) -> &mut Config;

    /// Interval at which a client that awaits its response asks the server for it.
    fn ask_interval(&self) -> Span;

    /// The packets other than data that the sender and the receiver of a message of `bytes`, which has `packets`, send for it; see
    /// [`Control`].
    fn control_packets(&self, bytes: f64, packets: f64, at: &Surroundings) -> [f64; 2];

    /// Checks whether the state machine can run with these parameters.
    fn validate(&self) -> Result<(), InvalidConfig>;

    /// See [`Profile::examples`].
    #[cfg(any(test, feature = "testkit"))]
    fn examples(_link: Rate) -> Vec<Self> {
        Vec::new()
    }
}

impl<P: Parameters> Profile for P {
    type Host = Driven<P::Scheme>;
    type Error = InvalidConfig;

    const NAMES: &'static [&'static str] = P::NAMES;

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        P::examples(link)
    }

    fn host(self: Arc<Self>, id: HostId) -> Self::Host {
        Driven::new(id, self)
    }

    fn check(&self) -> Result<(), InvalidConfig> {
        self.validate()
    }

    fn framing(&self) -> Framing {
        self.common().framing()
    }

    fn max_message_bytes(&self) -> u64 {
        u64::from(self.common().max_message_bytes)
    }

    fn control(&self, bytes: u64, at: &Surroundings) -> Control {
        let packets = bytes.div_ceil(u64::from(self.common().max_payload)).max(1);
        let [there, back] = self.control_packets(bytes as f64, packets as f64, at);
        Control { there, back, wire_bytes: frame::wire_bytes(self.common().control_bytes) }
    }

    fn counts_feedback(&self) -> bool {
        P::COUNTS_FEEDBACK
    }

    fn reads_stamps(&self) -> bool {
        P::READS_STAMPS
    }

    fn over_udp(mut self) -> Self {
        let common = self.common_mut();
        common.header_bytes = UDP_FRONT + P::DATA_BYTES;
        common.control_bytes = UDP_FRONT + P::CONTROL_BYTES;
        common.max_payload = frame::MTU - common.header_bytes;
        self
    }

    fn patience(&self) -> Span {
        self.common().patience
    }

    fn patient(mut self, at_least: Span) -> Self {
        let common = self.common_mut();
        if common.patience < at_least {
            let before = common.finished_for.ticks();
            let margin = before.saturating_sub(common.patience.ticks());
            common.patience = at_least;
            common.finished_for = Span::from_ticks(at_least.ticks().saturating_add(margin));
            // At `max_finished` no new exchange starts: it grows with the time, so that the rate of exchanges does not fall.
            let times = common.finished_for.ticks().div_ceil(before.max(1));
            let finished = u64::from(common.max_finished).saturating_mul(times);
            let most = MAX_FINISHED.max(common.max_finished);
            common.max_finished = finished.min(u64::from(most)) as u32;
        }
        self
    }
}

//! Parameters that the transports on [`Driven`](super::Driven) have in common.

use rackweave_core::{Framing, Span};

/// Access to the parameters of a transport on [`Driven`](super::Driven).
pub trait Parameters: core::fmt::Debug + Clone {
    /// The parameters that all of these transports have.
    fn shared(&self) -> Shared;

    /// Mutable access to the bounds of its memory, which tests lower.
    #[cfg(test)]
    fn bounds(&mut self) -> Bounds<'_>;
}

/// The bounds of a host's memory, as references into a configuration.
#[cfg(test)]
#[derive(Debug)]
pub struct Bounds<'a> {
    pub(crate) max_message_bytes: &'a mut u32,
    pub(crate) max_exchanges: &'a mut u32,
    pub(crate) max_finished: &'a mut u32,
    pub(crate) max_control: &'a mut u32,
    pub(crate) max_gaps: &'a mut u16,
}

/// Parameters that each of these transports has under these names. Its configuration documents them.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "each configuration describes them")]
pub struct Shared {
    pub max_payload: u32,
    pub header_bytes: u32,
    pub control_bytes: u32,
    pub spray: bool,
    pub control_priority: u8,
    pub patience: Span,
    /// Interval at which a client that awaits its response asks the server for it.
    pub ask_interval: Span,
    pub max_message_bytes: u32,
    pub max_exchanges: u32,
    pub max_finished: u32,
    pub finished_for: Span,
    pub max_control: u32,
}

impl Shared {
    /// How messages are divided into packets.
    #[must_use]
    #[inline]
    pub const fn framing(&self) -> Framing {
        Framing {
            max_payload: self.max_payload,
            header_bytes: self.header_bytes,
            spray_above_bytes: if self.spray { 0 } else { u32::MAX },
        }
    }

    /// Whether `len` bytes at `offset` are exactly one packet of a message of this length.
    #[inline]
    pub(crate) fn is_packet(&self, message_length: u32, offset: u32, len: u16) -> bool {
        offset.is_multiple_of(self.max_payload)
            && offset < message_length
            && u32::from(len) == self.max_payload.min(message_length - offset)
            && message_length <= self.max_message_bytes
    }
}

/// Implements [`Parameters`] and [`crate::Profile`] for a configuration with fields of the names above (and `max_gaps`, also if its
/// transport keeps nothing out of order), and the methods that follow from these fields. `header_bytes` is the size of the data packet's wire header,
/// `control_bytes` that of the longest other packet; `free_packets` and `packets_back` are those of
/// [`crate::profile::Feedback`]. `counts_packets_back_of` names the field with their size if loads count them
/// ([`crate::Profile::counted_feedback`]). The module must define an `InvalidConfig` with the variants `Zero`, `TooLong`,
/// `Priority` and `FinishedFor`.
macro_rules! shared_parameters {
    (
        $config:ty,
        name: $name:literal,
        example: |$link:ident| $($example:expr);+,
        ask_interval: $ask_interval:ident,
        free_packets: [$($free_packets:ident)?],
        packets_back: $packets_back:literal,
        $(counts_packets_back_of: $counted:ident,)?
        priorities: [$($priority:ident),+],
        header_bytes: $header_bytes:expr,
        control_bytes: $control_bytes:expr,
    ) => {
        impl $crate::profile::Profile for $config {
            type Host = super::Host;
            type Error = InvalidConfig;

            const NAMES: &'static [&'static str] = &[$name];

            #[cfg(any(test, feature = "testkit"))]
            fn examples($link: rackweave_core::Rate) -> Vec<Self> {
                vec![$($example),+]
            }

            fn check(&self) -> Result<(), InvalidConfig> {
                self.check()
            }

            fn framing(&self) -> rackweave_core::Framing {
                self.framing()
            }

            fn max_message_bytes(&self) -> u64 {
                u64::from(self.max_message_bytes)
            }

            fn feedback(&self) -> $crate::profile::Feedback {
                let free_packets = u64::from(0_u16 $(+ self.$free_packets)?);
                let free_bytes = free_packets * u64::from(self.max_payload);
                $crate::profile::Feedback { free_bytes, packets: $packets_back }
            }

            $(fn counted_feedback(&self) -> Option<$crate::profile::CountedFeedback> {
                Some($crate::profile::CountedFeedback {
                    free_bytes: self.feedback().free_bytes,
                    bytes_per_packet: u64::from(self.max_payload),
                    wire_bytes: rackweave_core::frame::wire_bytes(self.$counted),
                })
            })?

            fn over_udp(mut self) -> Self {
                self.header_bytes = $crate::profile::UDP_FRONT + $header_bytes;
                self.control_bytes = $crate::profile::UDP_FRONT + $control_bytes;
                self.max_payload = rackweave_core::frame::MTU - self.header_bytes;
                self
            }

            fn patient(mut self, at_least: Span) -> Self {
                if self.patience < at_least {
                    let before = self.finished_for.ticks();
                    let margin = before.saturating_sub(self.patience.ticks());
                    self.patience = at_least;
                    self.finished_for = Span::from_ticks(at_least.ticks().saturating_add(margin));
                    // At `max_finished` no new exchange starts: it grows with the time, so that the rate of exchanges does not fall.
                    let times = self.finished_for.ticks().div_ceil(before.max(1));
                    let finished = u64::from(self.max_finished).saturating_mul(times);
                    let most = $crate::common::MAX_FINISHED.max(self.max_finished);
                    self.max_finished = finished.min(u64::from(most)) as u32;
                }
                self
            }
        }

        impl $crate::common::Parameters for $config {
            #[inline]
            fn shared(&self) -> $crate::common::Shared {
                self.shared_parameters()
            }

            #[cfg(test)]
            fn bounds(&mut self) -> $crate::common::Bounds<'_> {
                $crate::common::Bounds {
                    max_message_bytes: &mut self.max_message_bytes,
                    max_exchanges: &mut self.max_exchanges,
                    max_finished: &mut self.max_finished,
                    max_control: &mut self.max_control,
                    max_gaps: &mut self.max_gaps,
                }
            }
        }

        impl $config {
            #[inline]
            const fn shared_parameters(&self) -> $crate::common::Shared {
                $crate::common::Shared {
                    max_payload: self.max_payload,
                    header_bytes: self.header_bytes,
                    control_bytes: self.control_bytes,
                    spray: self.spray,
                    control_priority: self.control_priority,
                    patience: self.patience,
                    ask_interval: self.$ask_interval,
                    max_message_bytes: self.max_message_bytes,
                    max_exchanges: self.max_exchanges,
                    max_finished: self.max_finished,
                    finished_for: self.finished_for,
                    max_control: self.max_control,
                }
            }

            /// How messages are divided into packets.
            #[must_use]
            pub const fn framing(&self) -> rackweave_core::Framing {
                self.shared_parameters().framing()
            }

            /// Number of packets of a message of this length.
            pub(super) const fn packets(&self, bytes: u32) -> u32 {
                bytes.div_ceil(self.max_payload)
            }

            /// Checks the rules that all configurations share, and that each value in `own` is above zero
            /// (`true`).
            fn check_shared(&self, own: &[(&'static str, bool)]) -> Result<(), InvalidConfig> {
                let shared = [
                    ("max_payload", self.max_payload > 0),
                    ("max_message_bytes", self.max_message_bytes > 0),
                    ("max_exchanges", self.max_exchanges > 0),
                    ("max_finished", self.max_finished > 0),
                    ("max_control", self.max_control > 0),
                    ("max_gaps", self.max_gaps > 0),
                ];
                if let Some((name, _)) = own.iter().chain(&shared).find(|(_, positive)| !positive) {
                    return Err(InvalidConfig::Zero(name));
                }
                let data = self.max_payload.saturating_add(self.header_bytes);
                let longest = data.max(self.control_bytes);
                if longest > 65_000 {
                    return Err(InvalidConfig::TooLong(longest));
                }
                let priority = [$(self.$priority),+].into_iter().max().unwrap_or(0);
                if priority > 7 {
                    return Err(InvalidConfig::Priority(priority));
                }
                if self.finished_for <= self.patience {
                    return Err(InvalidConfig::FinishedFor(self.patience));
                }
                Ok(())
            }
        }
    };
}
pub(crate) use shared_parameters;

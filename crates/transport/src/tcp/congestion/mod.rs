//! Congestion control: how many bytes may be under way, and how fast they leave.
//!
//! A [`Controller`] learns what is sent, acknowledged, lost and marked, and answers with a window and, if it
//! paces, a rate. The interface is quinn's (`quinn-proto`, `congestion.rs`). What is lost, and which bytes go
//! next, is the sender's business. [`Congestion`] holds the controllers as an enum: one call for each
//! acknowledgement is no place for a virtual one.

mod cubic;
mod dctcp;
mod new_reno;

use rackweave_core::{Rate, Span, Time};

use super::config::{Config, CongestionControl};
use cubic::Cubic;
use dctcp::Dctcp;
use new_reno::NewReno;

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckInfo {
    pub(super) now: Time,
    /// When the newest segment that it newly acknowledges was sent. `None` if all of them were sent more
    /// than once (Karn), or if the controller does not use delays.
    pub(super) sent: Option<Time>,
    /// Bytes that are newly known to have arrived, cumulatively or selectively.
    pub(super) delivered: u64,
    /// Bytes that are newly acknowledged cumulatively.
    pub(super) acked: u64,
    /// It reports congestion marks (ECE).
    pub(super) marked: bool,
    /// Bytes under way before it.
    pub(super) in_flight: u64,
    /// What it acknowledges was not sent at the limit of the window: more could have been.
    pub(super) app_limited: bool,
    /// The smoothed round-trip time.
    pub(super) rtt: Span,
    /// The stream is acknowledged below this position,
    pub(super) una: u64,
    /// and sent below this one.
    pub(super) nxt: u64,
}

impl AckInfo {
    /// The round-trip time of the newest segment that it acknowledges: network, peer, and the time by which
    /// the peer delayed its acknowledgement.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for delay-based controllers; tests have one")
    )]
    pub(super) fn delay(&self) -> Option<Span> {
        self.sent.map(|sent| self.now.since(sent))
    }
}

/// A sign of congestion. The sender raises at most one in a window of data, timeouts excepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct CongestionEvent {
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for delay-based controllers; tests have one")
    )]
    pub(super) now: Time,
    pub(super) kind: CongestionKind,
    /// Bytes under way.
    pub(super) in_flight: u64,
}

/// What the sign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CongestionKind {
    /// Segments were lost, and acknowledgements still arrive.
    Loss,
    /// The retransmission timer ran out.
    Timeout,
    /// It ran out again for the same data.
    RepeatedTimeout,
    /// The network marked packets (ECN).
    Mark,
}

/// A congestion control algorithm.
pub(super) trait Controller {
    /// `bytes` were sent, for the first time or again.
    fn on_sent(&mut self, _now: Time, _bytes: u64) {}

    /// An acknowledgement arrived. Comes before the congestion event that it may give rise to.
    fn on_ack(&mut self, _ack: &AckInfo) {}

    /// An acknowledgement that moved the left edge is dealt with, and the connection is neither in fast
    /// recovery nor in the window that a congestion event has reduced: the window may grow.
    fn on_end_acks(&mut self, _ack: &AckInfo) {}

    /// The network is congested.
    fn on_congestion_event(&mut self, event: &CongestionEvent);

    /// Nothing was under way for `idle` when the next segment is to be sent.
    fn on_idle(&mut self, _idle: Span, _rto: Span) {}

    /// Bytes that may be under way. Below a segment, one segment may be, at the pacing rate.
    fn window(&self) -> u64;

    /// The rate at which segments leave; `None`: as fast as the window and the link allow.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }

    /// Whether the sender is to keep the times at which segments were sent, for [`AckInfo::sent`].
    fn uses_delay(&self) -> bool {
        false
    }
}

/// The controller of one connection.
#[derive(Clone, Debug)]
pub(super) enum Congestion {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
    #[cfg(test)]
    Delay(super::tests::delay::DelayBased),
}

/// Calls the controller that there is.
macro_rules! delegate {
    ($congestion:expr, $controller:ident => $call:expr) => {
        match $congestion {
            Congestion::NewReno($controller) => $call,
            Congestion::Cubic($controller) => $call,
            Congestion::Dctcp($controller) => $call,
            #[cfg(test)]
            Congestion::Delay($controller) => $call,
        }
    };
}

impl Congestion {
    pub(super) fn new(config: &Config) -> Self {
        match config.congestion_control {
            CongestionControl::NewReno => Self::NewReno(NewReno::new(config)),
            CongestionControl::Cubic => Self::Cubic(Cubic::new(config)),
            CongestionControl::Dctcp => Self::Dctcp(Dctcp::new(config)),
            #[cfg(test)]
            CongestionControl::Delay { target } => {
                Self::Delay(super::tests::delay::DelayBased::new(config, target))
            }
        }
    }

    /// DCTCP's estimate of the marked share, in 1/1024.
    #[cfg(test)]
    pub(super) fn alpha(&self) -> Option<u64> {
        match self {
            Self::Dctcp(dctcp) => Some(dctcp.alpha()),
            _ => None,
        }
    }
}

impl Controller for Congestion {
    #[inline]
    fn on_sent(&mut self, now: Time, bytes: u64) {
        delegate!(self, controller => controller.on_sent(now, bytes));
    }
    #[inline]
    fn on_ack(&mut self, ack: &AckInfo) {
        delegate!(self, controller => controller.on_ack(ack));
    }
    #[inline]
    fn on_end_acks(&mut self, ack: &AckInfo) {
        delegate!(self, controller => controller.on_end_acks(ack));
    }
    fn on_congestion_event(&mut self, event: &CongestionEvent) {
        delegate!(self, controller => controller.on_congestion_event(event));
    }
    fn on_idle(&mut self, idle: Span, rto: Span) {
        delegate!(self, controller => controller.on_idle(idle, rto));
    }
    #[inline]
    fn window(&self) -> u64 {
        delegate!(self, controller => controller.window())
    }
    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        delegate!(self, controller => controller.pacing_rate())
    }
    #[inline]
    fn uses_delay(&self) -> bool {
        delegate!(self, controller => controller.uses_delay())
    }
}

#[cfg(test)]
impl AckInfo {
    /// An acknowledgement of `acked` bytes that were sent at the limit of the window.
    fn of(acked: u64) -> Self {
        Self {
            now: Time::ZERO,
            sent: None,
            delivered: acked,
            acked,
            marked: false,
            in_flight: 0,
            app_limited: false,
            rtt: Span::from_us(10),
            una: 0,
            nxt: 0,
        }
    }
}

#[cfg(test)]
impl CongestionEvent {
    fn of(kind: CongestionKind, in_flight: u64) -> Self {
        Self { now: Time::ZERO, kind, in_flight }
    }
}

//! Congestion control: how many bytes may be in flight, and how fast they are sent.
//!
//! A [`Controller`] is notified of sent, acknowledged, lost and marked bytes, and determines a window and, if
//! it paces, a rate. The interface follows quinn's (`quinn-proto`, `congestion.rs`). The sender decides which
//! bytes are lost and which are sent next. [`Congestion`] holds the controllers as an enum, because a virtual
//! call per acknowledgement would cost time.

mod cubic;
mod dctcp;
mod external;
mod hystart;
mod new_reno;

use rackweave_core::{Rate, Span, Time};

use super::config::{Config, CongestionControl};
use cubic::Cubic;
use dctcp::Dctcp;
pub use external::External;
use new_reno::NewReno;

/// The content of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct AckInfo {
    /// The time.
    pub now: Time,
    /// When the newest segment that it newly acknowledges was sent. `None` if all of them were retransmitted
    /// (Karn's algorithm).
    pub sent: Option<Time>,
    /// Number of bytes that are newly known to have arrived, cumulatively or selectively.
    pub delivered: u64,
    /// Number of bytes that are newly acknowledged cumulatively.
    pub acked: u64,
    /// Whether it reports congestion marks (ECE).
    pub marked: bool,
    /// Bytes in flight before it.
    pub in_flight: u64,
    /// Whether the bytes that it acknowledges were sent below the limit of the window.
    pub app_limited: bool,
    /// The smoothed round-trip time.
    pub rtt: Span,
    /// The position below which the stream is acknowledged.
    pub una: u64,
    /// The position below which the stream was sent.
    pub nxt: u64,
}

impl AckInfo {
    /// An unmarked acknowledgement of `acked` bytes that were sent at the limit of the window, for tests of controllers: at time 0, with
    /// a round trip of 10 us.
    #[must_use]
    pub const fn of(acked: u64) -> Self {
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

    /// The round-trip time of the newest segment that it acknowledges, which includes the peer's delay of the
    /// acknowledgement.
    #[must_use]
    pub fn delay(&self) -> Option<Span> {
        self.sent.map(|sent| self.now.since(sent))
    }
}

/// A sign of congestion. The sender reports at most one per window of data, except for timeouts.
#[derive(Clone, Copy, Debug)]
pub struct CongestionEvent {
    /// The time.
    pub now: Time,
    /// What happened.
    pub kind: CongestionKind,
    /// Bytes in flight.
    pub in_flight: u64,
}

/// The kind of a congestion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionKind {
    /// Segments were lost, and acknowledgements still arrive.
    Loss,
    /// The retransmission timer has expired.
    Timeout,
    /// The retransmission timer has expired repeatedly for the same data.
    RepeatedTimeout,
    /// The network has marked packets (ECN).
    Mark,
}

/// A congestion control algorithm.
pub trait Controller {
    /// Called before the first segment of a connection, whose controller is a copy of [`External`]'s: full segments have `mss` bytes.
    fn start(&mut self, _mss: u64, _initial_window: u64) {}

    /// Called when `bytes` were sent, for the first time or as a retransmission.
    fn on_sent(&mut self, _now: Time, _bytes: u64) {}

    /// Called for each acknowledgement, before the congestion event that it may cause.
    fn on_ack(&mut self, _ack: &AckInfo) {}

    /// Called after an acknowledgement that moved the left edge, if the window may grow: outside of fast
    /// recovery and of the window that a congestion event has reduced.
    fn on_end_acks(&mut self, _ack: &AckInfo) {}

    /// Called when the network is congested.
    fn on_congestion_event(&mut self, event: &CongestionEvent);

    /// Called when the last congestion event, or several since the last progress, turn out to have been none: the state
    /// before is restored.
    fn on_spurious_congestion(&mut self) {}

    /// Called before the next segment is sent, if nothing was in flight for `idle`. The window decays if that is longer
    /// than `restart`.
    fn on_idle(&mut self, _now: Time, _idle: Span, _restart: Option<Span>) {}

    /// Maximum number of bytes in flight. Below one segment, a single segment may be in flight, at the pacing
    /// rate.
    fn window(&self) -> u64;

    /// The pacing rate; `None` if segments are sent as fast as the window and the link permit.
    fn pacing_rate(&self) -> Option<Rate> {
        None
    }
}

/// The controller of one connection.
#[derive(Clone, Debug)]
pub(super) enum Congestion {
    NewReno(NewReno),
    Cubic(Cubic),
    Dctcp(Dctcp),
    External(external::Boxed),
}

/// Calls a method of the current controller.
macro_rules! delegate {
    ($congestion:expr, $controller:ident => $call:expr) => {
        match $congestion {
            Congestion::NewReno($controller) => $call,
            Congestion::Cubic($controller) => $call,
            Congestion::Dctcp($controller) => $call,
            Congestion::External($controller) => $call,
        }
    };
}

impl Congestion {
    pub(super) fn new(config: &Config) -> Self {
        match &config.congestion_control {
            CongestionControl::NewReno => Self::NewReno(NewReno::new(config)),
            CongestionControl::Cubic => Self::Cubic(Cubic::new(config)),
            CongestionControl::Dctcp => Self::Dctcp(Dctcp::new(config)),
            CongestionControl::External(control) => {
                Self::External(control.start(config.segment_bytes(), config.initial_window()))
            }
        }
    }

    /// DCTCP's estimate of the marked share, in 1/1024; `None` for other controllers.
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
    fn on_spurious_congestion(&mut self) {
        delegate!(self, controller => controller.on_spurious_congestion());
    }
    fn on_idle(&mut self, now: Time, idle: Span, restart: Option<Span>) {
        delegate!(self, controller => controller.on_idle(now, idle, restart));
    }
    #[inline]
    fn window(&self) -> u64 {
        delegate!(self, controller => controller.window())
    }
    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        delegate!(self, controller => controller.pacing_rate())
    }
}

#[cfg(test)]
impl CongestionEvent {
    fn of(kind: CongestionKind, in_flight: u64) -> Self {
        Self { now: Time::ZERO, kind, in_flight }
    }
}

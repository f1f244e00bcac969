//! The parameters, and the two profiles.

use rackweave_core::{Framing, Span};
use rackweave_wire::tcp::WINDOW_SHIFT;

/// Which rule moves the congestion window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// Reno's additive increase and halving (RFC 5681), with the recovery that
    /// [`Config::sack`] selects.
    NewReno,
    /// CUBIC (RFC 9438): Linux's default.
    Cubic,
    /// DCTCP (RFC 8257): the cut follows the share of marked bytes.
    Dctcp,
    /// The tests' controller of delay.
    #[cfg(test)]
    #[allow(missing_docs, reason = "for tests")]
    Delay { target: Span },
}

/// TCP's parameters. [`Config::tcp`] and [`Config::dctcp`] are the profiles to start from.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The rule of the window.
    pub congestion_control: CongestionControl,
    /// Bytes of a full segment.
    pub mss: u32,
    /// IP and TCP header together. The mapping to messages is not counted: it stands for framing
    /// that applications write into the stream.
    pub header_bytes: u32,
    /// Window of a new connection, in segments (RFC 6928: 10).
    pub initial_window_segments: u32,
    /// The retransmission timeout before the first RTT sample. RFC 6298 (2.1) requires 1 s, for a connection
    /// whose path is unknown; here connections are long open, and their RTT would be known to
    /// be below [`Config::min_rto`], so the profiles begin there.
    pub initial_rto: Span,
    /// The least retransmission timeout. Linux: 200 ms, made for the Internet. The profiles take
    /// 1 ms, as data centers that tune for incast do (docs/sources.md#tcp); with 200 ms this constant would
    /// decide every comparison.
    pub min_rto: Span,
    /// The most that backing off makes of the timeout. Linux: 120 s; the profiles: 100 ms, a
    /// hundred times the minimum.
    pub max_rto: Span,
    /// Timeouts in a row after which the peer counts as silent (Linux `tcp_retries2`: 15). With the
    /// profiles' timeouts this takes about a second.
    pub max_retries: u32,
    /// Segments that receivers acknowledge together (RFC 5681: 2). What arrives out of order or fills a gap is
    /// acknowledged at once.
    pub ack_every_segments: u32,
    /// The most that an acknowledgement waits for that. Linux: 40 ms, a fifth of its minimum RTO;
    /// the profiles keep the proportion: 200 us.
    pub delayed_ack: Span,
    /// The window that receivers grant. Arrived data are consumed at once, so it never shrinks. The
    /// header can express up to 16,776,960 bytes.
    pub receive_window: u32,
    /// Duplicate acknowledgements (or segments' worth of SACKed bytes) that mean a loss
    /// (RFC 5681, RFC 6675: 3).
    pub dup_ack_threshold: u32,
    /// Selective acknowledgements and the recovery of RFC 6675; otherwise NewReno's (RFC 6582).
    pub sack: bool,
    /// New segments on the first duplicate acknowledgements (RFC 3042).
    pub limited_transmit: bool,
    /// Tail loss probes (RFC 8985, section 7), as in Linux.
    pub tail_loss_probe: bool,
    /// The window decays while a connection sends nothing (RFC 2861), as in Linux.
    pub slow_start_after_idle: bool,
    /// Classic ECN (RFC 3168) for NewReno and CUBIC: a mark counts as a loss without the loss.
    /// DCTCP always marks its data ECN-capable.
    pub ecn: bool,
    /// DCTCP's gain g as a shift: 4 is 1/16, as in the paper and in Linux.
    pub dctcp_gain_shift: u32,
    /// Connections are opened by SYN and SYN-ACK. Without, they count as open already, as studies
    /// of data-center transports assume: the first window of data goes out at once.
    pub handshake: bool,
    /// Connections that a host opens to one peer, at most. A message takes an idle one; else a new
    /// one is opened; at the limit it waits behind others on the one with the fewest bytes to go.
    /// 8 keeps a small message from waiting behind one large message to the same peer, and state
    /// within bounds.
    pub connections_per_peer: u32,
    /// Connections of a host, at most, both those that it opened and those opened to it.
    pub max_connections: u32,
    /// Messages under way of a host, at most.
    pub max_messages: u32,
    /// Ranges that a receiver holds out of order, at most, for a connection; a segment that would
    /// make one more is dropped. Also the most that a sender remembers as SACKed.
    pub max_ranges: u32,
    /// A connection without anything to do is closed after this time.
    pub idle_timeout: Span,
    /// The interval of keep-alives of a client that waits for responses and receives nothing.
    pub keepalive_interval: Span,
    /// Unanswered keep-alives after which the peer counts as silent.
    pub keepalive_probes: u32,
    /// Queue of its packets in switches.
    pub priority: u8,
    /// Packets are sprayed over all paths instead of taking one by a hash of the ports. TCP takes
    /// reordering for loss: this costs it throughput.
    pub spray: bool,
    /// Where every connection's sequence numbers begin, so that traces are easy to read. By default
    /// each connection has its own (RFC 6528), without which restarts go unnoticed.
    pub initial_sequence: Option<u32>,
}

impl Config {
    /// CUBIC as in Linux, with times that fit a data center.
    #[must_use]
    pub const fn tcp() -> Self {
        Self {
            congestion_control: CongestionControl::Cubic,
            mss: 1460,
            header_bytes: 40,
            initial_window_segments: 10,
            initial_rto: Span::from_ms(1),
            min_rto: Span::from_ms(1),
            max_rto: Span::from_ms(100),
            max_retries: 15,
            ack_every_segments: 2,
            delayed_ack: Span::from_us(200),
            receive_window: 4 << 20,
            dup_ack_threshold: 3,
            sack: true,
            limited_transmit: true,
            tail_loss_probe: true,
            slow_start_after_idle: true,
            ecn: false,
            dctcp_gain_shift: 4,
            handshake: false,
            connections_per_peer: 8,
            max_connections: 1 << 16,
            max_messages: 1 << 20,
            max_ranges: 256,
            idle_timeout: Span::from_secs(10),
            keepalive_interval: Span::from_ms(100),
            keepalive_probes: 5,
            priority: 0,
            spray: false,
            initial_sequence: None,
        }
    }

    /// DCTCP with g = 1/16, otherwise as [`Config::tcp`].
    #[must_use]
    pub const fn dctcp() -> Self {
        Self { congestion_control: CongestionControl::Dctcp, ..Self::tcp() }
    }

    /// NewReno with SACK, otherwise as [`Config::tcp`].
    #[must_use]
    pub const fn new_reno() -> Self {
        Self { congestion_control: CongestionControl::NewReno, ..Self::tcp() }
    }

    /// How messages are cut.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        Framing {
            max_payload: self.segment_bytes() as u32,
            header_bytes: self.header_bytes,
            spray_above_bytes: if self.spray { 0 } else { u32::MAX },
        }
    }

    /// The largest segment, limited by the packet's 16-bit length.
    pub(super) const fn segment_bytes(&self) -> u64 {
        let mss = if self.mss == 0 { 1 } else { self.mss };
        if mss > 60_000 { 60_000 } else { mss as u64 }
    }

    /// The window of a new connection, in bytes.
    pub(super) const fn initial_window(&self) -> u64 {
        let segments =
            if self.initial_window_segments == 0 { 1 } else { self.initial_window_segments };
        segments as u64 * self.segment_bytes()
    }

    /// The receive window as a header can express it: at least a segment, in whole units.
    pub(super) fn window_bytes(&self) -> u64 {
        let unit = 1 << WINDOW_SHIFT;
        let wanted = u64::from(self.receive_window).max(self.segment_bytes());
        wanted.next_multiple_of(unit).min(u64::from(u16::MAX) * unit)
    }

    /// Whether data packets may be marked.
    pub(super) const fn data_is_ecn_capable(&self) -> bool {
        self.ecn || matches!(self.congestion_control, CongestionControl::Dctcp)
    }

    pub(super) const fn is_dctcp(&self) -> bool {
        matches!(self.congestion_control, CongestionControl::Dctcp)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::tcp()
    }
}

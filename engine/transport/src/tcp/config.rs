//! The parameters of TCP and DCTCP, and their profiles.

use rackweave_core::{Framing, Span};
use rackweave_wire::tcp::WINDOW_SHIFT;

use super::congestion::External;

/// The algorithm that determines the congestion window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// Additive increase and multiplicative decrease (RFC 5681), with the loss recovery that [`Config::sack`]
    /// selects.
    NewReno,
    /// CUBIC (RFC 9438), which is Linux's default.
    Cubic,
    /// DCTCP (RFC 8257): the reduction depends on the share of marked bytes.
    Dctcp,
    /// One of another crate.
    External(External),
}

/// When CUBIC leaves slow start before a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HyStart {
    /// Never.
    Off,
    /// HyStart as in Linux's CUBIC (Ha and Rhee, *Taming the elephants*, 2011): when the acknowledgements of a round
    /// have arrived for half of the minimum RTT, or when the RTT has grown by an eighth, and by 4 ms at least.
    Linux,
    /// HyStart++ (RFC 9406): when the RTT has grown by an eighth, and by 4 ms at least, the window grows by a quarter as
    /// much for five rounds, and then slow start ends. Below an RTT of 4 ms this is rare.
    PlusPlus,
}

/// TCP's parameters. [`Config::tcp`] and [`Config::dctcp`] are the profiles to start from.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The algorithm that determines the congestion window.
    pub congestion_control: CongestionControl,
    /// Maximum segment size: payload bytes of a full segment.
    pub mss: u32,
    /// Size of the IP and TCP headers together. The message mapping is not included: it stands for framing that
    /// applications write into the byte stream.
    pub header_bytes: u32,
    /// Initial congestion window, in segments (RFC 6928: 10).
    pub initial_window_segments: u32,
    /// Retransmission timeout before the first RTT sample. RFC 6298 (2.1) requires 1 s, for connections whose
    /// path is unknown. In data centers connections are long-lived and their RTT is known to be below
    /// [`Config::min_rto`], so that the profiles start there.
    pub initial_rto: Span,
    /// Minimum retransmission timeout. Linux: 200 ms, chosen for the Internet. The profiles use 1 ms, as data
    /// centers that tune for incast do (docs/protocols/tcp.md#tcp); with 200 ms this constant would decide every
    /// comparison.
    pub min_rto: Span,
    /// Maximum retransmission timeout, including exponential backoff. Linux: 120 s; the profiles: 100 ms, a
    /// hundred times the minimum.
    pub max_rto: Span,
    /// Number of consecutive timeouts after which the peer is declared silent (Linux `tcp_retries2`: 15). With
    /// the profiles' timeouts this takes about a second.
    pub max_retries: u32,
    /// Number of segments that a receiver acknowledges together (RFC 5681: 2). Segments that arrive out of
    /// order or fill a gap are acknowledged at once.
    pub ack_every_segments: u32,
    /// Maximum delay of an acknowledgement. Linux: 40 ms, a fifth of its minimum RTO; the profiles keep the
    /// proportion: 200 us. With 40 ms and a minimum RTO of 1 ms, every last segment without a partner would time out.
    pub delayed_ack: Span,
    /// Number of acknowledgements that are sent at once at the beginning of a connection, and after it was silent for
    /// [`Config::idle_restart`], unless the application answers within the delay (Linux, `tcp_incr_quickack`: 16).
    pub quick_acks: u32,
    /// Receive window, in bytes. Arriving data is consumed at once, so that it never shrinks. The header can
    /// express up to 16,776,960 bytes.
    pub receive_window: u32,
    /// Number of duplicate acknowledgements (or of segments whose bytes are SACKed) that indicate a loss (RFC
    /// 5681, RFC 6675: 3).
    pub dup_ack_threshold: u32,
    /// Whether selective acknowledgements and the recovery of RFC 6675 are used; otherwise NewReno's (RFC
    /// 6582).
    pub sack: bool,
    /// Whether new segments are sent on the first duplicate acknowledgements (RFC 3042).
    pub limited_transmit: bool,
    /// Whether tail loss probes are sent (RFC 8985, section 7), as in Linux. Needs [`Config::sack`].
    pub tail_loss_probe: bool,
    /// Whether losses are found by the times of transmission (RACK, RFC 8985, section 6), as in Linux, so that a lost
    /// retransmission is found, too. Needs [`Config::sack`]. Otherwise they are found by RFC 6675's rule, a lost
    /// retransmission costs a timeout, the second timeout in a row forgets what was SACKed (RFC 2018, section 8), and a
    /// timeout during fast recovery reduces the window again.
    pub rack: bool,
    /// Whether the window shrinks in proportion to what arrives during a recovery or after a mark (RFC 6937, RFC 9937),
    /// as in Linux. Otherwise nothing is sent until half of the window has arrived.
    pub prr: bool,
    /// Whether a reduction of the window is undone when the timeout (F-RTO, RFC 5682) or the retransmissions (RFC
    /// 3708) have turned out to be unnecessary, as in Linux.
    pub undo: bool,
    /// When CUBIC leaves slow start before a loss. NewReno and DCTCP have nothing of the kind, as in Linux.
    pub hystart: HyStart,
    /// Whether the window decays while a connection is idle (RFC 2861), as in Linux.
    pub slow_start_after_idle: bool,
    /// Idle time for which the window is kept, and after which it is halved again, unless the retransmission timeout
    /// is longer. Linux takes the timeout, which is at least 200 ms there; it has its own parameter here because
    /// [`Config::min_rto`] is shorter.
    pub idle_restart: Span,
    /// Whether NewReno and CUBIC use classic ECN (RFC 3168), where a mark reduces the window as a loss does.
    /// DCTCP's data is always ECN-capable.
    pub ecn: bool,
    /// DCTCP's gain g as a shift: 4 means 1/16, as in the paper and in Linux.
    pub dctcp_gain_shift: u32,
    /// Whether connections are opened by SYN and SYN-ACK. Otherwise they count as open from the start, as
    /// studies of data-center transports assume, and the first window of data is sent at once.
    pub handshake: bool,
    /// Maximum number of connections that a host opens to one peer. A message uses an idle one, or else a new
    /// one; at the limit it waits behind others on the connection with the fewest bytes to send. With 8, a
    /// small message does not wait behind a single large message to the same peer, and state is bounded.
    pub connections_per_peer: u32,
    /// Maximum number of connections of a host, whether opened by it or by peers.
    pub max_connections: u32,
    /// Maximum number of submitted messages in progress at a host.
    pub max_messages: u32,
    /// Maximum number of out-of-order ranges per connection at a receiver. A segment that would exceed it is
    /// dropped. Also the maximum number of SACKed ranges that a sender records.
    pub max_ranges: u32,
    /// Time after which an unused connection is closed.
    pub idle_timeout: Span,
    /// Interval of keep-alives of a client that waits for responses and receives nothing.
    pub keepalive_interval: Span,
    /// Number of unanswered keep-alives after which the peer is declared silent.
    pub keepalive_probes: u32,
    /// Priority of all packets in switches, 0 (lowest) to 7.
    pub priority: u8,
    /// Whether packets are sprayed over all paths instead of taking one by a hash of the ports. TCP interprets
    /// reordering as loss, so that spraying reduces its throughput.
    pub spray: bool,
    /// Initial sequence number of every connection, for readable traces. `None`: each connection has its own
    /// (RFC 6528), without which restarts are not detected.
    pub initial_sequence: Option<u32>,
}

impl Config {
    /// CUBIC as in Linux, with timeouts for a data center.
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
            quick_acks: 16,
            receive_window: 4 << 20,
            dup_ack_threshold: 3,
            sack: true,
            limited_transmit: true,
            tail_loss_probe: true,
            rack: true,
            prr: true,
            undo: true,
            hystart: HyStart::Linux,
            slow_start_after_idle: true,
            idle_restart: Span::from_ms(200),
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
    pub fn dctcp() -> Self {
        Self { congestion_control: CongestionControl::Dctcp, ..Self::tcp() }
    }

    /// NewReno with SACK, otherwise as [`Config::tcp`].
    #[must_use]
    pub fn new_reno() -> Self {
        Self { congestion_control: CongestionControl::NewReno, ..Self::tcp() }
    }

    /// Without what Linux does beyond the RFCs of 2012: loss detection by RFC 6675, no PRR, no undoing, no `HyStart`, no
    /// quick acknowledgements, and an idle connection's window decays after the RTO.
    #[must_use]
    pub fn classic(self) -> Self {
        Self {
            rack: false,
            prr: false,
            undo: false,
            hystart: HyStart::Off,
            idle_restart: Span::ZERO,
            quick_acks: 0,
            ..self
        }
    }

    /// How messages are divided into packets.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        Framing {
            max_payload: self.segment_bytes() as u32,
            header_bytes: self.header_bytes,
            spray_above_bytes: if self.spray { 0 } else { u32::MAX },
        }
    }

    /// Maximum payload of a segment, limited by the packet's 16-bit length.
    pub(super) const fn segment_bytes(&self) -> u64 {
        let mss = if self.mss == 0 { 1 } else { self.mss };
        if mss > 60_000 { 60_000 } else { mss as u64 }
    }

    /// Initial congestion window, in bytes.
    pub(super) const fn initial_window(&self) -> u64 {
        let segments =
            if self.initial_window_segments == 0 { 1 } else { self.initial_window_segments };
        segments as u64 * self.segment_bytes()
    }

    /// The time until the last timeout in a row, of a connection that has measured no RTT.
    pub(super) fn patience(&self) -> Span {
        let first = self.initial_rto.max(self.min_rto).max(Span::TICK);
        let most = self.max_rto.max(first);
        let (mut rto, mut waited) = (first, Span::ZERO);
        let mut timeouts = u64::from(self.max_retries) + 1;
        while timeouts > 0 && rto < most {
            waited = waited.saturating_add(rto);
            rto = rto.saturating_mul(2);
            timeouts -= 1;
        }
        waited.saturating_add(most.saturating_mul(timeouts))
    }

    /// The receive window as the header expresses it: at least a segment, in whole units.
    pub(super) fn window_bytes(&self) -> u64 {
        let unit = 1 << WINDOW_SHIFT;
        let wanted = u64::from(self.receive_window).max(self.segment_bytes());
        wanted.next_multiple_of(unit).min(u64::from(u16::MAX) * unit)
    }

    /// Whether data packets are ECN-capable.
    pub(super) const fn data_is_ecn_capable(&self) -> bool {
        self.ecn || self.counts_marks()
    }

    /// Whether a segment with data is ECN-capable. With classic ECN, retransmissions are not (RFC 3168, 6.1.5). With
    /// DCTCP they are, as in Linux (`tcp_ecn_send`, `tcp_ca_needs_ecn`) and as RFC 8311 (4.3) permits: otherwise a queue
    /// that marks would drop them.
    pub(super) const fn is_ecn_capable(&self, is_new: bool) -> bool {
        self.counts_marks() || self.ecn && is_new
    }

    /// Whether every mark is reported, as DCTCP needs it; otherwise one per window.
    pub(super) const fn counts_marks(&self) -> bool {
        match &self.congestion_control {
            CongestionControl::Dctcp => true,
            CongestionControl::External(control) => control.counts_marks(),
            CongestionControl::NewReno | CongestionControl::Cubic => false,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::tcp()
    }
}

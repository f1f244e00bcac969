//! Homa's parameters.

use rackweave_core::rng::mix;
use rackweave_core::{Framing, Rate, Span, frame};
use rackweave_wire::homa::Layout;
use thiserror::Error;

use super::cutoffs::{self, Cutoffs};
use super::leverage::Leverage;
use super::stream::config::{MAX_WINDOW, StreamConfig};

/// Maximum number of priority levels, which Ethernet (802.1p) determines.
pub const MAX_PRIORITIES: u8 = 8;

/// Size of each packet type, from the IP header on, without the payload. `common` is the common header; UNKNOWN, BUSY
/// and NEED_ACK have no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the packet types")]
pub struct HeaderBytes {
    pub data: u32,
    pub grant: u32,
    pub resend: u32,
    pub common: u32,
    pub cutoffs: u32,
    pub ack: u32,
}

/// What determines the priority of unscheduled packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorityBy {
    /// The length of the message (SIGCOMM'18 section 3.4, `HomaModule`).
    Length,
    /// The remaining bytes of the message, for each packet. In addition, the last `rtt_bytes` of a long message
    /// use unscheduled priorities, as in the authors' simulation (`STATIC_CBF_GRADUATED` with
    /// `boostTailBytesPrio`).
    BytesLeft,
}

/// When the oldest message is granted outside of the SRPT order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FifoGrants {
    /// After its share of granted bytes (docs/protocols/homa.md#homa-grants, rule 7).
    ByBytes,
    /// At intervals in which the link carries its share; the same message again, until its sender does not respond (rule 8).
    ByTime,
}

/// Maximum number of ticks by which a RESEND to a silent peer is delayed at random, so that many senders are
/// not asked in the same tick. Our choice: it is about the profiles' `resend_interval`, which it at most
/// doubles.
pub(super) const MAX_SPREAD: u32 = 8;

/// Maximum number of ticks after which a busy peer is asked again. Our choice: it bounds the time for which a
/// peer that is no longer busy is not asked.
const MAX_BUSY_TICKS: u16 = 40;

/// Maximum number of ticks by which the first RESEND for a restarted message is delayed. Our choice: dozens of
/// ticks keep the restarts of many senders from coinciding.
const MAX_RESTART_JITTER: u16 = 63;

/// Homa's parameters. [`Config::sigcomm18`], [`Config::linux`] and [`Config::linux_2026`] are published sets, and
/// [`Config::fabric`] is the first of them with a recovery from losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rate of the host's link. Only the receiver's dynamic window and error messages depend on it, because the
    /// driver asks for packets when the link is free.
    pub link: Rate,
    /// Payload bytes of a full packet. All packets but the last of a message are full.
    pub max_payload: u32,
    /// Header bytes of each packet type.
    pub header_bytes: HeaderBytes,
    /// The wire format of headers. [`Config::layout`] also accounts for time stamps.
    pub layout: Layout,
    /// Whether switches choose a path for each packet at random (SIGCOMM'18); otherwise ECMP chooses one per
    /// pair of hosts.
    pub spray: bool,
    /// Maximum message length, in bytes.
    pub max_message_bytes: u32,

    /// Bytes of a message that its sender sends without grants, rounded up to whole packets (our choice: it
    /// avoids a short packet at the limit).
    pub unscheduled_bytes: u32,
    /// Bytes of a message that are granted beyond those received, rounded up to whole packets. 0 selects a
    /// dynamic window of `max_incoming / (n + 1)` bytes while `n` messages are being granted.
    pub window: u32,
    /// Maximum number of bytes that are granted and not yet received, over all messages.
    pub max_incoming: u64,
    /// Maximum number of messages that are granted at one time: the degree of overcommitment.
    pub overcommit: u32,
    /// Maximum number of these from one peer.
    pub max_rpcs_per_peer: u32,
    /// Whether a peer's second message is granted only in a place that the first message of no other peer claims, its third only in one
    /// that no second claims, and so on (docs/protocols/homa.md#homa-grants, rule 9); otherwise the first in SRPT order are granted.
    pub spread_over_peers: bool,
    /// Whether a message without grants, because all of it is unscheduled, counts in `max_incoming` (rule 9).
    pub unscheduled_counts: bool,
    /// When the oldest message is granted.
    pub fifo_grants: FifoGrants,
    /// Bytes of a grant to the oldest message outside of the SRPT order.
    pub fifo_grant_increment: u32,
    /// Share of granted bytes, or of the link's time, for the oldest message, in 1/1000.
    pub grant_fifo_fraction: u32,
    /// Share of sent packets for the oldest message, in 1/1000.
    pub pacer_fifo_fraction: u32,

    /// Number of priority levels in use; level 0 is the lowest.
    pub num_priorities: u8,
    /// The highest level of scheduled packets, which use the levels up to it.
    pub max_sched_priority: u8,
    /// This host's unscheduled levels. Also used for a peer until it announces its own.
    pub cutoffs: Cutoffs,
    /// Version of `cutoffs` that is announced to peers. 0: all hosts have the same configuration, and nothing
    /// is announced.
    pub cutoff_version: u16,
    /// What determines the priority of unscheduled packets.
    pub priority_by: PriorityBy,

    /// Period of the timer.
    pub tick: Span,
    /// Number of ticks of silence before the first RESEND.
    pub resend_ticks: u16,
    /// Number of ticks between later RESENDs.
    pub resend_interval: u16,
    /// Number of unanswered RESENDs after which the peer is declared dead.
    pub timeout_resends: u16,
    /// Maximum number of times that a sender restarts a message which its live receiver does not know because
    /// all its packets were lost. A restart sends one packet, which the receiver answers with grants, and is
    /// delayed longer each time. (Our choice: with a full buffer, many senders that all retransmit their
    /// unscheduled windows at once, as in the kernel module, lose them again.) 0: as in the module, a restart
    /// sends the whole window, and each UNKNOWN counts as a missing answer.
    pub max_restarts: u16,
    /// Whether receivers request lost bytes, and whether peers can be declared dead. Without it, as in the SIGCOMM'18
    /// simulations, a message that loses a packet never ends, except that a peer that does not answer
    /// NEED_ACK is given up. Streams have timers of their own.
    pub resends: bool,
    /// Whether bytes requested by RESENDs are limited to one `window` over all messages and paced by arrivals
    /// (our choice; see `repair`). Otherwise each message requests all missing bytes when it is due, as in the
    /// kernel module.
    pub paced_resends: bool,
    /// Without `paced_resends`: whether RESENDs cover all gaps of a message, or everything if nothing has arrived
    /// (`HomaModule` 2026, `homa_request_retrans`), or only the first gap, or the first packet (2023,
    /// `homa_get_resend_range`).
    pub resend_all_gaps: bool,
    /// Whether RESENDs are those of `HomaModule` 2023, `homa_check_rpc`. A peer gets one RESEND in each
    /// `resend_interval`, however many of its messages have gaps and whatever it has sent since. The messages take
    /// turns. `timeout_resends` of them without any packet from the peer make all of its messages fail.
    /// Otherwise intervals and timeouts are those of each message, as in 2026 (`homa_timer_check_rpc`).
    pub one_resend_per_peer: bool,
    /// Whether a sender that has not sent all granted bytes answers a RESEND with BUSY and retransmits nothing
    /// (`HomaModule` 2023, `homa_resend_pkt`). Otherwise it retransmits what it has sent of the range.
    pub busy_if_unsent: bool,
    /// Whether NEED_ACK for a message with gaps is answered with RESENDs (`HomaModule` since June 2025,
    /// `homa_need_ack_pkt`). Otherwise it is answered with BUSY, and the timer requests what is missing. (Our choice:
    /// the module of 2023 ignored the question, which it repeats forever. Senders here give up after a time, and BUSY
    /// prevents this.)
    pub need_ack_resends: bool,
    /// Number of ticks after the last byte until the sender sends NEED_ACK, which it then repeats at each tick.
    pub request_ack_ticks: u16,

    /// Parameters of streams.
    pub streams: StreamConfig,

    /// Maximum number of acknowledgements for one peer that wait to travel with data. At more, an ACK packet is
    /// sent. At least 1.
    pub max_acks_queued: u16,
    /// Maximum number of RPCs in progress at the host. Further ones are refused, or dropped if a peer starts
    /// them.
    pub max_rpcs: u32,
    /// Maximum number of received ranges of a message beyond the first gap. Packets that would exceed it are
    /// dropped.
    pub max_gaps: u16,
    /// Maximum number of queued control packets. Further ones are dropped, which timers repair.
    pub max_control: u32,
    /// Maximum number of finished RPCs that are remembered.
    pub max_finished: u32,
    /// Number of ticks for which a finished RPC is remembered. It must exceed the time for which a sender may
    /// retransmit (see [`Config::remembered_for`]), which, with `one_resend_per_peer`, does not include its wait for a turn.
    pub finished_ticks: u32,

    /// Leverage Homa's extensions; set by [`Config::with_leverage`].
    pub leverage: Leverage,
}

/// Reasons why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidConfig {
    /// A field must be at least 1.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A packet exceeds the length fields of Ethernet or of the header.
    #[error("a packet of {0} bytes does not fit its length field")]
    PacketTooLong(u32),
    /// `cutoffs`, `num_priorities` and `max_sched_priority` contradict each other.
    #[error("priorities do not fit each other: scheduled ones are 0 to {highest} of {all}")]
    #[allow(missing_docs, reason = "the message names them")]
    Priorities { highest: u8, all: u8 },
    /// A share exceeds 1000/1000.
    #[error("{0} is in 1/1000 and can be at most 1000")]
    Share(&'static str),
    /// The dynamic window is a share of `max_incoming`, which is unlimited.
    #[error("a dynamic window (0) needs a limit on max_incoming")]
    DynamicWindow,
    /// A stream's window is ambiguous in offsets modulo 2^32.
    #[error("stream_window_bytes can be at most {MAX_WINDOW}")]
    StreamWindow,
    /// Finished RPCs are forgotten while their senders may still retransmit.
    #[error("finished_ticks must be above {0}, the ticks for which a sender tries")]
    ForgetsTooSoon(u32),
    /// An extension of Leverage Homa requires measured round trips.
    #[error("{0} needs measure_rtt")]
    NeedsRtt(&'static str),
    /// The weight of a new sample in the average is too small.
    #[error("average_shift is at most 16, not {0}")]
    AverageShift(u32),
}

impl Config {
    /// Checks that the parameters are consistent, which [`super::Host`] relies on.
    ///
    /// # Errors
    /// See [`InvalidConfig`].
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let at_least_one = [
            ("link", self.link.0 > 0),
            ("max_payload", self.max_payload > 0),
            ("max_message_bytes", self.max_message_bytes > 0),
            ("unscheduled_bytes", self.unscheduled_bytes > 0),
            ("max_incoming", self.max_incoming > 0),
            ("overcommit", self.overcommit > 0),
            ("max_rpcs_per_peer", self.max_rpcs_per_peer > 0),
            ("fifo_grant_increment", self.fifo_grant_increment > 0),
            ("tick", self.tick > Span::ZERO),
            ("resend_ticks", self.resend_ticks > 0),
            ("resend_interval", self.resend_interval > 0),
            ("timeout_resends", self.timeout_resends > 0),
            ("request_ack_ticks", self.request_ack_ticks > 0),
            ("max_acks_queued", self.max_acks_queued > 0),
            ("max_rpcs", self.max_rpcs > 0),
            ("max_gaps", self.max_gaps > 0),
            ("max_control", self.max_control > 0),
            ("stream_window_bytes", self.streams.window_bytes > 0),
            ("stream_ping_ticks", self.streams.ping_ticks > 0),
        ];
        if let Some((name, _)) = at_least_one.into_iter().find(|(_, right)| !right) {
            return Err(InvalidConfig::Zero(name));
        }
        if self.streams.window_bytes > MAX_WINDOW {
            return Err(InvalidConfig::StreamWindow);
        }
        let sizes = self.header_bytes;
        let data = sizes.data.saturating_add(self.max_payload);
        let stream = self.streams.stream_header.saturating_add(self.max_payload);
        for l3 in [data, stream, sizes.grant, sizes.resend, sizes.common, sizes.cutoffs, sizes.ack]
        {
            if l3 > u32::from(u16::MAX) - frame::wire_bytes(frame::MIN_PAYLOAD) {
                return Err(InvalidConfig::PacketTooLong(l3));
            }
        }
        let (highest, all) = (self.max_sched_priority, self.num_priorities);
        if highest >= all || all > MAX_PRIORITIES || all != self.cutoffs.num_priorities() {
            return Err(InvalidConfig::Priorities { highest, all });
        }
        let shares = [
            ("grant_fifo_fraction", self.grant_fifo_fraction),
            ("pacer_fifo_fraction", self.pacer_fifo_fraction),
        ];
        if let Some((name, _)) = shares.into_iter().find(|(_, share)| *share > 1000) {
            return Err(InvalidConfig::Share(name));
        }
        if self.window == 0 && self.max_incoming > u64::from(u32::MAX) {
            return Err(InvalidConfig::DynamicWindow);
        }
        if self.finished_ticks <= self.remembered_for() {
            return Err(InvalidConfig::ForgetsTooSoon(self.remembered_for()));
        }
        self.leverage.check()
    }

    /// The parameters of the SIGCOMM'18 paper's simulations, for links of rate `link` and a round trip of
    /// `rtt_bytes` bytes at that rate (10,000 there: docs/protocols/homa.md#homa-sigcomm-2018-setting).
    ///
    /// Cutoffs and the number of scheduled levels depend on the workload: see [`Config::with_workload`].
    /// Acknowledgements and limits are our choice, because the simulation had none. It had no RESENDs either: packets must
    /// not be lost. [`Config::fabric`] is for networks that lose some.
    #[must_use]
    pub fn sigcomm18(link: Rate, rtt_bytes: u32) -> Self {
        Self { resends: false, ..Self::fabric(link, rtt_bytes) }
    }

    /// As [`Config::sigcomm18`], with a recovery from losses of our own: see `repair`.
    #[must_use]
    pub fn fabric(link: Rate, rtt_bytes: u32) -> Self {
        const DATA_HEADER: u32 = 58;
        const MAX_PAYLOAD: u32 = frame::MTU - DATA_HEADER;
        let framing =
            Framing { max_payload: MAX_PAYLOAD, header_bytes: DATA_HEADER, spray_above_bytes: 0 };
        let window = payload_in(framing, rtt_bytes.max(1));
        let levels = MAX_PRIORITIES;
        let unscheduled_levels = levels / 2;
        Self {
            link,
            max_payload: MAX_PAYLOAD,
            header_bytes: HeaderBytes {
                data: DATA_HEADER,
                grant: 48,
                resend: 48,
                common: 48,
                cutoffs: 20 + 62,
                ack: 20 + 90,
            },
            layout: Layout::Head,
            spray: true,
            max_message_bytes: 1 << 31,
            unscheduled_bytes: window,
            window,
            max_incoming: u64::MAX,
            overcommit: u32::from(levels - unscheduled_levels),
            // The authors' simulation grants one message of each sender (`SenderState`).
            max_rpcs_per_peer: 1,
            spread_over_peers: false,
            unscheduled_counts: true,
            fifo_grants: FifoGrants::ByBytes,
            fifo_grant_increment: window,
            grant_fifo_fraction: 0,
            pacer_fifo_fraction: 0,
            num_priorities: levels,
            max_sched_priority: levels - unscheduled_levels - 1,
            cutoffs: Cutoffs::LINUX,
            cutoff_version: 0,
            priority_by: PriorityBy::BytesLeft,
            tick: Span::from_ms(1),
            resend_ticks: 5,
            resend_interval: 5,
            // With a full buffer, RESENDs and their answers are lost as data is.
            timeout_resends: 10,
            max_restarts: 100,
            resends: true,
            paced_resends: true,
            resend_all_gaps: true,
            one_resend_per_peer: false,
            busy_if_unsent: false,
            need_ack_resends: false,
            request_ack_ticks: 5,
            // The simulation has no acknowledgements. With a long queue nearly all of them travel with data and
            // cost no bytes.
            max_acks_queued: 32,
            streams: StreamConfig::with_data_header(DATA_HEADER),
            max_rpcs: 1 << 20,
            max_gaps: 256,
            max_control: 1 << 16,
            max_finished: 1 << 16,
            finished_ticks: 400,
            leverage: Leverage::OFF,
        }
    }

    /// The Linux kernel module's defaults of autumn 2023 (docs/protocols/homa.md#homa-parameters, column 2023), for a
    /// link of rate `link`. `max_restarts` is our choice; 0 is the module's behaviour.
    ///
    /// The module's pacer estimates the backlog of the NIC and lets packets below `throttle_min_bytes` pass.
    /// Neither exists here, because the driver asks for a packet when the link is free.
    #[must_use]
    pub fn linux(link: Rate) -> Self {
        const DATA_HEADER: u32 = frame::IPV4 + 60;
        Self {
            link,
            max_payload: frame::MTU - DATA_HEADER,
            header_bytes: HeaderBytes {
                data: DATA_HEADER,
                grant: frame::IPV4 + 34,
                resend: frame::IPV4 + 37,
                common: frame::IPV4 + 28,
                cutoffs: frame::IPV4 + 62,
                ack: frame::IPV4 + 90,
            },
            layout: Layout::Talk,
            spray: false,
            max_message_bytes: 1_000_000,
            unscheduled_bytes: 10_000,
            window: 10_000,
            max_incoming: 400_000,
            overcommit: 8,
            max_rpcs_per_peer: 1,
            spread_over_peers: false,
            unscheduled_counts: true,
            fifo_grants: FifoGrants::ByBytes,
            fifo_grant_increment: 10_000,
            grant_fifo_fraction: 50,
            pacer_fifo_fraction: 50,
            num_priorities: MAX_PRIORITIES,
            max_sched_priority: 3,
            cutoffs: Cutoffs::LINUX,
            cutoff_version: 1,
            priority_by: PriorityBy::Length,
            tick: Span::from_ms(1),
            resend_ticks: 15,
            resend_interval: 10,
            timeout_resends: 5,
            max_restarts: 100,
            resends: true,
            paced_resends: false,
            resend_all_gaps: false,
            one_resend_per_peer: true,
            busy_if_unsent: true,
            need_ack_resends: false,
            request_ack_ticks: 2,
            streams: StreamConfig::with_data_header(DATA_HEADER),
            max_acks_queued: 4,
            max_rpcs: 1 << 20,
            max_gaps: 256,
            max_control: 1 << 16,
            max_finished: 1 << 16,
            // An RPC with a peer may wait for its turn to send a RESEND while a thousand others have theirs. If its receiver might
            // have forgotten it before, it could not be repeated (see `handle_unknown`).
            finished_ticks: 10_000,
            leverage: Leverage::OFF,
        }
    }

    /// The Linux kernel module's defaults of July 2026 (docs/protocols/homa.md#homa-parameters, column 2026), for a link of rate
    /// `link`, with its recovery from losses since June 2025 (docs/protocols/homa.md#homa-loss). `max_restarts` is our
    /// choice, and so are the random delays of RESENDs that come with it; with 0 they are the module's.
    ///
    /// The module keeps a message granted until another one displaces it, which it decides when packets of that arrive; here the order
    /// is that of the moment.
    #[must_use]
    pub fn linux_2026(link: Rate) -> Self {
        const DATA_HEADER: u32 = frame::IPV4 + 56;
        Self {
            max_payload: frame::MTU - DATA_HEADER,
            header_bytes: HeaderBytes {
                data: DATA_HEADER,
                grant: frame::IPV4 + 33,
                resend: frame::IPV4 + 37,
                common: frame::IPV4 + 28,
                cutoffs: frame::IPV4 + 62,
                ack: frame::IPV4 + 80,
            },
            layout: Layout::Head,
            unscheduled_bytes: 40_000,
            window: 0,
            // `HOMA_MAX_GRANTS` bounds `max_overcommit`, and nothing else does the messages of a peer.
            max_rpcs_per_peer: Self::linux(link).overcommit,
            spread_over_peers: true,
            unscheduled_counts: false,
            fifo_grants: FifoGrants::ByTime,
            fifo_grant_increment: 50_000,
            resend_ticks: 5,
            resend_interval: 5,
            // `timeout_ticks` is 100: RESENDs at 5 to 95 silent ticks, and the end at 100.
            timeout_resends: 19,
            resend_all_gaps: true,
            one_resend_per_peer: false,
            busy_if_unsent: false,
            need_ack_resends: true,
            streams: StreamConfig::with_data_header(DATA_HEADER),
            finished_ticks: 400,
            ..Self::linux(link)
        }
    }

    /// The same parameters with these cutoffs, and with scheduled packets on the remaining levels. As many
    /// messages are granted at one time as there are scheduled levels (SIGCOMM'18 section 3.5).
    #[must_use]
    pub fn with_priorities(mut self, cutoffs: Cutoffs) -> Self {
        self.num_priorities = cutoffs.num_priorities();
        self.max_sched_priority = cutoffs.scheduled_levels() - 1;
        self.overcommit = u32::from(cutoffs.scheduled_levels());
        self.cutoffs = cutoffs;
        self
    }

    /// The same parameters with cutoffs for a workload of (size, weight) pairs: [`cutoffs::allocate_for`].
    ///
    /// # Panics
    ///
    /// As [`cutoffs::allocate_for`].
    #[must_use]
    pub fn with_workload(self, sizes: &[(u32, f64)], unscheduled_levels: Option<u8>) -> Self {
        let cutoffs = cutoffs::allocate_for(&self, sizes, unscheduled_levels);
        self.with_priorities(cutoffs)
    }

    /// The interval of grants to the oldest message ([`FifoGrants::ByTime`]).
    pub(super) fn fifo_interval(&self) -> Span {
        let share = u64::from(self.grant_fifo_fraction.max(1));
        let ticks = self.link.span_of(u64::from(self.fifo_grant_increment)).ticks();
        Span::from_ticks(ticks.saturating_mul(1000) / share)
    }

    /// The priority of these grants: the next to the highest (`homa_high_priority`).
    pub(super) const fn fifo_priority(&self) -> u8 {
        match self.fifo_grants {
            FifoGrants::ByBytes => self.max_sched_priority,
            FifoGrants::ByTime => self.num_priorities.saturating_sub(2),
        }
    }

    /// How messages are divided into packets.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        Framing {
            max_payload: self.max_payload,
            header_bytes: self.header_bytes.data,
            spray_above_bytes: if self.spray {
                self.unscheduled_bytes.next_multiple_of(self.max_payload)
            } else {
                u32::MAX
            },
        }
    }

    /// The longest time for which a sender retransmits without an answer, in ticks.
    #[must_use]
    pub fn patience(&self) -> u32 {
        let spread = if self.max_restarts > 0 { MAX_SPREAD } else { 0 };
        // Saturating, because 65,536 intervals of 65,535 ticks with their delays overflow.
        (u32::from(self.timeout_resends) + 1)
            .saturating_mul(u32::from(self.resend_interval.max(1)) + spread)
            .saturating_add(u32::from(self.resend_ticks))
    }

    /// The longest time, in ticks, after which a sender may still ask about a message all of whose
    /// acknowledgements were lost. A receiver that forgets the message earlier would deliver it twice.
    #[must_use]
    pub fn remembered_for(&self) -> u32 {
        let jitter = if self.max_restarts > 0 { MAX_RESTART_JITTER } else { 0 };
        self.patience()
            .saturating_add(u32::from(self.request_ack_ticks))
            .saturating_add(u32::from(jitter))
            .saturating_add(if self.paced_resends { u32::from(MAX_BUSY_TICKS) } else { 0 })
    }

    /// How long the network may delay a packet, in ticks, for which there is room beyond [`Config::remembered_for`].
    pub(super) fn network_ticks(&self) -> u32 {
        self.finished_ticks.saturating_sub(self.remembered_for())
    }

    /// Maximum number of bytes that RESENDs may have outstanding.
    pub(super) fn repair_window(&self) -> u64 {
        match self.window {
            0 => (self.max_incoming / (u64::from(self.overcommit) + 1)).max(1),
            window => u64::from(window).min(self.max_incoming),
        }
    }

    /// Number of ticks by which the first RESEND for a restarted RPC is delayed: pseudo-random, with a mean
    /// that doubles at each restart up to some dozens of ticks (our choice: see `MAX_RESTART_JITTER`).
    pub(super) fn restart_jitter(&self, id: u64, restarts: u16) -> u16 {
        let most = (4_u64 << restarts.min(4)).min(u64::from(MAX_RESTART_JITTER) + 1);
        (mix(id ^ u64::from(restarts) << 48) % most) as u16
    }

    /// Number of ticks of silence after which a peer is asked again that has answered BUSY `busy` times in a
    /// row: pseudo-random, in a range that doubles each time (our choice: frequent questions are a load for a
    /// busy peer).
    pub(super) fn busy_ticks(&self, id: u64, busy: u16) -> u16 {
        let least = self.resend_ticks.min(MAX_BUSY_TICKS / 2);
        let most = least.saturating_mul(2 << busy.min(5)).clamp(least, MAX_BUSY_TICKS);
        least + (mix(id ^ u64::from(busy) << 48) % u64::from(most - least + 1)) as u16
    }

    /// Number of ticks by which the next RESEND is delayed after `asked` RESENDs for this RPC. It is pseudo-random per
    /// RPC, in a range that doubles each time, so that many senders whose packets were lost in one full buffer do not
    /// fill it again in one tick (our choice).
    pub(super) fn spread(&self, id: u64, asked: u16) -> u16 {
        if self.max_restarts == 0 {
            return 0;
        }
        let most = (1_u64 << asked.min(8)).min(u64::from(MAX_SPREAD));
        (mix(id ^ u64::from(asked) << 48) % (most + 1)) as u16
    }

    /// Rounds `bytes` up to whole packets, and down to the message's `length`.
    #[inline]
    pub(super) const fn whole_packets(&self, bytes: u32, length: u32) -> u32 {
        let rest = bytes % self.max_payload;
        if rest == 0 && bytes <= length {
            return bytes;
        }
        let rounded = bytes.saturating_add(self.max_payload - rest);
        if rounded < length { rounded } else { length }
    }
}

/// Payload bytes that fit into `wire` bytes of a link, in full packets as far as possible. For 10,000 bytes and
/// full packets of 1442 it is 9328: the authors' `defaultReqBytes` plus `defaultUnschedBytes`.
fn payload_in(framing: Framing, wire: u32) -> u32 {
    let full = framing.packet_wire_bytes(framing.max_payload);
    let overhead = full - framing.max_payload;
    let rest = match wire % full {
        0 => 0,
        // A remainder shorter than a header still counts as a packet: while fewer than `wire` bytes are in
        // flight, the authors' simulation grants another packet.
        rest => rest.saturating_sub(overhead).max(1),
    };
    (wire / full) * framing.max_payload + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_bytes_on_the_wire_hold_the_papers_unscheduled_bytes() {
        let config = Config::fabric(Rate::from_gbps(10), 10_000);
        assert_eq!(config.max_payload, 1442);
        assert_eq!(config.unscheduled_bytes, 1442 + 7886);
        assert_eq!(config.framing().packet_wire_bytes(1442), 1538);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let good = Config::fabric(Rate::from_gbps(10), 10_000);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Config::linux(Rate::from_gbps(25)).check(), Ok(()));
        let wrong = |change: fn(&mut Config)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.overcommit = 0), "overcommit must be at least 1");
        assert_eq!(
            wrong(|c| c.max_payload = 65_535),
            "a packet of 65593 bytes does not fit its length field"
        );
        assert_eq!(
            wrong(|c| c.max_sched_priority = 8),
            "priorities do not fit each other: scheduled ones are 0 to 8 of 8"
        );
        assert_eq!(
            wrong(|c| c.pacer_fifo_fraction = 1001),
            "pacer_fifo_fraction is in 1/1000 and can be at most 1000"
        );
        assert_eq!(wrong(|c| c.window = 0), "a dynamic window (0) needs a limit on max_incoming");
        assert_eq!(
            wrong(|c| c.finished_ticks = 148 + 5 + 63 + 40),
            "finished_ticks must be above 256, the ticks for which a sender tries"
        );
        assert_eq!(
            wrong(|c| (c.timeout_resends, c.resend_interval) = (u16::MAX, u16::MAX)),
            "finished_ticks must be above 4294967295, the ticks for which a sender tries"
        );
    }

    #[test]
    fn limits_are_rounded_up_to_whole_packets_of_the_message() {
        let config = Config::linux(Rate::from_gbps(25));
        assert_eq!(config.max_payload, 1420);
        assert_eq!(config.whole_packets(10_000, 1_000_000), 8 * 1420);
        assert_eq!(config.whole_packets(1420, 1_000_000), 1420);
        assert_eq!(config.whole_packets(1420, 1400), 1400);
        assert_eq!(config.whole_packets(10_000, 10_500), 10_500);
        assert_eq!(config.whole_packets(u32::MAX, u32::MAX), u32::MAX);
    }

    #[test]
    fn finished_rpcs_are_remembered_for_longer_than_a_sender_tries() {
        let link = Rate::from_gbps(10);
        let all = [Config::fabric(link, 10_000), Config::linux(link), Config::linux_2026(link)];
        for config in all {
            assert_eq!(config.check(), Ok(()));
            assert!(config.finished_ticks > config.remembered_for());
        }
    }
}

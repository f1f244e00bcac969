//! The use of measured round trips: congestion detection, windows, and the unscheduled ratio.

use rackweave_core::{HostId, Packet, RoundTrip, Span, Time};
use rackweave_wire::homa::{Body, DataStamps, GrantStamps, Header};

use super::Host;
use super::config::Config;
use super::leverage::{Detection, Leverage};
use super::rtt::{Measured, PendingEcho, Probes, field_ns};

/// Round-trip state of the path to a peer, created with its first measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerPath {
    /// Outstanding times of DATA.
    data: Probes,
    /// Outstanding times of GRANTs.
    grants: Probes,
    /// The newest time of the peer's DATA, which the next GRANT echoes.
    pending_data_echo: PendingEcho,
    /// The newest time of the peer's GRANTs, which the next DATA echoes.
    pending_grant_echo: PendingEcho,
    pub(super) measured: Measured,
    /// Whether the last round trips to the peer indicate congestion.
    pub(super) congested: bool,
    /// The unscheduled window of a message, in bytes; 0 before the first measurement.
    pub(super) unscheduled: u32,
    /// When that window was last adjusted.
    adjusted: Time,
    /// Bytes of a message that the peer is granted beyond those received; 0 before the first measurement.
    pub(super) scheduled: u32,
}

impl PeerPath {
    /// Interval between time stamps: about a quarter of a round trip.
    fn probe_interval(&self) -> Span {
        Span::from_ticks(self.measured.min().unwrap_or(Span::ZERO).ticks() / 4)
    }

    /// "peer_rtt_grant = 3 * peer_rtt_min; scheduled_window = peer_rtt_grant * local_link_mps / 8" (slide
    /// "Receiver - Scheduled Window").
    fn set_scheduled(&mut self, config: &Config) {
        let rtt = self.measured.min().unwrap_or(Span::ZERO);
        let grant = rtt.saturating_mul(u64::from(config.leverage.scheduled_factor));
        let bytes = u32::try_from(config.link.bytes_in(grant)).unwrap_or(u32::MAX);
        self.scheduled = bytes.max(config.max_payload);
    }

    /// Detects congestion and adjusts the unscheduled window after a measurement of DATA.
    fn adjust_windows(&mut self, now: Time, config: &Config) {
        let Leverage { scheduled_factor, congestion_factor, average_deviation, .. } =
            config.leverage;
        let Some(min) = self.measured.min() else { return };
        let times = |factor: u32| min.saturating_mul(u64::from(factor));
        let middle = times(scheduled_factor);
        let above = Span::from_ticks(
            (u128::from(middle.ticks()) * u128::from(average_deviation) / 1000) as u64,
        );
        self.congested = match config.leverage.congestion {
            None => false,
            // "IF peer_rtt_recent > peer_rtt_high set congestion to true" (slide).
            Some(Detection::Recent) => self.measured.sending > times(congestion_factor),
            Some(Detection::Average) => {
                self.measured.average.ticks().saturating_sub(middle.ticks()) > above.ticks()
            }
        };
        // "Unscheduled window is based on peer side bandwidth" (slide): one round trip at that rate.
        let link = config.leverage.peer_link.unwrap_or(config.link).min(config.link);
        let packet = config.max_payload;
        let cap = u32::try_from(link.bytes_in(min)).unwrap_or(u32::MAX).max(packet);
        let recent = self.measured.sending;
        let due = now.since(self.adjusted) >= recent;
        // The amounts are our choice (docs/protocols/leverage-homa.md#leverage-homa). The window is halved at most once per
        // round trip, after which the effect can be measured. It grows by one packet with each short round
        // trip.
        if self.unscheduled == 0 {
            (self.unscheduled, self.adjusted) = (cap, now);
        } else if self.congested && due {
            (self.unscheduled, self.adjusted) = ((self.unscheduled / 2).max(packet), now);
        } else if recent < middle && due {
            (self.unscheduled, self.adjusted) = (self.unscheduled.saturating_add(packet), now);
        }
        self.unscheduled = self.unscheduled.min(cap);
    }
}

/// The slide "Unscheduled Ratio", which uses the share of unscheduled bytes in what this host sends.
///
/// "IF unscheduled_ratio is less than %40 && rpc throttle list is not empty Set rtt_unscheduled to half of
/// current value": otherwise unscheduled packets would only wait in the sender. Our choice: bytes are counted
/// over a period, by the messages that start in it. At its end, all unscheduled windows of the host are halved
/// if the rule applies; otherwise one earlier halving is undone. The throttled list is the queue of messages
/// with bytes that may be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnscheduledRatio {
    since: Time,
    unscheduled: u64,
    all: u64,
    /// Number of halvings that apply to all windows.
    pub(super) halvings: u32,
}

impl UnscheduledRatio {
    /// Maximum number of halvings, after which a window of 32 bits is zero.
    const MOST: u32 = 31;

    pub(super) fn submitted(
        &mut self,
        now: Time,
        leverage: &Leverage,
        unscheduled: u32,
        length: u32,
        throttled: bool,
    ) {
        if now.since(self.since) >= leverage.ratio_period {
            let is_small = u128::from(self.unscheduled) * 1000
                < u128::from(self.all) * u128::from(leverage.ratio_threshold);
            self.halvings = if is_small && throttled {
                (self.halvings + 1).min(Self::MOST)
            } else {
                self.halvings.saturating_sub(1)
            };
            (self.since, self.unscheduled, self.all) = (now, 0, 0);
        }
        self.unscheduled += u64::from(unscheduled);
        self.all += u64::from(length);
    }
}

/// Leverage Homa's state of a host, besides that of each peer.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// When an overdue timer of the host was last handled; `None` if never.
    late_at: Option<Time>,
    pub(super) ratio: UnscheduledRatio,
    pub(super) pacer: super::pacer::Pacer,
}

impl Host {
    /// Whether packets that are handled now have waited in this host: its timer is overdue, so that the
    /// software has not run. (Our choice: a NIC with hardware time stamps would know it exactly.)
    fn is_late(&self, now: Time) -> bool {
        self.next_tick.is_some_and(|at| at < now) || self.leverage.late_at == Some(now)
    }

    /// Records that the timer due at `due` is handled at `now`.
    pub(super) fn note_lateness(&mut self, due: Time, now: Time) {
        if due < now {
            self.leverage.late_at = Some(now);
        }
    }

    /// Bytes of a new message to this peer that need no grant.
    pub(super) fn unscheduled_to(&self, peer: HostId) -> u32 {
        let is_measured = self.config.leverage.unscheduled_window;
        let peer = if is_measured { self.peers.slot(peer) } else { None };
        self.unscheduled_of(peer)
    }

    /// As [`Host::unscheduled_to`], for the peer in this slot.
    pub(super) fn unscheduled_of(&self, peer: Option<u32>) -> u32 {
        let config = &self.config;
        let mut bytes = config.unscheduled_bytes;
        if config.leverage.unscheduled_window
            && let Some(window) = peer.map(|peer| self.peers.unscheduled_window(peer))
            && window > 0
        {
            bytes = window;
        }
        if config.leverage.unscheduled_ratio {
            bytes = (bytes >> self.leverage.ratio.halvings).max(config.max_payload);
        }
        bytes
    }

    /// Counts a submitted message of `length` bytes; `unscheduled` of them need no grant.
    pub(super) fn note_submitted(&mut self, now: Time, unscheduled: u32, length: u32) {
        if self.config.leverage.unscheduled_ratio {
            let throttled = !self.queue.nothing_new();
            let leverage = &self.config.leverage;
            self.leverage.ratio.submitted(now, leverage, unscheduled, length, throttled);
        }
    }

    /// The time stamps of a DATA packet that is handed to the link now.
    pub(super) fn data_stamps(
        &mut self,
        now: Time,
        peer: u32,
        len: u32,
        retransmit: bool,
    ) -> DataStamps {
        let config = &self.config;
        if !config.leverage.measure_rtt || len < config.max_payload || retransmit {
            return DataStamps::default();
        }
        let path = self.peers.get_mut(peer).path.get_or_insert_default();
        let sent_at = path.data.send(now, path.probe_interval());
        let echo = match path.pending_grant_echo.take() {
            // The echoed time is advanced by the holding time, as if the GRANT had been sent that much later.
            Some((sent_at, arrived)) => sent_at.wrapping_add(field_ns(now.since(arrived))).max(1),
            None => 0,
        };
        DataStamps { sent_at, echo }
    }

    /// The time stamps of a GRANT that is handed to the link now, and was decided at `decided`.
    pub(super) fn grant_stamps(&mut self, now: Time, to: HostId, decided: Time) -> GrantStamps {
        if !self.config.leverage.measure_rtt {
            return GrantStamps::default();
        }
        let Some(peer) = self.peers.find(to) else { return GrantStamps::default() };
        let path = peer.path.get_or_insert_default();
        let sent_at = path.grants.send(now, path.probe_interval());
        match path.pending_data_echo.take() {
            Some((echo, arrived)) => GrantStamps {
                sent_at,
                echo,
                held_ns: field_ns(decided.since(arrived)),
                host_ns: field_ns(now.since(decided.max(arrived))),
            },
            None => GrantStamps { sent_at, ..GrantStamps::default() },
        }
    }

    /// Echoes the newest time of a sender when its message is complete, unless a GRANT has already echoed it,
    /// in a GRANT that grants nothing new. Without that, messages within the unscheduled window would give
    /// their sender no measurement of the congestion that they cause, and the window would never shrink (our
    /// choice). Messages of one packet do not justify a second one.
    pub(super) fn echo_at_end(
        &mut self,
        now: Time,
        to: HostId,
        id: u64,
        one_way: bool,
        length: u32,
    ) {
        if !self.config.leverage.measure_rtt || length <= self.config.max_payload {
            return;
        }
        let Some(path) = self.peers.find(to).and_then(|peer| peer.path.as_deref_mut()) else {
            return;
        };
        if let Some((echo, arrived)) = path.pending_data_echo.take() {
            let held_ns = field_ns(now.since(arrived));
            let stamps = GrantStamps { sent_at: 0, echo, held_ns, host_ns: 0 };
            let body = Body::Grant { offset: length, priority: 0, resend_all: false, stamps };
            self.send_control(to, id, one_way, body);
        }
    }

    /// Processes the time stamps of a packet that has been handled.
    pub(super) fn note_stamps(&mut self, now: Time, packet: &Packet<Header>) {
        let is_late = self.config.leverage.host_delay && self.is_late(now);
        let config = &self.config;
        let Some(peer) = self.peers.find(packet.src) else { return };
        let window = config.leverage.min_rtt_window;
        // A lower bound of the round trip: the time on this host's own link.
        let least = config.link.span_of(u64::from(config.full_wire_bytes()));
        match packet.header.body {
            Body::Data { stamps, segment_length, retransmit: false, .. }
                if stamps != DataStamps::default() =>
            {
                let path = peer.path.get_or_insert_default();
                if is_late {
                    // The echo is consumed, but not measured.
                    path.grants.answered_later(now, stamps.echo);
                    return;
                }
                path.pending_data_echo.note(now, stamps.sent_at);
                let is_full = u32::from(segment_length) == config.max_payload;
                if is_full
                    && stamps.echo != 0
                    && let Some(elapsed_ns) = path.grants.answered_later(now, stamps.echo)
                    && Span::from_ns(u64::from(elapsed_ns)) >= least
                {
                    let rtt = Span::from_ns(u64::from(elapsed_ns));
                    path.measured.receiving(now, rtt, window);
                    path.set_scheduled(config);
                }
            }
            Body::Grant { stamps, .. } if stamps != GrantStamps::default() => {
                let path = peer.path.get_or_insert_default();
                let sent = (stamps.echo != 0).then(|| path.data.answered(now, stamps.echo));
                if is_late {
                    return;
                }
                path.pending_grant_echo.note(now, stamps.sent_at);
                let Some(sent) = sent.flatten() else { return };
                let mut away = Span::from_ns(u64::from(stamps.held_ns));
                if config.leverage.host_delay {
                    away += Span::from_ns(u64::from(stamps.host_ns));
                }
                let rtt = Span::from_ticks(now.since(sent).ticks().saturating_sub(away.ticks()));
                if rtt >= least {
                    path.measured.sending(now, rtt, window, config.leverage.average_shift);
                    path.set_scheduled(config);
                    path.adjust_windows(now, config);
                }
            }
            _ => {}
        }
    }

    /// The measurements, for [`rackweave_core::Transport::round_trips`].
    pub(super) fn measured_round_trips(&self) -> Vec<RoundTrip> {
        let mut all: Vec<RoundTrip> = (self.peers.iter())
            .filter_map(|peer| {
                let measured = &peer.path.as_deref()?.measured;
                let (recent, samples) = (measured.recent, measured.samples);
                Some(RoundTrip { peer: peer.host, min: measured.min()?, recent, samples })
            })
            .collect();
        all.sort_unstable_by_key(|round_trip| round_trip.peer);
        all
    }

    /// Whether the last round trip to this peer indicates congestion.
    #[cfg(test)]
    pub(super) fn is_congested(&mut self, peer: HostId) -> bool {
        let path = self.peers.find(peer).and_then(|peer| peer.path.as_deref());
        path.is_some_and(|path| path.congested)
    }
}

//! A channel: the data in flight to one set of receivers, either to the whole group or to one detached receiver.
//!
//! It records when bytes were sent, so that reports yield round trips, and which retransmissions may still be in
//! flight. The Orca paper has no loss recovery; the timers follow TCP's (RFC 6298).

use std::collections::VecDeque;

use rackweave_core::{Span, Time};

use super::super::FlowConfig;
use super::super::congestion::Congestion;
use super::retransmit::RetransmitQueue;

/// The number of remembered transmission times for RTT samples. With 4096 runs of packets the window of the default
/// configuration fits even if every packet leaves at a different time.
const SEND_TIMES: usize = 4096;

/// The largest retransmission timeout with backoff. It is short compared with TCP's 60 s (RFC 6298, rule 2.5) because
/// the whole group waits for the receiver that the retransmission is for.
const MAX_RTO: Span = Span::from_ms(500);
/// The largest backoff, in doublings.
const MAX_RTO_BACKOFF: u8 = 10;
/// A round in which no more retransmissions than this were lost is no evidence of congestion.
const MIN_LOST: u32 = 4;

/// The state of what is sent to one set of receivers.
#[derive(Clone, Debug)]
pub(super) struct Channel {
    /// The offset of the next byte to be sent for the first time.
    pub(super) head: u64,
    pub(super) congestion: Congestion,
    pub(super) retransmit: RetransmitQueue,
    /// The times at which bytes left: the end offset of a packet, or of a run of packets that left at the same time,
    /// and that time.
    send_times: VecDeque<(u64, Time)>,
    /// No RTT sample is taken below this offset, because packets there were retransmitted (Karn's algorithm, RFC 6298
    /// section 3).
    retransmitted_edge: u64,
    /// The retransmissions in flight: the time at which each left, and its length in bytes.
    retransmits: VecDeque<(Time, u32)>,
    retransmitted_bytes: u64,
    /// How often the retransmission timeout has doubled, because retransmissions were lost and no RTT has been sampled
    /// since (RFC 6298, rule 5.5). Retransmissions give no samples, so a queue that grows meanwhile is not seen;
    /// without a backoff the same packets would fill that queue repeatedly.
    rto_backoff: u8,
    /// The packets retransmitted in this round, and how many of them were reported missing again.
    round: (u32, u32),
    round_ends: Time,
    /// The time at which data was last sent or a report last showed progress.
    pub(super) last_progress: Time,
    /// The time at which a packet was last sent to all receivers of this channel.
    pub(super) last_sent: Time,
    /// The time since which only probes were sent and no report showed progress; `None` if the channel is not stalled.
    pub(super) stalled_since: Option<Time>,
    /// How often the time between probes has doubled.
    pub(super) probe_backoff: u8,
    /// The bytes of probes since then, to one receiver.
    pub(super) probed: u64,
    /// The range of a cell whose first bytes alone were retransmitted, to a receiver that full packets do not reach.
    pub(super) rest: Option<(u64, u64)>,
}

impl Channel {
    pub(super) fn new(now: Time, at: u64, config: &FlowConfig) -> Self {
        Self {
            head: at,
            congestion: Congestion::new(now, at, config),
            retransmit: RetransmitQueue::default(),
            send_times: VecDeque::new(),
            retransmitted_edge: 0,
            retransmits: VecDeque::new(),
            retransmitted_bytes: 0,
            rto_backoff: 0,
            round: (0, 0),
            round_ends: now,
            last_progress: now,
            last_sent: now,
            stalled_since: None,
            probe_backoff: 0,
            probed: 0,
            rest: None,
        }
    }

    /// Records that new bytes up to `end` are sent.
    pub(super) fn on_sent(&mut self, now: Time, end: u64) {
        self.head = end;
        self.on_progress(now);
        self.last_sent = now;
        match self.send_times.back_mut() {
            Some(back) if back.1 == now => back.0 = end,
            _ => {
                if self.send_times.len() >= SEND_TIMES {
                    self.send_times.pop_front();
                }
                self.send_times.push_back((end, now));
            }
        }
    }

    /// Records progress, by new data or a report: the channel is not stalled.
    pub(super) const fn on_progress(&mut self, now: Time) {
        (self.last_progress, self.stalled_since) = (now, None);
        (self.probe_backoff, self.probed) = (0, 0);
    }

    /// Returns the retransmission timeout, after which a report must have covered what was sent. `report_delay` is how
    /// long reports may be delayed on their path.
    pub(super) fn rto(&self, report_delay: Span) -> Span {
        let rto = self.congestion.rto() + report_delay;
        (rto * (1 << self.rto_backoff)).min(MAX_RTO.max(rto))
    }

    /// Counts retransmitted packets that were reported missing again.
    pub(super) const fn on_retransmit_lost(&mut self, packets: u32) {
        self.round.1 = self.round.1.saturating_add(packets);
    }

    /// Returns whether most retransmissions of the last rounds were lost.
    pub(super) const fn is_backed_off(&self) -> bool {
        self.rto_backoff > 0
    }

    /// Ends a round of retransmissions if its time is over, and adapts the backoff to the share that was lost.
    fn end_round(&mut self, now: Time, rto: Span) {
        let (sent, lost) = self.round;
        if now < self.round_ends {
            return;
        }
        if u64::from(lost) * 4 > u64::from(sent) * 3 && lost > MIN_LOST {
            // The first such round may be chance. Only the second one counts as congestion.
            if self.rto_backoff > 0 {
                self.congestion.on_loss();
            }
            self.rto_backoff = (self.rto_backoff + 1).min(MAX_RTO_BACKOFF);
        } else if lost <= sent / 2 {
            self.rto_backoff = self.rto_backoff.saturating_sub(1);
        }
        self.round = (0, 0);
        self.round_ends = now.saturating_add(rto);
    }

    pub(super) fn on_rtt_sample(&mut self, rtt: Span) {
        self.congestion.on_rtt_sample(rtt);
        self.rto_backoff = 0;
    }

    /// Records that bytes up to `end` are retransmitted.
    pub(super) fn on_retransmit(&mut self, now: Time, rto: Span, end: u64, len: u16) {
        self.end_round(now, rto);
        self.round.0 = self.round.0.saturating_add(1);
        self.retransmitted_edge = self.retransmitted_edge.max(end);
        self.retransmits.push_back((now, u32::from(len)));
        self.retransmitted_bytes += u64::from(len);
    }

    /// Returns the number of retransmitted bytes that may still be in flight.
    pub(super) fn retransmits_in_flight(&mut self, now: Time, rto: Span) -> u64 {
        while let Some(&(sent, len)) = self.retransmits.front()
            && sent.saturating_add(rto) <= now
        {
            self.retransmits.pop_front();
            self.retransmitted_bytes -= u64::from(len);
        }
        self.retransmitted_bytes
    }

    /// Returns the time at which the oldest retransmission no longer counts as in flight.
    pub(super) fn retransmit_expiry(&self, rto: Span) -> Option<Time> {
        self.retransmits.front().map(|(sent, _)| sent.saturating_add(rto))
    }

    /// Returns the round trip time that a report shows that was sent `held_us` after the packet that ends at `seen` had
    /// arrived.
    pub(super) fn rtt_sample(&self, now: Time, seen: u64, held_us: u32) -> Option<Span> {
        if seen <= self.retransmitted_edge || seen > self.head {
            return None;
        }
        let at = self.send_times.partition_point(|run| run.0 < seen);
        let &(end, sent) = self.send_times.get(at)?;
        let first = self.send_times.front()?;
        // Any packet of a run that left at one time serves as a sample, but the transmission time of data before the
        // first remembered run is unknown.
        if at == 0 && end != seen && first.0 != end {
            return None;
        }
        let span = now.since(sent);
        let held = Span::from_us(u64::from(held_us));
        (span > held).then(|| span - held)
    }

    /// Records that everything below `progress` has reached all receivers or was lost.
    pub(super) fn on_acked(&mut self, progress: u64) {
        while self.send_times.len() > 1 && self.send_times[1].0 <= progress {
            self.send_times.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 4] {
        let (ring, queue) = self.retransmit.sizes();
        [ring, queue, self.send_times.len(), self.retransmitted_bytes as usize]
    }
}

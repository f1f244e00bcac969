//! SIRD's parameters.

use rackweave_core::{Rate, Span, frame};
use rackweave_wire::sird::size;

use crate::common::Parameters;
use crate::exchange::{self, InvalidConfig, in_order, rule};
use crate::profile::Surroundings;

/// The order in which messages get credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditOrder {
    /// The message with the fewest missing packets; the oldest of several.
    Srpt,
    /// Each message in turn, as in round-robin scheduling.
    RoundRobin,
}

/// SIRD's parameters. See [`Config::paper`] for the published set.
///
/// Amounts of credit are bytes on the link, of packets with their headers, preamble and gap, as in the authors'
/// simulator.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it has in common with other transports.
    pub common: exchange::Config,
    /// Interval between two credits for full packets: their time on the receiver's link. A credit for a shorter packet
    /// delays the next one by less.
    pub credit_interval: Span,
    /// B: the capacity of a receiver's global bucket, the bytes that may be on their way to it from all senders.
    pub global_bucket: u64,
    /// The largest capacity of the bucket that a receiver has for each sender.
    pub sender_bucket: u64,
    /// The least capacity of that bucket by the marks of senders (`csn`).
    pub min_host_bucket: u64,
    /// The least capacity of that bucket by the marks of switches (ECN).
    pub min_network_bucket: u64,
    /// Weight of a new fraction of marked packets in the mean, in thousandths: DCTCP's g.
    pub gain: u32,
    /// `UnschT`: a message that is longer asks for credit before it sends.
    pub unscheduled_threshold: u64,
    /// Maximum number of packets that a shorter message sends without credit.
    pub unscheduled_packets: u16,
    /// `SThr`: a sender with more unused credit marks its data packets with `csn`.
    pub csn_threshold: u64,
    /// Percentage of a sender's packets that go to the receiver of its shortest message. The others go to all
    /// receivers in turn.
    pub srpt_percent: u32,
    /// The order in which a receiver's messages get credit.
    pub order: CreditOrder,
    /// Priority of data that is sent without credit.
    pub unscheduled_priority: u8,
    /// Priority of data that is sent with credit.
    pub scheduled_priority: u8,

    /// Time after which a credit whose packet has not arrived is withdrawn and given again: ten round trips here. It doubles each
    /// time, until a packet of the message arrives. As long as data arrives, it is longer by the time that all that is on its way
    /// takes on the link. (Our choice: in the authors' simulator nothing is lost.)
    pub resend_after: Span,
    /// Minimum interval after which a sender that receives nothing repeats its request; the interval doubles each time.
    /// (Our choice, as `resend_after`.)
    pub min_request_interval: Span,
    /// Maximum of that interval.
    pub max_request_interval: Span,
}

/// Thousandths of a bandwidth-delay product, in bytes.
const fn share(bdp: u64, thousandths: u64) -> u64 {
    bdp.saturating_mul(thousandths) / 1000
}

/// Ten round trips, and no less than what a host's software may take.
const fn at_least_100_us(span: Span) -> Span {
    let least = Span::from_us(100);
    if span.ticks() < least.ticks() { least } else { span }
}

impl Config {
    /// The parameters of the paper's evaluation (`docs/protocols/sird.md#sird-parameters`), for a link of this rate and a
    /// bandwidth-delay product of `bdp` bytes.
    #[must_use]
    pub const fn paper(link: Rate, bdp: u64) -> Self {
        let packet = frame::wire_bytes(frame::MTU) as u64;
        let bdp = if bdp < packet { packet } else { bdp };
        let unscheduled = bdp / packet;
        Self {
            common: exchange::Config::USUAL,
            credit_interval: link.span_of(packet),
            global_bucket: share(bdp, 1500),
            sender_bucket: bdp,
            min_host_bucket: share(bdp, 100),
            min_network_bucket: share(bdp, 30),
            gain: 80,
            unscheduled_threshold: bdp,
            unscheduled_packets: if unscheduled > 65_000 { 65_000 } else { unscheduled as u16 },
            csn_threshold: share(bdp, 500),
            srpt_percent: 50,
            order: CreditOrder::Srpt,
            unscheduled_priority: 7,
            scheduled_priority: 6,
            resend_after: at_least_100_us(link.span_of(bdp.saturating_mul(10))),
            min_request_interval: Span::from_ms(1),
            max_request_interval: Span::from_ms(8),
        }
    }

    /// Adapts the parameters to processes on hosts, which wait for a CPU longer than a round trip. A credit whose sender
    /// does not run would be given again while its packet is still to come. (Our choice: the paper's hosts answer at once.)
    #[must_use]
    pub fn for_hosts(mut self) -> Self {
        self.resend_after = self.resend_after.max(Span::from_ms(4));
        self
    }

    /// Time to wait for an answer after `tries` requests.
    pub(super) fn request_interval(&self, tries: u32) -> Span {
        let interval = self.min_request_interval.ticks().saturating_mul(1 << tries.min(20));
        Span::from_ticks(interval).min(self.max_request_interval)
    }

    /// Time after which a credit is withdrawn, if `tries` credits of the message were withdrawn since one of its packets
    /// has arrived.
    pub(super) fn resend_interval(&self, tries: u32) -> Span {
        let interval = self.resend_after.ticks().saturating_mul(1 << tries.min(20));
        // Several tries fit into the patience of the sender.
        Span::from_ticks(interval.min(self.common.patience.ticks() / 4)).max(self.resend_after)
    }

    /// Bytes on the link of a full packet.
    pub(super) const fn full_packet(&self) -> u64 {
        frame::wire_bytes(self.common.header_bytes + self.common.max_payload) as u64
    }

    /// Bytes on the link of packet `number` of a message of this length.
    pub(super) const fn packet_bytes(&self, length: u32, number: u32) -> u64 {
        frame::wire_bytes(self.common.header_bytes + self.payload_of(length, number)) as u64
    }

    /// Payload bytes of packet `number` of a message of this length.
    pub(super) const fn payload_of(&self, length: u32, number: u32) -> u32 {
        let left = length.saturating_sub(number.saturating_mul(self.common.max_payload));
        if left < self.common.max_payload { left } else { self.common.max_payload }
    }

    /// Bytes on the link of the first `packets` packets of a message of this length.
    pub(super) const fn bytes_of(&self, length: u32, packets: u32) -> u64 {
        if packets == 0 {
            return 0;
        }
        (packets as u64 - 1) * self.full_packet() + self.packet_bytes(length, packets - 1)
    }

    /// Number of packets of a message of this length that need no credit (the paper, section 4: all up to a bandwidth-delay
    /// product if the message is no longer than `UnschT`, otherwise none).
    pub(super) const fn unscheduled_of(&self, length: u32) -> u32 {
        let packets = self.common.packets(length);
        if self.bytes_of(length, packets) > self.unscheduled_threshold {
            return 0;
        }
        let most = self.unscheduled_packets as u32;
        if packets < most { packets } else { most }
    }

    /// The delay of the next credit by one for a packet of this many bytes on the link.
    pub(super) fn credit_time(&self, bytes: u64) -> Span {
        let ps = u128::from(self.credit_interval.ticks()) * u128::from(bytes);
        Span::from_ticks((ps / u128::from(self.full_packet())) as u64)
    }
}

impl Parameters for Config {
    type Scheme = super::Sird;

    const NAMES: &'static [&'static str] = &["sird"];
    const DATA_BYTES: u32 = size::DATA;
    const CONTROL_BYTES: u32 = size::CONTROL;

    #[inline]
    fn common(&self) -> &exchange::Config {
        &self.common
    }

    fn common_mut(&mut self) -> &mut exchange::Config {
        &mut self.common
    }

    fn ask_interval(&self) -> Span {
        self.max_request_interval
    }

    /// An acknowledgement of the message, and a credit for each packet that is not unscheduled. A message that has no unscheduled packets
    /// first sends a request (docs/protocols/sird.md#sird-sender).
    fn control_packets(&self, bytes: f64, packets: f64, _: &Surroundings) -> [f64; 2] {
        let unscheduled = self.unscheduled_of(u32::try_from(bytes as u64).unwrap_or(u32::MAX));
        let request = if unscheduled == 0 { 1.0 } else { 0.0 };
        [request, packets - f64::from(unscheduled) + 1.0]
    }

    fn validate(&self) -> Result<(), InvalidConfig> {
        let own = [
            ("credit_interval", self.credit_interval > Span::ZERO),
            ("resend_after", self.resend_after > Span::ZERO),
            ("min_request_interval", self.min_request_interval > Span::ZERO),
        ];
        self.common.check(&own, &[self.unscheduled_priority, self.scheduled_priority])?;
        let full = self.full_packet();
        for (name, bucket) in
            [("global_bucket", self.global_bucket), ("sender_bucket", self.sender_bucket)]
        {
            rule(bucket >= full, name, || format!("{name} has no room for a full packet"))?;
        }
        let sender_bucket = ("sender_bucket", self.sender_bucket);
        in_order(("min_host_bucket", self.min_host_bucket), sender_bucket)?;
        in_order(("min_network_bucket", self.min_network_bucket), sender_bucket)?;
        in_order(("gain", self.gain), ("1000", 1000))?;
        in_order(("srpt_percent", self.srpt_percent), ("100", 100))?;
        in_order(
            ("min_request_interval", self.min_request_interval),
            ("max_request_interval", self.max_request_interval),
        )?;
        let what = "max_request_interval and four times resend_after";
        self.common.check_patience(self.max_request_interval, what)?;
        InvalidConfig::unless(self.common.patience >= self.resend_after.saturating_mul(4), || {
            InvalidConfig::Patience(what)
        })
    }

    #[cfg(any(test, feature = "testkit"))]
    fn examples(link: Rate) -> Vec<Self> {
        vec![Self::paper(link, link.bytes_in(Span::from_us(50))).for_hosts()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile as _;

    const LINK: Rate = Rate::from_gbps(100);

    #[test]
    fn the_profile_has_the_published_values() {
        let paper = Config::paper(LINK, 100_000);
        assert_eq!(paper.check(), Ok(()));
        assert_eq!(
            (paper.global_bucket, paper.sender_bucket, paper.csn_threshold),
            (150_000, 100_000, 50_000)
        );
        assert_eq!((paper.min_host_bucket, paper.min_network_bucket), (10_000, 3_000));
        assert_eq!((paper.unscheduled_threshold, paper.unscheduled_packets), (100_000, 65));
        assert_eq!(paper.credit_interval, LINK.span_of(1538));
        assert_eq!(paper.resend_after, Span::from_us(100));
        // A fabric whose product is below a packet.
        assert_eq!(Config::paper(LINK, 0).check(), Ok(()));
        assert_eq!(paper.for_hosts().check(), Ok(()));
    }

    #[test]
    fn messages_above_the_threshold_have_no_unscheduled_packets() {
        let paper = Config::paper(LINK, 100_000);
        assert_eq!(paper.unscheduled_of(1), 1);
        assert_eq!(paper.unscheduled_of(65 * 1460), 65);
        assert_eq!(paper.unscheduled_of(65 * 1460 + 1), 0);
        // With a higher threshold, a bandwidth-delay product is sent at once.
        let config = Config { unscheduled_threshold: 400_000, ..paper };
        assert_eq!(config.unscheduled_of(200_000), 65);
        let at = Surroundings::alone(LINK, Span::from_us(8));
        assert_eq!(config.control_packets(200_000.0, 137.0, &at), [0.0, 137.0 - 65.0 + 1.0]);
        assert_eq!(config.control_packets(400_000.0, 274.0, &at), [1.0, 275.0]);
        assert_eq!(config.unscheduled_of(400_000), 0);
    }

    #[test]
    fn credits_are_bytes_on_the_link() {
        let paper = Config::paper(LINK, 100_000);
        assert_eq!(paper.packet_bytes(3_000, 0), 1538);
        assert_eq!(paper.packet_bytes(3_000, 2), 158);
        assert_eq!(paper.packet_bytes(1_461, 1), 84);
        assert_eq!(paper.bytes_of(3_000, 3), 2 * 1538 + 158);
        assert_eq!(paper.credit_time(1538), paper.credit_interval);
        assert_eq!(paper.credit_time(769).ticks(), paper.credit_interval.ticks() / 2);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        let wrong = |change: fn(&mut Config)| {
            let mut config = Config::paper(LINK, 100_000);
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(wrong(|c| c.resend_after = Span::ZERO), "resend_after must be above zero");
        assert_eq!(
            wrong(|c| c.common.max_payload = 65_000),
            "a packet of 65040 bytes is longer than 65000"
        );
        assert_eq!(wrong(|c| c.scheduled_priority = 8), "priority 8 is above 7");
        assert_eq!(
            wrong(|c| c.global_bucket = 1_537),
            "global_bucket has no room for a full packet"
        );
        assert_eq!(wrong(|c| c.sender_bucket = 0), "sender_bucket has no room for a full packet");
        assert_eq!(
            wrong(|c| c.min_network_bucket = 100_001),
            "min_network_bucket is above sender_bucket"
        );
        assert_eq!(wrong(|c| c.gain = 1_001), "gain is above 1000");
        assert_eq!(wrong(|c| c.srpt_percent = 101), "srpt_percent is above 100");
        assert_eq!(
            wrong(|c| c.max_request_interval = Span::from_us(4)),
            "min_request_interval is above max_request_interval"
        );
        let patience = "patience must be above max_request_interval and four times resend_after";
        assert_eq!(wrong(|c| c.common.patience = c.max_request_interval), patience);
        assert_eq!(wrong(|c| c.resend_after = Span::from_ms(41)), patience);
        assert_eq!(
            wrong(|c| c.common.finished_for = Span::from_ms(160)),
            "finished_for must be above 160 ms, the time for which a sender tries"
        );
    }
}

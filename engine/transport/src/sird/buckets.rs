//! The buckets of a receiver: how much credit may be outstanding in total, and to each sender.

use rackweave_core::HostId;
use rustc_hash::FxHashMap;

use super::Config;

/// Number of senders that are remembered at least, with or without messages.
const REMEMBERED: usize = 4096;

/// One of the two controls of a sender's bucket: DCTCP's algorithm with one kind of mark
/// (`docs/protocols/sird.md#sird-buckets`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Control {
    /// The capacity, in bytes.
    capacity: u64,
    /// The mean fraction of marked packets, in units of 2^-20.
    fraction: u64,
    /// Marked packets since the fraction was last updated.
    marked: u64,
    /// Packets since the last decrease.
    since_decrease: u64,
    /// The number of packets after which the capacity may decrease again.
    next_decrease: u64,
}

/// 1 in the units of [`Control::fraction`].
const WHOLE: u64 = 1 << 20;

impl Control {
    const fn new(config: &Config) -> Self {
        Self {
            capacity: config.sender_bucket,
            fraction: 0,
            marked: 0,
            since_decrease: 0,
            next_decrease: config.sender_bucket / config.full_packet(),
        }
    }

    /// Accounts for a packet of the sender. `capacity` is that of the whole bucket, and `window` the number of packets since the
    /// last update of the fractions, if they are updated now.
    fn on_packet(
        &mut self,
        is_marked: bool,
        least: u64,
        capacity: u64,
        window: Option<u64>,
        config: &Config,
    ) {
        let full = config.full_packet();
        self.since_decrease += 1;
        self.marked += u64::from(is_marked);
        if let Some(packets) = window {
            let gain = u64::from(config.gain);
            let new = self.marked * WHOLE / packets;
            self.fraction = (self.fraction * (1000 - gain) + new * gain) / 1000;
            self.marked = 0;
        }
        // A full packet for each capacity of packets. The authors' simulator does this for marked packets as well.
        let mut next = self.capacity + full * full / capacity.max(1);
        if is_marked && self.since_decrease >= self.next_decrease {
            next = next.saturating_sub(self.capacity * self.fraction / (2 * WHOLE));
            self.since_decrease = 0;
            self.next_decrease = capacity * 3 / (2 * full);
        }
        self.capacity = next.clamp(least, config.sender_bucket);
    }
}

/// What a receiver knows of a sender.
#[derive(Debug)]
pub(super) struct Sender {
    peer: HostId,
    /// Number of messages that arrive from it.
    messages: u32,
    /// Bytes that are on their way from it: credit, and data without credit.
    outstanding: u64,
    /// The capacity by the marks of the sender (`csn`).
    host: Control,
    /// The capacity by the marks of switches (ECN).
    network: Control,
    /// Packets since the fractions of marked ones were last updated.
    packets: u64,
    /// The number of packets at which they are updated next.
    next_update: u64,
}

impl Sender {
    const fn new(peer: HostId, config: &Config) -> Self {
        Self {
            peer,
            messages: 0,
            outstanding: 0,
            host: Control::new(config),
            network: Control::new(config),
            packets: 0,
            next_update: 1,
        }
    }

    /// The capacity of its bucket: the smaller of the two.
    pub(super) fn capacity(&self) -> u64 {
        self.host.capacity.min(self.network.capacity)
    }

    /// Whether it may have another credit.
    ///
    /// As in the authors' simulator, the adapted capacity may be exceeded by a packet, because it can be smaller than one;
    /// the largest capacity is not exceeded.
    #[inline]
    pub(super) fn has_room(&self, config: &Config) -> bool {
        self.outstanding <= self.capacity()
            && self.outstanding + config.full_packet() <= config.sender_bucket
    }
}

/// The global bucket, and those of all senders.
#[derive(Debug, Default)]
pub(super) struct Buckets {
    senders: Vec<Sender>,
    free: Vec<u32>,
    index: FxHashMap<HostId, u32>,
    /// Bytes that are on their way from all senders.
    outstanding: u64,
    /// The most that this has been since it was last within the global bucket.
    peak: u64,
    /// The number of senders at which those without messages are forgotten.
    sweep_at: usize,
}

impl Buckets {
    /// Adds a message from this sender; returns the sender's number.
    pub(super) fn join(&mut self, peer: HostId, config: &Config) -> u32 {
        let number = match self.index.get(&peer) {
            Some(&number) => number,
            None => self.add(peer, config),
        };
        self.senders[number as usize].messages += 1;
        number
    }

    fn add(&mut self, peer: HostId, config: &Config) -> u32 {
        if self.index.len() >= self.sweep_at.max(REMEMBERED) {
            // Twice the number of those with messages, so that each sender added pays for one that is visited here.
            for (sender, number) in self.senders.iter().zip(0..) {
                if sender.messages == 0 && self.index.get(&sender.peer) == Some(&number) {
                    self.index.remove(&sender.peer);
                    self.free.push(number);
                }
            }
            self.sweep_at = 2 * self.index.len();
        }
        let sender = Sender::new(peer, config);
        let number = if let Some(number) = self.free.pop() {
            self.senders[number as usize] = sender;
            number
        } else {
            self.senders.push(sender);
            self.senders.len() as u32 - 1
        };
        self.index.insert(peer, number);
        number
    }

    /// Removes a message of this sender, whose bytes have been given back.
    pub(super) fn leave(&mut self, number: u32) {
        self.senders[number as usize].messages -= 1;
    }

    #[inline]
    pub(super) fn sender(&self, number: u32) -> &Sender {
        &self.senders[number as usize]
    }

    /// Whether the global bucket has this many bytes left.
    #[inline]
    pub(super) const fn has_room(&self, bytes: u64, config: &Config) -> bool {
        self.outstanding + bytes <= config.global_bucket
    }

    /// Takes bytes from both buckets, whether or not they have them.
    #[inline]
    pub(super) fn take(&mut self, number: u32, bytes: u64) {
        self.senders[number as usize].outstanding += bytes;
        self.outstanding += bytes;
        self.peak = self.peak.max(self.outstanding);
    }

    /// Gives bytes back to both buckets.
    #[inline]
    pub(super) fn give_back(&mut self, number: u32, bytes: u64, config: &Config) {
        self.senders[number as usize].outstanding -= bytes;
        self.outstanding -= bytes;
        if self.outstanding <= config.global_bucket {
            self.peak = self.outstanding;
        }
    }

    /// The most bytes that may wait before something that is on its way.
    #[inline]
    pub(super) const fn peak(&self) -> u64 {
        self.peak
    }

    /// Accounts for a data packet of this sender and its marks: `csn` by the sender, `ce` by a switch.
    #[inline]
    pub(super) fn on_packet(&mut self, number: u32, csn: bool, ce: bool, config: &Config) {
        let sender = &mut self.senders[number as usize];
        let capacity = sender.capacity();
        sender.packets += 1;
        let window = (sender.packets >= sender.next_update).then_some(sender.packets);
        sender.network.on_packet(ce, config.min_network_bucket, capacity, window, config);
        sender.host.on_packet(csn, config.min_host_bucket, capacity, window, config);
        if window.is_some() {
            sender.packets = 0;
            sender.next_update = (sender.capacity() / config.full_packet()).max(1);
        }
    }

    /// Bytes that are on their way from all senders.
    #[cfg(test)]
    pub(super) const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The capacity of this sender's bucket, if it is remembered.
    #[cfg(test)]
    pub(super) fn capacity_of(&self, peer: HostId) -> Option<u64> {
        self.index.get(&peer).map(|number| self.sender(*number).capacity())
    }

    /// Asserts that the sums agree, and returns the number of messages.
    #[cfg(test)]
    pub(super) fn check(&self) -> u32 {
        let known =
            |(sender, number): &(&Sender, u32)| self.index.get(&sender.peer) == Some(number);
        let known: Vec<_> = self.senders.iter().zip(0..).filter(known).collect();
        assert_eq!(known.len(), self.index.len());
        assert_eq!(known.len() + self.free.len(), self.senders.len());
        let sum: u64 = known.iter().map(|(sender, _)| sender.outstanding).sum();
        assert_eq!(sum, self.outstanding);
        known.iter().map(|(sender, _)| sender.messages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rate;

    fn config() -> Config {
        Config::paper(Rate::from_gbps(100), 100_000)
    }

    fn one() -> (Buckets, u32, Config) {
        let config = config();
        let mut buckets = Buckets::default();
        let number = buckets.join(HostId(1), &config);
        (buckets, number, config)
    }

    /// `docs/protocols/sird.md#sird-buckets`: the first mark counts in full, 0.08 of the mean, and half the mean is subtracted.
    #[test]
    fn the_first_decrease() {
        let (mut buckets, number, config) = one();
        // The fraction is updated at the first packet, but the bucket does not decrease within the first 65.
        for _ in 0..64 {
            buckets.on_packet(number, true, false, &config);
        }
        assert_eq!(buckets.sender(number).capacity(), 100_000);
        buckets.on_packet(number, true, false, &config);
        // 0.08 after the first packet; the next update is after another 65. 23 = 1538 * 1538 / 100000 is added.
        assert_eq!(buckets.sender(number).capacity(), 100_000 + 23 - 3_999);
    }

    #[test]
    fn marks_of_the_sender_shrink_its_bucket_to_the_least() {
        let (mut buckets, number, config) = one();
        for _ in 0..20_000 {
            buckets.on_packet(number, true, false, &config);
        }
        let sender = buckets.sender(number);
        assert!(sender.capacity() < 15_000, "{}", sender.capacity());
        assert!(sender.capacity() >= config.min_host_bucket);
        assert_eq!(sender.network.capacity, 100_000);
    }

    #[test]
    fn marks_of_switches_shrink_it_further() {
        let (mut buckets, number, config) = one();
        for _ in 0..20_000 {
            buckets.on_packet(number, false, true, &config);
        }
        let sender = buckets.sender(number);
        assert!((config.min_network_bucket..8_000).contains(&sender.capacity()));
        assert_eq!(sender.host.capacity, 100_000);
    }

    #[test]
    fn without_marks_the_bucket_grows_by_a_packet_for_each_capacity() {
        let (mut buckets, number, config) = one();
        for _ in 0..20_000 {
            buckets.on_packet(number, true, false, &config);
        }
        let before = buckets.sender(number).capacity();
        for _ in 0..before / 1538 {
            buckets.on_packet(number, false, false, &config);
        }
        let grown = buckets.sender(number).capacity() - before;
        assert!((1_100..=1_538).contains(&grown), "{grown}");
        for _ in 0..20_000 {
            buckets.on_packet(number, false, false, &config);
        }
        assert_eq!(buckets.sender(number).capacity(), 100_000, "and no further");
    }

    /// Half of the packets marked: less than all marked, more than none.
    #[test]
    fn the_decrease_is_proportional_to_the_marks() {
        let least_of = |every: u32| {
            let (mut buckets, number, config) = one();
            let config = Config { min_host_bucket: 0, ..config };
            let mut least = u64::MAX;
            for n in 0..4_000 {
                buckets.on_packet(number, n % every == 0, false, &config);
                least = least.min(buckets.sender(number).capacity());
            }
            least
        };
        let (all, half, few) = (least_of(1), least_of(2), least_of(20));
        assert!(all < half && half < few, "{all} {half} {few}");
    }

    #[test]
    fn a_sender_has_room_up_to_its_capacity_and_a_packet() {
        let (mut buckets, number, config) = one();
        assert!(buckets.sender(number).has_room(&config));
        buckets.take(number, 98_462);
        assert!(buckets.sender(number).has_room(&config));
        buckets.take(number, 1);
        assert!(!buckets.sender(number).has_room(&config), "not above the largest capacity");
        buckets.give_back(number, 80_000, &config);
        for _ in 0..20_000 {
            buckets.on_packet(number, true, false, &config);
        }
        let capacity = buckets.sender(number).capacity();
        assert!(capacity < 18_463 && !buckets.sender(number).has_room(&config));
        buckets.give_back(number, 18_463 - capacity, &config);
        assert!(buckets.sender(number).has_room(&config));
    }

    #[test]
    fn senders_without_messages_are_forgotten() {
        let config = config();
        let mut buckets = Buckets::default();
        for n in 0..100_000 {
            let number = buckets.join(HostId(n), &config);
            if n % 100 != 0 {
                buckets.leave(number);
            }
        }
        assert_eq!(buckets.check(), 1_000);
        assert!(buckets.senders.len() <= 2 * 4_096, "{}", buckets.senders.len());
        // Those with messages keep their numbers.
        let number = buckets.join(HostId(100), &config);
        assert_eq!(buckets.sender(number).messages, 2);
    }
}

//! Priorities of unscheduled packets: the shortest messages use the highest level.

use super::config::{Config, MAX_PRIORITIES, PriorityBy};

/// The unscheduled levels of a host, which map a length in bytes to a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// `longest[p]` is the length of the longest message that uses priority `p`; non-increasing in `p`.
    longest: [u32; MAX_PRIORITIES as usize],
    num_priorities: u8,
    unscheduled_levels: u8,
}

impl Cutoffs {
    /// The kernel module's defaults: cutoffs of 200, 2800 and 15000 bytes, and a level for longer messages
    /// (docs/protocols/homa.md#homa-parameters).
    pub const LINUX: Self = Self {
        longest: [u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, 15_000, 2_800, 200],
        num_priorities: 8,
        unscheduled_levels: 4,
    };

    /// Explicit cutoffs: the longest message of each unscheduled level, highest level first. The last level
    /// also takes all longer messages.
    ///
    /// `None` if there is no unscheduled or no scheduled level, if there are more than [`MAX_PRIORITIES`]
    /// levels, or if a cutoff is lower than the one before.
    #[must_use]
    pub fn new(longest_first_level_first: &[u32], num_priorities: u8) -> Option<Self> {
        let levels = longest_first_level_first.len();
        if levels == 0
            || levels >= usize::from(num_priorities)
            || num_priorities > MAX_PRIORITIES
            || longest_first_level_first.windows(2).any(|pair| pair[0] > pair[1])
        {
            return None;
        }
        let mut longest = [u32::MAX; MAX_PRIORITIES as usize];
        for (i, cutoff) in longest_first_level_first[..levels - 1].iter().enumerate() {
            longest[usize::from(num_priorities) - 1 - i] = *cutoff;
        }
        Some(Self { longest, num_priorities, unscheduled_levels: levels as u8 })
    }

    /// Cutoffs from the seven numbers of a CUTOFFS packet, for priorities 7 down to 1.
    pub(super) fn from_wire(cutoffs: [u32; 7], num_priorities: u8) -> Self {
        let mut longest = [u32::MAX; MAX_PRIORITIES as usize];
        let mut unscheduled_levels = 1;
        for (i, cutoff) in cutoffs.into_iter().enumerate() {
            longest[7 - i] = cutoff;
            unscheduled_levels += u8::from(cutoff != u32::MAX);
        }
        Self { longest, num_priorities, unscheduled_levels: unscheduled_levels.min(7) }
    }

    /// The cutoffs as the seven numbers of a CUTOFFS packet.
    pub(super) fn to_wire(self) -> [u32; 7] {
        core::array::from_fn(|i| self.longest[7 - i])
    }

    /// The priority for a length: from the highest level down, the first whose cutoff is not below it
    /// (docs/protocols/homa.md#homa-sending).
    #[must_use]
    #[inline]
    pub fn priority(&self, bytes: u32) -> u8 {
        let mut priority = self.num_priorities - 1;
        while priority > 0 && self.longest[usize::from(priority)] < bytes {
            priority -= 1;
        }
        priority
    }

    /// Number of all priority levels, including scheduled ones.
    #[must_use]
    pub const fn num_priorities(&self) -> u8 {
        self.num_priorities
    }

    /// Number of levels for unscheduled packets, which are the highest ones.
    #[must_use]
    pub const fn unscheduled_levels(&self) -> u8 {
        self.unscheduled_levels
    }

    /// Number of levels for scheduled packets; at least one.
    #[must_use]
    pub const fn scheduled_levels(&self) -> u8 {
        self.num_priorities - self.unscheduled_levels
    }
}

/// Divides `num_priorities` levels for a workload of (size, weight) pairs. The number of unscheduled levels is
/// proportional to the share of unscheduled bytes, with at least one unscheduled and one scheduled level. The
/// cutoffs give each unscheduled level about the same number of bytes (SIGCOMM'18 section 3.4;
/// docs/protocols/homa.md#homa-cutoffs). As in `HomaModule`, bytes are payload bytes, classified by message length.
///
/// Sizes may be in any order; sizes and weights of zero or less do not count. Without any bytes there is one
/// unscheduled level.
///
/// # Panics
///
/// If there are fewer than two priorities, or more than [`MAX_PRIORITIES`].
#[must_use]
pub fn allocate(sizes: &[(u32, f64)], unsched_bytes: u32, num_priorities: u8) -> Cutoffs {
    let pieces = valid(sizes)
        .map(|(size, weight)| (size, f64::from(size.min(unsched_bytes)) * weight))
        .collect::<Vec<_>>();
    let total: f64 = valid(sizes).map(|(size, weight)| f64::from(size) * weight).sum();
    let unscheduled: f64 = pieces.iter().map(|&(_, bytes)| bytes).sum();
    let levels = levels(unscheduled, total, num_priorities);
    balance(pieces, levels, num_priorities)
}

/// As [`allocate`], for the packets that hosts of this configuration send: with headers, and classified by
/// [`Config::priority_by`].
///
/// `unscheduled_levels` overrides the number of levels. The authors of SIGCOMM'18 set it by hand: 7, 5, 4, 1
/// and 1 for W1 to W5 (`adaptiveSchedPrioLevels` of their simulation).
///
/// # Panics
///
/// If the numbers of levels contradict each other.
#[must_use]
pub fn allocate_for(
    config: &Config,
    sizes: &[(u32, f64)],
    unscheduled_levels: Option<u8>,
) -> Cutoffs {
    let framing = config.framing();
    let mut pieces = Vec::new();
    let (mut unscheduled, mut total) = (0.0, 0.0);
    for (size, weight) in valid(sizes) {
        // Hosts refuse longer messages.
        let size = size.min(config.max_message_bytes);
        total += framing.message_wire_bytes(u64::from(size)) as f64 * weight;
        let first = config.whole_packets(config.unscheduled_bytes, size);
        let mut add = |offset: u32| {
            let len = (size - offset).min(config.max_payload);
            let bytes = f64::from(framing.packet_wire_bytes(len)) * weight;
            let by = match config.priority_by {
                PriorityBy::Length => size,
                PriorityBy::BytesLeft => size - offset,
            };
            pieces.push((by, bytes));
            bytes
        };
        for offset in (0..first).step_by(config.max_payload as usize) {
            unscheduled += add(offset);
        }
        if config.priority_by == PriorityBy::BytesLeft {
            // The end of a long message uses unscheduled priorities, too.
            let tail = size.saturating_sub(config.window).saturating_add(1).max(first);
            let tail = tail.checked_next_multiple_of(config.max_payload).unwrap_or(size);
            for offset in (tail..size).step_by(config.max_payload as usize) {
                let _ = add(offset);
            }
        }
    }
    let num_priorities = config.num_priorities;
    let levels = unscheduled_levels.unwrap_or_else(|| levels(unscheduled, total, num_priorities));
    balance(pieces, levels, num_priorities)
}

fn valid(sizes: &[(u32, f64)]) -> impl Iterator<Item = (u32, f64)> + '_ {
    sizes.iter().copied().filter(|&(size, weight)| size > 0 && weight > 0.0 && weight.is_finite())
}

fn levels(unscheduled: f64, total: f64, num_priorities: u8) -> u8 {
    assert!((2..=MAX_PRIORITIES).contains(&num_priorities), "{num_priorities} priorities");
    let share = if total > 0.0 { unscheduled / total } else { 0.0 };
    let levels = (f64::from(num_priorities) * share + 0.5) as u8;
    levels.clamp(1, num_priorities - 1)
}

/// Cutoffs that give each of `levels` levels the same number of bytes. Each piece is the number that determines
/// its priority, and its bytes.
fn balance(mut pieces: Vec<(u32, f64)>, levels: u8, num_priorities: u8) -> Cutoffs {
    pieces.sort_unstable_by_key(|&(by, _)| by);
    let total: f64 = pieces.iter().map(|&(_, bytes)| bytes).sum();
    let each = total / f64::from(levels.max(1));
    let mut cutoffs = Vec::new();
    let (mut sum, mut next) = (0.0, each);
    for (i, &(by, bytes)) in pieces.iter().enumerate() {
        sum += bytes;
        let last_of_its_size = pieces.get(i + 1).is_none_or(|&(other, _)| other > by);
        if last_of_its_size && sum >= next && cutoffs.len() + 1 < usize::from(levels) {
            cutoffs.push(by);
            next = sum + each;
        }
    }
    // With few sizes there may be fewer cutoffs than levels: the lowest level takes the rest.
    cutoffs.resize(usize::from(levels), u32::MAX);
    Cutoffs::new(&cutoffs, num_priorities).expect("levels fit and cutoffs rise")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackweave_core::Rate;

    #[test]
    fn the_first_cutoff_that_is_not_below_counts() {
        let cutoffs = Cutoffs::LINUX;
        for (bytes, priority) in
            [(1, 7), (200, 7), (201, 6), (2_800, 6), (15_000, 5), (15_001, 4), (u32::MAX, 4)]
        {
            assert_eq!(cutoffs.priority(bytes), priority, "{bytes}");
        }
        assert_eq!((cutoffs.unscheduled_levels(), cutoffs.scheduled_levels()), (4, 4));
        assert_eq!(Cutoffs::from_wire(cutoffs.to_wire(), 8), cutoffs);
        assert_eq!(Cutoffs::new(&[200, 2_800, 15_000, u32::MAX], 8), Some(cutoffs));
        assert_eq!(Cutoffs::new(&[200, 100, 300], 8), None);
        assert_eq!(Cutoffs::new(&[], 8), None);
        assert_eq!(Cutoffs::new(&[1; 8], 8), None);
    }

    /// Sizes from 1 to 1024 times a step, in a geometric series, with weights that give each the same number of
    /// bytes.
    fn geometric(step: u32) -> Vec<(u32, f64)> {
        (0..11).map(|i| (step << i, 1.0 / f64::from(step << i))).collect()
    }

    #[test]
    fn short_messages_leave_one_level_and_long_ones_take_one() {
        let short = allocate(&geometric(1), 10_000, 8);
        assert_eq!((short.unscheduled_levels(), short.scheduled_levels()), (7, 1));
        let long = allocate(&geometric(1_000_000), 10_000, 8);
        assert_eq!((long.unscheduled_levels(), long.scheduled_levels()), (1, 7));
        assert_eq!(long.priority(1_000_000_000), 7);
        let between = allocate(&[(10_000, 1.0), (30_000, 1.0)], 10_000, 8);
        assert_eq!(between.unscheduled_levels(), 4, "half of the bytes are unscheduled");
        assert_eq!(allocate(&[], 10_000, 8).unscheduled_levels(), 1);
        assert_eq!(allocate(&[(0, 1.0), (5, f64::NAN)], 10_000, 2).unscheduled_levels(), 1);
    }

    #[test]
    fn each_level_carries_its_share() {
        let sizes: Vec<_> = (1..=5_000).map(|size| (size, 1.0)).collect();
        let cutoffs = allocate(&sizes, 10_000, 8);
        let mut bytes = [0.0; 8];
        for (size, weight) in sizes {
            bytes[usize::from(cutoffs.priority(size))] += f64::from(size) * weight;
        }
        let each = bytes.iter().sum::<f64>() / 7.0;
        assert!(bytes[0] == 0.0, "{bytes:?}");
        assert!(bytes[1..].iter().all(|b| (b / each - 1.0).abs() < 0.01), "{bytes:?}");
    }

    #[test]
    fn sizes_above_the_longest_message_count_as_that() {
        let mut config = Config::fabric(Rate::from_gbps(10), 10_000);
        config.window = 1;
        let cutoffs = allocate_for(&config, &[(300, 1.0), (u32::MAX, 1.0)], Some(2));
        assert_eq!(cutoffs, allocate_for(&config, &[(300, 1.0), (1 << 31, 1.0)], Some(2)));
        config.max_message_bytes = u32::MAX;
        assert_eq!(allocate_for(&config, &[(u32::MAX, 1.0)], None).unscheduled_levels(), 1);
    }

    #[test]
    fn by_bytes_left_the_levels_carry_equal_bytes_of_packets() {
        let config = Config::fabric(Rate::from_gbps(10), 10_000);
        let sizes = [(300, 50.0), (3_000, 10.0), (20_000, 2.0), (200_000, 1.0)];
        let cutoffs = allocate_for(&config, &sizes, Some(4));
        assert_eq!(cutoffs.unscheduled_levels(), 4);
        // Most bytes belong to first packets of long messages and to the ends of all messages.
        assert!(cutoffs.priority(300) > cutoffs.priority(20_000));
        assert_eq!(cutoffs.priority(200_000), 4);
        let by_share = allocate_for(&config, &sizes, None);
        assert_eq!(by_share.unscheduled_levels(), 2);
    }
}

//! Priorities of unscheduled packets: the shortest messages use the highest level.

use super::config::MAX_PRIORITIES;

/// The unscheduled levels of a host: which priority a packet has by a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// `longest[p]`: the longest message that uses priority `p`; non-increasing in `p`.
    longest: [u32; MAX_PRIORITIES as usize],
    num_priorities: u8,
    unscheduled_levels: u8,
}

impl Cutoffs {
    /// The kernel module's defaults: 200, 2800 and 15000 bytes, and everything longer (facts 1.2).
    pub const LINUX: Self = Self {
        longest: [u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, 15_000, 2_800, 200],
        num_priorities: 8,
        unscheduled_levels: 4,
    };

    /// Cutoffs by hand: the longest message of each unscheduled level, highest level first; the
    /// last of them takes all longer ones too.
    ///
    /// `None` if there is no level, no scheduled one, more than [`MAX_PRIORITIES`], or if the
    /// cutoffs fall.
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

    /// From the seven numbers of a CUTOFFS packet, for priorities 7 down to 1.
    pub(super) fn from_wire(cutoffs: [u32; 7], num_priorities: u8) -> Self {
        let mut longest = [u32::MAX; MAX_PRIORITIES as usize];
        let mut unscheduled_levels = 1;
        for (i, cutoff) in cutoffs.into_iter().enumerate() {
            longest[7 - i] = cutoff;
            unscheduled_levels += u8::from(cutoff != u32::MAX);
        }
        Self { longest, num_priorities, unscheduled_levels: unscheduled_levels.min(7) }
    }

    /// As in a CUTOFFS packet.
    pub(super) fn to_wire(self) -> [u32; 7] {
        core::array::from_fn(|i| self.longest[7 - i])
    }

    /// The priority by this many bytes: "from the highest down, the first whose cutoff is not
    /// below" (facts 1.3).
    #[must_use]
    #[inline]
    pub fn priority(&self, bytes: u32) -> u8 {
        let mut priority = self.num_priorities - 1;
        while priority > 0 && self.longest[usize::from(priority)] < bytes {
            priority -= 1;
        }
        priority
    }

    /// All priority levels, scheduled ones included.
    #[must_use]
    pub const fn num_priorities(&self) -> u8 {
        self.num_priorities
    }

    /// How many levels are for unscheduled packets: the highest ones.
    #[must_use]
    pub const fn unscheduled_levels(&self) -> u8 {
        self.unscheduled_levels
    }

    /// How many levels are left for scheduled packets: at least one.
    #[must_use]
    pub const fn scheduled_levels(&self) -> u8 {
        self.num_priorities - self.unscheduled_levels
    }
}

//! D, the number of driving packets: how it follows the marks (slide 10).

use super::Config;

/// What the receiver counts in an epoch, and what follows for D.
#[derive(Debug)]
pub(super) struct Drives {
    /// Driving packets (and what they bring) that may be on the way.
    d: u32,
    /// The first epoch lasts until an adjoint packet has come back for the first time.
    first_epoch: bool,
    /// Data packets of this epoch, and those with a mark.
    arrivals: u32,
    marks: u32,
    /// D was used up in this epoch.
    limited: bool,
}

impl Drives {
    /// Slide 10: "in the initialization, D = 0".
    pub(super) const fn new() -> Self {
        Self { d: 0, first_epoch: true, arrivals: 0, marks: 0, limited: false }
    }

    /// How many may be on the way.
    pub(super) fn allowed(&self, config: &Config) -> u32 {
        self.d.max(config.min_drives)
    }

    /// Whether no epoch has ended yet.
    pub(super) const fn in_first_epoch(&self) -> bool {
        self.first_epoch
    }

    /// D.
    pub(super) const fn d(&self) -> u32 {
        self.d
    }

    /// A driving packet is not sent because of D.
    pub(super) const fn was_limited(&mut self) {
        self.limited = true;
    }

    /// A data packet has arrived. M marks take M/2 off D: one at every second mark, without waiting for the
    /// end of the epoch (ours; the sum is the slide's). In the first epoch each packet without a mark
    /// adds one.
    pub(super) fn data(&mut self, marked: bool, config: &Config) {
        self.arrivals = self.arrivals.saturating_add(1);
        if marked {
            self.marks = self.marks.saturating_add(1);
            if self.marks.is_multiple_of(2) {
                self.fewer(config);
            }
        } else if self.first_epoch {
            self.d = self.d.saturating_add(1).min(config.max_drives);
        }
    }

    /// One less on the way.
    pub(super) fn fewer(&mut self, config: &Config) {
        let least = if self.first_epoch { 0 } else { config.min_drives };
        self.d = self.d.saturating_sub(1).max(least);
    }

    /// An epoch ends. If no packet of it was marked, D grows by one, unless it was not used up (ours: nothing
    /// is known then of how many the network holds). Returns what the epoch was.
    pub(super) fn end_epoch(&mut self, config: &Config) -> Epoch {
        let epoch = Epoch { data: self.arrivals > 0, marks: self.marks > 0 };
        if !self.first_epoch && epoch.data && !epoch.marks && self.limited {
            self.d = self.d.saturating_add(1);
        }
        self.d = self.d.clamp(config.min_drives, config.max_drives);
        *self = Self { d: self.d, first_epoch: false, ..Self::new() };
        epoch
    }
}

/// What came in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) data: bool,
    pub(super) marks: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `o`: a packet without a mark; `x`: one with; `|`: the end of the epoch; `L`: D was used up.
    fn after(events: &str) -> u32 {
        let config = Config { max_drives: 16, ..Config::slides() };
        let mut drives = Drives::new();
        for event in events.chars() {
            match event {
                'o' | 'x' => drives.data(event == 'x', &config),
                'L' => drives.was_limited(),
                _ => {
                    drives.end_epoch(&config);
                }
            }
        }
        drives.d()
    }

    #[test]
    fn the_rules_of_slide_10() {
        for (events, d) in [
            ("", 0),
            // The first epoch: one for each packet without a mark, half off for each with one.
            ("o", 1),
            ("oooooooo", 8),
            ("oooooooox", 8),
            ("ooooooooxx", 7),
            ("ooooooooxxxxx", 6),
            ("oxoxoxox", 2),
            ("xxxxoo", 2),
            // Later ones: one more if none is marked, half of the marks off.
            ("oooo|", 4),
            ("oooo|Loooo|", 5),
            ("oooo|Loooo|Looooo|", 6),
            ("oooo|Looox|", 4),
            ("oooooo|Looxxx|", 5),
            ("oooooo|Lxxxxxx|", 3),
            ("oooooo|xx|oooo|", 5),
            // Marks count by epoch: one in each of two changes nothing.
            ("oooo|x|x|", 4),
            // Ours: an epoch without data, or in which D was not used up, changes nothing.
            ("oooo|L|", 4),
            ("oooo|oooo|", 4),
            // Ours: the least and the most.
            ("|", 1),
            ("xxxx|", 1),
            ("oo|xxxxxxxx|", 1),
            ("oooooooooooooooooooooooo|", 16),
            ("oooooooooooooooo|Lo|", 16),
        ] {
            assert_eq!(after(events), d, "{events}");
        }
    }
}

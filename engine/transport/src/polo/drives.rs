//! D, the maximum number of outstanding driving packets, and its reaction to ECN marks (slide 10).

use super::Config;

/// D, and what the receiver counts during an epoch to adjust it.
#[derive(Debug)]
pub(super) struct Drives {
    /// Maximum number of packets that are requested and have not arrived.
    d: u32,
    /// Whether no adjoint packet has returned yet.
    first_epoch: bool,
    /// Number of data packets that arrived in this epoch.
    arrivals: u32,
    /// Number of these that carried an ECN mark.
    marks: u32,
    /// Whether D prevented a driving packet in this epoch.
    limited: bool,
}

impl Drives {
    /// The initial state (slide 10: "in the initialization, D = 0").
    pub(super) const fn new() -> Self {
        Self { d: 0, first_epoch: true, arrivals: 0, marks: 0, limited: false }
    }

    /// Maximum number of outstanding packets: D, but at least the configured minimum.
    pub(super) fn allowed(&self, config: &Config) -> u32 {
        self.d.max(config.min_drives)
    }

    /// Whether no epoch has ended yet.
    pub(super) const fn in_first_epoch(&self) -> bool {
        self.first_epoch
    }

    /// The current value of D.
    pub(super) const fn d(&self) -> u32 {
        self.d
    }

    /// Records that D has prevented a driving packet.
    pub(super) const fn note_limited(&mut self) {
        self.limited = true;
    }

    /// Counts an arriving data packet. M marks reduce D by M/2 in total: by one at every second mark, without
    /// waiting for the end of the epoch (the total is the slide's; the immediate reaction is our choice). In
    /// the first epoch each packet without a mark increases D by one.
    pub(super) fn on_data(&mut self, marked: bool, config: &Config) {
        self.arrivals = self.arrivals.saturating_add(1);
        if marked {
            self.marks = self.marks.saturating_add(1);
            if self.marks.is_multiple_of(2) {
                self.decrement(config);
            }
        } else if self.first_epoch {
            self.d = self.d.saturating_add(1).min(config.max_drives);
        }
    }

    /// Reduces D by one.
    pub(super) fn decrement(&mut self, config: &Config) {
        let least = if self.first_epoch { 0 } else { config.min_drives };
        self.d = self.d.saturating_sub(1).max(least);
    }

    /// Ends an epoch. If none of its packets was marked, D grows by one, unless D was not used up (our choice:
    /// then nothing is known about how many packets the network can hold). Returns what arrived in the epoch.
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

/// The arrivals of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) data: bool,
    pub(super) marks: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D after a sequence of events. `o`: a packet without a mark; `x`: a marked one; `|`: the end of the
    /// epoch; `L`: D prevented a driving packet.
    fn after(events: &str) -> u32 {
        let config = Config { max_drives: 16, ..Config::slides() };
        let mut drives = Drives::new();
        for event in events.chars() {
            match event {
                'o' | 'x' => drives.on_data(event == 'x', &config),
                'L' => drives.note_limited(),
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
            // First epoch: plus one per unmarked packet, minus one half per marked packet.
            ("o", 1),
            ("oooooooo", 8),
            ("oooooooox", 8),
            ("ooooooooxx", 7),
            ("ooooooooxxxxx", 6),
            ("oxoxoxox", 2),
            ("xxxxoo", 2),
            // Later epochs: plus one if no packet is marked, minus half of the marks.
            ("oooo|", 4),
            ("oooo|Loooo|", 5),
            ("oooo|Loooo|Looooo|", 6),
            ("oooo|Looox|", 4),
            ("oooooo|Looxxx|", 5),
            ("oooooo|Lxxxxxx|", 3),
            ("oooooo|xx|oooo|", 5),
            // Marks count per epoch: one mark in each of two epochs changes nothing.
            ("oooo|x|x|", 4),
            // Our choice: an epoch without data, or in which D was not used up, changes nothing.
            ("oooo|L|", 4),
            ("oooo|oooo|", 4),
            // Our choice: the minimum and the maximum.
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

//! The packets of a worker that the master has taken.

/// Which packets of a window were taken: the sequence number plus 1 of the latest, by number modulo the window.
#[derive(Clone, Debug)]
pub(super) struct Taken(Vec<u32>);

impl Taken {
    pub(super) fn new(window: u16) -> Self {
        Self(vec![0; usize::from(window.max(1))])
    }

    /// Another attempt: sequence numbers begin again.
    pub(super) fn forget(&mut self) {
        self.0.fill(0);
    }

    /// Returns whether a packet was taken; `None` if its number is impossible.
    pub(super) fn has(&self, seq: u32) -> Option<bool> {
        let next = seq.checked_add(1)?;
        Some(self.0[seq as usize % self.0.len()] >= next)
    }

    pub(super) fn insert(&mut self, seq: u32) {
        let index = seq as usize % self.0.len();
        self.0[index] = seq.saturating_add(1);
    }
}

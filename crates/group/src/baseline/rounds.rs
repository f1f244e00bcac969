//! The server's files.

use rackweave_core::Time;

/// Files that go to all clients one after the other, and who has acknowledged which.
#[derive(Clone, Debug)]
pub struct Rounds {
    files: Vec<u64>,
    /// The next file waits until all have acknowledged the one before.
    wait: bool,
    /// By client: files that it has acknowledged; `None`: lost, nobody waits for it.
    acked: Vec<Option<u32>>,
    begun: Vec<Time>,
    ended: Vec<Time>,
}

impl Rounds {
    /// `files` by their length, for so many clients. With `wait`, each waits for the one before, as in the paper; without, they
    /// follow each other as fast as they are written.
    #[must_use]
    pub fn new(files: Vec<u64>, clients: usize, wait: bool) -> Self {
        Self { files, wait, acked: vec![Some(0); clients], begun: Vec::new(), ended: Vec::new() }
    }

    /// The length of the next file, if it is its turn; `idle`: the one before is written. It counts as begun then.
    pub fn begin(&mut self, now: Time, idle: bool) -> Option<u64> {
        let turn = idle && (!self.wait || self.ended.len() == self.begun.len());
        let bytes = *self.files.get(self.begun.len()).filter(|_| turn)?;
        self.begun.push(now);
        Some(bytes)
    }

    /// A client has so many files whole.
    pub fn acknowledge(&mut self, now: Time, client: usize, files: u32) {
        if let Some(Some(acked)) = self.acked.get_mut(client) {
            *acked = (*acked).max(files);
        }
        self.settle(now);
    }

    /// A client is lost: nobody waits for it any more.
    pub fn lose(&mut self, now: Time, client: usize) {
        if let Some(acked) = self.acked.get_mut(client) {
            *acked = None;
        }
        self.settle(now);
    }

    fn settle(&mut self, now: Time) {
        let by_all = self.acked.iter().flatten().min().copied().unwrap_or(0) as usize;
        while self.ended.len() < by_all.min(self.begun.len()) {
            self.ended.push(now);
        }
    }

    /// Whether all files are acknowledged by all clients that are not lost, or nobody is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ended.len() == self.files.len() || self.acked.iter().all(Option::is_none)
    }

    /// Lengths of the files.
    #[must_use]
    pub fn files(&self) -> &[u64] {
        &self.files
    }

    /// By file that has begun: when its first chunk was sent, and when the last acknowledgement came.
    pub fn times(&self) -> impl Iterator<Item = (Time, Option<Time>)> + '_ {
        let ended = self.ended.iter().copied().map(Some).chain(std::iter::repeat(None));
        self.begun.iter().copied().zip(ended)
    }

    /// Whether this client is lost.
    #[must_use]
    pub fn is_lost(&self, client: usize) -> bool {
        self.acked.get(client).is_none_or(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_waits_for_the_acknowledgements_of_the_one_before() {
        let mut rounds = Rounds::new(vec![10, 20], 2, true);
        assert_eq!(rounds.begin(Time(1), true), Some(10));
        assert_eq!(rounds.begin(Time(2), true), None);
        rounds.acknowledge(Time(3), 0, 1);
        assert_eq!(rounds.begin(Time(3), true), None, "one of two");
        rounds.acknowledge(Time(4), 1, 1);
        assert_eq!(rounds.begin(Time(5), true), Some(20));
        rounds.acknowledge(Time(6), 0, 2);
        assert!(!rounds.is_done());
        rounds.lose(Time(7), 1);
        assert!(rounds.is_done());
        let times: Vec<_> = rounds.times().collect();
        assert_eq!(times, [(Time(1), Some(Time(4))), (Time(5), Some(Time(7)))]);
    }

    #[test]
    fn without_waiting_files_follow_when_they_are_written() {
        let mut rounds = Rounds::new(vec![10, 20], 1, false);
        assert_eq!(rounds.begin(Time(1), true), Some(10));
        assert_eq!(rounds.begin(Time(2), false), None);
        assert_eq!(rounds.begin(Time(2), true), Some(20));
        // One acknowledgement may stand for several; one of a file that was never begun counts for nothing.
        rounds.acknowledge(Time(9), 0, 7);
        assert!(rounds.is_done());
        assert_eq!(rounds.begin(Time(9), true), None);
    }
}

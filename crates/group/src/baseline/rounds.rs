//! The files of a server.

use rackweave_core::Time;

/// Files that are sent to all clients one after the other, and which client has acknowledged which.
#[derive(Clone, Debug)]
pub struct Rounds {
    files: Vec<u64>,
    /// A file waits until all clients have acknowledged the one before.
    wait: bool,
    /// The number of files that each client has acknowledged; `None` for a lost client.
    acked: Vec<Option<u32>>,
    started: Vec<Time>,
    ended: Vec<Time>,
}

impl Rounds {
    /// Files of these lengths for this many clients. With `wait` a file waits for the acknowledgements of the one before, as
    /// in the evaluation (section III.A.1); without, files follow each other as fast as they are written.
    #[must_use]
    pub fn new(files: Vec<u64>, clients: usize, wait: bool) -> Self {
        Self { files, wait, acked: vec![Some(0); clients], started: Vec::new(), ended: Vec::new() }
    }

    /// Starts the next file, if it may be sent, and returns its length. `idle` says whether the file before is written.
    pub fn start_next(&mut self, now: Time, idle: bool) -> Option<u64> {
        let may_start = idle && (!self.wait || self.ended.len() == self.started.len());
        let bytes = *self.files.get(self.started.len()).filter(|_| may_start)?;
        self.started.push(now);
        Some(bytes)
    }

    /// A client has this many complete files.
    pub fn acknowledge(&mut self, now: Time, client: usize, files: u32) {
        if let Some(Some(acked)) = self.acked.get_mut(client) {
            *acked = (*acked).max(files);
        }
        self.end_acknowledged(now);
    }

    /// A client is lost, and no longer waited for.
    pub fn lose(&mut self, now: Time, client: usize) {
        if let Some(acked) = self.acked.get_mut(client) {
            *acked = None;
        }
        self.end_acknowledged(now);
    }

    /// Ends the files that all clients have acknowledged.
    fn end_acknowledged(&mut self, now: Time) {
        let by_all = self.acked.iter().flatten().min().copied().unwrap_or(0) as usize;
        while self.ended.len() < by_all.min(self.started.len()) {
            self.ended.push(now);
        }
    }

    /// Whether all files are acknowledged by all clients that are not lost, or no client is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ended.len() == self.files.len() || self.acked.iter().all(Option::is_none)
    }

    /// The lengths of the files.
    #[must_use]
    pub fn files(&self) -> &[u64] {
        &self.files
    }

    /// For each file that was started: when its first chunk was sent, and when its last acknowledgement arrived.
    pub fn times(&self) -> impl Iterator<Item = (Time, Option<Time>)> + '_ {
        let ended = self.ended.iter().copied().map(Some).chain(std::iter::repeat(None));
        self.started.iter().copied().zip(ended)
    }

    /// Whether a client is lost.
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
        assert_eq!(rounds.start_next(Time(1), true), Some(10));
        assert_eq!(rounds.start_next(Time(2), true), None);
        rounds.acknowledge(Time(3), 0, 1);
        assert_eq!(rounds.start_next(Time(3), true), None, "one of two");
        rounds.acknowledge(Time(4), 1, 1);
        assert_eq!(rounds.start_next(Time(5), true), Some(20));
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
        assert_eq!(rounds.start_next(Time(1), true), Some(10));
        assert_eq!(rounds.start_next(Time(2), false), None);
        assert_eq!(rounds.start_next(Time(2), true), Some(20));
        // An acknowledgement is cumulative, and has no effect on files that were not started.
        rounds.acknowledge(Time(9), 0, 7);
        assert!(rounds.is_done());
        assert_eq!(rounds.start_next(Time(9), true), None);
    }
}

//! The processes of a sender, which write its casts to sockets one buffer at a time.

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Rate, Span, Time};

/// The time that a process needs to write a buffer to a socket: reading the data, the system call and the copy; and for what it does
/// once for each cast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The fixed time for each cast, before its first buffer.
    pub per_cast: Span,
    /// The fixed time for each buffer.
    pub per_buffer: Span,
    /// The rate at which bytes are copied; `None` if the copy takes no time.
    pub copy_rate: Option<Rate>,
}

impl Cost {
    /// Returns the time to write a buffer of this length in bytes.
    #[must_use]
    pub fn time(self, bytes: u64) -> Span {
        let copying = self.copy_rate.filter(|rate| rate.0 > 0).map_or(0, |rate| {
            let ticks = u128::from(bytes) * 8 * u128::from(TICKS_PER_SECOND) / u128::from(rate.0);
            u64::try_from(ticks).unwrap_or(u64::MAX / 4)
        });
        self.per_buffer.saturating_add(Span::from_ticks(copying))
    }
}

/// A buffer that a process has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The index of the socket, from 0.
    pub socket: usize,
    /// The length of the buffer in bytes.
    pub bytes: u64,
}

/// Processes that write a cast to sockets. Each process has its own sockets and writes a buffer to all of them before
/// it starts the next buffer (evaluation, section III.B). A full socket blocks its process.
#[derive(Clone, Debug)]
pub struct Writers {
    cost: Cost,
    buffer: u64,
    processes: Vec<Process>,
}

#[derive(Clone, Debug)]
struct Process {
    sockets: std::ops::Range<usize>,
    /// The index of the socket that gets the buffer next.
    at: usize,
    /// The bytes of the cast from this buffer to the end.
    left: u64,
    /// Whether no buffer of the cast has been begun.
    is_new: bool,
    /// The buffer that is being written, and the time at which the write completes.
    busy: Option<(Time, Write)>,
}

impl Writers {
    /// Divides the sockets evenly among the processes. There is at least one process, and no more processes than
    /// sockets.
    #[must_use]
    pub fn new(cost: Cost, buffer: u64, sockets: usize, processes: usize) -> Self {
        let sockets = sockets.max(1);
        let processes = processes.clamp(1, sockets);
        let process = |n: usize| {
            let sockets = n * sockets / processes..(n + 1) * sockets / processes;
            Process { at: sockets.start, sockets, left: 0, is_new: false, busy: None }
        };
        Self { cost, buffer: buffer.max(1), processes: (0..processes).map(process).collect() }
    }

    /// Starts to write a cast of this length in bytes. The previous cast must have been written ([`Writers::is_idle`]).
    pub fn start(&mut self, bytes: u64) {
        for process in &mut self.processes {
            (process.left, process.is_new) = (bytes, true);
        }
    }

    /// Returns whether all casts so far are written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.processes.iter().all(|process| process.left == 0)
    }

    /// Returns the next buffer whose writing is complete at `now`. To be called until it returns `None` whenever room
    /// may have become free; `room` returns whether a socket takes a buffer without blocking.
    pub fn advance(&mut self, now: Time, mut room: impl FnMut(usize) -> bool) -> Option<Write> {
        for process in &mut self.processes {
            if process.busy.is_none() && process.left > 0 && room(process.at) {
                let bytes = process.left.min(self.buffer);
                let write = Write { socket: process.at, bytes };
                let first = if process.is_new { self.cost.per_cast } else { Span::ZERO };
                process.is_new = false;
                let time = first.saturating_add(self.cost.time(bytes));
                process.busy = Some((now.saturating_add(time), write));
            }
            if let Some((done, write)) = process.busy
                && done <= now
            {
                process.busy = None;
                process.at += 1;
                if process.at == process.sockets.end {
                    process.at = process.sockets.start;
                    process.left -= write.bytes;
                }
                return Some(write);
            }
        }
        None
    }

    /// Returns the time at which the next process completes a buffer.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.processes.iter().filter_map(|process| process.busy.map(|(done, _)| done)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(writers: &mut Writers, now: Time, written: &mut Vec<(u64, Write)>) {
        while let Some(write) = writers.advance(now, |_| true) {
            written.push((now.ticks(), write));
        }
    }

    fn run(sockets: usize, processes: usize) -> Vec<(u64, Write)> {
        // A buffer takes 10 ticks, and each byte one.
        let cost = Cost {
            per_cast: Span::ZERO,
            per_buffer: Span::from_ticks(10),
            copy_rate: Some(Rate(8 * TICKS_PER_SECOND)),
        };
        let mut writers = Writers::new(cost, 100, sockets, processes);
        writers.start(150);
        let mut written = Vec::new();
        drain(&mut writers, Time::ZERO, &mut written);
        while let Some(at) = writers.poll_timeout() {
            drain(&mut writers, at, &mut written);
        }
        assert!(writers.is_idle());
        written
    }

    #[test]
    fn one_process_pays_for_every_copy() {
        let write = |socket, bytes| Write { socket, bytes };
        assert_eq!(
            run(2, 1),
            [(110, write(0, 100)), (220, write(1, 100)), (280, write(0, 50)), (340, write(1, 50))]
        );
    }

    /// Each process begins each cast once.
    #[test]
    fn a_cast_costs_its_beginning_in_each_process() {
        let cost = Cost { per_cast: Span::from_ticks(1000), ..Cost::default() };
        let mut writers = Writers::new(cost, 100, 2, 2);
        let mut written = Vec::new();
        for cast in 0..2 {
            let now = Time::from_ticks(5000 * cast);
            writers.start(150);
            drain(&mut writers, now, &mut written);
            while let Some(at) = writers.poll_timeout() {
                drain(&mut writers, at, &mut written);
            }
        }
        let times: Vec<u64> = written.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [1000, 1000, 1000, 1000, 6000, 6000, 6000, 6000]);
    }

    #[test]
    fn processes_work_side_by_side() {
        let last = |processes| run(4, processes).last().map(|(at, _)| *at);
        assert_eq!([last(1), last(2), last(4), last(9)].map(Option::unwrap), [680, 340, 170, 170]);
    }

    #[test]
    fn a_full_socket_blocks_its_process() {
        let mut writers = Writers::new(Cost::default(), 100, 2, 1);
        writers.start(100);
        assert_eq!(writers.advance(Time::from_ticks(5), |socket| socket != 0), None);
        assert_eq!(writers.poll_timeout(), None, "nothing happens until there is room");
        let mut sockets = Vec::new();
        while let Some(write) = writers.advance(Time::from_ticks(9), |_| true) {
            sockets.push(write.socket);
        }
        assert_eq!(sockets, [0, 1]);
    }
}

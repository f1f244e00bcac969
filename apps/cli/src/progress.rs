//! Progress: a bar on a terminal, and elsewhere a line now and then.
#![cfg_attr(not(feature = "hosts"), allow(dead_code, reason = "commands for hosts show more"))]

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rackweave_lab::results::WaitingMessage;

/// The time until the first line of progress where there is no terminal, and the longest time between two lines: short runs print
/// none, and a run of a day some hundred.
const PLAIN_PERIOD: Duration = Duration::from_secs(10);
const LONGEST_PLAIN_PERIOD: Duration = Duration::from_secs(600);

/// Lines of progress of a command for hosts, which has a loop and a clock of its own.
#[cfg(feature = "hosts")]
#[derive(Debug)]
pub(crate) struct PlainLines {
    next: rackweave_core::Time,
    period: Duration,
}

#[cfg(feature = "hosts")]
impl PlainLines {
    pub(crate) fn new(now: rackweave_core::Time) -> Self {
        Self { next: now + span(PLAIN_PERIOD), period: PLAIN_PERIOD }
    }

    /// Prints the fraction and the message on stderr if a line is due. Returns when the next one is.
    pub(crate) fn print(
        &mut self,
        now: rackweave_core::Time,
        state: impl FnOnce() -> (f64, String),
    ) -> rackweave_core::Time {
        if now >= self.next {
            let (fraction, message) = state();
            crate::run::warn(&format!("{:3.0}%  {message}", fraction * 100.0));
            self.period = (self.period * 2).min(LONGEST_PLAIN_PERIOD);
            self.next = now + span(self.period);
        }
        self.next
    }
}

#[cfg(feature = "hosts")]
const fn span(of: Duration) -> rackweave_core::Span {
    rackweave_core::Span::from_ms(of.as_millis() as u64)
}

/// A bar with a message. `wide_msg` keeps it on one line: a wrapped line could not be redrawn.
const BAR: &str = "{bar:20} {percent:>3}%  {elapsed} elapsed{wide_msg}";
/// The number of steps of the bar.
const STEPS: u64 = 1000;

/// A progress bar, drawn by a thread of its own until it is dropped.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Shows the progress of a simulation on stderr: a bar on a terminal, and else a line now and then.
    pub(crate) fn start<T: Send + Sync + 'static>(
        work: &Arc<T>,
        progress: fn(&T) -> rackweave_lab::Progress,
        wanted: bool,
    ) -> Self {
        Self::with(work, progress, wanted, simulated)
    }

    /// Shows the progress of a run on real hosts.
    pub(crate) fn start_real<T: Send + Sync + 'static>(
        work: &Arc<T>,
        progress: fn(&T) -> rackweave_lab::Progress,
        wanted: bool,
    ) -> Self {
        Self::with(work, progress, wanted, real)
    }

    fn with<T: Send + Sync + 'static>(
        work: &Arc<T>,
        progress: fn(&T) -> rackweave_lab::Progress,
        wanted: bool,
        message: fn(&rackweave_lab::Progress, f64) -> String,
    ) -> Self {
        let (work, mut events) = (Arc::clone(work), 0);
        let mut elapsed = Duration::ZERO;
        Self::styled(wanted, BAR, true, move |period| {
            let now = progress(&work);
            let per_second = now.events.saturating_sub(events) as f64 / period.as_secs_f64();
            events = now.events;
            elapsed += period;
            let left = if now.is_open_ended { String::new() } else { left(elapsed, now.fraction) };
            (now.fraction, format!("{left}  {}", message(&now, per_second)))
        })
    }

    /// Shows a fraction and a message on stderr, if that is a terminal. Each period, they are asked for.
    pub(crate) fn drawn(
        wanted: bool,
        mut state: impl FnMut(Duration) -> (f64, String) + Send + 'static,
    ) -> Self {
        let mut elapsed = Duration::ZERO;
        Self::styled(wanted, BAR, false, move |period| {
            elapsed += period;
            let (fraction, message) = state(period);
            (fraction, format!("{}  {message}", left(elapsed, fraction)))
        })
    }

    /// Shows a line on stderr, if that is a terminal. Each period, it is asked for.
    pub(crate) fn line(wanted: bool, mut text: impl FnMut() -> String + Send + 'static) -> Self {
        Self::styled(wanted, "{wide_msg}", false, move |_| (0.0, text()))
    }

    fn styled(
        wanted: bool,
        style: &'static str,
        has_lines: bool,
        mut state: impl FnMut(Duration) -> (f64, String) + Send + 'static,
    ) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        if !wanted || !(is_terminal || has_lines) {
            return Self { bar: None, stop: None, thread: None };
        }
        let (stop, stopped) = channel();
        if !is_terminal {
            let thread = std::thread::spawn(move || {
                let mut period = PLAIN_PERIOD;
                while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                    let (fraction, message) = state(period);
                    crate::run::warn(&format!("{:3.0}%{message}", fraction * 100.0));
                    period = (period * 2).min(LONGEST_PLAIN_PERIOD);
                }
            });
            return Self { bar: None, stop: Some(stop), thread: Some(thread) };
        }
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        let drawn = bar.clone();
        let thread = std::thread::spawn(move || {
            let period = Duration::from_millis(200);
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                let (fraction, message) = state(period);
                bar.set_message(message);
                bar.set_position((fraction * STEPS as f64) as u64);
            }
            bar.finish_and_clear();
        });
        Self { bar: Some(drawn), stop: Some(stop), thread: Some(thread) }
    }

    /// Clears the line while something else is printed, which would be appended to it otherwise.
    pub(crate) fn suspended<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// The time that is left at the pace so far, once something is known of that.
fn left(elapsed: Duration, fraction: f64) -> String {
    const LEAST: f64 = 0.02;
    if elapsed < Duration::from_secs(1) || !(LEAST..1.0).contains(&fraction) {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64() * (1.0 - fraction) / fraction;
    format!(", about {} left", rackweave_lab::report::number::seconds(seconds))
}

fn simulated(now: &rackweave_lab::Progress, events_per_second: f64) -> String {
    let waiting = match (now.waiting, now.waiting_for) {
        (0, _) => String::new(),
        (_, 1) => ", waits for the last message".to_owned(),
        (1, n) => format!(", waits for the last {n} messages"),
        (points, n) => format!(", {points} points wait for their last {n} messages"),
    };
    let longest = now
        .longest
        .map_or_else(String::new, |longest| format!(" ({})", WaitingMessage::of(&longest).text()));
    format!(
        "{}/{} points, {:.1} M events/s, {} messages, {:.1} ms simulated{waiting}{longest}",
        now.points_done,
        now.points,
        events_per_second / 1e6,
        now.messages,
        now.simulated.as_us_f64() / 1e3,
    )
}

fn real(now: &rackweave_lab::Progress, _: f64) -> String {
    let seconds = now.simulated.as_us_f64() / 1e6;
    let (done, points, messages) = (now.points_done, now.points, now.messages);
    format!("{done}/{points} points, {messages} messages, {seconds:.1} s of load")
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A bar that failed to draw must not affect the results.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_the_pace_so_far() {
        let left = |seconds, fraction| left(Duration::from_secs(seconds), fraction);
        assert_eq!(left(30, 0.75), ", about 10.0 s left");
        assert_eq!(left(600, 0.5), ", about 10 min left");
        for (seconds, fraction) in [(0, 0.5), (30, 0.001), (30, 1.0), (30, f64::NAN)] {
            assert_eq!(left(seconds, fraction), "");
        }
    }
}

//! The progress of `cast send`.

use std::io::IsTerminal as _;
use std::net::SocketAddr;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rackweave_cast::orca::{Cast, CastView, Engine, ReceiverProgress};
use rackweave_core::{Span, Time};
use rackweave_orca::flow::ReceiverStatus;

use super::args::SendArgs;
use super::outcome::{is_complete, state};
use crate::progress::PlainLines;
use crate::shell::{rate, size};

/// Progress: on a terminal a bar for each receiver and one for all, elsewhere a line now and then.
pub(super) struct Show {
    bars: Vec<(SocketAddr, ProgressBar)>,
    total: Option<ProgressBar>,
    all: Option<MultiProgress>,
    lines: Option<PlainLines>,
    began: Time,
    next: Time,
}

/// The largest number of bars of receivers. The one for all counts further receivers too.
const BARS: usize = 32;

impl Show {
    pub(super) fn new(wanted: bool, args: &SendArgs, began: Time) -> Self {
        let (mut bars, mut total, mut all, mut lines) = (Vec::new(), None, None, None);
        if wanted && std::io::stderr().is_terminal() {
            let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let add = |name: String| {
                let bar = multi.add(ProgressBar::new(1));
                let style = "{prefix:22} {bar:20} {percent:>3}%  {wide_msg}";
                if let Ok(style) = ProgressStyle::with_template(style) {
                    bar.set_style(style);
                }
                bar.set_prefix(name);
                bar
            };
            bars = args.to.iter().take(BARS).map(|to| (*to, add(to.to_string()))).collect();
            total = Some(add("total".to_owned()));
            all = Some(multi);
        } else if wanted {
            lines = Some(PlainLines::new(began));
        }
        Self { bars, total, all, lines, began, next: Time::ZERO }
    }

    /// Draws at most every 200 ms; returns when to call it again.
    pub(super) fn draw(&mut self, engine: &Engine, cast: &Cast) -> Option<Time> {
        let now = engine.clock().now();
        if let Some(lines) = &mut self.lines {
            return Some(lines.print(now, || {
                let sums = Sums::of(&cast.view(engine), now.since(self.began));
                (sums.have as f64 / sums.of.max(1) as f64, sums.text())
            }));
        }
        self.all.as_ref()?;
        if now >= self.next {
            self.next = now + Span::from_ms(200);
            let view = cast.view(engine);
            for (address, bar) in &self.bars {
                let mut receivers = view.receivers.iter().map(|it| &it.progress);
                let Some(receiver) = receivers.find(|it| it.address == *address) else { continue };
                bar.set_length(receiver.of.max(1));
                bar.set_position(receiver.have);
                let speed = rate(receiver.bits_per_second as f64);
                let repairs = size(receiver.repairs);
                bar.set_message(format!("{speed}, {repairs} retransmitted, {}", state(receiver)));
            }
            if let Some(total) = &self.total {
                let sums = Sums::of(&view, now.since(self.began));
                total.set_length(sums.of.max(1));
                total.set_position(sums.have);
                total.set_message(sums.text());
            }
        }
        Some(self.next)
    }

    pub(super) fn end(&self) {
        if let Some(all) = &self.all {
            // Clearing fails only if the terminal has gone.
            let _ = all.clear();
        }
    }
}

/// The progress of all receivers together.
#[derive(Debug, PartialEq, Eq)]
struct Sums {
    /// The bytes that the receivers have, and the bytes that they are to have. Lost receivers do not count.
    have: u64,
    of: u64,
    complete: usize,
    lost: usize,
    receivers: usize,
    /// The seconds until the end at the mean rate since the beginning; `None` if the length is unknown or nothing has
    /// arrived.
    left: Option<u64>,
}

impl Sums {
    fn of(view: &CastView, since: Span) -> Self {
        let is_lost = |it: &&ReceiverProgress| matches!(it.status, ReceiverStatus::Lost(_));
        let all = || view.receivers.iter().map(|it| &it.progress);
        let lost = all().filter(is_lost).count();
        let active = || all().filter(|it| !is_lost(it));
        let have: u64 = active().map(|it| it.have).sum();
        let new: u64 = active().map(|it| it.have.saturating_sub(it.from)).sum();
        let of: u64 = active().map(|it| it.of).sum();
        let missing = of.saturating_sub(have);
        let seconds = missing as f64 / new as f64 * since.as_secs_f64();
        let left = (view.length.1 && new > 0).then_some(seconds.ceil() as u64);
        let complete = all().filter(|it| is_complete(it)).count();
        Self { have, of, complete, lost, receivers: view.receivers.len(), left }
    }

    fn text(&self) -> String {
        let mut text = format!("{} of {} complete", self.complete, self.receivers);
        if self.lost > 0 {
            text += &format!(", {} lost", self.lost);
        }
        match self.left {
            Some(s) if s >= 3600 => {
                text + &format!(", {}:{:02}:{:02} left", s / 3600, s / 60 % 60, s % 60)
            }
            Some(s) => text + &format!(", {}:{:02} left", s / 60, s % 60),
            None => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_cast::orca::SendView;
    use rackweave_core::HostId;
    use rackweave_orca::flow::SenderSummary;
    use rackweave_wire::orca::Reason;

    use super::*;

    #[test]
    fn the_total_counts_all_receivers_and_estimates_the_rest() {
        let receiver = |number: u32, have, status| {
            let address = SocketAddr::from(([192, 0, 2, number as u8], 6722));
            let none = ReceiverProgress::new(HostId(number), Some(address), status);
            ReceiverProgress { have, of: 1000, ..none }
        };
        let mut receivers: Vec<_> =
            (0..50).map(|number| receiver(number, 250, ReceiverStatus::Attached)).collect();
        receivers.push(receiver(50, 1000, ReceiverStatus::Completed));
        receivers.push(receiver(51, 10, ReceiverStatus::Lost(Reason::Silent)));
        let view = SendView {
            length: (1000, true),
            content: 1000,
            packet: 1500,
            receivers,
            summary: SenderSummary::default(),
            copies: 1,
        };
        let sums = Sums::of(&view.into(), Span::from_secs(27));
        assert_eq!((sums.have, sums.of), (13_500, 51_000));
        assert_eq!(sums.text(), "1 of 52 complete, 1 lost, 1:15 left");
    }
}

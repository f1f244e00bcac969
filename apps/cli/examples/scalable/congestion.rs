//! `scalable`: TCP whose window shrinks by a share of the bytes that were marked, without an estimate over windows, and else grows by
//! a segment per round trip. All the rest of TCP, from handshakes to loss recovery, is Rackweave's.

use rackweave::scenario::derived::{Amount, Far, Grid, Rule};
use rackweave::scenario::item::About;
use rackweave::scenario::keys::Place;
use rackweave::scenario::problem::Problem;
use rackweave::scenario::transport::Congestion;
use rackweave::scenario::values::Share;
use rackweave::sim::Fabric;
use rackweave::transport::tcp::{AckInfo, CongestionEvent, CongestionKind, Controller};

rackweave::scenario::keys! {
    /// The keys in `[transport]`, besides those of TCP.
    struct Keys {
        /// The share of marked bytes by which the window shrinks. Default: 0.5.
        cut: Share,
    }
}

impl Congestion for Keys {
    type Controller = Scalable;

    const ABOUT: About = About {
        name: "scalable",
        description: "TCP whose window shrinks by half of the marked bytes",
        profiles: &[],
        sources: &[concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"))],
    };
    const COUNTS_MARKS: bool = true;
    const RULES: &'static [Rule<Scalable>] = &[Rule {
        key: "cut",
        of: |controller| Some(Amount::Number(controller.cut)),
        why: "half of the marked bytes",
        far: Far::NEVER,
        grid: Grid::Values(&["0.25", "1.0"]), // what `tune` tries
    }];

    fn controller(&self, _: Place<'_>, _: &Fabric) -> Result<Scalable, Problem> {
        let cut = self.cut.map_or(0.5, |share| share.0);
        Ok(Scalable { cut, mss: 0, window: 0, slow_start: true })
    }
}

/// The controller of one connection. Windows are in bytes.
#[derive(Clone, Debug)]
pub struct Scalable {
    cut: f64,
    mss: u64,
    window: u64,
    slow_start: bool,
}

impl Controller for Scalable {
    fn start(&mut self, mss: u64, initial_window: u64) {
        (self.mss, self.window) = (mss, initial_window);
    }

    fn on_ack(&mut self, ack: &AckInfo) {
        if ack.marked {
            self.slow_start = false;
            let cut = (ack.delivered as f64 * self.cut) as u64;
            self.window = self.window.saturating_sub(cut).max(2 * self.mss);
        } else if !ack.app_limited {
            let growth = self.mss * ack.delivered / self.window;
            self.window += if self.slow_start { ack.delivered } else { growth };
        }
    }

    fn on_congestion_event(&mut self, event: &CongestionEvent) {
        self.slow_start = false;
        match event.kind {
            CongestionKind::Mark => {} // what was marked has been counted
            CongestionKind::Loss => self.window = (self.window / 2).max(2 * self.mss),
            CongestionKind::Timeout | CongestionKind::RepeatedTimeout => self.window = self.mss,
        }
    }

    fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_keys_and_rules_are_used() {
        rackweave::Plugin::congestion::<Keys>().check().expect("sound");
    }

    #[test]
    fn the_window_shrinks_by_half_of_the_marked_bytes() {
        let mut control = Scalable { cut: 0.5, mss: 0, window: 0, slow_start: true };
        control.start(1000, 10_000);
        let ack = |marked| AckInfo { marked, ..AckInfo::of(2000) };
        control.on_ack(&ack(false));
        assert_eq!(control.window(), 12_000);
        control.on_ack(&ack(true));
        assert_eq!(control.window(), 11_000);
        control.on_ack(&ack(false));
        assert_eq!(control.window(), 11_000 + 2_000_000 / 11_000);
    }
}

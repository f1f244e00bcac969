//! Patience with silent peers: as long as processes need that wait for a processor, not only switches.

use std::sync::Arc;

use rackweave_core::Span;

use crate::{TransportConfig, homa, tcp};

impl homa::Config {
    /// The same, but a peer counts as silent after this time at the earliest: more questions, at the same pace. What
    /// is finished is remembered for as much longer.
    #[must_use]
    pub fn patient(mut self, at_least: Span) -> Self {
        // The first tick may come at once.
        let ticks = at_least.0.div_ceil(self.tick.0.max(1)).saturating_add(1);
        let asking = ticks.saturating_sub(u64::from(self.resend_ticks));
        let resends = asking.div_ceil(u64::from(self.resend_interval.max(1)));
        let resends = resends.min(u64::from(u16::MAX)) as u16;
        if resends <= self.timeout_resends {
            return self;
        }
        let before = self.finished_ticks.max(1);
        let margin = before.saturating_sub(self.remembered_for()).max(1);
        self.timeout_resends = resends;
        self.finished_ticks = before.max(self.remembered_for().saturating_add(margin));
        let more =
            u64::from(self.max_finished) * u64::from(self.finished_ticks) / u64::from(before);
        self.max_finished = self.max_finished.max(more.min(MAX_FINISHED) as u32);
        self
    }
}

/// More finished messages than this are remembered only where it is said.
const MAX_FINISHED: u64 = 1 << 20;

impl tcp::Config {
    /// The same, but a peer counts as silent after this time at the earliest: more timeouts in a row and more
    /// keep-alives, at the same pace.
    #[must_use]
    pub fn patient(mut self, at_least: Span) -> Self {
        let mut rto = self.min_rto.max(Span(1));
        let mut waited = Span::ZERO;
        let mut timeouts = 0;
        while waited < at_least && timeouts < u32::from(u16::MAX) {
            waited = Span(waited.0.saturating_add(rto.0));
            rto = Span(rto.0.saturating_mul(2)).min(self.max_rto.max(self.min_rto));
            timeouts += 1;
        }
        self.max_retries = self.max_retries.max(timeouts);
        let probes = at_least.0.div_ceil(self.keepalive_interval.0.max(1));
        self.keepalive_probes = self.keepalive_probes.max(probes.min(u64::from(u32::MAX)) as u32);
        self
    }
}

/// Raises the time after which a peer is silent, and that for which is remembered what is finished by as much.
fn raise(at_least: Span, patience: &mut Span, finished_for: &mut Span) {
    if *patience < at_least {
        let margin = Span(finished_for.0.saturating_sub(patience.0));
        *patience = at_least;
        *finished_for = Span(at_least.0.saturating_add(margin.0));
    }
}

impl TransportConfig {
    /// The same, but no peer counts as silent before this time has passed without a word of it: the profiles' times
    /// (60 to 800 ms) are right in a fabric, and too short for processes that wait for a processor. Nothing
    /// else changes: not what is asked, nor how often. (The questions of NDP, pHost
    /// and Polo become rarer up to a quarter of the patience at most, of which there is more then.)
    #[must_use]
    pub fn patient(&self, at_least: Span) -> Self {
        match self {
            Self::Homa(config) => {
                Self::Homa(Arc::new(homa::Config::clone(config).patient(at_least)))
            }
            Self::Tcp(config) => Self::Tcp(Arc::new(config.as_ref().clone().patient(at_least))),
            Self::Ndp(config) => {
                let mut config = config.as_ref().clone();
                raise(at_least, &mut config.patience, &mut config.finished_for);
                Self::Ndp(Arc::new(config))
            }
            Self::PHost(config) => {
                let mut config = config.as_ref().clone();
                raise(at_least, &mut config.patience, &mut config.finished_for);
                Self::PHost(Arc::new(config))
            }
            Self::Polo(config) => {
                let mut config = config.as_ref().clone();
                raise(at_least, &mut config.patience, &mut config.finished_for);
                Self::Polo(Arc::new(config))
            }
            // Nobody waits for anybody.
            Self::Datagram(config) => Self::Datagram(Arc::clone(config)),
        }
    }
}

#[cfg(test)]
mod tests;

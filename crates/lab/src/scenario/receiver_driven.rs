//! The keys of NDP and pHost.

use rackweave_core::{Span, frame};
use rackweave_sim::config::FabricConfig;
use rackweave_transport::{ndp, phost};
use serde::Deserialize;

use super::Problem;
use super::transport::Chosen;
use super::values::Unit;
use crate::path::Path;

pub(super) const NDP_KEYS: &[&str] =
    &["profile", "initial_window", "min_rto", "max_rto", "pull_percent", "spray", "paths"];

/// NDP's keys; what is not given is the profile's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NdpKeys {
    profile: Option<Profile>,
    initial_window: Option<u16>,
    min_rto: Option<Unit<Span>>,
    max_rto: Option<Unit<Span>>,
    pull_percent: Option<u32>,
    spray: Option<bool>,
    paths: Option<Paths>,
}

/// Who picks the paths of sprayed packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Paths {
    /// Their sender, as in the paper.
    #[default]
    Sender,
    /// The switches, at random.
    Switches,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// The authors' numbers, or more where the fabric's round trip is longer than theirs.
    #[default]
    Paper,
    PoloSlides,
}

impl NdpKeys {
    pub(super) fn resolve(
        &self,
        chosen: &Chosen,
        fabric: &FabricConfig,
    ) -> Result<ndp::Config, Problem> {
        if fabric.switch.trim.is_none() {
            let message = "NDP needs switches that trim: set fabric.switch.trim = true";
            return Err(chosen.bad("name", message).with_help(
                "it makes the queues of data short for every transport of this fabric; a sweep \
                 that compares sets it where the name is \"ndp\", with `cases`",
            ));
        }
        let link = super::host_link(fabric.topology);
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Paper => {
                let mut config = ndp::Config::paper(link);
                let full = frame::wire_bytes(frame::MTU) as u32;
                let round_trip = Path::longest(fabric).base_rtt_bytes().div_ceil(full);
                let round_trip = u16::try_from(round_trip).unwrap_or(u16::MAX);
                // The window has to cover the queues on the way too: with one idle round trip a
                // permutation on a fat-tree uses 78 % of the links, with two 92, with three 93.
                let window = round_trip.saturating_mul(3);
                config.initial_window = config.initial_window.max(window);
                config
            }
            Profile::PoloSlides => ndp::Config::polo_slides(link),
        };
        config.initial_window = self.initial_window.unwrap_or(config.initial_window);
        config.min_rto = self.min_rto.map_or(config.min_rto, |span| span.0);
        config.max_rto = self.max_rto.map_or(config.max_rto.max(config.min_rto), |span| span.0);
        config.pull_percent = self.pull_percent.unwrap_or(config.pull_percent);
        config.spray = self.spray.unwrap_or(config.spray);
        if self.paths.unwrap_or_default() == Paths::Sender {
            let paths = fabric.topology.paths();
            // More than a sender can keep in mind are as good as random ones.
            config.paths = u16::try_from(paths).ok().filter(|n| *n <= ndp::MAX_PATHS).unwrap_or(0);
        }
        config.check().map_err(|error| self.invalid(chosen, error, &config))?;
        Ok(config)
    }

    /// What the transport itself says about the numbers, at the key that is to blame.
    fn invalid(&self, chosen: &Chosen, error: ndp::InvalidConfig, config: &ndp::Config) -> Problem {
        use ndp::InvalidConfig as E;
        match error {
            E::Zero(key) => chosen.bad(key, format!("`{key}` must be above 0")),
            E::PullPercent(_) => chosen.bad("pull_percent", "`pull_percent` must be from 1 to 100"),
            E::Rto => chosen.bad("max_rto", "`max_rto` must not be below `min_rto`"),
            E::Patience => {
                let key = if self.max_rto.is_some() { "max_rto" } else { "min_rto" };
                let silent = config.patience;
                let message = format!("`{key}` must be below {silent}: then a peer counts as dead");
                chosen.bad(key, message)
            }
            E::TooLong(_) | E::Priority(_) | E::Paths(_) | E::FinishedFor(_) => {
                chosen.bad("name", error.to_string())
            }
        }
    }
}

pub(super) const PHOST_KEYS: &[&str] =
    &["profile", "free_tokens", "token_expiry", "resend_after", "order", "data_levels", "spray"];

/// pHost's keys; what is not given is the profile's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PHostKeys {
    profile: Option<Profile>,
    free_tokens: Option<u16>,
    token_expiry: Option<Unit<Span>>,
    resend_after: Option<Unit<Span>>,
    order: Option<Order>,
    data_levels: Option<u8>,
    spray: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    Srpt,
    RoundRobin,
}

impl PHostKeys {
    pub(super) fn resolve(
        &self,
        chosen: &Chosen,
        fabric: &FabricConfig,
    ) -> Result<phost::Config, Problem> {
        let link = super::host_link(fabric.topology);
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Paper => {
                phost::Config::paper(link).for_round_trip(Path::longest(fabric).base_rtt())
            }
            Profile::PoloSlides => phost::Config::polo_slides(link),
        };
        if let Some(free_tokens) = self.free_tokens {
            if free_tokens == 0 {
                return Err(chosen.bad("free_tokens", "`free_tokens` must be at least 1"));
            }
            config = config.with_free_tokens(free_tokens);
        }
        config.token_expiry = self.token_expiry.map_or(config.token_expiry, |span| span.0);
        config.resend_after = self.resend_after.map_or(config.resend_after, |span| span.0);
        config.order = match self.order {
            Some(Order::Srpt) => phost::TokenOrder::Srpt,
            Some(Order::RoundRobin) => phost::TokenOrder::RoundRobin,
            None => config.order,
        };
        match self.data_levels {
            Some(1) => config.short_priority = config.long_priority,
            Some(2) | None => {}
            Some(_) => return Err(chosen.bad("data_levels", "`data_levels` must be 1 or 2")),
        }
        config.spray = self.spray.unwrap_or(config.spray);
        config.check().map_err(|error| match error {
            phost::InvalidConfig::Zero(key) => chosen.bad(key, format!("`{key}` must be above 0")),
            other => chosen.bad("name", other.to_string()),
        })?;
        Ok(config)
    }
}

//! The keys of Polo.

use rackweave_core::Span;
use rackweave_sim::config::FabricConfig;
use rackweave_transport::polo::{self, DriveOrder};
use serde::Deserialize;

use super::Problem;
use super::transport::Chosen;
use super::values::Unit;
use crate::path::Path;

pub(super) const POLO_KEYS: &[&str] = &[
    "profile",
    "first_window",
    "rto",
    "max_rto",
    "reorder_margin",
    "min_drives",
    "max_drives",
    "drive_order",
    "recovery_1",
    "recovery_2",
    "wasted_driving_rule",
    "wake_in_quiet_epochs",
    "pause_probe",
    "spray",
];

/// Polo's keys; what is not given is the profile's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PoloKeys {
    profile: Option<Profile>,
    first_window: Option<u16>,
    rto: Option<Unit<Span>>,
    max_rto: Option<Unit<Span>>,
    reorder_margin: Option<u32>,
    min_drives: Option<u32>,
    max_drives: Option<u32>,
    drive_order: Option<Order>,
    recovery_1: Option<bool>,
    recovery_2: Option<bool>,
    wasted_driving_rule: Option<bool>,
    wake_in_quiet_epochs: Option<bool>,
    pause_probe: Option<Unit<Span>>,
    spray: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// The slides' numbers, or more where the fabric's round trip is longer than theirs.
    #[default]
    Fabric,
    PoloSlides,
    /// As `fabric`, for processes on hosts.
    Hosts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    Arrival,
    FewestLeft,
}

impl PoloKeys {
    pub(super) fn resolve(
        &self,
        chosen: &Chosen,
        fabric: &FabricConfig,
    ) -> Result<polo::Config, Problem> {
        let slides = polo::Config::slides();
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Fabric => {
                let link = super::host_link(fabric.topology);
                slides.for_path(link, Path::longest(fabric).base_rtt())
            }
            Profile::Hosts => {
                let link = super::host_link(fabric.topology);
                slides.for_path(link, Path::longest(fabric).base_rtt()).for_hosts()
            }
            Profile::PoloSlides => slides,
        };
        config.first_window = self.first_window.unwrap_or(config.first_window);
        config.rto = self.rto.map_or(config.rto, |span| span.0);
        config.max_rto = self.max_rto.map_or(config.max_rto.max(config.rto), |span| span.0);
        config.spray = self.spray.unwrap_or(config.spray);
        // Sprayed packets overtake each other a little (facts 3).
        let margin = if config.spray { 3 } else { config.reorder_margin };
        config.reorder_margin = self.reorder_margin.unwrap_or(margin);
        config.min_drives = self.min_drives.unwrap_or(config.min_drives);
        config.max_drives =
            self.max_drives.unwrap_or_else(|| config.max_drives.max(config.min_drives));
        config.order = match self.drive_order {
            Some(Order::Arrival) => DriveOrder::Arrival,
            Some(Order::FewestLeft) => DriveOrder::FewestLeft,
            None => config.order,
        };
        config.recovery_1 = self.recovery_1.unwrap_or(config.recovery_1);
        config.recovery_2 = self.recovery_2.unwrap_or(config.recovery_2);
        config.wasted_driving_rule = self.wasted_driving_rule.unwrap_or(config.wasted_driving_rule);
        config.wake_in_quiet_epochs =
            self.wake_in_quiet_epochs.unwrap_or(config.wake_in_quiet_epochs);
        config.pause_probe = self.pause_probe.map_or(config.pause_probe, |span| span.0);
        config.check().map_err(|error| self.invalid(chosen, error, &config))?;
        Ok(config)
    }

    /// What the transport itself says about the numbers, at the key that is to blame.
    fn invalid(
        &self,
        chosen: &Chosen,
        error: polo::InvalidConfig,
        config: &polo::Config,
    ) -> Problem {
        use polo::InvalidConfig as E;
        match error {
            E::Zero(key) => chosen.bad(key, format!("`{key}` must be above 0")),
            E::Drives => chosen.bad("max_drives", "`max_drives` must not be below `min_drives`"),
            E::Rto => chosen.bad("max_rto", "`max_rto` must not be below `rto`"),
            E::CompleteDelay => {
                let delay = config.complete_delay;
                chosen.bad("rto", format!("`rto` must be above {delay}, for which answers wait"))
            }
            E::MinEpoch => {
                let epoch = config.min_epoch;
                chosen.bad("rto", format!("`rto` must be above {epoch}, the shortest epoch"))
            }
            E::Patience => {
                let key = match (self.pause_probe, self.max_rto) {
                    (Some(_), _) => "pause_probe",
                    (None, Some(_)) => "max_rto",
                    (None, None) => "rto",
                };
                let silent = config.patience;
                let message = format!(
                    "`{key}` must be below a quarter of {silent}: then a peer counts as dead"
                );
                chosen.bad(key, message)
            }
            E::TooLong(_) | E::Priority(_) | E::FinishedFor(_) => {
                chosen.bad("name", error.to_string())
            }
        }
    }
}

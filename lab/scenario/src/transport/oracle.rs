//! The keys of `srpt-oracle`, the central scheduler.

use rackweave_core::frame;
use rackweave_sim::Fabric;
use rackweave_sim::config::RunConfig;
use rackweave_sim::oracle::Rules;
use rackweave_transport::datagram;
use rackweave_workload::Pattern;

use super::super::derived::Rule;
use super::super::keys::{Carried, Place, is_on_streams, keys};
use super::super::problem::Problem;
use super::super::values::Whole;

keys! {
    /// The keys of the central scheduler. By default its packets have the headers of UDP, as short as there are.
    struct OracleKeys {
        /// Bytes of headers, from the IP header on. Default: 28.
        header_bytes: Whole<20, 1000, u32>,
        /// The rest of an interrupted packet is a shorter packet, as in the script of Homa's study.
        /// Slowdowns can be below 1. Default: false.
        cut_packets: bool,
    }
}

impl OracleKeys {
    /// None follows from the fabric.
    pub(super) const RULES: &'static [Rule<datagram::Config>] = &[];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<datagram::Config, Problem> {
        let refused = |message: &str| {
            let help =
                "it schedules messages and responses that are sent one by one, on one network";
            Err(place.bad("name", message.to_owned()).with_help(help))
        };
        if is_on_streams(carried.workload) {
            return refused("a central scheduler has no streams");
        }
        if !carried.workload.application.is_instant() {
            return refused("a central scheduler has no applications that take time");
        }
        if matches!(carried.workload.pattern, Pattern::Collective(_)) {
            return refused("a central scheduler knows all messages before the run");
        }
        if fabric.has_ocs() {
            return refused("a central scheduler needs paths that do not change");
        }
        let mut config = datagram::Config::default();
        if let Some(bytes) = self.header_bytes {
            config.header_bytes = bytes.0;
            config.max_payload = frame::MTU - bytes.0;
        }
        Ok(config)
    }

    pub(super) fn rules(&self) -> Rules {
        Rules { cut_packets: self.cut_packets.unwrap_or_default() }
    }
}

/// Refuses what a run without packets does not have.
pub fn check(config: &RunConfig) -> Result<(), Problem> {
    let measure = &config.measure;
    let absent = [
        (config.streams.len() > 1, "background", "no other traffic"),
        (!config.faults.is_empty(), "faults", "nothing that could fail"),
        (config.host.is_some(), "host", "no hosts that cost time"),
        (!measure.capture.is_empty(), "measure.capture", "no packets"),
        (!measure.traffic.is_empty(), "measure.traffic", "no packets"),
        (measure.verify, "measure.verify", "no bytes"),
    ];
    match absent.into_iter().find(|(is_set, ..)| *is_set) {
        None => Ok(()),
        Some((_, key, what)) => {
            let message = format!("a central scheduler (`srpt-oracle`) has {what}");
            Err(Problem::new(key, message).with_help("compare it in a sweep of its own"))
        }
    }
}

//! The keys of datagrams.

use rackweave_core::Span;
use rackweave_transport::datagram;
use rackweave_workload::{Exchange, WorkloadConfig};
use serde::Deserialize;

use super::Problem;
use super::transport::Chosen;
use super::values::Unit;

pub(super) const DATAGRAM_KEYS: &[&str] = &["forget_after", "priority", "spray"];

/// The keys of datagrams.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DatagramKeys {
    forget_after: Option<Unit<Span>>,
    priority: Option<u8>,
    spray: Option<bool>,
}

impl DatagramKeys {
    pub(super) fn resolve(
        &self,
        chosen: &Chosen,
        workload: &WorkloadConfig,
    ) -> Result<datagram::Config, Problem> {
        if workload.exchange != Exchange::OneWay {
            let message = "datagrams go one way: a request whose answer is lost would never end";
            return Err(chosen
                .bad("name", message)
                .with_help("exchange = \"one-way\" goes with it"));
        }
        let mut config = datagram::Config::default();
        config.forget_after = self.forget_after.map_or(config.forget_after, |span| span.0);
        config.priority = self.priority.unwrap_or(config.priority);
        config.spray = self.spray.unwrap_or(config.spray);
        config.check().map_err(|error| match error {
            datagram::InvalidConfig::Zero(key) => {
                chosen.bad(key, format!("`{key}` must be above 0"))
            }
            datagram::InvalidConfig::Priority(_) => {
                chosen.bad("priority", "`priority` is from 0 (lowest) to 7")
            }
            datagram::InvalidConfig::TooLong(_) => chosen.bad("name", error.to_string()),
        })?;
        Ok(config)
    }
}

//! The parameters of switches that follow from the fabric.

use rackweave_core::{Bytes, Rate};
use rackweave_sim::Fabric as Layout;
use rackweave_sim::config::{BufferConfig, FabricConfig, SwitchConfig, TrimConfig};

use super::{Fabric, Queues};
use crate::derived::{Amount, Far, Grid, Parameter};
use crate::path::Path;
use crate::problem::Problem;

/// Why a parameter of switches differs from its default.
const SET: &str = "set by the scenario";
/// What the default threshold of marks follows from.
const WHY_MARKS: &str = "1.25 bandwidth-delay products of the link (sird: of hosts' links; uet: 0.5), at least 5 packets (uet: 4)";
/// The same of marks at random.
const WHY_RAMP: &str =
    "Kmin of 4 KB for each Gbps (HPCC, SIGCOMM 2019, section 5.1); Kmax is 4 times that";
/// UET's simulator tries 0.2 to 5 products for its queues.
const TRIMS: Far = Far {
    below: (5.0, "bursts are trimmed that the link could carry"),
    above: (5.0, "headers of trimmed packets wait for that queue"),
};
/// Above four times the default a standing queue of five round trips delays each message. Below a quarter the threshold nears the lower
/// bound of the DCTCP paper (section 3.4), a seventh of a product.
const MARKS: Far = Far {
    below: (4.0, "windows shrink before the link is full"),
    above: (4.0, "each message waits in that queue"),
};

impl Fabric {
    /// The parameters of switches that follow from the fabric, whose layout with these keys is `layout`. Those of marks have a use if
    /// a transport reacts to marks.
    #[must_use]
    pub fn parameters(&self, layout: &Layout, wanted: &Queues, marks: bool) -> Vec<Parameter> {
        let mut all = Vec::new();
        let config = layout.config();
        if marks {
            let mut by_default = config.clone();
            by_default.switch.marking = wanted.marking;
            // The same layout, with another threshold: it cannot fail.
            if let Ok(by_default) = Layout::new(&by_default) {
                all.push(self.threshold(layout, &by_default));
            }
        }
        if let Some(trim) = config.switch.trim {
            let mut least = TrimConfig::NDP.data_queue_bytes;
            if wanted.trim_at_product {
                least = least.max(product_of_a_host(config).unwrap_or(least));
            }
            all.push(Parameter::new(
                "fabric.switch.trim.data_queue".to_owned(),
                (Amount::Bytes(trim.data_queue_bytes), Amount::Bytes(least)),
                SET,
                "8 packets (NDP), uet: or a bandwidth-delay product of a host (uet-htsim)",
                TRIMS,
                Grid::Factors(&[0.5, 2.0, 4.0]),
            ));
        }
        if let (true, BufferConfig::PerPort { bytes }) = (self.switch.pfabric, config.switch.buffer)
        {
            let products = 2 * u64::from(Path::longest(layout).base_rtt_bytes());
            let least = match SwitchConfig::default().with_pfabric().buffer {
                BufferConfig::PerPort { bytes } => bytes,
                BufferConfig::Shared { .. } => 0,
            };
            all.push(Parameter::new(
                "fabric.switch.buffer".to_owned(),
                (Amount::Bytes(bytes), Amount::Bytes(products.max(least))),
                SET,
                "24 packets, or two bandwidth-delay products (SIGCOMM 2013, section 5.1)",
                Far::WINDOW,
                Grid::Factors(&[0.5, 1.5, 2.0, 4.0]),
            ));
        }
        all
    }

    /// The threshold of marks at each rate of links, compared with the default.
    fn threshold(&self, layout: &Layout, by_default: &Layout) -> Parameter {
        let host = layout.host_rate();
        let at = |layout: &Layout, rate: Rate| {
            Amount::Bytes(layout.ecn_threshold(rate).unwrap_or(u64::MAX))
        };
        let values = (at(layout, host), at(by_default, host));
        let mut parameter = Parameter::new(
            "fabric.switch.ecn_threshold".to_owned(),
            values,
            SET,
            if layout.ecn_ramp(host).is_some() { WHY_RAMP } else { WHY_MARKS },
            MARKS,
            Grid::Factors(&[0.5, 1.5, 2.0, 4.0]),
        );
        let mut rates: Vec<Rate> = layout.links().iter().map(|link| link.rate).collect();
        rates.sort_unstable();
        rates.dedup();
        let all = |layout: &Layout| {
            let each = rates.iter().map(|rate| (at(layout, *rate), rate));
            let each: Vec<(String, &Rate)> = each.map(|(k, rate)| (k.to_string(), rate)).collect();
            match &each[..] {
                [(first, _), rest @ ..] if rest.iter().any(|(k, _)| k != first) => {
                    let each: Vec<String> =
                        each.iter().map(|(k, rate)| format!("{k} at {rate}")).collect();
                    each.join(", ")
                }
                [(first, _), ..] => first.clone(),
                [] => String::new(),
            }
        };
        (parameter.value, parameter.default) = (all(layout), all(by_default));
        let switch = &layout.config().switch;
        let (queue, what) = match (switch.trim, switch.buffer) {
            (Some(trim), _) => (trim.data_queue_bytes, "trimmed"),
            (None, BufferConfig::PerPort { bytes }) => (bytes, "dropped"),
            (None, BufferConfig::Shared { bytes, .. }) => (bytes, "dropped"),
        };
        match rates.iter().filter_map(|rate| layout.ecn_threshold(*rate)).min() {
            // A transport that needs no marks may run without, and the scenario says so.
            None => parameter.warning = None,
            Some(least) if least >= queue => {
                parameter.warning = Some(format!(
                    "{} = {} is not below the queue of {}: packets are {what} before any is marked",
                    parameter.key,
                    Amount::Bytes(least),
                    Bytes(queue)
                ));
            }
            Some(_) => {}
        }
        parameter
    }
}

/// The bandwidth-delay product of a host's link and the longest path.
pub(super) fn product_of_a_host(config: &FabricConfig) -> Result<u64, Problem> {
    let layout = Layout::new(config).map_err(|error| Problem::new("fabric", error.to_string()))?;
    Ok(u64::from(Path::longest(&layout).base_rtt_bytes()))
}

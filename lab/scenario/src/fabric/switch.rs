//! The keys of `[fabric.switch]`: queues, buffers, marks and trimming.

use std::num::NonZeroU8;

use rackweave_core::{Bytes, Span};
use rackweave_sim::config::{
    BufferConfig, Depth, Marking, PfcConfig, Routing, SwitchConfig, TrimConfig,
};
use serde::{Deserialize, Serialize};

use super::pfc::Pfc;
use crate::problem::Problem;
use crate::values::{Count, FULL_PACKET, Limit, Unit};

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Switch {
    /// From a packet's last bit to its output queue. Default: `"250 ns"`.
    latency: Unit<Span>,
    /// Limit: bytes per port. Default: `"500 KB"`; with `pfabric`: 24 packets, or two
    /// bandwidth-delay products.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buffer: Option<Limit>,
    /// Instead of `buffer`: bytes for all ports together.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_buffer: Option<Unit<Bytes>>,
    /// Multiple of its free part that a port may hold. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_alpha: Option<f64>,
    /// Limit: longer queues mark ECN-capable packets. Default: 1.25 bandwidth-delay products of the
    /// link, at least 5 packets; uet: 0.5, 4; testbed: 20 to 65.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ecn_threshold: Option<Limit>,
    /// Limit (Kmax): from `ecn_threshold` (Kmin) to here packets are marked at random, beyond it
    /// all. Default: none; dcqcn: 4 and 16 KB per Gbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    ecn_full: Option<Limit>,
    /// With `ecn_full`: the probability there (Pmax). Default: 0.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    ecn_probability: Option<f64>,
    /// `true` or a table: full buffers pause who sends to them (PFC) instead of dropping; without
    /// `trim`, `pfabric` and pods. Default: false; dcqcn, hpcc: true where possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pfc: Option<Pfc>,
    /// `true` or a table: full queues trim packets to headers. Default: false.
    // A resolved scenario omits `trim = false`, because a sweep over a key of the table could not replace it.
    #[serde(skip_serializing_if = "Trim::is_off")]
    pub(super) trim: Trim,
    /// false: one queue per port, without priorities. Default: true.
    #[serde(skip_serializing_if = "is_true")]
    priorities: bool,
    /// The message with the fewest remaining bytes goes first, and a full queue drops from that
    /// with the most. Only with `priorities`, without `trim` and `shared_buffer`. Default: false.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) pfabric: bool,
    /// Above `ecn_threshold` packets that are not ECN-capable are dropped (Aeolus). Default: false.
    #[serde(skip_serializing_if = "is_false")]
    selective_drop: bool,
    /// `"transport"`: as the transport requests. `"ecmp"`: by flow. `"spray"`: each packet at
    /// random. Default: `"transport"`.
    routing: RoutingName,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_true(value: &bool) -> bool {
    *value
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Default for Switch {
    fn default() -> Self {
        let switch = SwitchConfig::default();
        Self {
            latency: Unit(switch.latency),
            buffer: None,
            shared_buffer: None,
            shared_alpha: None,
            ecn_threshold: None,
            ecn_full: None,
            ecn_probability: None,
            pfc: None,
            trim: Trim::Off,
            priorities: switch.priorities,
            pfabric: false,
            selective_drop: switch.options.selective_drop,
            routing: RoutingName::Transport,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RoutingName {
    Transport,
    Ecmp,
    Spray,
}

/// The value of `trim`: `false`, `true` or a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trim {
    Off,
    On(TrimQueues),
}

impl Trim {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TrimQueues {
    /// Limits: data that a port holds before it trims, and headers. Default: `"8 packets"`; `"16
    /// packets"`.
    pub(super) data_queue: Option<Limit>,
    /// Limits: data that a port holds before it trims, and headers. Default: `"8 packets"`, uet: or
    /// a bandwidth-delay product of a host; `"16 packets"`.
    header_queue: Limit,
    /// Headers without room return to senders. Default: true.
    return_to_sender: bool,
    /// Headers and packets of the highest priority per packet of data, at most 255. `"unlimited"`:
    /// strict priority; data can wait for seconds. Default: 10.
    headers_per_packet: Count,
}

impl Default for TrimQueues {
    /// NDP's queues. Without the return of headers, 32 or 64 windows that meet lose some, and one lost last packet costs
    /// a timeout of 5 ms (measured: 1.9 times the ideal time of 64 x 100 KB, with it 1.03).
    fn default() -> Self {
        let ndp = TrimConfig::NDP;
        Self {
            data_queue: None,
            header_queue: Limit(Some(ndp.header_queue_bytes)),
            return_to_sender: ndp.return_to_sender,
            headers_per_packet: Count(
                ndp.headers_per_packet.map(|headers| u64::from(headers.get())),
            ),
        }
    }
}

/// The weight of headers, which the queues count in 8 bits.
fn headers_per_packet(count: Count) -> Result<Option<NonZeroU8>, Problem> {
    let Some(headers) = count.0 else { return Ok(None) };
    match u8::try_from(headers).ok().and_then(NonZeroU8::new) {
        Some(headers) => Ok(Some(headers)),
        None => Err(Problem::new(
            "fabric.switch.trim".to_owned(),
            format!("`headers_per_packet` is at most 255, or \"unlimited\", not {headers}"),
        )),
    }
}

impl<'de> Deserialize<'de> for Trim {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Trim;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`true`, `false` or a table with `data_queue` and `header_queue`")
            }
            fn visit_bool<E>(self, on: bool) -> Result<Trim, E> {
                Ok(if on { Trim::On(TrimQueues::default()) } else { Trim::Off })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Trim, A::Error> {
                TrimQueues::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    .map(Trim::On)
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for Trim {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_bool(false),
            Self::On(queues) => queues.serialize(to),
        }
    }
}

impl Switch {
    /// Whether a key gives the size of buffers.
    pub(super) const fn has_buffer(&self) -> bool {
        self.buffer.is_some() || self.shared_buffer.is_some()
    }

    /// Whether nothing is said of queues that excludes pauses.
    const fn may_pause(&self) -> bool {
        matches!(self.trim, Trim::Off) && !self.pfabric && !self.selective_drop
    }

    /// Checks the keys against each other and derives the configuration; `marking` is the default of marks, `pfc`
    /// that of pauses.
    pub(super) fn resolve(&self, marking: Marking, pfc: bool) -> Result<SwitchConfig, Problem> {
        let key = |name: &str| format!("fabric.switch.{name}");
        let mut switch = SwitchConfig::default();
        if self.pfabric {
            switch = switch.with_pfabric();
        }
        let buffer = match (self.buffer, self.shared_buffer) {
            (Some(_), Some(_)) => {
                return Err(Problem::new(
                    key("shared_buffer"),
                    "a switch has either `buffer` for each port or one `shared_buffer`",
                ));
            }
            (None, Some(bytes)) => {
                let alpha = self.shared_alpha.unwrap_or(1.0);
                if !(alpha.is_finite() && alpha > 0.0) {
                    return Err(Problem::new(
                        key("shared_alpha"),
                        "`shared_alpha` must be above 0",
                    ));
                }
                holds_a_packet(&key("shared_buffer"), Some(bytes.0.0))?;
                BufferConfig::Shared { bytes: bytes.0.0, alpha }
            }
            (_, None) if self.shared_alpha.is_some() => {
                return Err(Problem::new(
                    key("shared_alpha"),
                    "`shared_alpha` has no meaning without `shared_buffer`",
                ));
            }
            (buffer, None) => {
                if let Some(limit) = buffer {
                    holds_a_packet(&key("buffer"), limit.0)?;
                    BufferConfig::PerPort { bytes: limit.0.unwrap_or(u64::MAX) }
                } else {
                    switch.buffer
                }
            }
        };
        let trim = match self.trim {
            Trim::Off => None,
            Trim::On(queues) => {
                let data =
                    queues.data_queue.unwrap_or(Limit(Some(TrimConfig::NDP.data_queue_bytes)));
                holds_a_packet(&key("trim"), data.0)?;
                holds_a_packet(&key("trim"), queues.header_queue.0)?;
                let bytes = |queue: Limit| queue.0.unwrap_or(u64::MAX);
                let trim = TrimConfig::NDP
                    .with_queues(bytes(data), bytes(queues.header_queue))
                    .with_return_to_sender(queues.return_to_sender)
                    .with_headers_per_packet(headers_per_packet(queues.headers_per_packet)?);
                Some(trim)
            }
        };
        if trim.is_some() && !self.priorities {
            return Err(Problem::new(
                key("priorities"),
                "switches that trim need `priorities`: headers overtake data",
            ));
        }
        if self.pfabric {
            let unfit = if trim.is_some() {
                Some("trim")
            } else if !self.priorities {
                Some("priorities")
            } else if matches!(buffer, BufferConfig::Shared { .. }) {
                Some("shared_buffer")
            } else {
                None
            };
            if let Some(other) = unfit {
                return Err(Problem::new(
                    key(other),
                    format!(
                        "`{other}` does not go with `pfabric`, whose queues are short, for each port, and drop the packet of the lowest priority"
                    ),
                ));
            }
        }
        if self.selective_drop && self.ecn_threshold == Some(Limit(None)) {
            return Err(Problem::new(
                key("selective_drop"),
                "`selective_drop` needs an `ecn_threshold`, above which packets that are not ECN-capable are dropped",
            ));
        }
        let routing = match self.routing {
            RoutingName::Transport => Routing::Transport,
            RoutingName::Ecmp => Routing::Ecmp,
            RoutingName::Spray => Routing::Spray,
        };
        switch = switch.with_latency(self.latency.0).with_routing(routing);
        switch.buffer = buffer;
        switch.marking = self.marking(marking)?;
        switch.pfc = match &self.pfc {
            Some(pfc) => pfc.resolve()?,
            None => (pfc && self.may_pause()).then(PfcConfig::default),
        };
        switch.priorities = self.priorities;
        switch.trim = trim;
        switch.options.selective_drop = self.selective_drop;
        Ok(switch)
    }
}

impl Switch {
    /// Which packets are marked; `by_default` if no key says so.
    fn marking(&self, by_default: Marking) -> Result<Marking, Problem> {
        let wrong = |key: &str, text: &str| Problem::new(format!("fabric.switch.{key}"), text);
        let probability = self.ecn_probability.unwrap_or(0.2);
        if !(probability > 0.0 && probability <= 1.0) {
            return Err(wrong("ecn_probability", "`ecn_probability` is above 0 and at most 1"));
        }
        match (self.ecn_threshold, self.ecn_full) {
            (limit, None) if self.ecn_probability.is_none() => {
                Ok(limit.map_or(by_default, |limit| limit.0.into()))
            }
            (_, None) => {
                Err(wrong("ecn_probability", "`ecn_probability` has no meaning without `ecn_full`"))
            }
            (Some(Limit(Some(from))), Some(Limit(Some(full)))) if from < full => {
                Ok(Marking::Ramp {
                    from: Depth::Bytes(from),
                    full: Depth::Bytes(full),
                    millionths: (probability * 1e6).round() as u32,
                })
            }
            _ => Err(wrong(
                "ecn_full",
                "`ecn_full` needs an `ecn_threshold` below it, where marks begin",
            )),
        }
    }
}

fn holds_a_packet(key: &str, bytes: Option<u64>) -> Result<(), Problem> {
    match bytes {
        Some(bytes) if bytes < FULL_PACKET => Err(Problem::new(
            key,
            format!("{} can't hold one full packet of {FULL_PACKET} bytes", Bytes(bytes)),
        )),
        _ => Ok(()),
    }
}

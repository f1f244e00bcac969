//! The keys of `[fabric.switch.pfc]`: priority flow control.

use rackweave_core::Bytes;
use rackweave_sim::config::PfcConfig;
use serde::{Deserialize, Serialize};

use crate::problem::Problem;
use crate::values::{Limit, Unit};

/// The value of `pfc`: `false`, `true` or a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pfc {
    Off,
    On(PfcKeys),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PfcKeys {
    /// The lossless priorities, as in `[3]`; packets of others are dropped at the threshold.
    /// Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    priorities: Option<Vec<u8>>,
    /// Limit: a port and priority that have sent more of what waits are paused (XOFF). Default:
    /// `shared_alpha` times the free part of the buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    xoff: Option<Limit>,
    /// Limit: this far below the threshold they resume (XON). Default: `"2 packets"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hysteresis: Option<Limit>,
    /// Bytes for what arrives until a pause works. Default: 3 packets, pause frames and what the
    /// link carries meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    headroom: Option<Unit<Bytes>>,
}

/// Two full packets with preamble and gap.
const LEAST_HEADROOM: u64 = 2 * 1538;

impl Pfc {
    /// Whether switches pause.
    pub(super) const fn is_on(&self) -> bool {
        matches!(self, Self::On(_))
    }

    /// Derives the configuration; `None` without PFC.
    pub(super) fn resolve(&self) -> Result<Option<PfcConfig>, Problem> {
        let Self::On(keys) = self else { return Ok(None) };
        let mut pfc = PfcConfig::default();
        if let Some(priorities) = &keys.priorities {
            if let Some(wrong) = priorities.iter().find(|priority| **priority > 7) {
                return Err(Problem::new(
                    "fabric.switch.pfc",
                    format!("`priorities` are numbers from 0 to 7, not {wrong}"),
                ));
            }
            let bits = priorities.iter().fold(0, |bits, priority| bits | 1 << priority);
            if bits == 0 {
                return Err(Problem::new(
                    "fabric.switch.pfc",
                    "`priorities` is empty: no priority would be lossless",
                ));
            }
            pfc = pfc.with_priorities(bits);
        }
        if let Some(Limit(Some(bytes))) = keys.xoff {
            pfc = pfc.with_xoff(bytes);
        }
        if let Some(bytes) = keys.headroom {
            if bytes.0.0 < LEAST_HEADROOM {
                let message = format!(
                    "`headroom` is at least {LEAST_HEADROOM} B: a packet that is being sent when the pause comes, and one behind it"
                );
                return Err(Problem::new("fabric.switch.pfc", message));
            }
            pfc = pfc.with_headroom(bytes.0.0);
        }
        if let Some(Limit(bytes)) = keys.hysteresis {
            pfc.hysteresis_bytes = bytes.unwrap_or(u64::MAX / 2);
        }
        Ok(Some(pfc))
    }
}

impl<'de> Deserialize<'de> for Pfc {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Pfc;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`true`, `false` or a table, as in { xoff = \"100 KB\" }")
            }
            fn visit_bool<E>(self, on: bool) -> Result<Pfc, E> {
                Ok(if on { Pfc::On(PfcKeys::default()) } else { Pfc::Off })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Pfc, A::Error> {
                PfcKeys::deserialize(serde::de::value::MapAccessDeserializer::new(map)).map(Pfc::On)
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for Pfc {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => to.serialize_bool(false),
            Self::On(keys) if *keys == PfcKeys::default() => to.serialize_bool(true),
            Self::On(keys) => keys.serialize(to),
        }
    }
}

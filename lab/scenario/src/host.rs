//! The keys of `[host]`: what hosts cost, as `rackweave calibrate` measures it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rackweave_core::Span;
use rackweave_sim::config::{Costs, HostConfig, HostModel, Processors, Quantiles, SwitchProcess};
use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::file::read_named;
use super::problem::Problem;
use super::source::Sources;
use super::tree::{Entry, Node, Origin, Table, Value, parse_document};
use super::values::{AtLeast, Whole};
use crate::error::ScenarioError;

/// What a simulation leaves out that is compared with real hosts.
pub const NO_COSTS: &str = "without a [host] table `rackweave run` leaves out what hosts cost (processor time, late \
                                   wake-ups and timers); `rackweave calibrate` measures it for `run --host`";

/// The size limit of a file with a `[host]` table.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A number of nanoseconds, with fractions, up to one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Nanoseconds(pub f64);

/// A number of microseconds, with fractions, up to one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Microseconds(pub f64);

impl Nanoseconds {
    fn span(self) -> Span {
        // A tick is 10 ps.
        Span::from_ticks((self.0 * 100.0).round() as u64)
    }
}

impl Microseconds {
    fn span(self) -> Span {
        Span::from_ticks((self.0 * 100_000.0).round() as u64)
    }
}

/// Reads a number from 0 to the number of units in a second.
fn up_to_a_second<'de, D: Deserializer<'de>>(
    from: D,
    most: f64,
    unit: &str,
) -> Result<f64, D::Error> {
    let x = f64::deserialize(from)?;
    if (0.0..=most).contains(&x) {
        return Ok(x);
    }
    Err(D::Error::custom(format_args!("must be a number of {unit} from 0 to {most}, not {x}")))
}

impl<'de> Deserialize<'de> for Nanoseconds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        up_to_a_second(from, 1e9, "nanoseconds").map(Self)
    }
}

impl<'de> Deserialize<'de> for Microseconds {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        up_to_a_second(from, 1e6, "microseconds").map(Self)
    }
}

impl Serialize for Nanoseconds {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0)
    }
}

impl Serialize for Microseconds {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.0)
    }
}

/// The value of `processors`: a word or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessorsKey {
    /// One for receiving and one for sending, at each host.
    #[default]
    PerDirection,
    /// This number for all hosts.
    Shared(u32),
}

impl<'de> Deserialize<'de> for ProcessorsKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ProcessorsKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"per-direction\" or a number of processors that all hosts share")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<ProcessorsKey, E> {
                match text {
                    "per-direction" => Ok(ProcessorsKey::PerDirection),
                    _ => Err(E::custom(format_args!(
                        "`{text}` is not \"per-direction\" or a number"
                    ))),
                }
            }
            fn visit_i64<E: Error>(self, n: i64) -> Result<ProcessorsKey, E> {
                match u32::try_from(n) {
                    Ok(n @ 1..=65_536) => Ok(ProcessorsKey::Shared(n)),
                    _ => Err(E::custom(format_args!("must be from 1 to 65536, not {n}"))),
                }
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<ProcessorsKey, E> {
                self.visit_i64(i64::try_from(n).unwrap_or(i64::MAX))
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for ProcessorsKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::PerDirection => to.serialize_str("per-direction"),
            Self::Shared(n) => to.serialize_u32(*n),
        }
    }
}

/// A quantile: the share of values that are below, and the value.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct QuantileKey(pub f64, pub Microseconds);

/// The table `[host]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostTable {
    /// `"per-direction"`: one for receiving and one for sending at each host. A number: shared by
    /// all hosts and the switch process. Default: `"per-direction"`.
    pub processors: ProcessorsKey,
    /// Processor time of a system call that moves a batch. Default: 0.
    pub send_system_call_ns: Nanoseconds,
    /// Of each message that an application sends or receives. Default: 0.
    pub send_call_ns: Nanoseconds,
    /// Of each packet, control packets included. Default: 0.
    pub send_packet_ns: Nanoseconds,
    /// Of each byte on the link, in 0.01 ns. Default: 0.
    pub send_byte_ns: Nanoseconds,
    /// Processor time of a system call that moves a batch. Default: 0.
    pub receive_system_call_ns: Nanoseconds,
    /// Of each message that an application sends or receives. Default: 0.
    pub receive_call_ns: Nanoseconds,
    /// Of each packet, control packets included. Default: 0.
    pub receive_packet_ns: Nanoseconds,
    /// Of each byte on the link, in 0.01 ns. Default: 0.
    pub receive_byte_ns: Nanoseconds,
    /// Of each pair that a worker of `[workload.reduce]` divides into epochs, and of each pair or
    /// sum received. Default: 0.
    pub send_pair_ns: Nanoseconds,
    /// Of each pair that a worker of `[workload.reduce]` divides into epochs, and of each pair or
    /// sum received. Default: 0.
    pub receive_pair_ns: Nanoseconds,
    /// Most packets per system call. Default: sending 128, receiving 64.
    pub send_batch: AtLeast<1>,
    /// Most packets per system call. Default: sending 128, receiving 64.
    pub receive_batch: AtLeast<1>,
    /// How far ahead of its link a host passes packets to its NIC. Default: 20.
    pub send_ahead_us: Microseconds,
    /// How late transports' timers expire. Default: 0.
    pub timer_grain_us: Microseconds,
    /// For information only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_grain_ns: Option<Nanoseconds>,
    /// How late a sleeping thread runs: quantiles `[share, microseconds]`, linear in between.
    /// Default: never late.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wake_us: Vec<QuantileKey>,
    /// Processor time of sleeping and waking up. Default: 0.
    pub wake_cost_ns: Nanoseconds,
    /// `host_send_delay` and `host_receive_delay` are for ideal times only. Default: true.
    pub replaces_delays: bool,
    /// Tables: the process that emulates all switches of a testbed; the kernel's TCP. Default:
    /// none; as other transports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<SwitchTable>,
    /// Tables: the process that emulates all switches of a testbed; the kernel's TCP. Default:
    /// none; as other transports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_tcp: Option<KernelTcpTable>,
    /// For information only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<toml::Table>,
}

/// The table `[host.switch]`: the process that emulates the switches of a testbed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchTable {
    /// Processor time of a system call that moves a batch. Default: 0.
    pub system_call_ns: Nanoseconds,
    /// Of each packet and byte: half on receipt, half on sending. What a program consumes or makes
    /// costs half. Default: 0.
    pub packet_ns: Nanoseconds,
    /// Of each packet and byte: half on receipt, half on sending. What a program consumes or makes
    /// costs half. Default: 0.
    pub byte_ns: Nanoseconds,
    /// Of each pair that a program consumes. Default: 0.
    pub pair_ns: Nanoseconds,
    /// Processor time of sleeping and waking up. Default: 0.
    pub wake_cost_ns: Nanoseconds,
    /// How late a sleeping thread runs: quantiles `[share, microseconds]`, linear in between.
    /// Default: never late.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wake_us: Vec<QuantileKey>,
    /// A turn starts at the earliest this long after the one before. Default: 0.
    pub window_us: Microseconds,
}

/// The table `[host.kernel_tcp]`: the costs of the kernel's TCP, in place of those of a transport in a process. What the kernel does in
/// interrupts is in the costs of the switch process, whose system calls cause them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelTcpTable {
    /// Of each call that sends, and of each wake-up of a reading thread. Default: 0.
    pub send_call_ns: Nanoseconds,
    /// Of each byte on the link, in 0.01 ns. Default: 0.
    pub send_byte_ns: Nanoseconds,
    /// Of each call that sends, and of each wake-up of a reading thread. Default: 0.
    pub receive_system_call_ns: Nanoseconds,
    /// Of each message that an application sends or receives. Default: 0.
    pub receive_call_ns: Nanoseconds,
    /// Of each byte on the link, in 0.01 ns. Default: 0.
    pub receive_byte_ns: Nanoseconds,
    /// Of each packet and byte in the switch process. Default: 0.
    pub switch_packet_ns: Nanoseconds,
    /// Of each packet and byte in the switch process. Default: 0.
    pub switch_byte_ns: Nanoseconds,
}

impl KernelTcpTable {
    /// Replaces the costs of a transport in a process by these.
    fn replace(&self, config: &mut HostConfig) {
        config.model = HostModel::Kernel;
        config.send = Costs {
            call: self.send_call_ns.span(),
            byte: self.send_byte_ns.span(),
            ..Costs::default()
        };
        config.receive = Costs {
            system_call: self.receive_system_call_ns.span(),
            call: self.receive_call_ns.span(),
            byte: self.receive_byte_ns.span(),
            ..Costs::default()
        };
        if let Some(switch) = &mut config.switch {
            switch.costs.packet = self.switch_packet_ns.span();
            switch.costs.byte = self.switch_byte_ns.span();
        }
    }
}

impl Default for HostTable {
    fn default() -> Self {
        let zero = Nanoseconds(0.0);
        let HostConfig { send_batch, receive_batch, send_ahead, .. } = HostConfig::default();
        Self {
            processors: ProcessorsKey::PerDirection,
            send_system_call_ns: zero,
            send_call_ns: zero,
            send_packet_ns: zero,
            send_byte_ns: zero,
            receive_system_call_ns: zero,
            receive_call_ns: zero,
            receive_packet_ns: zero,
            receive_byte_ns: zero,
            send_pair_ns: zero,
            receive_pair_ns: zero,
            send_batch: Whole(send_batch),
            receive_batch: Whole(receive_batch),
            send_ahead_us: Microseconds(send_ahead.as_us_f64()),
            timer_grain_us: Microseconds(0.0),
            clock_grain_ns: None,
            wake_us: Vec::new(),
            wake_cost_ns: zero,
            replaces_delays: true,
            switch: None,
            kernel_tcp: None,
            measured: None,
        }
    }
}

impl HostTable {
    /// Checks the keys against each other and derives the configuration, of hosts that use only the kernel's TCP or any transports.
    pub fn resolve(&self, only_kernel_tcp: bool) -> Result<Arc<HostConfig>, Problem> {
        let costs = |system_call: Nanoseconds,
                     call: Nanoseconds,
                     packet: Nanoseconds,
                     byte: Nanoseconds,
                     pair: Nanoseconds| Costs {
            system_call: system_call.span(),
            call: call.span(),
            packet: packet.span(),
            byte: byte.span(),
            work: pair.span(),
        };
        let of_switch = self.switch.as_ref().map_or(&[][..], |switch| &switch.wake_us);
        let mut config = HostConfig::default();
        config.processors = match self.processors {
            ProcessorsKey::PerDirection => Processors::PerDirection,
            ProcessorsKey::Shared(number) => Processors::Shared(number),
        };
        config.receive = costs(
            self.receive_system_call_ns,
            self.receive_call_ns,
            self.receive_packet_ns,
            self.receive_byte_ns,
            self.receive_pair_ns,
        );
        config.send = costs(
            self.send_system_call_ns,
            self.send_call_ns,
            self.send_packet_ns,
            self.send_byte_ns,
            self.send_pair_ns,
        );
        (config.receive_batch, config.send_batch) = (self.receive_batch.0, self.send_batch.0);
        config.send_ahead = self.send_ahead_us.span();
        config.wake_cost = self.wake_cost_ns.span();
        config.wake = quantiles("host.wake_us", &self.wake_us)?;
        config.switch_wake = quantiles("host.switch.wake_us", of_switch)?;
        config.timer_grain = self.timer_grain_us.span();
        config.switch = self.switch.as_ref().map(|switch| SwitchProcess {
            costs: costs(
                switch.system_call_ns,
                Nanoseconds(0.0),
                switch.packet_ns,
                switch.byte_ns,
                switch.pair_ns,
            ),
            wake_cost: switch.wake_cost_ns.span(),
            window: switch.window_us.span(),
        });
        config.replaces_delays = self.replaces_delays;
        if let (Some(kernel_tcp), true) = (&self.kernel_tcp, only_kernel_tcp) {
            kernel_tcp.replace(&mut config);
        }
        Ok(Arc::new(config))
    }
}

/// Returns the distribution that a list of quantiles describes.
fn quantiles(key: &str, list: &[QuantileKey]) -> Result<Quantiles, Problem> {
    for (index, QuantileKey(share, _)) in list.iter().enumerate() {
        if !(0.0..=1.0).contains(share) {
            let message = format!("a quantile's share must be from 0 to 1, not {share}");
            return Err(Problem::new(format!("{key}.{index}"), message));
        }
    }
    let millionths =
        |QuantileKey(share, value): &QuantileKey| ((share * 1e6).round() as u64, value.span());
    Quantiles::new(list.iter().map(millionths).collect()).ok_or_else(|| {
        Problem::new(key, "shares must increase, and times must not decrease")
            .with_help("such as: wake_us = [[0.5, 12.0], [0.99, 80.0], [1.0, 900.0]]")
    })
}

/// Replaces `host = "FILE"` by the `[host]` table of that file, relative to `folder`.
pub fn include_file(
    root: &mut Table,
    folder: &Path,
    sources: &mut Sources,
) -> Result<(), ScenarioError> {
    let Some(Entry { key, key_origin, node }) = root.get("host").cloned() else { return Ok(()) };
    let Value::String(name) = &node.value else { return Ok(()) };
    let path = folder.join(name);
    let table = read_table(&path, sources, node.origin)?;
    root.insert(Entry { key, key_origin, node: table });
    Ok(())
}

fn read_table(path: &Path, sources: &mut Sources, origin: Origin) -> Result<Node, ScenarioError> {
    let shown = path.display();
    let help = "`rackweave calibrate` writes such a file";
    let cannot = |sources: &Sources, message: String| {
        Err(sources.error(&message, "this file", origin).with_help(help))
    };
    let bytes = match read_named(path, MAX_FILE_BYTES) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            let message =
                format!("`{shown}` has more than {MAX_FILE_BYTES} bytes, the most for [host]");
            return cannot(sources, message);
        }
        Err(error) => return cannot(sources, format!("cannot read `{shown}`: {error}")),
    };
    let Ok(text) = String::from_utf8(bytes) else {
        return cannot(sources, format!("`{shown}` is not a text file"));
    };
    let source = sources.add(&shown.to_string(), &text);
    let mut document =
        parse_document(&text, source).map_err(|error| sources.not_toml(source, error))?;
    let Some(host) = document.remove("host") else {
        return cannot(sources, format!("`{shown}` has no [host] table"));
    };
    if let Some(other) = document.0.first() {
        let message = format!("unknown key `{}` next to [host]", other.key);
        return Err(sources.error(&message, "unknown key", other.key_origin));
    }
    if !matches!(host.node.value, Value::Table(_)) {
        return Err(sources.error("`host` must be a table here", "not a table", host.node.origin));
    }
    Ok(host.node)
}

/// Returns the costs of hosts, which use only the kernel's TCP or any transports: those of the table, or the one of `fabric.host_receive_cost`.
pub fn resolve(
    host: Option<&HostTable>,
    receive_cost: Span,
    only_kernel_tcp: bool,
) -> Result<Option<Arc<HostConfig>>, Problem> {
    match host {
        None => Ok(HostConfig::of_receive_cost(receive_cost)),
        Some(host) if receive_cost == Span::ZERO => host.resolve(only_kernel_tcp).map(Some),
        Some(_) => Err(Problem::new(
            "fabric.host_receive_cost",
            "`host_receive_cost` and `receive_packet_ns` of [host] mean the same",
        )
        .with_help(
            "leave out `host_receive_cost`, which is [host] with this one cost and the fabric's delays",
        )),
    }
}

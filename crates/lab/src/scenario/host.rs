//! The keys of `[host]`: what hosts cost, as `rackweave calibrate` measures it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rackweave_core::Span;
use rackweave_sim::config::{Costs, HostConfig, HostModel, Processors, Quantiles, SwitchProcess};
use serde::de::{Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::source::Sources;
use super::text::read_at_most;
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
    pub(crate) fn resolve(&self, only_kernel_tcp: bool) -> Result<Arc<HostConfig>, Problem> {
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
pub(super) fn include_file(
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
    let bytes = match read_at_most(path, MAX_FILE_BYTES) {
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
        let message = format!("unknown key `{}` beside [host]", other.key);
        return Err(sources.error(&message, "unknown key", other.key_origin));
    }
    if !matches!(host.node.value, Value::Table(_)) {
        return Err(sources.error("`host` must be a table here", "not a table", host.node.origin));
    }
    Ok(host.node)
}

/// Returns the costs of hosts, which use only the kernel's TCP or any transports: those of the table, or the one of `fabric.host_receive_cost`.
pub(super) fn resolve(
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::{Scenario, World};

    const SCENARIO: &str = "fabric = { topology = 'single-switch', hosts = 4 }\ntransport.name = 'homa'\n\
                            workload = { arrivals = 'permutation', sizes = '10 KB' }\n";

    fn read(text: &str, folder: &Path, sets: &[&str]) -> Result<Scenario, String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Scenario::parse("x.toml", &format!("{SCENARIO}{text}"), folder, &sets, None).map_err(
            |error| {
                let handler =
                    miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none());
                let mut shown = String::new();
                handler.render_report(&mut shown, &error).unwrap();
                shown
            },
        )
    }

    fn host(scenario: &Scenario) -> HostConfig {
        scenario.points[0].config.host.as_deref().cloned().unwrap()
    }

    #[test]
    fn every_key_reaches_the_configuration_and_the_resolved_scenario() {
        let text = "[host]\nprocessors = 2\nsend_system_call_ns = 1500\nsend_call_ns = 300.5\nsend_packet_ns = 700\n\
                    send_byte_ns = 0.25\nreceive_system_call_ns = 4000\nreceive_call_ns = 1\nreceive_packet_ns = 2\n\
                    receive_byte_ns = 0.01\nsend_pair_ns = 70\nreceive_pair_ns = 80.5\nsend_batch = 64\nreceive_batch = 32\nsend_ahead_us = 200\n\
                    timer_grain_us = 55\nclock_grain_ns = 20\nwake_us = [[0.5, 10], [0.999, 80.5], [1, 900]]\nwake_cost_ns = 12\n\
                    [host.switch]\nsystem_call_ns = 9\npacket_ns = 8\nbyte_ns = 0.07\npair_ns = 90\nwake_cost_ns = 11\nwake_us = [[1, 7]]\nwindow_us = 50\n\
                    [host.kernel_tcp]\nsend_call_ns = 21\nsend_byte_ns = 0.3\nreceive_system_call_ns = 22\nreceive_call_ns = 23\nreceive_byte_ns = 0.4\nswitch_packet_ns = 24\nswitch_byte_ns = 0.5\n\
                    [host.measured]\nkernel = '6.1'\nrounds = 5\n";
        let scenario = read(text, Path::new("."), &[]).unwrap();
        let (ns, us) = (Span::from_ns, Span::from_us);
        let mut expected = HostConfig::default();
        expected.processors = Processors::Shared(2);
        expected.send = Costs {
            system_call: ns(1500),
            call: Span::from_ps(300_500),
            packet: ns(700),
            byte: Span::from_ps(250),
            work: ns(70),
        };
        expected.receive = Costs {
            system_call: ns(4000),
            call: ns(1),
            packet: ns(2),
            byte: Span::from_ps(10),
            work: Span::from_ps(80_500),
        };
        expected.send_batch = 64;
        expected.receive_batch = 32;
        expected.send_ahead = us(200);
        expected.timer_grain = us(55);
        expected.wake_cost = ns(12);
        expected.wake = Quantiles::new(vec![
            (500_000, us(10)),
            (999_000, Span::from_ns(80_500)),
            (1_000_000, us(900)),
        ])
        .unwrap();
        expected.switch_wake = Quantiles::new(vec![(1_000_000, us(7))]).unwrap();
        expected.switch = Some(SwitchProcess {
            costs: Costs {
                system_call: ns(9),
                call: ns(0),
                packet: ns(8),
                byte: Span::from_ps(70),
                work: ns(90),
            },
            wake_cost: ns(11),
            window: us(50),
        });
        expected.replaces_delays = true;
        assert_eq!(host(&scenario), expected);
        let again =
            Scenario::parse("y.toml", &scenario.resolved, Path::new("."), &[], None).unwrap();
        assert_eq!(host(&again), expected);
        // Homa is not in the kernel; TCP is, unless it is Rackweave's.
        let (mut in_kernel, sets) =
            (expected.clone(), ["transport.name=tcp", "testbed.tcp=machine"]);
        in_kernel.model = HostModel::Kernel;
        in_kernel.send = Costs { call: ns(21), byte: Span::from_ps(300), ..Costs::default() };
        in_kernel.receive = Costs {
            system_call: ns(22),
            call: ns(23),
            byte: Span::from_ps(400),
            ..Costs::default()
        };
        if let Some(switch) = &mut in_kernel.switch {
            (switch.costs.packet, switch.costs.byte) = (ns(24), Span::from_ps(500));
        }
        assert_eq!(host(&read(text, Path::new("."), &sets[..1]).unwrap()), in_kernel);
        assert_eq!(host(&read(text, Path::new("."), &sets).unwrap()), expected);
        assert!(scenario.resolved.contains("kernel = \"6.1\""), "{}", scenario.resolved);
    }

    #[test]
    fn a_file_is_named_in_the_scenario_or_by_an_argument_and_errors_point_into_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(folder.path().join("h.toml"), text).unwrap();
        write("[host]\nsend_packet_ns = 700\n");
        let scenario = read("", folder.path(), &["host=\"h.toml\""]).unwrap();
        assert_eq!(host(&scenario).send.packet, Span::from_ns(700));
        let named = |text: &str| {
            write(text);
            Scenario::parse(
                "x.toml",
                &format!("host = 'h.toml'\n{SCENARIO}"),
                folder.path(),
                &[],
                None,
            )
            .map_err(|error| {
                let mut shown = String::new();
                let theme = miette::GraphicalTheme::none();
                miette::GraphicalReportHandler::new_themed(theme)
                    .render_report(&mut shown, &error)
                    .unwrap();
                shown
            })
        };
        assert!(named("[host]\nsend_packet_ns = 700\n").is_ok());
        for (text, words) in [
            (
                "[host]\n\nsend_packet_ns = -1\n",
                ["h.toml:3:", "from 0 to 1000000000, not -1", "send_packet_ns"],
            ),
            ("[host]\nsend_packet = 1\n", ["h.toml:2:", "send_packet", "send_packet_ns"]),
            ("[host]\nprocessors = 0\n", ["h.toml:2:", "must be from 1 to 65536", "processors"]),
            (
                "[host]\nwake_us = [[0.9, 3], [0.5, 4]]\n",
                ["h.toml:2:", "shares must increase", "wake_us"],
            ),
            ("[host]\nwake_us = [[1.5, 3]]\n", ["h.toml:2:", "from 0 to 1, not 1.5", "wake_us"]),
            ("[hosts]\nx = 1\n", ["x.toml:1:", "has no [host] table", "calibrate"]),
            ("[host]\n[fabric]\n", ["h.toml:2:", "unknown key `fabric` beside [host]", "fabric"]),
            ("host = 3\n", ["h.toml:1:", "must be a table", "host"]),
            ("[host", ["h.toml:1:", "not TOML", "host"]),
        ] {
            let shown = named(text).unwrap_err();
            assert!(words.iter().all(|word| shown.contains(word)), "{text}\n{shown}");
        }
        std::fs::remove_file(folder.path().join("h.toml")).unwrap();
        let shown = read("", folder.path(), &["host=\"h.toml\""]).unwrap_err();
        assert!(shown.contains("cannot read") && shown.contains("--set"), "{shown}");
    }

    #[test]
    fn one_cost_is_not_given_twice_and_may_be_swept() {
        let shown = read(
            "[host]\nreceive_packet_ns = 1\n",
            Path::new("."),
            &["fabric.host_receive_cost=400 ns"],
        );
        assert!(shown.unwrap_err().contains("mean the same"));
        let sets = ["sweep.host.send_packet_ns=[1, 2, 3]"];
        let scenario = read("[host]\n", Path::new("."), &sets).unwrap();
        let packets: Vec<Span> = (scenario.points.iter())
            .map(|point| point.config.host.as_ref().unwrap().send.packet)
            .collect();
        assert_eq!(packets, [1, 2, 3].map(Span::from_ns));
    }

    #[test]
    fn on_real_hosts_the_table_is_read_and_has_no_effect() {
        let text = super::super::ScenarioText {
            file: "x.toml".into(),
            text: format!("{SCENARIO}[host]\nsend_packet_ns = 700\n"),
            folder: Path::new(".").to_owned(),
        };
        let scenario = text.read(World::Testbed, &[], None).unwrap();
        assert!(scenario.points[0].config.host.is_some(), "notes report it");
    }
}

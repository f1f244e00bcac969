//! The keys of `[testbed]`: parameters of runs on real hosts. The simulator checks the table and ignores it.

use rackweave_core::Span;
use serde::{Deserialize, Serialize};

use super::values::{Count, Unit};

/// The world in which a scenario runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum World {
    /// The deterministic simulator, in virtual time.
    #[default]
    Simulator,
    /// Real hosts, where every transport runs over UDP and TCP may be the kernel's.
    Testbed,
}

/// The parameters of a run on real hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestbedConfig {
    /// The implementation of `tcp` in network namespaces. (In the overlay it is always Rackweave's.)
    pub tcp: TcpBy,
    /// The order in which frames leave a host in network namespaces.
    pub nic: Nic,
    /// The largest estimated load on the machine's switch, in packets times links per second; `None` for no limit.
    pub max_packets_per_second: Option<u64>,
    /// The largest number of hosts; each is a process; `None` for no limit.
    pub max_hosts: Option<u64>,
    /// How far ahead of the link a host passes packets to the kernel.
    pub run_ahead: Span,
    /// The window of arrival times within which the switch handles packets together.
    pub switch_window: Span,
    /// How long a host or the switch polls before it sleeps.
    pub busy_poll: Span,
}

/// An implementation of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpBy {
    /// The TCP of the Linux kernel.
    #[default]
    Kernel,
    /// Rackweave's TCP, the same as in the simulator.
    Machine,
}

/// The order in which frames leave a host that sends more than its link carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nic {
    /// Frames leave in the order of their arrival, as from a plain NIC.
    #[default]
    Fifo,
    /// UDP (Rackweave's transports) and all other frames (the kernel's) alternate, as in the simulator.
    Fair,
}

/// The table `[testbed]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TestbedKeys {
    /// TCP in namespaces: `"kernel"`, or `"machine"` for Rackweave's. Default: `"kernel"`.
    tcp: TcpBy,
    /// Order of a host's frames in namespaces: `"fifo"`, or `"fair"`: UDP and others in turns, as
    /// simulated. Default: `"fifo"`.
    nic: Nic,
    /// Packets times links that the machine can carry, or `"unlimited"`; estimated before the run.
    /// Default: 300,000.
    max_packets_per_second: Count,
    /// Most hosts, or `"unlimited"`. Default: 64.
    max_hosts: Count,
    /// How far ahead of its link a host passes packets to the kernel. Default: `"200 us"`.
    run_ahead: Unit<Span>,
    /// Frames of this time are handled together, up to this late. Default: `"50 us"`.
    switch_window: Unit<Span>,
    /// Time that hosts poll before they sleep. Above 0 the switch never sleeps. Default: `"0 s"`.
    busy_poll: Unit<Span>,
}

impl Default for TestbedKeys {
    fn default() -> Self {
        Self {
            tcp: TcpBy::Kernel,
            nic: Nic::Fifo,
            max_packets_per_second: Count(Some(300_000)),
            max_hosts: Count(Some(64)),
            run_ahead: Unit(Span::from_us(200)),
            switch_window: Unit(Span::from_us(50)),
            busy_poll: Unit(Span::ZERO),
        }
    }
}

impl Default for TestbedConfig {
    fn default() -> Self {
        TestbedKeys::default().resolve()
    }
}

impl TestbedConfig {
    /// Returns whether namespaces of the testbed would use no transport but the kernel's TCP for these streams: for each, the kernel's name
    /// of its congestion control. DCTCP is not counted, because most kernels lack it and Rackweave's replaces it.
    pub fn uses_only_kernel_tcp(&self, streams: &[Option<&'static str>]) -> bool {
        let is_kernel = |name: &Option<&str>| name.is_some_and(|name| name != "dctcp");
        self.tcp == TcpBy::Kernel && !streams.is_empty() && streams.iter().all(is_kernel)
    }
}

impl TestbedKeys {
    /// Returns whether no key is set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the parameters.
    pub fn resolve(&self) -> TestbedConfig {
        TestbedConfig {
            tcp: self.tcp,
            nic: self.nic,
            max_packets_per_second: self.max_packets_per_second.0,
            max_hosts: self.max_hosts.0,
            run_ahead: self.run_ahead.0,
            switch_window: self.switch_window.0,
            busy_poll: self.busy_poll.0,
        }
    }
}

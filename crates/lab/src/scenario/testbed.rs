//! `[testbed]`: parameters of real hosts. The simulator checks the table and ignores it.

use rackweave_core::Span;
use serde::{Deserialize, Serialize};

use super::values::{Count, Unit};

/// Where a scenario is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum World {
    /// In the simulator.
    #[default]
    Simulator,
    /// On real hosts: there every transport is inside UDP, and TCP may be the kernel's.
    Testbed,
}

/// How a scenario is run on real hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestbedConfig {
    /// Which implementation `tcp` is in network namespaces. (In the overlay it is always Rackweave's.)
    pub tcp: TcpBy,
    /// In which order frames leave a host in network namespaces.
    pub nic: Nic,
    /// Packets times links in a second that the machine's switch can carry; `None`: whatever comes.
    pub max_packets_per_second: Option<u64>,
    /// Most hosts: each is a process.
    pub max_hosts: Option<u64>,
    /// How far ahead of the link a host hands packets to the kernel.
    pub run_ahead: Span,
    /// What comes to the switch within this time is handled together.
    pub switch_window: Span,
    /// How long a host or the switch looks again and again before it sleeps.
    pub busy_poll: Span,
}

/// An implementation of TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpBy {
    /// The kernel's TCP.
    #[default]
    Kernel,
    /// Rackweave's, the same as in the simulator.
    Machine,
}

/// In which order frames leave a host that sends more than its link carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nic {
    /// As they came, as from a plain NIC.
    #[default]
    Fifo,
    /// By turns of UDP (Rackweave's transports) and all else (the kernel's), as in the simulator.
    Fair,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TestbedKeys {
    tcp: TcpBy,
    nic: Nic,
    max_packets_per_second: Count,
    max_hosts: Count,
    run_ahead: Unit<Span>,
    switch_window: Unit<Span>,
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

impl TestbedKeys {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn resolve(&self) -> TestbedConfig {
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

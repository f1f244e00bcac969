//! The network namespaces of a run.

use rackweave_core::HostId;
use rackweave_lab::scenario::{Nic, PointSpec};
use rackweave_linux::netns::{self, Network, TcpSettings};
use rackweave_linux::sys::at_ordinary_priority;
use rackweave_transport::TransportConfig;

use super::cleanup::RunEntry;
use super::protocol::Role;
use super::{NetworkError, TestbedError};

/// The prefix of all names, which the run's id follows.
pub(super) const PREFIX: &str = "rw-";

/// The namespaces and interfaces of a run, which are removed on drop.
#[derive(Debug)]
pub(super) struct Space(Network);

impl Space {
    /// Creates the namespaces that a point needs. The run's journal entry already names them.
    pub(super) fn make(entry: &RunEntry, point: &PointSpec) -> Result<Self, TestbedError> {
        let fabric = &point.config.fabric;
        let network = Network {
            prefix: entry.prefix(),
            hosts: fabric.topology.hosts(),
            link: fabric.topology.host_link(),
            nic: match point.testbed.nic {
                Nic::Fifo => netns::Nic::Fifo,
                Nic::Fair => netns::Nic::Fair,
            },
            tcp: tcp_settings(point),
        };
        // On an error, this is dropped and removes what was created.
        let space = Self(network);
        space.0.make().map_err(NetworkError)?;
        Ok(space)
    }

    pub(super) fn namespace(&self, role: Role) -> String {
        match role {
            Role::Switch => self.0.switch(),
            Role::Host(host) => self.0.host(HostId(host)),
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // What cannot be removed stays in the journal, and the next run tries again.
        let _ = at_ordinary_priority(|| netns::remove(&self.0.prefix));
    }
}

/// Returns the name of the switch's end of a host's pair of interfaces.
pub(super) fn switch_end(host: u32) -> String {
    netns::switch_end(HostId(host))
}

/// Returns the settings of the first stream over TCP. Congestion control is also set for each connection, so that the
/// machine's default never has an effect.
fn tcp_settings(point: &PointSpec) -> TcpSettings {
    let kind = crate::kinds::of(&point.study).and_then(Result::ok);
    let of_kind = kind.and_then(|kind| kind.carrier());
    let streams = point.config.streams.iter().map(|stream| &stream.transport);
    let streams = streams.chain(of_kind).zip(&point.kernel_tcp);
    let tcp = streams.filter_map(|(transport, congestion)| match transport {
        TransportConfig::Tcp(config) => Some((config, (*congestion)?)),
        _ => None,
    });
    let mut settings = TcpSettings { congestion: Some("cubic".into()), ..TcpSettings::default() };
    if let Some((config, congestion)) = tcp.into_iter().next() {
        settings.congestion =
            Some(congestion.to_owned()).filter(|name| super::endpoints::kernel_has(name));
        settings.ecn = config.ecn || congestion == "dctcp";
        settings.min_rto = Some(config.min_rto);
    }
    settings
}

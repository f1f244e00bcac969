//! The namespaces of a run.

use rackweave_core::HostId;
use rackweave_linux::netns::{self, Network, TcpSettings};
use rackweave_transport::TransportConfig;

use super::cleanup::RunEntry;
use super::protocol::Role;
use super::{NetworkError, TestbedError};
use crate::cast::Scheme;
use crate::scenario::{Nic, PointSpec};

/// All names begin with it; the run's id follows.
pub(super) const PREFIX: &str = "rw-";

/// Namespaces and interfaces, as long as this incarnations.
#[derive(Debug)]
pub(super) struct Space(Network);

impl Space {
    /// Makes those that a point needs; the run's journal entry names them already.
    pub(super) fn make(entry: &RunEntry, point: &PointSpec) -> Result<Self, TestbedError> {
        let fabric = &point.config.fabric;
        let network = Network {
            prefix: entry.prefix(),
            hosts: fabric.topology.hosts(),
            link: crate::scenario::host_link(fabric.topology),
            nic: match point.testbed.nic {
                Nic::Fifo => netns::Nic::Fifo,
                Nic::Fair => netns::Nic::Fair,
            },
            tcp: tcp_settings(point),
        };
        // Dropped, and removed with it, if it comes to nothing.
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
        // What stays is written down, and the next run tries again.
        let _ = netns::remove(&self.0.prefix);
    }
}

/// The name of the switch's end of a host's pair.
pub(super) fn switch_end(host: u32) -> String {
    netns::switch_end(HostId(host))
}

/// By the first stream over TCP. Congestion control is set for each connection too; but what the machine's default
/// is must never count.
fn tcp_settings(point: &PointSpec) -> TcpSettings {
    let of_cast = point.cast.as_ref().and_then(|cast| match &cast.scheme {
        Scheme::Streams { transport, .. } => Some(transport),
        _ => None,
    });
    let streams = point.config.streams.iter().map(|stream| &stream.transport);
    let streams = streams.chain(of_cast).zip(&point.kernel_tcp);
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

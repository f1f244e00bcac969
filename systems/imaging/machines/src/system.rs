//! SWP2P as a [`System`]: the interface through which switches run its program.

use rackweave_core::HostId;
use rackweave_switch::Fabric;
use rackweave_switch::system::{Outgoing, Parsed, Protocol, System, SystemError};
use rackweave_wire::frame::ip_address;
use rackweave_wire::frisbee::{self, Auth, Direction, Header, Key, SESSION_BYTES};

use super::switch::{Config, Program, View};

/// SWP2P in the switches of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swp2p {
    /// How the switches run it.
    pub config: Config,
    /// The key that all hosts of the session share, if there is one. It seals the messages that programs make too.
    pub key: Option<Key>,
}

impl Swp2p {
    fn direction(&self, header: &Header) -> Direction {
        Direction::of(header, ip_address(self.config.server).unwrap_or_default())
    }
}

/// Why SWP2P cannot run on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server's host {number} does not exist: the fabric has {hosts} hosts")]
pub struct NoServer {
    /// The number of the server's host, as configured.
    pub number: u32,
    /// The number of hosts of the fabric.
    pub hosts: u32,
}

impl System for Swp2p {
    type View = View;
    type Program = Program;
    type Made = Header;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        core::iter::once(Protocol {
            kind: frisbee::KIND,
            port: frisbee::PORT,
            group: None,
            has_check: true,
        })
    }

    fn resolves(&self, _dst: HostId) -> bool {
        false
    }

    fn parse(&self, _kind: u8, bytes: &[u8]) -> Option<Parsed<View>> {
        let decoded = frisbee::decode(bytes).ok()?;
        let session = Auth::from(self.key).session(bytes, self.direction(&decoded.header));
        // Without a key, hosts of testbeds send messages without a trailer.
        let is_authentic = self.key.is_none() || session.is_some();
        let view = View { message: decoded.header, is_authentic, session };
        Some(Parsed { view, addresses: None, payload_at: decoded.payload.start })
    }

    fn encode(&self, packet: &Outgoing<'_, Header>, out: &mut Vec<u8>) -> u8 {
        let start = out.len();
        frisbee::encode(&packet.header, out);
        // The program appends the number of the session.
        let (payload, session) = match packet.payload.split_last_chunk::<SESSION_BYTES>() {
            Some((payload, session)) if payload.len() == packet.header.payload_len() as usize => {
                (payload, Some(u64::from_le_bytes(*session)))
            }
            _ => (packet.payload, None),
        };
        out.extend_from_slice(payload);
        if let Some(session) = session {
            Auth::from(self.key).seal(out, start, session, self.direction(&packet.header));
        }
        frisbee::KIND
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Program>, SystemError> {
        let (number, hosts) = (self.config.server.0, fabric.hosts());
        if number >= hosts {
            return Err(SystemError::new(NoServer { number, hosts }));
        }
        Ok((0..fabric.switches()).map(|_| Program::new(self.config)).collect())
    }
}

//! Aggregation as a [`System`]: the interface through which switches run its program.

use rackweave_core::HostId;
use rackweave_switch::Fabric;
use rackweave_switch::system::{Outgoing, Parsed, Protocol, System, SystemError};
use rackweave_wire::reduce::{self, Header};

use super::switch::{Config, Program};

/// Aggregation in the switches of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// How each switch that adds up runs the program.
    pub config: Config,
    /// The switches that add up; the others only forward. Empty: all of them.
    pub switches: Vec<u32>,
}

/// Why aggregation cannot run on a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("switch {number} does not exist: the fabric has {switches} switches")]
pub struct NoSwitch {
    /// The number of the switch, as configured.
    pub number: u32,
    /// The number of switches of the fabric.
    pub switches: u32,
}

impl System for Reduce {
    type View = Header;
    type Program = Option<Program>;
    type Made = Header;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        let (kind, port) = (reduce::KIND, reduce::PORT);
        core::iter::once(Protocol { kind, port, group: None, has_check: false })
    }

    fn resolves(&self, _dst: HostId) -> bool {
        false
    }

    fn parse(&self, _kind: u8, bytes: &[u8]) -> Option<Parsed<Header>> {
        let decoded = reduce::decode(bytes).ok()?;
        let payload_at = decoded.payload.start;
        Some(Parsed { view: decoded.header, addresses: None, payload_at })
    }

    fn encode(&self, packet: &Outgoing<'_, Header>, out: &mut Vec<u8>) -> u8 {
        reduce::encode(&packet.header, out);
        out.extend_from_slice(packet.payload);
        reduce::KIND
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Option<Program>>, SystemError> {
        let switches = fabric.switches();
        if let Some(number) = self.switches.iter().copied().find(|number| *number >= switches) {
            return Err(SystemError::new(NoSwitch { number, switches }));
        }
        let adds_up = |switch| self.switches.is_empty() || self.switches.contains(&switch);
        let program = |switch| {
            let secret = rackweave_core::rng::mix(self.config.secret ^ u64::from(switch));
            Program::new(switch, Config { secret, ..self.config })
        };
        Ok((0..switches).map(|switch| adds_up(switch).then(|| program(switch))).collect())
    }
}

//! Orca as a [`System`]: the interface through which switches run its programs.

use std::sync::Arc;

use rackweave_core::HostId;
use rackweave_switch::Fabric;
use rackweave_switch::system::{Outgoing, Parsed, Protocol, System, SystemError};
use rackweave_wire::orca::{self, Header, Key};

use super::label::{LabelError, Layout};
use super::switch::Program;
use super::view::{Made, View};

/// Orca in the switches of a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orca {
    /// The controller's host. ToRs accept control packets only from it. If `None`, they accept any packet that claims
    /// to come from the controller.
    pub controller: Option<HostId>,
    /// The key that all members share, if there is one. With a key, ToRs ignore control packets that are not
    /// authenticated by it.
    pub key: Option<Key>,
}

/// Why Orca cannot run on a fabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrcaError {
    /// The fabric cannot have labels.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// The configured controller is not a host of the fabric.
    #[error("the controller's host {number} does not exist: the fabric has {hosts} hosts")]
    NoController {
        /// The number of the controller's host, as configured.
        number: u32,
        /// The number of hosts of the fabric.
        hosts: u32,
    },
}

impl Orca {
    fn all_programs(&self, fabric: &Fabric) -> Result<Vec<Program>, OrcaError> {
        let hosts = fabric.hosts();
        if let Some(HostId(number)) = self.controller
            && number >= hosts
        {
            return Err(OrcaError::NoController { number, hosts });
        }
        let layout = Arc::new(Layout::new(fabric)?);
        let program = |switch| {
            let program = Program::new(Arc::clone(&layout), fabric, switch)?;
            Ok(match self.controller {
                Some(host) => program.with_controller(host),
                None => program,
            })
        };
        (0..fabric.switches()).map(program).collect()
    }
}

impl System for Orca {
    type View = View;
    type Program = Program;
    type Made = Made;

    fn protocols(&self) -> impl Iterator<Item = Protocol> {
        core::iter::once(Protocol {
            kind: orca::KIND,
            port: orca::PORT,
            group: Some((orca::GROUP, orca::TO_GROUP)),
            has_check: true,
        })
    }

    fn resolves(&self, dst: HostId) -> bool {
        dst == orca::TO_GROUP || dst == orca::TO_AGENT
    }

    fn parse(&self, _kind: u8, bytes: &[u8]) -> Option<Parsed<View>> {
        let orca::Glance { header, verified, .. } = orca::glance(bytes, self.key.as_ref()).ok()?;
        let view = match View::of(&header) {
            // Control packets that are not verified are forwarded and have no effect.
            View::SetActive { .. } | View::Sync { .. } | View::Ping { .. } if !verified => {
                View::Control
            }
            view => view,
        };
        let addresses = match header {
            Header::Control(control) => Some((control.from, control.to)),
            Header::Data(_) => None,
        };
        Some(Parsed { view, addresses, payload_at: 0 })
    }

    fn encode(&self, packet: &Outgoing<'_, Made>, _out: &mut Vec<u8>) -> u8 {
        match packet.header {}
    }

    fn programs(&self, fabric: &Fabric) -> Result<Vec<Program>, SystemError> {
        self.all_programs(fabric).map_err(SystemError::new)
    }
}

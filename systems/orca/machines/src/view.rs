//! Packets as switch programs see and make them.

use rackweave_switch::system::{Makeable, Visible};
use rackweave_wire::orca::{Body, Control, Data, Header, Label, Labelled, PORT, Place, TO_AGENT};

/// The fields of a packet by which a switch forwards it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Data of a session.
    Data {
        /// The kind of label in the packet.
        labelled: Labelled,
        /// The label itself, as in the header.
        label: Label,
    },
    /// A control packet for the active agent of its sender's rack.
    ToAgent,
    /// A command of the controller that sets the active agent of a rack.
    SetActive {
        /// The number of the rack.
        rack: u16,
        /// The agent's port, or 255 for none.
        agent: u8,
        /// The epoch, which increases with each change.
        epoch: u32,
    },
    /// A rack label from the controller for all agents of a rack.
    Sync {
        /// The number of the rack.
        rack: u16,
    },
    /// A ping from an agent to the controller.
    Ping {
        /// The agent's rack and port.
        place: Place,
    },
    /// Any other control packet, for the host to which it is addressed.
    Control,
}

/// The header of the packets that programs make: they make none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {}

impl Makeable<Made> for Header {
    const PORT: u16 = PORT;

    fn make(header: Made) -> (Self, u32) {
        match header {}
    }
}

impl Visible<View> for Header {
    #[inline]
    fn view(&self) -> Option<View> {
        Some(View::of(self))
    }
}

impl View {
    /// Returns the view of a packet with this header.
    #[must_use]
    #[inline]
    pub const fn of(header: &Header) -> Self {
        match *header {
            Header::Data(Data { labelled, label, .. }) => Self::Data { labelled, label },
            Header::Control(Control { to, body, .. }) => match body {
                Body::SetActive { rack, agent, epoch } => Self::SetActive { rack, agent, epoch },
                Body::Sync { rack, .. } => Self::Sync { rack },
                Body::Ping { place, .. } => Self::Ping { place },
                _ if to.0 == TO_AGENT.0 => Self::ToAgent,
                _ => Self::Control,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::HostId;
    use rackweave_wire::orca::Session;

    use super::*;

    fn control(to: HostId, body: Body) -> View {
        View::of(&Header::Control(Control { from: HostId(1), to, session: Session(7), body }))
    }

    #[test]
    fn views_have_the_fields_that_switches_use() {
        assert_eq!(control(TO_AGENT, Body::End { length: 1 }), View::ToAgent);
        assert_eq!(control(HostId(2), Body::End { length: 1 }), View::Control);
        let place = Place { rack: 3, port: 4 };
        let ping = Body::Ping { place, number: 1 };
        assert_eq!(control(HostId(2), ping), View::Ping { place });
        let set = Body::SetActive { rack: 3, agent: 255, epoch: 9 };
        assert_eq!(control(HostId(2), set), View::SetActive { rack: 3, agent: 255, epoch: 9 });
        let sync = Body::Sync { rack: 3, ports: 1, version: 1 };
        assert_eq!(control(HostId(2), sync), View::Sync { rack: 3 });
    }
}

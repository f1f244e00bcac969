//! The receiver: each packet of a message is acknowledged.

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::pfabric::{Body, Header};

use super::Host;
use crate::common::Place;

impl Host {
    /// Handles a probe: section 4.3 (`unverified`) ends probe mode with an acknowledgement.
    pub(super) fn handle_probe(&mut self, now: Time, from: HostId, header: &Header, length: u32) {
        let Some((next, sack)) = self.probed(now, from, header, length) else { return };
        let ack = Body::Ack { next, packet: 0, sack };
        self.send_control(from, header.id.get(), header.one_way, ack);
    }

    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, .. } = header.body else {
            return Placement::Discard;
        };
        if packet.is_trimmed() {
            return Placement::Discard;
        }
        let place = Place { message_length, offset, len };
        let arrival = self.arrived(now, packet.src, header, place, self.config.common.max_gaps);
        let Some(arrival) = arrival else { return Placement::Discard };
        let packet = offset / self.config.common.max_payload;
        let answer = match arrival.acknowledged {
            Some((next, sack)) => Body::Ack { next, packet, sack },
            None => Body::Complete,
        };
        self.send_control(arrival.peer, arrival.id, arrival.one_way, answer);
        arrival.placement
    }
}

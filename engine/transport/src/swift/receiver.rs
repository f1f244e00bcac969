//! The receiver: each packet of a message is acknowledged (htsim; without delay, so that each measures a delay).

use rackweave_core::{HostId, Packet, Placement, Time};
use rackweave_wire::swift::{Body, Header};

use super::Host;
use crate::common::Place;

impl Host {
    /// Handles a probe of a sender whose message waits.
    pub(super) fn handle_probe(&mut self, now: Time, from: HostId, header: &Header, length: u32) {
        let Some((next, sack)) = self.probed(now, from, header, length) else { return };
        let ack = Body::Ack { number: 0, wait_ns: 0, next, sack };
        self.send_control(from, header.id.get(), header.one_way, ack);
    }

    /// Handles a data packet.
    pub(super) fn handle_data(&mut self, now: Time, packet: &Packet<Header>) -> Placement {
        let header = &packet.header;
        let Body::Data { message_length, offset, len, number } = header.body else {
            return Placement::Discard;
        };
        if packet.is_trimmed() {
            return Placement::Discard;
        }
        let place = Place { message_length, offset, len };
        let arrival = self.arrived(now, packet.src, header, place, self.config.common.max_gaps);
        let Some(arrival) = arrival else { return Placement::Discard };
        // The header gets the time of its arrival when the answer leaves.
        let answer = match arrival.acknowledged {
            Some((next, sack)) => Body::Ack { number, wait_ns: 0, next, sack },
            None => Body::Complete { number, wait_ns: 0 },
        };
        self.send_control(arrival.peer, arrival.id, arrival.one_way, answer);
        arrival.placement
    }
}

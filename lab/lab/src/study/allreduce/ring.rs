//! A host of a ring, over a transport.
//!
//! Transports in the simulator carry names of bytes. The bytes of a message are kept in [`Memory`], where its receiver finds them once it is
//! delivered, as buffers of a sender are read by a real transport.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use rackweave_aggregation::vector::ring::{Piece, Ring};
use rackweave_core::{
    Event, HostId, Kind, MessageId, Node as _, Packet, Submit, Time, Transport as _,
};
use rackweave_transport::Machine;
use rackweave_wire::Header;

use super::node::Training;

/// The contents of messages that have been sent and not delivered, by sender and id.
pub(super) type Memory = Rc<RefCell<BTreeMap<(HostId, MessageId), Piece>>>;

/// A host of a ring.
#[derive(Debug)]
pub(super) struct RingHost {
    host: HostId,
    next: HostId,
    ring: Ring,
    machine: Box<Machine>,
    training: Training,
    memory: Memory,
    submitted: u64,
    element_bytes: u64,
    left: usize,
    has_failed: bool,
}

impl RingHost {
    /// A host that begins at once.
    pub(super) fn new(
        (host, next): (HostId, HostId),
        ring: Ring,
        machine: Machine,
        mut training: Training,
        memory: &Memory,
        element_bytes: u64,
    ) -> Self {
        training.begin(Time::ZERO, 0);
        Self {
            host,
            next,
            ring,
            machine: Box::new(machine),
            left: training.records.len(),
            training,
            memory: Rc::clone(memory),
            submitted: 0,
            element_bytes,
            has_failed: false,
        }
    }

    pub(super) const fn training(&self) -> &Training {
        &self.training
    }

    pub(super) const fn is_done(&self) -> bool {
        self.left == 0 || self.has_failed
    }

    pub(super) fn handle_packet(&mut self, now: Time, port: u8, packet: &Packet<Header>) {
        let _ = self.machine.handle_packet(now, port, packet);
        self.pump(now);
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.machine.handle_timeout(now);
        self.pump(now);
    }

    pub(super) fn poll_transmit(&mut self, now: Time, port: u8) -> Option<Packet<Header>> {
        self.machine.poll_transmit(now, port)
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        [self.machine.poll_timeout(), self.training.next_time()].into_iter().flatten().min()
    }

    fn pump(&mut self, now: Time) {
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::Delivered { peer, id, .. } => {
                    let piece = self.memory.borrow_mut().remove(&(peer, id));
                    if let Some(piece) = piece {
                        self.ring.receive(piece);
                    }
                }
                Event::Failed { .. } => self.has_failed = true,
                Event::Sent { .. } | Event::Stream(_) => {}
            }
        }
        loop {
            while let Some((_, vector)) = self.training.poll(now) {
                self.ring.begin(vector);
            }
            while let Some(piece) = self.ring.poll() {
                self.submitted += 1;
                let id = MessageId::request(self.submitted);
                let bytes = piece.values.len() as u64 * self.element_bytes;
                self.memory.borrow_mut().insert((self.host, id), piece);
                let submit = Submit { id, peer: self.next, bytes, kind: Kind::OneWay };
                self.has_failed |= self.machine.submit(now, submit).is_err();
            }
            let Some((step, sums)) = self.ring.finish() else { return };
            self.training.summed(now, step, &sums);
            self.left -= 1;
            if self.left > 0 {
                self.training.begin(now, step + 1);
            }
        }
    }
}

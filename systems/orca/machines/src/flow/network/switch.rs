//! The switch of the network: its ports towards the receivers have rates and buffers of their own.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use rackweave_core::{
    Egress, HostId, Packet, PayloadStore, Port, Rate, SwitchProgram, Time, Verdict,
};
use rackweave_wire::orca::{Header, TO_GROUP};

/// The switch's port towards a receiver, with its queue.
pub(super) struct PortQueue {
    pub(super) rate: Rate,
    buffer: u64,
    backlog: u64,
    busy_until: Time,
    pub(super) dropped: u64,
}

/// The state of the switch.
#[derive(Default)]
pub(super) struct Ports {
    /// The rate of all links of the network.
    feed: Rate,
    pub(super) queues: Vec<PortQueue>,
    /// For each receiver, the queue that it uses.
    used: Vec<usize>,
    /// For each source, its attached receivers.
    pub(super) attached: Vec<BTreeSet<HostId>>,
    /// The packets in the queues by the time at which they enter the link, and the queue of each.
    waiting: BTreeMap<(Time, u64), (usize, Packet<Header>)>,
    number: u64,
}

impl Ports {
    pub(super) fn new(feed: Rate) -> Self {
        Self { feed, ..Self::default() }
    }

    /// Adds a receiver, whose packets use this queue.
    pub(super) fn add(&mut self, rate: Rate, buffer: u64, used: usize) {
        let busy_until = Time::ZERO;
        self.queues.push(PortQueue { rate, buffer, backlog: 0, busy_until, dropped: 0 });
        self.used.push(used);
    }

    fn enqueue(&mut self, now: Time, packet: Packet<Header>) {
        let number = self.used[packet.dst.0 as usize];
        let queue = &mut self.queues[number];
        let bytes = u64::from(packet.wire_bytes);
        if queue.backlog + bytes > queue.buffer {
            queue.dropped += bytes;
            return;
        }
        // The network's link is as fast as the sender's: a slower one delays the packet before it.
        let feed = self.feed.span_of(bytes);
        queue.busy_until = queue.busy_until.max(now) + queue.rate.span_of(bytes).max(feed);
        queue.backlog += bytes;
        self.number += 1;
        let start = Time::from_ticks(queue.busy_until.ticks() - feed.ticks());
        self.waiting.insert((start, self.number), (number, packet));
    }
}

/// The program of the switch: it replicates data for everyone, and queues what is sent to receivers.
pub(super) struct Switch(pub(super) Rc<RefCell<Ports>>);

impl SwitchProgram for Switch {
    type Header = Header;

    fn handle_packet<S: PayloadStore<Header>>(
        &mut self,
        now: Time,
        _port: Port,
        packet: &mut Packet<Header>,
        _payloads: &mut S,
    ) -> Verdict {
        let mut ports = self.0.borrow_mut();
        if let (TO_GROUP, Header::Data(data)) = (packet.dst, &packet.header) {
            for dst in ports.attached[data.session.0 as usize - 1].clone() {
                packet.dst = dst;
                ports.enqueue(now, *packet);
            }
        } else if (packet.dst.0 as usize) < ports.used.len() {
            ports.enqueue(now, *packet);
        } else {
            return Verdict::Route;
        }
        Verdict::Consume
    }

    fn poll_transmit<S: PayloadStore<Header>>(
        &mut self,
        now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Header>)> {
        let mut ports = self.0.borrow_mut();
        let first = ports.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        let (queue, packet) = first.remove();
        ports.queues[queue].backlog -= u64::from(packet.wire_bytes);
        Some((Egress::Route, packet))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.0.borrow().waiting.first_key_value().map(|(key, _)| key.0)
    }
}

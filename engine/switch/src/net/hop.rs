//! A packet's hop: arrival at a node, a switch's decision, and the queue before a link.

use rackweave_core::{
    Admission, Destination, DropReason, Egress, Header, HostId, PacketRef, PayloadStore, Port,
    PortSet, Span, SwitchProgram, Time, Verdict,
};

use super::nic::Edge;
use super::{
    CHARGED, COUNTED, CROSSING, Consumed, FAULTY, METERED, Net, Node32, PACED, STAMPING, TAPPED,
};
use crate::fabric::{Node, serialisation};

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Handles the arrival of the first packet on a link; returns it if it has reached a host.
    #[inline]
    pub(super) fn on_link<E: Edge<P::Header>>(
        &mut self,
        edge: &mut E,
        link: u32,
    ) -> Option<(HostId, PacketRef)> {
        let state = &mut self.links[link as usize];
        let Some(packet) = state.in_flight.pop(&self.pool) else {
            self.on_crossing_port(link);
            return None;
        };
        let (to, special, is_due) = (state.to, state.special, state.is_due(self.now));
        if let Some(next) = state.in_flight.front() {
            self.events.push(self.pool.time(next), link);
        }
        self.counters.packet_hops += 1;
        // The decisions of the sending port that are due: at least one if it has packets queued.
        if link < self.components.hosts {
            self.link_freed(edge, HostId(link));
        } else if is_due {
            self.catch_up(link, self.now + Span::TICK);
        }
        if special & (FAULTY | CHARGED) != 0 {
            self.comes_by(link);
            if !self.survives(link, packet) {
                return None;
            }
        }
        self.hand_over(link, to, packet)
    }

    /// Gives a packet to the switch at the end of a link, or returns it with the host.
    #[inline]
    pub(super) fn hand_over(
        &mut self,
        link: u32,
        to: Node32,
        packet: PacketRef,
    ) -> Option<(HostId, PacketRef)> {
        let Some(switch) = to.switch() else { return Some((HostId(to.0), packet)) };
        if P::ACTIVE {
            self.process(switch, link, packet);
        } else {
            self.route(switch, packet);
        }
        None
    }

    /// Lets a switch's program decide about a packet.
    #[inline]
    fn process(&mut self, number: u32, link: u32, packet: PacketRef) {
        let now = self.now;
        let port = Port(self.to_ports[link as usize]);
        let program = &mut self.switches[number as usize].program;
        let payloads = &mut self.payloads;
        let verdict =
            self.pool.modify(packet, |packet| program.handle_packet(now, port, packet, payloads));
        match verdict {
            Verdict::Route => self.route_any(number, packet),
            Verdict::Forward(port) => self.leave_by(number, port, packet),
            Verdict::Replicate(ports) => self.replicate(number, ports, packet),
            Verdict::Consume => self.consume(packet),
            Verdict::Drop(reason) => self.discard(packet, reason),
        }
        self.after_program(number);
    }

    /// Frees a packet that a program has consumed, and reports it to an owner that asks for it.
    #[inline]
    fn consume(&mut self, packet: PacketRef) {
        self.counters.consumed += 1;
        if let Some(wake) = self.consumed_wake {
            let packet = self.pool.get(packet);
            let work = packet.header.work();
            self.consumed.push_back(Consumed { wire_bytes: packet.wire_bytes, work });
            if self.consumed.len() == 1 {
                self.wake_at(self.now, wake);
            }
        }
        self.free(packet);
    }

    /// Forwards a packet by the switch's own rules.
    #[inline]
    fn route(&mut self, number: u32, packet: PacketRef) {
        let switch = &mut self.switches[number as usize];
        match switch.forwarder.route(self.pool.get(packet)) {
            Some(port) => {
                let link = switch.first_link + u32::from(port.0);
                self.enqueue(number, link, packet);
            }
            None => self.discard(packet, self.why_no_route()),
        }
    }

    /// As [`Self::route`], where programs are active: packets may be addressed to switches and groups too.
    #[inline]
    fn route_any(&mut self, number: u32, packet: PacketRef) {
        match Destination::from_address(self.pool.get(packet).dst) {
            Destination::Host(_) => self.route(number, packet),
            Destination::Switch(switch) => match self.port_towards(number, switch) {
                Some(port) => self.leave_by(number, port, packet),
                None => self.discard(packet, DropReason::NoRoute),
            },
            Destination::Group(_) => self.discard(packet, DropReason::NoRoute),
        }
    }

    /// The port of a switch on a shortest path to another one; `None` if it is that switch, or there is no path.
    fn port_towards(&mut self, number: u32, switch: u32) -> Option<Port> {
        if number == switch || switch >= self.fabric.switches() {
            return None;
        }
        let fabric = &self.fabric;
        let ports = self
            .towards_switches
            .entry(switch)
            .or_insert_with(|| fabric.ports_towards_switch(switch));
        let port = *ports.get(number as usize)?;
        (port != u16::MAX).then_some(Port(port))
    }

    /// Sends a packet through a port that a program has chosen.
    #[inline]
    fn leave_by(&mut self, number: u32, port: Port, packet: PacketRef) {
        let switch = &self.switches[number as usize];
        let link = switch.first_link + u32::from(port.0);
        if link < switch.end_link {
            self.enqueue(number, link, packet);
        } else {
            self.discard(packet, DropReason::NoRoute);
        }
    }

    /// Sends a copy through each port of a set; ports that the switch does not have are ignored. The packet
    /// itself takes the last port; for the empty set it is consumed.
    fn replicate(&mut self, number: u32, ports: PortSet, packet: PacketRef) {
        let switch = &self.switches[number as usize];
        let (first, count) = (switch.first_link, switch.end_link - switch.first_link);
        let mut left = ports.intersection(PortSet::first(u16::try_from(count).unwrap_or(u16::MAX)));
        let Some(mut port) = left.pop() else {
            if ports.is_empty() {
                return self.consume(packet);
            }
            return self.discard(packet, DropReason::NoRoute);
        };
        while let Some(next) = left.pop() {
            self.send_copy(number, first + u32::from(port.0), packet);
            port = next;
        }
        self.enqueue(number, first + u32::from(port.0), packet);
    }

    fn send_copy(&mut self, number: u32, link: u32, packet: PacketRef) {
        let reason = if self.links[link as usize].is_down() {
            self.why_down(link)
        } else if let Some(copy) = self.copy(packet) {
            self.counters.copied += 1;
            return self.enqueue(number, link, copy);
        } else {
            DropReason::NoBuffer
        };
        self.stats[link as usize].count_drop();
        self.counters.drops[reason as usize] += 1;
    }

    /// Puts a copy of a packet into the pool, if there is room for its payload.
    pub(super) fn copy(&mut self, packet: PacketRef) -> Option<PacketRef> {
        let copy = self.pool.duplicate(packet);
        let payloads = &mut self.payloads;
        if self.pool.modify(copy, |packet| payloads.duplicate(packet)) {
            return Some(copy);
        }
        self.pool.remove(copy);
        None
    }

    /// Sends the packets that a program has made, and arms its timer.
    #[inline]
    pub(super) fn after_program(&mut self, number: u32) {
        let now = self.now;
        loop {
            let program = &mut self.switches[number as usize].program;
            let Some((egress, packet)) = program.poll_transmit(now, &mut self.payloads) else {
                break;
            };
            self.counters.made += 1;
            let packet = self.pool.insert(packet);
            match egress {
                Egress::Port(port) => self.leave_by(number, port, packet),
                Egress::Route => self.route_any(number, packet),
            }
        }
        let switch = &mut self.switches[number as usize];
        // A program that requests its timer for the same time a second time waits for the next packet, so that
        // time advances.
        if let Some(at) = switch.program.poll_timeout()
            && at < switch.armed
            && (at > now || switch.timed != Some(now))
        {
            let at = at.max(now);
            switch.armed = at;
            self.events.push_timer(at, self.components.programs + number);
        }
    }

    /// Handles a program's timer, unless it has been superseded.
    pub(super) fn on_program(&mut self, number: u32) {
        let now = self.now;
        let switch = &mut self.switches[number as usize];
        if switch.armed != now {
            return;
        }
        switch.armed = Time::MAX;
        switch.timed = Some(now);
        self.comes_by_none();
        let switch = &mut self.switches[number as usize];
        if switch.program.poll_timeout().is_some_and(|at| at <= now) {
            switch.program.handle_timeout(now);
        }
        self.after_program(number);
    }

    /// Sends a packet by `link`, or queues it.
    #[inline]
    fn enqueue(&mut self, switch: u32, link: u32, packet: PacketRef) {
        let state = &self.links[link as usize];
        if state.busy_until <= self.now && state.queue.is_empty() && state.gate == 0 {
            return self.transmit(link, packet, self.now);
        }
        self.join(switch, link, packet);
    }

    /// As [`Self::enqueue`], for a port that was busy when it was last updated.
    #[inline(never)]
    fn join(&mut self, switch: u32, link: u32, packet: PacketRef) {
        if self.links[link as usize].gate & PACED != 0 {
            return self.join_paced(switch, link, packet);
        }
        if self.links[link as usize].is_down() {
            self.stats[link as usize].count_drop();
            return self.discard(packet, self.why_down(link));
        }
        self.catch_up(link, self.now);
        let state = &self.links[link as usize];
        if state.busy_until <= self.now && state.queue.is_empty() {
            return self.transmit(link, packet, self.now);
        }
        self.wait(switch, link, packet);
    }

    /// Queues a packet at a busy port.
    #[inline]
    pub(super) fn wait(&mut self, number: u32, link: u32, packet: PacketRef) {
        let now = self.now;
        if self.shares_buffers && !self.shared_buffer_admits(number, link, packet) {
            self.stats[link as usize].count_drop();
            return self.discard(packet, DropReason::SharedBufferFull);
        }
        let switch = &mut self.switches[number as usize];
        let queue = &mut self.links[link as usize].queue;
        let before = queue.bytes();
        let admission = queue.enqueue(&mut self.pool, packet, switch.forwarder.rng());
        if admission == Admission::Overfull {
            self.trace_queued(link, packet, before, admission);
            self.evict(link);
        }
        let switch = &mut self.switches[number as usize];
        let after = self.links[link as usize].queue.bytes();
        let stats = &mut self.stats[link as usize];
        stats.queue_changes(now, before, after);
        match admission {
            Admission::Queued | Admission::Overfull => {}
            Admission::Marked => self.counters.ecn_marks += 1,
            Admission::Trimmed => self.counters.trims += 1,
            Admission::ReturnedToSender(_) => self.counters.returned_to_sender += 1,
            Admission::Dropped(reason) => {
                stats.count_drop();
                self.counters.drops[reason as usize] += 1;
                // The queue may have freed another packet than the arriving one. Its slot in the pool can be
                // read until the next packet is inserted.
                self.payloads.release(self.pool.get(packet));
            }
        }
        // If a queued packet is trimmed in place of a shorter one, the queue may hold fewer bytes than before.
        if let Some(shared) = &mut switch.shared {
            shared.take(after.saturating_sub(before));
            shared.give_back(before.saturating_sub(after));
        }
        let special = self.links[link as usize].special;
        if special & (CROSSING | TAPPED) != 0 {
            if special & CROSSING != 0 {
                self.schedule_port(link);
            }
            if admission != Admission::Overfull {
                self.trace_queued(link, packet, before, admission);
            }
        }
        if let Admission::ReturnedToSender(packet) = admission {
            // This happens only once: a packet that was returned to its sender is never trimmed.
            self.route(number, packet);
        }
    }

    /// Drops the packets of the lowest priority from a queue in the order of remaining size, until the rest fits.
    #[inline(never)]
    fn evict(&mut self, link: u32) {
        while let Some(packet) = self.links[link as usize].queue.evict(&self.pool) {
            self.stats[link as usize].count_drop();
            self.discard(packet, DropReason::QueueFull);
        }
    }

    /// Whether the shared buffer has room. The buffer still counts bytes that other ports have sent since they
    /// were last updated, so that a refusal is only valid after all of them have caught up.
    fn shared_buffer_admits(&mut self, number: u32, link: u32, packet: PacketRef) -> bool {
        let bytes = u64::from(self.pool.wire_bytes(packet));
        for caught_up in [false, true] {
            let switch = &self.switches[number as usize];
            let Some(shared) = &switch.shared else { return true };
            if shared.admits(self.links[link as usize].queue.bytes(), bytes) {
                return true;
            }
            if !caught_up {
                for other in switch.first_link..switch.end_link {
                    self.catch_up(other, self.now);
                }
            }
        }
        false
    }

    /// Makes the decisions of a switch port that were due before `before`.
    #[inline]
    pub(super) fn catch_up(&mut self, link: u32, before: Time) {
        loop {
            let state = &mut self.links[link as usize];
            let start = state.busy_until;
            if start >= before {
                return;
            }
            if state.gate & PACED != 0 {
                return self.catch_up_paced(link, before);
            }
            let waiting = state.queue.bytes();
            let Some(packet) = state.queue.dequeue(&mut self.pool) else { return };
            let left = state.queue.bytes();
            self.stats[link as usize].queue_changes(start, waiting, left);
            if self.shares_buffers {
                self.give_back(link, waiting - left);
            }
            self.transmit(link, packet, start);
        }
    }

    /// A packet of this many bytes has left a shared buffer.
    fn give_back(&mut self, link: u32, bytes: u64) {
        if let Node::Switch(number) = self.fabric.links()[link as usize].from
            && let Some(shared) = &mut self.switches[number as usize].shared
        {
            shared.give_back(bytes);
        }
    }

    /// Puts a packet on a link.
    #[inline]
    pub(super) fn transmit(&mut self, link: u32, packet: PacketRef, start: Time) {
        let state = &mut self.links[link as usize];
        let kind = &self.kinds[usize::from(state.kind)];
        let span = serialisation(kind.ticks_per_byte_q16, self.pool.wire_bytes(packet));
        let end = start + span;
        state.busy_until = end;
        state.busy += span;
        let arrival = end + kind.delay;
        if state.special & CROSSING != 0 {
            return self.cross(link, packet, start, arrival);
        }
        let is_first = state.in_flight.is_empty();
        state.in_flight.push_timed(&mut self.pool, packet, arrival);
        if state.special & !(FAULTY | CHARGED) != 0 {
            self.record(link, packet, start);
        }
        if is_first {
            self.events.push(arrival, link);
        }
    }

    /// Counts, meters and captures a packet that is put on a link.
    #[inline(never)]
    pub(super) fn record(&mut self, link: u32, packet: PacketRef, start: Time) {
        let special = self.links[link as usize].special;
        if P::Header::STAMPED && special & STAMPING != 0 {
            self.stamp(link, packet, start);
        }
        if special & COUNTED != 0 {
            let counts = &mut self.counts[link as usize];
            counts.frames += 1;
            counts.bytes += u64::from(self.pool.wire_bytes(packet));
        }
        if special & METERED != 0 {
            self.meter(link, packet, start);
        }
        if special & TAPPED != 0 {
            self.trace_sent(link, packet, start);
            self.capture(link, packet, start);
        }
    }

    /// Drops all packets that wait for a switch's port.
    pub(super) fn drop_queue(&mut self, link: u32, reason: DropReason) {
        loop {
            let queue = &mut self.links[link as usize].queue;
            let before = queue.bytes();
            let Some(packet) = queue.dequeue(&mut self.pool) else { return };
            let after = queue.bytes();
            self.leaves(packet);
            let stats = &mut self.stats[link as usize];
            stats.queue_changes(self.now, before, after);
            stats.count_drop();
            if self.shares_buffers {
                self.give_back(link, before - after);
            }
            self.discard(packet, reason);
        }
    }
}

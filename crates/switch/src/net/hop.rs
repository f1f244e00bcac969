//! What happens to a packet at a switch and before a link.

use rackweave_core::{Admission, DropReason, PacketRef, Port, SwitchProgram, Time, Verdict};

use super::{Bodies, Happening, Net};
use crate::fabric::{Node, serialisation};

impl<P: SwitchProgram, B: Bodies<P::Header>> Net<P, B> {
    /// The first packet on a link arrives.
    #[inline]
    pub(super) fn on_link(&mut self, link: u32) -> Happening {
        let state = &mut self.links[link as usize];
        let Some(packet) = state.in_flight.pop(&self.pool) else { return Happening::Inside };
        if let Some(next) = state.in_flight.front() {
            self.events.push(self.pool.at(next), link);
        }
        let special = state.special;
        self.counters.packet_hops += 1;
        // Decisions of the sending port that are due: at least one, if it has anything left.
        if link >= self.fabric.hosts() {
            self.catch_up(link, Time(self.now.0 + 1));
        }
        if special && !self.survives(link, packet) {
            return Happening::Inside;
        }
        self.hand_over(link, packet)
    }

    /// Gives a packet to the node at the end of a link.
    #[inline]
    pub(super) fn hand_over(&mut self, link: u32, packet: PacketRef) -> Happening {
        let link = &self.links[link as usize];
        match link.to {
            Node::Switch(switch) => {
                self.process(switch, link.to_port, packet);
                Happening::Inside
            }
            Node::Host(host) => Happening::Arrived { host: rackweave_core::HostId(host), packet },
        }
    }

    /// A switch's program decides about a packet.
    #[inline]
    fn process(&mut self, number: u32, port: u16, packet: PacketRef) {
        let now = self.now;
        let program = &mut self.switches[number as usize].program;
        let verdict =
            self.pool.modify(packet, |packet| program.handle_packet(now, Port(port), packet));
        match verdict {
            Verdict::Route => self.route(number, packet),
            Verdict::Forward(port) => self.leave_by(number, port, packet),
            Verdict::Replicate(ports) => self.replicate(number, ports, packet),
            Verdict::Consume => {
                self.counters.consumed += 1;
                self.free(packet);
            }
            Verdict::Drop(reason) => self.discard(packet, reason),
        }
        self.after_program(number);
    }

    /// The switch's own forwarding decides.
    #[inline]
    fn route(&mut self, number: u32, packet: PacketRef) {
        let switch = &mut self.switches[number as usize];
        match switch.forwarder.route(self.pool.get(packet)) {
            Some(port) => {
                let link = switch.first_link + u32::from(port.0);
                self.enqueue(number, link, packet);
            }
            None => self.discard(packet, DropReason::NoRoute),
        }
    }

    /// A packet leaves by a port that a program has named.
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

    /// A copy leaves by each port of a set; those that the switch does not have are left out. The packet itself is the
    /// last one; for no port at all it is kept.
    fn replicate(&mut self, number: u32, ports: u64, packet: PacketRef) {
        let switch = &self.switches[number as usize];
        let (first, count) = (switch.first_link, switch.end_link - switch.first_link);
        let mut left = if count < 64 { ports & ((1 << count) - 1) } else { ports };
        if left == 0 {
            if ports == 0 {
                self.counters.consumed += 1;
                return self.free(packet);
            }
            return self.discard(packet, DropReason::NoRoute);
        }
        while left & (left - 1) != 0 {
            let link = first + left.trailing_zeros();
            left &= left - 1;
            if self.links[link as usize].down {
                self.links[link as usize].stats.drops += 1;
                self.counters.drops[DropReason::LinkDown as usize] += 1;
            } else if let Some(copy) = self.copy(packet) {
                self.counters.copied += 1;
                self.enqueue(number, link, copy);
            } else {
                self.links[link as usize].stats.drops += 1;
                self.counters.drops[DropReason::NoBuffer as usize] += 1;
            }
        }
        self.enqueue(number, first + left.trailing_zeros(), packet);
    }

    /// Puts a copy of a packet into the pool, if there is room for what is attached to it.
    pub(super) fn copy(&mut self, packet: PacketRef) -> Option<PacketRef> {
        let packet = self.pool.get(packet);
        let header = self.bodies.copy(packet)?;
        let copy = packet.map(|_| header);
        Some(self.pool.insert(copy))
    }

    /// After a program has done something: packets of its own, and its timer.
    #[inline]
    pub(super) fn after_program(&mut self, number: u32) {
        let now = self.now;
        while let Some((port, packet)) = self.switches[number as usize].program.poll_transmit(now) {
            self.counters.made += 1;
            let packet = self.pool.insert(packet);
            self.leave_by(number, port, packet);
        }
        let switch = &mut self.switches[number as usize];
        // Who still wants to be called at once after it was has to wait until the next packet.
        if let Some(at) = switch.program.poll_timeout()
            && at < switch.armed
            && (at > now || switch.timed != Some(now))
        {
            let at = at.max(now);
            switch.armed = at;
            self.events.push_timer(at, self.components.programs + number);
        }
    }

    /// A program's timer is due, if it still counts.
    pub(super) fn on_program(&mut self, number: u32) {
        let now = self.now;
        let switch = &mut self.switches[number as usize];
        if switch.armed != now {
            return;
        }
        switch.armed = Time::MAX;
        switch.timed = Some(now);
        if switch.program.poll_timeout().is_some_and(|at| at <= now) {
            switch.program.handle_timeout(now);
        }
        self.after_program(number);
    }

    /// A packet wants to leave a switch by `link`.
    #[inline]
    fn enqueue(&mut self, switch: u32, link: u32, packet: PacketRef) {
        let now = self.now;
        let state = &mut self.links[link as usize];
        if state.down {
            state.stats.drops += 1;
            return self.discard(packet, DropReason::LinkDown);
        }
        if !state.queue.is_empty() {
            self.catch_up(link, now);
        }
        let state = &self.links[link as usize];
        if state.busy_until <= now && state.queue.is_empty() {
            return self.transmit(link, packet, now);
        }
        self.wait(switch, link, packet);
    }

    /// A packet joins the queue of a busy port.
    #[inline]
    fn wait(&mut self, number: u32, link: u32, packet: PacketRef) {
        if self.shares_buffers && !self.shared_buffer_admits(number, link, packet) {
            self.links[link as usize].stats.drops += 1;
            return self.discard(packet, DropReason::SharedBufferFull);
        }
        let switch = &mut self.switches[number as usize];
        let state = &mut self.links[link as usize];
        let before = state.queue.bytes();
        let admission = state.queue.enqueue(&mut self.pool, packet, switch.forwarder.rng());
        let after = state.queue.bytes();
        state.stats.queue_changes(self.now, before, after);
        match admission {
            Admission::Queued => {}
            Admission::Marked => self.counters.ecn_marks += 1,
            Admission::Trimmed => self.counters.trims += 1,
            Admission::TurnedBack(_) => self.counters.turned_back += 1,
            Admission::Dropped(reason) => {
                state.stats.drops += 1;
                self.counters.drops[reason as usize] += 1;
                // The queue has freed the packet, which may be another than the one that came: what was
                // in the pool's slot can be read until the next one is inserted.
                self.bodies.release(self.pool.get(packet));
            }
        }
        // A packet that was cut in place of a shorter one may leave less waiting than before.
        if let Some(shared) = &mut switch.shared {
            shared.take(after.saturating_sub(before));
            shared.give_back(before.saturating_sub(after));
        }
        if let Admission::TurnedBack(packet) = admission {
            // Not twice: what was turned back cannot be cut again.
            self.route(number, packet);
        }
    }

    /// Whether the shared buffer has room. What other ports have sent since they were last looked at
    /// is still counted, so a "no" is only believed once they all have been.
    fn shared_buffer_admits(&mut self, number: u32, link: u32, packet: PacketRef) -> bool {
        let bytes = u64::from(self.pool.wire_bytes(packet));
        for settled in [false, true] {
            let switch = &self.switches[number as usize];
            let Some(shared) = &switch.shared else { return true };
            if shared.admits(self.links[link as usize].queue.bytes(), bytes) {
                return true;
            }
            if !settled {
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
            let waiting = state.queue.bytes();
            let Some(packet) = state.queue.dequeue(&mut self.pool) else { return };
            let left = state.queue.bytes();
            state.stats.queue_changes(start, waiting, left);
            if self.shares_buffers {
                self.give_back(link, waiting - left);
            }
            self.transmit(link, packet, start);
        }
    }

    /// A packet of so many bytes has left a shared buffer.
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
        let bytes = self.pool.wire_bytes(packet);
        let span = serialisation(state.ps_per_byte_q16, bytes);
        let end = start + span;
        state.busy_until = end;
        state.stats.busy += span;
        state.frames += 1;
        state.bytes += u64::from(bytes);
        let mut arrival = end + state.delay;
        if arrival < self.now {
            arrival = self.now;
            self.counters.clamped += 1;
        }
        self.pool.set_at(packet, arrival);
        let was_empty = state.in_flight.is_empty();
        state.in_flight.push(&mut self.pool, packet);
        if was_empty {
            self.events.push(arrival, link);
        }
    }

    /// Throws away all packets that wait for a switch's port.
    pub(super) fn drop_queue(&mut self, link: u32) {
        loop {
            let state = &mut self.links[link as usize];
            let before = state.queue.bytes();
            let Some(packet) = state.queue.dequeue(&mut self.pool) else { return };
            let after = state.queue.bytes();
            state.stats.queue_changes(self.now, before, after);
            state.stats.drops += 1;
            if self.shares_buffers {
                self.give_back(link, before - after);
            }
            self.discard(packet, DropReason::LinkDown);
        }
    }
}

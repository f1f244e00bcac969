//! Hosts: their transports and the NIC that asks them for packets.

use std::collections::VecDeque;

use rackweave_core::{
    DropReason, Event, HostId, Packet, PacketRef, Placement, Submit, Time, Transport,
};

use rackweave_workload::Arrival;

use super::World;

/// Packets that a paused host's receive ring holds: the usual default of a NIC.
const RECEIVE_RING: usize = 1024;

/// A host.
#[derive(Debug)]
pub(super) struct Host<T: Transport> {
    pub(super) transports: Vec<T>,
    /// The transport that is asked first for the next packet.
    turn: usize,
    /// How often it has crashed: a new life remembers nothing of the one before.
    pub(super) crashes: u32,
    /// The transports had nothing to send when they were asked last, and nothing has happened since.
    idle: bool,
    /// When the last thing happened: nothing is sent before.
    woken: Time,
    /// The earliest wake-up in the event queue that counts.
    armed: Time,
    pub(super) state: HostState<T::Header>,
}

/// Whether a host works.
#[derive(Debug)]
pub(super) enum HostState<H> {
    Up,
    /// Does nothing; what arrives, and what its application submits, waits here.
    Paused(Waiting<H>),
    /// Has lost everything; the messages of closed loops that start when it is back.
    Down(Vec<(u16, Arrival)>),
}

/// What waits for a paused host to go on.
#[derive(Debug)]
pub(super) struct Waiting<H> {
    pub(super) packets: VecDeque<Packet<H>>,
    /// Messages, with the number of their transport.
    pub(super) messages: Vec<(u8, Submit)>,
}

impl<H> Waiting<H> {
    pub(super) const fn new() -> Self {
        Self { packets: VecDeque::new(), messages: Vec::new() }
    }
}

impl<T: Transport> Host<T> {
    pub(super) const fn new(transports: Vec<T>) -> Self {
        Self {
            transports,
            turn: 0,
            crashes: 0,
            idle: true,
            woken: Time::ZERO,
            armed: Time::MAX,
            state: HostState::Up,
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, HostState::Up)
    }

    /// Replaces a crashed host's transports by fresh ones.
    pub(super) fn restart(&mut self, transports: Vec<T>) {
        self.transports = transports;
        self.state = HostState::Up;
        self.idle = true;
    }

    /// The next packet, from the transports by turns.
    #[inline]
    fn next_packet(&mut self, now: Time) -> Option<Packet<T::Header>> {
        if let [only] = self.transports.as_mut_slice() {
            return only.poll_transmit(now, 0);
        }
        let n = self.transports.len();
        for _ in 0..n {
            let turn = self.turn;
            self.turn = (turn + 1) % n;
            if let Some(packet) = self.transports[turn].poll_transmit(now, 0) {
                return Some(packet.of_instance(turn as u8));
            }
        }
        None
    }

    #[inline]
    fn next_timeout(&self) -> Time {
        let timeouts = self.transports.iter().filter_map(T::poll_timeout);
        timeouts.min().unwrap_or(Time::MAX)
    }
}

impl<T: Transport> World<'_, T> {
    /// A packet has arrived at a host.
    #[inline]
    pub(super) fn receive(&mut self, host: u32, packet: PacketRef) {
        match &mut self.hosts[host as usize].state {
            HostState::Up => {
                let packet = self.pool.remove(packet);
                self.handle_packet(host, &packet);
            }
            HostState::Paused(waiting) if waiting.packets.len() < RECEIVE_RING => {
                waiting.packets.push_back(self.pool.remove(packet));
            }
            HostState::Paused(_) => self.discard(packet, DropReason::HostPaused),
            HostState::Down(_) => self.discard(packet, DropReason::HostDown),
        }
    }

    #[inline]
    pub(super) fn handle_packet(&mut self, host: u32, packet: &Packet<T::Header>) {
        let now = self.now;
        self.settle(host);
        let instance = usize::from(packet.instance());
        let Some(transport) = self.hosts[host as usize].transports.get_mut(instance) else {
            self.counters.drops[DropReason::WrongProtocol as usize] += 1;
            return;
        };
        let placement = transport.handle_packet(now, 0, packet);
        if let Placement::Store(slice) = placement {
            self.store(packet.src, HostId(host), slice);
        }
        self.changed(host);
    }

    /// A wake-up of a host is due, if it still counts.
    pub(super) fn on_timer(&mut self, host: u32) {
        let state = &mut self.hosts[host as usize];
        if state.armed != self.now || !state.is_up() {
            return;
        }
        state.armed = Time::MAX;
        self.settle(host);
        let now = self.now;
        for transport in &mut self.hosts[host as usize].transports {
            if transport.poll_timeout().is_some_and(|at| at <= now) {
                transport.handle_timeout(now);
            }
        }
        self.changed(host);
    }

    /// Before a host learns something: what its NIC would have sent until now.
    #[inline]
    pub(super) fn settle(&mut self, host: u32) {
        if !self.hosts[host as usize].idle && self.links[host as usize].busy_until < self.now {
            self.pull(host, Time(self.now.0 - 1));
        }
    }

    /// After a host has learnt something: events, packets, timer. Then whatever follows at other hosts.
    #[inline]
    pub(super) fn changed(&mut self, host: u32) {
        self.drain_events(host);
        let state = &mut self.hosts[host as usize];
        if state.idle {
            state.idle = false;
            state.woken = self.now;
        }
        self.pull(host, self.now);
        if !self.todo.is_empty() && !self.doing {
            self.do_todo();
        }
    }

    #[inline]
    pub(super) fn drain_events(&mut self, host: u32) {
        for index in 0..self.hosts[host as usize].transports.len() {
            while let Some(event) = self.hosts[host as usize].transports[index].poll_event() {
                match event {
                    Event::Delivered { peer, id, bytes, kind } => {
                        self.delivered(HostId(host), peer, id, bytes, kind);
                    }
                    Event::Stream(event) => self.on_stream_event(HostId(host), event),
                    Event::Sent { .. } => {}
                    Event::Failed { id, reason, .. } => self.failed(id, reason),
                }
            }
        }
    }

    /// Sends what the NIC has time for until `until`, each packet when the one before is out.
    #[inline]
    pub(super) fn pull(&mut self, host: u32, until: Time) {
        if !self.hosts[host as usize].is_up() {
            return;
        }
        while !self.hosts[host as usize].idle && !self.links[host as usize].down {
            let start = self.links[host as usize].busy_until.max(self.hosts[host as usize].woken);
            if start > until {
                break;
            }
            let state = &mut self.hosts[host as usize];
            match state.next_packet(start) {
                Some(packet) => {
                    let packet = self.pool.insert(packet);
                    self.transmit(host, packet, start);
                }
                None => state.idle = true,
            }
        }
        self.arm(host);
    }

    /// Makes sure that the host wakes up in time. An earlier wake-up that is pending is enough: it
    /// will look again.
    #[inline]
    fn arm(&mut self, host: u32) {
        let state = &mut self.hosts[host as usize];
        let at = state.next_timeout();
        if at < state.armed {
            // A transport may want to act at once, but never in the past.
            let at = at.max(self.now);
            state.armed = at;
            self.events.push_timer(at, self.components.timers + host);
        }
    }

    /// Lets a host's NIC go on after its link or the host itself came back.
    pub(super) fn resume(&mut self, host: u32) {
        self.hosts[host as usize].armed = Time::MAX;
        self.hosts[host as usize].idle = true;
        self.changed(host);
    }
}

//! The hosts' NICs: they poll for the next packet as of the time when their link became free, and keep one
//! timer.

use rackweave_core::{Header, HostId, Packet, PayloadStore, SwitchProgram, Time, prefetch};

use super::Net;

/// The owner of the hosts. The network polls it, as late as possible, for the packets that the hosts' NICs
/// would have sent.
pub trait Edge<H: Header> {
    /// Whether hosts may also send by [`Net::arrive`] at any time, so that packets can arrive although no event
    /// is pending.
    const EXTERNAL: bool = false;

    /// The packet that the host puts on its link, which is free at `at`. `None` if it has nothing to send until
    /// its state changes ([`Net::wake`]). For one host, and for all hosts of a multi-homed node, `at` never
    /// decreases.
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<H>>;

    /// As [`Edge::poll_transmit`], for owners whose packets carry bytes: those of the packet are put into `payloads`, the
    /// network's store. The network calls this one.
    #[inline]
    fn poll_with_payload<B: PayloadStore<H>>(
        &mut self,
        host: HostId,
        at: Time,
        _payloads: &mut B,
    ) -> Option<Packet<H>> {
        self.poll_transmit(host, at)
    }

    /// Requests the cache lines of a host that will be polled, or that a packet will reach. It changes nothing.
    #[inline]
    fn prefetch(&self, _host: HostId) {}

    /// Requests the cache lines of the host's node, once those of [`Edge::prefetch`] are there.
    #[inline]
    fn prefetch_node(&self, _host: HostId) {}

    /// Requests the cache lines that the host needs for the next packet that it sends, once those of
    /// [`Edge::prefetch_node`] are there.
    #[inline]
    fn prefetch_transmit(&self, _host: HostId) {}

    /// Requests the cache lines that the host needs for a packet which is about to arrive there, once those of
    /// [`Edge::prefetch_node`] are there.
    #[inline]
    fn prefetch_for(&self, _host: HostId, _packet: &Packet<H>) {}

    /// When the host asks for [`NetEvent::Timer`](super::NetEvent::Timer); [`Time::MAX`] means never.
    fn poll_timeout(&self, host: HostId) -> Time;
}

/// For owners whose hosts are outside of the process and send by [`Net::arrive`].
impl<H: Header> Edge<H> for () {
    const EXTERNAL: bool = true;

    fn poll_transmit(&mut self, _host: HostId, _at: Time) -> Option<Packet<H>> {
        None
    }

    fn poll_timeout(&self, _host: HostId) -> Time {
        Time::MAX
    }
}

/// The state of one host's NIC.
#[derive(Clone, Debug)]
struct Nic {
    /// When the host's state last changed. Nothing is sent before. [`IDLE`] if it had nothing to send when it was last
    /// polled, and its state has not changed since.
    woken: Time,
    /// The earliest valid time of its timer.
    armed: Time,
}

/// A time that never comes, in place of the one when a host's state last changed.
const IDLE: Time = Time::MAX;

impl Nic {
    /// Polls the host from `now` on, if it was idle.
    #[inline]
    fn wake(&mut self, now: Time) {
        if self.woken == IDLE {
            self.woken = now;
        }
    }
}

/// The NICs of all hosts.
#[derive(Debug)]
pub(super) struct Nics {
    nics: Vec<Nic>,
    /// For each host, the multi-homed node that it is a port of; empty if there is none.
    node_of: Vec<Option<u32>>,
    nodes: Vec<Vec<HostId>>,
}

impl Nics {
    pub(super) fn new(hosts: u32, multi_homed: &[Vec<HostId>]) -> Self {
        let nic = Nic { woken: IDLE, armed: Time::MAX };
        let nodes: Vec<_> = multi_homed.iter().filter(|ports| ports.len() > 1).cloned().collect();
        let mut node_of = vec![None; if nodes.is_empty() { 0 } else { hosts as usize }];
        for (number, ports) in nodes.iter().enumerate() {
            for host in ports {
                node_of[host.0 as usize] = Some(number as u32);
            }
        }
        Self { nics: vec![nic; hosts as usize], node_of, nodes }
    }

    /// Requests the cache line of a host's NIC.
    #[inline]
    pub(super) fn prefetch(&self, host: HostId) {
        prefetch(&self.nics[host.0 as usize]);
    }

    #[inline]
    fn node_of(&self, host: HostId) -> Option<u32> {
        self.node_of.get(host.0 as usize).copied().flatten()
    }
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Must be called before a host's state changes: its NIC sends the packets that were due until now.
    #[inline]
    pub fn flush<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId) {
        if let Some(node) = self.nics.node_of(host) {
            return self.pull_node(
                edge,
                node,
                Time::from_ticks(self.now.ticks().saturating_sub(1)),
            );
        }
        if self.next_poll(host) < self.now {
            self.pull_due(edge, host, Time::from_ticks(self.now.ticks() - 1));
        }
    }

    /// Must be called after a host's state has changed: its NIC polls for packets again, and its timer is armed.
    #[inline]
    pub fn wake<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId) {
        if let Some(node) = self.nics.node_of(host) {
            self.wake_ports(node, self.now);
            return self.pull_node(edge, node, self.now);
        }
        self.nics.nics[host.0 as usize].wake(self.now);
        self.pull(edge, host, self.now);
        self.arm(edge, host);
    }

    /// When a host is next polled for a packet, if its link works.
    #[inline]
    fn next_poll(&self, host: HostId) -> Time {
        let number = host.0 as usize;
        self.links[number].busy_until.max(self.nics.nics[number].woken)
    }

    /// As [`Net::wake`], for a host that was stopped, whose timer must be armed.
    pub fn resume<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId) {
        let nic = &mut self.nics.nics[host.0 as usize];
        *nic = Nic { woken: IDLE, armed: Time::MAX };
        self.wake(edge, host);
    }

    /// Sends what a host's NIC has had time for, after its link has delivered a packet.
    #[inline]
    pub(super) fn link_freed<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId) {
        match self.nics.node_of(host) {
            Some(node) => self.pull_node(edge, node, self.now),
            None => self.pull_due(edge, host, self.now),
        }
    }

    /// As [`Self::pull`], for a host whose state changes only when it is polled: otherwise its timer need not
    /// be checked.
    #[inline]
    pub(super) fn pull_due<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId, until: Time) {
        if self.pull(edge, host, until) {
            self.arm(edge, host);
        }
    }

    /// Sends the packets for which a NIC has time until `until`, each when the one before is out. Returns
    /// whether the host was polled.
    #[inline]
    fn pull<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId, until: Time) -> bool {
        let mut polled = false;
        loop {
            let start = self.next_poll(host);
            if start > until {
                return polled;
            }
            if self.links[host.0 as usize].gate != 0 {
                return self.pull_paced(edge, host, until) || polled;
            }
            polled = true;
            let polled_packet = edge.poll_with_payload(host, start, &mut self.payloads);
            let Some(packet) = polled_packet else {
                self.nics.nics[host.0 as usize].woken = IDLE;
                return polled;
            };
            self.counters.sent += 1;
            let packet = self.pool.insert(packet);
            self.transmit(host.0, packet, start);
        }
    }

    /// As [`Self::pull`], for a link that is down or that PFC can pause.
    #[inline(never)]
    fn pull_paced<E: Edge<P::Header>>(&mut self, edge: &mut E, host: HostId, until: Time) -> bool {
        let mut polled = false;
        loop {
            let start = self.next_poll(host);
            if start > until || !self.may_poll(host) {
                return polled;
            }
            polled = true;
            let polled_packet = edge.poll_with_payload(host, start, &mut self.payloads);
            let Some(packet) = polled_packet else {
                self.nics.nics[host.0 as usize].woken = IDLE;
                return polled;
            };
            self.counters.sent += 1;
            let packet = self.pool.insert(packet);
            self.send_unless_paused(host, packet, start);
        }
    }

    /// As [`Self::pull`], for all ports of a multi-homed node in the order of time: it is never polled for one
    /// port at an earlier time than it was for another.
    fn pull_node<E: Edge<P::Header>>(&mut self, edge: &mut E, node: u32, until: Time) {
        let node = node as usize;
        loop {
            let start =
                |host: &HostId| self.may_poll(*host).then(|| (self.next_poll(*host), *host));
            let next = self.nics.nodes[node].iter().filter_map(start).min();
            let Some((start, host)) = next.filter(|(start, _)| *start <= until) else { break };
            match edge.poll_with_payload(host, start, &mut self.payloads) {
                Some(packet) => {
                    self.counters.sent += 1;
                    let packet = self.pool.insert(packet);
                    self.send_unless_paused(host, packet, start);
                    // A packet sent through one port may enable another port to send.
                    self.wake_ports(node as u32, start);
                }
                None => self.nics.nics[host.0 as usize].woken = IDLE,
            }
        }
        for port in 0..self.nics.nodes[node].len() {
            self.arm(edge, self.nics.nodes[node][port]);
        }
    }

    fn wake_ports(&mut self, node: u32, at: Time) {
        let Nics { nics, nodes, .. } = &mut self.nics;
        for host in &nodes[node as usize] {
            nics[host.0 as usize].wake(at);
        }
    }

    /// Arms a host's timer. An earlier pending timer suffices: when it expires, the host is polled for its next
    /// timeout.
    #[inline]
    fn arm<E: Edge<P::Header>>(&mut self, edge: &E, host: HostId) {
        let at = edge.poll_timeout(host);
        let nic = &mut self.nics.nics[host.0 as usize];
        if at < nic.armed {
            // A host may ask for an immediate timeout, but never for one in the past.
            let at = at.max(self.now);
            nic.armed = at;
            self.events.push_timer(at, self.components.timers + host.0);
        }
    }

    /// Whether a host's timer that has expired is still valid; a later call may have superseded it.
    pub(super) fn timer_expires(&mut self, host: HostId) -> bool {
        let nic = &mut self.nics.nics[host.0 as usize];
        let is_valid = nic.armed == self.now;
        if is_valid {
            nic.armed = Time::MAX;
        }
        is_valid
    }
}

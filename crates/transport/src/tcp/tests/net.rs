//! Hosts on a simulated fabric, with a program in its first switch that does to each packet what a test wants.

use std::collections::BTreeMap;
use std::sync::Arc;

use rackweave_core::{
    DropReason, Egress, Event, HostId, Kind, MessageId, Node as _, Packet, PayloadStore, Placement,
    Port, Rate, Span, Submit, SwitchProgram, Time, Transport as _, Verdict,
};
use rackweave_switch::config::{BufferConfig, FabricConfig, Routing, SwitchConfig, Topology};
use rackweave_switch::net::LinkStats;
use rackweave_switch::{Edge, Fabric, Net, NetConfig, NetEvent};
use rackweave_wire::tcp::{Body, Header, flags};

use crate::tcp::{Config, Host};

/// What happens to a packet at the switch: one copy of it goes on after each of these delays, and none if it is lost.
pub(super) type Fate = Vec<Span>;

/// Ranges of bytes that were stored, by sender, message and receiver.
pub(super) type Stored = BTreeMap<(HostId, MessageId, HostId), Vec<(u32, u32)>>;

/// Propagation delay from host to host, besides the times on their two links.
pub(super) const DELAY: Span = Span::from_us(10);

/// Most packets of a trace; later ones are left out.
const MAX_TRACE: usize = 10_000;

/// Every packet goes on at once.
pub(super) fn faithful(_: Time, _: &mut Packet<Header>) -> Fate {
    vec![Span::ZERO]
}

/// One switch with these links.
pub(super) const fn single(hosts: u32, host_link: Rate) -> Topology {
    Topology::SingleSwitch { hosts, host_link }
}

/// A fabric without bounds of its queues and without marks.
pub(super) const fn fabric(topology: Topology) -> FabricConfig {
    FabricConfig {
        topology,
        host_link_delay: Span(DELAY.0 / 2),
        host_link_delays: Vec::new(),
        core_link_delay: Span::ZERO,
        host_send_delay: Span::ZERO,
        host_receive_delay: Span::ZERO,
        switch: SwitchConfig {
            latency: Span::ZERO,
            buffer: BufferConfig::PerPort { bytes: u64::MAX },
            ecn_threshold_bytes: None,
            priorities: false,
            trim: None,
            routing: Routing::Transport,
        },
    }
}

/// The program of a switch.
struct Middlebox<F> {
    /// `None`: the switch only forwards.
    fate: Option<F>,
    delayed: BTreeMap<(Time, u64), Packet<Header>>,
    number: u64,
    /// The packets that have reached the switch, and whether they were lost there.
    trace: Vec<(Time, Packet<Header>, bool)>,
}

impl<F: FnMut(Time, &mut Packet<Header>) -> Fate> SwitchProgram for Middlebox<F> {
    type Header = Header;

    fn handle_packet<S: PayloadStore<Header>>(
        &mut self,
        now: Time,
        _port: Port,
        packet: &mut Packet<Header>,
        _payloads: &mut S,
    ) -> Verdict {
        let Some(fate) = &mut self.fate else { return Verdict::Route };
        let fate = fate(now, packet);
        if self.trace.len() < MAX_TRACE {
            self.trace.push((now, *packet, fate.is_empty()));
        }
        let mut verdict = Verdict::Drop(DropReason::FaultLoss);
        for delay in fate {
            if delay == Span::ZERO && verdict != Verdict::Route {
                verdict = Verdict::Route;
            } else {
                self.number += 1;
                self.delayed.insert((now + delay, self.number), *packet);
                if verdict != Verdict::Route {
                    verdict = Verdict::Consume;
                }
            }
        }
        verdict
    }

    fn poll_transmit<S: PayloadStore<Header>>(
        &mut self,
        now: Time,
        _payloads: &mut S,
    ) -> Option<(Egress, Packet<Header>)> {
        let first = self.delayed.first_entry().filter(|first| first.key().0 <= now)?;
        Some((Egress::Route, first.remove()))
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.delayed.first_key_value().map(|(key, _)| key.0)
    }
}

struct Hosts(Vec<Host>);

impl Edge<Header> for Hosts {
    fn poll_transmit(&mut self, host: HostId, at: Time) -> Option<Packet<Header>> {
        self.0[host.0 as usize].poll_transmit(at, 0)
    }

    fn poll_timeout(&self, host: HostId) -> Time {
        self.0[host.0 as usize].poll_timeout().unwrap_or(Time::MAX)
    }
}

/// Hosts, their network, and what has happened.
pub(super) struct Network<F: FnMut(Time, &mut Packet<Header>) -> Fate> {
    net: Net<Middlebox<F>>,
    hosts: Hosts,
    config: Config,
    pub(super) events: Vec<(Time, HostId, Event)>,
    /// Requests are answered with this many bytes, at once.
    pub(super) respond: Option<u64>,
    pub(super) stored: Stored,
}

impl<F: FnMut(Time, &mut Packet<Header>) -> Fate> Network<F> {
    /// Hosts at one switch, with links of 10 Gbit/s.
    pub(super) fn new(hosts: u32, config: &Config, fate: F) -> Self {
        Self::on(&fabric(single(hosts, Rate::from_gbps(10))), config, fate)
    }

    pub(super) fn on(fabric: &FabricConfig, config: &Config, fate: F) -> Self {
        let fabric = Arc::new(Fabric::new(fabric).expect("a possible fabric"));
        let hosts = (0..fabric.hosts()).map(|id| Host::new(HostId(id), config.clone()));
        let hosts = Hosts(hosts.collect());
        let mut fate = Some(fate);
        let net = Net::new(NetConfig::new(fabric, 1, 0), (), |_| Middlebox {
            fate: fate.take(),
            delayed: BTreeMap::new(),
            number: 0,
            trace: Vec::new(),
        });
        let (events, stored) = (Vec::new(), Stored::new());
        Self { net, hosts, config: config.clone(), events, respond: None, stored }
    }

    pub(super) fn now(&self) -> Time {
        self.net.now()
    }

    pub(super) fn hosts(&self) -> &[Host] {
        &self.hosts.0
    }

    /// A host, to be given work: [`Network::run_until`] goes on with it.
    pub(super) fn host_mut(&mut self, host: u32) -> &mut Host {
        self.net.flush(&mut self.hosts, HostId(host));
        &mut self.hosts.0[host as usize]
    }

    pub(super) fn send(&mut self, from: u32, to: u32, number: u64, bytes: u64, kind: Kind) {
        let (id, now) = (MessageId::request(number), self.now());
        let message = Submit { id, peer: HostId(to), bytes, kind };
        self.host_mut(from).submit(now, message).expect("a good message");
        self.changed(HostId(from));
    }

    /// The host loses all state.
    pub(super) fn restart(&mut self, host: u32) {
        *self.host_mut(host) = Host::new(HostId(host), self.config.clone());
    }

    /// A host has learnt something.
    fn changed(&mut self, id: HostId) {
        let now = self.now();
        let host = &mut self.hosts.0[id.0 as usize];
        while let Some(event) = host.poll_event() {
            self.events.push((now, id, event));
            if let (Event::Delivered { peer, id, kind: Kind::Request, .. }, Some(bytes)) =
                (event, self.respond)
            {
                let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                host.submit(now, response).expect("the request is known");
            }
        }
        self.net.wake(&mut self.hosts, id);
    }

    /// Lets time pass until then.
    pub(super) fn run_until(&mut self, end: Time) {
        let all = (0..self.hosts.0.len() as u32).map(HostId);
        all.clone().for_each(|host| self.changed(host));
        while let Some(event) = self.net.step(&mut self.hosts, end) {
            let now = self.now();
            match event {
                NetEvent::Arrived { host, packet } => {
                    let packet = self.net.take(packet);
                    self.arrive(host, &packet);
                }
                NetEvent::Timer(host) => {
                    self.net.flush(&mut self.hosts, host);
                    let due = |host: &Host| host.poll_timeout().is_some_and(|at| at <= now);
                    let state = &mut self.hosts.0[host.0 as usize];
                    if due(state) {
                        state.handle_timeout(now);
                    }
                    self.changed(host);
                    assert!(!due(&self.hosts.0[host.0 as usize]), "a timer that stands still");
                }
                _ => {}
            }
        }
        self.net.advance(end);
        all.for_each(|host| self.net.flush(&mut self.hosts, host));
    }

    fn arrive(&mut self, host: HostId, packet: &Packet<Header>) {
        let now = self.now();
        let state = self.host_mut(host.0);
        if let Placement::Store(slice) = state.handle_packet(now, 0, packet) {
            let key = (packet.src, slice.message, host);
            self.stored.entry(key).or_default().push((slice.offset, slice.len));
        }
        self.changed(host);
    }

    pub(super) fn count(&self, host: u32, want: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|(_, at, event)| *at == HostId(host) && want(event)).count()
    }

    /// Ports are measured from now on.
    pub(super) fn measure(&mut self) {
        self.net.measure_now(&mut self.hosts);
    }

    /// The statistics of a link by its name.
    pub(super) fn link(&mut self, name: &str) -> LinkStats {
        let links = self.net.link_stats(&mut self.hosts);
        links.into_iter().find(|link| link.name == name).expect("a link of the fabric")
    }

    /// One line for each packet that has reached the first switch, with the time.
    pub(super) fn trace(&self) -> Vec<String> {
        let line = |(at, packet, is_lost): &(Time, Packet<Header>, bool)| {
            let lost = if *is_lost { "  (lost)" } else { "" };
            format!("{} {}{lost}", stamp(*at), describe(packet))
        };
        self.net.program(0).trace.iter().map(line).collect()
    }

    /// The lines of the trace that contain `what`, without their times.
    pub(super) fn lines(&self, what: &str) -> Vec<String> {
        let lines = self.trace().into_iter().filter(|line| line.contains(what));
        lines.map(|line| line.split_once(' ').expect("a time and a text").1.to_owned()).collect()
    }
}

fn stamp(now: Time) -> String {
    format!("{}.{:02}", now.0 / 1_000_000, now.0 / 10_000 % 100)
}

/// The line of a packet: its data, its acknowledgements and its flags.
pub(super) fn describe(packet: &Packet<Header>) -> String {
    let header = &packet.header;
    let mut text = format!("{}>{}", packet.src, packet.dst);
    match header.body {
        Body::Data { len, .. } => {
            text += &format!(" data {}+{len}", header.seq);
        }
        Body::Ack { .. } => {}
    }
    if header.flags & flags::ACK != 0 && matches!(header.body, Body::Ack { .. }) {
        text += &format!(" ack {}", header.ack);
    }
    if let Body::Ack { count, sack } = header.body {
        for (from, to) in &sack[..usize::from(count)] {
            text += &format!(" [{from}..{to})");
        }
    }
    let names = [
        (flags::SYN, "syn"),
        (flags::FIN, "fin"),
        (flags::RST, "rst"),
        (flags::PSH, "end"),
        (flags::ECE, "ece"),
        (flags::CWR, "cwr"),
    ];
    for (flag, name) in names {
        if header.flags & flag != 0 {
            text += &format!(" {name}");
        }
    }
    text
}

/// Whether a packet carries the byte at this sequence number.
pub(super) fn carries(packet: &Packet<Header>, sequence: u32) -> bool {
    matches!(packet.header.body, Body::Data { len, .. }
        if sequence.wrapping_sub(packet.header.seq) < u32::from(len))
}

//! Hosts in memory, joined by whatever a test says the network does.

use rackweave_core::{
    Event, HostId, Kind, MessageId, Node, Packet, Placement, Rate, Span, Submit, Time, Transport,
};
use rackweave_wire::tcp::{Body, Header, flags};
use std::collections::BTreeMap;

use crate::tcp::{Config, Host};

/// What the network does with a packet: one arrival for each span, none to lose it.
pub(super) type Fate = Vec<Span>;

/// Ranges of bytes that were stored, by sender, message and receiver.
pub(super) type Stored = BTreeMap<(HostId, MessageId, HostId), Vec<(u32, u32)>>;

/// One way, besides the time on the sender's link.
pub(super) const DELAY: Span = Span::from_us(10);

pub(super) struct Net<F> {
    pub(super) now: Time,
    pub(super) hosts: Vec<Host>,
    config: Config,
    pub(super) link: Rate,
    free_at: Vec<Time>,
    on_the_way: BTreeMap<(Time, u64), Packet<Header>>,
    sent: u64,
    fate: F,
    pub(super) events: Vec<(Time, HostId, Event)>,
    pub(super) trace: Vec<String>,
    /// Requests are answered with this many bytes, at once.
    pub(super) respond: Option<u64>,
    pub(super) stored: Stored,
    pub(super) keep_trace: bool,
}

/// Everything arrives.
pub(super) fn faithful(_: Time, _: &mut Packet<Header>) -> Fate {
    vec![DELAY]
}

impl<F: FnMut(Time, &mut Packet<Header>) -> Fate> Net<F> {
    pub(super) fn new(hosts: u32, config: &Config, fate: F) -> Self {
        Self {
            now: Time::ZERO,
            hosts: (0..hosts).map(|id| Host::new(HostId(id), config.clone())).collect(),
            config: config.clone(),
            link: Rate::from_gbps(10),
            free_at: vec![Time::ZERO; hosts as usize],
            on_the_way: BTreeMap::new(),
            sent: 0,
            fate,
            events: Vec::new(),
            trace: Vec::new(),
            respond: None,
            stored: BTreeMap::new(),
            keep_trace: true,
        }
    }

    pub(super) fn send(&mut self, from: u32, to: u32, number: u64, bytes: u64, kind: Kind) {
        let id = MessageId::request(number);
        let message = Submit { id, peer: HostId(to), bytes, kind };
        self.hosts[from as usize].submit(self.now, message).expect("a good message");
        self.drain(from as usize);
    }

    /// The host loses all state.
    pub(super) fn restart(&mut self, host: u32) {
        self.hosts[host as usize] = Host::new(HostId(host), self.config.clone());
    }

    fn drain(&mut self, index: usize) {
        let id = HostId(index as u32);
        while let Some(event) = self.hosts[index].poll_event() {
            self.events.push((self.now, id, event));
            if let (Event::Delivered { peer, id, kind: Kind::Request, .. }, Some(bytes)) =
                (event, self.respond)
            {
                let response = Submit { id: id.response(), peer, bytes, kind: Kind::Response };
                self.hosts[index].submit(self.now, response).expect("the request is known");
            }
        }
        while self.free_at[index] <= self.now
            && let Some(mut packet) = self.hosts[index].poll_transmit(self.now, 0)
        {
            let on_link = self.link.span_of(u64::from(packet.wire_bytes));
            self.free_at[index] = self.now + on_link;
            let fate = (self.fate)(self.now, &mut packet);
            if self.keep_trace {
                let lost = if fate.is_empty() { "  (lost)" } else { "" };
                self.trace.push(format!("{} {}{lost}", stamp(self.now), describe(&packet)));
            }
            for delay in fate {
                self.sent += 1;
                self.on_the_way.insert((self.now + on_link + delay, self.sent), packet);
            }
        }
    }

    /// Lets time pass until then, or until nothing is left to happen.
    pub(super) fn run_until(&mut self, end: Time) {
        loop {
            let arrival = self.on_the_way.first_key_value().map(|(key, _)| key.0);
            let timeouts = self.hosts.iter().filter_map(Node::poll_timeout);
            let busy = self.free_at.iter().copied().filter(|at| *at > self.now);
            let Some(next) = timeouts.chain(busy).chain(arrival).min() else { break };
            if next > end {
                break;
            }
            assert!(next >= self.now, "time goes back from {} to {next}", self.now);
            self.now = next;
            for index in 0..self.hosts.len() {
                if self.hosts[index].poll_timeout().is_some_and(|at| at <= next) {
                    self.hosts[index].handle_timeout(next);
                    self.drain(index);
                    let after = self.hosts[index].poll_timeout();
                    assert!(after.is_none_or(|at| at > next), "a timer that stands still");
                } else if self.free_at[index] == next {
                    self.drain(index);
                }
            }
            while let Some(entry) = self.on_the_way.first_entry()
                && entry.key().0 == next
            {
                let packet = entry.remove();
                self.arrive(&packet);
            }
        }
        self.now = self.now.max(end);
    }

    fn arrive(&mut self, packet: &Packet<Header>) {
        let index = packet.dst.0 as usize;
        if let Placement::Store(slice) = self.hosts[index].handle_packet(self.now, 0, packet) {
            let key = (packet.src, slice.message, packet.dst);
            self.stored.entry(key).or_default().push((slice.offset, slice.len));
        }
        self.drain(index);
    }

    pub(super) fn count(&self, host: u32, want: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|(_, at, event)| *at == HostId(host) && want(event)).count()
    }

    /// The lines of the trace that hold `what`, without their times.
    pub(super) fn said(&self, what: &str) -> Vec<&str> {
        let lines = self.trace.iter().filter(|line| line.contains(what));
        lines.map(|line| line.split_once(' ').expect("a time and a text").1).collect()
    }
}

fn stamp(now: Time) -> String {
    format!("{}.{:02}", now.0 / 1_000_000, now.0 / 10_000 % 100)
}

/// A line of a trace: what it carries, what it acknowledges, what it says.
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

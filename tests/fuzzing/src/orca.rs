//! Orca's hosts: as senders, receivers, agents and relays, with their controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rackweave_core::{HostId, Node as _, Packet, RangeSet, Span, Time};
use rackweave_orca::controller::{Controller, ControllerConfig};
use rackweave_orca::flow::{FlowConfig, Placement, ReceiverEvent};
use rackweave_orca::host::{Event, Host, HostConfig, Spread, Tor};
use rackweave_orca::label::Layout;
use rackweave_wire::orca::{Data, Header, Reason, Session, TO_AGENT, TO_GROUP};

use crate::input::Input;
use crate::mesh::{Mesh, Station};

const HOSTS: u32 = 4;
/// The host at whose address the controller is.
const CONTROLLER: HostId = HostId(0);

/// What a receiver has of a session.
#[derive(Debug, Default)]
struct Received {
    stored: RangeSet<u64>,
    readable: u64,
}

struct Site {
    id: HostId,
    host: Host,
    controller: Option<Controller>,
    /// How the application answers, by bits.
    habits: u8,
    /// Invitations that the application has yet to answer: it prepares.
    preparing: BTreeSet<Session>,
    received: BTreeMap<Session, Received>,
}

impl Site {
    fn join(&mut self, now: Time, session: Session) {
        self.received.insert(session, Received::default());
        self.host.join(now, session, 0, 64 << 10);
    }

    /// Answers an invitation that waits, or forgets it.
    fn answer(&mut self, now: Time, session: Session, how: u8) {
        self.preparing.remove(&session);
        match how % 4 {
            0 => self.host.ignore(session),
            1 => self.host.refuse(now, session, Reason::Refused),
            _ => self.join(now, session),
        }
    }

    fn on_receiver_event(&mut self, now: Time, session: Session, event: ReceiverEvent) {
        let received = self.received.entry(session).or_default();
        match event {
            ReceiverEvent::Readable { upto } => {
                let is_stored = received.stored.contains_range(received.readable..upto);
                assert!(is_stored, "{}..{upto} is readable and not stored", received.readable);
                received.readable = upto;
                if self.habits & 1 == 0 {
                    self.host.consume(now, session, upto);
                }
            }
            ReceiverEvent::Recover(recovery) => {
                let is_computed = self.habits & 2 == 0;
                if is_computed {
                    received.stored.insert(recovery.block..recovery.end);
                }
                self.host.recovered(now, session, recovery.block, is_computed);
            }
            ReceiverEvent::Ended { length } => {
                assert_eq!(received.readable, length);
                if self.habits & 4 == 0 {
                    self.host.complete(now, session);
                } else {
                    self.host.leave(now, session, Reason::Damaged);
                }
            }
            ReceiverEvent::Failed { .. } | ReceiverEvent::Closed => {
                self.received.remove(&session);
            }
            ReceiverEvent::Detached | ReceiverEvent::Rejoined => {}
        }
    }
}

impl Station for Site {
    type Packet = Packet<Header>;

    fn receive(&mut self, now: Time, packet: &Packet<Header>) {
        if let Some(controller) = &mut self.controller {
            controller.handle_packet(now, 0, packet);
        }
        let handled = self.host.handle_packet(now, 0, packet);
        let Header::Data(Data { offset: first, len: most, .. }) = packet.header else { return };
        if let Some(Placement::Store { session, offset, skip, len }) = handled.store {
            assert!(offset == first + u64::from(skip) && skip + len <= most, "outside the packet");
            let stored = &mut self.received.entry(session).or_default().stored;
            stored.insert(offset..offset + u64::from(len));
        }
    }

    fn expire(&mut self, now: Time) {
        self.host.handle_timeout(now);
        if let Some(controller) = &mut self.controller {
            controller.handle_timeout(now);
        }
    }

    fn poll(&mut self, now: Time) -> Option<Packet<Header>> {
        let of_controller = self.controller.as_mut().and_then(|it| it.poll_transmit(now, 0));
        of_controller.or_else(|| self.host.poll_transmit(now, 0))
    }

    fn deadline(&self) -> Option<Time> {
        let of_controller = self.controller.as_ref().and_then(|it| it.poll_timeout());
        [of_controller, self.host.poll_timeout()].into_iter().flatten().min()
    }

    fn work(&mut self, now: Time) {
        while let Some(event) = self.host.poll_event() {
            match event {
                Event::Invited { session, .. } if self.habits & 16 != 0 => {
                    assert!(self.preparing.insert(session), "it is invited a second time");
                }
                Event::Invited { session, .. } if self.habits & 8 == 0 => self.join(now, session),
                Event::Invited { session, .. } => self.host.refuse(now, session, Reason::Busy),
                Event::Receiver(session, event) => self.on_receiver_event(now, session, event),
                Event::Withdrawn { session } => {
                    self.preparing.remove(&session);
                }
                Event::Sender(..) => {}
            }
        }
        while let Some(controller) = &mut self.controller
            && controller.poll_event().is_some()
        {}
    }

    fn is_for(&self, packet: &Packet<Header>) -> bool {
        packet.dst == self.id || packet.src != self.id && [TO_GROUP, TO_AGENT].contains(&packet.dst)
    }
}

/// Any commands and packets at hosts of Orca. Bytes are readable once they are stored.
///
/// # Panics
/// If that does not hold, or time stands still.
pub fn orca(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let layout = Arc::new(Layout::tree(1, 2, 2, 1, 1).expect("labels for four hosts"));
    let flags = input.u8();
    let flow = FlowConfig {
        payload: [1400, 100, 64, 8_000][input.below(4)],
        window: 64 << 10,
        fec_block: [64, 0, 8, 3][input.below(4)],
        max_gaps: 16,
        ..FlowConfig::default()
    };
    let site = |id| {
        let controlled = flags & 1 != 0;
        let config = HostConfig {
            me: HostId(id),
            incarnation: 0,
            layout: Arc::clone(&layout),
            ports: 1,
            controller: controlled.then_some(CONTROLLER),
            tor: if flags & 2 == 0 { Tor::None } else { Tor::Switch },
            heartbeat: (flags & 4 != 0).then_some(Span::from_ms(1)),
            flow: flow.sane(),
            max_sessions: 4,
            status_interval: Span::from_ms(1),
        };
        let controller = (controlled && id == CONTROLLER.0).then(|| {
            Controller::new(ControllerConfig::new(
                CONTROLLER,
                Arc::clone(&layout),
                Span::from_ms(5),
            ))
        });
        let (host, received) = (Host::new(config), BTreeMap::new());
        let (habits, preparing) = (0, BTreeSet::new());
        Site { id: HostId(id), host, controller, habits, preparing, received }
    };
    let mut mesh = Mesh::new(Time::ZERO, (0..HOSTS).map(site).collect());
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        let op = input.u8();
        let at = usize::from(op >> 4) % HOSTS as usize;
        let now = mesh.now;
        let me = &mut mesh.stations[at];
        match op & 15 {
            0 => {
                let (mask, spread) = (input.u8(), Spread::ALL[input.below(4)]);
                let to: Vec<_> = (0..HOSTS).filter(|n| mask >> n & 1 == 1).map(HostId).collect();
                let session = Session(input.u8().into());
                let _ = me.host.open(now, session, 1, &to, spread, flow.sane());
            }
            1 | 2 => {
                let (session, upto) = (Session(input.u8().into()), input.u32() & 0xf_ffff);
                me.host.offer(now, session, upto.into());
                if op & 15 == 2 {
                    me.host.finish(now, session);
                }
            }
            3 => command(&mut input, now, me),
            4 => me.habits = input.u8(),
            5 | 6 => {
                if let Some(packet) = forged(&mut input, at as u32) {
                    mesh.deliver(&packet);
                }
            }
            7 if !mesh.flights.is_empty() => {
                let packet = mesh.flights[input.below(mesh.flights.len())];
                if let Some(packet) = changed(&mut input, &packet) {
                    mesh.deliver(&packet);
                }
            }
            8 => {
                me.host = me.host.restarted();
                me.received.clear();
                me.preparing.clear();
            }
            9 if !me.preparing.is_empty() => {
                let index = input.below(me.preparing.len());
                let (session, how) = (me.preparing.iter().nth(index).copied(), input.u8());
                session.into_iter().for_each(|session| me.answer(now, session, how));
            }
            _ => mesh.step(&mut input),
        }
        mesh.pump();
    }
    mesh.finish(Span::from_secs(10), 300, |sites| sites.iter().all(|site| site.host.is_idle()));
}

fn command(input: &mut Input<'_>, now: Time, me: &mut Site) {
    let (what, session) = (input.u8(), Session(input.u8().into()));
    let (other, number) = (HostId(input.u8().into()), u64::from(input.u16()));
    match what % 8 {
        0 => me.host.abort(now, session, Reason::Left),
        1 => me.host.add(now, session, other),
        2 => me.host.remove(now, session, other),
        3 => {
            me.received.entry(session).or_default();
            me.preparing.remove(&session);
            me.host.join_late(now, session, other, 1, 0, number);
        }
        4 => me.host.consume(now, session, number),
        5 => me.host.leave(now, session, Reason::Left),
        6 => me.host.finish(now, session),
        _ => {
            let released = me.host.released(session);
            assert!(
                me.host.receivers(session).count() <= 256 && released >= me.host.released(session)
            );
            let _ = me.host.copies(now, session);
        }
    }
}

/// A packet as it may come from the wire.
fn forged(input: &mut Input<'_>, to: u32) -> Option<Packet<Header>> {
    let (src, dst) = (HostId(input.u8().into()), input.u8());
    let dst = [HostId(to), TO_GROUP, TO_AGENT][usize::from(dst) % 3];
    packet(src, dst, input.block())
}

/// A packet with one changed byte.
fn changed(input: &mut Input<'_>, of: &Packet<Header>) -> Option<Packet<Header>> {
    let mut bytes = Vec::new();
    // Without a check, which few changes would pass.
    rackweave_wire::orca::encode_header(&of.header, 2, None, &[], &mut bytes);
    let at = input.below(bytes.len());
    bytes[at] = input.u8();
    packet(of.src, of.dst, &bytes)
}

fn packet(src: HostId, dst: HostId, bytes: &[u8]) -> Option<Packet<Header>> {
    let seen = rackweave_wire::orca::glance(bytes, None).ok()?;
    Some(Packet::new(src, dst, 1_500, seen.header))
}

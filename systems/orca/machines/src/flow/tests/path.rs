//! Receivers behind a link that drops packets above some size without a report.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Data, Label, Labelled, Place, Reason, Session};

use super::super::{
    FlowConfig, Outgoing, Piece, Receiver, ReceiverEvent, ReceiverStatus, Sender, SenderEvent,
};

const TOTAL: u64 = 3_000_000;
const SESSION: Session = Session(1);

/// The sender, and receivers at a distance of `DELAY`, with the largest payload that reaches each.
struct World {
    now: Time,
    sender: Sender,
    receivers: Vec<(Receiver, u16)>,
    /// Packets for the receivers and for the sender, by the time of arrival.
    to_receivers: Vec<(Time, usize, Outgoing)>,
    to_sender: Vec<(Time, usize, rackweave_wire::orca::Body)>,
    over: Option<SenderEvent>,
}

const DELAY: Span = Span::from_us(100);

fn place(port: usize) -> Place {
    Place { rack: 0, port: port as u8 }
}

impl World {
    fn new(passes: &[u16]) -> Self {
        let config = FlowConfig { fec_block: 0, ..FlowConfig::default() };
        let mut sender = Sender::new(Time::ZERO, SESSION, 7, false, config);
        let receivers = passes.iter().enumerate().map(|(number, passes)| {
            let room = 1 << 20;
            let receiver = Receiver::new(
                Time::ZERO,
                SESSION,
                1,
                7,
                HostId(99),
                place(number),
                0,
                room,
                false,
                config,
            );
            (receiver, *passes)
        });
        let receivers = receivers.collect();
        for number in 0..passes.len() {
            sender.invite(Time::ZERO, HostId(number as u32), place(number));
        }
        sender.offer(Time::ZERO, TOTAL);
        sender.finish(Time::ZERO);
        let (to_receivers, to_sender) = (Vec::new(), Vec::new());
        Self { now: Time::ZERO, sender, receivers, to_receivers, to_sender, over: None }
    }

    fn data(piece: Piece) -> Data {
        let Piece { offset, len, repair, end, parity } = piece;
        let (labelled, label, session) = (Labelled::Host, Label(0), SESSION);
        Data { labelled, label, session, offset, len, repair, end, parity }
    }

    fn arrive(&mut self, number: usize, outgoing: Outgoing) {
        let (receiver, passes) = &mut self.receivers[number];
        match outgoing {
            Outgoing::Everyone(piece) | Outgoing::One(_, piece) => {
                if piece.len <= *passes {
                    let _ = receiver.handle_data(self.now, &Self::data(piece));
                }
            }
            Outgoing::Control(_, body) => receiver.handle_control(self.now, &body),
        }
    }

    /// Runs until the session is over, and returns the time of its end.
    fn run(&mut self, limit: Span) -> Option<Time> {
        while self.over.is_none() && self.now < Time::ZERO + limit {
            self.now += Span::from_us(50);
            let now = self.now;
            for index in (0..self.to_sender.len()).rev() {
                if self.to_sender[index].0 <= now {
                    let (_, from, body) = self.to_sender.swap_remove(index);
                    self.sender.handle_control(now, HostId(from as u32), &body);
                }
            }
            let due: Vec<_> = self.to_receivers.extract_if(.., |it| it.0 <= now).collect();
            for (_, number, outgoing) in due {
                self.arrive(number, outgoing);
            }
            if self.sender.poll_timeout().is_some_and(|at| at <= now) {
                self.sender.handle_timeout(now);
            }
            while let Some(event) = self.sender.poll_event() {
                if matches!(event, SenderEvent::Finished | SenderEvent::Failed { .. }) {
                    self.over = Some(event);
                }
            }
            // The link takes eight packets in this time.
            for _ in 0..8 {
                let Some(outgoing) = self.sender.poll(now) else { break };
                let everyone = 0..self.receivers.len();
                let to = match outgoing {
                    Outgoing::Everyone(_) => everyone,
                    Outgoing::One(host, _) | Outgoing::Control(host, _) => {
                        host.0 as usize..host.0 as usize + 1
                    }
                };
                self.to_receivers.extend(to.map(|number| (now + DELAY, number, outgoing)));
            }
            for (number, (receiver, _)) in self.receivers.iter_mut().enumerate() {
                if receiver.poll_timeout().is_some_and(|at| at <= now) {
                    receiver.handle_timeout(now);
                }
                while let Some(event) = receiver.poll_event() {
                    match event {
                        ReceiverEvent::Readable { upto } => receiver.consume(now, upto),
                        ReceiverEvent::Ended { .. } => receiver.complete(now),
                        _ => {}
                    }
                }
                while let Some((_, body)) = receiver.poll(now) {
                    self.to_sender.push((now + DELAY, number, body));
                }
            }
            self.sender.check_bounds();
        }
        self.over.map(|_| self.now)
    }

    fn outcome(&self) -> Vec<(ReceiverStatus, Option<u16>)> {
        self.sender.receivers().map(|it| (it.status, it.path_payload)).collect()
    }
}

const DONE: ReceiverStatus = ReceiverStatus::Completed;

#[test]
fn a_receiver_that_full_packets_do_not_reach_gets_smaller_ones() {
    // Packets of up to 1400 bytes pass: 48 bytes of headers, and 1352 of payload.
    let mut world = World::new(&[1400, 1352, 1400]);
    assert!(world.run(Span::from_secs(60)).is_some());
    assert_eq!(world.outcome(), [(DONE, None), (DONE, Some(1352)), (DONE, None)]);
}

#[test]
fn the_only_receiver_may_be_one_that_full_packets_do_not_reach() {
    let mut world = World::new(&[700]);
    assert!(world.run(Span::from_secs(60)).is_some());
    assert_eq!(world.outcome(), [(DONE, Some(460))]);
}

#[test]
fn all_receivers_may_be_such() {
    let mut world = World::new(&[1300, 1399, 500]);
    assert!(world.run(Span::from_secs(60)).is_some());
    assert_eq!(world.outcome(), [(DONE, Some(1232)), (DONE, Some(1352)), (DONE, Some(460))]);
}

#[test]
fn a_receiver_that_no_data_reaches_is_lost_with_that_reason() {
    let mut world = World::new(&[1400, 0]);
    let end = world.run(Span::from_secs(60)).unwrap();
    assert!(end < Time::ZERO + Span::from_secs(20), "{end:?}");
    let stalled = ReceiverStatus::Lost(Reason::Stalled);
    assert_eq!(world.outcome(), [(DONE, None), (stalled, None)]);
}

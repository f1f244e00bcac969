//! What a driver does with receivers for which others may have made data: it ignores marks of the end, begins again, and serves them by
//! unicast.

use rackweave_core::{HostId, Span, Time};
use rackweave_wire::orca::{Body, Data, Label, Labelled, Place, Session, Status};

use super::super::{
    FlowConfig, Outgoing, Placement, Receiver, ReceiverEvent, Sender, SenderEvent, SlowReason,
};

const P: u64 = 1000;

fn config(ignore_end_mark: bool) -> FlowConfig {
    FlowConfig { payload: P as u16, fec_block: 0, ignore_end_mark, ..FlowConfig::default() }
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_ms(n)
}

fn receiver(ignore_end_mark: bool) -> Receiver {
    let place = Place { rack: 0, port: 0 };
    let config = config(ignore_end_mark);
    Receiver::new(ms(0), Session(1), 5, 7, HostId(9), place, 0, 20 * P, false, config)
}

fn data(offset: u64, end: bool) -> Data {
    let label = Label(0);
    let (session, labelled, len) = (Session(1), Labelled::Host, P as u16);
    Data { labelled, label, session, offset, len, repair: false, end, parity: None }
}

fn events(receiver: &mut Receiver) -> Vec<ReceiverEvent> {
    core::iter::from_fn(|| receiver.poll_event()).collect()
}

#[test]
fn a_mark_of_the_end_is_ignored_if_others_could_have_made_it() {
    for ignores in [false, true] {
        let mut receiver = receiver(ignores);
        assert!(receiver.handle_data(ms(1), &data(0, true)).is_some());
        let ended = ReceiverEvent::Ended { length: P };
        assert_eq!(events(&mut receiver).contains(&ended), !ignores);
        // The stream goes on, or the length is known.
        assert_eq!(receiver.handle_data(ms(1), &data(P, false)).is_some(), ignores);
        assert_eq!(receiver.end(ms(2), 2 * P), ignores);
        assert_eq!(
            events(&mut receiver).contains(&ReceiverEvent::Ended { length: 2 * P }),
            ignores
        );
    }
}

#[test]
fn a_length_below_what_has_arrived_is_refused() {
    let mut receiver = receiver(true);
    assert!(receiver.handle_data(ms(1), &data(5 * P, false)).is_some());
    assert!(!receiver.end(ms(1), 5 * P) && receiver.end(ms(1), 6 * P));
    assert!(!receiver.end(ms(1), 7 * P));
}

#[test]
fn a_receiver_that_begins_again_forgets_what_it_had() {
    let mut receiver = receiver(true);
    for cell in [0, 1, 2, 8] {
        assert!(receiver.handle_data(ms(1), &data(cell * P, false)).is_some());
    }
    assert!(!receiver.end(ms(1), 3 * P));
    receiver.restart(ms(2), 6, P);
    assert_eq!((receiver.have(), events(&mut receiver)), (P, Vec::new()));
    match receiver.poll(ms(2)) {
        Some((HostId(9), Body::Join { incarnation: 6, at, limit, .. })) => {
            assert_eq!((at, limit), (P, P + 20 * P));
        }
        other => panic!("{other:?}"),
    }
    let stored = receiver.handle_data(ms(3), &data(P, false));
    let place = Placement::Store { session: Session(1), offset: P, skip: 0, len: P as u16 };
    assert_eq!(stored, Some(place));
    assert!(receiver.handle_data(ms(3), &data(2 * P, false)).is_some());
    assert!(receiver.end(ms(3), 3 * P));
    assert!(events(&mut receiver).contains(&ReceiverEvent::Ended { length: 3 * P }));
}

/// Such a receiver follows the group, whose position no longer changes when nobody belongs to it.
#[test]
fn a_receiver_beside_the_group_goes_on_when_nobody_is_in_it() {
    let place = |port| Place { rack: 0, port };
    let mut sender = Sender::new(ms(0), Session(1), 7, false, config(false));
    for port in 0..2 {
        sender.invite(ms(0), HostId(port.into()), place(port));
    }
    sender.serve_by_unicast(HostId(0));
    for port in 0..2 {
        let join =
            Body::Join { incarnation: 1, stream: 7, place: place(port), at: 0, limit: 1 << 20 };
        sender.handle_control(ms(1), HostId(port.into()), &join);
    }
    sender.remove(ms(1), HostId(1), rackweave_wire::orca::Reason::Left);
    sender.offer(ms(1), 10 * P);
    sender.finish(ms(1));
    let sent: Vec<Outgoing> = core::iter::from_fn(|| sender.poll(ms(2))).collect();
    let to_it = |it: &&Outgoing| matches!(it, Outgoing::One(HostId(0), piece) if piece.offset < 10 * P && !piece.repair);
    assert_eq!(sent.iter().filter(to_it).count(), 10, "{sent:?}");
}

/// A receiver that cannot read the group's packets delays the group until it begins again, and may be found slow for that. It must not
/// come back to the group then.
#[test]
fn a_receiver_that_was_slow_before_it_begins_again_stays_apart() {
    let place = |port| Place { rack: 0, port };
    let mut sender = Sender::new(ms(0), Session(1), 7, false, config(false));
    let join = |port, incarnation, at| Body::Join {
        incarnation,
        stream: 7,
        place: place(port),
        at,
        limit: at + (1 << 20),
    };
    for port in 0..3 {
        sender.invite(ms(0), HostId(port.into()), place(port));
        sender.handle_control(ms(0), HostId(port.into()), &join(port, 1, 0));
    }
    sender.offer(ms(1), 20_000 * P);
    sender.serve_by_unicast(HostId(0));
    let (mut head, mut events) = (0, Vec::new());
    let turn = |sender: &mut Sender, now, head: &mut u64, events: &mut Vec<SenderEvent>| {
        sender.handle_timeout(now);
        while let Some(sent) = sender.poll(now) {
            if let Outgoing::Everyone(piece) = sent {
                *head = (*head).max(piece.offset + u64::from(piece.len));
            }
        }
        for port in 1..3 {
            let status = Status {
                who: 1 << port,
                have: *head,
                slowest: port,
                seen: *head,
                limit: *head + (1 << 20),
                ..Status::default()
            };
            sender.handle_control(now, HostId(port.into()), &Body::Status(status));
        }
        events.extend(core::iter::from_fn(|| sender.poll_event()));
    };
    let mut now = ms(1);
    let is_detached = |event: &SenderEvent| *event == SenderEvent::Detached { host: HostId(0) };
    while !events.iter().any(is_detached) {
        now += Span::from_ms(1);
        assert!(now < ms(2000), "it is not found slow");
        turn(&mut sender, now, &mut head, &mut events);
    }
    // Its verified bytes end where the group is.
    events.clear();
    for _ in 0..300 {
        now += Span::from_ms(1);
        sender.handle_control(now, HostId(0), &join(0, 2, head));
        turn(&mut sender, now, &mut head, &mut events);
    }
    let joined = SenderEvent::Joined { host: HostId(0), at: head };
    assert!(
        events.iter().any(|it| matches!(it, SenderEvent::Joined { .. })),
        "{joined:?} {events:?}"
    );
    let attached = SenderEvent::Attached { host: HostId(0) };
    assert!(!events.contains(&attached), "{events:?}");
}

/// The only receiver of the group takes nothing, as an application that is stopped. One that gets no packets of the group must not wait for it.
#[test]
fn a_receiver_beside_the_group_does_not_wait_for_one_that_is_stuck() {
    let place = |port| Place { rack: 0, port };
    let mut sender = Sender::new(ms(0), Session(1), 7, false, config(false));
    for port in 0..2 {
        sender.invite(ms(0), HostId(port.into()), place(port));
    }
    sender.serve_by_unicast(HostId(0));
    for port in 0..2 {
        let limit = if port == 0 { 1 << 20 } else { 2 * P };
        let join = Body::Join { incarnation: 1, stream: 7, place: place(port), at: 0, limit };
        sender.handle_control(ms(1), HostId(port.into()), &join);
    }
    sender.offer(ms(1), 10 * P);
    sender.finish(ms(1));
    let mut to_it = 0;
    for at in 1..50 {
        sender.handle_timeout(ms(at));
        while let Some(sent) = sender.poll(ms(at)) {
            to_it += u64::from(matches!(sent, Outgoing::One(HostId(0), piece) if !piece.repair));
        }
    }
    assert_eq!(to_it, 10);
}

/// It was silent when others were probed, has joined the group, and is then found to get nothing there.
#[test]
fn a_receiver_that_is_taken_from_the_group_gets_packets_of_its_own() {
    let place = |port| Place { rack: 0, port };
    let mut sender = Sender::new(ms(0), Session(1), 7, false, config(false));
    for port in 0..2 {
        sender.invite(ms(0), HostId(port.into()), place(port));
        let join =
            Body::Join { incarnation: 1, stream: 7, place: place(port), at: 0, limit: 1 << 20 };
        sender.handle_control(ms(0), HostId(port.into()), &join);
    }
    sender.offer(ms(1), 10 * P);
    sender.take_from_group(ms(1), HostId(0));
    let events: Vec<SenderEvent> = core::iter::from_fn(|| sender.poll_event()).collect();
    assert!(events.contains(&SenderEvent::Detached { host: HostId(0) }), "{events:?}");
    let sent: Vec<Outgoing> = core::iter::from_fn(|| sender.poll(ms(2))).collect();
    let count = |of: fn(&Outgoing) -> bool| sent.iter().filter(|it| of(it)).count();
    assert_eq!(count(|it| matches!(it, Outgoing::One(HostId(0), _))), 10, "{sent:?}");
    assert_eq!(count(|it| matches!(it, Outgoing::Everyone(_))), 10, "{sent:?}");
    let status =
        sender.receivers().find(|view| view.host == HostId(0)).map(|view| view.slow_reason);
    assert_eq!(status, Some(Some(SlowReason::NoMulticast)));
}

use proptest::prelude::*;
use rackweave_core::{FailReason, HostId, Span, Time};
use rackweave_workload::app::Outcome;

use super::*;

const SILENT: FailReason = FailReason::PeerSilent;

fn hosts(receivers: u32) -> Vec<HostId> {
    (1..=receivers).map(HostId).collect()
}

fn sender(casts: &[u64], receivers: u32, closed_loop: bool) -> Sender {
    Sender::new(SenderConfig { closed_loop, ..SenderConfig::new(casts.into(), hosts(receivers)) })
}

/// Starts the casts that can start at `now` and returns their lengths.
fn start(sender: &mut Sender, now: u64) -> Vec<u64> {
    std::iter::from_fn(|| sender.poll_write(Time::from_ticks(now), |_| true))
        .map(|write| write.bytes)
        .collect()
}

fn collector(casts: &[u64], receivers: u32) -> Collector {
    measuring(casts, receivers, 0, u64::MAX)
}

fn measuring(casts: &[u64], receivers: u32, warmup: u64, until: u64) -> Collector {
    Collector::new(CollectorConfig {
        casts: casts.into(),
        receivers: hosts(receivers).into_iter().map(|host| (host, HostId(0))).collect(),
        crashed: Vec::new(),
        warmup: Time::from_ticks(warmup),
        until: Time::from_ticks(until),
    })
}

fn results(mut collector: Collector, sender: &Sender, receivers: &[Receiver]) -> Results {
    collector.add(HostId(0), &sender.report());
    for (host, receiver) in (1..).zip(receivers) {
        collector.add(HostId(host), &receiver.report());
    }
    collector.results()
}

fn times(results: &Results) -> Vec<(u64, Option<u64>)> {
    results.casts.iter().map(|cast| (cast.begun.ticks(), cast.ended.map(|at| at.ticks()))).collect()
}

#[test]
fn a_cast_waits_for_the_acknowledgements_of_the_one_before() {
    let mut app = sender(&[10, 20], 2, true);
    assert_eq!(start(&mut app, 1), [10]);
    assert!(start(&mut app, 2).is_empty());
    app.acknowledged(Time::from_ticks(3), HostId(1), 1);
    assert!(start(&mut app, 3).is_empty(), "one of two");
    app.acknowledged_bytes(Time::from_ticks(4), HostId(2), u64::from(ACK_BYTES));
    assert_eq!(start(&mut app, 5), [20]);
    app.acknowledged(Time::from_ticks(6), HostId(1), 2);
    assert!(!app.is_done());
    app.failed(Time::from_ticks(7), HostId(2), SILENT);
    assert!(app.is_done());
    let results = results(collector(&[10, 20], 2), &app, &[]);
    assert_eq!(times(&results), [(1, Some(4)), (5, Some(7))]);
    assert_eq!(results.execution(), Some(Span::from_ticks(6)));
    assert_eq!(results.receivers[1].failed, Some(SILENT));
}

#[test]
fn without_a_loop_casts_follow_when_they_are_written() {
    let mut app = sender(&[10, 20], 1, false);
    assert_eq!(app.poll_write(Time::from_ticks(1), |_| false), None);
    assert_eq!(start(&mut app, 2), [10, 20]);
    // An acknowledgement covers earlier casts, and a count beyond the last cast has no effect.
    app.acknowledged(Time::from_ticks(9), HostId(1), 7);
    assert!(app.is_done() && app.is_written() && app.written() == 30);
    assert!(start(&mut app, 9).is_empty());
    assert_eq!(times(&results(collector(&[10, 20], 1), &app, &[])), [(1, Some(9)), (2, Some(9))]);
}

#[test]
fn the_first_cast_waits_for_its_time_and_its_receivers() {
    let config = SenderConfig {
        begins_at: Time::from_ticks(5),
        awaits_receivers: true,
        ..SenderConfig::new(vec![10], hosts(3))
    };
    let mut app = Sender::new(config);
    app.joined(HostId(1));
    app.detached(HostId(2));
    assert!(start(&mut app, 4).is_empty());
    assert_eq!(app.poll_timeout(), Some(Time::from_ticks(5)));
    assert!(start(&mut app, 5).is_empty(), "the third receiver has not joined");
    assert_eq!(app.poll_timeout(), None);
    app.failed(Time::from_ticks(6), HostId(3), FailReason::Cancelled);
    assert_eq!(start(&mut app, 7), [10]);
    let report = app.report();
    let failed = Record::Failed {
        cast: 0,
        receiver: 2,
        at: Time::from_ticks(7),
        reason: FailReason::Cancelled,
    };
    assert_eq!(report.records, [Record::Started { cast: 0, at: Time::from_ticks(7) }, failed]);
    assert_eq!(report.detached, 1);
}

#[test]
fn a_cast_that_no_receiver_has_does_not_end() {
    let mut app = sender(&[10, 20], 2, true);
    assert_eq!(start(&mut app, 1), [10]);
    app.all_failed(Time::from_ticks(2), SILENT);
    assert!(app.is_done() && start(&mut app, 3).is_empty());
    let results = results(collector(&[10, 20], 2), &app, &[]);
    // The second cast could not begin: it failed as well.
    assert_eq!((times(&results), results.execution()), (vec![(1, None), (2, None)], None));
    let messages = results.messages(|_, _, _| Span::from_ticks(1));
    assert_eq!(messages.len(), 4);
    assert!(messages.iter().all(|message| message.outcome == Outcome::Failed(SILENT)));
}

#[test]
fn casts_are_complete_with_their_last_byte() {
    let mut app = Receiver::new(&[10, 5, 5], Time::MAX);
    app.stored(Time::from_ticks(0), 0..20);
    assert_eq!(app.readable(Time::from_ticks(1), 9), None);
    assert_eq!(app.readable(Time::from_ticks(2), 10), Some(1));
    assert_eq!(app.readable(Time::from_ticks(3), 12), None);
    assert_eq!((app.next_start(), app.delivered(), app.is_complete()), (10, 1, false));
    assert_eq!(app.readable(Time::from_ticks(4), 20), Some(3));
    let delivered = |cast, at| Record::Delivered { cast, at: Time::from_ticks(at) };
    assert_eq!(app.report().records, [delivered(0, 2), delivered(1, 4), delivered(2, 4)]);
    assert!(app.is_complete());
    app.ended(20);
    assert_eq!(app.report().wrong_bytes, 0);
}

#[test]
fn bytes_that_were_not_stored_are_wrong() {
    let mut app = Receiver::new(&[10], Time::MAX);
    app.stored(Time::from_ticks(1), 0..4);
    app.stored(Time::from_ticks(1), 6..10);
    assert_eq!((app.contiguous(), app.readable(Time::from_ticks(2), 10)), (4, Some(1)));
    app.damaged(2);
    app.ended(11);
    assert_eq!(app.report().wrong_bytes, 6 + 2 + 1);
}

#[test]
fn gaps_before_and_after_a_fault() {
    let mut app = Receiver::new(&[10], Time::from_ticks(50));
    for (byte, at) in (0..).zip([10, 12, 20, 47, 90, 100]) {
        app.stored(Time::from_ticks(at), byte..byte + 1);
    }
    // Bytes that were stored before count as no progress.
    app.stored(Time::from_ticks(900), 0..3);
    let report = app.report();
    assert_eq!(
        (report.longest_gap_before, report.longest_gap),
        (Span::from_ticks(27), Span::from_ticks(43))
    );
}

#[test]
fn casts_of_the_warm_up_and_late_events_are_not_measured() {
    let casts = [10, 20, 30];
    let mut app = sender(&casts, 1, true);
    let mut receiver = Receiver::new(&casts, Time::MAX);
    receiver.stored(Time::from_ticks(0), 0..60);
    for (nth, upto) in (1..).zip([10, 30, 60]) {
        start(&mut app, 10 * nth);
        receiver.readable(Time::from_ticks(10 * nth + 4), upto);
        app.acknowledged(Time::from_ticks(10 * nth + 5), HostId(1), nth);
    }
    let measured = |warmup, until| {
        let collector = measuring(&casts, 1, warmup, until);
        results(collector, &app, std::slice::from_ref(&receiver))
    };
    let all = measured(0, 99);
    assert_eq!((all.measured().len(), all.execution()), (3, Some(Span::from_ticks(25))));
    assert_eq!(all.wait_times().collect::<Vec<_>>(), [Span::from_ticks(10); 2]);
    let warm = measured(15, 99);
    assert_eq!((warm.measured(), warm.execution()), (&[20, 30][..], Some(Span::from_ticks(15))));
    assert_eq!(warm.casts[0].cast, 1);
    assert_eq!(warm.send_times().collect::<Vec<_>>(), [Span::from_ticks(5); 2]);
    assert_eq!(warm.wait_times().count(), 2);
    assert_eq!(warm.messages(|_, _, _| Span::from_ticks(3)).len(), 2);
    let cut = measured(0, 33);
    assert_eq!((cut.execution(), cut.missing_bytes()), (None, 30));
    let outcomes: Vec<_> =
        cut.messages(|_, _, _| Span::from_ticks(3)).iter().map(|m| m.outcome).collect();
    let completed = |at| Outcome::Completed(Time::from_ticks(at));
    assert_eq!(outcomes, [completed(14), completed(24), Outcome::Unfinished]);
}

/// One step of a random schedule. Receivers are named by index.
#[derive(Clone, Debug)]
enum Step {
    /// The sender writes while its sockets have room for this many buffers.
    Write(usize),
    Join(usize),
    Detach(usize),
    /// The receiver gets at most this many more bytes; the flag is whether its acknowledgement arrives.
    Receive(usize, u64, bool),
    Fail(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let receiver = 0..5_usize;
    prop_oneof![
        4 => (0..4_usize).prop_map(Step::Write),
        3 => receiver.clone().prop_map(Step::Join),
        1 => receiver.clone().prop_map(Step::Detach),
        12 => (receiver.clone(), 1..400_u64, any::<bool>()).prop_map(|(r, n, a)| Step::Receive(r, n, a)),
        1 => receiver.prop_map(Step::Fail),
    ]
}

/// A sender and its receivers over one shared carrier.
struct Network {
    sender: Sender,
    receivers: Vec<Receiver>,
    have: Vec<u64>,
    failed: Vec<bool>,
    now: u64,
}

impl Network {
    fn apply(&mut self, step: &Step) {
        self.now += 1;
        let now = Time::from_ticks(self.now);
        let place = |receiver: usize| receiver % self.receivers.len();
        match *step {
            Step::Write(buffers) => {
                let mut left = buffers;
                while let Some(write) = self.sender.poll_write(now, |_| left > 0) {
                    assert!((1..=100).contains(&write.bytes));
                    left -= 1;
                }
            }
            Step::Join(receiver) => self.sender.joined(HostId(place(receiver) as u32 + 1)),
            Step::Detach(receiver) => self.sender.detached(HostId(place(receiver) as u32 + 1)),
            Step::Receive(receiver, most, acknowledges) => {
                let receiver = place(receiver);
                let (had, written) = (self.have[receiver], self.sender.written());
                let have = written.min(had.saturating_add(most));
                self.have[receiver] = have;
                let app = &mut self.receivers[receiver];
                app.stored(now, had..have);
                app.readable(now, have);
                if acknowledges {
                    let casts = app.delivered() as u64;
                    self.sender.acknowledged(now, HostId(receiver as u32 + 1), casts);
                }
            }
            Step::Fail(receiver) => {
                let receiver = place(receiver);
                self.failed[receiver] = true;
                self.sender.failed(now, HostId(receiver as u32 + 1), SILENT);
            }
        }
    }
}

proptest! {
    /// In any order of events, with lost acknowledgements and failing receivers, each cast ends exactly once for each
    /// receiver: it is acknowledged, or it fails with a reason.
    #[test]
    fn each_cast_ends_once_for_each_receiver(
        casts in prop::collection::vec(1..500_u64, 1..6),
        receivers in 1..5_u32,
        closed_loop: bool,
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let config = SenderConfig {
            closed_loop,
            awaits_receivers: true,
            buffer: 100,
            ..SenderConfig::new(casts.clone(), hosts(receivers))
        };
        let all = receivers as usize;
        let mut net = Network {
            sender: Sender::new(config),
            receivers: vec![Receiver::new(&casts, Time::MAX); all],
            have: vec![0; all],
            failed: vec![false; all],
            now: 0,
        };
        for step in &steps {
            net.apply(step);
        }
        // No acknowledgement is lost from here on.
        (0..all).for_each(|receiver| net.apply(&Step::Join(receiver)));
        for _ in 0..=casts.len() {
            net.apply(&Step::Write(usize::MAX));
            (0..all).for_each(|receiver| net.apply(&Step::Receive(receiver, u64::MAX, true)));
        }
        prop_assert!(net.sender.is_done());
        let records = net.sender.report().records;
        let nobody_left = net.failed.iter().all(|failed| *failed);
        let mut ends = vec![vec![0; all]; casts.len()];
        let mut open = 0;
        let mut started = 0;
        for record in &records {
            match *record {
                Record::Started { cast, .. } => {
                    prop_assert_eq!(cast as usize, started);
                    prop_assert!(!closed_loop || open == 0);
                    (started, open) = (started + 1, open + all);
                }
                Record::Acknowledged { cast, receiver, .. } | Record::Failed { cast, receiver, .. } => {
                    prop_assert!((cast as usize) < started);
                    let is_ack = matches!(record, Record::Acknowledged { .. });
                    prop_assert!(is_ack || net.failed[receiver as usize]);
                    ends[cast as usize][receiver as usize] += 1;
                    open -= 1;
                }
                Record::Delivered { .. } => prop_assert!(false, "a sender receives nothing"),
            }
        }
        prop_assert!(nobody_left || started == casts.len());
        prop_assert!(ends[..started].iter().flatten().all(|ends| *ends == 1), "{:?}", ends);
        let results = results(collector(&casts, receivers), &net.sender, &net.receivers);
        prop_assert_eq!(results.wrong_bytes, 0);
        for message in results.messages(|_, _, _| Span::from_ticks(1)) {
            prop_assert!(message.outcome != Outcome::Unfinished);
        }
        if !nobody_left {
            prop_assert!(results.casts.iter().all(|cast| cast.ended.is_some()));
        }
    }
}

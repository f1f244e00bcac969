//! Processors of hosts against queueing theory and arithmetic.

use super::*;
use crate::config::{Costs, HostModel, Processors, Quantiles, SwitchProcess};

const US: fn(u64) -> Span = Span::from_us;
const NS: fn(u64) -> Span = Span::from_ns;

fn single_switch(hosts: u32) -> Topology {
    Topology::SingleSwitch { hosts, host_link: Rate::from_gbps(400) }
}

fn ideal(hosts: u32, bytes: u64) -> Span {
    let fabric = Fabric::new(&fabric(single_switch(hosts))).unwrap();
    fabric.ideal(HostId(0), HostId(1), bytes, FRAMING)
}

/// Bytes on the link of a full packet of [`FRAMING`], and of one with a single byte.
const FULL: u64 = 1538;
const SMALL: u64 = 84;

fn run_trace(hosts: u32, messages: &[(u64, u32, u32, u64)], host: HostConfig) -> RunResult<Piece> {
    let mut case = Case::new(single_switch(hosts), trace_of(messages));
    case.host = Some(Arc::new(host));
    case.measure.time_limit = Span::from_secs(10);
    let result = case.run();
    assert_eq!(result.end, End::AllDone);
    assert_eq!(result.messages.len(), messages.len());
    result
}

/// The mean time that packets wait for a processor of this service time in one direction, in services.
fn mean_wait(load: f64, service: Span, host: HostConfig) -> f64 {
    let sizes = SizeDist::fixed(1460).unwrap();
    let pattern = Pattern::OpenLoop { sizes, load: 0.01, counts: LoadCounts::Wire };
    let mut case = Case::new(single_switch(2), pattern);
    case.host = Some(Arc::new(host));
    case.workload.senders = Some(0..1);
    case.workload.receivers = Some(1..2);
    case.gap = Some(Span::from_ps((service.as_ps() as f64 / load) as u64));
    case.measure.messages = 1_000_000;
    case.measure.verify = false;
    case.measure.warmup = Span::from_ms(5);
    let waits: f64 = (case.run().messages.iter())
        .map(|record| (latency(record) - record.ideal - service).as_ps() as f64)
        .sum();
    waits / service.as_ps() as f64 / 1_000_000.0
}

#[test]
fn waiting_time_before_a_sending_processor_is_that_of_m_d_1() {
    // 20 ns of packet, and 0.6 ns for each of 1538 bytes: the service is what they come to.
    let send = Costs { packet: NS(20), byte: Span::from_ps(600), ..Costs::default() };
    let service = send.of_packet(FULL as u32, 0);
    for load in [0.5, 0.8] {
        let host = HostConfig { send, ..HostConfig::default() };
        let (mean, expected) = (mean_wait(load, service, host), load / (2.0 * (1.0 - load)));
        assert!((mean / expected - 1.0).abs() < 0.02, "load {load}: {mean}, not {expected}");
    }
}

/// A turn of the switch process receives all its packets before it sends the first, so that the packet `i` of `n` leaves `(n - i) / 2` services
/// later than from M/D/1. A turn takes what has come during the one before, or the next packet: `n'` is Poisson with the mean `load * n`, or 1
/// if that is 0. So `E[n] = P0 / (1 - load)` and `E[n^2] = E[n] / (1 - load^2)`, and a packet is later by
/// `E[n (n - 1)] / (4 E[n]) = load^2 / (4 (1 - load^2))` on average.
#[test]
fn waiting_time_before_the_switch_process_is_that_of_m_d_1_and_of_gated_turns() {
    let costs = Costs { packet: NS(900), ..Costs::default() };
    let switch = Some(SwitchProcess { costs, wake_cost: Span::ZERO, window: Span::ZERO });
    for load in [0.5_f64, 0.8] {
        let host = HostConfig { switch, ..HostConfig::default() };
        let square = load * load;
        let expected = load / (2.0 * (1.0 - load)) + square / (4.0 * (1.0 - square));
        let mean = mean_wait(load, NS(900), host);
        assert!((mean / expected - 1.0).abs() < 0.02, "load {load}: {mean}, not {expected}");
    }
}

#[test]
fn throughput_is_bounded_by_the_slower_processor_and_the_faster_one_adds_its_cost_once() {
    let packets = 1000;
    for (send, receive) in [(3, 2), (2, 3)] {
        let host = HostConfig {
            send: Costs { packet: US(send), ..Costs::default() },
            receive: Costs { packet: US(receive), ..Costs::default() },
            ..HostConfig::default()
        };
        let result = run_trace(2, &[(0, 0, 1, packets * 1460)], host);
        // A tandem of two servers with constant times, with the idle path between them.
        let expected = ideal(2, 1460) + US(3) * packets + US(2);
        let slow = latency(&result.messages[0]);
        assert_eq!(slow, expected, "{send} and {receive}");
    }
}

#[test]
fn in_the_kernel_sending_takes_no_thread_and_is_paid_when_data_has_arrived() {
    let packets = 1000;
    let of_sent = Costs { packet: US(2), ..Costs::default() };
    let host = |send: Costs, processors: Processors| HostConfig {
        model: HostModel::Kernel,
        processors,
        send,
        receive: Costs { packet: US(3), ..Costs::default() },
        ..HostConfig::default()
    };
    let run =
        |host: HostConfig| latency(&run_trace(2, &[(0, 0, 1, packets * 1460)], host).messages[0]);
    // With processors of their own, only the receiver delays the message.
    let own = run(host(of_sent, Processors::PerDirection));
    assert_eq!(own, ideal(2, 1460) + US(3) * packets);
    assert_eq!(run(host(Costs::default(), Processors::PerDirection)), own);
    // On a shared one, the sender's work takes the receiver's time, but for what it has not been woken for.
    let free = run(host(Costs::default(), Processors::Shared(1)));
    assert_eq!(free, own);
    let paid = run(host(of_sent, Processors::Shared(1)));
    assert!(paid > free + US(2) * packets - US(200), "{paid} and {free}");
    assert!(paid <= free + US(2) * packets, "{paid} and {free}");
}

/// What a read of the kernel finds in its socket is handed over together, so that it is acknowledged together.
#[test]
fn in_the_kernel_a_batch_is_handed_over_at_its_end() {
    let latencies = |model| {
        let receive = Costs { packet: US(1), ..Costs::default() };
        let host = HostConfig { model, receive, receive_batch: 3, ..HostConfig::default() };
        let result = run_trace(2, &[(0, 0, 1, 1); 6], host);
        let first = ideal(2, 1);
        let mut latencies: Vec<Span> =
            result.messages.iter().map(|record| latency(record) - first).collect();
        latencies.sort_unstable();
        latencies
    };
    assert_eq!(latencies(HostModel::Turns), [1, 2, 3, 4, 5, 6].map(US));
    // The first one is alone in its batch; then three have come, then there are two.
    assert_eq!(latencies(HostModel::Kernel), [1, 4, 4, 4, 6, 6].map(US));
}

#[test]
fn a_system_call_is_paid_once_for_a_batch_and_a_call_once_for_a_message() {
    let costs = |batch| HostConfig {
        send: Costs { system_call: US(10), call: US(5), packet: US(1), ..Costs::default() },
        send_batch: batch,
        send_ahead: Span::from_ms(1),
        ..HostConfig::default()
    };
    for (batch, calls) in [(1, 24), (8, 3), (24, 1), (64, 1)] {
        let result = run_trace(2, &[(0, 0, 1, 24 * 1460)], costs(batch));
        let expected = ideal(2, 1460) + US(10) * calls + US(5) + US(24);
        assert_eq!(latency(&result.messages[0]), expected, "batches of {batch}");
    }
    // Of packets that arrive faster than they are handled, each batch is what has arrived by its beginning: 1, then 12.
    let receive = Costs { system_call: US(10), packet: US(1), ..Costs::default() };
    let host = HostConfig { receive, ..HostConfig::default() };
    let result = run_trace(2, &[(0, 0, 1, 13 * 1460)], host);
    assert_eq!(latency(&result.messages[0]), ideal(2, 1460) + US(10) * 2 + US(13));
    let call = Costs { call: US(7), packet: US(1), ..Costs::default() };
    let host = HostConfig { receive: call, ..HostConfig::default() };
    let result = run_trace(2, &[(0, 0, 1, 1), (0, 0, 1, 1)], host);
    // Delivering the first message keeps the processor from the second one.
    let last = result.messages.iter().map(latency).max().unwrap();
    assert_eq!(last, ideal(2, 1) + US(1) + US(7) + US(1));
}

#[test]
fn a_sleeping_thread_wakes_up_late_at_both_ends_and_a_busy_one_does_not() {
    let wake = Quantiles::new(vec![(0, US(40))]).unwrap();
    let packet = Costs { packet: US(1), ..Costs::default() };
    let host = HostConfig { wake, send: packet, receive: packet, ..HostConfig::default() };
    let result = run_trace(2, &[(0, 0, 1, 1), (20, 0, 1, 1)], host);
    let latencies: Vec<Span> = result.messages.iter().map(latency).collect();
    // The second message is submitted while the sender wakes up, and arrives while the receiver does.
    let first = ideal(2, 1) + US(2 * 40 + 2);
    assert_eq!(latencies, [first, first + US(1) - US(20)]);
}

/// Two messages. The second is submitted while the sender still pays for going to sleep, and then long after.
#[test]
fn going_to_sleep_occupies_the_processor_and_delays_what_comes_meanwhile_only() {
    let packet = Costs { packet: US(1), ..Costs::default() };
    let host = HostConfig { send: packet, wake_cost: US(30), ..HostConfig::default() };
    for (gap, wait) in [(10, 21), (31, 0), (90, 0)] {
        let result = run_trace(2, &[(0, 0, 1, 1), (gap, 0, 1, 1)], host.clone());
        let latencies: Vec<Span> = result.messages.iter().map(latency).collect();
        let at_once = ideal(2, 1) + US(1);
        assert_eq!(latencies, [at_once, at_once + US(wait)], "{gap} us later");
    }
}

#[test]
fn hosts_that_share_processors_wait_for_one_another() {
    let costs = Costs { packet: US(10), ..Costs::default() };
    let host = |processors| HostConfig {
        processors,
        send: costs,
        receive: costs,
        send_ahead: Span::from_ms(10),
        ..HostConfig::default()
    };
    let messages = [(0, 0, 1, 100 * 1460), (0, 2, 3, 100 * 1460)];
    let last = |processors| {
        let result = run_trace(4, &messages, host(processors));
        result.messages.iter().map(latency).max().unwrap()
    };
    // Two senders and two receivers of 100 packets each: 4 ms of work.
    let per_direction = last(Processors::PerDirection);
    assert_eq!(per_direction, ideal(4, 1460) + US(10) * 101);
    // Until the first packet has arrived, no receiver has work.
    let one = last(Processors::Shared(1));
    assert!(one >= US(4000) && one <= US(4000) + ideal(4, 1460) + US(20), "{one}");
    let two = last(Processors::Shared(2));
    assert!(two >= US(2000) && two <= US(2000) + ideal(4, 1460) + US(40), "{two}");
    // More processors than tasks are as good as a processor for each.
    assert_eq!(last(Processors::Shared(4)), per_direction);
}

#[test]
fn the_switch_process_interrupts_hosts_and_handles_a_window_together() {
    let host = HostConfig {
        processors: Processors::Shared(1),
        send: Costs { packet: US(10), ..Costs::default() },
        send_ahead: Span::from_ms(10),
        switch: Some(SwitchProcess {
            costs: Costs { system_call: US(3), packet: US(1), ..Costs::default() },
            wake_cost: Span::ZERO,
            window: US(100),
        }),
        ..HostConfig::default()
    };
    let result = run_trace(2, &[(0, 0, 1, 15 * 1460)], host);
    // The sender needs 150 us. The switch process has the first packet at once, for 4 us in place of the sender. 100 us
    // after that it has those of the meantime: 9 more, for 12 us. The last 5 have left by then or leave until the end of the
    // third window, 200 us after the first one.
    let fabric = Fabric::new(&fabric(single_switch(2))).unwrap();
    let began = US(10) + fabric.ideal(HostId(0), HostId(1), 1460, FRAMING);
    assert_eq!(latency(&result.messages[0]), began + US(200) + US(3) + US(5));
}

/// An idle switch process sleeps: it does not wait for windows without end, and what comes much later wakes it as the first packet did.
#[test]
fn an_idle_switch_process_sleeps() {
    let host = HostConfig {
        switch: Some(SwitchProcess {
            costs: Costs::default(),
            wake_cost: Span::ZERO,
            window: US(50),
        }),
        switch_wake: Quantiles::new(vec![(0, US(20))]).unwrap(),
        ..HostConfig::default()
    };
    let result = run_trace(2, &[(0, 0, 1, 1), (10_007, 0, 1, 1)], host);
    for message in &result.messages {
        assert_eq!(latency(message), ideal(2, 1) + US(20));
    }
}

/// The switch process and hosts wake up by distributions of their own.
#[test]
fn the_switch_process_wakes_up_by_its_own_distribution() {
    let late = |us| Quantiles::new(vec![(0, US(us))]).unwrap();
    let switch =
        SwitchProcess { costs: Costs::default(), wake_cost: Span::ZERO, window: Span::ZERO };
    for (hosts, of_switch) in [(40, 0), (0, 40), (25, 15)] {
        let host = HostConfig {
            wake: late(hosts),
            switch_wake: late(of_switch),
            switch: Some(switch),
            ..HostConfig::default()
        };
        let result = run_trace(2, &[(0, 0, 1, 1)], host);
        assert_eq!(latency(&result.messages[0]), ideal(2, 1) + US(40), "{hosts} and {of_switch}");
    }
}

#[test]
fn delays_of_the_fabric_are_replaced_if_the_table_says_so() {
    let packet = Costs { packet: US(1), ..Costs::default() };
    let host = HostConfig { send: packet, replaces_delays: true, ..HostConfig::default() };
    let result = run_trace(2, &[(0, 0, 1, 1)], host);
    let delays = fabric(single_switch(2));
    let delays = delays.host_send_delay + delays.host_receive_delay;
    assert_eq!(result.messages[0].ideal, ideal(2, 1));
    assert_eq!(latency(&result.messages[0]), ideal(2, 1) - delays + US(1));
}

fn tail() -> Quantiles {
    Quantiles::new(vec![(0, US(5)), (900_000, US(20)), (1_000_000, US(900))]).unwrap()
}

/// Every combination of features delivers every byte of every message (receivers verify), never faster than the work takes,
/// and the same seed gives the same result.
#[test]
fn any_configuration_delivers_everything_and_is_a_function_of_the_seed() {
    let mut rng = rackweave_core::Rng::stream(7, 0, 0, "processors");
    for round in 0..60 {
        let mut costs = || Costs {
            system_call: NS(rng.below(8_000)),
            call: NS(rng.below(3_000)),
            packet: NS(rng.below(3_000)),
            byte: Span::from_ps(rng.below(50) * 10),
            work: NS(rng.below(500)),
        };
        let (send, receive, of_switch) = (costs(), costs(), costs());
        let processors = match rng.below(4) {
            0 => Processors::PerDirection,
            n => Processors::Shared(n as u32),
        };
        let (window, wake_cost) = (US(rng.below(80)), NS(rng.below(9_000)));
        let host = HostConfig {
            processors,
            send,
            receive,
            send_batch: 1 + rng.below(130) as u32,
            receive_batch: 1 + rng.below(70) as u32,
            model: if rng.chance(0.3) { HostModel::Kernel } else { HostModel::Turns },
            send_ahead: US(rng.below(300)),
            wake: if rng.chance(0.5) { tail() } else { Quantiles::default() },
            switch_wake: if rng.chance(0.5) { tail() } else { Quantiles::default() },
            wake_cost,
            timer_grain: US(rng.below(60)),
            switch: rng.chance(0.5).then_some(SwitchProcess {
                costs: of_switch,
                wake_cost,
                window,
            }),
            replaces_delays: false,
        };
        let in_kernel = host.model == HostModel::Kernel;
        let mut case = Case::new(LEAF_SPINE, open_loop(0.3));
        // Twelve hosts with up to seven packets a message occupy even a single shared processor for a third of the time.
        case.gap = Some(US(4000));
        case.measure.messages = 300;
        case.seed = round;
        case.host = Some(Arc::new(host));
        let (one, two) = (case.run(), case.run());
        assert_eq!(one.end, End::AllDone, "{:?}", case.host);
        assert_eq!((&one.messages, &one.counters), (&two.messages, &two.counters));
        assert_eq!(one.counters.drops.iter().sum::<u64>(), 0);
        assert!(one.verified_messages >= 300);
        for record in &one.messages {
            let before_sending =
                if in_kernel { Span::ZERO } else { send.call + send.of_packet(SMALL as u32, 0) };
            let least = record.ideal + before_sending + receive.of_packet(SMALL as u32, 0);
            assert!(latency(record) >= least, "{record:?} {:?}", case.host);
        }
    }
}

#[test]
fn the_tail_is_drawn_by_the_seed() {
    let host = HostConfig { wake: tail(), ..HostConfig::default() };
    let mut case = Case::new(LEAF_SPINE, open_loop(0.3));
    case.gap = Some(US(400));
    case.measure.messages = 2000;
    case.host = Some(Arc::new(host));
    let slowest = |case: &Case| case.run().messages.iter().map(latency).max().unwrap();
    let first = slowest(&case);
    assert!(first > US(400), "2000 draws reach the tail: {first}");
    case.seed = 2;
    assert_ne!(slowest(&case), first);
}

/// A sender with 10 ms of work keeps a shared processor for a slice and the rest of a batch; then the other host has its turn.
#[test]
fn a_busy_host_does_not_keep_a_shared_processor() {
    let host = |processors| HostConfig {
        processors: Processors::Shared(processors),
        send: Costs { packet: US(10), ..Costs::default() },
        send_batch: 10,
        send_ahead: Span::from_ms(100),
        ..HostConfig::default()
    };
    let messages = [(0, 0, 1, 1000 * 1460), (1000, 2, 3, 1)];
    let result = run_trace(4, &messages, host(1));
    let short = result.messages.iter().find(|record| record.src == HostId(2)).map(latency);
    // The sender and the receiver of the short message wait for a slice and a batch each. Without slices they waited for 9 ms.
    let most = ideal(4, 1) + US(2 * (750 + 100) + 10);
    assert!(short.unwrap() > US(300) && short.unwrap() <= most, "{short:?}, not {most}");
    // With two processors slices are twice as long, but one of them is idle.
    let result = run_trace(4, &messages, host(2));
    let short = result.messages.iter().find(|record| record.src == HostId(2)).map(latency);
    assert_eq!(short, Some(ideal(4, 1) + US(10)));
}

/// What a message costs when it is delivered is over long before the next one comes, also if the thread has gone to sleep.
#[test]
fn the_cost_of_the_last_call_is_paid_before_the_thread_sleeps() {
    let receive = Costs { packet: US(1), call: US(30), ..Costs::default() };
    for processors in [Processors::PerDirection, Processors::Shared(2)] {
        let host = HostConfig { processors, receive, ..HostConfig::default() };
        for (gap, wait) in [(1000, 0), (10, 30 - 10 + 1)] {
            let result = run_trace(2, &[(0, 0, 1, 1), (gap, 0, 1, 1)], host.clone());
            let latencies: Vec<Span> = result.messages.iter().map(latency).collect();
            let first = ideal(2, 1) + US(1);
            assert_eq!(latencies, [first, first + US(wait)], "{processors:?}, {gap} us");
        }
    }
}

fn faulty(host: u32, kind: FaultKind, rows: &[(u64, u32, u32, u64)], costs: HostConfig) -> Case {
    let mut case = Case::new(single_switch(2), trace_of(rows));
    case.host = Some(Arc::new(costs));
    let at = |us| Time::ZERO + US(us);
    let place = FaultPlace::Host(HostId(host));
    case.faults = vec![Fault { from: at(55), until: at(1055), place, kind }];
    case
}

fn sending() -> HostConfig {
    let costs = Costs { packet: US(10), ..Costs::default() };
    HostConfig { send: costs, send_ahead: Span::from_ms(10), ..HostConfig::default() }
}

/// At 55 us the sender has sent five of 20 packets, and works on the sixth. Its processor ends that one, and goes on at 1055 us.
#[test]
fn a_paused_host_sends_nothing_of_what_its_processor_has_taken() {
    for processors in [Processors::PerDirection, Processors::Shared(1)] {
        let host = HostConfig { processors, ..sending() };
        let result = faulty(0, FaultKind::Pause, &[(0, 0, 1, 20 * 1460)], host).run();
        let expected = ideal(2, 1460) + US(1055 + 14 * 10);
        assert_eq!(latency(&result.messages[0]), expected, "{processors:?}");
        assert_eq!(result.counters.sent, 20);
    }
}

/// A receiver that is paused has handled five packets of 10 us, and has the others in its ring.
#[test]
fn a_paused_host_handles_what_has_arrived_when_it_goes_on() {
    let receive = Costs { packet: US(10), ..Costs::default() };
    let host = HostConfig { receive, ..HostConfig::default() };
    let result = faulty(1, FaultKind::Pause, &[(0, 0, 1, 20 * 1460)], host).run();
    let delay = fabric(single_switch(2)).host_receive_delay;
    let handled = (US(55) - (ideal(2, 1460))).ticks() / US(10).ticks() + 1;
    // That a packet in work ends during the pause saves a part of its time.
    let expected = US(1055) + US(10) * (20 - handled);
    let latency = latency(&result.messages[0]);
    assert!(latency >= expected - delay && latency <= expected + US(10), "{latency} {expected}");
    assert_eq!(result.counters.drops.iter().sum::<u64>(), 0);
}

#[test]
fn a_crashed_host_loses_what_its_processors_have_not_handled() {
    let mut case = faulty(0, FaultKind::Crash, &[(0, 0, 1, 20 * 1460)], sending());
    case.measure.verify = false;
    case.measure.time_limit = Span::from_ms(10);
    assert_eq!(case.run().counters.sent, 5);
    let receive = Costs { packet: US(10), ..Costs::default() };
    let host = HostConfig { receive, ..HostConfig::default() };
    let mut case = faulty(1, FaultKind::Crash, &[(0, 0, 1, 20 * 1460)], host);
    case.measure.verify = false;
    case.measure.time_limit = Span::from_ms(10);
    let result = case.run();
    assert_eq!(result.counters.drops[DropReason::HostDown as usize], 15);
    assert!(!matches!(result.messages[0].outcome, Outcome::Completed(_)));
}

//! What pairs cost: jobs that count words, with and without a switch that adds up.
//!
//! A pair costs what its sender, its receiver or the switch process needs for it beyond its packet. This is the rest of
//! the processor time of an upload when its system calls, packets, bytes and wake-ups are subtracted by the costs that
//! the other loads have given. Those costs do not depend on these loads.

use rackweave_lab::scenario::ScenarioText;

use super::fit::median;
use super::{CalibrateError, Fit, Load, Measured, Nanoseconds, PointWork, of_host, rounded};
use crate::{HostWork, SwitchWork};

/// One worker and one master. None is of a built-in scenario: these have several workers, other sizes and other numbers of slots.
pub(super) const LOADS: [Load; 2] = [
    Load { name: "pairs added up by the master", workload: "[transport]\nname = 'reduce-master'" },
    Load {
        name: "pairs added up by the switch",
        workload: "[transport]\nname = 'reduce-switch'\nslots = 40000",
    },
];

/// The text has more than 100,000 distinct words, and each is a pair: their packets cost about as much as they do.
pub(super) fn scenario_text(load: &Load) -> ScenarioText {
    let text = format!(
        "name = 'calibrate'\n\
         [fabric]\ntopology = 'single-switch'\nhosts = 2\nhost_link = '1 Gbps'\n\
         host_send_delay = '45 us'\nhost_receive_delay = '100 us'\n\
         {}\n\
         [workload.reduce]\nworkers = 1\nmasters = [0]\nsize = '20 MB'\nmap = 'local'\nmap_cost = '0 s'\n\
         reduce_cost = '0 s'\n\
         [measure]\ntime_limit = '30 s'\nsample_every = '50 ms'\n\
         [testbed]\nmax_packets_per_second = 'unlimited'\n",
        load.workload
    );
    ScenarioText { file: "calibrate.toml".to_owned(), text, folder: ".".into() }
}

/// The work of all rounds of these loads.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    works: Vec<PointWork>,
    /// Why rounds are missing: the last reason.
    failed: Option<String>,
}

impl Rounds {
    /// Adds a measurement of a load. One that has failed is left out.
    pub(super) fn add(&mut self, load: &Load, work: Result<Option<PointWork>, CalibrateError>) {
        match work {
            Ok(Some(work)) => self.works.push(work),
            Ok(None) => self.failed = Some(CalibrateError::NoWork(load.name).to_string()),
            Err(error) => self.failed = Some(error.to_string()),
        }
    }

    /// Puts the costs into the table: for each the median over all measurements, and 0 with a reason where there are none.
    pub(super) fn evaluate(&self, measured: &mut Measured) {
        let Measured { host: table, fit, missing, .. } = measured;
        let hosts = || self.works.iter().flat_map(|work| &work.hosts);
        let left = |host: &HostWork| left_of_host(host, fit);
        let sent = hosts().filter(|host| host.sent_pairs > 0);
        let sent = sent.map(|host| left(host) / host.sent_pairs as f64);
        let received = hosts().filter(|host| host.received_pairs > 0);
        let received = received.map(|host| left(host) / host.received_pairs as f64);
        let added = self.works.iter().filter(|work| work.switch.pairs > 0);
        let added = added.map(|work| left_of_switch(work, fit) / work.switch.pairs as f64);
        let mut cost = |of: &str, costs: Vec<f64>| {
            let why = match &self.failed {
                _ if median(&costs) > 0.0 => return Nanoseconds(rounded(median(&costs))),
                Some(failed) if costs.is_empty() => failed.as_str(),
                _ if costs.is_empty() => "its loads have moved none",
                _ => "its loads took no longer than their packets",
            };
            missing.push(format!("the cost of {of}, because {why}: it is 0"));
            Nanoseconds(0.0)
        };
        table.send_pair_ns = cost("a pair that is sent", sent.collect());
        table.receive_pair_ns = cost("a pair that is received", received.collect());
        let added = cost("a pair that a switch adds up", added.collect());
        if let Some(switch) = &mut table.switch {
            switch.pair_ns = added;
        }
    }
}

/// The processor time in nanoseconds that a host's pairs have taken.
fn left_of_host(work: &HostWork, fit: &Fit) -> f64 {
    let observed = of_host(work, fit.wake);
    let rest: f64 = observed.work.iter().zip(fit.host).map(|(work, cost)| work * cost).sum();
    observed.time_ns - rest
}

/// The same for the switch process. What its program consumes is received only, and what it makes is sent only: like the simulator
/// (`SwitchProcess::of_received`) this takes each for half of a packet.
fn left_of_switch(work: &PointWork, fit: &Fit) -> f64 {
    let SwitchWork { seconds, cpu_s, turns, sleeps, packets, bytes, received, .. } = work.switch;
    let received_bytes: u64 = work.hosts.iter().map(|host| host.sent_bytes).sum();
    let row = [
        seconds,
        turns as f64,
        (packets + received) as f64 / 2.0,
        (bytes + received_bytes) as f64 / 2.0,
    ];
    let rest: f64 = row.iter().zip(fit.switch).map(|(work, cost)| work * cost).sum();
    super::awake_ns(cpu_s, sleeps, fit.switch_wake) - rest
}

#[cfg(test)]
mod tests {
    use super::super::{ProcessorsKey, SwitchTable};
    use super::*;
    use crate::{Testbed, WorkerCommand};
    use rackweave_lab::scenario::World;
    use rackweave_lab::study::Study;
    use rackweave_scenario::host::HostTable;

    /// The costs of the kinds of work of a host and of the switch process, in their order, and of wake-ups.
    const FIT: Fit = Fit {
        host: [1e6, 3000.0, 0.0, 900.0, 0.4, 5000.0, 0.0, 1100.0, 0.2],
        switch: [1e6, 6000.0, 1500.0, 0.3],
        wake: 9000.0,
        switch_wake: 7000.0,
    };
    const SEND: f64 = 60.0;
    const RECEIVE: f64 = 90.0;
    const ADD: f64 = 140.0;
    const PAIRS: u64 = 128_000;
    const PACKETS: u64 = PAIRS / 64;

    /// A worker or a master, whose upload has taken this time more than its costs.
    fn host(sent: u64, received: u64, more_ns: f64) -> HostWork {
        let (packets, bytes) = (PACKETS, PACKETS * 1400);
        let mut work = HostWork { seconds: 0.5, sleeps: 300, ..HostWork::default() };
        (work.sent_pairs, work.received_pairs) = (sent, received);
        // Data in one direction, acknowledgements in the other one.
        let bytes_of = |pairs: u64| if pairs > 0 { bytes } else { packets * 84 };
        (work.sent, work.sent_bytes, work.send_calls) = (packets, bytes_of(sent), packets / 30);
        (work.received, work.received_bytes) = (packets, bytes_of(received));
        work.receive_batches = packets / 4;
        let row = of_host(&work, 0.0).work;
        let rest: f64 = row.iter().zip(FIT.host).map(|(work, cost)| work * cost).sum();
        let ns = rest + 300.0 * FIT.wake + SEND * sent as f64 + RECEIVE * received as f64;
        HostWork { cpu_s: (ns + more_ns) / 1e9, ..work }
    }

    /// A measurement with this number of pairs that the switch has added up.
    fn measured(added: u64, more_ns: f64) -> PointWork {
        let hosts = vec![host(0, PAIRS, more_ns), host(PAIRS, 0, more_ns)];
        let received_bytes: u64 = hosts.iter().map(|host| host.sent_bytes).sum();
        let mut switch =
            SwitchWork { seconds: 2.0, turns: 900, sleeps: 700, ..SwitchWork::default() };
        // What it adds up is answered by fewer and shorter packets.
        (switch.received, switch.packets) = (2 * PACKETS, PACKETS);
        (switch.bytes, switch.pairs) = (PACKETS * 200, added);
        let [second, turn, packet, byte] = FIT.switch;
        let ns = 2.0 * second
            + 900.0 * turn
            + (3 * PACKETS) as f64 / 2.0 * packet
            + (switch.bytes + received_bytes) as f64 / 2.0 * byte
            + 700.0 * FIT.switch_wake
            + ADD * added as f64;
        switch.cpu_s = (ns + more_ns) / 1e9;
        PointWork { hosts, switch }
    }

    fn table() -> Measured {
        let switch = Some(SwitchTable::default());
        let processors = ProcessorsKey::Shared(2);
        let host = HostTable { processors, switch, ..HostTable::default() };
        Measured { host, fit: FIT, spread: 0.0, missing: Vec::new() }
    }

    fn costs(measured: &Measured) -> [f64; 3] {
        let host = &measured.host;
        [host.send_pair_ns, host.receive_pair_ns, host.switch.as_ref().unwrap().pair_ns]
            .map(|cost| cost.0)
    }

    #[test]
    fn known_costs_are_found_in_spite_of_one_slow_round() {
        let mut rounds = Rounds::default();
        for more_ns in [0.0, -1e6, 60e6, 0.0, 1e6] {
            for (load, added) in LOADS.iter().zip([0, PAIRS]) {
                rounds.add(load, Ok(Some(measured(added, more_ns))));
            }
        }
        let mut table = table();
        rounds.evaluate(&mut table);
        assert_eq!((costs(&table), table.missing), ([SEND, RECEIVE, ADD], Vec::<String>::new()));
    }

    #[test]
    fn what_could_not_be_measured_is_zero_and_the_file_says_why() {
        // Uploads that took less time than their packets cost by the other loads.
        let mut rounds = Rounds::default();
        rounds.add(&LOADS[0], Ok(Some(measured(0, -40e6))));
        let mut of_packets = table();
        rounds.evaluate(&mut of_packets);
        assert_eq!(costs(&of_packets), [0.0; 3]);
        let words =
            ["a pair that is sent", "a pair that is received", "a pair that a switch adds up"];
        for (missing, words) in of_packets.missing.iter().zip(words) {
            assert!(missing.contains(words) && missing.contains("it is 0"), "{missing}");
        }
        assert!(of_packets.missing[0].contains("no longer than their packets"));
        assert!(of_packets.missing[2].contains("have moved none"), "{:?}", of_packets.missing);
        // Loads that were not carried. The costs of packets are kept.
        let mut rounds = Rounds::default();
        for load in &LOADS {
            rounds.add(load, Err(CalibrateError::NoWork(load.name)));
        }
        let mut failed = table();
        rounds.evaluate(&mut failed);
        assert_eq!((costs(&failed), failed.missing.len()), ([0.0; 3], 3));
        assert!(
            failed.missing[0].contains("by the switch was not carried"),
            "{:?}",
            failed.missing
        );
    }

    #[test]
    fn every_load_is_a_scenario_that_the_testbed_takes() {
        for load in &LOADS {
            let text = scenario_text(load);
            let scenario = text.read(World::Testbed, &[], None).unwrap();
            let Study::Reduce(reduce) = &scenario.points[0].study else { panic!("{}", load.name) };
            assert_eq!((scenario.points.len(), reduce.jobs.len()), (1, 1), "{}", load.name);
            let command = WorkerCommand { program: "none".into(), arguments: Vec::new() };
            Testbed::of_text(&text, true, command).unwrap().check().unwrap();
        }
    }
}

//! `rackweave reduce allreduce` on a machine that has hardly any time for it, and none at all for longer than anybody waits for a silent
//! peer. Workers must get their sum, late, and nobody may be taken for dead who only waits for a processor.

use std::process::Child;
use std::time::Duration;

use rackweave_wire::reduce::Format;

use super::vectors::Vectors;
use super::*;

/// How long a process runs at a time, and how long none of them does.
const RUNS: Duration = Duration::from_millis(4);
const STANDS: Duration = Duration::from_millis(400);
/// How long none of them runs once, in this round: a peer is given up after 30 s.
const STANDS_LONG: (u32, Duration) = (6, Duration::from_secs(40));

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

/// Lets the processes run by turns until all have ended. Returns the number of rounds.
#[expect(clippy::disallowed_methods, reason = "processes run and stand still for a time")]
fn starve(processes: &mut [&mut Process]) -> u32 {
    let mut running: Vec<_> = processes.iter_mut().map(|process| &mut process.child).collect();
    for child in &running {
        signal(child, "-STOP");
    }
    let mut rounds = 0;
    while !running.is_empty() {
        rounds += 1;
        assert!(rounds < 1000, "they do not end");
        std::thread::sleep(if rounds == STANDS_LONG.0 { STANDS_LONG.1 } else { STANDS });
        running.retain_mut(|child| {
            signal(child, "-CONT");
            std::thread::sleep(RUNS);
            let runs = child.try_wait().unwrap().is_none();
            if runs {
                signal(child, "-STOP");
            }
            runs
        });
    }
    rounds
}

#[test]
fn processes_that_hardly_run_get_the_sum() {
    let vectors = Vectors::new(3, 30_000, Format::BlockFloat, 9);
    let at = format!("127.0.0.1:{}", free_ports(1));
    let mut master = vectors.master(&format!("--listen {at}"));
    let mut workers: Vec<_> =
        (0..3).map(|number| vectors.worker(number, &format!("--master {at}"))).collect();
    let mut all: Vec<_> = workers.iter_mut().chain([&mut master]).collect();
    let rounds = starve(&mut all);
    assert!(rounds > STANDS_LONG.0, "the job ended in {rounds} rounds, before the long pause");
    for worker in &mut workers {
        worker.done();
    }
    master.done();
    vectors.check(1024, "starved");
}

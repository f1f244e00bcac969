//! The end of `rackweave reduce master` and of `rackweave reduce allreduce`: what processes say, and which files there are, when one of them is killed, cut off or cannot
//! write. A worker whose result goes to a pipe that nobody reads holds the job between the commit and the end.

use rackweave_wire::reduce::Format;

use super::vectors::Vectors;
use super::*;

/// A job of two workers at ports of this host. Worker 0 writes to a pipe that nobody reads.
struct Held {
    vectors: Vectors,
    to: String,
    master: Process,
    workers: [Process; 2],
}

const PATIENCE: &str = "--patience 4s";

impl Held {
    /// Returns when worker 1 has named its result, and worker 0 is about to write its own.
    fn new(seed: u64) -> Self {
        let vectors = Vectors::new(2, 5_000, Format::I64, seed);
        let pipe = vectors.path("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let at = format!("127.0.0.1:{}", free_ports(1));
        let master = vectors.master(&format!("--listen {at} {PATIENCE}"));
        let to = format!("--master {at} {PATIENCE}");
        let first = vectors.worker_to(0, "--out pipe", &to);
        let second = vectors.worker_to(1, "--out sum1", &to);
        let mut this = Self { vectors, to, master, workers: [first, second] };
        this.master.says("give their files their names");
        this.workers[1].says("sum1 has the sum: waiting");
        this
    }

    /// Reads what worker 0 writes.
    fn release(&self) -> Vec<u8> {
        fs::read(self.vectors.path("pipe")).unwrap()
    }

    fn is_right(&self, name: &str) -> bool {
        fs::read(self.vectors.path(name)).is_ok_and(|found| found == self.vectors.expected(1024))
    }
}

#[test]
fn a_job_ends_when_the_slowest_result_is_there() {
    let mut job = Held::new(1);
    job.master.says("waiting for worker 0 to confirm the result");
    // Longer than anybody is patient: the writer answers.
    assert!(!job.master.has_ended() && !job.workers[1].has_ended());
    assert_eq!(job.release(), job.vectors.expected(1024));
    for process in job.workers.iter_mut().chain([&mut job.master]) {
        assert_eq!(process.end().0, 0, "{}", process.stderr);
    }
    assert!(job.is_right("sum1"));
}

#[test]
fn a_worker_that_is_killed_before_its_result_is_there_is_named() {
    let mut job = Held::new(2);
    job.workers[0].kill();
    let (code, said) = job.master.end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("note: worker 0 has not confirmed the result"), "{said}");
    assert!(said.contains("error: worker 0 at 127.0.0.1:"), "{said}");
    let (code, said) = job.workers[1].end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("note: sum1 has the sum; whether the other workers"), "{said}");
    assert!(job.is_right("sum1"));
}

#[test]
fn a_worker_that_is_killed_before_or_after_its_result_is_there_and_started_again_ends_well() {
    for number in [0, 1] {
        let mut job = Held::new(3);
        job.workers[number].kill();
        let out = format!("--out sum{number}");
        job.workers[number] = job.vectors.worker_to(number, &out, &job.to);
        job.master.says(&format!("worker {number} has been replaced"));
        if number == 1 {
            job.workers[1].says("sum1 has the sum: waiting");
            assert_eq!(job.release(), job.vectors.expected(1024));
        }
        for process in job.workers.iter_mut().chain([&mut job.master]) {
            assert_eq!(process.end().0, 0, "{}", process.stderr);
        }
        assert!(job.is_right(&format!("sum{number}")) && job.is_right("sum1"));
    }
}

#[test]
fn a_worker_with_a_full_disk_leaves_and_can_be_started_again_elsewhere() {
    for returns in [false, true] {
        let vectors = Vectors::new(2, 5_000, Format::I64, 4);
        let at = format!("127.0.0.1:{}", free_ports(1));
        let mut master = vectors.master(&format!("--listen {at} {PATIENCE}"));
        let to = format!("--master {at} {PATIENCE}");
        let mut full = vectors.worker_to(0, "--out /dev/full", &to);
        let mut other = vectors.worker_to(1, "--out sum1", &to);
        let (code, said) = full.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("cannot write to /dev/full: No space left"), "{said}");
        master.says("worker 0 has left");
        let mut again = returns.then(|| vectors.worker_to(0, "--out sum0", &to));
        let code = if returns { 0 } else { 1 };
        for process in [&mut master, &mut other].into_iter().chain(&mut again) {
            assert_eq!(process.end().0, code, "{}", process.stderr);
        }
        if returns {
            vectors.check(1024, "elsewhere");
        } else {
            assert!(master.stderr.contains("worker 0 has not confirmed"), "{}", master.stderr);
        }
    }
}

#[test]
fn a_link_that_is_down_for_some_seconds_at_the_end_changes_nothing() {
    let vectors = Vectors::new(2, 5_000, Format::I64, 5);
    assert!(Command::new("mkfifo").arg(vectors.path("pipe")).status().unwrap().success());
    let overlay = Overlay::new(3, "--slots 16384");
    let mut master = vectors.master(&format!("{} --switch 0", overlay.host(0)));
    let start = |number: usize, out: &str| {
        let host = overlay.host(number as u32 + 1);
        vectors.worker_to(number, out, &format!("--master 0 {host}"))
    };
    let mut workers = [start(0, "--out pipe"), start(1, "--out sum1")];
    workers[1].says("sum1 has the sum: waiting");
    overlay.signal("-STOP");
    assert_eq!(fs::read(vectors.path("pipe")).unwrap(), vectors.expected(1024));
    workers[0].says("pipe has the sum: waiting");
    (0..200).for_each(|_| nap());
    overlay.signal("-CONT");
    for process in workers.iter_mut().chain([&mut master]) {
        assert_eq!(process.end().0, 0, "{}", process.stderr);
    }
}

#[test]
fn ctrl_c_after_the_commit_says_what_is_there() {
    let mut job = Held::new(6);
    job.workers[1].signal("-INT");
    let (code, said) = job.workers[1].end();
    assert_eq!(code, 130, "{said}");
    assert!(said.contains("note: sum1 has the sum; whether the other workers"), "{said}");
    // Its result is there, and nobody has to wait for it.
    assert_eq!(job.release(), job.vectors.expected(1024));
    for process in [&mut job.workers[0], &mut job.master] {
        assert_eq!(process.end().0, 0, "{}", process.stderr);
    }
    let mut job = Held::new(7);
    job.master.signal("-INT");
    let (code, said) = job.master.end();
    assert_eq!(code, 130, "{said}");
    assert!(said.contains("note: worker 0 has not confirmed the result"), "{said}");
    assert_eq!(job.workers[1].end().0, 1);
}

/// Whenever a worker is killed, and started again if it has not said that all is done: exit code 0 means that all have their results, and a
/// worker that returns makes it so.
#[test]
fn a_worker_that_is_killed_at_any_instant_and_returns_ends_well() {
    let hooks = ["all workers have joined", "the sum is whole", "has the sum: waiting"];
    for round in 0..12_u64 {
        let vectors = Vectors::new(3, 20_000, Format::BlockFloat, 20 + round);
        let at = format!("127.0.0.1:{}", free_ports(1));
        let mut master = vectors.master(&format!("--listen {at}"));
        let to = format!("--master {at}");
        let start = |number: usize| vectors.worker_to(number, &format!("--out sum{number}"), &to);
        let mut workers = vec![start(0), start(1), start(2)];
        match hooks.get(round as usize % 4) {
            Some(hook) => workers[1].says(hook),
            None => workers[1].says("all workers have joined"),
        }
        wait_ms(round / 4 * (1 + round % 4 * 5));
        if workers[1].was_sure_when_killed() {
            workers.remove(1);
        } else {
            workers[1] = start(1);
        }
        for process in workers.iter_mut().chain([&mut master]) {
            assert_eq!(process.end().0, 0, "round {round}: {}", process.stderr);
        }
        vectors.check(1024, &format!("round {round}"));
    }
}

/// A master of two workers that has all sums, and writes them to a pipe that nobody reads, with its workers.
fn writing(texts: &Texts) -> (Process, Vec<Process>) {
    let pipe = texts.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let at = format!("127.0.0.1:{}", free_ports(1));
    let mut master = texts.master(2, &format!("--listen {at} --out pipe {PATIENCE}"));
    let to = format!("reduce worker --master {at} {PATIENCE} --worker");
    let mut workers: Vec<_> =
        (0..2).map(|number| texts.start(&format!("{to} {number} text{number}"))).collect();
    master.says("the result is being written");
    workers.iter_mut().for_each(|worker| worker.says("waiting for the master to write the result"));
    (master, workers)
}

#[test]
fn workers_of_a_reduction_end_when_its_result_is_written() {
    let texts = Texts::new(2, 20_000, 81);
    // Longer than anybody is patient: the master answers.
    let (mut master, mut workers) = writing(&texts);
    assert!(!workers.iter_mut().any(Process::has_ended));
    let written = fs::read(texts.path("pipe")).unwrap();
    for process in workers.iter_mut().chain([&mut master]) {
        assert_eq!(process.end().0, 0, "{}", process.stderr);
    }
    fs::write(texts.path("counts"), written).unwrap();
    assert_eq!(texts.result("counts"), texts.expected());
}

#[test]
fn no_worker_of_a_reduction_ends_well_without_its_result() {
    let texts = Texts::new(2, 20_000, 82);
    let (mut master, mut workers) = writing(&texts);
    // The reader goes away before it has read all.
    let mut some = [0; 10];
    fs::File::open(texts.path("pipe")).unwrap().read_exact(&mut some).unwrap();
    let (code, said) = master.end();
    assert!(code == 1 && said.contains("cannot write to pipe"), "{code}: {said}");
    for worker in &mut workers {
        let (code, said) = worker.end();
        assert!(code == 1 && said.contains("its own output has the reason"), "{code}: {said}");
    }
}

#[test]
fn a_master_that_writes_for_ever_can_be_interrupted() {
    let texts = Texts::new(2, 20_000, 83);
    let (mut master, mut workers) = writing(&texts);
    master.signal("-INT");
    assert_eq!(master.end().0, 130, "{}", master.stderr);
    for worker in &mut workers {
        assert_eq!(worker.end().0, 1, "{}", worker.stderr);
    }
}

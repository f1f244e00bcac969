//! `rackweave reduce allreduce` as users run it: what workers write against the sum that this program computes from their files, bit for
//! bit, also when processes die and return, and when the network damages, loses and repeats packets.

use std::net::SocketAddr;

use rackweave_aggregation::vector::values::Values;
use rackweave_core::{HostId, Rng};
use rackweave_wire::Id64;
use rackweave_wire::overlay;
use rackweave_wire::reduce::{Body, Chunk, Format, Header, KIND, OpenVector, Phase, Shape, encode};

use super::*;

/// A folder with the values of each worker, `v0` and so on.
pub(super) struct Vectors {
    texts: Texts,
    format: Format,
    values: Vec<Values>,
}

fn bytes_of(values: &Values) -> Vec<u8> {
    match values {
        Values::Integers(all) => all.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Values::Floats(all) => all.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

impl Vectors {
    pub(super) fn new(workers: u8, length: usize, format: Format, seed: u64) -> Self {
        let texts = Texts::new(0, 0, 0);
        let vector = |worker: u8| {
            let mut rng = Rng::stream(seed, 0, worker.into(), "vector");
            match format {
                Format::I64 => {
                    Values::Integers((0..length).map(|_| rng.next_u64() as i64).collect())
                }
                Format::BlockFloat => {
                    let scale = |rng: &mut Rng| (rng.below(40) as f64 - 20.0).exp2();
                    let float = |rng: &mut Rng| ((rng.unit() - 0.5) * scale(rng)) as f32;
                    Values::Floats((0..length).map(|_| float(&mut rng)).collect())
                }
            }
        };
        let values: Vec<_> = (0..workers).map(vector).collect();
        for (number, values) in values.iter().enumerate() {
            fs::write(texts.path(&format!("v{number}")), bytes_of(values)).unwrap();
        }
        Self { texts, format, values }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.texts.path(name)
    }

    /// The file that each worker should have.
    pub(super) fn expected(&self, chunk: u16) -> Vec<u8> {
        let all: Vec<_> = self.values.iter().collect();
        bytes_of(&Values::sum(&all, chunk / self.format.bytes()).unwrap())
    }

    pub(super) fn master(&self, more: &str) -> Process {
        let workers = self.values.len();
        let mut master =
            self.texts.start(&format!("reduce allreduce master --workers {workers} --json {more}"));
        master.says("ready at");
        master
    }

    pub(super) fn worker(&self, number: usize, more: &str) -> Process {
        let (format, out) = (self.format, format!("--out sum{number} --json"));
        let how = format!("reduce allreduce worker --worker {number} --type {format}");
        self.texts.start(&format!("{how} {more} v{number} {out}"))
    }

    /// As [`Vectors::worker`], with another output, and no JSON.
    pub(super) fn worker_to(&self, number: usize, out: &str, more: &str) -> Process {
        let format = self.format;
        let how = format!("reduce allreduce worker --worker {number} --type {format}");
        self.texts.start(&format!("{how} {more} v{number} {out}"))
    }

    /// Starts the workers of a master at host 0; worker i is host i + 1.
    fn workers(&self, overlay: &Overlay, more: &str) -> Vec<Process> {
        (0..self.values.len()).map(|number| self.at(overlay, number, more)).collect()
    }

    fn at(&self, overlay: &Overlay, number: usize, more: &str) -> Process {
        let host = overlay.host(number as u32 + 1);
        self.worker(number, &format!("--master 0 {host} {more}"))
    }

    /// Whether no worker has a result. A process that was killed leaves a hidden file behind, which was to become one.
    fn has_no_sums(&self) -> bool {
        (0..self.values.len()).all(|number| !self.texts.path(&format!("sum{number}")).exists())
    }

    pub(super) fn check(&self, chunk: u16, how: &str) {
        let expected = self.expected(chunk);
        for number in 0..self.values.len() {
            let found = fs::read(self.texts.path(&format!("sum{number}"))).unwrap();
            assert!(found == expected, "{how}: the sum of worker {number} is wrong");
            fs::remove_file(self.texts.path(&format!("sum{number}"))).unwrap();
        }
    }
}

/// A network on which there is a middle of a job.
const SLOW: &str = "--link 8_Mbps --slots 8192";

#[test]
fn the_sum_is_that_of_the_files_by_a_switch_and_by_a_host() {
    for format in [Format::I64, Format::BlockFloat] {
        let vectors = Vectors::new(2, 100_003, format, 1);
        let overlay = Overlay::new(3, "--slots 16384");
        let mut through = Vec::new();
        for (how, chunk) in
            [("--switch 0 --require-switch", 1024), ("", 1024), ("--chunk 200", 200)]
        {
            let mut master = vectors.master(&format!("{} {how}", overlay.host(0)));
            let mut workers = vectors.workers(&overlay, "");
            for worker in &mut workers {
                assert!(worker.done()["chunks"].as_u64().unwrap() > 300);
            }
            let stats = master.done();
            assert_eq!(stats["by_switch"], !how.is_empty() && chunk == 1024, "{stats}");
            assert_eq!(stats["length"], 100_003);
            vectors.check(chunk, how);
            through.push(stats["master_bytes"].as_u64().unwrap());
        }
        // With the switch only what forms the job reaches the master.
        assert!(through[0] * 20 < through[1], "{through:?}");
        let counters = overlay.counters();
        assert!(counters["program"]["chunk_sums"].as_u64().unwrap() > 300, "{counters}");
    }
}

#[test]
fn processes_at_any_ports_of_one_host_need_no_switch() {
    let vectors = Vectors::new(3, 30_000, Format::BlockFloat, 2);
    let port = free_ports(1);
    // The same commands again do the same.
    for _ in 0..2 {
        let mut master = vectors.master(&format!("--listen 127.0.0.1:{port}"));
        let to = format!("--master 127.0.0.1:{port}");
        let mut workers: Vec<_> = (0..3).map(|number| vectors.worker(number, &to)).collect();
        for worker in &mut workers {
            worker.done();
        }
        assert_eq!(master.done()["by_switch"], false);
        vectors.check(1024, "host");
    }
}

#[test]
fn the_result_is_exact_whatever_the_network_does() {
    let (mut again, mut duplicates, mut killed) = (0, 0, 0);
    for seed in 0..12 {
        let format = [Format::I64, Format::BlockFloat][seed as usize % 2];
        let vectors = Vectors::new(3, 20_000, format, 100 + seed);
        let slots = [2048, 16384][seed as usize / 2 % 2];
        let overlay = Overlay::new(4, &format!("--slots {slots} --seed {seed} {FAULTS}"));
        let how = if seed % 3 == 2 { "" } else { "--switch 0 --require-switch" };
        let mut master = vectors.master(&format!("{} {how}", overlay.host(0)));
        let mut workers = vectors.workers(&overlay, "");
        if seed % 3 == 1 {
            wait_ms(seed * 5);
            if workers[1].was_sure_when_killed() {
                workers.remove(1);
            } else {
                workers[1] = vectors.at(&overlay, 1, "");
                killed += 1;
            }
        }
        for worker in &mut workers {
            again += worker.done()["retransmitted"].as_u64().unwrap();
        }
        master.done();
        vectors.check(1024, &format!("seed {seed}"));
        duplicates += overlay.counters()["program"]["chunk_duplicates"].as_u64().unwrap();
    }
    println!("{again} chunks sent again, {duplicates} duplicates at the switch");
    assert!(again > 50 && duplicates > 20 && killed > 0, "{again} {duplicates} {killed}");
}

#[test]
fn a_worker_and_a_switch_that_are_killed_and_started_again_change_nothing() {
    let vectors = Vectors::new(3, 120_000, Format::I64, 3);
    let mut overlay = Overlay::new(4, SLOW);
    let mut master = vectors.master(&format!("{} --switch 0", overlay.host(0)));
    let mut workers = vectors.workers(&overlay, "");
    master.says("all workers have");
    workers[1].kill();
    workers[1] = vectors.at(&overlay, 1, "");
    master.says("worker 1 has been replaced");
    workers[1].says("all workers have joined");
    overlay.kill();
    a_moment();
    overlay.start();
    for worker in &mut workers {
        worker.done();
    }
    let stats = master.done();
    assert!(stats["restarts"].as_u64().unwrap() >= 2, "{stats}");
    vectors.check(1024, "killed");
}

#[test]
fn a_switch_that_dies_is_replaced_by_the_master() {
    let vectors = Vectors::new(2, 240_000, Format::BlockFloat, 4);
    let mut overlay = Overlay::new(3, SLOW);
    let mut master = vectors.master(&format!("{} --switch 0", overlay.host(0)));
    let mut workers = vectors.workers(&overlay, "");
    master.says("all workers have");
    // From now on the switch only forwards.
    overlay.kill();
    overlay.arguments =
        overlay.arguments.replace("--program reduce", "").replace("--slots 8192", "");
    overlay.start();
    for worker in &mut workers {
        worker.done();
    }
    assert_eq!(master.done()["by_switch"], false);
    assert!(master.stderr.contains("note: switch 0 does not answer"), "{}", master.stderr);
    vectors.check(1024, "replaced");
}

#[test]
fn a_worker_that_comes_back_with_another_file_fails_the_job() {
    let vectors = Vectors::new(2, 120_000, Format::I64, 5);
    let overlay = Overlay::new(3, SLOW);
    let mut master = vectors.master(&format!("{} --switch 0 --patience 4s", overlay.host(0)));
    let mut workers = vectors.workers(&overlay, "--patience 8s");
    master.says("all workers have");
    workers[1].kill();
    fs::write(vectors.texts.path("v1"), bytes_of(&vectors.values[0])).unwrap();
    workers[1] = vectors.at(&overlay, 1, "--patience 8s");
    let (code, said) = master.end();
    assert_eq!(code, 1, "{said}");
    let expected = "worker 1 is gone, and what was started in its place has other input";
    assert!(said.contains(expected), "{said}");
    let (code, said) = workers[0].end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("the master at host 0 has ended the job"), "{said}");
    assert_eq!(workers[1].end().0, 1);
    assert!(vectors.has_no_sums());
}

#[test]
fn ctrl_c_ends_a_master_with_its_workers_and_a_worker_by_itself() {
    let vectors = Vectors::new(2, 120_000, Format::I64, 6);
    let overlay = Overlay::new(3, SLOW);
    let mut master = vectors.master(&format!("{} --switch 0", overlay.host(0)));
    let mut workers = vectors.workers(&overlay, "");
    master.says("all workers have");
    workers[0].signal("-INT");
    assert_eq!(workers[0].end().0, 130);
    master.says("worker 0 has left");
    workers[0] = vectors.at(&overlay, 0, "");
    master.says("worker 0 has been replaced");
    master.signal("-INT");
    assert_eq!(master.end().0, 130);
    for worker in &mut workers {
        let (code, said) = worker.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("has ended the job"), "{said}");
    }
    assert!(vectors.has_no_sums());
}

#[test]
fn mistakes_are_refused_with_a_sentence() {
    let vectors = Vectors::new(2, 100, Format::I64, 7);
    fs::write(vectors.texts.path("odd"), [0; 9]).unwrap();
    fs::write(vectors.texts.path("empty"), []).unwrap();
    fs::write(vectors.texts.path("long"), [0; 808]).unwrap();
    let worker = "reduce allreduce worker --master 127.0.0.1:9 --worker 0 --type i64";
    for (arguments, sentence) in [
        (format!("{worker} odd"), "odd has 9 bytes, which are not whole values of 8 bytes"),
        (format!("{worker} empty"), "empty is empty: a vector has at least one value"),
        (format!("{worker} nothing"), "cannot read nothing: No such file"),
        (format!("{worker} v0 --json"), "--out"),
        ("reduce allreduce bench --size 3B".to_owned(), "less than one value"),
        ("reduce allreduce master --workers 2 --switch here".to_owned(), "not an IPv4 address"),
    ] {
        let (code, said) = vectors.texts.start(&arguments).end();
        assert_eq!(code, 2, "{arguments}: {said}");
        assert!(said.contains(sentence), "{arguments}: {said}");
    }
    let port = free_ports(1);
    let mut master = vectors.master(&format!("--listen 127.0.0.1:{port}"));
    let to = format!("--master 127.0.0.1:{port}");
    let mut first = vectors.worker(0, &to);
    master.says("worker 0 has joined");
    let other = format!("reduce allreduce worker {to} --worker 1 --type i64 long --out other");
    let (code, said) = vectors.texts.start(&other).end();
    assert_eq!(code, 1, "{said}");
    let expected = "have 100 elements of type i64, and that of this worker has 101 of type i64";
    assert!(said.contains(expected), "{said}");
    assert!(vectors.texts.has_nothing("other"));
    master.says("note: worker 1 is refused: it has 101 values of type i64");
    // A full disk: the others can go on when the worker is started again elsewhere.
    let full = vectors
        .texts
        .command(&format!("reduce allreduce worker {to} --worker 1 --type i64 v1 --out sum1"));
    let words: Vec<_> = full.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -f 0; exec {COMMAND} {}", words.join(" "))]);
    command.current_dir(vectors.texts.path(""));
    let (code, said) = Process::start(command).end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("sum1: File too large"), "{said}");
    master.says("worker 1 has left");
    vectors.worker(1, &to).done();
    first.done();
    master.done();
    vectors.check(1024, "after mistakes");
}

/// Exit code 0 of a worker means that all have written their results, also if the folder of one has been removed meanwhile.
#[test]
fn nobody_has_a_sum_before_a_worker_whose_folder_was_removed() {
    let vectors = Vectors::new(2, 1000, Format::I64, 10);
    let at = format!("127.0.0.1:{}", free_ports(1));
    let (mut master, to) = (vectors.master(&format!("--listen {at}")), format!("--master {at}"));
    let gone = vectors.texts.path("gone");
    fs::create_dir(&gone).unwrap();
    let out = "--type i64 v1 --out gone/sum1";
    let how = format!("reduce allreduce worker {to} --worker 1 {out}");
    let mut second = vectors.texts.start(&how);
    master.says("worker 1 has joined");
    fs::remove_dir_all(&gone).unwrap();
    let mut first = vectors.worker(0, &to);
    let (code, said) = second.end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("gone/sum1: ") && said.contains("was removed or renamed"), "{said}");
    master.says("worker 1 has left");
    assert!(first.child.try_wait().unwrap().is_none() && vectors.has_no_sums());
    vectors.worker(1, &to).done();
    first.done();
    master.done();
    vectors.check(1024, "after a folder was removed");
}

#[test]
fn a_master_of_vectors_names_the_workers_for_which_it_waits() {
    let vectors = Vectors::new(3, 1000, Format::I64, 9);
    let to = format!("127.0.0.1:{}", free_ports(1));
    let mut master = vectors.master(&format!("--listen {to}"));
    let mut first = vectors.worker(1, &format!("--master {to}"));
    master.says("waiting for workers 0, 2 to join\n");
    let mut second = vectors.worker(2, &format!("--master {to}"));
    master.says("waiting for worker 0 to join\n");
    let mut third = vectors.worker(0, &format!("--master {to}"));
    for process in [&mut first, &mut second, &mut third, &mut master] {
        process.done();
    }
    vectors.check(1024, "after waiting");
}

#[test]
fn workers_that_do_not_come_or_do_not_return_are_named() {
    let vectors = Vectors::new(2, 120_000, Format::I64, 8);
    let port = free_ports(1);
    let mut master = vectors.master(&format!("--listen 127.0.0.1:{port} --wait 2s"));
    let mut worker = vectors.worker(1, &format!("--master 127.0.0.1:{port}"));
    let (code, said) = master.end();
    assert_eq!(code, 1);
    assert!(said.contains("error: workers have not joined: 0"), "{said}");
    assert_eq!(worker.end().0, 1);
    let overlay = Overlay::new(3, SLOW);
    let mut master = vectors.master(&format!("{} --switch 0 --patience 2s", overlay.host(0)));
    let mut workers = vectors.workers(&overlay, "");
    master.says("all workers have");
    workers[1].kill();
    let (code, said) = master.end();
    assert_eq!(code, 1);
    assert!(said.contains("error: worker 1 at host 2 has been silent for 2 s"), "{said}");
    assert_eq!(workers[0].end().0, 1);
    assert!(vectors.has_no_sums());
}

/// Messages of a sender that knows the job's number, and neither its token nor the addresses of its hosts.
fn forged(round: u64) -> Vec<Vec<u8>> {
    let (version, number) = (round as u32, Id64::new(round % 600));
    let format = Format::I64;
    let chunk = Chunk { number, count: 128, exponent: 0, format, tag: 0 };
    let open = OpenVector { cookie: Id64::new(round), pool: 64, elements: 128, format, workers: 2 };
    let bodies = [
        Body::JoinVector { instance: version, cookie: Id64::new(round), digest: Id64::new(3) },
        Body::VectorState {
            version,
            instance: version,
            phase: [Phase::Done, Phase::Failed][round as usize % 2],
        },
        Body::VectorState { version: 0, instance: version, phase: Phase::Wait },
        Body::VectorProgress {
            version,
            low: Id64::new(u64::MAX),
            is_known: true,
            has_offer: false,
        },
        Body::OpenVector(open),
        Body::Chunk(chunk),
        Body::ChunkSum(chunk),
        Body::Waiting { number, missing: Id64::new(1) },
        Body::Opened { slots: 1, instance: 1 },
        Body::Close,
        Body::Unknown,
    ];
    let message = |body: &Body| {
        let token = Id64::new(if round.is_multiple_of(2) { 0 } else { round });
        let worker = (round % 3) as u8;
        let header = Header { job: 1, attempt: 0, worker, token, body: *body };
        let mut bytes = Vec::new();
        encode(&header, &mut bytes);
        let end = bytes.len() + header.payload_len() as usize;
        if matches!(body, Body::JoinVector { .. }) {
            Shape { length: round + 1, format }.encode(&mut bytes);
        }
        bytes.resize(end, round as u8);
        bytes
    };
    let mut all: Vec<_> = bodies.iter().map(message).collect();
    all.push(vec![round as u8; round as usize % 90]);
    all
}

#[test]
fn another_host_of_the_switch_can_neither_add_nor_end() {
    let vectors = Vectors::new(2, 60_000, Format::I64, 9);
    let overlay = Overlay::new(4, "--slots 16384 --link 20_Mbps");
    let how = "--switch 0 --require-switch";
    let mut master = vectors.master(&format!("{} {how}", overlay.host(0)));
    let mut workers = vectors.workers(&overlay, "");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut round = 0;
    until("the job ends", || {
        let hosts = [0, 1, 2, 1 << 31];
        let each = |message: Vec<u8>| hosts.map(|dst| (message.clone(), dst));
        for (message, dst) in forged(round).into_iter().flat_map(each) {
            let mut bytes = Vec::new();
            overlay::encode_group(KIND, HostId(3), HostId(dst), message.len() as u16, &mut bytes);
            bytes.extend_from_slice(&message);
            let _ = stranger.send_to(&bytes, ("127.0.0.1", overlay.port + 3));
        }
        round += 1;
        master.child.try_wait().unwrap().is_some()
    });
    master.done();
    for worker in &mut workers {
        worker.done();
    }
    vectors.check(1024, "a stranger at the switch");
    let counters = overlay.counters();
    assert!(counters["program"]["stale"].as_u64().unwrap() > 0, "{counters}");
}

#[test]
fn a_stranger_changes_nothing_at_a_master_without_a_switch() {
    let vectors = Vectors::new(2, 60_000, Format::BlockFloat, 10);
    let port = free_ports(1);
    let to: SocketAddr = ([127, 0, 0, 1], port).into();
    let mut master = vectors.master(&format!("--listen {to}"));
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let flood = |rounds: std::ops::Range<u64>| {
        for message in rounds.flat_map(forged) {
            let _ = stranger.send_to(&message, to);
        }
    };
    flood(0..300);
    let start = |number| vectors.worker(number, &format!("--master {to}"));
    let mut workers: Vec<_> = (0..2).map(start).collect();
    let mut round = 300;
    until("the job ends", || {
        flood(round..round + 20);
        round += 20;
        master.child.try_wait().unwrap().is_some()
    });
    let stats = master.done();
    for worker in &mut workers {
        worker.done();
    }
    vectors.check(1024, "a stranger");
    let count = |name: &str| stats[name].as_u64().unwrap();
    assert!(count("refused") > 0 && count("stale") > 0, "{stats}");
}

#[test]
fn the_benchmark_compares_a_switch_with_a_host() {
    let texts = Texts::new(0, 0, 0);
    let how = "reduce allreduce bench --workers 3 --size 200KB --steps 3 --json";
    for kind in ["i64", "f32"] {
        let text = texts.start(&format!("{how} --type {kind}")).printed();
        let rows = crate::common::events(&text);
        let bytes = |row: usize| rows[row]["master_bytes"].as_u64().unwrap();
        assert_eq!(rows.len(), 3, "{rows:?}");
        assert!(rows[0]["gbps"].as_f64().unwrap() > 0.0, "{rows:?}");
        // Three vectors of each of three workers reach the master, unless the switch adds up.
        assert!(bytes(0) < 100_000 && bytes(1) > 1_800_000 && bytes(2) > 1_800_000, "{rows:?}");
    }
}

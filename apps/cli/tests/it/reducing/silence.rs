//! Whoever waits says for whom, and nobody waits for a part of the job that has ended.

use super::*;
use crate::common::now;

#[test]
fn a_number_that_is_taken_or_does_not_exist_ends_the_worker_with_the_reason() {
    let texts = Texts::new(2, 100, 71);
    let port = free_ports(1);
    let mut master = texts.master(2, &format!("--listen 127.0.0.1:{port} --out counts"));
    let worker = |number: u8| {
        let to = format!("reduce worker --master 127.0.0.1:{port} --worker {number} text0");
        texts.start(&format!("{to} --patience 12s"))
    };
    let mut first = worker(0);
    master.says("worker 0 has joined");
    let mut others = [worker(0), worker(5)];
    master.says("is not taken as worker 5: the job has no such number");
    master.says("is not taken as worker 0: another process is this worker");
    let whys = ["0: another process is this worker", "5: the job has no such number"];
    for (other, why) in others.iter_mut().zip(whys) {
        let (code, said) = other.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("does not take this process as worker {why}")), "{said}");
    }
    first.says("waiting for other workers to join");
    let mut last = worker(1);
    assert_eq!([&mut first, &mut last, &mut master].map(|it| it.end().0), [0; 3]);
}

#[test]
fn a_rank_that_is_taken_or_does_not_exist_ends_the_worker_of_a_group() {
    let texts = Texts::new(0, 0, 0);
    fs::write(texts.path("vector"), [1_u8; 64]).unwrap();
    let port = free_ports(1);
    let mut master =
        texts.start(&format!("reduce allreduce master --workers 2 --listen 127.0.0.1:{port}"));
    master.says("ready");
    let worker = |number: u8, out: &str| {
        let to = format!("reduce allreduce worker --master 127.0.0.1:{port} --worker {number}");
        texts.start(&format!("{to} --type i64 vector --out {out}"))
    };
    let mut first = worker(0, "sum0");
    master.says("worker 0 has joined");
    let whys = ["0: another process is this worker", "5: the job has no such number"];
    for (mut other, why) in [worker(0, "sum1"), worker(5, "sum5")].into_iter().zip(whys) {
        let (code, said) = other.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("does not take this process as worker {why}")), "{said}");
    }
    let mut last = worker(1, "sum1");
    assert_eq!([&mut first, &mut last, &mut master].map(|it| it.end().0), [0; 3]);
}

/// A sandbox whose loopback interface is down.
#[test]
fn a_worker_that_cannot_send_ends_the_word_count() {
    rackweave_testing::needs!(SysAdmin);
    let texts = Texts::new(1, 100, 72);
    let mut command = Command::new("unshare");
    command.args(["-n", COMMAND, "reduce", "wordcount", "--no-switch", "--workers", "2", "text0"]);
    command.current_dir(texts.path("")).stdin(Stdio::null());
    let began = now();
    let (code, said) = Process::start(command).end();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("the socket has failed"), "{said}");
    assert!(began.elapsed().as_secs() < 20);
}

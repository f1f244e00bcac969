//! Mistakes of users, and the messages that they get.

use std::os::unix::process::CommandExt as _;

use super::*;

fn refused(texts: &Texts, arguments: &str) -> String {
    let (code, said) = texts.start(arguments).end();
    assert_eq!(code, 2, "{arguments}: {said}");
    said
}

#[test]
fn mistakes_are_refused_before_anything_is_sent() {
    let texts = Texts::new(1, 10, 41);
    fs::write(texts.path("pairs"), "a\t1\nb 2\n# as long as a key\n").unwrap();
    let master = "reduce master --workers 1";
    let worker = "reduce worker --master 127.0.0.1:9 --worker 0";
    for (arguments, sentence) in [
        (format!("{master} --json"), "--out"),
        ("reduce master --workers 0".to_owned(), "0 is not in 1..=64"),
        (format!("{master} --switch 172.16.0.0 --listen 127.0.0.1:77"), "answers to UDP port 6731"),
        (format!("{master} --switch here"), "--switch here: not an IPv4 address"),
        (format!("{master} --switch 224.0.0.1"), "no switch can have this address"),
        (format!("{master} --overlay 127.0.0.1:9"), "--me"),
        (
            format!("{master} --overlay 127.0.0.1:9 --me 0 --switch 172.16.0.0"),
            "the number of a switch",
        ),
        (format!("{master} --overlay 127.0.0.1:65000 --me 700"), "beyond 65535"),
        (worker.to_owned(), "--pairs"),
        (format!("{worker} nothing"), "cannot read nothing: No such file"),
        (format!("{worker} --pairs nothing"), "cannot read nothing: No such file"),
        (format!("{worker} --pairs pairs"), "pairs:2: there is no tab"),
        (format!("{worker} text0 --patience 0s"), "must be more than nothing"),
        (
            "reduce worker --master no.such.host.invalid --worker 0 text0".to_owned(),
            "neither an IP address",
        ),
        ("reduce wordcount nothing".to_owned(), "cannot read nothing: No such file"),
        ("switch --listen 127.0.0.1:0 --hosts 2 --slots 64".to_owned(), "--program reduce only"),
        (
            "switch --listen 127.0.0.1:0 --hosts 2 --program reduce --aggregate-at 1".to_owned(),
            "switch 1 does not exist",
        ),
        (
            "switch --listen 127.0.0.1:0 --hosts 2 --program reduce --key-file pairs".to_owned(),
            "--key-file is of use",
        ),
    ] {
        let said = refused(&texts, &arguments);
        assert!(said.contains(sentence), "{arguments}: {said}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let texts = Texts::new(1, 20_000, 42);
    let count = |more: &str| texts.start(&format!("reduce wordcount text0 {more}")).end();
    let (code, said) = count("--out /dev/full");
    assert_eq!(code, 1);
    assert!(said.contains("cannot write to /dev/full: No space left"), "{said}");
    let (code, said) = count("--out no/such/folder");
    assert_eq!(code, 1);
    assert!(said.contains("cannot write no/such/folder: No such file"), "{said}");
    // A disk that is full in the middle of the file: a limit of 8 blocks.
    let mut command = Command::new("sh");
    let script = format!("ulimit -f 8; exec {COMMAND} reduce wordcount text0 --out counts");
    command.args(["-c", &script]).current_dir(texts.folder.path());
    let (code, said) = Process::start(command).end();
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("cannot write counts: File too large")
            || said.contains("counts: File too large"),
        "{said}"
    );
    assert!(texts.has_nothing("counts"));
    let mut command = texts.command("reduce wordcount text0");
    command.arg0("rackweave").stdout(fs::File::create("/dev/full").unwrap()).stderr(Stdio::piped());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // The same command, where there is room, twice.
    for _ in 0..2 {
        assert_eq!(count("--out counts").0, 0);
        assert_eq!(texts.result("counts"), texts.expected());
    }
}

#[test]
fn workers_of_another_operator_or_job_are_told_and_do_not_harm() {
    let texts = Texts::new(1, 1_000, 43);
    let port = free_ports(1);
    let mut master = texts.master(1, &format!("--listen 127.0.0.1:{port} --out counts"));
    let to = format!("reduce worker --master 127.0.0.1:{port} --worker 0 text0");
    let (code, said) = texts.start(&format!("{to} --operator max")).end();
    assert_eq!(code, 1);
    let expected = format!(
        "the master at 127.0.0.1:{port} combines values by `sum`, and this worker by `max`"
    );
    assert!(said.contains(&expected), "{said}");
    let (code, said) = texts.start(&format!("{to} --job 2 --patience 1s")).end();
    assert_eq!(code, 1);
    assert!(said.contains("runs another job than 2"), "{said}");
    texts.start(&to).done();
    master.done();
    assert_eq!(texts.result("counts"), texts.expected());
}

#[test]
fn a_result_touches_no_file_but_its_own() {
    let texts = Texts::new(1, 500, 44);
    let victim = texts.path("victim");
    fs::write(&victim, "precious").unwrap();
    // The name under which a result used to be written, as a link, and what others have begun to load.
    std::os::unix::fs::symlink(&victim, texts.path("counts.part")).unwrap();
    fs::write(texts.path("other.part"), "half of a download").unwrap();
    for name in ["counts", "other"] {
        let (code, said) = texts.start(&format!("reduce wordcount text0 --out {name}")).end();
        assert_eq!(code, 0, "{said}");
        assert_eq!(texts.result(name), texts.expected());
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::read_to_string(texts.path("other.part")).unwrap(), "half of a download");
    let names: Vec<_> = fs::read_dir(texts.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 6, "{names:?}");
    // The mode of a result that is replaced stays.
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(texts.path("counts"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(texts.start("reduce wordcount text0 --out counts").end().0, 0);
    assert_eq!(fs::metadata(texts.path("counts")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_reader_that_goes_away_early_has_no_whole_result() {
    let texts = Texts::new(1, 50_000, 45);
    let script = format!("{COMMAND} reduce wordcount text0 --quiet; echo $? >&2");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("({script}) | head -1")]).current_dir(texts.folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("cannot write to standard output") && said.ends_with("1\n"), "{said}");
}

#[test]
fn a_worker_that_waits_for_its_input_ends_at_ctrl_c() {
    let texts = Texts::new(1, 1, 46);
    let made = Command::new("mkfifo").arg(texts.path("pipe")).status().unwrap();
    assert!(made.success());
    for input in ["pipe", "--pairs pipe"] {
        let how = format!("reduce worker --master 127.0.0.1 --worker 0 {input}");
        let mut worker = texts.start(&how);
        until("it listens for signals", || {
            let status = fs::read_to_string(format!("/proc/{}/status", worker.child.id())).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
        });
        a_moment();
        worker.signal("-INT");
        assert_eq!(worker.end().0, 130);
    }
    let (code, said) = texts.start("reduce worker --master 0 --worker 0 text0").end();
    assert_eq!(code, 2);
    assert!(said.contains("the number of a host needs --overlay"), "{said}");
}

//! `rackweave cast` while a process stands still for 45 s, as one that is suspended does, and goes on. What the user was told is compared
//! with what is on the disk.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::casts::{Receiver, content, json, rackweave};
use crate::common::until;

/// Who stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Receiver,
    Sender,
}

/// A cast of two files to two receivers.
#[derive(Clone, Copy, Debug)]
struct Case {
    pauses: Who,
    /// Whether receivers end after one stream.
    once: bool,
    /// The options of the sender.
    options: &'static [&'static str],
    /// Whether each of the receivers has all in the end.
    complete: [bool; 2],
}

#[expect(clippy::disallowed_methods, reason = "processes stand still for a time")]
fn stand_still(child: &Child) {
    let signal = |name: &str| {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    std::thread::sleep(Duration::from_secs(45));
    signal("-CONT");
}

fn same(place: &Path, files: &[(&str, usize)]) -> bool {
    files
        .iter()
        .all(|(name, len)| std::fs::read(place.join(name)).is_ok_and(|copy| copy == content(*len)))
}

fn cast(case: Case) {
    const FILES: [(&str, usize); 2] = [("big", 24_000_000), ("small", 5000)];
    let folder = tempfile::tempdir().unwrap();
    for (name, len) in FILES {
        std::fs::write(folder.path().join(name), content(len)).unwrap();
    }
    let places = [0, 1].map(|number| folder.path().join(format!("to-{number}")));
    // A sender that goes on invites receivers that have ended: no socket that another test leaves to the system has these ports.
    let to = [0, 1].map(|_| rackweave_testing::free_address().to_string());
    let mut receivers = [0, 1].map(|number: usize| {
        let place = places[number].to_str().unwrap();
        let mut command = rackweave(&["receive", "--listen", &to[number], "--dir", place]);
        command.args(case.once.then_some("--once"));
        Receiver::spawn(command)
    });
    let mut command = rackweave(&["send", "--json", "--rate", "50 Mbps", "--to", &to.join(",")]);
    command.args(case.options).args(FILES.map(|(name, _)| folder.path().join(name)));
    let sender = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("both receive", || {
        places
            .iter()
            .all(|place| place.join("big.part").metadata().is_ok_and(|meta| meta.len() > 3_000_000))
    });
    stand_still(if case.pauses == Who::Sender { &sender } else { &receivers[0].child });
    let output = sender.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = json(&output);
    let said = document["receivers"].as_array().unwrap();
    for number in 0..2 {
        let what = format!("{case:?}: {document} {errors}");
        let of = said.iter().find(|it| it["host"] == to[number]).expect("it is in the report");
        let complete = case.complete[number];
        assert_eq!(of["state"] == "complete", complete, "{what}");
        assert_eq!(of["error"].is_null(), complete, "{what}");
        assert_eq!(errors.contains(&to[number]), !complete, "{what}");
        assert_eq!(same(&places[number], &FILES), complete, "{what}");
        // What is incomplete has not got its name.
        assert!(complete || !places[number].join("big").exists(), "{what}");
        if case.once {
            let child = &mut receivers[number].child;
            until("a receiver has ended", || child.try_wait().unwrap().is_some());
            assert_eq!(child.wait().unwrap().code(), Some(i32::from(!complete)), "{what}");
        }
    }
    let all = case.complete.iter().all(|complete| *complete);
    assert_eq!(output.status.code(), Some(i32::from(!all)), "{case:?}: {errors}");
    if case.once {
        return;
    }
    // A receiver that goes on takes the same files, as far as they are missing, also from another sender.
    let mut again = rackweave(&["send", "--json", "--to", &to.join(",")]);
    let again = again.args(FILES.map(|(name, _)| folder.path().join(name))).output().unwrap();
    assert_eq!(again.status.code(), Some(0), "{case:?}: {again:?}");
    assert!(places.iter().all(|place| same(place, &FILES)), "{case:?}");
}

#[test]
fn who_stands_still_is_named_unless_it_has_everything_in_the_end() {
    let case = |pauses, once, options, complete| Case { pauses, once, options, complete };
    std::thread::scope(|scope| {
        let cases = [
            // The sender waits for it for 10 s, and names it.
            case(Who::Receiver, false, &[], [false, true]),
            case(Who::Receiver, true, &[], [false, true]),
            case(Who::Receiver, true, &["--retry", "100"], [true, true]),
            // Receivers wait for a sender's successor for as long; without --once for any sender.
            case(Who::Sender, false, &[], [true, true]),
            case(Who::Sender, true, &[], [false, false]),
        ];
        let running: Vec<_> = cases.map(|case| scope.spawn(move || cast(case))).into();
        for case in running {
            case.join().unwrap();
        }
    });
}

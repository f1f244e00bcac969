//! `rackweave cast` as users run it, on loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use crate::casts::{Receiver, content, json, rackweave};
use rackweave_testing::free_address;

#[test]
fn files_reach_two_receivers_and_one_document_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("tree");
    std::fs::create_dir_all(source.join("sub")).unwrap();
    std::fs::write(source.join("sub/big"), content(3_000_000)).unwrap();
    std::fs::write(source.join("small"), b"small").unwrap();
    let places = [folder.path().join("a"), folder.path().join("b")];
    let receivers = places.each_ref().map(|place| Receiver::into(place, &["--once"]));
    let to = format!("{},{}", receivers[0].address, receivers[1].address);
    let output =
        rackweave(&["send", source.to_str().unwrap(), "--to", &to, "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document = json(&output);
    assert_eq!(document["bytes"], 3_000_005);
    assert_eq!(document["receivers"].as_array().unwrap().len(), 2);
    for receiver in document["receivers"].as_array().unwrap() {
        assert_eq!(receiver["state"], "complete");
    }
    for (mut receiver, place) in receivers.into_iter().zip(&places) {
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
        assert_eq!(std::fs::read(place.join("tree/sub/big")).unwrap(), content(3_000_000));
        assert_eq!(std::fs::read(place.join("tree/small")).unwrap(), b"small");
    }
}

#[test]
fn a_pipe_goes_from_standard_input_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = key.to_str().unwrap();
    let mut receiver = Receiver::start(&["--once", "--out", "-", "--key", key]);
    let mut send = rackweave(&["send", "-", "--to", &receiver.address, "--key", key, "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = send.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&content(2_000_000)).unwrap());
    let mut bytes = Vec::new();
    receiver.child.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    writer.join().unwrap();
    assert!(bytes == content(2_000_000));
    assert_eq!(send.wait().unwrap().code(), Some(0));
    assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_killed_receiver_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("big");
    std::fs::write(&source, content(20_000_000)).unwrap();
    let place = folder.path().join("to");
    let mut receiver = Receiver::into(&place, &[]);
    let address = receiver.address.clone();
    let mut send =
        rackweave(&["send", source.to_str().unwrap(), "--to", &address, "--rate", "200 Mbps"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    let part = place.join("big.part");
    while part.metadata().map_or(0, |meta| meta.len()) < 4_000_000 {
        std::thread::yield_now();
    }
    // Both processes are killed in the middle of the transfer.
    receiver.child.kill().unwrap();
    receiver.child.wait().unwrap();
    send.kill().unwrap();
    send.wait().unwrap();
    assert!(!place.join("big").exists());
    let receiver = Receiver::into(&place, &[]);
    let output =
        rackweave(&["send", source.to_str().unwrap(), "--to", &receiver.address, "--json"])
            .output()
            .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(json(&output)["receivers"][0]["resumed_at"].as_u64().unwrap() > 3_000_000);
    assert!(std::fs::read(place.join("big")).unwrap() == content(20_000_000));
}

#[test]
fn tcp_and_a_chain_carry_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x");
    std::fs::write(&source, content(1_500_000)).unwrap();
    // Over TCP the receiver cannot report a port chosen by the system, so the test chooses a free one.
    let free = || free_address().to_string();
    let (mut children, mut addresses) = (Vec::new(), Vec::new());
    for name in ["a", "b"] {
        let address = free();
        let place = folder.path().join(name);
        let args = ["receive", "--tcp", "--forward", "--once", "--listen", &address, "--dir"];
        let mut command = rackweave(&args);
        children.push(command.arg(place).stdout(Stdio::null()).spawn().unwrap());
        addresses.push(address);
    }
    // Repeat until both receivers are listening.
    let to = addresses.join(",");
    let args = ["send", source.to_str().unwrap(), "--to", &to, "--method", "chain", "--json"];
    let listening = |address: &String| {
        std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&format!(
            ":{:04X} 00000000:0000 0A",
            address.rsplit(':').next().unwrap().parse::<u16>().unwrap()
        ))
    };
    while !addresses.iter().all(listening) {
        std::thread::yield_now();
    }
    let output = rackweave(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for (mut child, name) in children.into_iter().zip(["a", "b"]) {
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(std::fs::read(folder.path().join(name).join("x")).unwrap() == content(1_500_000));
    }
}

#[test]
fn wrong_usage_and_silence_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, b"x").unwrap();
    let path = path.to_str().unwrap();
    for args in [
        &["send", path][..],
        &["send", "/no/such/file", "--to", "127.0.0.1"],
        &["send", path, "--to", "127.0.0.1", "--to", "127.0.0.1"],
        &["send", "-", path, "--to", "127.0.0.1"],
        &["send", path, "--to", "127.0.0.1", "--key", path],
        &["send", path, "--to", "127.0.0.1", "--spread", "relay"],
        &["receive", "--out", "/"],
        &["send", path, "--group", "g", "--to", "127.0.0.1"],
        &["send", path, "--group", ""],
        &["send", path, "--to", "127.0.0.1", "--expect", "2"],
        &["send", path, "--to", "127.0.0.1", "--processes", "2"],
        &["send", "-", "--to", "127.0.0.1", "--method", "unicast"],
    ] {
        let output = rackweave(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    }
    // What the chosen way does not carry out is refused, and not left out without a word.
    for (way, options) in [
        (
            &["--socket", "/no/such/agent"][..],
            &["--fec=off", "--retry=3", "--bind=127.0.0.1:0", "--spool=/tmp", "--spool-limit=4MiB"]
                [..],
        ),
        (&["--method", "unicast"], &["--socket=/no/such/agent", "--spread=unicast", "--retry=3"]),
        (
            &["--method", "tcp"],
            &["--rate=1Gbps", "--mtu=1400", "--fec=off", "--socket=/x", "--exclude=x"],
        ),
        (&["--method", "chain"], &["--bind=127.0.0.1:0", "--spread=multicast"]),
    ] {
        for option in options {
            let base = ["send", path, "--to", "127.0.0.1", option];
            let output = rackweave(&base).args(way).output().unwrap();
            assert_eq!(output.status.code(), Some(2), "{way:?} {option}: {output:?}");
            let message = String::from_utf8(output.stderr).unwrap();
            let name = option.split('=').next().unwrap();
            assert!(message.contains(&format!("{name} has no effect")), "{message}");
        }
    }
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = free_address();
    let to = format!("{nobody},{}", silent.local_addr().unwrap());
    let output = rackweave(&["send", path, "--to", &to]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("nothing listens at its UDP port"), "{message}");
    assert!(message.contains("nothing came back:"), "{message}");
    assert!(message.contains("leave from 127.0.0.1"), "{message}");
    assert!(message.contains("ulticast to 239.255.67.22"), "{message}");
    let socket = rackweave_linux::sys::runtime_folder().unwrap().join("cast.sock");
    assert!(
        message.contains(&format!("of this host answers at {}", socket.display())),
        "{message}"
    );
}

#[test]
fn loopback_is_admitted_only_where_nothing_else_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x");
    std::fs::write(&source, content(1000)).unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let key = key.to_str().unwrap();
    for (way, served) in [
        (&["--from", "192.0.2.1"][..], false),
        (&["--key", key], false),
        (&["--from", "192.0.2.1", "--from", "127.0.0.1"], true),
        (&[], true),
    ] {
        let place = folder.path().join("place");
        let receiver = Receiver::into(&place, way);
        let to = receiver.address.as_str();
        let args = ["send", source.to_str().unwrap(), "--to", to, "--retry", "0"];
        let output = rackweave(&args).output().unwrap();
        assert_eq!(output.status.success(), served, "{way:?}: {output:?}");
        assert_eq!(std::fs::remove_file(place.join("x")).is_ok(), served, "{way:?}");
    }
}

#[test]
fn another_key_or_none_is_named_as_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (path, one, two) = (write("x", b"x"), write("one", &[1; 32]), write("two", &[2; 32]));
    let place = folder.path().join("place");
    let [none, other, same] = [&[][..], &["--key", &two], &["--key", &one]]
        .map(|options| Receiver::into(&place, options));
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    let to = [&none.address, &other.address, &silent, &same.address].map(String::as_str).join(",");
    let output = rackweave(&["send", &path, "--to", &to, "--key", &one]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    let line = |address: &str| message.lines().find(|line| line.contains(address)).unwrap_or("");
    for address in [&none.address, &other.address] {
        assert!(line(address).contains("give both ends the same --key FILE"), "{message}");
    }
    assert!(!line(&silent).contains("give both ends"), "{message}");
    assert!(!message.contains(&same.address), "{message}");
    assert!(place.join("x").exists());
    // A sender without a key hears it too.
    let output = rackweave(&["send", &path, "--to", &other.address]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("give both ends the same --key FILE"), "{message}");
}

/// Returns a name that no other test uses.
fn unique(folder: &Path) -> String {
    format!("test {} {}", std::process::id(), folder.file_name().unwrap().to_string_lossy())
}

#[test]
fn a_group_is_found_and_gets_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x");
    std::fs::write(&source, content(700_000)).unwrap();
    let name = unique(folder.path());
    let member = ["--group", &name, "--interface", "127.0.0.1", "--once"];
    let places = [folder.path().join("a"), folder.path().join("b")];
    let receivers = places.each_ref().map(|place| Receiver::into(place, &member));
    let mut args = vec!["send", source.to_str().unwrap(), "--interface", "127.0.0.1", "--json"];
    let nobody = rackweave(&args).args(["--group", "nobody is here"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    let message = String::from_utf8(nobody.stderr).unwrap();
    assert!(message.contains("receive --group nobody is here"), "{message}");
    args.extend(["--group", &name, "--expect", "2"]);
    let output = rackweave(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(json(&output)["receivers"].as_array().unwrap().len(), 2);
    for (mut receiver, place) in receivers.into_iter().zip(&places) {
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
        assert!(std::fs::read(place.join("x")).unwrap() == content(700_000));
    }
}

#[test]
fn copies_from_several_senders_reach_all() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x");
    std::fs::write(&source, content(1_500_000)).unwrap();
    let places = ["a", "b", "c"].map(|name| folder.path().join(name));
    let receivers = places.each_ref().map(|place| Receiver::into(place, &["--once"]));
    let to = receivers.each_ref().map(|it| it.address.as_str()).join(",");
    let args = ["send", source.to_str().unwrap(), "--to", &to, "--json"];
    let many = ["--method", "unicast", "--processes", "2"];
    let output = rackweave(&args).args(many).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document = json(&output);
    assert_eq!((&document["processes"], &document["copies"]), (&2.into(), &3.into()));
    assert!(document["link_bytes"].as_u64().unwrap() > 3 * 1_500_000);
    for (mut receiver, place) in receivers.into_iter().zip(&places) {
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
        assert!(std::fs::read(place.join("x")).unwrap() == content(1_500_000));
    }
}

#[test]
fn overwriting_an_incomplete_file_changes_no_other_of_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("x");
    std::fs::write(&source, content(300_000)).unwrap();
    for (before, flags) in [("precious", &["--once", "--overwrite"][..]), ("", &["--once"])] {
        let place = tempfile::tempdir_in(folder.path()).unwrap();
        let other = place.path().join("other");
        std::fs::write(&other, before).unwrap();
        std::fs::hard_link(&other, place.path().join("x.part")).unwrap();
        let mut receiver = Receiver::into(place.path(), flags);
        let sent = rackweave(&["send", source.to_str().unwrap(), "--to", &receiver.address])
            .output()
            .unwrap();
        assert!(sent.status.success(), "{sent:?}");
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
        assert!(std::fs::read(place.path().join("x")).unwrap() == content(300_000));
        assert_eq!(std::fs::read_to_string(&other).unwrap(), before);
    }
}

#[test]
fn names_that_are_not_text_are_harmless() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"a\n\x1b[31m\xff");
    let source = folder.path().join(name);
    std::fs::write(&source, b"x").unwrap();
    for flag in ["--json", "--overwrite"] {
        let place = folder.path().join(flag);
        // With --json it does not print its address.
        let address = free_address().to_string();
        let mut command = rackweave(&["receive", "--once", flag, "--listen", &address, "--dir"]);
        let mut child =
            command.arg(&place).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut receiver = Receiver { child, address, stderr };
        let send = || {
            let mut send = rackweave(&["send", "--to", &receiver.address, "--quiet"]);
            send.arg(&source).stderr(Stdio::null()).status().unwrap().code()
        };
        // Repeat until the receiver is listening.
        while send() != Some(0) {}
        let mut message = String::new();
        receiver.child.stdout.take().unwrap().read_to_string(&mut message).unwrap();
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0), "{message}");
        assert!(!message.contains('\x1b') && message.contains("blake3"), "{message:?}");
        assert_eq!(std::fs::read(place.join(name)).unwrap(), b"x");
    }
}

#[test]
fn an_application_that_has_gone_does_not_get_the_next_stream() {
    use std::os::unix::net::UnixStream;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("door");
    let args = ["agent", "--listen", "127.0.0.1:0", "--socket", path.to_str().unwrap()];
    let mut child = rackweave(&args).stderr(Stdio::piped()).spawn().unwrap();
    let stderr = BufReader::new(child.stderr.take().unwrap());
    let mut receiver = Receiver { child, address: String::new(), stderr };
    let mut line = String::new();
    receiver.stderr.read_line(&mut line).unwrap();
    let address = line.strip_prefix("agent at ").unwrap().split(',').next().unwrap().to_owned();
    let wait = || {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"receive\": {}}\n").unwrap();
        stream
    };
    let source = folder.path().join("x");
    std::fs::write(&source, content(300_000)).unwrap();
    drop(wait());
    let stream = wait();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = rackweave_cast::control::stream::read_stream(&stream, &mut bytes).unwrap();
        assert_eq!(read, Ok(bytes.len() as u64));
        bytes
    });
    // The agent is busy until it has registered the second receiver; the stream is never lost together with the first.
    loop {
        let args = ["send", source.to_str().unwrap(), "--to", &address];
        let output = rackweave(&args).output().unwrap();
        if output.status.code() == Some(0) {
            break;
        }
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("taking another stream"), "{message}");
    }
    assert!(reader.join().unwrap() == content(300_000));
    // A sender whose receivers are all unreachable gets its answer and then the end of the connection, although it has
    // not ended its own stream.
    let mut stream = UnixStream::connect(&path).unwrap();
    let nobody = free_address();
    stream.write_all(format!("{{\"send\": {{\"to\": [\"{nobody}\"]}}}}\nx").as_bytes()).unwrap();
    let mut message = String::new();
    stream.read_to_string(&mut message).unwrap();
    assert!(message.contains("\"complete\":false"), "{message}");
}

#[test]
fn events_are_printed_on_stderr_at_the_level_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("small");
    std::fs::write(&source, b"small").unwrap();
    for (level, shown) in [("debug", true), ("info", false), ("nonsense", false)] {
        let place = folder.path().join(level);
        let mut receiver = Receiver::into(&place, &["--once"]);
        let mut send = rackweave(&["send", source.to_str().unwrap(), "--to", &receiver.address]);
        let output = send.env("RACKWEAVE_LOG", level).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(receiver.child.wait().unwrap().code(), Some(0));
        let text = String::from_utf8(output.stderr).unwrap();
        let is_shown = text.contains("DEBUG rackweave_cast") && text.contains("Sent {");
        assert_eq!(is_shown, shown, "{level}: {text}");
    }
}

//! The control socket of `rackweave cast agent`, and other users of the machine. Tests with another user need root.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rackweave_linux::sys::{listen_privately, runtime_folder};

use crate::casts::rackweave;

/// A user without rights.
const STRANGER: u32 = 65_534;

/// Runs a function in a thread of another user; `None` without root.
fn as_stranger<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let thread = std::thread::spawn(move || {
        let user = rustix::fs::Uid::from_raw(STRANGER);
        // It changes the user of this thread only.
        rustix::thread::set_thread_res_uid(user, user, user).ok().map(|()| work())
    });
    let done = thread.join().unwrap();
    if done.is_none() {
        println!("skipped: needs root");
    }
    done
}

/// A socket of another user, which anyone may connect to and which behaves like an agent that keeps what is sent to it.
fn squat(path: &Path) -> Option<std::io::Result<Receiver<Vec<u8>>>> {
    let path = path.to_owned();
    as_stranger(move || {
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o777))?;
        let (send, taken) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut bytes = Vec::new();
                // A client that hangs up has sent what it has sent.
                let _ = stream.read_to_end(&mut bytes);
                let answer = b"{\"complete\": true, \"receivers\": []}\n";
                let _ = stream.write_all(answer);
                let _ = send.send(bytes);
            }
        });
        Ok(taken)
    })
}

/// Starts an agent; returns it with the first line that it prints.
fn agent(args: &[&str], with: impl FnOnce(&mut std::process::Command)) -> (Child, String) {
    let mut command = rackweave(&["agent", "--listen", "127.0.0.1:0"]);
    command.args(args).stderr(Stdio::piped());
    with(&mut command);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_agent_of_another_user_gets_and_gives_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("socket");
    let Some(taken) = squat(&path).map(Result::unwrap) else { return };
    let (secret, socket) = (folder.path().join("secret"), path.to_str().unwrap());
    std::fs::write(&secret, "secret").unwrap();
    let place = folder.path().join("received");
    let (secret, place) = (secret.to_str().unwrap(), place.to_str().unwrap());
    for args in [
        &["send", secret, "--to", "127.0.0.1:9", "--socket", socket][..],
        &["receive", "--once", "--dir", place, "--socket", socket],
        &["sessions", "--socket", socket],
    ] {
        let output = rackweave(args).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.contains("belongs to user 65534"), "{args:?}: {message}");
        assert_eq!(taken.recv().unwrap(), b"", "{args:?}");
    }
}

/// Where agents used to be looked for, any user of the machine could create a socket.
#[test]
fn a_taken_port_leads_to_no_agent_of_another_user() {
    let old = Path::new("/tmp/rackweave-cast.sock");
    let _ = std::fs::remove_file(old);
    // Another run of this test may have it: what matters is that it is there.
    let taken = match squat(old) {
        None => return,
        Some(Err(error)) => {
            use std::io::ErrorKind::{AddrInUse, NotFound};
            assert!(matches!(error.kind(), AddrInUse | NotFound), "{error}");
            None
        }
        Some(Ok(taken)) => Some(taken),
    };
    let port = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = port.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let args = ["receive", "--once", "--dir", place, "--listen", &listen];
    let output = rackweave(&args).output().unwrap();
    let _ = std::fs::remove_file(old);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("in use, and no agent of this user or of root answers at /run/rackweave/"),
        "{message}"
    );
    assert!(taken.is_none_or(|taken| taken.try_recv().is_err()));
    // Nor can another user be there first.
    let there = runtime_folder().unwrap();
    std::fs::create_dir_all(&there).unwrap();
    let refused = as_stranger(move || UnixListener::bind(there.join("squatted")).map(drop));
    assert_eq!(refused.unwrap().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn an_agent_serves_no_application_of_another_user() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("socket");
    let (child, line) = agent(&["--socket", path.to_str().unwrap()], |_| {});
    assert!(line.contains("control socket at"), "{line}");
    let ask = |path: &Path| {
        let mut stream = UnixStream::connect(path)?;
        stream.write_all(b"{\"sessions\": {}}\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    assert!(ask(&path).unwrap().contains("waiting"));
    let stranger = path.clone();
    if let Some(refused) = as_stranger(move || ask(&stranger)) {
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        // Even where someone has opened the socket to all.
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let stranger = path.clone();
        let answer = as_stranger(move || {
            let mut stream = UnixStream::connect(&stranger).unwrap();
            // The agent may have hung up already.
            let _ = stream.write_all(b"{\"sessions\": {}}\n");
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        });
        let answer = answer.unwrap();
        assert!(answer.contains("its own user") && !answer.contains("waiting"), "{answer}");
        assert!(ask(&path).unwrap().contains("waiting"));
    }
    kill(child);
}

/// An agent that refuses a user hangs up, before or after it has got the request.
#[test]
fn the_reason_of_an_agent_that_refuses_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"{\"error\": \"not for this user\"}\n");
        }
    });
    let (socket, place) = (path.to_str().unwrap(), folder.path().to_str().unwrap());
    let file = folder.path().join("file");
    std::fs::write(&file, "content").unwrap();
    for _ in 0..5 {
        for args in [
            &["send", file.to_str().unwrap(), "--to", "127.0.0.1:9", "--socket", socket][..],
            &["receive", "--once", "--dir", place, "--socket", socket],
            &["sessions", "--socket", socket],
            &["sessions", "--json", "--socket", socket],
        ] {
            let output = rackweave(args).output().unwrap();
            let message = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
            assert!(message.contains("not for this user"), "{args:?}: {message}");
        }
    }
}

#[test]
fn a_dead_agents_socket_is_replaced_and_a_running_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let socket = ["--socket", path.to_str().unwrap()];
    let (first, line) = agent(&socket, |_| {});
    assert!(line.contains("control socket at"), "{line}");
    let (mut second, line) = agent(&socket, |_| {});
    assert_eq!(second.wait().unwrap().code(), Some(1));
    assert!(line.contains("another agent is listening at") && line.contains("--socket"), "{line}");
    let served = rackweave(&["sessions", "--json"]).args(socket).output().unwrap();
    assert_eq!(served.status.code(), Some(0), "the first one still serves: {served:?}");
    kill(first);
    assert!(path.exists());
    let (third, line) = agent(&socket, |_| {});
    assert!(line.contains("control socket at"), "{line}");
    kill(third);
}

#[test]
fn an_agents_default_socket_is_in_its_users_own_folder() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let runtime = folder.path().join("runtime");
    std::fs::create_dir(&runtime).unwrap();
    std::fs::set_permissions(&runtime, Permissions::from_mode(0o700)).unwrap();
    if chown(&runtime, Some(STRANGER), None).is_err() {
        println!("skipped: needs root");
        return;
    }
    let as_user = |command: &mut std::process::Command| {
        command.uid(STRANGER).env("XDG_RUNTIME_DIR", &runtime).env("HOME", "/nonexistent");
    };
    let mut probe = rackweave(&["--help"]);
    as_user(&mut probe);
    if probe.stdout(Stdio::null()).status().is_err() {
        println!("skipped: user {STRANGER} may not run the command's file");
        return;
    }
    let (child, line) = agent(&[], as_user);
    let expected = runtime.join("rackweave/cast.sock");
    assert!(line.contains(expected.to_str().unwrap()), "{line}");
    let mut sessions = rackweave(&["sessions"]);
    as_user(&mut sessions);
    assert_eq!(sessions.output().unwrap().status.code(), Some(0));
    // Root is not led there by the user's variables.
    let sessions = rackweave(&["sessions"]).env("XDG_RUNTIME_DIR", &runtime).output().unwrap();
    assert!(String::from_utf8(sessions.stderr).unwrap().contains("/run/rackweave/cast.sock"));
    kill(child);
    // A folder that others can change is not used.
    std::fs::set_permissions(&runtime, Permissions::from_mode(0o777)).unwrap();
    let (mut child, line) = agent(&[], as_user);
    assert_eq!(child.wait().unwrap().code(), Some(1), "{line}");
    assert!(line.contains("no folder for sockets") && line.contains("give --socket"), "{line}");
}

/// An agent of root serves other users' programs only as far as they may connect; they accept it.
#[test]
fn a_client_takes_roots_agent() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("socket");
    let listener = listen_privately(&path).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let connected = as_stranger(move || rackweave_linux::sys::connect_to_own(&path).map(drop));
    let Some(connected) = connected else { return };
    connected.unwrap();
    assert!(!rackweave_linux::sys::is_own(&listener.accept().unwrap().0));
}

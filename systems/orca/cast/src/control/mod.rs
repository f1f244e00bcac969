//! The control socket of a running agent: a Unix socket through which local applications send and receive streams, one
//! connection for each.
//!
//! The first line is JSON. `{"send": {"to": ["192.0.2.7:6722"], "name": "log"}}` is followed by the stream's bytes
//! until the application shuts down its writing end; the agent answers with the outcome as one line of JSON. After
//! `{"receive": {}}` the agent writes the bytes of the next stream, each chunk as soon as its hash is verified, in blocks, and how the stream
//! has ended ([`stream`]); with `"blocks": false` the bytes only.
//! `{"sessions": {}}` is answered by one line of JSON that describes all sessions. On an agent's host, `cast send` and
//! `cast receive` transfer whole streams of files in this way ([`Records`], [`stream`]). Nothing is dropped: a slow
//! reader delays the sender, or is detached from the group and served by unicast.

mod proof;
mod request;
pub mod stream;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rackweave_linux::sys::{is_own, listen_privately};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

pub use self::proof::KeyProof;
use self::request::parse;
pub use self::request::{ReceiveRequest, Records, Request, SendRequest};
use crate::wake::Waker;

/// The longest first line, in bytes.
const MAX_LINE: usize = 1 << 16;

/// How long a connection may take to send its first line.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a control socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ControlSocketError {
    /// Another process is listening at this path.
    #[error("another agent is listening at {0}: stop it, or give this one another --socket")]
    InUse(PathBuf),
    /// The system refuses to bind the socket or to start its thread.
    #[error("cannot listen on {path}: {source}")]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A listening control socket. Only applications of the same user, and root's, are served.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    requests: Receiver<(Request, UnixStream)>,
}

impl ControlSocket {
    /// Binds the socket, replacing one that no process listens on any more. Each request wakes the waker.
    ///
    /// # Errors
    /// See [`ControlSocketError`].
    pub fn open(path: &Path, waker: Waker) -> Result<Self, ControlSocketError> {
        let failed = |source| ControlSocketError::Listen { path: path.to_owned(), source };
        let listener = listen_privately(path).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ControlSocketError::InUse(path.to_owned()),
            _ => failed(source),
        })?;
        let (send, requests) = channel();
        let builder = std::thread::Builder::new().name("cast control socket".into());
        let thread = builder.spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else {
                    // The process is probably out of file descriptors, and retrying immediately would only keep a core
                    // busy.
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "a thread that waits for the system"
                    )]
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                };
                // The socket's mode keeps other users out already, unless somebody has changed it.
                if !is_own(&stream) {
                    let error = "this agent serves programs of its own user, and root's";
                    answer(&mut stream, &serde_json::json!({ "error": error }));
                    continue;
                }
                let (send, waker) = (send.clone(), waker.clone());
                let builder = std::thread::Builder::new().name("cast request".into());
                // If the thread cannot be started, the connection is closed.
                let _ = builder.spawn(move || read_request(stream, &send, &waker));
            }
        });
        thread.map_err(failed)?;
        Ok(Self { path: path.to_owned(), requests })
    }

    /// Returns the next request and its connection. The rest of what the application writes can still be read from the
    /// connection, and the answer is written to it.
    #[must_use]
    pub fn poll(&self) -> Option<(Request, UnixStream)> {
        self.requests.try_recv().ok()
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // If the file stays, the next agent replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn read_request(mut stream: UnixStream, send: &Sender<(Request, UnixStream)>, waker: &Waker) {
    let request = match first_line(&mut stream) {
        Ok(line) => parse(&line),
        Err(error) => Err(error.to_string()),
    };
    match request {
        Ok(request) => {
            let _ = send.send((request, stream));
            waker.wake();
        }
        Err(error) => answer(&mut stream, &serde_json::json!({ "error": error })),
    }
}

/// Returns whether an application has closed its connection. Shutting down only the writing end does not count.
#[must_use]
pub fn is_disconnected(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok()
        && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Sends an application the outcome and closes the connection: further writes of the application fail.
pub fn dismiss(stream: &mut UnixStream, document: &Value) {
    answer(stream, document);
    // It fails if the application has closed the connection already.
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

/// Sends an application a line of JSON.
pub fn answer(stream: &mut UnixStream, document: &Value) {
    // It fails if the application has closed the connection.
    let _ = stream.set_write_timeout(Some(REQUEST_TIMEOUT));
    let _ = stream.write_all(format!("{document}\n").as_bytes());
}

/// Reads byte by byte, so that everything after the line stays unread.
fn first_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE {
        if stream.read(&mut byte)? == 0 || byte[0] == b'\n' {
            stream.set_read_timeout(None)?;
            return Ok(line);
        }
        line.push(byte[0]);
    }
    Err(io::Error::other("the first line is too long"))
}

/// Parses any bytes as the first line of an application: for the fuzz target `control_socket`. Not part of the interface.
///
/// # Errors
/// What the application is answered.
#[doc(hidden)]
pub fn check_line(line: &[u8]) -> Result<Request, String> {
    parse(line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::check_path;

    proptest! {
        #[test]
        fn any_first_line_is_understood_or_refused(
            at in any::<prop::sample::Index>(),
            letters in "[\\[\\]{}\"':,./0-9a-z\\\\ \\x00]{0,12}",
            name in ".{0,300}",
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let good = serde_json::json!({ "send": { "to": ["127.0.0.1:5"], "name": name } });
            let mut line = good.to_string().into_bytes();
            if let Ok(Request::Send(request)) = parse(&line) {
                prop_assert!(request.to.len() == 1 && request.name == name);
                prop_assert!(check_path(request.name.as_bytes()).is_ok());
            }
            let at = at.index(line.len());
            line.splice(at..at, letters.into_bytes());
            if let Ok(Request::Send(request)) = parse(&line) {
                prop_assert!(!request.to.is_empty() && check_path(request.name.as_bytes()).is_ok());
            }
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn a_first_line_that_does_not_end_is_not_kept() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            // Write until the other end closes the connection.
            while theirs.write_all(&[b'{'; 4096]).is_ok() {}
        });
        let error = first_line(&mut ours).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        drop(ours);
        writer.join().unwrap();
    }

    #[test]
    fn a_control_socket_has_one_agent_and_reports_bad_requests() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let waker = Waker::new().unwrap();
        let socket = ControlSocket::open(&path, waker.clone()).unwrap();
        assert!(matches!(
            ControlSocket::open(&path, waker.clone()),
            Err(ControlSocketError::InUse(_))
        ));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"nonsense\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("{\"error\":"), "{said}");
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"send\": {\"to\": [\"127.0.0.1:9\"]}}\nbytes").unwrap();
        let (request, mut stream) = loop {
            match socket.poll() {
                Some(polled) => break polled,
                None => waker.wait_in_tests(),
            }
        };
        let Request::Send(request) = request else { panic!("not a request to send") };
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes, request.name.as_str()), (b"bytes", "stream"));
    }

    #[test]
    fn a_closed_connection_differs_from_a_silent_one() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!is_disconnected(&ours));
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!is_disconnected(&ours));
        drop(theirs);
        assert!(is_disconnected(&ours));
    }

    #[test]
    fn a_dismissed_application_can_write_no_more() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let kept = ours.try_clone().unwrap();
        dismiss(&mut ours, &serde_json::json!({ "error": "x" }));
        let mut said = String::new();
        theirs.read_to_string(&mut said).unwrap();
        assert_eq!(said, "{\"error\":\"x\"}\n");
        assert!(theirs.write_all(b"more").is_err());
        drop(kept);
    }
}

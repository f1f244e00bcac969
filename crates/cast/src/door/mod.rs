//! The local door: applications hand streams in and out by a Unix socket of a running agent, one connection a stream.
//!
//! The first line is JSON: `{"send": {"to": ["192.0.2.7:6722"], "name": "log"}}`, then bytes until the writing end is shut; or
//! `{"receive": {}}`, and bytes come, each chunk once its hash is right, until the stream's end. `cast send` and `cast receive` on an agent's
//! host hand whole streams of files through it ([`Records`], [`stream`]). Nothing is dropped: who reads slowly
//! makes the sender wait (or is left behind and caught up alone). To who sends, a line of JSON tells the outcome. Or
//! `{"sessions": {}}`, and a line of JSON tells what is going on.

mod request;
pub mod stream;

use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

pub use self::request::{ReceiveWish, Records, SendWish, fingerprint};
use self::request::{Wanted, parse};
use crate::wake::Waker;

/// The longest first line.
const MAX_LINE: usize = 1 << 16;

/// A connection must have said what it wants by then.
const GREETING: Duration = Duration::from_secs(5);

/// What an application wants.
#[derive(Debug)]
pub enum Request {
    /// Bytes to send.
    Send {
        /// To whom, and how.
        wish: Box<SendWish>,
        /// The bytes, and the way back for the outcome.
        stream: UnixStream,
    },
    /// What is going on: to be answered with a line of JSON.
    Sessions {
        /// The way back.
        stream: UnixStream,
    },
    /// The next stream that comes.
    Receive {
        /// Which, and how.
        wish: ReceiveWish,
        /// Where it goes.
        stream: UnixStream,
    },
}

/// Why there is no door.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Another agent has it.
    #[error("another agent listens at {0}")]
    Taken(PathBuf),
    /// The system refuses.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// A socket that applications connect to; only this user's may.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    requests: Receiver<Request>,
}

impl Door {
    /// Opens it. A socket that a dead agent has left is replaced.
    ///
    /// # Errors
    /// See [`DoorError`].
    pub fn open(path: &Path, waker: Waker) -> Result<Self, DoorError> {
        let failed = |source| DoorError::Listen { path: path.to_owned(), source };
        if UnixStream::connect(path).is_ok() {
            return Err(DoorError::Taken(path.to_owned()));
        }
        if path
            .symlink_metadata()
            .is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()))
        {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
        let (send, requests) = channel();
        let builder = std::thread::Builder::new().name("cast door".into());
        let thread = builder.spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // No file left to open, most likely: trying again at once would only keep a core busy.
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "a thread that waits for the system"
                    )]
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                };
                let (send, waker) = (send.clone(), waker.clone());
                let builder = std::thread::Builder::new().name("cast greeting".into());
                // Who can't be greeted sees a closed connection.
                let _ = builder.spawn(move || greet(stream, &send, &waker));
            }
        });
        thread.map_err(failed)?;
        Ok(Self { path: path.to_owned(), requests })
    }

    /// What an application wants.
    #[must_use]
    pub fn poll(&self) -> Option<Request> {
        self.requests.try_recv().ok()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Left over, it is replaced the next time.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn greet(mut stream: UnixStream, send: &Sender<Request>, waker: &Waker) {
    let request = match first_line(&mut stream) {
        Ok(line) => parse(&line),
        Err(error) => Err(error.to_string()),
    };
    let request = match request {
        Ok(Wanted::Send(wish)) => Request::Send { wish, stream },
        Ok(Wanted::Receive(wish)) => Request::Receive { wish, stream },
        Ok(Wanted::Sessions) => Request::Sessions { stream },
        Err(error) => return answer(&mut stream, &serde_json::json!({ "error": error })),
    };
    let _ = send.send(request);
    waker.wake();
}

/// Whether an application has gone altogether (one that only has nothing more to say is there).
#[must_use]
pub fn has_left(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).is_ok()
        && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Tells an application the outcome, the last that it hears: what it still writes fails, it is not waited for.
pub fn dismiss(stream: &mut UnixStream, document: &Value) {
    answer(stream, document);
    // Who has gone need not be sent away.
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

/// Tells an application the outcome.
pub fn answer(stream: &mut UnixStream, document: &Value) {
    // Who has gone does not want to know.
    let _ = stream.set_write_timeout(Some(GREETING));
    let _ = stream.write_all(format!("{document}\n").as_bytes());
}

/// Byte by byte: what follows the line is not ours.
fn first_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(GREETING))?;
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
            if let Ok(Wanted::Send(wish)) = parse(&line) {
                prop_assert!(wish.to.len() == 1 && wish.name == name);
                prop_assert!(check_path(wish.name.as_bytes()).is_ok());
            }
            let at = at.index(line.len());
            line.splice(at..at, letters.into_bytes());
            if let Ok(Wanted::Send(wish)) = parse(&line) {
                prop_assert!(!wish.to.is_empty() && check_path(wish.name.as_bytes()).is_ok());
            }
            let _ = parse(&bytes);
        }
    }

    #[test]
    fn a_first_line_that_does_not_end_is_not_kept() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            // Until it is hung up.
            while theirs.write_all(&[b'{'; 4096]).is_ok() {}
        });
        let error = first_line(&mut ours).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        drop(ours);
        writer.join().unwrap();
    }

    #[test]
    fn a_door_is_one_agents_and_says_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door");
        let waker = Waker::new().unwrap();
        let door = Door::open(&path, waker.clone()).unwrap();
        assert!(matches!(Door::open(&path, waker.clone()), Err(DoorError::Taken(_))));
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"nonsense\n").unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert!(said.starts_with("{\"error\":"), "{said}");
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"{\"send\": {\"to\": [\"127.0.0.1:9\"]}}\nbytes").unwrap();
        let request = loop {
            match door.poll() {
                Some(request) => break request,
                None => waker.wait_in_tests(),
            }
        };
        let Request::Send { mut stream, wish } = request else { panic!("{request:?}") };
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!((&bytes, wish.name.as_str()), (b"bytes", "stream"));
    }

    #[test]
    fn who_has_gone_is_told_from_who_is_silent() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_left(&ours));
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!has_left(&ours));
        drop(theirs);
        assert!(has_left(&ours));
    }

    #[test]
    fn who_is_dismissed_can_write_no_more() {
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

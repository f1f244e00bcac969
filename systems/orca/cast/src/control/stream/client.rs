//! An application's ends of streams.

use std::io::{self, Read as _, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::{
    ALIVE_EVERY, BUSY, COMPLETE, CUT, MAX_BLOCK, MORE, SKIP, WRONG, error_text, has, name_of,
    read_line,
};
use crate::sink::{Sink, SinkError};
use crate::store::Cancel;

/// Work that has not checked for its end for this many intervals of [`ALIVE_EVERY`] (5 min) does not go on, and is not called alive any more.
/// A system that writes much to a slow disk lets a sync wait for minutes.
const STUCK_AFTER: u32 = 300;

/// A stream that an agent offers to an application.
#[derive(Debug)]
pub struct Offered {
    /// The identity of its content.
    pub stream: u128,
    /// The address of its sender.
    pub from: SocketAddr,
    socket: UnixStream,
}

/// Waits until the agent offers a stream on a connection that has sent a [`ReceiveRequest`](crate::control::ReceiveRequest). The
/// inner `Err` is the agent's reason for refusing the request.
///
/// # Errors
/// If the agent closes the connection or violates the protocol.
pub fn wait(socket: UnixStream) -> io::Result<Result<Offered, String>> {
    let offer = read_line(&socket)?;
    if offer.get("error").is_some() {
        return Ok(Err(error_text(&offer)));
    }
    let stream = offer.get("stream").and_then(Value::as_str);
    let stream = stream.and_then(|text| u128::from_str_radix(text, 16).ok());
    let from = offer.get("from").and_then(Value::as_str).and_then(|text| text.parse().ok());
    match (stream, from) {
        (Some(stream), Some(from)) => Ok(Ok(Offered { stream, from, socket })),
        _ => Err(io::Error::other("the agent's answer is not understood")),
    }
}

/// Why a stream from an agent is not complete.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The application's own sink has failed.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The agent says why the stream has ended early.
    #[error("{why}")]
    Cut {
        /// The reason.
        why: String,
        /// Whether the sender says nothing any more, so that it may have been killed and be started again.
        is_silent: bool,
    },
    /// The agent closed the connection, or violated the protocol.
    #[error(
        "the agent of this host closed the connection before the stream was complete; partial files are kept, and the same `cast send` \
         resumes from there"
    )]
    Closed,
}

/// What a thread writes while the application works.
#[derive(Debug)]
struct Work {
    /// What shows that it is at work; `None` while it waits for the agent.
    busy: Option<&'static [u8]>,
    /// The value of [`Cancel::checks`] at the last look, and the number of looks since it last changed.
    progress: (u64, u32),
    has_ended: bool,
}

/// Shows the agent that this application is at work, from a thread that waits for nothing else.
struct Alive {
    shared: Arc<(Mutex<Work>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Alive {
    fn start(socket: &UnixStream, cancel: &Arc<Mutex<Cancel>>) -> io::Result<Self> {
        let work = Work { busy: None, progress: (0, 0), has_ended: false };
        let shared = Arc::new((Mutex::new(work), Condvar::new()));
        let (ours, socket, cancel) = (Arc::clone(&shared), socket.try_clone()?, Arc::clone(cancel));
        let builder = std::thread::Builder::new().name("cast alive".into());
        let thread = builder.spawn(move || show(&ours, &socket, &cancel))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Begins or ends work. After its end the thread writes nothing.
    fn set(&self, busy: Option<&'static [u8]>) {
        let mut work = lock(&self.shared.0);
        (work.busy, work.progress) = (busy, (0, 0));
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        lock(&self.shared.0).has_ended = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}

fn is_readable(socket: &UnixStream) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && !fds[0].revents().is_empty()
}

fn show(shared: &(Mutex<Work>, Condvar), mut socket: &UnixStream, cancel: &Mutex<Cancel>) {
    let mut work = lock(&shared.0);
    while !work.has_ended {
        let waited = shared.1.wait_timeout(work, ALIVE_EVERY);
        let waited = waited.unwrap_or_else(PoisonError::into_inner);
        work = waited.0;
        if !waited.1.timed_out() {
            continue;
        }
        let Some(text) = work.busy else { continue };
        let cancel = cancel.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let checks = cancel.checks();
        let looks = if work.progress.0 == checks { work.progress.1 + 1 } else { 0 };
        work.progress = (checks, looks);
        // While the application works the agent writes nothing but that the stream is cut off.
        let is_cut = is_readable(socket);
        if is_cut || looks < STUCK_AFTER && socket.write_all(text).is_err() {
            cancel.set();
        }
    }
}

/// Why an attempt at a stream has ended.
enum Ended {
    /// Another offer follows on the connection.
    Again,
    Failed(ReceiveError),
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Failed(ReceiveError::Closed)
    }
}

/// Receives an offered stream into the sink that `make` creates for it, and returns the sink when the stream is complete. If the stream
/// begins again, `make` is called for the next offer, which is then in `offered`: the work that it does ends if its argument is set.
///
/// # Errors
/// See [`ReceiveError`]. The agent is informed of the error.
pub fn receive(
    offered: &mut Offered,
    mut make: impl FnMut(u128, &Cancel) -> Result<Box<dyn Sink>, SinkError>,
) -> Result<Box<dyn Sink>, ReceiveError> {
    let closed = |_| ReceiveError::Closed;
    let current = Arc::new(Mutex::new(Cancel::never()));
    let alive = Alive::start(&offered.socket, &current).map_err(closed)?;
    loop {
        let cancel = Cancel::new();
        *current.lock().unwrap_or_else(PoisonError::into_inner) = cancel.clone();
        match attempt(offered, &alive, &cancel, &mut make) {
            Ok(sink) => return Ok(sink),
            Err(Ended::Failed(error)) => return Err(error),
            Err(Ended::Again) => {}
        }
        let socket = offered.socket.try_clone().map_err(closed)?;
        match wait(socket).map_err(closed)? {
            Ok(next) => *offered = next,
            Err(why) => return Err(ReceiveError::Cut { why, is_silent: false }),
        }
    }
}

/// Reports a sink's error to the agent, and returns what follows for the application.
fn report(mut socket: &UnixStream, front: &str, error: SinkError, cancel: &Cancel) -> Ended {
    let again = matches!(error, SinkError::Again(_));
    // The path alone: the sentence about it is that of the error.
    let text = match &error {
        SinkError::Again(path) => path.to_string_lossy().into_owned(),
        other => other.to_string(),
    };
    let line = json!({
        "error": text, "again": again, "damaged": error.is_damage(), "reason": name_of(error.reason()),
    });
    if socket.write_all(format!("{front}{line}\n").as_bytes()).is_err() {
        return Ended::Failed(ReceiveError::Closed);
    }
    if again {
        return Ended::Again;
    }
    // It has ended because the stream was cut off, which the agent explains.
    match cancel.is_set() {
        true => cut(socket).unwrap_or_else(|_| Ended::Failed(error.into())),
        false => Ended::Failed(error.into()),
    }
}

/// Reads why the stream was cut off.
fn cut(mut socket: &UnixStream) -> io::Result<Ended> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    match u32::from_be_bytes(length) {
        CUT => why_cut(socket),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn why_cut(socket: &UnixStream) -> io::Result<Ended> {
    let why = read_line(socket)?;
    Ok(match has(&why, "again") {
        true => Ended::Again,
        false => {
            let (is_silent, why) = (has(&why, "silent"), error_text(&why));
            Ended::Failed(ReceiveError::Cut { why, is_silent })
        }
    })
}

fn attempt(
    offered: &Offered,
    alive: &Alive,
    cancel: &Cancel,
    make: &mut impl FnMut(u128, &Cancel) -> Result<Box<dyn Sink>, SinkError>,
) -> Result<Box<dyn Sink>, Ended> {
    let mut socket = &offered.socket;
    alive.set(Some(b"{\"preparing\":true}\n"));
    let made = make(offered.stream, cancel);
    alive.set(None);
    let mut sink = made.map_err(|error| report(socket, "", error, cancel))?;
    socket.write_all(format!("{}\n", json!({ "at": sink.begins_at() })).as_bytes())?;
    let mut block = Vec::new();
    loop {
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        let length = match u32::from_be_bytes(length) {
            CUT => {
                // Its files are unlocked before the next offer.
                drop(sink);
                return Err(why_cut(socket)?);
            }
            0 => {
                sink.omit_rest();
                continue;
            }
            length => length as usize,
        };
        if length > MAX_BLOCK {
            return Err(Ended::Failed(ReceiveError::Closed));
        }
        block.resize(length, 0);
        socket.read_exact(&mut block)?;
        alive.set(Some(&[BUSY]));
        let result = sink.put(&block);
        alive.set(None);
        if let Err(error) = result {
            drop(sink);
            let front = (WRONG as char).to_string();
            return Err(report(socket, &front, error, cancel));
        }
        if sink.is_complete() {
            // The files are complete even if the agent has closed the connection in the meantime.
            let _ = socket.write_all(&[COMPLETE]);
            return Ok(sink);
        }
        match sink.needs_from() {
            Some(offset) => {
                let mut answer = vec![SKIP];
                answer.extend_from_slice(&offset.to_be_bytes());
                socket.write_all(&answer)?;
            }
            None => socket.write_all(&[MORE])?,
        }
    }
}

/// Reads the content of a file that an agent writes in blocks, to its end. Returns the number of bytes, or the agent's reason why the
/// stream was cut off.
///
/// # Errors
/// If the connection ends before the agent has said how the stream ended, or if `out` cannot be written.
pub fn read_stream(
    mut socket: &UnixStream,
    out: &mut impl Write,
) -> io::Result<Result<u64, String>> {
    let mut block = Vec::new();
    loop {
        let mut length = [0; 4];
        socket.read_exact(&mut length)?;
        match u32::from_be_bytes(length) {
            0 | CUT => break,
            length if length as usize > MAX_BLOCK => {
                return Err(io::Error::other("a block is longer than 16 MiB"));
            }
            length => block.resize(length as usize, 0),
        }
        socket.read_exact(&mut block)?;
        out.write_all(&block)?;
    }
    let status = read_line(socket)?;
    Ok(match has(&status, "complete") {
        true => Ok(status.get("bytes").and_then(Value::as_u64).unwrap_or(0)),
        false => Err(error_text(&status)),
    })
}

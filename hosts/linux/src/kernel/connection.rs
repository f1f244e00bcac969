//! One connection: its socket, the queue of frames to be written, and the decoder of incoming bytes.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::IpAddr;

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Time};
use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;
use socket2::Socket;

use super::decoder::Decoder;
use super::framing::{Frame, HEADER_BYTES};

/// The most vectors of one call to write.
const VECTORS: usize = 64;

/// The most bytes of one call to write: bytes that the kernel has accepted cannot be cancelled.
const WRITE_BYTES: usize = 256 << 10;

/// What a queued frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Control,
    Message(MessageId, Kind),
    Stream(MessageId),
}

/// A queued frame.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) of: Owner,
    head: [u8; HEADER_BYTES],
    pub(super) body: Bytes,
    /// Bytes of header and body that are written.
    done: usize,
}

impl Waiting {
    const fn len(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    pub(super) const fn is_begun(&self) -> bool {
        self.done > 0
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Open,
    /// The queue is written, then the connection ends, at this time at the latest.
    Closing(Time),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) token: u64,
    /// The peer, once it is identified.
    pub(super) peer: Option<HostId>,
    /// Whether this host has made the connection.
    pub(super) ours: bool,
    /// The party that has made it, and whether that is a configured peer.
    pub(super) from: Option<(IpAddr, bool)>,
    pub(super) phase: Phase,
    /// Whether the peer's HELLO has arrived.
    pub(super) greeted: bool,
    pub(super) began: Time,
    /// When it was last readable, or writable after it was not, since its HELLO; before that when it began.
    pub(super) active: Time,
    pub(super) decoder: Decoder,
    /// Bytes that were read and not decoded yet.
    pub(super) rest: Vec<u8>,
    pub(super) interest: EventFlags,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// Messages and streams that fail if the connection does, by the request's id, except responses that this host sends.
    pub(super) exchanges: BTreeSet<MessageId>,
    /// The stream that uses the connection exclusively.
    pub(super) stream: Option<MessageId>,
    /// Received messages that are to be confirmed with the next write.
    pub(super) confirm: Vec<MessageId>,
    /// Whether this host's side is shut down.
    shut: bool,
}

/// The result of one call to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadResult {
    /// Bytes read into [`Decoder::place`].
    pub(super) placed: usize,
    /// Bytes read into the scratch buffer.
    pub(super) staged: usize,
    /// Whether there may be more.
    pub(super) more: bool,
}

impl Connection {
    pub(super) fn new(socket: Socket, token: u64, now: Time, max_message: u64) -> Self {
        Self {
            socket,
            token,
            peer: None,
            ours: false,
            from: None,
            phase: Phase::Open,
            greeted: false,
            began: now,
            active: now,
            decoder: Decoder::new(max_message),
            rest: Vec::new(),
            interest: EventFlags::IN,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            exchanges: BTreeSet::new(),
            stream: None,
            confirm: Vec::new(),
            shut: false,
        }
    }

    /// The length of the queue in bytes.
    pub(super) const fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the connection is unused.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && self.stream.is_none()
            && self.exchanges.is_empty()
            && self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, of: Owner, frame: Frame, body: Bytes) {
        let waiting = Waiting { of, head: frame.encode(), body, done: 0 };
        self.waiting_bytes += waiting.len() as u64;
        self.waiting.push_back(waiting);
    }

    pub(super) fn control(&mut self, frame: Frame) {
        self.push(Owner::Control, frame, Bytes::new());
    }

    /// Removes the queued frames that `which` selects, except one that is partly written.
    pub(super) fn withdraw(&mut self, which: impl Fn(Owner) -> bool) -> Vec<Waiting> {
        let mut out = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            if !waiting.is_begun() && which(waiting.of) {
                self.waiting_bytes -= waiting.len() as u64;
                out.push(waiting);
            } else {
                self.waiting.push_back(waiting);
            }
        }
        out
    }

    /// Removes all queued frames.
    pub(super) fn withdraw_all(&mut self) -> VecDeque<Waiting> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Whether the only queued frame is one of this owner.
    pub(super) fn writes_only(&self, of: Owner) -> bool {
        self.waiting.len() == 1 && self.waiting[0].of == of
    }

    /// Writes queued frames by one call; passes completely written ones to `done`.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(super) fn write(&mut self, mut done: impl FnMut(Waiting)) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut written = self.write_some()?;
        self.waiting_bytes -= written as u64;
        while let Some(first) = self.waiting.front_mut() {
            let step = written.min(first.len() - first.done);
            first.done += step;
            written -= step;
            if first.done < first.len() {
                break;
            }
            self.waiting.pop_front().into_iter().for_each(&mut done);
        }
        Ok(())
    }

    /// Makes one call to write; returns how many bytes it has written.
    fn write_some(&self) -> io::Result<usize> {
        let mut vectors: SmallVec<[IoSlice<'_>; VECTORS]> = SmallVec::new();
        let mut room = WRITE_BYTES;
        for waiting in &self.waiting {
            let body_done = waiting.done.saturating_sub(HEADER_BYTES);
            let head = &waiting.head[waiting.done.min(HEADER_BYTES)..];
            for piece in [head, &waiting.body[body_done..]] {
                let piece = &piece[..piece.len().min(room)];
                if !piece.is_empty() {
                    room -= piece.len();
                    vectors.push(IoSlice::new(piece));
                }
            }
            if room == 0 || vectors.len() + 2 > VECTORS {
                break;
            }
        }
        match (&self.socket).write_vectored(&vectors) {
            Err(error) if would_block(&error) => Ok(0),
            result => result,
        }
    }

    /// Makes one call to read: first into the message that is being received, then into `scratch`. Returns `None` if the
    /// other end has closed the connection.
    ///
    /// # Errors
    /// If the connection has failed.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<Option<ReadResult>> {
        let place = self.decoder.place();
        let (wanted, space) = (place.len(), scratch.len());
        let mut vectors = [IoSliceMut::new(place), IoSliceMut::new(scratch)];
        let vectors = if wanted == 0 { &mut vectors[1..] } else { &mut vectors[..] };
        match (&self.socket).read_vectored(vectors) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(ReadResult {
                placed: count.min(wanted),
                staged: count.saturating_sub(wanted),
                more: count == wanted + space,
            })),
            Err(error) if would_block(&error) => {
                Ok(Some(ReadResult { placed: 0, staged: 0, more: false }))
            }
            Err(error) => Err(error),
        }
    }

    /// The error of the socket, if there is one.
    pub(super) fn error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    /// Shuts this host's side down once the queue of a closing connection is written.
    pub(super) fn shut_if_written(&mut self) {
        if matches!(self.phase, Phase::Closing(_)) && self.waiting.is_empty() && !self.shut {
            self.shut = true;
            let _ = self.socket.shutdown(std::net::Shutdown::Write);
        }
    }
}

/// Whether a call is to be repeated later.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

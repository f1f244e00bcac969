//! One connection: its socket, what waits to be written, what has begun to arrive.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use bytes::Bytes;
use rackweave_core::{HostId, Kind, MessageId, Time};
use rustix::event::epoll::EventFlags;
use smallvec::SmallVec;
use socket2::Socket;

use super::decoder::Decoder;
use super::framing::{Frame, HEADER_BYTES};

/// Vectors of one call to write.
const VECTORS: usize = 64;

/// Most bytes of one call to write: what the kernel has taken can't be taken back.
const WRITE_BYTES: usize = 256 << 10;

/// What a frame that waits belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Control,
    Message(MessageId, Kind),
    Stream(MessageId),
}

/// A frame that waits to be written.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) of: Of,
    head: [u8; HEADER_BYTES],
    pub(super) body: Bytes,
    /// Bytes of both that are written.
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

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Open,
    /// All is given up; what is queued is written, then it ends, at the latest by then.
    Closing(Time),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) token: u64,
    /// Who is at the other end, once it has said it.
    pub(super) peer: Option<HostId>,
    /// This host made it.
    pub(super) ours: bool,
    pub(super) phase: Phase,
    /// The other end has said hello.
    pub(super) greeted: bool,
    pub(super) began: Time,
    pub(super) decoder: Decoder,
    /// What was read and not taken yet.
    pub(super) rest: Vec<u8>,
    pub(super) interest: EventFlags,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// Messages and streams that end if it does; both are named by the request's id, but for
    /// responses that this host sends.
    pub(super) exchanges: BTreeSet<MessageId>,
    /// The stream that has it alone.
    pub(super) stream: Option<MessageId>,
    /// What has arrived and is to be confirmed with the next write.
    pub(super) confirm: Vec<MessageId>,
    /// Our side is shut.
    shut: bool,
}

/// What one call to read has brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    /// Bytes at the decoder's place.
    pub(super) placed: usize,
    /// Bytes in the scratch buffer.
    pub(super) staged: usize,
    /// There may be more.
    pub(super) more: bool,
}

impl Connection {
    pub(super) fn new(socket: Socket, token: u64, now: Time, max_message: u64) -> Self {
        Self {
            socket,
            token,
            peer: None,
            ours: false,
            phase: Phase::Open,
            greeted: false,
            began: now,
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

    /// Bytes that wait to be written.
    pub(super) const fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a message or stream can have it at once.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Open
            && self.stream.is_none()
            && self.exchanges.is_empty()
            && self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, of: Of, frame: Frame, body: Bytes) {
        let waiting = Waiting { of, head: frame.encode(), body, done: 0 };
        self.waiting_bytes += waiting.len() as u64;
        self.waiting.push_back(waiting);
    }

    pub(super) fn control(&mut self, frame: Frame) {
        self.push(Of::Control, frame, Bytes::new());
    }

    /// Takes out what waits and is not begun, of those that `which` wants.
    pub(super) fn withdraw(&mut self, which: impl Fn(Of) -> bool) -> Vec<Waiting> {
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

    /// Takes out all that waits, begun or not.
    pub(super) fn withdraw_all(&mut self) -> VecDeque<Waiting> {
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Whether it still writes a frame of this, and nothing else waits.
    pub(super) fn writes_only(&self, of: Of) -> bool {
        self.waiting.len() == 1 && self.waiting[0].of == of
    }

    /// Writes what waits, one call's worth; what was written whole goes to `done`.
    ///
    /// # Errors
    /// What the system says, "no room" apart.
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

    /// One call; how many bytes it has written.
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

    /// Reads once: first what the message in the making lacks, to its place, then into `scratch`. `None`:
    /// the other end has ended.
    ///
    /// # Errors
    /// What the system says, "nothing there" apart.
    pub(super) fn read(&mut self, scratch: &mut [u8]) -> io::Result<Option<Brought>> {
        let place = self.decoder.place();
        let (wanted, space) = (place.len(), scratch.len());
        let mut vectors = [IoSliceMut::new(place), IoSliceMut::new(scratch)];
        let vectors = if wanted == 0 { &mut vectors[1..] } else { &mut vectors[..] };
        match (&self.socket).read_vectored(vectors) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(Brought {
                placed: count.min(wanted),
                staged: count.saturating_sub(wanted),
                more: count == wanted + space,
            })),
            Err(error) if would_block(&error) => {
                Ok(Some(Brought { placed: 0, staged: 0, more: false }))
            }
            Err(error) => Err(error),
        }
    }

    /// What the connection has failed with, if it has.
    pub(super) fn error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    /// Ends our side once all is written.
    pub(super) fn shut_if_written(&mut self) {
        if matches!(self.phase, Phase::Closing(_)) && self.waiting.is_empty() && !self.shut {
            self.shut = true;
            let _ = self.socket.shutdown(std::net::Shutdown::Write);
        }
    }
}

/// Whether a call is to be made again later.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

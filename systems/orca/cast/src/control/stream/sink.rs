//! The agent's ends of streams.

use std::io::{self, Read as _, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rackweave_wire::orca::Reason;
use serde_json::{Value, json};

use super::{
    BUSY, COMPLETE, CUT, MAX_BLOCK, MAX_LINE, MORE, SKIP, WRONG, error_text, has, reason_of,
    write_block,
};
use crate::orca::why_receiving_failed;
use crate::sink::{PipeSink, Sink, SinkError};
use crate::store::{Cancel, StoreError};

/// How long the agent waits for an application to close its end, so that the next application does not find its files
/// locked.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the agent looks whether an answer is still needed, while it waits for one.
const POLL: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 500 });

/// An application that writes nothing for this many intervals of [`POLL`] (30 s) does not respond. Its [`Busy`](super::BUSY) comes from a
/// thread that does nothing else, so that neither a slow disk nor a busy processor delays it for as long.
const ANSWER_POLLS: u32 = 60;

/// After this many intervals of [`POLL`] for one block (5 s) an application learns that the stream has ended: it does not write the block,
/// but hashes a file that it has.
const CUT_POLLS: u32 = 10;

/// Takes the connection of an application that waits for the next offer.
pub type GiveBack = Box<dyn FnOnce(UnixStream) + Send>;

/// The agent's end of a stream of records.
pub struct StreamSink {
    /// The connection; `None` once it was given back.
    stream: Option<UnixStream>,
    give_back: Option<GiveBack>,
    cancel: Cancel,
    begins_at: u64,
    needs_from: Option<u64>,
    complete: bool,
    /// Whether the application waits for another offer, if it was told that the stream was cut off.
    cut: Option<bool>,
}

impl std::fmt::Debug for StreamSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamSink").field("complete", &self.complete).finish_non_exhaustive()
    }
}

/// What an application answers to a block.
enum Answer {
    More,
    Complete,
    Failed(SinkError),
}

impl StreamSink {
    /// Offers a stream to the application at the other end of a connection. `give_back` gets the connection when the application waits for
    /// another offer; `cancel` ends the waiting for its answer.
    ///
    /// # Errors
    /// If it has closed the connection, does not answer, or refuses the stream.
    pub fn new(
        stream: UnixStream,
        number: u128,
        from: SocketAddr,
        cancel: &Cancel,
        give_back: GiveBack,
    ) -> Result<Self, SinkError> {
        stream.set_read_timeout(Some(POLL)).map_err(SinkError::Pipe)?;
        stream.set_write_timeout(Some(POLL * ANSWER_POLLS)).map_err(SinkError::Pipe)?;
        let mut this = Self {
            stream: Some(stream),
            give_back: Some(give_back),
            cancel: cancel.clone(),
            begins_at: 0,
            needs_from: None,
            complete: false,
            cut: None,
        };
        let offer = json!({ "stream": format!("{number:032x}"), "from": from.to_string() });
        this.write(format!("{offer}\n").as_bytes())?;
        let answer = loop {
            let answer = this.read_line(0)?;
            if !has(&answer, "preparing") {
                break answer;
            }
        };
        this.check_cut()?;
        match answer.get("at").and_then(Value::as_u64) {
            Some(begins_at) => this.begins_at = begins_at,
            None => return Err(this.failed(&answer)),
        }
        Ok(this)
    }

    fn socket(&self) -> Result<&UnixStream, SinkError> {
        self.stream.as_ref().ok_or_else(|| SinkError::Pipe(io::ErrorKind::NotConnected.into()))
    }

    fn write(&self, bytes: &[u8]) -> Result<(), SinkError> {
        let mut socket = self.socket()?;
        socket.write_all(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SinkError::NoAnswer,
            _ => SinkError::Pipe(error),
        })
    }

    /// Reads a byte. If the transfer has ended after `patience` intervals without one, the application learns that, and
    /// still has to answer.
    fn read_byte(&mut self, patience: u32) -> Result<u8, SinkError> {
        let mut byte = [0];
        for polls in 1..=ANSWER_POLLS {
            match self.socket()?.read(&mut byte) {
                Ok(0) => return Err(SinkError::Pipe(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => return Ok(byte[0]),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(SinkError::Pipe(error)),
                },
            }
            // An application that prepares is at the beginning of the stream, and may go on with another one.
            if polls >= patience && self.cancel.is_set() {
                let again = patience == 0 || self.cancel.begins_again();
                self.cut("the transfer has ended", again, false);
            }
        }
        Err(SinkError::NoAnswer)
    }

    fn read_line(&mut self, patience: u32) -> Result<Value, SinkError> {
        let mut line = Vec::new();
        loop {
            match self.read_byte(patience)? {
                b'\n' => break,
                byte if (line.len() as u64) < MAX_LINE => line.push(byte),
                _ => return Err(SinkError::application("its answer is too long")),
            }
        }
        serde_json::from_slice(&line)
            .map_err(|_| SinkError::application("its answer makes no sense"))
    }

    /// Tells the application, once, that no more comes.
    fn cut(&mut self, why: &str, again: bool, silent: bool) {
        if self.cut.is_some() {
            return;
        }
        self.cut = Some(again);
        let mut bytes = CUT.to_be_bytes().to_vec();
        bytes.extend_from_slice(
            format!("{}\n", json!({ "error": why, "again": again, "silent": silent })).as_bytes(),
        );
        // If it has gone, there is nobody to be told.
        let _ = self.write(&bytes);
    }

    /// Fails if the stream was cut off.
    fn check_cut(&mut self) -> Result<(), SinkError> {
        let Some(again) = self.cut else { return Ok(()) };
        if again {
            self.release();
        }
        Err(StoreError::Cancelled("the application's files".into()).into())
    }

    /// Gives the connection back: the application waits for the next offer.
    fn release(&mut self) {
        if let (Some(stream), Some(give_back)) = (self.stream.take(), self.give_back.take()) {
            give_back(stream);
        }
    }

    /// Converts an application's error.
    fn failed(&mut self, answer: &Value) -> SinkError {
        if let Err(error) = self.check_cut() {
            return error;
        }
        let text = error_text(answer);
        if has(answer, "again") {
            self.release();
            return SinkError::Again(text.into());
        }
        if has(answer, "damaged") {
            return SinkError::Damaged(text);
        }
        let reason = answer.get("reason").and_then(Value::as_str).and_then(reason_of);
        SinkError::Application { why: text, reason: reason.unwrap_or(Reason::Refused) }
    }

    fn answer(&mut self) -> Result<Answer, SinkError> {
        let mut patience = CUT_POLLS;
        loop {
            match self.read_byte(patience)? {
                // It writes this every second.
                BUSY => {
                    patience = patience.saturating_sub(2).max(1);
                }
                MORE => return Ok(Answer::More),
                SKIP => {
                    let mut offset = 0;
                    for _ in 0..8 {
                        offset = offset << 8 | u64::from(self.read_byte(ANSWER_POLLS)?);
                    }
                    self.needs_from = Some(offset);
                    return Ok(Answer::More);
                }
                COMPLETE => return Ok(Answer::Complete),
                WRONG => {
                    let why = self.read_line(ANSWER_POLLS)?;
                    return Ok(Answer::Failed(self.failed(&why)));
                }
                _ => {
                    let error = SinkError::application("its answer makes no sense");
                    return Ok(Answer::Failed(error));
                }
            }
        }
    }

    fn put_block(&mut self, block: &[u8]) -> Result<(), SinkError> {
        self.check_cut()?;
        let length = (block.len() as u32).to_be_bytes();
        self.write(&length)?;
        self.write(block)?;
        self.needs_from = None;
        match self.answer()? {
            Answer::More => Ok(()),
            Answer::Complete => {
                self.complete = true;
                Ok(())
            }
            Answer::Failed(error) => Err(error),
        }
    }
}

impl Drop for StreamSink {
    fn drop(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        // If the application has closed the connection, reading ends immediately.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.set_read_timeout(Some(CLOSE_TIMEOUT));
        let mut rest = [0; 64];
        while matches!(stream.read(&mut rest), Ok(1..)) {}
    }
}

impl Sink for StreamSink {
    fn begins_at(&self) -> u64 {
        self.begins_at
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        bytes.chunks(MAX_BLOCK).try_for_each(|block| self.put_block(block))
    }

    fn needs_from(&self) -> Option<u64> {
        self.needs_from
    }

    fn omit_rest(&mut self) {
        // An error is found by the next block.
        let _ = self.write(&[0; 4]);
        self.needs_from = None;
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn interrupted(&mut self, reason: Reason) {
        if self.complete || self.stream.is_none() {
            return;
        }
        // A sender that was started again sends the same stream once more.
        let is_silent = reason == Reason::Silent;
        self.cut(why_receiving_failed(reason), self.cancel.begins_again(), is_silent);
        let _ = self.check_cut();
    }
}

/// Writes the content of the only file of a stream to an application, in blocks with an end that differs from that of a stream that was cut
/// off.
pub struct BlockSink {
    pipe: PipeSink<BlockWriter>,
    stream: UnixStream,
    has_ended: bool,
}

impl std::fmt::Debug for BlockSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockSink").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}

/// Frames each piece as a block.
struct BlockWriter(UnixStream);

impl Write for BlockWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !bytes.is_empty() {
            write_block(&mut self.0, bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BlockSink {
    /// Writes to the application at the other end of a connection.
    ///
    /// # Errors
    /// If the system refuses a second handle of the connection.
    pub fn new(stream: UnixStream) -> Result<Self, SinkError> {
        let pipe = PipeSink::new(BlockWriter(stream.try_clone().map_err(SinkError::Pipe)?));
        Ok(Self { pipe, stream, has_ended: false })
    }

    /// Writes the end of the stream and what it was: complete, or cut off for this reason.
    fn end(&mut self, error: Option<&str>) -> io::Result<()> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        let (bytes, _) = self.pipe.content();
        let line = json!({ "complete": error.is_none(), "bytes": bytes, "error": error });
        let mut end = if error.is_some() { CUT } else { 0 }.to_be_bytes().to_vec();
        end.extend_from_slice(format!("{line}\n").as_bytes());
        self.stream.write_all(&end)
    }

    /// Says that the stream was cut off. An application that does not read is not waited for.
    fn cut(&mut self, why: &str) {
        let _ = self.stream.set_write_timeout(Some(CLOSE_TIMEOUT));
        // If it has gone, there is nobody to be told.
        let _ = self.end(Some(why));
    }
}

impl Sink for BlockSink {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.put_shared(&bytes::Bytes::copy_from_slice(bytes))
    }

    fn put_shared(&mut self, bytes: &bytes::Bytes) -> Result<(), SinkError> {
        if let Err(error) = self.pipe.put_shared(bytes) {
            // After a block that was not written whole there is nothing to be said.
            if !matches!(error, SinkError::Pipe(_)) {
                self.cut(&error.to_string());
            }
            return Err(error);
        }
        if self.pipe.is_complete() {
            self.end(None).map_err(SinkError::Pipe)?;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.pipe.is_complete() && self.has_ended
    }

    fn content(&self) -> (u64, Option<u64>) {
        self.pipe.content()
    }

    fn interrupted(&mut self, reason: Reason) {
        if !self.is_complete() {
            self.cut(why_receiving_failed(reason));
        }
    }
}

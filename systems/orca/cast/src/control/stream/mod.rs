//! Streams over a control socket: the agent's end is a [`Sink`](crate::sink::Sink), the application's end [`receive`] or [`read_stream`].
//!
//! **The content of one file** ([`BlockSink`]): blocks, each preceded by its length in 4 bytes (big-endian). A length of 0 is the end of the
//! stream, and 2^32 - 1 says that it was cut off. After either comes a line of JSON, `{"complete": true, "bytes": N, "error": null}` or
//! `{"complete": false, "bytes": N, "error": "..."}`. A connection that ends without it has lost its agent.
//!
//! **A whole stream of records** ([`StreamSink`]): the agent writes a line of JSON, `{"stream": "...", "from": "ADDR:PORT"}`. The application
//! answers `{"at": N}`, the offset of the first byte that it needs, or `{"error": "..."}`. Then the agent sends blocks as above, and the
//! application answers each with one byte:
//!
//! | byte | |
//! |---|---|
//! | `+` | more |
//! | `>` | more, from an offset on that follows in 8 bytes: the application has what is before it. The agent may omit the rest of that, and then sends a block of length 0 |
//! | `=` | the stream is complete |
//! | `-` | an error, which follows as a line of JSON |
//! | `.` | the application is still at work on the block; at least every 2 s |
//!
//! Until it answers an offer, it writes `{"preparing": true}` as often. An application that writes nothing for 30 s is given up
//! ([`SinkError::NoAnswer`](crate::sink::SinkError::NoAnswer)).
//!
//! `{"error": "...", "again": true}` from the application says that it needs the stream again, from another place on, and waits for the next
//! offer on the same connection; `"damaged": true`, that it has other bytes than were sent; `"reason": "exists"` or `"full"`, that another
//! file has a name of the stream's, or that the disk is full, which the sender learns. The agent cuts a stream off by the length 2^32 - 1
//! and a line `{"error": "..."}`, with `"silent": true` if the sender says nothing any more, also while the application is at work. With `"again": true` the stream begins again, or nothing of it
//! was sent: the application answers what it is asked, and waits for the next offer. The sender therefore sees a receiver as complete only
//! once the application is, and learns of errors what it would learn from a receiver without an agent.

mod client;
mod sink;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rackweave_wire::orca::Reason;
use serde_json::Value;

pub use self::client::{Offered, ReceiveError, read_stream, receive, wait};
pub use self::sink::{BlockSink, GiveBack, StreamSink};

const MORE: u8 = b'+';
const SKIP: u8 = b'>';
const COMPLETE: u8 = b'=';
const WRONG: u8 = b'-';
const BUSY: u8 = b'.';

/// In place of a block's length: the stream was cut off, and a line of JSON says why.
const CUT: u32 = u32::MAX;

/// The longest block; a length above it is an error.
const MAX_BLOCK: usize = 1 << 24;

/// The longest line of JSON.
const MAX_LINE: u64 = 1 << 16;

/// The longest text of an error.
const MAX_ERROR: usize = 500;

/// How often an application shows that it is alive while it works.
const ALIVE_EVERY: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 1000 });

/// Writes a block of an outgoing stream, for [`Blocks`]. One without bytes ends the stream.
///
/// # Errors
/// If the agent has closed the connection.
pub fn write_block(socket: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for block in bytes.chunks(MAX_BLOCK) {
        socket.write_all(&(block.len() as u32).to_be_bytes())?;
        socket.write_all(block)?;
    }
    if bytes.is_empty() {
        socket.write_all(&[0; 4])?;
    }
    Ok(())
}

/// The bytes of a stream that comes in blocks, each preceded by its length in 4 bytes, until one of length 0. A connection that ends
/// before is an error: the application was killed.
#[derive(Debug)]
pub struct Blocks<R> {
    input: R,
    /// The bytes of the present block that are left, or its end.
    left: Option<usize>,
}

impl<R: Read> Blocks<R> {
    /// Reads from an application's connection.
    pub const fn new(input: R) -> Self {
        Self { input, left: Some(0) }
    }
}

impl<R: Read> Read for Blocks<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let cut = || {
            let why = "the application closed its connection before it had written all";
            io::Error::new(io::ErrorKind::UnexpectedEof, why)
        };
        let Some(left) = &mut self.left else { return Ok(0) };
        if *left == 0 {
            let mut length = [0; 4];
            self.input.read_exact(&mut length).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => cut(),
                _ => error,
            })?;
            *left = u32::from_be_bytes(length) as usize;
            if *left > MAX_BLOCK {
                return Err(io::Error::other("a block is longer than 16 MiB"));
            }
            if *left == 0 {
                self.left = None;
                return Ok(0);
            }
        }
        let most = out.len().min(*left);
        let read = self.input.read(&mut out[..most])?;
        if read == 0 && most > 0 {
            return Err(cut());
        }
        *left -= read;
        Ok(read)
    }
}

/// Reads a line of JSON and leaves everything after it unread.
fn read_line(stream: &UnixStream) -> io::Result<Value> {
    let mut line = Vec::new();
    // A larger buffer would also read bytes after the line.
    let mut reader = BufReader::with_capacity(1, stream).take(MAX_LINE);
    reader.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(Into::into)
}

/// Returns the text of an error that the other end has sent, bounded in length.
fn error_text(document: &Value) -> String {
    let text = document.get("error").and_then(Value::as_str).unwrap_or("no reason was given");
    text.chars().take(MAX_ERROR).collect()
}

/// The reasons of an application that its sender learns.
const REASONS: [(&str, Reason); 2] = [("exists", Reason::Exists), ("full", Reason::Full)];

/// Returns the name of a reason that a sender learns.
fn name_of(reason: Reason) -> Option<&'static str> {
    REASONS.iter().find(|it| it.1 == reason).map(|it| it.0)
}

fn reason_of(name: &str) -> Option<Reason> {
    REASONS.iter().find(|it| it.0 == name).map(|it| it.1)
}

/// Returns whether a document has this member, set to true.
fn has(document: &Value, key: &str) -> bool {
    document.get(key).and_then(Value::as_bool) == Some(true)
}

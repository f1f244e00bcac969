//! A whole stream of records over a control socket: the agent's end is a [`Sink`], the application's end is [`receive`].
//!
//! The agent writes a line of JSON, `{"stream": "...", "from": "ADDR:PORT"}`. The application answers `{"at": N}`, the
//! offset of the first byte that it needs, or `{"error": "..."}`. Then the agent sends blocks, each preceded by its
//! length in 4 bytes, and the application answers each with one byte: more, complete, or wrong. The sender therefore
//! sees a receiver as complete only once the application is.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::sink::{Sink, SinkError};

const MORE: u8 = b'+';
const COMPLETE: u8 = b'=';
const WRONG: u8 = b'-';

/// The longest block; a length above it is an error.
const MAX_BLOCK: usize = 1 << 24;

/// The longest line of JSON.
const MAX_LINE: u64 = 1 << 16;

/// How long the agent waits for an application to close its end, so that the next application does not find its files
/// locked.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The agent's end of a stream.
#[derive(Debug)]
pub struct StreamSink {
    stream: UnixStream,
    begins_at: u64,
    complete: bool,
}

impl StreamSink {
    /// Offers a stream to the application at the other end of a connection.
    ///
    /// # Errors
    /// If it has closed the connection, or refuses the stream.
    pub fn new(mut stream: UnixStream, number: u128, from: SocketAddr) -> Result<Self, SinkError> {
        let offer = json!({ "stream": format!("{number:032x}"), "from": from.to_string() });
        stream.write_all(format!("{offer}\n").as_bytes()).map_err(SinkError::Pipe)?;
        let answer = read_line(&stream).map_err(SinkError::Pipe)?;
        let Some(begins_at) = answer.get("at").and_then(Value::as_u64) else {
            let why = answer.get("error").and_then(Value::as_str).unwrap_or("no sense");
            return Err(SinkError::Application(why.chars().take(500).collect()));
        };
        Ok(Self { stream, begins_at, complete: false })
    }
}

impl Drop for StreamSink {
    fn drop(&mut self) {
        // If the application has closed the connection, reading ends immediately.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.set_read_timeout(Some(CLOSE_TIMEOUT));
        let mut rest = [0; 64];
        while matches!(self.stream.read(&mut rest), Ok(1..)) {}
    }
}

impl Sink for StreamSink {
    fn begins_at(&self) -> u64 {
        self.begins_at
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        for block in bytes.chunks(MAX_BLOCK) {
            let length = (block.len() as u32).to_be_bytes();
            self.stream.write_all(&length).map_err(SinkError::Pipe)?;
            self.stream.write_all(block).map_err(SinkError::Pipe)?;
            let mut answer = [0];
            self.stream.read_exact(&mut answer).map_err(SinkError::Pipe)?;
            match answer[0] {
                MORE => {}
                COMPLETE => self.complete = true,
                _ => {
                    let why = read_line(&self.stream).map_err(SinkError::Pipe)?;
                    let why = why.get("error").and_then(Value::as_str).unwrap_or("no reason");
                    return Err(SinkError::Application(why.chars().take(500).collect()));
                }
            }
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.complete
    }
}

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

/// A stream that an agent offers to an application.
#[derive(Debug)]
pub struct Offered {
    /// The identity of its content.
    pub stream: u128,
    /// The address of its sender.
    pub from: SocketAddr,
    socket: UnixStream,
}

/// Waits until the agent offers a stream on a connection that has sent a [`ReceiveRequest`](super::ReceiveRequest). The
/// inner `Err` is the agent's reason for refusing the request.
/// # Errors
/// If the agent closes the connection or violates the protocol.
pub fn wait(socket: UnixStream) -> io::Result<Result<Offered, String>> {
    let offer = read_line(&socket)?;
    if let Some(error) = offer.get("error").and_then(Value::as_str) {
        return Ok(Err(error.to_owned()));
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
    /// The agent closed the connection, or violated the protocol.
    #[error(
        "the stream ended early (the agent of this host reports why); partial files are kept, and the same `cast send` resumes from there"
    )]
    Closed,
}

/// Receives an offered stream into the sink that `make` creates for it, and returns the sink when the stream is
/// complete.
///
/// # Errors
/// See [`ReceiveError`]. The agent is informed of the error.
pub fn receive(
    offered: Offered,
    make: impl FnOnce(u128) -> Result<Box<dyn Sink>, SinkError>,
) -> Result<Box<dyn Sink>, ReceiveError> {
    let Offered { stream, mut socket, .. } = offered;
    let reply = |socket: &mut UnixStream, text: String| {
        socket.write_all(text.as_bytes()).map_err(|_| ReceiveError::Closed)
    };
    let mut sink = match make(stream) {
        Ok(sink) => sink,
        Err(error) => {
            reply(&mut socket, format!("{}\n", json!({ "error": error.to_string() })))?;
            return Err(error.into());
        }
    };
    reply(&mut socket, format!("{}\n", json!({ "at": sink.begins_at() })))?;
    let mut block = Vec::new();
    loop {
        let mut length = [0; 4];
        if socket.read_exact(&mut length).is_err() {
            return if sink.is_complete() { Ok(sink) } else { Err(ReceiveError::Closed) };
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_BLOCK {
            return Err(ReceiveError::Closed);
        }
        block.resize(length, 0);
        socket.read_exact(&mut block).map_err(|_| ReceiveError::Closed)?;
        if let Err(error) = sink.put(&block) {
            let why = json!({ "error": error.to_string() });
            reply(&mut socket, format!("{}{why}\n", WRONG as char))?;
            return Err(error.into());
        }
        if sink.is_complete() {
            // The files are complete even if the agent has closed the connection in the meantime.
            let _ = socket.write_all(&[COMPLETE]);
            return Ok(sink);
        }
        reply(&mut socket, (MORE as char).to_string())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    fn from() -> SocketAddr {
        "10.0.0.1:6722".parse().unwrap()
    }

    #[test]
    fn blocks_are_read_up_to_their_end() {
        let mut bytes = Vec::new();
        for block in [&b"one"[..], b"", b"later"] {
            write_block(&mut bytes, block).unwrap();
        }
        let mut blocks = Blocks::new(&bytes[..]);
        let mut read = String::new();
        blocks.read_to_string(&mut read).unwrap();
        assert_eq!(read, "one");
        assert_eq!(blocks.read(&mut [0; 9]).unwrap(), 0);
        let large = vec![7; MAX_BLOCK + 5];
        let mut bytes = Vec::new();
        write_block(&mut bytes, &large).unwrap();
        write_block(&mut bytes, b"").unwrap();
        let mut read = Vec::new();
        Blocks::new(&bytes[..]).read_to_end(&mut read).unwrap();
        assert!(read == large);
    }

    /// Wherever the connection ends, unless it is behind the last block.
    #[test]
    fn blocks_that_are_cut_off_are_no_stream() {
        let mut bytes = Vec::new();
        write_block(&mut bytes, b"some").unwrap();
        write_block(&mut bytes, b"").unwrap();
        for len in 0..bytes.len() {
            let error = Blocks::new(&bytes[..len]).read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{len}");
        }
        let error = Blocks::new(&[0xff; 9][..]).read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("16 MiB"), "{error}");
    }

    /// Collects all bytes. It is complete at `whole` bytes, and fails beyond `bad` bytes.
    struct List {
        at: u64,
        bytes: Vec<u8>,
        whole: usize,
        bad: usize,
    }

    impl Sink for List {
        fn begins_at(&self) -> u64 {
            self.at
        }

        fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
            self.bytes.extend_from_slice(bytes);
            match self.bytes.len() > self.bad {
                true => {
                    Err(StoreError::Full { path: "here".into(), needs: None, free: None }.into())
                }
                false => Ok(()),
            }
        }

        fn is_complete(&self) -> bool {
            self.bytes.len() == self.whole
        }
    }

    #[test]
    fn blocks_arrive_and_the_outcome_goes_back() {
        for (bad, good) in [(usize::MAX, true), (1500, false)] {
            let (ours, theirs) = pair();
            let taker = std::thread::spawn(move || {
                let offered = wait(theirs).unwrap().unwrap();
                assert_eq!((offered.stream, offered.from), (77, from()));
                receive(offered, |_| {
                    Ok(Box::new(List { at: 5, bytes: Vec::new(), whole: 3000, bad }))
                })
                .is_ok()
            });
            let mut sink = StreamSink::new(ours, 77, from()).unwrap();
            assert_eq!(sink.begins_at(), 5);
            sink.put(&[1; 1000]).unwrap();
            assert!(!sink.is_complete());
            let result = sink.put(&[2; 2000]);
            assert_eq!((result.is_ok(), sink.is_complete()), (good, good), "{result:?}");
            if let Err(error) = result {
                assert!(error.to_string().contains("disk is full"), "{error}");
            }
            drop(sink);
            assert_eq!(taker.join().unwrap(), good);
        }
    }

    #[test]
    fn a_refusal_carries_its_reason() {
        let (ours, theirs) = pair();
        let taker = std::thread::spawn(move || {
            let offered = wait(theirs).unwrap().unwrap();
            receive(offered, |_| Err(SinkError::Several)).is_err()
        });
        let error = StreamSink::new(ours, 77, from()).unwrap_err();
        assert!(error.to_string().contains("several files"), "{error}");
        assert!(taker.join().unwrap());
    }

    #[test]
    fn either_end_notices_that_the_other_has_closed() {
        let (ours, theirs) = pair();
        let taker = std::thread::spawn(move || {
            let offered = wait(theirs).unwrap().unwrap();
            let list = List { at: 0, bytes: Vec::new(), whole: 9, bad: 99 };
            receive(offered, |_| Ok(Box::new(list))).map(|_| ())
        });
        let mut sink = StreamSink::new(ours, 77, from()).unwrap();
        sink.put(b"half").unwrap();
        drop(sink);
        assert!(matches!(taker.join().unwrap(), Err(ReceiveError::Closed)));
        let (ours, theirs) = pair();
        drop(theirs);
        assert!(StreamSink::new(ours, 77, from()).is_err());
        let (ours, mut theirs) = pair();
        theirs.write_all(b"{\"error\": \"busy\"}\n").unwrap();
        assert_eq!(wait(ours).unwrap().unwrap_err(), "busy");
    }
}

//! A whole stream through a door, records and all: the agent's end is a [`Sink`], the application's is [`take`].
//!
//! The agent tells a line of JSON, `{"stream": "...", "from": "ADDR:PORT"}`; the application answers `{"at": N}`, the first byte that it
//! needs, or `{"error": "..."}`. Then blocks come, each after its length in 4 bytes, and each is answered by a byte: more, complete, or wrong.
//! So the sender hears that a receiver has everything only when the application has.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::sink::{Sink, SinkError};

const MORE: u8 = b'+';
const COMPLETE: u8 = b'=';
const WRONG: u8 = b'-';

/// The longest block that is believed: an agent sends at most one of its own.
const MAX_BLOCK: usize = 1 << 24;

/// The longest line.
const MAX_LINE: u64 = 1 << 16;

/// An application that is told to end a stream is waited for so long, so that the next does not meet it at the same files.
const PARTING: Duration = Duration::from_secs(10);

/// The agent's end.
#[derive(Debug)]
pub struct DoorSink {
    stream: UnixStream,
    begins_at: u64,
    complete: bool,
}

impl DoorSink {
    /// Offers a stream to the application that waits at `stream`.
    ///
    /// # Errors
    /// If it has gone, or does not want it.
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

impl Drop for DoorSink {
    fn drop(&mut self) {
        // Whoever has gone is not waited for: reading ends at once.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.set_read_timeout(Some(PARTING));
        let mut rest = [0; 64];
        while matches!(self.stream.read(&mut rest), Ok(1..)) {}
    }
}

impl Sink for DoorSink {
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

/// A line of JSON. What follows it stays unread.
fn read_line(stream: &UnixStream) -> io::Result<Value> {
    let mut line = Vec::new();
    // Without a buffer, which would swallow what follows.
    let mut reader = BufReader::with_capacity(1, stream).take(MAX_LINE);
    reader.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&line).map_err(Into::into)
}

/// A stream that an agent offers.
#[derive(Debug)]
pub struct Offered {
    /// Names its content.
    pub stream: u128,
    /// Where its sender is.
    pub from: SocketAddr,
    door: UnixStream,
}

/// Waits for a stream at a door that was asked for one with [`ReceiveWish`](super::ReceiveWish); `Err` with the agent's word if there is none.
///
/// # Errors
/// If the agent refuses, or ends.
pub fn wait(door: UnixStream) -> io::Result<Result<Offered, String>> {
    let offer = read_line(&door)?;
    if let Some(error) = offer.get("error").and_then(Value::as_str) {
        return Ok(Err(error.to_owned()));
    }
    let stream = offer.get("stream").and_then(Value::as_str);
    let stream = stream.and_then(|text| u128::from_str_radix(text, 16).ok());
    let from = offer.get("from").and_then(Value::as_str).and_then(|text| text.parse().ok());
    match (stream, from) {
        (Some(stream), Some(from)) => Ok(Ok(Offered { stream, from, door })),
        _ => Err(io::Error::other("the agent says what has no sense")),
    }
}

/// Why a stream that came by a door is not complete.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// This end.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The agent, its sender or the way between.
    #[error(
        "the stream broke off (the agent of this host says why); what is there stays, and the same `cast send` goes on with it"
    )]
    Over,
}

/// Takes a stream into a sink; where it began.
///
/// # Errors
/// See [`TakeError`]. The agent has been told.
pub fn take(
    offered: Offered,
    make: impl FnOnce(u128) -> Result<Box<dyn Sink>, SinkError>,
) -> Result<Box<dyn Sink>, TakeError> {
    let Offered { stream, mut door, .. } = offered;
    let tell = |door: &mut UnixStream, text: String| {
        door.write_all(text.as_bytes()).map_err(|_| TakeError::Over)
    };
    let mut sink = match make(stream) {
        Ok(sink) => sink,
        Err(error) => {
            tell(&mut door, format!("{}\n", json!({ "error": error.to_string() })))?;
            return Err(error.into());
        }
    };
    tell(&mut door, format!("{}\n", json!({ "at": sink.begins_at() })))?;
    let mut block = Vec::new();
    loop {
        let mut length = [0; 4];
        if door.read_exact(&mut length).is_err() {
            return if sink.is_complete() { Ok(sink) } else { Err(TakeError::Over) };
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_BLOCK {
            return Err(TakeError::Over);
        }
        block.resize(length, 0);
        door.read_exact(&mut block).map_err(|_| TakeError::Over)?;
        if let Err(error) = sink.put(&block) {
            let why = json!({ "error": error.to_string() });
            tell(&mut door, format!("{}{why}\n", WRONG as char))?;
            return Err(error.into());
        }
        if sink.is_complete() {
            // The last word: an agent that has gone meanwhile changes nothing about the files.
            let _ = door.write_all(&[COMPLETE]);
            return Ok(sink);
        }
        tell(&mut door, (MORE as char).to_string())?;
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

    /// Takes everything, into a list; complete with so many bytes, wrong from some on.
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
                take(offered, |_| Ok(Box::new(List { at: 5, bytes: Vec::new(), whole: 3000, bad })))
                    .is_ok()
            });
            let mut sink = DoorSink::new(ours, 77, from()).unwrap();
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
    fn who_does_not_want_it_says_why() {
        let (ours, theirs) = pair();
        let taker = std::thread::spawn(move || {
            let offered = wait(theirs).unwrap().unwrap();
            take(offered, |_| Err(SinkError::Several)).is_err()
        });
        let error = DoorSink::new(ours, 77, from()).unwrap_err();
        assert!(error.to_string().contains("several files"), "{error}");
        assert!(taker.join().unwrap());
    }

    #[test]
    fn an_end_that_goes_is_noticed_by_the_other() {
        let (ours, theirs) = pair();
        let taker = std::thread::spawn(move || {
            let offered = wait(theirs).unwrap().unwrap();
            let list = List { at: 0, bytes: Vec::new(), whole: 9, bad: 99 };
            take(offered, |_| Ok(Box::new(list))).map(|_| ())
        });
        let mut sink = DoorSink::new(ours, 77, from()).unwrap();
        sink.put(b"half").unwrap();
        drop(sink);
        assert!(matches!(taker.join().unwrap(), Err(TakeError::Over)));
        let (ours, theirs) = pair();
        drop(theirs);
        assert!(DoorSink::new(ours, 77, from()).is_err());
        let (ours, mut theirs) = pair();
        theirs.write_all(b"{\"error\": \"busy\"}\n").unwrap();
        assert_eq!(wait(ours).unwrap().unwrap_err(), "busy");
    }
}

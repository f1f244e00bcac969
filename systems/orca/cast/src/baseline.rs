//! Casting without Orca, for comparison: the same streams and hashes over the kernel's TCP, either to each receiver
//! directly or along a chain of receivers.
//!
//! A connection begins with the line `rackweave-cast 1 STREAM`, which in a chain is followed by the addresses of the
//! remaining receivers. Then comes the stream. The answer is one line for each receiver, nearest first: `ok` or an
//! error.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::sink::{FileDone, Sink, SinkError};
use crate::source::{Payload, Source};

const HELLO: &str = "rackweave-cast 1";

/// The longest first line, in bytes.
const MAX_LINE: u64 = 1 << 16;

/// The number of bytes that are copied at a time.
const PIECE: usize = 256 << 10;

/// How long the sender waits for a silent peer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of receiving a stream.
#[derive(Debug)]
pub struct Received {
    /// The address of the sender.
    pub from: SocketAddr,
    /// The complete files.
    pub files: Vec<FileDone>,
    /// Why it failed; `None` if the stream is complete.
    pub error: Option<String>,
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Sends a stream over one connection to the first receiver, and along a chain to the others. Returns each receiver's
/// answer and the time at which it arrived.
///
/// # Errors
/// If the stream cannot be read or written.
pub fn send(
    source: &mut dyn Source,
    to: &[SocketAddr],
) -> io::Result<Vec<(SocketAddr, Result<Duration, String>)>> {
    #[expect(clippy::disallowed_methods, reason = "a transfer over real sockets is timed")]
    let began = Instant::now();
    let (first, behind) = to.split_first().ok_or_else(|| invalid("there is no receiver"))?;
    let mut stream = TcpStream::connect(first)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = format!("{HELLO} {:032x}", source.stream());
    for address in behind {
        line += &format!(" {address}");
    }
    stream.write_all(format!("{line}\n").as_bytes())?;
    let end = source.end().ok_or_else(|| invalid("TCP takes files only"))?;
    let mut at = 0;
    while at < end {
        let mut payload = Payload::new();
        let len = (end - at).min(PIECE as u64) as usize;
        source.read(at, len, &mut payload).map_err(io::Error::other)?;
        for piece in payload {
            stream.write_all(&piece)?;
        }
        at += len as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(PATIENCE * 6))?;
    let mut answers = BufReader::new(stream.take(MAX_LINE)).lines();
    let results = to.iter().map(|address| {
        let result = match answers.next() {
            Some(Ok(line)) if line == "ok" => Ok(began.elapsed()),
            Some(Ok(line)) => Err(line),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("the connection broke".to_owned()),
        };
        (*address, result)
    });
    Ok(results.collect())
}

/// Accepts one connection and receives its stream into the sink that `sink` creates for it. With `forwards`, this host connects to the next
/// receiver of a chain, whose address is what the sender says; otherwise such a stream is refused, so that a sender cannot make this host
/// connect to anything.
///
/// # Errors
/// If the listener fails.
pub fn receive(
    listener: &TcpListener,
    forwards: bool,
    admits: impl Fn(SocketAddr) -> bool,
    sink: impl Fn(u128) -> Result<Box<dyn Sink>, SinkError>,
) -> io::Result<Received> {
    loop {
        let (stream, from) = listener.accept()?;
        if !admits(from) {
            continue;
        }
        return Ok(match serve(stream, forwards, &sink) {
            Ok(files) => Received { from, files, error: None },
            Err(error) => Received { from, files: Vec::new(), error: Some(error.to_string()) },
        });
    }
}

fn serve(
    stream: TcpStream,
    forwards: bool,
    make: &impl Fn(u128) -> Result<Box<dyn Sink>, SinkError>,
) -> io::Result<Vec<FileDone>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut back = stream.try_clone()?;
    let mut input = BufReader::with_capacity(PIECE, stream);
    let mut line = String::new();
    input.by_ref().take(MAX_LINE).read_line(&mut line)?;
    let rest = line.strip_prefix(HELLO).ok_or_else(|| invalid("this is no cast"))?;
    let mut words = rest.split_whitespace();
    let stream = words.next().and_then(|word| u128::from_str_radix(word, 16).ok());
    let stream = stream.ok_or_else(|| invalid("a stream without a name"))?;
    let behind: Vec<SocketAddr> = words.filter_map(|word| word.parse().ok()).collect();
    let mut next = None;
    let mut broken = None;
    let is_refused = !forwards && !behind.is_empty();
    if is_refused {
        broken = Some("the receiver before it does not forward".to_owned());
    } else if let Some((first, after)) = behind.split_first() {
        let connect = || -> io::Result<TcpStream> {
            let mut next = TcpStream::connect_timeout(first, PATIENCE)?;
            next.set_write_timeout(Some(PATIENCE))?;
            let mut line = format!("{HELLO} {stream:032x}");
            for address in after {
                line += &format!(" {address}");
            }
            next.write_all(format!("{line}\n").as_bytes())?;
            Ok(next)
        };
        match connect() {
            Ok(stream) => next = Some(stream),
            Err(error) => broken = Some(format!("cannot reach {first}: {error}")),
        }
    }
    let mut sink = match is_refused {
        true => Err(SinkError::NoForwarding),
        false => make(stream),
    };
    // TCP cannot resume a stream.
    if let Ok(it) = &sink
        && it.begins_at() > 0
    {
        sink = Err(SinkError::Pipe(io::Error::other(
            "an interrupted cast of the same files is there",
        )));
    }
    let mut buffer = vec![0; PIECE];
    loop {
        let len = input.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        if let Some(stream) = &mut next
            && let Err(error) = stream.write_all(&buffer[..len])
        {
            broken = Some(format!("lost {}: {error}", behind[0]));
            next = None;
        }
        if let Ok(it) = &mut sink
            && let Err(error) = it.put(&buffer[..len])
        {
            sink = Err(error);
        }
    }
    let result = match &sink {
        Ok(sink) if sink.is_complete() => Ok(sink.files()),
        Ok(_) => Err(io::Error::other("the stream ended early")),
        Err(error) => Err(io::Error::other(error.to_string())),
    };
    let mut answer = match &result {
        Ok(_) => "ok\n".to_owned(),
        Err(error) => format!("{error}\n"),
    };
    if let Some(stream) = next {
        stream.shutdown(std::net::Shutdown::Write)?;
        stream.set_read_timeout(Some(PATIENCE * 6))?;
        // If there is no answer, closing the connection informs the sender.
        let _ = stream.take(MAX_LINE).read_to_string(&mut answer);
    } else if let Some(broken) = broken {
        answer += &format!("{broken}\n");
    }
    back.write_all(answer.as_bytes())?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Folder, FolderConfig};
    use crate::source::Files;

    #[test]
    fn a_chain_carries_files_to_its_end() {
        let from = tempfile::tempdir().unwrap();
        let path = from.path().join("x");
        let bytes: Vec<u8> = (0..3_000_000).map(|i| (i / 9) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let hosts: Vec<_> = (0..3)
            .map(|_| {
                let folder = tempfile::tempdir().unwrap();
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let (address, to) = (listener.local_addr().unwrap(), folder.path().to_owned());
                let thread = std::thread::spawn(move || {
                    let config = FolderConfig { folder: to, ..FolderConfig::default() };
                    let sink = |stream| {
                        Folder::new(config.clone(), stream).map(|it| Box::new(it) as Box<dyn Sink>)
                    };
                    receive(&listener, true, |_| true, sink).unwrap()
                });
                (address, folder, thread)
            })
            .collect();
        let to: Vec<SocketAddr> = hosts.iter().map(|host| host.0).collect();
        let results = send(&mut Files::new(&[path]).unwrap(), &to).unwrap();
        assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
        for (_, folder, thread) in hosts {
            let taken = thread.join().unwrap();
            assert_eq!(taken.error, None);
            assert_eq!(taken.files[0].hash, *blake3::hash(&bytes).as_bytes());
            assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), bytes);
        }
    }
}

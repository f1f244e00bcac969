use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rackweave_wire::orca::Reason;

use super::*;
use crate::format::DecodeError;
use crate::sink::{Sink, SinkError};
use crate::store::{Cancel, StoreError};

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}

fn from() -> SocketAddr {
    "10.0.0.1:6722".parse().unwrap()
}

/// Offers a stream, and returns the sink with the end at which a connection is given back.
fn offer(
    stream: UnixStream,
    cancel: &Cancel,
) -> (Result<StreamSink, SinkError>, Receiver<UnixStream>) {
    let (send, back) = channel();
    let give_back: GiveBack = Box::new(move |stream| send.send(stream).unwrap());
    (StreamSink::new(stream, 77, from(), cancel, give_back), back)
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

/// How a sink of these tests fails.
type Fails = fn() -> SinkError;

/// Collects all bytes. It is complete at `whole` bytes, and fails beyond `bad` bytes.
struct List {
    at: u64,
    bytes: Vec<u8>,
    whole: usize,
    bad: usize,
    fails: Fails,
    needs_from: Option<u64>,
}

impl List {
    fn new(at: u64, whole: usize) -> Self {
        let fails = || SinkError::Several;
        Self { at, bytes: Vec::new(), whole, bad: usize::MAX, fails, needs_from: None }
    }
}

impl Sink for List {
    fn begins_at(&self) -> u64 {
        self.at
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > self.bad { Err((self.fails)()) } else { Ok(()) }
    }

    fn needs_from(&self) -> Option<u64> {
        self.needs_from
    }

    fn omit_rest(&mut self) {
        self.needs_from = None;
        self.bytes.extend_from_slice(b"omitted");
    }

    fn is_complete(&self) -> bool {
        self.bytes.len() == self.whole
    }
}

/// An application that receives into such a sink; returns the error.
fn application(
    socket: UnixStream,
    mut make: impl FnMut() -> List + Send + 'static,
) -> JoinHandle<Option<String>> {
    std::thread::spawn(move || {
        let mut offered = wait(socket).unwrap().unwrap();
        assert_eq!((offered.stream, offered.from), (77, from()));
        let result = receive(&mut offered, |_, _| Ok(Box::new(make())));
        result.err().map(|error| error.to_string())
    })
}

#[test]
fn blocks_arrive_and_the_outcome_goes_back() {
    for (bad, good) in [(usize::MAX, true), (1500, false)] {
        let (ours, theirs) = pair();
        let full = || StoreError::Full { path: "here".into(), needs: None, free: None }.into();
        let app = application(theirs, move || List { bad, fails: full, ..List::new(5, 3000) });
        let mut sink = offer(ours, &Cancel::new()).0.unwrap();
        assert_eq!(sink.begins_at(), 5);
        sink.put(&[1; 1000]).unwrap();
        assert!(!sink.is_complete());
        let result = sink.put(&[2; 2000]);
        assert_eq!((result.is_ok(), sink.is_complete()), (good, good), "{result:?}");
        if let Err(error) = result {
            assert!(error.to_string().contains("disk is full"), "{error}");
            assert_eq!(error.reason(), Reason::Full);
        }
        drop(sink);
        assert_eq!(app.join().unwrap().is_none(), good);
    }
}

/// What a receiver without an agent would tell its sender.
#[test]
fn the_reason_is_that_of_the_applications_own_sink() {
    let cases: [(Fails, Reason); 4] = [
        (|| DecodeError::FileHash.into(), Reason::Damaged),
        (|| SinkError::Foreign(7), Reason::Damaged),
        (|| StoreError::Busy("x".into()).into(), Reason::Refused),
        (|| SinkError::Again("x".into()), Reason::Unknown),
    ];
    for (fails, reason) in cases {
        assert_eq!(fails().reason(), reason);
        let (ours, theirs) = pair();
        let mut attempts = 0;
        let app = application(theirs, move || {
            attempts += 1;
            List { bad: if attempts == 1 { 0 } else { 99 }, fails, ..List::new(0, 4) }
        });
        let (sink, back) = offer(ours, &Cancel::new());
        let mut sink = sink.unwrap();
        let error = sink.put(b"some").unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
        drop(sink);
        // An application that needs the stream again waits for it on the same connection.
        match reason {
            Reason::Unknown => {
                let mut sink = offer(back.try_recv().unwrap(), &Cancel::new()).0.unwrap();
                sink.put(b"four").unwrap();
                assert!(sink.is_complete());
                assert_eq!(app.join().unwrap(), None);
            }
            _ => {
                assert!(back.try_recv().is_err());
                assert!(app.join().unwrap().is_some());
            }
        }
    }
}

#[test]
fn a_file_that_an_application_has_is_not_sent_to_it() {
    let (ours, theirs) = pair();
    let app = application(theirs, || List { needs_from: Some(900), ..List::new(0, 4 + 7 + 4) });
    let mut sink = offer(ours, &Cancel::new()).0.unwrap();
    sink.put(b"some").unwrap();
    assert_eq!(sink.needs_from(), Some(900));
    sink.omit_rest();
    assert_eq!(sink.needs_from(), None);
    sink.put(b"rest").unwrap();
    assert!(sink.is_complete());
    assert_eq!(app.join().unwrap(), None);
}

#[test]
fn a_refusal_carries_its_reason() {
    let (ours, theirs) = pair();
    let app = std::thread::spawn(move || {
        let mut offered = wait(theirs).unwrap().unwrap();
        receive(&mut offered, |_, _| Err(SinkError::Several)).is_err()
    });
    let error = offer(ours, &Cancel::new()).0.unwrap_err();
    assert!(error.to_string().contains("several files"), "{error}");
    assert!(app.join().unwrap());
}

#[test]
fn either_end_notices_that_the_other_has_closed() {
    let (ours, theirs) = pair();
    let app = application(theirs, || List::new(0, 9));
    let mut sink = offer(ours, &Cancel::new()).0.unwrap();
    sink.put(b"half").unwrap();
    drop(sink);
    assert!(app.join().unwrap().unwrap().contains("closed the connection"));
    let (ours, theirs) = pair();
    drop(theirs);
    assert!(offer(ours, &Cancel::new()).0.is_err());
    let (ours, mut theirs) = pair();
    theirs.write_all(b"{\"error\": \"busy\"}\n").unwrap();
    assert_eq!(wait(ours).unwrap().unwrap_err(), "busy");
}

#[test]
fn an_application_learns_why_its_stream_was_cut_off() {
    let (ours, theirs) = pair();
    let app = application(theirs, || List::new(0, 9));
    let mut sink = offer(ours, &Cancel::new()).0.unwrap();
    sink.put(b"half").unwrap();
    sink.interrupted(Reason::Silent);
    assert!(app.join().unwrap().unwrap().contains("the sender stopped responding"));
}

/// Its sender was started again, and sends the same stream once more.
#[test]
fn an_application_whose_sender_was_started_again_gets_the_next_offer() {
    let (ours, theirs) = pair();
    let app = application(theirs, || List::new(0, 5));
    let cancel = Cancel::new();
    let (sink, back) = offer(ours, &cancel);
    let mut sink = sink.unwrap();
    sink.put(b"half").unwrap();
    cancel.set_to_begin_again();
    sink.interrupted(Reason::Unknown);
    drop(sink);
    let mut sink = offer(back.try_recv().unwrap(), &Cancel::new()).0.unwrap();
    sink.put(b"whole").unwrap();
    assert!(sink.is_complete());
    assert_eq!(app.join().unwrap(), None);
}

/// Its sender leaves while it hashes what it has, which takes for ever here.
#[test]
fn an_application_that_prepares_for_a_sender_that_has_left_gets_the_next_offer() {
    let (ours, theirs) = pair();
    let (prepares, started): (Sender<()>, Receiver<()>) = channel();
    let app = std::thread::spawn(move || {
        let mut offered = wait(theirs).unwrap().unwrap();
        let mut attempts = 0;
        let make = |_, cancel: &Cancel| {
            attempts += 1;
            prepares.send(()).unwrap();
            while attempts == 1 && !cancel.is_set() {
                std::thread::yield_now();
            }
            match cancel.is_set() {
                true => Err(StoreError::Cancelled("x".into()).into()),
                false => Ok(Box::new(List::new(0, 5)) as Box<dyn Sink>),
            }
        };
        receive(&mut offered, make).is_ok()
    });
    let cancel = Cancel::new();
    let agent = {
        let cancel = cancel.clone();
        std::thread::spawn(move || offer(ours, &cancel))
    };
    started.recv().unwrap();
    cancel.set();
    let (result, back) = agent.join().unwrap();
    assert!(matches!(result, Err(SinkError::Store(StoreError::Cancelled(_)))), "{result:?}");
    let mut sink = offer(back.try_recv().unwrap(), &Cancel::new()).0.unwrap();
    sink.put(b"whole").unwrap();
    assert!(app.join().unwrap());
}

/// An application that is at work is waited for; one that is stopped is not.
#[test]
fn an_application_that_does_not_answer_is_given_up() {
    // It says for longer than the bound that it prepares.
    let (ours, mut theirs) = pair();
    let agent =
        std::thread::spawn(move || offer(ours, &Cancel::new()).0.map(|sink| sink.begins_at()));
    for _ in 0..3 {
        theirs.write_all(b"{\"preparing\": true}\n").unwrap();
    }
    theirs.write_all(b"{\"at\": 5}\n").unwrap();
    assert_eq!(agent.join().unwrap().unwrap(), 5);
    let (ours, theirs) = pair();
    let error = offer(ours, &Cancel::new()).0.unwrap_err();
    assert!(matches!(error, SinkError::NoAnswer), "{error}");
    assert_eq!(error.reason(), Reason::Unresponsive);
    assert!(error.to_string().contains("application"), "{error}");
    drop(theirs);
}

fn records(bytes: &[u8]) -> Vec<u8> {
    use crate::source::Source as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    std::fs::write(&path, bytes).unwrap();
    let mut source = crate::source::Files::new(&[path]).unwrap();
    let mut pieces = crate::source::Payload::new();
    source.read(0, source.end().unwrap() as usize, &mut pieces).unwrap();
    pieces.iter().flat_map(|piece| piece.to_vec()).collect()
}

/// Whatever ends a stream early, an application does not take it for complete.
#[test]
fn an_application_can_tell_a_stream_that_was_cut_off_from_a_complete_one() {
    let content = vec![7; 3_000_000];
    let bytes = records(&content);
    type End = fn(BlockSink);
    let ends: [(usize, End, Result<u64, &str>); 4] = [
        (bytes.len(), drop, Ok(3_000_000)),
        (bytes.len() - 5, |mut sink| sink.interrupted(Reason::Left), Err("the sender ended")),
        (2_000_000, |mut sink| sink.interrupted(Reason::Silent), Err("stopped responding")),
        (2_000_000, drop, Err("failed to fill whole buffer")),
    ];
    for (len, end, expected) in ends {
        let (ours, theirs) = pair();
        let app = std::thread::spawn(move || {
            let mut out = Vec::new();
            let result = read_stream(&theirs, &mut out);
            (result.unwrap_or_else(|error| Err(error.to_string())), out)
        });
        let mut sink = BlockSink::new(ours).unwrap();
        sink.put(&bytes[..len]).unwrap();
        assert_eq!(sink.is_complete(), expected.is_ok());
        end(sink);
        let (result, out) = app.join().unwrap();
        match expected {
            Ok(bytes) => assert_eq!((result, out.len()), (Ok(bytes), 3_000_000)),
            Err(why) => assert!(result.as_ref().is_err_and(|it| it.contains(why)), "{result:?}"),
        }
    }
    // A chunk with another hash.
    let (ours, theirs) = pair();
    let app = std::thread::spawn(move || read_stream(&theirs, &mut io::sink()));
    let mut damaged = bytes;
    damaged[2_000_000] ^= 1;
    assert!(BlockSink::new(ours).unwrap().put(&damaged).is_err());
    let why = app.join().unwrap().unwrap().unwrap_err();
    assert!(why.contains("hash is wrong"), "{why}");
}

//! A pipe into which streams are written one after another, as standard output is. What was written cannot be taken back, so a stream that
//! begins again, because its sender was started again, goes on behind what was written.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blake3::Hasher;
use bytes::Bytes;

use super::{PipeSink, Sink, SinkError};

/// A destination of whole streams of one file each. Clones share it.
pub struct Output<W>(Arc<Mutex<Shared<W>>>);

struct Shared<W> {
    to: W,
    /// Whether a stream is being written.
    is_busy: bool,
    /// The partly written stream.
    begun: Option<Begun>,
}

/// What has been written of a stream.
#[derive(Clone)]
struct Begun {
    stream: u128,
    bytes: u64,
    hasher: Hasher,
}

impl<W> Clone for Output<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W> std::fmt::Debug for Output<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

impl<W> Output<W> {
    fn lock(&self) -> MutexGuard<'_, Shared<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write + Send + 'static> Output<W> {
    /// Writes to `to`.
    pub fn new(to: W) -> Self {
        Self(Arc::new(Mutex::new(Shared { to, is_busy: false, begun: None })))
    }

    /// Creates the sink of a stream.
    ///
    /// # Errors
    /// [`SinkError::Output`] if another stream is being written, or was written in part.
    pub fn sink(&self, stream: u128) -> Result<Box<dyn Sink>, SinkError> {
        let mut shared = self.lock();
        if shared.is_busy {
            return Err(SinkError::Output("it is taking another stream"));
        }
        let begun = shared.begun.clone();
        if begun.as_ref().is_some_and(|begun| begun.stream != stream) {
            return Err(SinkError::Output(
                "it has the beginning of another stream, which cannot be taken back",
            ));
        }
        shared.is_busy = true;
        let (output, again) = (self.clone(), begun.map_or(0, |begun| begun.bytes));
        let writer = Writer { output: output.clone(), stream, again, hasher: Hasher::new() };
        Ok(Box::new(OutputSink { pipe: PipeSink::new(writer), output }))
    }
}

/// Omits what was written before, and compares it.
struct Writer<W> {
    output: Output<W>,
    stream: u128,
    /// The number of the next bytes that are there already.
    again: u64,
    /// The hash of the bytes that have come once more.
    hasher: Hasher,
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shared = self.output.lock();
        if self.again > 0 {
            let known = (bytes.len() as u64).min(self.again) as usize;
            self.hasher.update(&bytes[..known]);
            self.again -= known as u64;
            let expected = shared.begun.as_ref().map(|begun| begun.hasher.finalize());
            if self.again == 0 && expected != Some(self.hasher.finalize()) {
                return Err(io::Error::other(
                    "what was written of it before is not what is sent now",
                ));
            }
            return Ok(known);
        }
        let written = shared.to.write(bytes)?;
        let stream = self.stream;
        let begun =
            shared.begun.get_or_insert_with(|| Begun { stream, bytes: 0, hasher: Hasher::new() });
        begun.bytes += written as u64;
        begun.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.lock().to.flush()
    }
}

struct OutputSink<W: Write> {
    pipe: PipeSink<Writer<W>>,
    output: Output<W>,
}

impl<W: Write> Drop for OutputSink<W> {
    fn drop(&mut self) {
        self.output.lock().is_busy = false;
    }
}

impl<W: Write + Send> Sink for OutputSink<W> {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.put_shared(&Bytes::copy_from_slice(bytes))
    }

    fn put_shared(&mut self, bytes: &Bytes) -> Result<(), SinkError> {
        self.pipe.put_shared(bytes)?;
        if self.pipe.is_complete() {
            // Another one may follow.
            self.output.lock().begun = None;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.pipe.is_complete()
    }

    fn content(&self) -> (u64, Option<u64>) {
        self.pipe.content()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Files, Payload, Source as _};

    /// The stream of a file with this content; the name tells streams apart.
    fn stream(name: &str, content: &[u8]) -> (u128, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        let mut source = Files::new(&[path]).unwrap();
        let mut pieces = Payload::new();
        source.read(0, source.end().unwrap() as usize, &mut pieces).unwrap();
        (source.stream(), pieces.iter().flat_map(|piece| piece.to_vec()).collect())
    }

    /// What is written can be looked at.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<u8>>>);

    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stream_that_begins_again_is_written_once() {
        let content: Vec<u8> = (0..3_000_000).map(|i| (i / 7) as u8).collect();
        let (number, bytes) = stream("x", &content);
        let seen = Seen::default();
        let output = Output::new(seen.clone());
        for cut in [1000, 1_500_000, 2_500_000, bytes.len()] {
            let mut sink = output.sink(number).unwrap();
            assert!(output.sink(number).is_err(), "one at a time");
            sink.put(&bytes[..cut]).unwrap();
            assert_eq!(sink.is_complete(), cut == bytes.len());
        }
        assert!(*seen.0.lock().unwrap() == content);
        // Another one may follow one that is complete, but not one that was cut off.
        let (other, others) = stream("y", b"other");
        output.sink(other).unwrap().put(&others).unwrap();
        assert_eq!(seen.0.lock().unwrap().len(), content.len() + 5);
        output.sink(number).unwrap().put(&bytes[..1_500_000]).unwrap();
        assert!(output.sink(other).is_err());
        // Nor one that has the same name, length and time, and another content.
        let mut changed = content;
        changed[17] ^= 1;
        let (same, changed) = stream("x", &changed);
        assert_eq!(same, number);
        let error = output.sink(number).unwrap().put(&changed).unwrap_err();
        assert!(error.to_string().contains("not what is sent now"), "{error}");
    }
}

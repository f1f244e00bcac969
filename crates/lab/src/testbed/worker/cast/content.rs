//! Bytes that all hosts know, as a source and as a sink.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use rackweave_cast::Waker;
use rackweave_cast::sink::{Sink, SinkError};
use rackweave_cast::source::{Payload, Source, SourceError};
use rackweave_core::HostId;
use rackweave_group::app::{Receiver, Report};

use super::super::payload::Pattern;
use super::Line;
use crate::cast::CastConfig;

/// The identity of the stream of files.
pub(super) const FILES: u128 = 1;

/// The files' bytes, one behind the other.
#[derive(Clone, Debug)]
pub(super) struct Content(pub(super) Bytes);

impl Content {
    pub(super) fn new(seed: u64, cast: &CastConfig) -> Self {
        let total = cast.bytes();
        Self(Pattern::new(seed, total).message(cast.senders[0], HostId(u32::MAX), total))
    }

    /// A source of which nothing may be read yet, and the gate that lets bytes out. The streams to one host need
    /// different identities, or one replaces the other.
    pub(super) fn source(&self, stream: u128) -> (Made, Gate) {
        let gate = Gate::default();
        (Made { stream, bytes: self.0.clone(), gate: gate.clone() }, gate)
    }

    /// A sink that compares. With a line it also reports what arrives.
    pub(super) fn sink(&self, app: &SharedReceiver, line: Option<Line>) -> Checked {
        Checked { expected: self.0.clone(), have: 0, app: app.clone(), line }
    }
}

/// How far a source may be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<(AtomicU64, OnceLock<Waker>)>);

impl Gate {
    /// Lets all bytes below out.
    pub(super) fn open(&self, upto: u64) {
        self.0.0.store(upto, Ordering::Release);
        if let Some(waker) = self.0.1.get() {
            waker.wake();
        }
    }
}

/// A source of made up bytes, without any records.
#[derive(Debug)]
pub(super) struct Made {
    stream: u128,
    bytes: Bytes,
    gate: Gate,
}

impl Source for Made {
    fn stream(&self) -> u128 {
        self.stream
    }
    fn start(&mut self, waker: Waker) {
        // A source is started once.
        let _ = self.gate.0.1.set(waker);
    }
    fn available(&self) -> u64 {
        self.gate.0.0.load(Ordering::Acquire)
    }
    fn end(&self) -> Option<u64> {
        let length = self.bytes.len() as u64;
        (self.available() == length).then_some(length)
    }
    fn content(&self) -> u64 {
        self.available()
    }
    fn read(&mut self, offset: u64, len: usize, out: &mut Payload) -> Result<(), SourceError> {
        let from = usize::try_from(offset).ok().filter(|from| *from <= self.bytes.len());
        let part = from.and_then(|from| Some(from..from.checked_add(len)?));
        match part.filter(|part| part.end <= self.bytes.len()) {
            Some(part) => out.push(self.bytes.slice(part)),
            None => return Err(SourceError::Gone(offset)),
        }
        Ok(())
    }
}

/// The application of a receiver, which the thread of its sink shares.
#[derive(Clone, Debug)]
pub(super) struct SharedReceiver(Arc<Mutex<(Receiver, u64)>>);

impl SharedReceiver {
    pub(super) fn new(cast: &CastConfig) -> Self {
        Self(Arc::new(Mutex::new((cast.receiver_app(), 0))))
    }

    /// The application, and the number of bytes that have been compared.
    pub(super) fn lock(&self) -> MutexGuard<'_, (Receiver, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it reports at its end: what arrived in order and could not be compared counts as wrong.
    pub(super) fn report(&self) -> Report {
        let (app, compared) = &mut *self.lock();
        app.damaged(app.contiguous().saturating_sub(*compared));
        app.report()
    }
}

/// A sink that compares.
#[derive(Debug)]
pub(super) struct Checked {
    expected: Bytes,
    have: usize,
    app: SharedReceiver,
    line: Option<Line>,
}

impl Sink for Checked {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let (from, to) = (self.have, self.have.saturating_add(bytes.len()));
        let expected = self.expected.get(from..to.min(self.expected.len())).unwrap_or_default();
        let wrong = if expected == bytes {
            0
        } else {
            let differ = bytes.iter().zip(expected).filter(|(here, there)| here != there).count();
            differ + bytes.len() - expected.len()
        };
        self.have = to;
        let (app, compared) = &mut *self.app.lock();
        app.damaged(wrong as u64);
        *compared = to as u64;
        if let Some(line) = self.line {
            app.stored(line.since(), from as u64..to as u64);
            app.readable(line.since(), to as u64);
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.have == self.expected.len()
    }
}

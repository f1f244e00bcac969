//! Bytes that all hosts know, as a source and as a sink.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rackweave_cast::sink::{Sink, SinkError};
use rackweave_cast::source::{Payload, Source, SourceError};
use rackweave_core::{HostId, Time};
use rackweave_group::baseline::Deliveries;

use super::super::payload::Pattern;
use super::Line;
use crate::cast::CastConfig;
use crate::testbed::protocol::CastEnd;

/// The files' bytes, one behind the other.
#[derive(Clone, Debug)]
pub(super) struct Content(Bytes);

impl Content {
    pub(super) fn new(seed: u64, cast: &CastConfig) -> Self {
        let total = cast.bytes();
        Self(Pattern::new(seed, total).message(cast.senders[0], HostId(u32::MAX), total))
    }

    /// A source of which nothing may be read yet, and the gate that lets bytes out.
    pub(super) fn source(&self) -> (Made, Gate) {
        let gate = Gate(Arc::new(AtomicU64::new(0)));
        (Made { bytes: self.0.clone(), gate: gate.clone() }, gate)
    }

    pub(super) const fn len(&self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn sink(&self, arrivals: &Arrivals, line: Line) -> Checked {
        Checked { expected: self.0.clone(), have: 0, arrivals: arrivals.clone(), line }
    }
}

/// How far a source may be read.
#[derive(Clone, Debug)]
pub(super) struct Gate(Arc<AtomicU64>);

impl Gate {
    /// Lets the next bytes out.
    pub(super) fn open(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Release);
    }
}

/// A source of made up bytes, without any records.
#[derive(Debug)]
pub(super) struct Made {
    bytes: Bytes,
    gate: Gate,
}

impl Source for Made {
    fn stream(&self) -> u128 {
        1
    }
    fn available(&self) -> u64 {
        self.gate.0.load(Ordering::Acquire)
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

/// When bytes came, and how many were wrong.
#[derive(Clone, Debug)]
pub(super) struct Arrivals(Arc<Mutex<(Deliveries, u64)>>);

impl Arrivals {
    pub(super) fn new(cast: &CastConfig) -> Self {
        let deliveries = Deliveries::new(&cast.files, Time::MAX);
        Self(Arc::new(Mutex::new((deliveries, 0))))
    }

    /// What a receiver reports of them at its end.
    pub(super) fn end(&self) -> CastEnd {
        let arrivals = self.lock();
        CastEnd {
            completed: arrivals.0.completed().iter().map(|at| at.0).collect(),
            longest_gap: arrivals.0.gaps().0.span.0,
            wrong_bytes: arrivals.1,
            ..CastEnd::default()
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, (Deliveries, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sink that compares.
#[derive(Debug)]
pub(super) struct Checked {
    expected: Bytes,
    have: usize,
    arrivals: Arrivals,
    line: Line,
}

impl Sink for Checked {
    fn begins_at(&self) -> u64 {
        0
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let now = self.line.since();
        let to = self.have.saturating_add(bytes.len());
        let expected = self.expected.get(self.have..to.min(self.expected.len()));
        let expected = expected.unwrap_or_default();
        let wrong = if expected == bytes {
            0
        } else {
            let differ = bytes.iter().zip(expected).filter(|(here, there)| here != there).count();
            differ + bytes.len() - expected.len()
        };
        self.have = to;
        let mut arrivals = self.arrivals.lock();
        arrivals.0.arrived(now);
        arrivals.0.readable(now, self.have as u64);
        arrivals.1 += wrong as u64;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.have == self.expected.len()
    }
}

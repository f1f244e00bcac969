//! A long stream, to which the server replies with a digest.

use bytes::Bytes;
use rackweave_core::{Span, Time};
use rackweave_linux::{Event, SendError};

use crate::client::{Client, socket};
use crate::measure::{Digests, Trouble};
use crate::server::NAP;

/// The number of bytes per write.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// The number of bytes written ahead of the receiver.
const AHEAD_BYTES: u64 = 4 << 20;

impl Client {
    /// Writes this thread's share of the total, or until the time is over, and compares the digests.
    pub(crate) fn run_stream(&mut self) -> Result<(), Trouble> {
        let (host, server) = self.servers[self.thread % self.servers.len()];
        let failed = |reason: String| Trouble::Stream { server, reason };
        let began = self.clock.now();
        let until = self.config.duration.map_or(Time::MAX, |span| began + span);
        let id = self
            .endpoint
            .open(host, Time::MAX)
            .map_err(|error| Trouble::Refused(error.to_string()))?;
        let mut hasher = blake3::Hasher::new();
        let (mut written, mut ended, mut digest) = (0, false, Vec::new());
        let mut heard = began;
        let share = self.config.share(self.thread);
        loop {
            while !ended && self.endpoint.unacknowledged(host, id) < AHEAD_BYTES {
                let over = self.stopped() || self.clock.now() >= until;
                let left = if over { 0 } else { share - written };
                let len = left.min(BLOCK_BYTES as u64) as usize;
                let start = self.rng.below((self.shared.noise.len() - len) as u64) as usize;
                let block: Bytes = self.shared.noise.slice(start..start + len);
                let end = len < BLOCK_BYTES;
                match self.endpoint.write(host, id, block.clone(), end) {
                    Ok(()) => {}
                    Err(SendError::Full { .. }) => break,
                    Err(error) => return Err(failed(error.to_string())),
                }
                hasher.update(&block);
                written += len as u64;
                ended = end;
            }
            let next = self.turn()?.unwrap_or(Time::MAX);
            let mut closed = false;
            while let Some(event) = self.endpoint.poll_event() {
                heard = self.clock.now();
                match event {
                    Event::Written { bytes, .. } => {
                        self.shared.interval(self.thread).bytes_out += bytes;
                    }
                    Event::Readable { peer, id, pieces, .. } => {
                        for piece in pieces {
                            digest.extend_from_slice(&piece);
                            self.endpoint.consume(peer, id, piece.len() as u64);
                            self.shared.interval(self.thread).bytes_in += piece.len() as u64;
                        }
                        if digest.len() > blake3::OUT_LEN {
                            return Err(failed(
                                "the server answers with more than a digest".into(),
                            ));
                        }
                    }
                    Event::Failed { reason, .. } => return Err(failed(reason.to_string())),
                    Event::KeyMismatch { peer, why } => self.key_trouble(peer, why)?,
                    Event::Closed { .. } => closed = true,
                    _ => {}
                }
            }
            if closed {
                let back = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                let sent = hasher.finalize().to_hex().to_string();
                self.end.corrupt += u64::from(sent != back);
                self.end.digests = Some(Digests { bytes: written, sent, back });
                return Ok(());
            }
            let now = self.clock.now();
            if now.since(heard) > self.config.deadline {
                self.endpoint.cancel(host, id);
                let span: Span = now.since(heard);
                return Err(failed(format!("nothing has moved for {:.1} s", span.as_secs_f64())));
            }
            let wake = next.min(now + NAP);
            self.endpoint.wait(Some(wake)).map_err(|error| socket(&error))?;
        }
    }
}

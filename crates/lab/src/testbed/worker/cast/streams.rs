//! Files over the kernel's TCP, to each receiver or from each to the next.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver as Update, channel};

use rackweave_cast::baseline;
use rackweave_cast::sink::Sink;
use rackweave_core::{HostId, Span, Time};
use rackweave_group::baseline::Rounds;

use super::content::{Arrivals, Content};
use super::{Line, Member, Place, pause};
use crate::testbed::protocol::CastEnd;
use crate::testbed::worker;

/// How often the updates of threads are taken. They carry their own times.
const LOOK: Span = Span::from_ms(2);

/// A receiver has the file, or will not have it.
type Told = (usize, Time, bool);

/// The host that sends, with a thread for each connection.
pub(super) struct Sender {
    line: Line,
    content: Content,
    rounds: Rounds,
    clients: Vec<HostId>,
    chain: bool,
    update: Option<Update<Told>>,
}

impl Sender {
    pub(super) fn new(place: &Place<'_>, chain: bool) -> Result<Self, String> {
        let cast = place.cast;
        if cast.files.len() > 1 {
            return Err("over TCP the testbed sends one file".into());
        }
        Ok(Self {
            line: place.line,
            content: place.content.clone(),
            rounds: Rounds::new(cast.files.clone(), cast.receivers.len(), cast.wait),
            clients: cast.receivers.clone(),
            chain,
            update: None,
        })
    }

    fn begin(&self) -> Result<Update<Told>, String> {
        let all: Vec<(usize, SocketAddr)> = (self.clients.iter().enumerate())
            .filter_map(|(nth, host)| Some((nth, worker::address(*host, 0)?)))
            .collect();
        let ways: Vec<&[(usize, SocketAddr)]> =
            if self.chain { vec![&all] } else { all.chunks(1).collect() };
        let (updates, update) = channel();
        for way in ways {
            let (way, updates, line) = (way.to_vec(), updates.clone(), self.line);
            let (mut source, gate) = self.content.source();
            gate.open(self.content.len());
            let send = move || {
                let to: Vec<SocketAddr> = way.iter().map(|(_, to)| *to).collect();
                let results = baseline::send(&mut source, &to);
                let now = line.since();
                let mut right: Vec<bool> = match results {
                    Ok(results) => results.iter().map(|(_, result)| result.is_ok()).collect(),
                    Err(_) => Vec::new(),
                };
                right.resize(way.len(), false);
                for ((nth, _), right) in way.iter().zip(right) {
                    // Nobody listens any more at the time limit.
                    let _ = updates.send((*nth, now, right));
                }
            };
            let thread = std::thread::Builder::new().name("cast".into());
            thread.spawn(send).map_err(|error| error.to_string())?;
        }
        Ok(update)
    }
}

impl Member for Sender {
    fn greet(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn turn(&mut self, now: Option<Time>) -> Result<(), String> {
        let Some(now) = now else { return Ok(()) };
        if self.update.is_none() && self.rounds.start_next(now, true).is_some() {
            self.update = Some(self.begin()?);
        }
        while let Some((client, at, right)) =
            self.update.as_ref().and_then(|update| update.try_recv().ok())
        {
            if right {
                self.rounds.acknowledge(at, client, 1);
            } else {
                self.rounds.lose(at, client);
            }
        }
        Ok(())
    }

    fn wait(&mut self, most: Span) -> Result<(), String> {
        // Load begins on time.
        let left = match self.line.now() {
            Some(_) => LOOK,
            None => Span(self.line.start.0.saturating_sub(self.line.clock.now().0)),
        };
        pause(left.min(most));
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.rounds.is_done()
    }

    fn packets(&self) -> u64 {
        0
    }

    fn end(&self) -> CastEnd {
        let lost = self.clients.iter().enumerate().filter(|(nth, _)| self.rounds.is_lost(*nth));
        CastEnd {
            files: self.rounds.times().map(|(begun, end)| (begun.0, end.map(|at| at.0))).collect(),
            lost: lost.map(|(_, host)| host.0).collect(),
            ..CastEnd::default()
        }
    }
}

/// A host that receives, and forwards if it is in a chain.
pub(super) struct Receiver {
    arrivals: Arrivals,
}

impl Receiver {
    pub(super) fn new(place: &Place<'_>) -> Result<Self, String> {
        let failed = |error: io::Error| format!("it cannot listen at {}: {error}", place.at);
        let listener = TcpListener::bind(place.at).map_err(failed)?;
        let arrivals = Arrivals::new(place.cast);
        let (content, given, line) = (place.content.clone(), arrivals.clone(), place.line);
        let take = move || {
            let sink = |_| Ok(Box::new(content.sink(&given, line)) as Box<dyn Sink>);
            // The sink reports what came, and the sender what did not.
            let _ = baseline::receive(&listener, |_| true, sink);
        };
        let thread = std::thread::Builder::new().name("cast".into());
        thread.spawn(take).map_err(failed)?;
        Ok(Self { arrivals })
    }
}

impl Member for Receiver {
    fn greet(&mut self) -> Result<(), String> {
        Ok(())
    }
    fn turn(&mut self, _: Option<Time>) -> Result<(), String> {
        Ok(())
    }
    fn wait(&mut self, most: Span) -> Result<(), String> {
        pause(most);
        Ok(())
    }
    fn is_idle(&self) -> bool {
        true
    }
    fn packets(&self) -> u64 {
        0
    }
    fn end(&self) -> CastEnd {
        self.arrivals.end()
    }
}

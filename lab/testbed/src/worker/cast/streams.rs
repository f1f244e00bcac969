//! A cast over the kernel's TCP, to each receiver or from each receiver to the next.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use rackweave_cast::baseline;
use rackweave_cast::sink::Sink;
use rackweave_core::{FailReason, HostId, Span, Time};
use rackweave_orca::app::{Report, Sender as App};

use super::content::{Content, FILES, SharedReceiver};
use super::{CastHost, Place};
use crate::worker;
use crate::worker::timeline::{TimeLine, pause};

/// The interval at which the updates of threads are processed. They carry their own times.
const POLL_INTERVAL: Span = Span::from_ms(2);

/// A receiver, a time, and whether the receiver has the file then or has failed.
type Answer = (HostId, Time, bool);

/// The host that sends the cast, with a thread for each connection.
pub(super) struct Sender {
    line: TimeLine,
    content: Content,
    app: App,
    /// The receivers behind each connection.
    connections: Vec<Vec<HostId>>,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
}

impl Sender {
    pub(super) fn new(place: &Place<'_>, chain: bool) -> Result<Self, String> {
        let cast = place.cast;
        if cast.files.len() > 1 {
            return Err("over TCP the testbed sends one file".into());
        }
        let per_connection = if chain { cast.receivers.len() } else { 1 };
        let connections = cast.receivers.chunks(per_connection).map(<[_]>::to_vec);
        let connections: Vec<Vec<HostId>> = connections.collect();
        Ok(Self {
            line: place.line,
            content: place.content.clone(),
            app: App::new(place.sender_app(connections.len())),
            connections,
            answers: mpsc::channel(),
        })
    }

    /// Writes the file to a connection.
    fn write(&self, connection: usize) -> Result<(), String> {
        let hosts = self.connections[connection].clone();
        let to: Option<Vec<SocketAddr>> =
            hosts.iter().map(|host| worker::address(*host, 0)).collect();
        let to = to.ok_or_else(|| "a receiver has no address".to_owned())?;
        let (answers, line) = (self.answers.0.clone(), self.line);
        let (mut source, gate) = self.content.source(FILES);
        gate.open(self.content.0.len() as u64);
        let send = move || {
            let results = baseline::send(&mut source, &to).unwrap_or_default();
            let now = line.since();
            for (nth, host) in hosts.into_iter().enumerate() {
                let has_it = results.get(nth).is_some_and(|(_, result)| result.is_ok());
                // After the time limit the channel is closed.
                let _ = answers.send((host, now, has_it));
            }
        };
        let thread = std::thread::Builder::new().name("cast".into());
        thread.spawn(send).map_err(|error| error.to_string())?;
        Ok(())
    }
}

impl CastHost for Sender {
    fn greet(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn turn(&mut self, now: Option<Time>) -> Result<(), String> {
        let Some(now) = now else { return Ok(()) };
        while let Ok((host, at, has_it)) = self.answers.1.try_recv() {
            if has_it {
                self.app.acknowledged(at, host, 1);
            } else {
                self.app.failed(at, host, FailReason::PeerSilent);
            }
        }
        while let Some(write) = self.app.poll_write(now, |_| true) {
            self.write(write.socket)?;
        }
        Ok(())
    }

    fn wait(&mut self, most: Span) -> Result<(), String> {
        // The load starts on time.
        let left = match self.line.now() {
            Some(_) => POLL_INTERVAL,
            None => Span::from_ticks(
                self.line.start.ticks().saturating_sub(self.line.clock.now().ticks()),
            ),
        };
        pause(left.min(most));
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.app.is_done()
    }

    fn packets(&self) -> u64 {
        0
    }

    fn report(&self) -> Report {
        self.app.report()
    }
}

/// A host that receives the cast, and forwards it in a chain.
pub(super) struct Receiver {
    app: SharedReceiver,
}

impl Receiver {
    pub(super) fn new(place: &Place<'_>) -> Result<Self, String> {
        let failed = |error: io::Error| format!("it cannot listen at {}: {error}", place.at);
        let listener = TcpListener::bind(place.at).map_err(failed)?;
        let app = SharedReceiver::new(place.cast);
        let (content, given, line) = (place.content.clone(), app.clone(), place.line);
        let take = move || {
            let sink = |_| Ok(Box::new(content.sink(&given, Some(line))) as Box<dyn Sink>);
            // The sink reports what arrives, and the sender what does not.
            let _ = baseline::receive(&listener, true, |_| true, sink);
        };
        let thread = std::thread::Builder::new().name("cast".into());
        thread.spawn(take).map_err(failed)?;
        Ok(Self { app })
    }
}

impl CastHost for Receiver {
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
    fn report(&self) -> Report {
        self.app.report()
    }
}

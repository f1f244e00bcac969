//! The controller with its database: what is shared by those who ask from the north and from the south.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackweave_core::Time;
use rackweave_linux::Clock;
use rackweave_rackless::controller::message::Command;
use rackweave_rackless::controller::{Controller, Event, Happening};
use serde::Serialize;
use tokio::sync::{Notify, watch};

use crate::metrics::Counts;
use crate::store::{Database, DatabaseError};

/// The events that are kept for readers of the page.
const MOST_EVENTS: usize = 400;

/// An event, for readers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Told {
    /// Grows by one with each.
    pub(crate) number: u64,
    pub(crate) at_ms: u64,
    /// A line for a reader.
    pub(crate) text: String,
    #[serde(flatten)]
    pub(crate) what: Event,
}

impl Told {
    /// For readers that must not know whose this job is.
    pub(crate) fn unnamed(&self, job: u16) -> Self {
        let what = Event::Registered { job, tenant: String::new(), name: String::new() };
        Self { text: format!("job {job} of another tenant"), what, ..*self }
    }
}

/// The controller, its database and its clock.
pub(crate) struct Core {
    pub(crate) controller: Controller,
    database: Database,
    pub(crate) clock: Clock,
    pub(crate) told: VecDeque<Told>,
    count: u64,
    pub(crate) counts: Counts,
    /// Why nothing is stored at present.
    pub(crate) problem: Option<String>,
}

/// What threads share.
#[derive(Clone)]
pub(crate) struct Shared {
    core: Arc<Mutex<Core>>,
    /// The south has something to send.
    pub(crate) wake: Arc<Notify>,
    /// Counts changes, for those who wait for one.
    revision: Arc<watch::Sender<u64>>,
}

impl Core {
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Stores what has changed. Nothing may be answered or sent before.
    fn commit(&mut self) -> Result<(), DatabaseError> {
        let result = self.controller.commit(&mut self.database);
        self.problem = result.as_ref().err().map(ToString::to_string);
        result
    }

    /// Takes in what has happened. Returns it.
    fn tell(&mut self) -> Vec<Happening> {
        let news: Vec<_> = std::iter::from_fn(|| self.controller.poll_event()).collect();
        for Happening { at, what } in news.iter().cloned() {
            self.count += 1;
            self.counts.add(&what);
            let (number, text) = (self.count, what.to_string());
            self.told.push_back(Told { number, at_ms: at.as_ms(), text, what });
        }
        while self.told.len() > MOST_EVENTS {
            self.told.pop_front();
        }
        news
    }
}

/// What a turn has to be done about.
pub(crate) struct Turn {
    pub(crate) commands: Vec<(String, Command)>,
    pub(crate) news: Vec<Happening>,
    /// Why nothing is stored.
    pub(crate) problem: Option<String>,
    /// When the next turn is due.
    pub(crate) next: Time,
    pub(crate) now: Time,
}

impl Shared {
    pub(crate) fn new(controller: Controller, database: Database, clock: Clock) -> Self {
        let told = VecDeque::new();
        let counts = Counts::default();
        let core = Core { controller, database, clock, told, count: 0, counts, problem: None };
        Self {
            core: Arc::new(Mutex::new(core)),
            wake: Arc::new(Notify::new()),
            revision: Arc::new(watch::Sender::new(0)),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    fn changed(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Does something for a master, and stores it before it is answered.
    pub(crate) fn act<T>(
        &self,
        act: impl FnOnce(&mut Controller, Time) -> T,
    ) -> Result<T, DatabaseError> {
        let mut core = self.lock();
        let now = core.now();
        let answer = act(&mut core.controller, now);
        let is_news = core.controller.is_dirty();
        let result = core.commit();
        drop(core);
        if is_news {
            self.wake.notify_one();
            self.changed();
        }
        result.map(|()| answer)
    }

    /// Lets the controller go on, and takes what it has to send.
    pub(crate) fn turn(&self, act: impl FnOnce(&mut Controller, Time)) -> Turn {
        let mut core = self.lock();
        let now = core.now();
        act(&mut core.controller, now);
        core.controller.handle_timeout(now);
        let before = core.problem.clone();
        // Otherwise nothing leaves, and it is tried again.
        let _ = core.commit();
        let commands: Vec<_> = std::iter::from_fn(|| core.controller.poll(now)).collect();
        let news = core.tell();
        let next = core.controller.poll_timeout();
        let problem = core.problem.clone().filter(|it| before.as_ref() != Some(it));
        drop(core);
        if !news.is_empty() {
            self.changed();
        }
        Turn { commands, news, problem, next, now }
    }
}

//! A cast of files: the manifest first, and then to each receiver what it lacks. The Orca paper sends one stream; the
//! rules here are Rackweave's.
//!
//! 1. The manifest is a session of its own. Each receiver compares it with its files and answers what it lacks.
//! 2. Receivers with the same answer share a session of what they lack. Different answers are united in one session where
//!    several sessions would cost the sender's link more. A receiver of such a session ignores what it has.
//! 3. Who answers late gets a session of its own, and holds nobody up. Who refuses a manifest, or has it and does not
//!    answer, gets everything.
//!
//! An answer only decides what is sent: that a receiver has everything which was sent to it is shown by its `Complete`.

use std::collections::BTreeMap;

use rackweave_core::{HostId, Span, Time};
use rackweave_orca::flow::{FlowConfig, ReceiverStatus, SenderEvent, SenderSummary};
use rackweave_orca::host::{OpenError, Spread};
use rackweave_wire::orca::{Reason, Session};

use super::{Engine, EngineEvent, EnginePlatform, ReceiverProgress, SendView};
use crate::format::{Lacking, Manifest, ManifestEntry, Purpose};
use crate::source::{Catalogue, Memory, Source, SourceError};

/// The most sessions that are opened at a time.
const MAX_SESSIONS: usize = 8;

/// A manifest whose copies for all receivers have no more bytes than this is sent by unicast, whatever the spread: it
/// needs no labels.
const SMALL: usize = 1 << 20;

/// How a cast is sent.
#[derive(Clone, Debug)]
pub struct CastConfig {
    /// How packets reach several receivers.
    pub spread: Spread,
    /// The receivers that multicast does not reach.
    pub by_unicast: Vec<HostId>,
    /// The parameters of all sessions.
    pub flow: FlowConfig,
    /// What receivers are asked.
    pub purpose: Purpose,
}

/// Why a cast cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum CastError {
    /// A session cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The files cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
}

/// The state of a cast.
#[derive(Clone, Debug)]
pub struct CastView {
    /// The receivers in the order in which they were named, and the counters of all sessions.
    pub sent: SendView,
    /// What each receiver has answered, in the same order.
    pub lacking: Vec<Option<Lacking>>,
}

/// A receiver of a cast.
#[derive(Debug)]
struct Receiver {
    stage: Stage,
    /// Its answer, and its bytes of content that are there.
    answer: Option<(Lacking, u64)>,
    /// Its state at the end.
    past: Option<ReceiverProgress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It gets the manifest, or compares it.
    Comparing,
    /// It has answered, and waits for its session.
    Waiting,
    /// It is in a session of content.
    Sending(Session),
    Ended,
}

/// The entries of the manifest.
#[derive(Debug, Default)]
struct Entries {
    bytes: Vec<u64>,
    /// The directory that an entry is in, if it is an entry too.
    parents: Vec<Option<u32>>,
}

impl Entries {
    fn new(manifest: &Manifest) -> Self {
        let mut directories = BTreeMap::new();
        let mut this = Self::default();
        for (number, ManifestEntry { header, .. }) in (0_u32..).zip(&manifest.entries) {
            let path = &header.path[..];
            let slash = path.iter().rposition(|byte| *byte == b'/');
            this.parents.push(slash.and_then(|slash| directories.get(&path[..slash]).copied()));
            this.bytes.push(header.length.unwrap_or(0));
            if header.directory {
                directories.insert(path, number);
            }
        }
        this
    }

    fn count(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn bytes_of(&self, lacking: &Lacking) -> u64 {
        lacking.iter().filter_map(|entry| self.bytes.get(entry as usize)).sum()
    }

    /// Returns these entries and the directories that they are in, whose times change when something is put into them.
    fn with_directories(&self, lacking: &Lacking) -> Lacking {
        let mut all = lacking.clone();
        for entry in lacking.iter() {
            let mut at = self.parents.get(entry as usize).copied().flatten();
            while let Some(parent) = at.filter(|parent| !all.contains(*parent)) {
                all.add(parent);
                at = self.parents.get(parent as usize).copied().flatten();
            }
        }
        all
    }
}

/// Files, or one stream, on their way to receivers.
pub struct Cast {
    /// `None` for a stream without a manifest.
    catalogue: Option<Box<dyn Catalogue>>,
    entries: Entries,
    config: CastConfig,
    began: Time,
    order: Vec<HostId>,
    hosts: BTreeMap<HostId, Receiver>,
    manifest: Option<Session>,
    /// When the first receiver has answered.
    answered: Option<Time>,
    /// The sessions of content, and when each was opened.
    sessions: BTreeMap<Session, Time>,
    ended: SendView,
    error: Option<SourceError>,
}

impl std::fmt::Debug for Cast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cast").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl Cast {
    /// Starts to send files to these hosts. With [`Purpose::checksum`] all files are read first.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn files<P: EnginePlatform>(
        engine: &mut Engine<P>,
        mut catalogue: Box<dyn Catalogue>,
        hosts: &[HostId],
        config: CastConfig,
    ) -> Result<Self, CastError> {
        let mut manifest = Manifest { purpose: config.purpose, entries: Vec::new() };
        for (number, header) in (0..).zip(catalogue.headers()) {
            let hash = match config.purpose.checksum {
                true => catalogue.hash(number)?,
                false => None,
            };
            manifest.entries.push(ManifestEntry { header, hash });
        }
        let entries = Entries::new(&manifest);
        let mut this = Self::new(engine, hosts, config);
        this.ended.content = entries.bytes.iter().sum();
        let Some(bytes) = manifest.encode() else {
            // So many files are sent without being compared.
            let all = catalogue.stream(&|_| true)?;
            this.send(engine, all, hosts)?;
            return Ok(this);
        };
        let (number, count) = (Manifest::number(&bytes), entries.count());
        let spread = match bytes.len().saturating_mul(hosts.len()) <= SMALL {
            true => Spread::Unicast,
            false => this.config.spread,
        };
        let source = Box::new(Memory::new(number, bytes.into()));
        let session = engine.open_manifest(source, count, hosts, spread, this.config.flow)?;
        if spread == Spread::Multicast {
            engine.serve_by_unicast(session, &this.config.by_unicast);
        }
        (this.catalogue, this.entries, this.manifest) = (Some(catalogue), entries, Some(session));
        Ok(this)
    }

    /// Starts to send a stream without a manifest.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn stream<P: EnginePlatform>(
        engine: &mut Engine<P>,
        source: Box<dyn Source>,
        hosts: &[HostId],
        config: CastConfig,
    ) -> Result<Self, CastError> {
        let mut this = Self::new(engine, hosts, config);
        this.send(engine, source, hosts)?;
        Ok(this)
    }

    fn new<P: EnginePlatform>(engine: &Engine<P>, hosts: &[HostId], config: CastConfig) -> Self {
        let receiver =
            |host: &HostId| (*host, Receiver { stage: Stage::Comparing, answer: None, past: None });
        let ended = SendView {
            length: (0, true),
            content: 0,
            packet: 0,
            receivers: Vec::new(),
            summary: SenderSummary::default(),
            copies: 0,
        };
        Self {
            catalogue: None,
            entries: Entries::default(),
            config,
            began: engine.now(),
            order: hosts.to_vec(),
            hosts: hosts.iter().map(receiver).collect(),
            manifest: None,
            answered: None,
            sessions: BTreeMap::new(),
            ended,
            error: None,
        }
    }

    /// Opens a session of content.
    fn send<P: EnginePlatform>(
        &mut self,
        engine: &mut Engine<P>,
        source: Box<dyn Source>,
        hosts: &[HostId],
    ) -> Result<(), CastError> {
        let CastConfig { spread, by_unicast, flow, .. } = &self.config;
        let spread = match spread {
            Spread::Multicast if hosts.len() == 1 && self.order.len() > 1 => Spread::Unicast,
            spread => *spread,
        };
        let session = engine.open(source, hosts, spread, *flow)?;
        if spread == Spread::Multicast {
            let apart = by_unicast.iter().filter(|host| hosts.contains(host)).copied();
            engine.serve_by_unicast(session, &apart.collect::<Vec<_>>());
        }
        if self.catalogue.is_some() {
            engine.expect_back(session, hosts);
        }
        self.sessions.insert(session, engine.now());
        for host in hosts {
            if let Some(receiver) = self.hosts.get_mut(host) {
                receiver.stage = Stage::Sending(session);
            }
        }
        Ok(())
    }

    /// Handles an event of the engine.
    pub fn handle<P: EnginePlatform>(&mut self, engine: &Engine<P>, event: EngineEvent) {
        let now = engine.now();
        match event {
            EngineEvent::Answered { host, lacking, .. } => {
                let lacking = lacking.map(|lacking| {
                    let there = self.ended.content - self.entries.bytes_of(&lacking);
                    (lacking, there)
                });
                self.answer(now, engine, host, lacking);
            }
            EngineEvent::Sender(session, SenderEvent::Lost { host, reason: Reason::Refused })
                if self.manifest == Some(session) && !self.config.purpose.dry_run =>
            {
                self.answer(now, engine, host, None);
            }
            EngineEvent::Renewed { old, session, .. } => {
                if self.manifest == Some(old) {
                    self.manifest = Some(session);
                }
                if let Some(began) = self.sessions.remove(&old) {
                    self.sessions.insert(session, began);
                }
                for receiver in self.hosts.values_mut() {
                    if receiver.stage == Stage::Sending(old) {
                        receiver.stage = Stage::Sending(session);
                    }
                }
            }
            EngineEvent::Sent { session, view, error } => self.on_sent(session, view, error),
            _ => {}
        }
    }

    /// Takes a receiver's answer; without one it lacks everything.
    fn answer<P: EnginePlatform>(
        &mut self,
        now: Time,
        engine: &Engine<P>,
        host: HostId,
        answer: Option<(Lacking, u64)>,
    ) {
        let dry = self.config.purpose.dry_run;
        let progress = self.progress(engine, host, ReceiverStatus::Completed);
        let Some(receiver) = self.hosts.get_mut(&host) else { return };
        if receiver.stage != Stage::Comparing {
            return;
        }
        self.answered.get_or_insert(now);
        receiver.answer = answer;
        let there = receiver.answer.as_ref().map(|answer| answer.1);
        let is_done = receiver.answer.as_ref().is_some_and(|answer| answer.0.is_empty());
        receiver.stage = Stage::Waiting;
        if dry || is_done {
            receiver.stage = Stage::Ended;
            let seconds = Some(now.since(self.began).as_secs_f64());
            receiver.past = Some(ReceiverProgress { there, seconds, ..progress });
            if dry && there.is_none() {
                let status = ReceiverStatus::Lost(Reason::Unresponsive);
                receiver.past = Some(ReceiverProgress { status, ..progress });
            }
        }
    }

    fn on_sent(&mut self, session: Session, view: SendView, error: Option<SourceError>) {
        if self.manifest == Some(session) {
            self.manifest = None;
            for progress in view.receivers {
                let Some(receiver) = self.hosts.get_mut(&progress.host) else { continue };
                let asked = progress.status == ReceiverStatus::Completed;
                if receiver.stage == Stage::Comparing && !asked {
                    receiver.stage = Stage::Ended;
                    receiver.past = Some(ReceiverProgress { have: 0, from: 0, ..progress });
                }
            }
        } else if let Some(opened) = self.sessions.remove(&session) {
            let before = opened.since(self.began).as_secs_f64();
            for progress in view.receivers {
                let Some(receiver) = self.hosts.get_mut(&progress.host) else { continue };
                let there = receiver.answer.as_ref().map(|answer| answer.1);
                let seconds = progress.seconds.map(|seconds| seconds + before);
                receiver.stage = Stage::Ended;
                receiver.past = Some(ReceiverProgress { there, seconds, ..progress });
            }
            let length = self.ended.length.0.max(view.length.0);
            self.ended.length = (length, self.ended.length.1 && view.length.1);
            self.ended.packet = self.ended.packet.max(view.packet);
            self.ended.copies = self.ended.copies.max(view.copies);
            if self.catalogue.is_none() {
                self.ended.content = view.content;
            }
        }
        add(&mut self.ended.summary, &view.summary);
        if self.error.is_none() {
            self.error = error;
        }
    }

    /// Opens the sessions that are due. Returns when to call it again if nothing happens before.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn poll<P: EnginePlatform>(
        &mut self,
        engine: &mut Engine<P>,
    ) -> Result<Option<Time>, CastError> {
        let waiting = self.hosts.iter().filter(|(_, it)| it.stage == Stage::Waiting);
        let waiting: Vec<HostId> = waiting.map(|(host, _)| *host).collect();
        // Sessions at the same time would share no limit of the rate.
        if waiting.is_empty() || self.config.flow.max_rate.is_some() && !self.sessions.is_empty() {
            return Ok(None);
        }
        let now = engine.now();
        let due = self.waits_until(engine);
        if now < due {
            return Ok(Some(due));
        }
        for (hosts, lacking) in self.classes(&waiting) {
            let wanted = self.entries.with_directories(&lacking);
            let Some(catalogue) = &self.catalogue else { continue };
            let source = catalogue.stream(&|entry| wanted.contains(entry))?;
            self.send(engine, source, &hosts)?;
        }
        Ok(Some(now))
    }

    /// Returns until when receivers that have not answered are waited for, from the first answer on: the patience of a session
    /// if they have joined, and as long as a session gathers if not.
    fn waits_until<P: EnginePlatform>(&self, engine: &Engine<P>) -> Time {
        let first = self.answered.unwrap_or(Time::ZERO);
        let view = self.manifest.and_then(|session| engine.view(session));
        let receivers = view.map(|view| view.receivers).unwrap_or_default();
        let FlowConfig { gather, patience, .. } = self.config.flow;
        let waits = self.hosts.iter().filter(|(_, it)| it.stage == Stage::Comparing);
        let spans = waits.map(|(host, _)| {
            let status = receivers.iter().find(|it| it.host == *host).map(|it| it.status);
            match status {
                Some(ReceiverStatus::Invited) => gather,
                Some(ReceiverStatus::Lost(_)) => Span::ZERO,
                _ => patience,
            }
        });
        first + spans.max().unwrap_or(Span::ZERO)
    }

    /// Returns which receivers share a session, and what it has.
    fn classes(&self, waiting: &[HostId]) -> Vec<(Vec<HostId>, Lacking)> {
        let all = Lacking::all(self.entries.count());
        let mut classes: BTreeMap<Vec<u8>, (Vec<HostId>, Lacking)> = BTreeMap::new();
        let mut union = Lacking::nothing(self.entries.count());
        for host in waiting {
            let answer = self.hosts.get(host).and_then(|it| it.answer.as_ref());
            let lacking = answer.map_or(&all, |answer| &answer.0);
            union.unite(lacking);
            let class = classes.entry(lacking.encode());
            class.or_insert_with(|| (Vec::new(), lacking.clone())).0.push(*host);
        }
        let apart: u64 = classes.values().map(|class| self.entries.bytes_of(&class.1)).sum();
        let together = self.entries.bytes_of(&union);
        // By unicast a session for each class costs least.
        let cheap = self.config.spread == Spread::Unicast || apart <= together + together / 10;
        let limited = self.config.flow.max_rate.is_some();
        match classes.len() == 1 || cheap && !limited && classes.len() <= MAX_SESSIONS {
            true => classes.into_values().collect(),
            false => vec![(waiting.to_vec(), union)],
        }
    }

    /// Returns the sessions that are open, and whether each has content.
    pub fn sessions(&self) -> impl Iterator<Item = (Session, bool)> + '_ {
        let content = self.sessions.keys().map(|session| (*session, true));
        content.chain(self.manifest.map(|session| (session, false)))
    }

    /// Returns whether nothing is left to be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.manifest.is_none() && self.hosts.values().all(|it| it.stage == Stage::Ended)
    }

    /// Returns the error of the source that ended a session, once.
    pub const fn take_error(&mut self) -> Option<SourceError> {
        self.error.take()
    }

    /// Ends all sessions; the cast is over at the next events.
    pub fn abort<P: EnginePlatform>(&mut self, engine: &mut Engine<P>) {
        for session in self.sessions.keys().copied().chain(self.manifest) {
            engine.abort(session);
        }
        for host in self.order.clone() {
            let progress = self.progress(engine, host, ReceiverStatus::Lost(Reason::Left));
            if let Some(receiver) = self.hosts.get_mut(&host)
                && matches!(receiver.stage, Stage::Comparing | Stage::Waiting)
            {
                (receiver.stage, receiver.past) = (Stage::Ended, Some(progress));
            }
        }
    }

    /// The progress of a receiver to which no content was sent.
    fn progress<P: EnginePlatform>(
        &self,
        engine: &Engine<P>,
        host: HostId,
        status: ReceiverStatus,
    ) -> ReceiverProgress {
        let there = self.hosts.get(&host).and_then(|it| it.answer.as_ref()).map(|it| it.1);
        ReceiverProgress { there, ..ReceiverProgress::new(host, engine.address(host), status) }
    }

    /// Returns the state of the cast.
    #[must_use]
    pub fn view<P: EnginePlatform>(&self, engine: &Engine<P>) -> CastView {
        let mut sent = self.ended.clone();
        let views: BTreeMap<Session, SendView> = (self.sessions.keys().copied())
            .filter_map(|session| Some((session, engine.view(session)?)))
            .collect();
        for view in views.values() {
            sent.length = (sent.length.0.max(view.length.0), sent.length.1 && view.length.1);
            add(&mut sent.summary, &view.summary);
        }
        let manifest = self.manifest.and_then(|session| engine.view(session));
        let status_of = |host: HostId| {
            let receivers = manifest.iter().flat_map(|view| &view.receivers);
            match receivers.into_iter().find(|it| it.host == host).map(|it| it.status) {
                Some(status @ (ReceiverStatus::Invited | ReceiverStatus::Lost(_))) => status,
                _ => ReceiverStatus::Preparing,
            }
        };
        let mut lacking = Vec::new();
        for host in &self.order {
            let Some(receiver) = self.hosts.get(host) else { continue };
            let there = receiver.answer.as_ref().map(|answer| answer.1);
            let of_session = match receiver.stage {
                Stage::Sending(session) => views.get(&session),
                _ => None,
            };
            let found =
                of_session.and_then(|view| view.receivers.iter().find(|it| it.host == *host));
            let progress = match (receiver.past, found) {
                (Some(past), _) => past,
                (None, Some(found)) => ReceiverProgress { there, ..*found },
                (None, None) => self.progress(engine, *host, status_of(*host)),
            };
            sent.receivers.push(progress);
            lacking.push(receiver.answer.as_ref().map(|answer| answer.0.clone()));
        }
        CastView { sent, lacking }
    }
}

/// Adds the counters of a session.
fn add(sum: &mut SenderSummary, of: &SenderSummary) {
    sum.sent += of.sent;
    sum.repaired_all += of.repaired_all;
    sum.repaired_one += of.repaired_one;
    sum.parity += of.parity;
    sum.catch_up += of.catch_up;
    sum.statuses += of.statuses;
}

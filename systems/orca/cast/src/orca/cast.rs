//! A cast of files: the manifest first, and then to each receiver what it lacks. The Orca paper sends one stream; the
//! rules here are Rackweave's.
//!
//! 1. The manifest is a session of its own. Each receiver compares it with its files and answers what it lacks.
//! 2. Receivers with the same answer share a session of what they lack. Different answers are united in one session where
//!    several sessions would cost the sender's link more. A receiver of such a session ignores what it has.
//! 3. Who answers late gets a session of its own, and holds nobody up. Who refuses a manifest, or has it and does not
//!    answer, gets everything; if receivers are to delete, nothing. Who answers that something is in the way gets nothing.
//! 4. A receiver that is to delete gets the manifest once more when it has everything, with [`Delete::Now`]: it compares again, and
//!    deletes nothing if it lacks something. No receiver is asked once the source has failed.
//!
//! An answer only decides what is sent: that a receiver has everything which was sent to it is shown by its `Complete`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use rackweave_core::{HostId, Span, Time};
use rackweave_orca::flow::{FlowConfig, ReceiverStatus, SenderEvent, SenderSummary};
use rackweave_orca::host::{OpenError, Spread};
use rackweave_wire::orca::{Reason, Session};

use super::entries::Entries;
use super::{Engine, EngineEvent, EnginePlatform, ReceiverProgress, SendView};
use crate::format::{
    Delete, Deletion, Difference, Findings, Lacking, Manifest, ManifestEntry, Obstacle, Protected,
    Purpose,
};
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
    /// Receivers are to delete what is not in a manifest that is too long to be sent.
    #[error("nothing can be deleted: the names of the files are longer than 64 MiB")]
    ManyFiles,
}

/// The state of a cast.
#[derive(Clone, Debug)]
pub struct CastView {
    /// The length of the longest stream so far, and whether that of each is known.
    pub length: (u64, bool),
    /// The number of bytes of file content of the cast.
    pub content: u64,
    /// The size in bytes of a full IP packet.
    pub packet: u32,
    /// The counters of all sessions.
    pub summary: SenderSummary,
    /// How many copies of each packet leave through this host's link.
    pub copies: usize,
    /// The receivers in the order in which they were named.
    pub receivers: Vec<CastReceiver>,
}

/// A receiver of a cast.
#[derive(Clone, Debug)]
pub struct CastReceiver {
    /// Its state, and what it got.
    pub progress: ReceiverProgress,
    /// What it has answered.
    pub lacking: Option<Lacking>,
    /// How what it had differed from each entry, with [`Purpose::itemize`].
    pub differences: Option<Arc<[Difference]>>,
    /// What it has deleted.
    pub deletion: Deletion,
    /// Why it takes nothing.
    pub obstacle: Option<Obstacle>,
}

impl From<SendView> for CastView {
    /// The view of a cast of one session.
    fn from(view: SendView) -> Self {
        let SendView { length, content, packet, receivers, summary, copies } = view;
        let receiver = |progress| {
            let deletion = Deletion::None;
            let (lacking, differences) = (None, None);
            CastReceiver { progress, lacking, differences, deletion, obstacle: None }
        };
        let receivers = receivers.into_iter().map(receiver).collect();
        Self { length, content, packet, summary, copies, receivers }
    }
}

/// A receiver of a cast.
#[derive(Debug)]
struct Receiver {
    stage: Stage,
    /// Its answer, and its bytes of content that are there.
    answer: Option<(Lacking, u64)>,
    differences: Option<Arc<[Difference]>>,
    /// Its session of content.
    content: Option<Session>,
    /// Its state at the end.
    past: Option<ReceiverProgress>,
    deletion: Deletion,
    /// Why it takes nothing.
    obstacle: Option<Obstacle>,
    /// Why it has not deleted, although it has the content.
    undeleted: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It gets the manifest, or compares it.
    Comparing,
    /// It has answered, and waits for its session.
    Waiting,
    /// It is in a session of content.
    Sending(Session),
    /// It has all content, and waits to be asked to delete.
    Complete,
    /// It is asked to delete.
    Deleting(Session),
    Ended,
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
    /// The manifest that asks to delete, and its sessions.
    last: Option<Bytes>,
    deleting: BTreeSet<Session>,
    /// When the first receiver has answered.
    answered: Option<Time>,
    /// The sessions of content, and when each was opened.
    sessions: BTreeMap<Session, Time>,
    /// What all sessions that have ended have sent; without receivers.
    ended: CastView,
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
        let delete = config.purpose.delete != Delete::Never;
        let protected = if delete { catalogue.protected() } else { Protected::default() };
        let mut manifest = Manifest { purpose: config.purpose, entries: Vec::new(), protected };
        for (number, header) in (0..).zip(catalogue.headers()) {
            let hash = match config.purpose.checksum {
                true => catalogue.hash(number)?,
                false => None,
            };
            manifest.entries.push(ManifestEntry { header, hash });
        }
        let entries = Entries::new(&manifest);
        let mut this = Self::new(engine, hosts, config);
        this.ended.content = entries.bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let Some(bytes) = manifest.encode() else {
            if delete {
                return Err(CastError::ManyFiles);
            }
            // So many files are sent without being compared.
            let all = catalogue.stream(&|_| true)?;
            this.send(engine, all, hosts)?;
            return Ok(this);
        };
        if delete && !manifest.purpose.dry_run {
            (manifest.purpose.delete, manifest.purpose.itemize) = (Delete::Now, false);
            this.last = manifest.encode().map(Bytes::from);
        }
        (this.catalogue, this.entries) = (Some(catalogue), entries);
        this.manifest = Some(this.send_manifest(engine, bytes.into(), hosts)?);
        Ok(this)
    }

    /// Opens a session of a manifest.
    fn send_manifest<P: EnginePlatform>(
        &self,
        engine: &mut Engine<P>,
        bytes: Bytes,
        hosts: &[HostId],
    ) -> Result<Session, CastError> {
        let CastConfig { flow, .. } = &self.config;
        let spread = match bytes.len().saturating_mul(hosts.len()) <= SMALL {
            true => Spread::Unicast,
            false => self.spread(hosts),
        };
        let source = Box::new(Memory::new(Manifest::number(&bytes), bytes));
        let session = engine.open_manifest(source, self.entries.count(), hosts, spread, *flow)?;
        Ok(session)
    }

    /// Returns how packets reach some of the receivers.
    fn spread(&self, hosts: &[HostId]) -> Spread {
        match self.config.spread {
            Spread::Multicast if hosts.len() == 1 && self.order.len() > 1 => Spread::Unicast,
            spread => spread,
        }
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
        let receiver = |host: &HostId| {
            let receiver = Receiver {
                stage: Stage::Comparing,
                answer: None,
                differences: None,
                content: None,
                past: None,
                deletion: Deletion::None,
                obstacle: None,
                undeleted: None,
            };
            (*host, receiver)
        };
        let ended = CastView {
            length: (0, true),
            content: 0,
            packet: 0,
            summary: SenderSummary::default(),
            copies: 0,
            receivers: Vec::new(),
        };
        Self {
            catalogue: None,
            entries: Entries::default(),
            config,
            began: engine.now(),
            order: hosts.to_vec(),
            hosts: hosts.iter().map(receiver).collect(),
            manifest: None,
            last: None,
            deleting: BTreeSet::new(),
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
        let CastConfig { flow, .. } = &self.config;
        let spread = self.spread(hosts);
        let session = engine.open(source, hosts, spread, *flow)?;
        if self.catalogue.is_some() {
            engine.expect_back(session, hosts);
        }
        self.sessions.insert(session, engine.now());
        for host in hosts {
            if let Some(receiver) = self.hosts.get_mut(host) {
                (receiver.stage, receiver.content) = (Stage::Sending(session), Some(session));
            }
        }
        Ok(())
    }

    /// Handles an event of the engine.
    pub fn handle<P: EnginePlatform>(&mut self, engine: &Engine<P>, event: EngineEvent) {
        let now = engine.now();
        match event {
            EngineEvent::Answered { session, host, findings }
                if (self.hosts.get(&host))
                    .is_some_and(|it| it.stage == Stage::Deleting(session)) =>
            {
                self.on_deleted(host, findings);
            }
            EngineEvent::Answered { host, findings, .. } => {
                self.answer(now, engine, host, findings);
            }
            EngineEvent::Sender(session, SenderEvent::Lost { host, reason: Reason::Refused })
                if self.manifest == Some(session) && self.config.purpose.is_plain() =>
            {
                self.answer(now, engine, host, None);
            }
            EngineEvent::Sender(session, SenderEvent::Completed { host }) if self.deletes() => {
                if let Some(receiver) = self.hosts.get_mut(&host)
                    && receiver.stage == Stage::Sending(session)
                {
                    receiver.stage = Stage::Complete;
                }
            }
            EngineEvent::Renewed { old, session, .. } => self.on_renewed(old, session),
            EngineEvent::Sent { session, view, error } => self.on_sent(session, view, error),
            _ => {}
        }
    }

    fn on_renewed(&mut self, old: Session, session: Session) {
        if self.manifest == Some(old) {
            self.manifest = Some(session);
        }
        if self.deleting.remove(&old) {
            self.deleting.insert(session);
        }
        if let Some(began) = self.sessions.remove(&old) {
            self.sessions.insert(session, began);
        }
        for receiver in self.hosts.values_mut() {
            if receiver.content == Some(old) {
                receiver.content = Some(session);
            }
            match &mut receiver.stage {
                Stage::Sending(of) | Stage::Deleting(of) if *of == old => *of = session,
                _ => {}
            }
        }
    }

    /// Returns whether receivers that have everything are asked to delete.
    const fn deletes(&self) -> bool {
        self.last.is_some() && self.error.is_none()
    }

    /// Takes a receiver's answer; without one it lacks everything.
    fn answer<P: EnginePlatform>(
        &mut self,
        now: Time,
        engine: &Engine<P>,
        host: HostId,
        findings: Option<Findings>,
    ) {
        let (deletes, is_plain) = (self.deletes(), self.config.purpose.is_plain());
        let progress = self.progress(engine, host, ReceiverStatus::Completed);
        let Some(receiver) = self.hosts.get_mut(&host) else { return };
        if receiver.stage != Stage::Comparing {
            return;
        }
        self.answered.get_or_insert(now);
        let lost = |reason| {
            let status = ReceiverStatus::Lost(reason);
            (Stage::Ended, Some(ReceiverProgress { status, ..progress }))
        };
        let Some(Findings { lacking, differences, deletion, obstacle }) = findings else {
            (receiver.stage, receiver.past) = match is_plain {
                true => (Stage::Waiting, None),
                false => lost(Reason::Unresponsive),
            };
            return;
        };
        let there = self.ended.content - self.entries.bytes_of(&lacking);
        let is_done = lacking.is_empty();
        if deletion == Deletion::Refused || obstacle.is_some() {
            (receiver.stage, receiver.past) = lost(Reason::Refused);
            (receiver.deletion, receiver.obstacle) = (deletion, obstacle);
            return;
        }
        (receiver.answer, receiver.deletion) = (Some((lacking, there)), deletion);
        receiver.differences = differences.map(Arc::from);
        receiver.stage = Stage::Waiting;
        if is_done || self.config.purpose.dry_run {
            receiver.stage = if deletes { Stage::Complete } else { Stage::Ended };
            let seconds = Some(now.since(self.began).as_secs_f64());
            receiver.past = Some(ReceiverProgress { there: Some(there), seconds, ..progress });
        }
    }

    /// Takes the answer of a receiver that was asked to delete.
    fn on_deleted(&mut self, host: HostId, findings: Option<Findings>) {
        let Some(receiver) = self.hosts.get_mut(&host) else { return };
        receiver.stage = Stage::Ended;
        match findings {
            Some(Findings { deletion, .. }) => receiver.deletion.add(deletion),
            None => receiver.undeleted = Some(Reason::Unresponsive),
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
        } else if self.deleting.remove(&session) {
            for progress in view.receivers {
                let Some(receiver) = self.hosts.get_mut(&progress.host) else { continue };
                if let ReceiverStatus::Lost(reason) = progress.status
                    && receiver.stage == Stage::Deleting(session)
                {
                    (receiver.stage, receiver.undeleted) = (Stage::Ended, Some(reason));
                }
            }
        } else if let Some(opened) = self.sessions.remove(&session) {
            let before = opened.since(self.began).as_secs_f64();
            for progress in view.receivers {
                let Some(receiver) = self.hosts.get_mut(&progress.host) else { continue };
                let there = receiver.answer.as_ref().map(|answer| answer.1);
                let seconds = progress.seconds.map(|seconds| seconds + before);
                if receiver.stage == Stage::Sending(session) {
                    receiver.stage = Stage::Ended;
                }
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

    /// Asks the receivers that have everything to delete. Returns whether there were some.
    fn poll_deletions<P: EnginePlatform>(
        &mut self,
        engine: &mut Engine<P>,
    ) -> Result<bool, CastError> {
        let complete = self.hosts.iter().filter(|(_, it)| it.stage == Stage::Complete);
        let complete: Vec<HostId> = complete.map(|(host, _)| *host).collect();
        if complete.is_empty() || self.deleting.len() >= MAX_SESSIONS {
            return Ok(false);
        }
        let last = self.last.clone().filter(|_| self.deletes());
        let session = match last {
            Some(bytes) => Some(self.send_manifest(engine, bytes, &complete)?),
            None => None,
        };
        if let Some(session) = session {
            engine.expect_back(session, &complete);
            self.deleting.insert(session);
        }
        for host in complete {
            if let Some(receiver) = self.hosts.get_mut(&host) {
                receiver.stage = session.map_or(Stage::Ended, Stage::Deleting);
            }
        }
        Ok(true)
    }

    /// Opens the sessions that are due. Returns when to call it again if nothing happens before.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn poll<P: EnginePlatform>(
        &mut self,
        engine: &mut Engine<P>,
    ) -> Result<Option<Time>, CastError> {
        let has_asked = self.poll_deletions(engine)?;
        let waiting = self.hosts.iter().filter(|(_, it)| it.stage == Stage::Waiting);
        let waiting: Vec<HostId> = waiting.map(|(host, _)| *host).collect();
        // Sessions at the same time would share no limit of the rate.
        if waiting.is_empty() || self.config.flow.max_rate.is_some() && !self.sessions.is_empty() {
            return Ok(has_asked.then(|| engine.now()));
        }
        let now = engine.now();
        let due = self.waits_until(engine);
        if now < due {
            return Ok(Some(if has_asked { now } else { due }));
        }
        for (hosts, lacking) in self.classes(&waiting) {
            let wanted = self.entries.with_needed(&lacking);
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
        let manifests = self.manifest.iter().chain(&self.deleting);
        content.chain(manifests.map(|session| (*session, false)))
    }

    /// Returns whether nothing is left to be done.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_ended = |it: &Receiver| it.stage == Stage::Ended;
        self.sessions().next().is_none() && self.hosts.values().all(is_ended)
    }

    /// Returns the error of the source that ended a session, once.
    pub const fn take_error(&mut self) -> Option<SourceError> {
        self.error.take()
    }

    /// Ends all sessions; the cast is over at the next events.
    pub fn abort<P: EnginePlatform>(&mut self, engine: &mut Engine<P>) {
        for (session, _) in self.sessions() {
            engine.abort(session);
        }
        self.last = None;
        for host in self.order.clone() {
            let progress = self.progress(engine, host, ReceiverStatus::Lost(Reason::Left));
            if let Some(receiver) = self.hosts.get_mut(&host) {
                match receiver.stage {
                    Stage::Comparing | Stage::Waiting => {
                        (receiver.stage, receiver.past) = (Stage::Ended, Some(progress));
                    }
                    Stage::Complete | Stage::Deleting(_) => {
                        (receiver.stage, receiver.undeleted) = (Stage::Ended, Some(Reason::Left));
                    }
                    Stage::Sending(_) | Stage::Ended => {}
                }
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
        let mut cast = self.ended.clone();
        let views: BTreeMap<Session, SendView> = (self.sessions.keys().copied())
            .filter_map(|session| Some((session, engine.view(session)?)))
            .collect();
        for view in views.values() {
            cast.length = (cast.length.0.max(view.length.0), cast.length.1 && view.length.1);
            add(&mut cast.summary, &view.summary);
        }
        let manifest = self.manifest.and_then(|session| engine.view(session));
        let status_of = |host: HostId| {
            let receivers = manifest.iter().flat_map(|view| &view.receivers);
            match receivers.into_iter().find(|it| it.host == host).map(|it| it.status) {
                Some(status @ (ReceiverStatus::Invited | ReceiverStatus::Lost(_))) => status,
                _ => ReceiverStatus::Preparing,
            }
        };
        for host in &self.order {
            let Some(receiver) = self.hosts.get(host) else { continue };
            let there = receiver.answer.as_ref().map(|answer| answer.1);
            let of_session = receiver.content.and_then(|session| views.get(&session));
            let found =
                of_session.and_then(|view| view.receivers.iter().find(|it| it.host == *host));
            let mut progress = match (receiver.past, found) {
                (Some(past), _) => past,
                (None, Some(found)) => ReceiverProgress { there, ..*found },
                (None, None) => self.progress(engine, *host, status_of(*host)),
            };
            if let Some(reason) = receiver.undeleted {
                progress.status = ReceiverStatus::Lost(reason);
            }
            cast.receivers.push(CastReceiver {
                progress,
                lacking: receiver.answer.as_ref().map(|answer| answer.0.clone()),
                differences: receiver.differences.clone(),
                deletion: receiver.deletion.clone(),
                obstacle: receiver.obstacle.clone(),
            });
        }
        cast
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

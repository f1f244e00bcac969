//! A simulated process: `cast receive` or `cast send` at one host. It is the product's engine; its sinks work on a simulated disk,
//! which takes its time for each step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use rackweave_cast::format::{Delete, Deletion, Purpose};
use rackweave_cast::orca::{
    Accept, Admission, Cast, CastConfig, Decision, Engine, EngineConfig, EngineEvent, FabricPlace,
    ReceiverProgress, Stats,
};
use rackweave_cast::sink::{Comparing, Folder, FolderConfig, Sink, SinkError, SinkTask, SinkWork};
use rackweave_cast::source::SourceError;
use rackweave_cast::store::Dir;
use rackweave_core::{HostId, Rng, Span, Time};
use rackweave_crypt::GroupSeal;
use rackweave_orca::flow::{FlowConfig, ReceiverStatus, SenderEvent};
use rackweave_orca::label::Layout;
use rackweave_wire::orca::{PORT, Reason, Session};

use super::super::platform::Simulated;
use super::disk::Disk;
use super::draw::{Host, Scenario};
use super::source::{Files, Pipe, Reader, Reads, Stream, Streams};

/// How often a pipe is looked at.
const FILL: Span = Span::from_ms(1);

/// The least time for a step of a sink.
const STEP: Span = Span::from_us(1);

/// Returns the address of a host.
pub(super) const fn ip(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, host as u8 + 1))
}

/// Returns the host that has an address.
pub(super) const fn host_at(address: IpAddr) -> Option<usize> {
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            [10, 0, 0, last] => (last as usize).checked_sub(1),
            _ => None,
        },
        IpAddr::V6(_) => None,
    }
}

/// What a process reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// A receiver has the whole stream.
    Received,
    /// `send` has ended; `true` if every receiver has everything, which is exit code 0.
    Exit(bool),
    /// What must not happen.
    Wrong(String),
    /// Anything else, for the trace.
    Note(String),
}

/// Files, and a check that their bytes are those of the stream, whoever else has sent any.
struct Checked {
    folder: Folder,
    stream: Arc<Stream>,
    /// The offset of the next byte.
    at: u64,
}

impl Sink for Checked {
    fn begins_at(&self) -> u64 {
        self.folder.begins_at()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        self.put_shared(&Bytes::copy_from_slice(bytes))
    }

    fn put_shared(&mut self, bytes: &Bytes) -> Result<(), SinkError> {
        let end = self.at + bytes.len() as u64;
        let sent = self.stream.bytes.get(self.at as usize..end as usize);
        assert!(sent == Some(bytes), "bytes are passed on that the sender has not sent");
        self.at = end;
        self.folder.put_shared(bytes)
    }

    fn needs_from(&self) -> Option<u64> {
        self.folder.needs_from()
    }

    fn omit_rest(&mut self) {
        self.at = self.folder.needs_from().unwrap_or(self.at);
        self.folder.omit_rest();
    }

    fn interrupted(&mut self, reason: Reason) {
        self.folder.interrupted(reason);
    }

    fn is_complete(&self) -> bool {
        self.folder.is_complete()
    }

    fn files(&self) -> Vec<rackweave_cast::sink::FileDone> {
        self.folder.files()
    }

    fn content(&self) -> (u64, Option<u64>) {
        self.folder.content()
    }
}

/// The work of a sink, and what it does at present, with the time at which that is done.
#[derive(Debug)]
struct Working {
    work: SinkWork,
    task: Option<(Time, SinkTask)>,
    has_ended: bool,
}

/// A run of `cast send`.
#[derive(Debug)]
struct Sending {
    cast: Cast,
    to: Vec<HostId>,
    pipe: Option<Pipe>,
    filled: Time,
    completed: BTreeSet<HostId>,
    deletes: bool,
    /// Receivers that were told that the bytes which they need were given back.
    gone: BTreeSet<HostId>,
}

#[derive(Debug)]
pub(super) struct Process {
    engine: Engine<Simulated>,
    platform: Simulated,
    working: Vec<Working>,
    sending: Option<Sending>,
    /// The numbers of hosts in the engine.
    hosts: BTreeMap<HostId, usize>,
    pub(super) reports: Vec<Report>,
}

impl Process {
    /// Starts a process whose socket has this port.
    pub(super) fn start(
        number: usize,
        port: u16,
        platform: &Simulated,
        (disk, streams): (&Disk, &Arc<Streams>),
        scenario: &Scenario,
    ) -> Result<Self, String> {
        let receives = number > 0;
        let in_group = receives || scenario.agent;
        {
            let mut state = platform.state();
            state.in_group = in_group;
            state.inbox.clear();
            state.sent.clear();
            state.started.clear();
        }
        let secret = Rng::stream(scenario.seed, 0, 0, "secret").next_u64().to_be_bytes().repeat(4);
        let admission = Admission {
            everyone: receives && scenario.key,
            loopback: false,
            addresses: if receives { vec![ip(0)] } else { Vec::new() },
        };
        let hosts = 0..scenario.hosts.len();
        let fabric = scenario.fabric.then(|| FabricPlace {
            me: HostId(number as u32),
            layout: Arc::new(Layout::flat(scenario.hosts.len() as u32)),
            hosts: hosts.map(|it| (HostId(it as u32), (ip(it), PORT).into())).collect(),
            controller: None,
            tor: false,
            heartbeat: None,
            control: None,
        });
        let config = EngineConfig {
            in_group,
            secret: scenario.key.then_some(secret),
            admission,
            fabric,
            flow: flow(scenario),
            room: scenario.room,
            max_sessions: if receives { scenario.max_sessions } else { 16 },
            retry: scenario.retry,
            ..EngineConfig::new((ip(number), port).into())
        };
        let accept = receives.then(|| accept(disk, streams, scenario));
        let engine =
            Engine::on(config, accept, platform.clone()).map_err(|error| error.to_string())?;
        Ok(Self {
            engine,
            platform: platform.clone(),
            working: Vec::new(),
            sending: None,
            hosts: BTreeMap::new(),
            reports: Vec::new(),
        })
    }

    pub(super) const fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Returns the session that this host sends with a key, and the protection of its data.
    pub(super) fn sealer(&self) -> Option<(Session, &GroupSeal)> {
        let (session, _) = self.sending.as_ref()?.cast.sessions().next()?;
        Some((session, self.engine.data_seal(session)?))
    }

    pub(super) const fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.engine.is_blocked()
    }

    fn note(&mut self, text: String) {
        self.reports.push(Report::Note(text));
    }

    /// Starts `cast send` to all others.
    pub(super) fn send(&mut self, now: Time, streams: &Arc<Streams>, scenario: &Scenario) {
        for host in 1..scenario.hosts.len() {
            self.hosts.insert(self.engine.add_peer((ip(host), PORT).into()), host);
        }
        let to: Vec<HostId> = self.hosts.keys().copied().collect();
        let (spread, flow) = (scenario.spread, flow(scenario));
        let delete = if scenario.deletes.is_empty() { Delete::Never } else { Delete::Later };
        let purpose = Purpose { checksum: scenario.checksum(), delete, ..Purpose::default() };
        let config = CastConfig { spread, flow, purpose };
        let (cast, pipe) = match scenario.reads {
            reads @ Reads::Pipe { .. } => {
                let (source, pipe) = Reader::new(streams.all(), reads);
                (Cast::stream(&mut self.engine, Box::new(source), &to, config), pipe)
            }
            reads => {
                let files = Box::new(Files { streams: Arc::clone(streams), reads });
                (Cast::files(&mut self.engine, files, &to, config), None)
            }
        };
        match cast {
            Err(error) => {
                self.note(format!("cannot open a session: {error}"));
                self.reports.push(Report::Exit(false));
            }
            Ok(cast) => {
                self.sending = Some(Sending {
                    cast,
                    to,
                    pipe,
                    filled: now,
                    completed: BTreeSet::new(),
                    deletes: delete != Delete::Never,
                    gone: BTreeSet::new(),
                });
            }
        }
    }

    /// One turn of the engine, as the command's loop makes it. Returns when the next one is due by the clock of the process.
    pub(super) fn turn(&mut self, now: Time) -> Result<Option<Time>, String> {
        let mut filled_at = None;
        if let Some(sending) = &mut self.sending
            && let Some(pipe) = &sending.pipe
        {
            let span = now.since(sending.filled);
            if span < FILL || pipe.fill(span) {
                filled_at = Some(now + FILL);
            }
            if span >= FILL {
                sending.filled = now;
            }
        }
        let next = self.engine.turn().map_err(|error| error.to_string())?;
        while let Some(event) = self.engine.poll_event() {
            self.on_event(event);
        }
        self.check_gone();
        let mut due = None;
        if let Some(sending) = &mut self.sending {
            if sending.cast.is_over() {
                self.on_over();
            } else {
                due = sending.cast.poll(&mut self.engine).map_err(|error| error.to_string())?;
            }
        }
        Ok([next, filled_at, due].into_iter().flatten().min())
    }

    /// Checks that no receiver is invited again for bytes that a pipe has given back.
    fn check_gone(&mut self) {
        let Some(sending) = self.sending.as_ref().filter(|it| !it.gone.is_empty()) else { return };
        let view = sending.cast.view(&self.engine);
        let is_invited = |it: &&ReceiverProgress| {
            sending.gone.contains(&it.host)
                && matches!(it.status, ReceiverStatus::Invited | ReceiverStatus::Preparing)
        };
        if let Some(it) = view.receivers.iter().map(|it| &it.progress).find(is_invited) {
            let text = format!("{} is invited again for bytes that are gone", it.address);
            self.reports.push(Report::Wrong(text));
        }
    }

    fn on_event(&mut self, event: EngineEvent) {
        match &event {
            EngineEvent::Sender(session, event) => self.on_sender_event(*session, *event),
            EngineEvent::Answered { host, findings, .. } => {
                let name = self.hosts.get(host).copied().unwrap_or(usize::MAX);
                let lacks = findings.as_ref().map(|it| it.lacking.iter().collect::<Vec<_>>());
                self.note(format!("host {name} answers that it lacks {lacks:?}"));
                if let Some(sending) = &mut self.sending
                    && lacks.is_some_and(|lacks| lacks.is_empty())
                {
                    sending.completed.insert(*host);
                }
            }
            EngineEvent::Renewed { session, .. } => {
                self.note(format!("goes on with session {:08x}", session.0));
                if let Some(sending) = &mut self.sending {
                    sending.gone.clear();
                }
            }
            EngineEvent::Compared { comparison, .. } => {
                self.note(format!("lacks {} files", comparison.lacking_files));
                if comparison.is_complete {
                    self.reports.push(Report::Received);
                }
            }
            EngineEvent::Receiving { session, at, .. } => {
                self.note(format!("receives session {:08x} from byte {at}", session.0));
            }
            EngineEvent::Received { .. } => self.reports.push(Report::Received),
            EngineEvent::ReceiveFailed { session, reason, error, .. } => {
                let is_damage = error.as_ref().is_some_and(SinkError::is_damage);
                let why = error.as_ref().map_or_else(|| format!("{reason:?}"), ToString::to_string);
                let text = format!("session {:08x} has failed: {why}", session.0);
                self.reports.push(match is_damage || *reason == Reason::Damaged {
                    true => Report::Wrong(text),
                    false => Report::Note(text),
                });
            }
            EngineEvent::Sent { .. } | EngineEvent::Control(_) => {}
        }
        if let Some(sending) = &mut self.sending {
            sending.cast.handle(&self.engine, event);
        }
    }

    fn on_sender_event(&mut self, session: Session, event: SenderEvent) {
        let name = |host: HostId| self.hosts.get(&host).copied().unwrap_or(usize::MAX);
        let Some(sending) = &mut self.sending else { return };
        let text = match event {
            SenderEvent::Joined { host, at } => {
                sending.gone.remove(&host);
                format!("host {} has joined at byte {at}", name(host))
            }
            SenderEvent::Completed { host } => {
                if sending.cast.sessions().any(|it| it == (session, true)) {
                    sending.completed.insert(host);
                }
                format!("host {} has completed", name(host))
            }
            SenderEvent::Preparing { host } => format!("host {} prepares", name(host)),
            SenderEvent::Lost { host, reason } => {
                if reason == Reason::TooLate
                    && sending.pipe.as_ref().is_some_and(|pipe| pipe.readable_from() > 0)
                {
                    sending.gone.insert(host);
                }
                let name = name(host);
                format!("host {name} is lost: {reason:?}")
            }
            _ => return,
        };
        self.note(text);
    }

    /// `send` ends, with the exit code of `cast send`.
    fn on_over(&mut self) {
        let Some(mut sending) = self.sending.take() else { return };
        let view = sending.cast.view(&self.engine);
        let error = sending.cast.take_error();
        match error {
            None => {}
            // A session that replaces another one takes a receiver whose bytes the pipe has given back before.
            Some(SourceError::Gone(_))
                if sending.pipe.as_ref().is_some_and(|pipe| pipe.readable_from() > 0) =>
            {
                self.note("the source has given back what is needed".to_owned());
            }
            Some(error) => self.reports.push(Report::Wrong(format!("the source fails: {error}"))),
        }
        let is_complete = |host: &HostId| {
            let receiver = view.receivers.iter().find(|it| it.progress.host == *host);
            receiver.is_some_and(|it| {
                let has_deleted = match &it.deletion {
                    Deletion::None => !sending.deletes,
                    Deletion::Done(deleted) => deleted.failed == 0,
                    Deletion::Refused | Deletion::NotDone(_) => false,
                };
                it.progress.status == ReceiverStatus::Completed && has_deleted
            })
        };
        let done = sending.to.iter().all(is_complete);
        if !done
            && !sending.deletes
            && sending.to.iter().all(|host| sending.completed.contains(host))
        {
            let text = "`send` ends with exit code 1 though every receiver has completed";
            self.reports.push(Report::Wrong(text.to_owned()));
        }
        self.reports.push(Report::Exit(done));
    }

    /// Starts what its sinks have to do, and looks whether they have anything to do. Returns whether one has ended.
    pub(super) fn poll_sinks(&mut self, now: Time, host: &Host) -> bool {
        let started = std::mem::take(&mut self.platform.state().started);
        for work in started {
            if host.preparing > Span::ZERO {
                self.note("reads what it has".to_owned());
            }
            self.working.push(Working { work, task: None, has_ended: false });
        }
        for it in &mut self.working {
            match &mut it.task {
                None => match it.work.poll() {
                    Poll::Ready(Some(task)) => {
                        let span = match task.bytes() {
                            None => host.preparing,
                            Some(bytes) => host.disk_rate.span_of(bytes as u64),
                        };
                        it.task = Some((now + span + host.disk_latency.max(STEP), task));
                    }
                    Poll::Ready(None) => it.has_ended = true,
                    Poll::Pending => {}
                },
                // Whoever reads existing files looks in intervals whether that is still needed.
                Some((at, task)) if task.bytes().is_none() && it.work.is_closed() => {
                    *at = (*at).min(now + STEP);
                }
                Some(_) => {}
            }
        }
        let before = self.working.len();
        self.working.retain(|it| !it.has_ended);
        self.working.len() < before
    }

    /// Returns when the next step of a sink is done.
    pub(super) fn next_step(&self) -> Option<Time> {
        self.working.iter().filter_map(|it| Some(it.task.as_ref()?.0)).min()
    }

    /// Does a step of a sink that is due; `false` if none is.
    pub(super) fn step(&mut self, now: Time) -> bool {
        let due = |it: &&mut Working| it.task.as_ref().is_some_and(|(at, _)| *at <= now);
        let Some(it) = self.working.iter_mut().find(due) else { return false };
        if let Some((_, task)) = it.task.take() {
            it.work.run(task);
        }
        true
    }
}

fn flow(scenario: &Scenario) -> FlowConfig {
    FlowConfig { fec_block: scenario.fec_block, window: scenario.window, ..FlowConfig::default() }
}

/// Takes every stream into the root directory of a disk.
fn accept(disk: &Disk, streams: &Arc<Streams>, scenario: &Scenario) -> Accept {
    let (disk, streams) = (disk.clone(), Arc::clone(streams));
    let Scenario { overwrite, sync, .. } = *scenario;
    // Attempts of one process share what they have found.
    let allow_delete = !scenario.deletes.is_empty();
    let config = FolderConfig { overwrite, sync, allow_delete, ..FolderConfig::default() };
    Box::new(move |offer| {
        let (disk, config) = (disk.clone(), config.clone());
        let (number, is_manifest) = (offer.stream, offer.is_manifest());
        let stream = streams.get(number);
        Decision::Accept(Box::new(move |cancel| {
            let config = FolderConfig { cancel: cancel.clone(), ..config };
            let root = Dir::on(disk.root(), "/srv".into());
            if is_manifest {
                return Ok(Box::new(Comparing::in_dir(root, config)) as Box<dyn Sink>);
            }
            let folder = Folder::in_dir(root, config, number)?;
            let at = folder.begins_at();
            let stream = stream.unwrap_or_else(|| panic!("a stream that nobody sends"));
            Ok(Box::new(Checked { folder, stream, at }) as Box<dyn Sink>)
        }))
    })
}

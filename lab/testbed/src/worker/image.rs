//! A host of a run with an image: the server or a client of `rackweave image`, in a thread of its own.

use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_core::{HostId, Span, Time};
use rackweave_image::{Progress, TargetConfig};
use rackweave_imaging::{
    Catalog, FetchConfig, FetchEvent, Fetched, MulticastConfig, ServeConfig, ServeEvent, Served,
    SessionCounts, fetch, serve,
};
use rackweave_lab::study::image::{ClientReport, ImageConfig, Redirects, Scheme, ServerReport};
use rackweave_swp2p::{Shape, p2p};
use rackweave_wire::frisbee::{GROUP, PORT, SESSION_PORT};

use super::timeline::{LinkMeter, TimeLine, pause};
use super::{POLL_EVERY, REPORT_EVERY, next_command, process_cpu_s, send, writer};
use crate::image::{NAME, content, packed, target};
use crate::kinds::HostProcess;
use crate::protocol::{Command, HostEnd, ImageEnd, Records, StudyEnd, WorkerMessage};

/// How long the server still answers after the command to stop, so that clients can leave in order.
const LAST_ANSWERS: Span = Span::from_secs(1);
/// How long a client may take to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The memory for chunks at a client: the default of `rackweave image fetch`. Simulated clients have no limit.
const MEMORY: u64 = 512 << 20;

/// The role of a host in imaging.
trait ImageHost {
    /// Waits at most for this time, and processes what has happened meanwhile.
    fn wait(&mut self, most: Span);
    /// Returns whether nothing more will happen, as far as this host knows.
    fn is_idle(&self) -> bool;
    /// Ends, and reports.
    fn end(self: Box<Self>) -> ImageEnd;
}

pub(crate) fn run(image: &ImageConfig, process: &HostProcess<'_>) -> Result<(), String> {
    let &HostProcess { this, setup, bind, commands, .. } = process;
    let Some(folder) = &setup.image else { return Err("it has no image".into()) };
    let line = TimeLine::new(bind);
    let at = address(this)?;
    let place = Place { this, at, image, folder, line };
    let start = image.clients.iter().find(|(host, _)| *host == this).map(|(_, start)| *start);
    let member: Box<dyn ImageHost> = match start {
        _ if this == image.server => Box::new(Server::start(&place)?),
        Some(start) => Box::new(Client::start(&place, start)?),
        None => Box::new(Bystander),
    };
    send(&WorkerMessage::Bound(vec![Some(at.into())]));
    let sent = LinkMeter::start();
    let end = follow(member, line, commands)?;
    send(&WorkerMessage::HostEnd(Box::new(HostEnd {
        cpu_s: process_cpu_s(),
        study: Some(StudyEnd::Image(ImageEnd { link_bytes: sent.bytes(), ..end })),
        ..HostEnd::default()
    })));
    Ok(())
}

/// Returns the address of a host for images, in its namespace.
fn address(host: HostId) -> Result<SocketAddrV4, String> {
    let ip = rackweave_wire::frame::ip_address(host);
    let ip = ip.ok_or_else(|| format!("host {} has no address", host.0))?;
    Ok(SocketAddrV4::new(Ipv4Addr::from(ip), PORT))
}

/// Reports a host's progress until the command to stop.
fn follow(
    mut member: Box<dyn ImageHost>,
    line: TimeLine,
    commands: &Receiver<Command>,
) -> Result<ImageEnd, String> {
    let (lines, written) = writer();
    let mut reported: Option<(Time, bool)> = None;
    while !matches!(next_command(commands), Some(Command::Stop)) {
        member.wait(POLL_EVERY);
        let idle = member.is_idle();
        if let Some(now) = line.now()
            && reported.is_none_or(|(at, was)| was != idle || now >= at + REPORT_EVERY)
        {
            reported = Some((now, idle));
            let records = Records { until: now.ticks(), idle, ..Records::default() };
            // The writer ends only with the process.
            let _ = lines.send(WorkerMessage::Records(records));
        }
    }
    let end = member.end();
    drop(lines);
    written.join().map_err(|_| "it could not write".to_owned())?;
    Ok(end)
}

/// The parameters of a host.
struct Place<'a> {
    this: HostId,
    at: SocketAddrV4,
    image: &'a ImageConfig,
    folder: &'a Path,
    line: TimeLine,
}

fn thread<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    let thread = std::thread::Builder::new().name("image".into());
    thread.spawn(run).map_err(|error| format!("it cannot start a thread: {error}"))
}

/// What a server has counted for SWP2P, and in a Frisbee session.
type Counted = (p2p::server::Counters, Option<SessionCounts>);

/// The host that serves the image.
struct Server {
    shape: Shape,
    progress: Arc<Progress>,
    running: JoinHandle<Result<Counted, String>>,
    problems: Receiver<String>,
}

impl Server {
    /// Returns when clients can connect.
    fn start(place: &Place<'_>) -> Result<Self, String> {
        let progress = Arc::new(Progress::default());
        let catalog = Catalog::open(&[packed(place.folder)], &progress);
        let catalog = catalog.map_err(|error| error.to_string())?;
        let (directory, serve_by, expected, multicast) = match &place.image.scheme {
            Scheme::P2p(scheme) => {
                let directory = match scheme.redirects {
                    Redirects::Server => Some(scheme.directory),
                    Redirects::Nobody | Redirects::Switches { .. } => None,
                };
                (directory, scheme.serve, scheme.expected, None)
            }
            Scheme::Frisbee { pace, .. } => {
                let (group, port) = (Ipv4Addr::from(GROUP), Some(SESSION_PORT));
                let multicast = MulticastConfig { group, port, pace: *pace };
                (None, p2p::Serve::default(), 0, Some(multicast))
            }
        };
        // Addresses continue the numbers of hosts, so that racks are prefixes. Others were refused.
        let rack = directory.and_then(|directory| directory.hosts_per_rack);
        let config = ServeConfig {
            page: None,
            listen: place.at,
            key: None,
            machine: p2p::server::Config {
                serve: serve_by,
                directory,
                expected: u16::try_from(expected).unwrap_or(0),
            },
            rate: None,
            receivers: None,
            holders: None,
            time_limit: None,
            rack_prefix: rack.map(|hosts| (u32::BITS - hosts.ilog2()) as u8),
            multicast,
            frisbee: None,
            frisbee_names: None,
        };
        let (listening, is_listening) = channel();
        let (problem, problems) = channel();
        let watch = Arc::clone(&progress);
        let running = thread(move || {
            let served = serve(&config, catalog, &watch, &mut |event| match event {
                ServeEvent::Listening { .. } => drop(listening.send(())),
                ServeEvent::Broken { why, .. } => drop(problem.send(why)),
                _ => {}
            });
            let counted = |served: Served| (served.counters, served.sessions.first().copied());
            served.map(counted).map_err(|error| error.to_string())
        })?;
        if is_listening.recv().is_err() {
            // It has ended.
            let error = running.join().ok().and_then(Result::err);
            return Err(error.unwrap_or_else(|| "it does not listen".into()));
        }
        Ok(Self { shape: place.image.image, progress, running, problems })
    }
}

impl ImageHost for Server {
    fn wait(&mut self, most: Span) {
        pause(most);
    }

    fn is_idle(&self) -> bool {
        // Only clients determine the end of the run.
        true
    }

    fn end(self: Box<Self>) -> ImageEnd {
        pause(LAST_ANSWERS);
        self.progress.stop();
        let counted = match self.running.join() {
            Ok(counted) => counted,
            Err(_) => Err("the server has failed: this is an error in Rackweave".into()),
        };
        let problem = counted.as_ref().err().cloned().or_else(|| self.problems.try_recv().ok());
        let (counted, session) = counted.unwrap_or_default();
        let server = session.map_or_else(
            || of_p2p(&counted, self.shape),
            |SessionCounts { counts, service }| ServerReport::of_session(&counts, service),
        );
        ImageEnd { server: Some(server), problem, ..ImageEnd::default() }
    }
}

/// Returns the report of a server of SWP2P.
fn of_p2p(counted: &p2p::server::Counters, image: Shape) -> ServerReport {
    ServerReport {
        sent_bytes: counted.started * u64::from(image.chunk_bytes()),
        messages: counted.requests + counted.reports + counted.unknown,
        requests: counted.requests,
        max_queue: counted.most_queued,
        returned: counted.returned,
        ..ServerReport::default()
    }
}

/// How far a client's thread is.
enum News {
    Received(Time),
    /// Every byte is on the target.
    Written(Time, Fetched),
    /// It goes on without multicast, for this reason.
    NoMulticast(String),
    /// The client has left, or has failed.
    Ended(Result<Fetched, String>),
}

/// A host that fetches the image.
struct Client {
    server: Ipv4Addr,
    shape: Shape,
    folder: PathBuf,
    target: PathBuf,
    progress: Arc<Progress>,
    news: Receiver<News>,
    received: Option<Time>,
    written: Option<Time>,
    /// What was counted, once the image is written.
    fetched: Option<Fetched>,
    /// Whether the thread has ended.
    has_ended: bool,
    problem: Option<String>,
}

impl Client {
    fn start(place: &Place<'_>, start: Time) -> Result<Self, String> {
        let server = address(place.image.server)?;
        let target = target(place.folder, place.this);
        let (machine, session) = match &place.image.scheme {
            Scheme::P2p(scheme) => (scheme.client, None),
            Scheme::Frisbee { client, .. } => (Default::default(), Some(client.clone())),
        };
        let config = FetchConfig {
            server,
            own: Some(*place.at.ip()),
            name: NAME.to_owned(),
            target: target.clone(),
            target_config: TargetConfig::default(),
            key: None,
            signer: None,
            machine,
            memory: MEMORY,
            rate: None,
            serve: true,
            multicast: session.is_some(),
            session,
        };
        let progress = Arc::new(Progress::default());
        let (news, line, watch) = (channel(), place.line, Arc::clone(&progress));
        let report = news.0;
        thread(move || {
            line.wait_until(start);
            let ended = fetch_all(&config, &watch, line, &report);
            // Nobody listens if the client did not leave in time.
            let _ = report.send(News::Ended(ended));
        })?;
        Ok(Self {
            server: *server.ip(),
            shape: place.image.image,
            folder: place.folder.to_owned(),
            target,
            progress,
            news: news.1,
            received: None,
            written: None,
            fetched: None,
            has_ended: false,
            problem: None,
        })
    }

    fn take(&mut self, news: News) {
        match news {
            News::Received(at) => self.received = Some(at),
            News::Written(at, fetched) => {
                self.written = Some(at);
                self.fetched = Some(fetched);
            }
            // What follows is not what was to be measured.
            News::NoMulticast(why) => {
                self.problem = Some(format!("it has left the multicast session: {why}"));
            }
            News::Ended(ended) => {
                self.has_ended = true;
                match ended {
                    Ok(fetched) => self.fetched = Some(fetched),
                    // What happens to one that has every byte is of no interest.
                    Err(error) if self.written.is_none() => self.problem = Some(error),
                    Err(_) => {}
                }
            }
        }
    }
}

fn fetch_all(
    config: &FetchConfig,
    progress: &Arc<Progress>,
    line: TimeLine,
    report: &Sender<News>,
) -> Result<Fetched, String> {
    let mut on_event = |event| {
        let now = line.since();
        let news = match event {
            FetchEvent::Received => News::Received(now),
            FetchEvent::Written(fetched) => News::Written(now, fetched),
            FetchEvent::NoMulticast(why) => News::NoMulticast(why),
            _ => return,
        };
        // As above.
        let _ = report.send(news);
    };
    let (fetched, result) = fetch(config, progress, &mut on_event);
    result.map(|()| fetched).map_err(|error| error.to_string())
}

impl ImageHost for Client {
    fn wait(&mut self, most: Span) {
        match self.news.recv_timeout(Duration::from_nanos(most.as_ns())) {
            Ok(news) => self.take(news),
            Err(RecvTimeoutError::Timeout) => {}
            // The thread has ended, and everything is known.
            Err(RecvTimeoutError::Disconnected) => pause(most),
        }
    }

    fn is_idle(&self) -> bool {
        self.written.is_some() || self.has_ended
    }

    fn end(mut self: Box<Self>) -> ImageEnd {
        // A client that has written the image leaves; another one stops.
        self.progress.stop();
        while !self.has_ended
            && let Ok(news) = self.news.recv_timeout(LEAVE_TIMEOUT)
        {
            self.take(news);
        }
        // Of a client that has not written the image, only the arrived bytes are known.
        let is_known = self.fetched.is_some();
        let fetched = self.fetched.take().unwrap_or_default();
        let bytes = |chunks: u32| u64::from(chunks) * u64::from(self.shape.chunk_bytes());
        let is_peer = |(from, _): &(&Ipv4Addr, &u32)| **from != self.server;
        let is_exact = fetched.fetched == self.shape.chunks()
            && fetched.kept == 0
            && is_same(&content(&self.folder), &self.target).unwrap_or(false);
        let times = (self.received, self.written);
        let exact = self.written.is_some() && is_exact;
        if let Some(counts) = fetched.session {
            let client = ClientReport::of_session(&counts, times, exact);
            return ImageEnd { client: Some(client), problem: self.problem, ..ImageEnd::default() };
        }
        let client = ClientReport {
            received: self.received,
            finished: self.written,
            exact,
            received_bytes: match is_known {
                true => bytes(fetched.fetched + fetched.duplicates),
                false => self.progress.bytes().0,
            },
            duplicate_bytes: bytes(fetched.duplicates),
            dropped_bytes: bytes(fetched.damaged),
            from_peers_bytes: bytes(fetched.from.iter().filter(is_peer).map(|(_, it)| it).sum()),
            served_bytes: bytes(fetched.to.values().sum()),
            requests: fetched.requests.into(),
            rerequests: fetched.retries.into(),
            returned: fetched.returned.into(),
        };
        ImageEnd { client: Some(client), problem: self.problem, ..ImageEnd::default() }
    }
}

/// Returns whether two files have the same bytes.
fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut expected, mut found) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let most = one.read(&mut expected)?;
        if most == 0 {
            return Ok(true);
        }
        other.read_exact(&mut found[..most])?;
        if expected[..most] != found[..most] {
            return Ok(false);
        }
    }
}

/// A host that takes no part in imaging.
struct Bystander;

impl ImageHost for Bystander {
    fn wait(&mut self, most: Span) {
        pause(most);
    }
    fn is_idle(&self) -> bool {
        true
    }
    fn end(self: Box<Self>) -> ImageEnd {
        ImageEnd::default()
    }
}

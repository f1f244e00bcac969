//! The place of a master at its controller. A thread asks, so that the master never waits for HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rackweave_core::Span;
use rackweave_linux::{Clock, random};
use rackweave_rackless::controller::{Declared, Phase};

use crate::api::{Granted, Known};
use crate::client::{Client, ClientError};

/// How often a controller hears of a master that has no news.
const ALIVE: Duration = Duration::from_secs(3);
/// How long a request that failed waits for its repetition.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a link tries to report the end of its job.
const LAST: Span = Span::from_secs(3);
/// How long a job waits for its link, which may have a request that hangs.
const LEFT_AFTER: Duration = Duration::from_secs(5);
/// How often it is looked whether the job is interrupted.
const LOOK: Duration = Duration::from_millis(50);
/// How many seconds a request for a grant waits: an interrupted job asks no longer.
const WAIT_S: u8 = 1;
/// After what time it is said that the controller does not answer.
const SAID_AFTER: Span = Span::from_secs(5);

/// What a job may upload with; `None`: without a switch.
pub type Grant = Option<Granted>;

/// Why an upload goes on without its controller.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It has waited for its turn this long.
    #[error("no turn within {0}")]
    NoTurn(Span),
    /// The job was interrupted.
    #[error("the job is interrupted")]
    Interrupted,
    /// The controller does not answer, or refuses.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// How large an upload was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uploads {
    /// The bytes of each worker.
    pub upload: Vec<u64>,
    /// The bytes that are left of them when they are added up.
    pub distinct: u64,
}

enum News {
    Phase(Phase),
    Ready(Known),
    Uploaded(Known),
    End,
}

/// A registered job.
#[derive(Debug)]
pub struct Link {
    job: u16,
    news: Sender<News>,
    grants: Receiver<Result<Grant, LinkError>>,
    /// Disconnected when the thread has ended.
    over: Receiver<()>,
    has_ended: Arc<AtomicBool>,
}

impl std::fmt::Debug for News {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("News")
    }
}

impl Link {
    /// Registers a job, and tries for as long as `patience` if the controller does not answer, which `is_silent` says once. An upload
    /// that has no grant after `patience` goes on without.
    ///
    /// # Errors
    /// If the controller refuses, or cannot be reached, or if `stop` is set.
    pub fn open(
        client: Client,
        declared: Declared,
        patience: Span,
        stop: &AtomicBool,
        is_silent: impl FnOnce(),
    ) -> Result<Self, LinkError> {
        let (news, heard) = channel();
        let (granted, grants) = channel();
        let (registered, number) = channel();
        let (until, over) = channel::<()>();
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        std::thread::spawn(move || {
            let _until = until;
            let number = register(&client, &declared, patience, &ended);
            let job = number.as_ref().ok().copied();
            if registered.send(number).is_ok()
                && let Some(job) = job
            {
                Place { client, job, patience, has_ended: ended }.keep(&heard, &granted);
            }
        });
        let clock = Clock::start();
        let mut is_silent = Some(is_silent);
        loop {
            match number.recv_timeout(LOOK) {
                Ok(number) => return Ok(Self { job: number?, news, grants, over, has_ended }),
                Err(_) if stop.load(Ordering::Relaxed) => {
                    has_ended.store(true, Ordering::Relaxed);
                    return Err(LinkError::Interrupted);
                }
                Err(_) if clock.now().ticks() > SAID_AFTER.ticks() => {
                    is_silent.take().into_iter().for_each(|say| say());
                }
                Err(_) => {}
            }
        }
    }

    /// Its number.
    #[must_use]
    pub const fn job(&self) -> u16 {
        self.job
    }

    /// The job has come to a phase.
    pub fn phase(&self, phase: Phase) {
        // If the thread has ended, the job is no business of the controller any more.
        let _ = self.news.send(News::Phase(phase));
    }

    /// The workers are ready. What contradicts the declaration is left out.
    pub fn ready(&self, known: Known) {
        let _ = self.news.send(News::Ready(known));
    }

    /// The grant, or why the upload goes on without, once there is one. Called after [`ready`](Self::ready).
    pub fn poll(&self) -> Option<Result<Grant, LinkError>> {
        self.grants.try_recv().ok()
    }

    /// The upload has ended.
    pub fn uploaded(&self, uploads: Uploads) {
        let Uploads { upload, distinct } = uploads;
        let known = Known { workers: None, upload: Some(upload), distinct: Some(distinct) };
        let _ = self.news.send(News::Uploaded(known));
    }
}

impl Drop for Link {
    /// Reports the end of the job, for at most three seconds.
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let _ = self.news.send(News::End);
        // It says nothing, and disconnects. A request that hangs is left behind.
        let _ = self.over.recv_timeout(LEFT_AFTER);
    }
}

fn register(
    client: &Client,
    declared: &Declared,
    patience: Span,
    has_ended: &AtomicBool,
) -> Result<u16, LinkError> {
    let nonce = random() as u64;
    let clock = Clock::start();
    loop {
        match client.register(nonce, declared) {
            Ok(job) => return Ok(job.job),
            Err(_) if has_ended.load(Ordering::Relaxed) => return Err(LinkError::Interrupted),
            Err(error) if error.is_passing() && clock.now().ticks() < patience.ticks() => {
                pause(AGAIN);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

struct Place {
    client: Client,
    job: u16,
    patience: Span,
    has_ended: Arc<AtomicBool>,
}

impl Place {
    /// Passes on all news in order, and waits for the grant.
    fn keep(self, heard: &Receiver<News>, granted: &Sender<Result<Grant, LinkError>>) {
        loop {
            let news = match heard.recv_timeout(ALIVE) {
                Ok(news) => news,
                Err(RecvTimeoutError::Timeout) => {
                    // A controller that does not answer hears of it the next time.
                    let _ = self.client.job(self.job, 0);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => News::End,
            };
            match news {
                News::Phase(phase) => {
                    let _ = self.client.phase(self.job, phase, Known::default());
                }
                News::Ready(known) => {
                    let grant = self.grant(&known);
                    let is_late = grant.is_err();
                    if granted.send(grant).is_err() {
                        return;
                    }
                    let _ = is_late
                        .then(|| self.client.phase(self.job, Phase::Upload, Known::default()));
                }
                News::Uploaded(known) => {
                    let told = self.client.phase(self.job, Phase::Reduce, known);
                    // Sizes that contradict what was declared are left out.
                    if matches!(told, Err(ClientError::Refused { status: 422, .. })) {
                        let _ = self.client.phase(self.job, Phase::Reduce, Known::default());
                    }
                }
                News::End => return self.end(),
            }
        }
    }

    /// Asks before the upload, and repeats it until the controller answers, also after a restart of it.
    fn grant(&self, known: &Known) -> Result<Grant, LinkError> {
        let clock = Clock::start();
        let mut is_told = false;
        let has_news = known.workers.is_some() || known.upload.is_some();
        loop {
            let asked = match is_told {
                false => self.client.ready(self.job, known),
                true => self.client.job(self.job, WAIT_S),
            };
            let why = match asked {
                Ok(job) => {
                    is_told = true;
                    if let Some(grant) = job.grant {
                        return Ok((!grant.switch.is_empty()).then_some(grant));
                    }
                    None
                }
                Err(error) if error.is_passing() => Some(error),
                Err(ClientError::Refused { status: 422, .. }) if has_news && !is_told => {
                    // Servers that the pod does not have are not told.
                    return self.grant(&Known::default());
                }
                Err(error) => return Err(error.into()),
            };
            if self.has_ended.load(Ordering::Relaxed) {
                return Err(LinkError::Interrupted);
            }
            if clock.now().ticks() > self.patience.ticks() {
                return Err(why.map_or(LinkError::NoTurn(self.patience), LinkError::Client));
            }
            if why.is_some() {
                pause(AGAIN);
            }
        }
    }

    fn end(&self) {
        let clock = Clock::start();
        while let Err(error) = self.client.end(self.job) {
            if !error.is_passing() || clock.now().ticks() > LAST.ticks() {
                return;
            }
            pause(AGAIN);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread that waits for a controller")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

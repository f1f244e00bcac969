//! A blob is fetched: chunks from nodes, and from the registry.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::blob::{Arriving, Failure, Source, Written};
use crate::counts::Counts;
use crate::directory::Run;
use crate::registry::Place;
use crate::service::{Event, Node};

/// Chunks of one request. Rackweave's choice: enough that a request's round trip does not count.
const BATCH: u32 = 8;
/// Requests under way.
const WORKERS: usize = 4;
/// How long a node may take for one request. What has arrived until then counts.
const NODE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a registry may.
const REGISTRY_PATIENCE: Duration = Duration::from_secs(60);
/// How long one may that sends no parts, only the whole.
const WHOLE_PATIENCE: Duration = Duration::from_secs(6 * 3600);
/// A request is repeated this often without a new chunk, and the directory names the registry from its third repetition on.
const MOST_TRIES: u8 = 6;
/// The time before a request is repeated, times the number of tries.
const PAUSE: Duration = Duration::from_millis(100);

/// Chunks that are to be fetched, with the number of earlier tries.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    first: u32,
    count: u32,
    tries: u8,
}

/// A request.
#[derive(Clone, Copy, Debug)]
struct Job {
    run: Run,
    tries: u8,
}

#[derive(Debug)]
struct Plan {
    attempt: u32,
    /// Whether nodes are asked.
    asks_nodes: bool,
    /// The first chunk that was never asked for.
    next: u32,
    again: Vec<Wanted>,
    ready: VecDeque<Job>,
    under_way: usize,
    /// Whether the registry sends all chunks in one answer.
    is_whole: bool,
    /// How often such an answer was not whole.
    broken: u8,
    is_over: bool,
}

/// What one blob needs to be fetched.
pub(crate) struct Fetch {
    pub(crate) node: Arc<Node>,
    pub(crate) blob: Arc<Arriving>,
    pub(crate) place: Place,
}

struct Shared<'a> {
    fetch: &'a Fetch,
    plan: Mutex<Plan>,
    changed: Condvar,
}

impl Fetch {
    /// Fetches the blob, in this thread and some others. Its outcome says how that ends.
    pub(crate) fn run(&self) {
        let _end = Ends(self);
        let plan = Plan {
            attempt: 0,
            asks_nodes: self.node.has_directory(),
            next: 0,
            again: Vec::new(),
            ready: VecDeque::new(),
            under_way: 0,
            is_whole: false,
            broken: 0,
            is_over: false,
        };
        let shared = Shared { fetch: self, plan: Mutex::new(plan), changed: Condvar::new() };
        if self.blob.chunks() == 0 {
            // Nothing has a digest, too.
            match self.blob.hash(&self.node.store) {
                Ok(Written::Whole(_)) => {}
                Ok(_) => self.blob.fail(Failure::Damaged),
                Err(error) => self.blob.fail(unwritten(&error)),
            }
        } else {
            std::thread::scope(|scope| {
                for _ in 1..WORKERS.min(self.blob.chunks() as usize) {
                    // This one does it alone, if there are no more.
                    let _ = std::thread::Builder::new().spawn_scoped(scope, || shared.work());
                }
                shared.work();
            });
        }
    }
}

/// Ends a fetch, also one that panics.
struct Ends<'a>(&'a Fetch);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // If it has an outcome, that one stays.
        self.0.blob.fail(Failure::Other("an error in Rackweave".to_owned()));
        self.0.node.arrived(self.0);
    }
}

impl Shared<'_> {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((job, attempt)) = self.next() {
            let Run { first, count, .. } = job.run;
            let missing = || {
                let all = first..first + count;
                all.filter(|it| !self.fetch.blob.has(*it)).collect::<Vec<u32>>()
            };
            let before = missing();
            let result = self.perform(job, &before, attempt);
            self.done(job, attempt, result, before.len(), &missing());
        }
    }

    /// The next request; waits while others are under way whose chunks may have to be asked for again.
    fn next(&self) -> Option<(Job, u32)> {
        let blob = &self.fetch.blob;
        let mut plan = self.plan();
        loop {
            if plan.is_over || blob.outcome().is_some() || self.fetch.node.is_stopped() {
                plan.is_over = true;
                self.changed.notify_all();
                if blob.outcome().is_none() {
                    blob.fail(Failure::Other("the node ends".to_owned()));
                }
                return None;
            }
            if let Some(job) = plan.ready.pop_front() {
                plan.under_way += 1;
                return Some((job, plan.attempt));
            }
            let wanted = plan.again.pop().or_else(|| {
                let rest = blob.chunks() - plan.next;
                let wanted = Wanted { first: plan.next, count: rest.min(BATCH), tries: 0 };
                plan.next += wanted.count;
                (wanted.count > 0 && !plan.is_whole).then_some(wanted)
            });
            match wanted {
                Some(wanted) => {
                    if wanted.tries > 0 {
                        drop(plan);
                        pause(PAUSE * u32::from(wanted.tries));
                        plan = self.plan();
                    }
                    let runs = match plan.asks_nodes {
                        true => self.fetch.node.ask(blob, wanted.first, wanted.count, wanted.tries),
                        false => None,
                    };
                    let Wanted { first, count, tries } = wanted;
                    let registry = || vec![Run { first, count, node: None }];
                    let runs = runs.filter(|runs| covers(runs, first, count));
                    let mut runs = runs.unwrap_or_else(registry);
                    for run in &mut runs {
                        run.node = run.node.filter(|node| !self.fetch.node.is_liar(*node));
                    }
                    plan.ready.extend(runs.into_iter().map(|run| Job { run, tries }));
                    self.changed.notify_all();
                }
                None => {
                    let waited = self.changed.wait_timeout(plan, Duration::from_millis(200));
                    plan = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Fetches the chunks of a run that are missing.
    fn perform(&self, job: Job, missing: &[u32], attempt: u32) -> Result<(), Failure> {
        let Fetch { node, blob, place } = self.fetch;
        let from = job.run.node;
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return Ok(()) };
        let bytes = blob.range(first).start..blob.range(last).end;
        match from {
            Some(from) => {
                let body = node.http.blob(from, &blob.digest, bytes, NODE_PATIENCE);
                let body = body.map_err(Failure::Other)?;
                self.take(body, first..last + 1, Source::Node(from), attempt)
            }
            None => {
                let last_byte = bytes.end - 1;
                let content =
                    node.registry.content(place, bytes.start, last_byte, REGISTRY_PATIENCE)?;
                if content.first == bytes.start {
                    return self.take(content.body, first..last + 1, Source::Registry, attempt);
                }
                drop(content);
                self.take_whole(attempt)
            }
        }
    }

    /// The registry sends all or nothing: one answer has all chunks.
    fn take_whole(&self, attempt: u32) -> Result<(), Failure> {
        let Fetch { node, blob, place } = self.fetch;
        let asks_nodes = {
            let mut plan = self.plan();
            if std::mem::replace(&mut plan.is_whole, true) {
                // Another worker has it.
                return Ok(());
            }
            plan.next = blob.chunks();
            plan.again.clear();
            plan.ready.retain(|job| job.run.node.is_some());
            plan.asks_nodes
        };
        if asks_nodes {
            // Others are sent here for all of it.
            let mut first = 0;
            while first < blob.chunks() {
                let count = (blob.chunks() - first).min(512);
                let _ = node.ask(blob, first, count, MOST_TRIES);
                first += count;
            }
        }
        let content = node.registry.content(place, 0, blob.size - 1, WHOLE_PATIENCE);
        let result = content.and_then(|content| {
            self.take(content.body, 0..blob.chunks(), Source::Registry, attempt)
        });
        let mut plan = self.plan();
        plan.is_whole = false;
        if plan.attempt != attempt {
            return Ok(());
        }
        let Err(failure) = result else { return Ok(()) };
        plan.broken += 1;
        if plan.broken > MOST_TRIES || failure == Failure::Missing {
            plan.is_over = true;
            blob.fail(failure);
            return Ok(());
        }
        let time = PAUSE * u32::from(plan.broken);
        drop(plan);
        pause(time);
        // What is missing is asked for again.
        self.plan().next = 0;
        Ok(())
    }

    /// Reads chunks one after the other.
    fn take(
        &self,
        mut body: impl Read,
        chunks: std::ops::Range<u32>,
        source: Source,
        attempt: u32,
    ) -> Result<(), Failure> {
        let Fetch { node, blob, .. } = self.fetch;
        let mut buffer = Vec::new();
        for chunk in chunks {
            let range = blob.range(chunk);
            buffer.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            body.read_exact(&mut buffer).map_err(|error| {
                let from = match source {
                    Source::Registry => format!("the registry {}", self.fetch.place.upstream.url),
                    Source::Node(at) => format!("the node {at}"),
                };
                Failure::Other(format!("{from} breaks off: {error}"))
            })?;
            if node.is_stopped() || blob.attempt() != attempt {
                return Ok(());
            }
            let written = match blob.write(&node.store, (chunk, attempt), &buffer, source) {
                Ok(written) => written,
                Err(error) => {
                    // A disk that fails does so for every source.
                    blob.fail(unwritten(&error));
                    return Ok(());
                }
            };
            if written != Written::Known {
                let counter = match source {
                    Source::Registry => &node.counts.from_registry,
                    Source::Node(_) => &node.counts.from_nodes,
                };
                Counts::add(counter, range.end - range.start);
            }
            match written {
                Written::Known | Written::More => {}
                Written::Whole(gone) => Counts::add(&node.counts.evicted, gone as u64),
                Written::Damaged => self.damaged(),
            }
        }
        // The end of the answer lets its connection be used again.
        let _ = body.read(&mut [0]);
        Ok(())
    }

    /// All chunks are there, and something is wrong with them: once more from the registry alone.
    fn damaged(&self) {
        let Fetch { node, blob, place } = self.fetch;
        Counts::add(&node.counts.damaged, 1);
        let mut plan = self.plan();
        if !plan.asks_nodes {
            plan.is_over = true;
            blob.fail(Failure::Damaged);
        }
        node.tell(Event::Damaged { digest: blob.digest, name: place.name.clone() });
        let (attempt, under_way) = (blob.attempt(), plan.under_way);
        *plan = Plan {
            attempt,
            asks_nodes: false,
            next: 0,
            again: Vec::new(),
            ready: VecDeque::new(),
            under_way,
            is_whole: false,
            broken: 0,
            is_over: plan.is_over,
        };
        drop(plan);
        self.changed.notify_all();
    }

    fn done(
        &self,
        job: Job,
        attempt: u32,
        result: Result<(), Failure>,
        before: usize,
        missing: &[u32],
    ) {
        let blob = &self.fetch.blob;
        let mut plan = self.plan();
        plan.under_way -= 1;
        let node = job.run.node;
        if let Err(failure) = result
            && plan.attempt == attempt
        {
            // Only what brings nothing counts as a try.
            let tries = if missing.len() < before { job.tries.max(1) } else { job.tries + 1 };
            let is_final = match failure {
                Failure::Missing => node.is_none(),
                Failure::Damaged => true,
                Failure::Other(_) => tries > MOST_TRIES,
            };
            if is_final && !missing.is_empty() {
                plan.is_over = true;
                blob.fail(failure);
            } else if let (Some(&first), Some(&last)) = (missing.first(), missing.last()) {
                plan.again.push(Wanted { first, count: last + 1 - first, tries });
            }
        }
        self.changed.notify_all();
    }
}

/// Whether runs name these chunks, each once and in order.
fn covers(runs: &[Run], first: u32, count: u32) -> bool {
    let mut next = first;
    for run in runs {
        if run.first != next || run.count == 0 || run.count > first + count - next {
            return false;
        }
        next += run.count;
    }
    next == first + count
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::Other(format!("the blob cannot be written: {error}"))
}

#[expect(clippy::disallowed_methods, reason = "a thread that waits before it asks again")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_directory_must_name_what_was_asked_for() {
        let run = |first, count| Run { first, count, node: None };
        assert!(covers(&[run(8, 3), run(11, 5)], 8, 8));
        for wrong in [
            vec![],
            vec![run(8, 7)],
            vec![run(8, 9)],
            vec![run(7, 9)],
            vec![run(8, 4), run(13, 3)],
            vec![run(8, 8), run(16, 0)],
            vec![run(8, u32::MAX)],
        ] {
            assert!(!covers(&wrong, 8, 8), "{wrong:?}");
        }
    }
}

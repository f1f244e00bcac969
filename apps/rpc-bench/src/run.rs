//! The threads of a run, and what they report.

use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use rackweave_core::Time;
use rackweave_linux::Clock;
use tempfile::NamedTempFile;

use crate::client::{Client, Shared};
use crate::config::{BenchConfig, BenchError, local_address};
use crate::measure::GROUPS;
use crate::measure::{Interval, Summary, ThreadEnd, Trouble, histogram, peak_rss_bytes};
use crate::report;

/// A running benchmark.
#[derive(Debug)]
pub struct Bench {
    config: Arc<BenchConfig>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<ThreadEnd>>,
    clock: Clock,
    last: Time,
    all: Interval,
    dump: Option<Dump>,
}

/// A writer of round trips to a file, which gets its final name when it is complete.
#[derive(Debug)]
struct Dump {
    file: BufWriter<NamedTempFile>,
    failed: Option<io::Error>,
}

impl Bench {
    /// Starts the threads.
    ///
    /// # Errors
    /// If there is no route to a server, the dump cannot be written, or a thread cannot be started.
    pub fn start(config: BenchConfig) -> Result<Self, BenchError> {
        let clock = Clock::start();
        let config = Arc::new(config);
        let shared = Arc::new(Shared::new(&config));
        let dump = config.dump.as_deref().map(Dump::create).transpose()?;
        let mut endpoints = Vec::new();
        for _ in 0..config.ports {
            let Some(&server) = config.servers.first() else { break };
            let bind = SocketAddr::new(local_address(server)?, 0);
            endpoints.push(config.setup.endpoint(clock, bind, Vec::new())?);
        }
        let mut threads = Vec::new();
        for (index, endpoint) in endpoints.into_iter().enumerate() {
            let client = Client::new(index, Arc::clone(&config), Arc::clone(&shared), endpoint)?;
            let thread = std::thread::Builder::new()
                .name(format!("ask {index}"))
                .spawn(move || client.run())
                .map_err(BenchError::Thread)?;
            threads.push(thread);
        }
        let last = clock.now();
        Ok(Self { config, shared, threads, clock, last, all: Interval::default(), dump })
    }

    /// Returns the measurements since the last call.
    pub fn tick(&mut self) -> Interval {
        let mut sum = Interval::default();
        for thread in 0..self.shared.intervals.len() {
            let taken = self.shared.interval(thread).take();
            sum.join(taken);
        }
        let now = self.clock.now();
        sum.span = Duration::from_nanos(now.since(self.last).as_ns());
        self.last = now;
        if let Some(dump) = &mut self.dump {
            dump.append(&sum.rows);
        }
        self.all.span += sum.span;
        self.all.extend(sum.clone());
        sum
    }

    /// Stops sending; outstanding requests may finish.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Returns whether all threads have ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Returns the configuration of the run.
    #[must_use]
    pub fn config(&self) -> &BenchConfig {
        &self.config
    }

    /// Waits for the threads and returns the results.
    ///
    /// # Errors
    /// If the dump could not be written.
    pub fn finish(mut self) -> Result<Summary, BenchError> {
        let mut groups: Vec<_> = GROUPS.iter().map(|most| (*most, histogram())).collect();
        let (mut troubles, mut corrupt, mut digests) = (Vec::new(), 0, Vec::new());
        let mut first = None;
        for thread in std::mem::take(&mut self.threads) {
            let Ok(end) = thread.join() else {
                troubles.push(Trouble::Socket("a thread has panicked".into()));
                continue;
            };
            for (sum, group) in groups.iter_mut().zip(&end.groups) {
                // Both histograms resize themselves.
                let _ = sum.1.add(group);
            }
            first = first.or(end.first);
            corrupt += end.corrupt;
            digests.extend(end.digests);
            // Threads of the same server report the same problem.
            troubles.extend(end.trouble.filter(|trouble| !seen(&troubles, trouble)));
        }
        self.tick();
        if let (Some(dump), Some(path)) = (self.dump.take(), &self.config.dump) {
            dump.finish(path)?;
        }
        groups.retain(|group| !group.1.is_empty());
        let all = self.all;
        let peak_rss_bytes = peak_rss_bytes();
        Ok(Summary { all, groups, first, troubles, corrupt, digests, peak_rss_bytes })
    }
}

/// Whether a problem of this kind with the same server is already known.
fn seen(known: &[Trouble], new: &Trouble) -> bool {
    known.iter().any(|known| match (known, new) {
        (Trouble::NoAnswer { server: a, .. }, Trouble::NoAnswer { server: b, .. }) => a == b,
        (Trouble::WentSilent { .. }, Trouble::WentSilent { .. }) => true,
        _ => known == new,
    })
}

impl Dump {
    fn create(path: &Path) -> Result<Self, BenchError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let create = || {
            let mut file = BufWriter::new(NamedTempFile::new_in(folder)?);
            file.write_all(report::DUMP_HEADER.as_bytes())?;
            Ok(Self { file, failed: None })
        };
        create().map_err(|source| BenchError::Dump { path: path.to_owned(), source })
    }

    fn append(&mut self, rows: &[(u64, u64)]) {
        for &(len, rtt_ns) in rows {
            if self.failed.is_none() {
                self.failed = self.file.write_all(report::dump_row(len, rtt_ns).as_bytes()).err();
            }
        }
    }

    fn finish(self, path: &Path) -> Result<(), BenchError> {
        let persist = || {
            if let Some(error) = self.failed {
                return Err(error);
            }
            let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.persist(path).map_err(|error| error.error)?;
            Ok(())
        };
        persist().map_err(|source| BenchError::Dump { path: path.to_owned(), source })
    }
}

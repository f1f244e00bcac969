//! The place of a master at the controller of its pod.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use miette::miette;
use rackweave_core::HostId;
use rackweave_pod::api::Known;
use rackweave_pod::{Client, Link, LinkError, Uploads};
use rackweave_rackless::controller::{Declared, Phase};
use rackweave_rackless::demand::Upload;
use rackweave_rackless::pod::PAIR_BYTES;
use rackweave_reduce::{Aggregation, Coordinator};

use super::hosts_args::{OverlayArgs, PodArgs};
use crate::shell::{escaped, status};

/// A registered job.
pub(super) struct Place {
    link: Link,
    overlay: OverlayArgs,
    /// The servers of the workers, if they were named.
    workers: Option<Vec<u32>>,
    /// Whether the switch that was named is used, where hosts have addresses; `None` in an overlay.
    named: Option<Aggregation>,
    count: u64,
    /// Whether the job has declared how much it uploads.
    has_sizes: bool,
}

/// Reads a declaration.
pub(crate) fn declaration(path: &Path) -> miette::Result<Declared> {
    let name = escaped(&path.to_string_lossy());
    let text =
        std::fs::read_to_string(path).map_err(|error| miette!("cannot read {name}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| miette!("{name}: {error}"))
}

/// Reads a token.
pub(crate) fn token(path: &Path) -> miette::Result<String> {
    let name = escaped(&path.to_string_lossy());
    let text = std::fs::read_to_string(path)
        .map_err(|error| miette!("cannot read the token in {name}: {error}"))?;
    let token = text.trim();
    let is_good = !token.is_empty() && token.chars().all(|it| it.is_ascii_graphic());
    is_good.then(|| token.to_owned()).ok_or_else(|| miette!("{name} is not one token"))
}

impl Place {
    /// Registers the job, if there is a controller. One that cannot be reached or refuses is no reason to do nothing.
    pub(super) fn open(
        args: &PodArgs,
        overlay: OverlayArgs,
        workers: u8,
        named: Option<Aggregation>,
        stop: &AtomicBool,
    ) -> miette::Result<Option<Self>> {
        let Some(url) = &args.url else { return Ok(None) };
        let token = args.token.as_deref().map(token).transpose()?;
        let mut declared =
            args.declared.as_deref().map_or_else(|| Ok(Declared::default()), declaration)?;
        if let Some(name) = &args.name {
            declared.name.clone_from(name);
        } else if declared.name.is_empty() {
            "reduce".clone_into(&mut declared.name);
        }
        if let [master, servers @ ..] = &args.servers[..] {
            if servers.len() != usize::from(workers) {
                let named = servers.len();
                return Err(miette!(
                    "--pod-servers names {named} workers, and there are {workers}"
                ));
            }
            (declared.master, declared.workers) = (*master, servers.to_vec());
        } else if let Some(me) = overlay.me {
            declared.master = me;
        } else if args.declared.is_none() {
            return Err(miette!("--pod needs --pod-servers or --pod-job: which servers these are"));
        }
        let servers = (!declared.workers.is_empty()).then(|| declared.workers.clone());
        let has_sizes = declared.upload.is_some();
        let is_silent = || {
            let url = escaped(url);
            status(&format!("note: waiting for the pod's controller at {url} (--pod-wait)\n"));
        };
        match Link::open(Client::new(url, token), declared, args.wait, stop, is_silent) {
            Ok(link) => {
                link.phase(Phase::Map);
                let count = u64::from(workers);
                let named = if overlay.overlay.is_some() { None } else { named };
                Ok(Some(Self { link, overlay, workers: servers, named, count, has_sizes }))
            }
            Err(LinkError::Interrupted) => Ok(None),
            Err(error) => {
                status(&format!("note: {error}; the job goes on without it\n"));
                Ok(None)
            }
        }
    }

    /// The number that the controller has assigned.
    pub(super) const fn job(&self) -> u16 {
        self.link.job()
    }
}

impl Coordinator for Place {
    fn ready(&mut self, workers: &[HostId], keys: u64) {
        // In an overlay hosts have the numbers of their servers.
        let joined = || workers.iter().map(|host| host.0).collect();
        let of_overlay = self.overlay.overlay.is_some().then(joined);
        let mut known =
            Known { workers: of_overlay.filter(|_| self.workers.is_none()), ..Known::default() };
        if !self.has_sizes {
            // By Heaps' law, n workers have n^0.65 times the distinct keys of one.
            let distinct = keys.saturating_mul(PAIR_BYTES);
            let each = distinct as f64 / (self.count as f64).powf(Upload::ENGLISH);
            let each = (each as u64).clamp(distinct.div_ceil(self.count.max(1)), distinct);
            known.upload = Some(vec![each; self.count as usize]);
            known.distinct = Some(distinct);
        }
        self.link.ready(known);
    }

    fn poll(&mut self) -> Option<Option<Aggregation>> {
        let grant = match self.link.poll()? {
            Ok(grant) => grant,
            Err(why) => {
                let option = if matches!(why, LinkError::NoTurn(_)) { " (--pod-wait)" } else { "" };
                status(&format!("note: {why}{option}; the upload begins without the controller\n"));
                // As without a controller.
                return Some(self.named);
            }
        };
        Some(grant.and_then(|grant| match self.named {
            Some(named) => Some(Aggregation { slots: grant.slots, ..named }),
            None if self.overlay.overlay.is_none() => None,
            None => match super::master::switch(&grant.switch, self.overlay) {
                Ok(switch) => Some(Aggregation::new(switch, grant.slots)),
                Err(error) => {
                    status(&format!("note: {error}\n"));
                    None
                }
            },
        }))
    }

    fn uploaded(&mut self, pairs: u64, keys: u64) {
        let each = pairs.saturating_mul(PAIR_BYTES) / self.count.max(1);
        let upload = vec![each; self.count as usize];
        // The number of keys is an estimate.
        let distinct =
            keys.saturating_mul(PAIR_BYTES).clamp(each, each.saturating_mul(self.count).max(each));
        self.link.uploaded(Uploads { upload, distinct });
    }
}

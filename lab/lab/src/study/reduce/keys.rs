//! The keys of `[workload.reduce]`: jobs of MapReduce, where they run, and what adds up their pairs.

use rackweave_core::rng::mix;
use rackweave_core::{Bytes, HostId, Rng, Span, Time};
use rackweave_scenario::keys::Chosen;
use rackweave_scenario::problem::Problem;
use rackweave_scenario::values::Unit;
use rackweave_sim::config::{Fault, FaultKind, FaultPlace};
use rackweave_wire::reduce::{MAX_WORKERS, Operator};
use rackweave_workload::text::TextModel;
use serde::{Deserialize, Serialize};

use super::job::{self, Costs, Job, Map};
use super::{ReduceConfig, scheme};
use crate::study::Ground;

/// The keys of `[workload.reduce]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReduceKeys {
    /// Number of jobs. Default: 1.
    jobs: u32,
    /// Workers of a job, at most 64, and most of them per host. Default: 3; 1.
    workers: u32,
    /// Workers of a job, at most 64, and most of them per host. Default: 3; 1.
    per_host: u32,
    /// `"random"`. `"worker-localized"`: workers on as few hosts as possible, the master on
    /// another. `"cluster-localized"`: with the master. Default: `"random"`.
    placement: Placement,
    /// Job *i* runs on group (list of hosts) *i*, with master *i*, modulo their number. Masters
    /// need `placement = "random"`. Default: all hosts; chosen with the workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Vec<u32>>,
    /// Job *i* runs on group (list of hosts) *i*, with master *i*, modulo their number. Masters
    /// need `placement = "random"`. Default: all hosts; chosen with the workers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    masters: Vec<u32>,
    /// Time between starts of jobs. Default: `"0 s"`.
    interval: Unit<Span>,
    /// Length of a job's data, uniform between them. Default: `"50 MB"`; `size`.
    size: Unit<Bytes>,
    /// Length of a job's data, uniform between them. Default: `"50 MB"`; `size`.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest: Option<Unit<Bytes>>,
    /// `"scatter"`: each worker gets its part. `"broadcast"`: each gets all data. `"local"`: they
    /// are there. Default: `"scatter"`.
    map: MapName,
    /// Profile of the next four keys: `"native"`, a compiled program, or `"hadoop"`. Default:
    /// `"native"`.
    costs: CostsName,
    /// Times of map and shuffle per MiB of a worker's part; per pair at the master; per distinct
    /// word of the result; until a task begins. Default: native: `"10 ms"`, `"100 ns"`, `"0 s"`,
    /// `"0 s"`; hadoop: `"210 ms"`, `"94 ns"`, `"3.9 us"`, `"1 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    map_cost: Option<Unit<Span>>,
    /// Times of map and shuffle per MiB of a worker's part; per pair at the master; per distinct
    /// word of the result; until a task begins. Default: native: `"10 ms"`, `"100 ns"`, `"0 s"`,
    /// `"0 s"`; hadoop: `"210 ms"`, `"94 ns"`, `"3.9 us"`, `"1 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reduce_cost: Option<Unit<Span>>,
    /// Times of map and shuffle per MiB of a worker's part; per pair at the master; per distinct
    /// word of the result; until a task begins. Default: native: `"10 ms"`, `"100 ns"`, `"0 s"`,
    /// `"0 s"`; hadoop: `"210 ms"`, `"94 ns"`, `"3.9 us"`, `"1 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    word_cost: Option<Unit<Span>>,
    /// Times of map and shuffle per MiB of a worker's part; per pair at the master; per distinct
    /// word of the result; until a task begins. Default: native: `"10 ms"`, `"100 ns"`, `"0 s"`,
    /// `"0 s"`; hadoop: `"210 ms"`, `"94 ns"`, `"3.9 us"`, `"1 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_start: Option<Unit<Span>>,
    /// Tasks that a host computes at a time. 0: any number. Default: 0.
    tasks: u32,
    /// Workers add up their own pairs first. Default: true.
    combiner: bool,
    /// Times at which completed jobs are counted. Default: none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    marks: Vec<Unit<Span>>,
}

/// What computing takes, unless other keys say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum CostsName {
    /// A compiled program that counts words.
    Native,
    /// WordCount on Hadoop 3.4.1, as measured: see `docs/ops/reduce.md`.
    Hadoop,
}

impl CostsName {
    /// The costs of the profile. How they were measured is in `docs/ops/reduce.md`.
    const fn costs(self) -> Costs {
        match self {
            Self::Native => Costs {
                map_per_mib: Span::from_ms(10),
                reduce_per_pair: Span::from_ns(100),
                reduce_per_word: Span::ZERO,
                task_start: Span::ZERO,
                tasks_per_host: 0,
            },
            Self::Hadoop => Costs {
                map_per_mib: Span::from_ms(210),
                reduce_per_pair: Span::from_ns(94),
                reduce_per_word: Span::from_ns(3_900),
                task_start: Span::from_ms(1_000),
                tasks_per_host: 0,
            },
        }
    }
}

impl Default for ReduceKeys {
    fn default() -> Self {
        Self {
            jobs: 1,
            workers: 3,
            per_host: 1,
            placement: Placement::Random,
            groups: Vec::new(),
            masters: Vec::new(),
            interval: Unit(Span::ZERO),
            size: Unit(Bytes(50_000_000)),
            largest: None,
            map: MapName::Scatter,
            costs: CostsName::Native,
            map_cost: None,
            reduce_cost: None,
            word_cost: None,
            task_start: None,
            tasks: 0,
            combiner: true,
            marks: Vec::new(),
        }
    }
}

/// Where the workers and the master of a job run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Placement {
    /// Anywhere, at most `per_host` workers at a host.
    Random,
    /// The workers on as few hosts as possible, the master on another one.
    WorkerLocalized,
    /// The workers and the master on as few hosts as possible.
    ClusterLocalized,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum MapName {
    Scatter,
    Broadcast,
    Local,
}

fn wrong(name: &str, message: impl Into<String>) -> Problem {
    Problem::new(format!("workload.reduce.{name}"), message)
}

/// The longest data of a job: the pairs of its workers are in memory.
const MAX_BYTES: u64 = 4 << 30;

impl ReduceKeys {
    /// Checks the keys against each other and the fabric. `scheme` adds up.
    pub(crate) fn resolve(
        &self,
        scheme: &Chosen<scheme::Name>,
        ground: &Ground<'_>,
    ) -> Result<ReduceConfig, Problem> {
        let (fabric, faults, seed) = (ground.fabric, ground.faults, ground.seed);
        if self.jobs == 0 || self.jobs > 10_000 {
            return Err(wrong("jobs", "there are 1 to 10,000 jobs"));
        }
        if self.workers == 0 || self.workers > u32::from(MAX_WORKERS) {
            return Err(wrong("workers", format!("a job has 1 to {MAX_WORKERS} workers")));
        }
        if self.per_host == 0 {
            return Err(wrong("per_host", "a host has at least one worker of a job"));
        }
        if faults.iter().any(|fault| matches!(fault.kind, FaultKind::Corruption(_))) {
            let message = "pairs have no check of their own: real links drop damaged packets, as kind = \"loss\" does";
            return Err(Problem::new("faults", message));
        }
        let (least, most) = (self.size.0.0, self.largest.unwrap_or(self.size).0.0);
        if least == 0 || most > MAX_BYTES || most < least {
            let message = format!(
                "the data of jobs are from `size` to `largest`, at most {}",
                Bytes(MAX_BYTES)
            );
            return Err(wrong("size", message));
        }
        let all: Vec<u32> = (0..fabric.hosts()).collect();
        let of_groups = self.groups.iter().flatten().map(|host| ("groups", host));
        for (key, host) in of_groups.chain(self.masters.iter().map(|host| ("masters", host))) {
            if *host >= all.len() as u32 {
                let message =
                    format!("there is no host {host}: the fabric has {} hosts", all.len());
                return Err(wrong(key, message));
            }
        }
        if !self.masters.is_empty() && self.placement != Placement::Random {
            let message =
                "this placement chooses the master: `masters` is for placement = \"random\"";
            return Err(wrong("masters", message));
        }
        let mut rng = Rng::stream(seed, 0, 0, "jobs");
        let mut jobs = Vec::with_capacity(self.jobs as usize);
        for index in 0..self.jobs {
            let group = match self.groups.len() {
                0 => &all,
                groups => &self.groups[index as usize % groups],
            };
            let master = (!self.masters.is_empty())
                .then(|| HostId(self.masters[index as usize % self.masters.len()]));
            let (master, workers) = self.place(group, master, &mut rng)?;
            let start = Time::ZERO + self.interval.0 * u64::from(index);
            let bytes = least + rng.below(most - least + 1);
            jobs.push(Job { number: index as u16, start, master, workers, bytes });
        }
        self.check_crashes(faults, &jobs)?;
        let costs = self.costs.costs();
        let or = |key: Option<Unit<Span>>, profile| key.map_or(profile, |span| span.0);
        let common = job::Config {
            map: match self.map {
                MapName::Scatter => Map::Scatter,
                MapName::Broadcast => Map::Broadcast,
                MapName::Local => Map::Local,
            },
            costs: Costs {
                map_per_mib: or(self.map_cost, costs.map_per_mib),
                reduce_per_pair: or(self.reduce_cost, costs.reduce_per_pair),
                reduce_per_word: or(self.word_cost, costs.reduce_per_word),
                task_start: or(self.task_start, costs.task_start),
                tasks_per_host: self.tasks,
            },
            text: TextModel::default(),
            combiner: self.combiner,
            operator: Operator::Sum,
            order: rackweave_aggregation::source::Order::Hash,
            window: 256,
            hold: false,
            aggregation: None,
            seed: mix(seed ^ 0x0072_6564_7563_6500),
        };
        let marks = self.marks.iter().map(|mark| mark.0).collect();
        let resolved = scheme::resolve(scheme, common, jobs, fabric)?;
        Ok(ReduceConfig { marks, groups: self.groups.clone(), ..resolved })
    }

    /// Workers can crash and return if their data survive it; masters cannot.
    fn check_crashes(&self, faults: &[Fault], jobs: &[Job]) -> Result<(), Problem> {
        for fault in faults.iter().filter(|fault| fault.kind == FaultKind::Crash) {
            if self.map != MapName::Local {
                let message = "workers that crash need map = \"local\": what they have received is lost with them";
                return Err(Problem::new("faults", message));
            }
            let is_master = |job: &&Job| fault.place == FaultPlace::Host(job.master);
            if let Some(job) = jobs.iter().find(is_master) {
                let message = format!(
                    "host {} is the master of job {}, and a job does not outlive its master",
                    job.master.0, job.number
                );
                return Err(Problem::new("faults", message)
                    .with_help("with `groups` or another `seed` other hosts are masters"));
            }
        }
        Ok(())
    }

    /// Chooses the hosts of a job.
    fn place(
        &self,
        group: &[u32],
        master: Option<HostId>,
        rng: &mut Rng,
    ) -> Result<(HostId, Vec<HostId>), Problem> {
        let mut hosts: Vec<HostId> = group.iter().copied().map(HostId).collect();
        rng.shuffle(&mut hosts);
        if let Some(master) = master {
            hosts.retain(|host| *host != master);
            hosts.insert(0, master);
        }
        let (workers, per_host) = (self.workers as usize, self.per_host as usize);
        let needed = workers.div_ceil(per_host);
        let too_few = |needed: usize| {
            let message = format!(
                "{workers} workers, at most {per_host} at a host, and a master need {needed} hosts, of \
                 which there are {}",
                group.len()
            );
            Err(wrong("workers", message))
        };
        let packed = |hosts: &[HostId]| -> Vec<HostId> {
            let each = hosts.iter().flat_map(|host| std::iter::repeat_n(*host, per_host));
            each.take(workers).collect()
        };
        match self.placement {
            Placement::Random => {
                if hosts.len() <= needed {
                    return too_few(needed + 1);
                }
                let (master, others) = (hosts[0], &hosts[1..]);
                let mut places: Vec<HostId> =
                    others.iter().flat_map(|host| std::iter::repeat_n(*host, per_host)).collect();
                rng.shuffle(&mut places);
                places.truncate(workers);
                Ok((master, places))
            }
            Placement::WorkerLocalized => {
                if hosts.len() <= needed {
                    return too_few(needed + 1);
                }
                Ok((hosts[needed], packed(&hosts[..needed])))
            }
            Placement::ClusterLocalized => {
                if hosts.len() < needed {
                    return too_few(needed);
                }
                Ok((hosts[0], packed(&hosts[..needed])))
            }
        }
    }
}

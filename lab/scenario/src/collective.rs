//! The keys of `[workload.collective]`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_workload::Collective;
use rackweave_workload::collective::generate::{
    Algorithm, GenerateError, Operation, Shape, algorithms,
};
use rackweave_workload::collective::{Schedule, goal};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::values::Unit;
use super::workload::{Context, read};
use crate::error::nearest;

/// The keys of `[workload.collective]`: what many ranks send each other, and in which order.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CollectiveKeys {
    /// What ranks do: below. Default: required without `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    /// How. Default: the first of its operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<String>,
    /// Bytes, as NCCL's tests count. Default: required without `schedule`.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<Unit<Bytes>>,
    /// A GOAL file, instead of these three.
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<PathBuf>,
    /// Number of ranks, or the host of each. Default: all hosts; those of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<Ranks>,
    /// `"packed"`: rack after rack. `"spread"`: each rack in turn. Default: `"packed"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Placement>,
    /// hierarchical: ranks of a group, one after the other. Default: those of a rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    /// Rate at which a rank adds up or processes what it receives. Default: no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute: Option<Unit<Rate>>,
    /// all-to-all: rank n gets a part in proportion to (n + 1)^-skew. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    skew: Option<f64>,
    /// How often it runs; the time from a rank's end to its next begin. Default: 1; `"0 s"`.
    repeat: u32,
    /// How often it runs; the time from a rank's end to its next begin. Default: 1; `"0 s"`.
    pause: Unit<Span>,
}

impl Default for CollectiveKeys {
    fn default() -> Self {
        Self {
            operation: None,
            algorithm: None,
            size: None,
            schedule: None,
            ranks: None,
            placement: None,
            group: None,
            compute: None,
            skew: None,
            repeat: 1,
            pause: Unit(Span::ZERO),
        }
    }
}

/// A number of ranks, or the host of each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged, expecting = "a number of ranks, or a list of hosts")]
enum Ranks {
    Number(u32),
    Hosts(Vec<u32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Placement {
    Packed,
    Spread,
}

/// The size limit of a file: all of it is in memory.
const MAX_FILE_BYTES: u64 = 1 << 32;

impl CollectiveKeys {
    /// Makes the schedule; `path` is that of the table.
    pub(crate) fn resolve(&self, path: &str, context: &Context<'_>) -> Result<Collective, Problem> {
        let at = |key: &str| format!("{path}.{key}");
        let from_file = match &self.schedule {
            None => None,
            Some(file) => Some(self.read_schedule(path, file, context)?),
        };
        let hosts = self.hosts(path, from_file.as_ref(), context)?;
        let (schedule, origin) = match from_file {
            Some(schedule) => (schedule, None),
            None => {
                let (schedule, algorithm, bytes) = self.generate(path, &hosts, context)?;
                (schedule, Some((algorithm, bytes)))
            }
        };
        let collective = Collective::new(schedule, hosts, self.repeat, self.pause.0);
        let collective = collective.map_err(|error| {
            let key = if self.repeat == 0 { "repeat" } else { "ranks" };
            Problem::new(at(key), error.to_string())
        })?;
        Ok(match origin {
            Some((algorithm, bytes)) => collective.made_by(algorithm, bytes),
            None => collective,
        })
    }

    fn read_schedule(
        &self,
        path: &str,
        file: &Path,
        context: &Context<'_>,
    ) -> Result<Schedule, Problem> {
        let at = |key: &str| format!("{path}.{key}");
        for (key, is_given) in [
            ("operation", self.operation.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("size", self.size.is_some()),
            ("group", self.group.is_some()),
            ("compute", self.compute.is_some()),
            ("skew", self.skew.is_some()),
        ] {
            if is_given {
                let message =
                    format!("`{key}` has no meaning with a `schedule`, which says it all");
                return Err(Problem::new(at(key), message));
            }
        }
        let bytes = read(&at("schedule"), &context.folder.join(file), MAX_FILE_BYTES)?;
        goal::parse(bytes)
            .map_err(|error| Problem::new(at("schedule"), format!("`{}`: {error}", file.display())))
    }

    /// The host of each rank.
    fn hosts(
        &self,
        path: &str,
        schedule: Option<&Schedule>,
        context: &Context<'_>,
    ) -> Result<Vec<HostId>, Problem> {
        let all = u32::try_from(context.hosts).unwrap_or(u32::MAX);
        let number = match (&self.ranks, schedule) {
            (Some(Ranks::Hosts(hosts)), _) => {
                if let Some(host) = hosts.iter().find(|host| **host >= all) {
                    let message =
                        format!("host {host} (a rank) does not exist: the fabric has {all}");
                    return Err(Problem::new(format!("{path}.ranks"), message));
                }
                if self.placement.is_some() {
                    let message = "`placement` has no meaning with the host of each rank";
                    return Err(Problem::new(format!("{path}.placement"), message));
                }
                return Ok(hosts.iter().map(|it| HostId(*it)).collect());
            }
            (Some(Ranks::Number(number)), _) => *number,
            (None, Some(schedule)) => schedule.ranks(),
            (None, None) => all,
        };
        if number > all {
            let message = format!("{number} ranks need as many hosts: the fabric has {all}");
            return Err(Problem::new(format!("{path}.ranks"), message));
        }
        let packed = 0..all;
        let hosts: Vec<HostId> = match self.placement.unwrap_or(Placement::Packed) {
            Placement::Packed => packed.map(HostId).collect(),
            Placement::Spread if context.racks.is_empty() => {
                let message = "the racks of a pod change: name the host of each rank in `ranks`";
                return Err(Problem::new(format!("{path}.placement"), message));
            }
            Placement::Spread => {
                let longest = context.racks.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
                let nth = |nth: usize| {
                    context.racks.iter().filter_map(move |rack| rack.clone().nth(nth)).map(HostId)
                };
                (0..longest).flat_map(nth).collect()
            }
        };
        Ok(hosts.into_iter().take(number as usize).collect())
    }

    fn generate(
        &self,
        path: &str,
        hosts: &[HostId],
        context: &Context<'_>,
    ) -> Result<(Schedule, &'static Algorithm, u64), Problem> {
        let at = |key: &str| format!("{path}.{key}");
        let missing = |key: &str, example: &str| {
            Problem::new(path.to_owned(), format!("`{key}` is missing: such as {example}"))
        };
        let algorithm = self.algorithm(path)?;
        let Some(Unit(Bytes(bytes))) = self.size else {
            return Err(missing("size", "\"64 MB\""));
        };
        let is_hierarchical = algorithm.name == "hierarchical";
        if self.group.is_some() && !is_hierarchical {
            let message = "`group` has a meaning for hierarchical algorithms only";
            return Err(Problem::new(at("group"), message));
        }
        let skew = self.skew.unwrap_or(0.0);
        if !(0.0..=10.0).contains(&skew) {
            return Err(Problem::new(at("skew"), "`skew` is from 0 to 10"));
        }
        if self.skew.is_some() && algorithm.operation != Operation::AllToAll {
            let message = "`skew` has a meaning for all-to-all only";
            return Err(Problem::new(at("skew"), message));
        }
        if self.compute.is_some_and(|Unit(rate)| rate.0 == 0) {
            return Err(Problem::new(at("compute"), "`compute` must be above 0"));
        }
        let ranks = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        let groups = match self.group {
            Some(0) => return Err(Problem::new(at("group"), "a group has at least 1 rank")),
            Some(each) => {
                let all: Vec<u32> = (0..ranks).collect();
                all.chunks(each as usize).map(<[u32]>::to_vec).collect()
            }
            None if is_hierarchical && context.racks.is_empty() => {
                let message = "the racks of a pod change: `group` says how many ranks are one";
                return Err(Problem::new(at("group"), message));
            }
            None => groups_of(hosts, context.racks),
        };
        let compute = self.compute.map(|Unit(rate)| rate);
        let shape = Shape { ranks, bytes, groups: &groups, compute, skew };
        let schedule = algorithm.schedule(&shape).map_err(|error| {
            let key = match &error {
                GenerateError::Ranks(_) => "ranks",
                GenerateError::Groups(..) => "algorithm",
                GenerateError::Size { .. } | GenerateError::Schedule(_) => "size",
            };
            Problem::new(at(key), error.to_string())
        })?;
        Ok((schedule, algorithm, bytes))
    }

    /// The algorithm of the operation.
    fn algorithm(&self, path: &str) -> Result<&'static Algorithm, Problem> {
        let at = |key: &str| format!("{path}.{key}");
        let unknown = |key: &str, text: &str, names: &[&str], of: &str| {
            let help = match nearest(text, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", names.join(", ")),
            };
            Problem::new(at(key), format!("there is no {key} `{text}`{of}")).with_help(help)
        };
        let names = Operation::ALL.map(Operation::name);
        let Some(text) = &self.operation else {
            let message = "`operation` is missing: such as \"all-reduce\"; or `schedule`, a file";
            return Err(Problem::new(path.to_owned(), message));
        };
        let operation = Operation::ALL.into_iter().find(|it| it.name() == text);
        let operation = operation.ok_or_else(|| unknown("operation", text, &names, ""))?;
        let all: Vec<&'static Algorithm> = algorithms(operation).collect();
        let wanted =
            |it: &&&'static Algorithm| self.algorithm.as_ref().is_none_or(|name| it.name == name);
        let Some(found) = all.iter().find(wanted) else {
            let names: Vec<&str> = all.iter().map(|it| it.name).collect();
            let text = self.algorithm.as_deref().unwrap_or_default();
            return Err(unknown("algorithm", text, &names, &format!(" for {}", operation.name())));
        };
        Ok(found)
    }

    /// Makes the path of the file absolute.
    pub(crate) fn make_path_absolute(&mut self, absolute: impl Fn(&Path) -> PathBuf) {
        if let Some(file) = &mut self.schedule {
            *file = absolute(file);
        }
    }
}

/// The ranks of each rack that has some.
fn groups_of(hosts: &[HostId], racks: &[Range<u32>]) -> Vec<Vec<u32>> {
    let of = |rack: &Range<u32>| -> Vec<u32> {
        let ranks = (0..).zip(hosts).filter(|(_, host)| rack.contains(&host.0));
        ranks.map(|(rank, _)| rank).collect()
    };
    racks.iter().map(of).filter(|group| !group.is_empty()).collect()
}

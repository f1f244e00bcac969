//! Scenario files: reads TOML and returns [`RunConfig`]s.
//!
//! A file is read into a tree whose keys and values know their positions in the text. `--set` and `[sweep]` operate on
//! that tree. Then the tree of each point is checked and converted to a configuration, so an error in a swept value
//! points at that value wherever it was written.

pub(crate) mod follows;
mod json;
#[cfg(test)]
mod tests;
mod text;

pub use rackweave_scenario::host::NO_COSTS;
pub use rackweave_scenario::measure::Unfinished;
pub use rackweave_scenario::testbed::{Nic, TcpBy, TestbedConfig, World};
pub use rackweave_scenario::{FabricFile, Hosts};

pub use self::json::set_argument;
pub use self::text::ScenarioText;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackweave_scenario::de::DeError;
use rackweave_scenario::derived::Parameter;
use rackweave_scenario::keys::{Carried, Choice as _};
use rackweave_scenario::problem::{Problem, SweptKeys};
use rackweave_scenario::source::Sources;
use rackweave_scenario::sweep::{Axis, PointTree};
use rackweave_scenario::tree::{Table, Value, parse_document};
use rackweave_scenario::{
    START, de, fabric, host, measure, sweep, testbed, transport, tree, workload,
};
use rackweave_sim::Fabric;
use rackweave_sim::config::{RunConfig, StreamConfig};
use rackweave_workload::{Pattern, WorkloadConfig};
use serde::{Deserialize, Serialize};

use crate::error::ScenarioError;
use crate::offered::Offered;
use crate::study::{self, Ground, Study};

/// A checked scenario; every point of it can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The world for which it was read, which determines some defaults.
    pub world: World,
    /// The name: `name` in the file, or else the name of the file.
    pub name: String,
    /// The description of the scenario; may be empty.
    pub description: String,
    /// The headline of the report.
    pub title: String,
    /// The seed of all random streams.
    pub seed: u64,
    /// The runs, in the order of the sweep, whose first key varies slowest.
    pub points: Vec<PointSpec>,
    /// The scenario as TOML with all defaults filled in. Running it gives the same results.
    pub resolved: String,
}

/// One run of a scenario.
#[derive(Clone, Debug)]
pub struct PointSpec {
    /// The world in which it runs.
    pub world: World,
    /// The swept keys and their values at this point.
    pub set: Vec<(String, serde_json::Value)>,
    /// The name of the measured transport.
    pub transport: String,
    /// The transport's name in results for each stream: its `label`, or else its name.
    pub labels: Vec<String>,
    /// The `KEY=VALUE` arguments of `--set` that select this point of the sweep, except for the seed.
    pub arguments: Vec<String>,
    /// The configuration of the run.
    pub config: RunConfig,
    /// The layout of `config.fabric`, which points with the same fabric share.
    pub fabric: Arc<Fabric>,
    /// The upper edges of the size buckets.
    pub size_buckets: Vec<u64>,
    /// How messages that were in flight at the end are treated.
    pub unfinished: Unfinished,
    /// Whether every measured message is written to a file.
    pub messages_csv: bool,
    /// For each stream over TCP, the kernel's name of its congestion control; `None` for other transports. A cast over
    /// TCP has one entry.
    pub kernel_tcp: Vec<Option<&'static str>>,
    /// The parameters of a run on real hosts.
    pub testbed: TestbedConfig,
    /// What is measured. If it is not messages, `config` has only the background streams.
    pub study: Study,
    /// The parameters that follow from the fabric or that the papers of the transports name.
    pub parameters: Vec<Parameter>,
}

/// The tables that serde reads directly.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Name of the scenario, and of its results' directory. Default: the file's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// A sentence or two for the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Rackweave's version in a resolved scenario. Ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Random seed. `--seed N` sets it. Default: 1.
    #[serde(default = "first_seed")]
    seed: u64,
    /// Table: hosts, links and switches. Required.
    fabric: fabric::Fabric,
    /// Table, or the name of a file with it: what hosts cost. Default: fixed delays.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<host::HostTable>,
    /// Table: messages, or one of the group workloads. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<workload::Workload>,
    #[serde(skip)]
    study: Option<study::Keys>,
    /// List of tables: failures of links and hosts. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    faults: Vec<measure::FaultSpec>,
    /// Table: what is measured, and when.
    #[serde(default)]
    measure: measure::Measure,
    /// Table: settings of real hosts, ignored by the simulator.
    #[serde(default, skip_serializing_if = "testbed::TestbedKeys::is_default")]
    testbed: testbed::TestbedKeys,
    /// Table: the report.
    #[serde(default)]
    plot: measure::Plot,
}

const fn first_seed() -> u64 {
    1
}

/// The top-level keys and tables of a file.
const TOP_LEVEL: [&str; 14] = [
    "name",
    "description",
    "version",
    "seed",
    "fabric",
    "host",
    "transport",
    "workload",
    "background",
    "faults",
    "measure",
    "testbed",
    "plot",
    "sweep",
];

/// Keys that are often written without their table.
const USUAL_PATHS: [&str; 14] = [
    "workload.load",
    "workload.sizes",
    "workload.arrivals",
    "workload.senders",
    "fabric.topology",
    "fabric.hosts",
    "fabric.k",
    "fabric.host_link",
    "fabric.core_link",
    "fabric.switch.buffer",
    "fabric.switch.trim",
    "fabric.switch.ecn_threshold",
    "measure.messages",
    "measure.warmup",
];

impl ScenarioText {
    /// Reads the scenario for a world, with arguments of `--set`.
    ///
    /// # Errors
    /// The error says what is invalid and where.
    pub fn read(
        &self,
        world: World,
        sets: &[String],
        seed: Option<u64>,
    ) -> Result<Scenario, ScenarioError> {
        self.read_within(world, sets, seed, u64::MAX)
    }

    /// As [`ScenarioText::read`], without laying out a fabric of more links than this, each direction of a cable counted.
    ///
    /// # Errors
    /// As `read`, and if a point's fabric has more links.
    pub fn read_within(
        &self,
        world: World,
        sets: &[String],
        seed: Option<u64>,
        most_links: u64,
    ) -> Result<Scenario, ScenarioError> {
        let Self { file, text, folder } = self;
        Scenario::parse_in(world, (file, text, folder), (sets, seed), None, most_links)
    }

    /// As [`ScenarioText::read`] in the simulator, without the points whose `transport.name` is another: they are not even checked, so that
    /// what does not go with them may be set. If no point has this name, all points are read.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_of(
        &self,
        transport: &str,
        sets: &[String],
        seed: Option<u64>,
    ) -> Result<Scenario, ScenarioError> {
        let Self { file, text, folder } = self;
        let of = (file.as_str(), text.as_str(), folder.as_path());
        Scenario::parse_in(World::Simulator, of, (sets, seed), Some(transport), u64::MAX)
    }
}

impl Scenario {
    /// Reads a scenario from a file, or a built-in one by its name.
    ///
    /// # Errors
    /// The error says what is invalid and where.
    pub fn load(name: &str, sets: &[String], seed: Option<u64>) -> Result<Self, ScenarioError> {
        ScenarioText::load(name)?.read(World::Simulator, sets, seed)
    }

    /// Returns the value of a key, such as `fabric.switch.buffer`: the one that is set, or the one that follows from others; `None` if
    /// there is none, or points differ in it.
    #[must_use]
    pub fn value_of(&self, key: &str) -> Option<toml::Value> {
        let resolved: toml::Table = self.resolved.parse().unwrap_or_default();
        let set = follows::value_at(&resolved, key).cloned();
        set.or_else(|| Some(follows::read(&self.resolved).find(|(known, _)| *known == key)?.1))
    }

    /// Reads a scenario from a text. Files that it names are looked up in `folder`.
    ///
    /// # Errors
    /// The error says what is invalid and where.
    pub fn parse(
        file: &str,
        text: &str,
        folder: &Path,
        sets: &[String],
        seed: Option<u64>,
    ) -> Result<Self, ScenarioError> {
        Self::parse_in(World::Simulator, (file, text, folder), (sets, seed), None, u64::MAX)
    }

    fn parse_in(
        world: World,
        (file, text, folder): (&str, &str, &Path),
        (sets, seed): (&[String], Option<u64>),
        transport: Option<&str>,
        most_links: u64,
    ) -> Result<Self, ScenarioError> {
        let mut sources = Sources::new(file, text);
        let mut root = parse_document(text, 0).map_err(|error| sources.not_toml(0, error))?;
        if root.0.is_empty() {
            return Err(ScenarioError::new(format!("`{file}` is an empty scenario")).with_help(
                "it needs at least [fabric], [transport] and [workload]; \
                 `rackweave list scenarios` shows some to start from",
            ));
        }
        let mut axes = sweep::take_axes(&mut root, &sources)?;
        for argument in sets {
            sweep::apply_set(argument, &mut root, &mut axes, &mut sources)?;
        }
        if let Some(seed) = seed {
            sweep::apply_set(&format!("seed={seed}"), &mut root, &mut axes, &mut sources)?;
        }
        host::include_file(&mut root, folder, &mut sources)?;
        Reader { world, file, folder, transport, most_links, sources, root, axes }.read()
    }

    /// Returns the seed of all points; `None` if it is swept, so that `--seed` would run fewer of them.
    #[must_use]
    pub fn one_seed(&self) -> Option<u64> {
        self.points.iter().all(|point| point.config.seed == self.seed).then_some(self.seed)
    }

    /// Returns the default directory for the results of its points.
    #[must_use]
    pub fn default_out(&self) -> PathBuf {
        let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
        let name: String = self.name.chars().map(safe).collect();
        Path::new("out").join(name.trim_start_matches('.'))
    }
}

/// The streams that a point runs on its fabric.
#[derive(Default)]
struct Streams {
    /// The name of the measured transport.
    transport: String,
    /// The configurations of the streams; empty for a kind of workload without other streams.
    configs: Vec<StreamConfig>,
    labels: Vec<String>,
    kernel_tcp: Vec<Option<&'static str>>,
    /// Whether the measured load goes on until it is stopped.
    endless: bool,
    study: Study,
    parameters: Vec<Parameter>,
    /// Whether one of the transports reacts to marks.
    react_to_marks: bool,
}

/// The context in which the tables of streams are checked.
#[derive(Clone, Copy)]
struct PointContext<'a> {
    swept: &'a SweptKeys,
    fabric: &'a Arc<Fabric>,
}

/// A stream of messages, and the transport that is to carry it.
struct Stream {
    /// The path of its table.
    path: String,
    chosen: transport::Chosen,
    workload: WorkloadConfig,
}

/// Refuses the scheme of a kind of workload as the transport of messages.
fn refuse_scheme(transport: &tree::Node) -> Result<(), DeError> {
    let Value::Table(table) = &transport.value else { return Ok(()) };
    let Some(node) = table.get("name").map(|entry| &entry.node) else { return Ok(()) };
    let Some(text) = node.as_str().filter(|text| transport::Name::named(text).is_none()) else {
        return Ok(());
    };
    for kind in study::KINDS {
        if let Some(carries) = kind.carries.filter(|_| kind.has_scheme(text)) {
            return Err(DeError::new(
                format!("`{text}` {carries}: it needs [workload.{}]", kind.table),
                "not a transport of other workloads",
            )
            .at(node.origin));
        }
    }
    Ok(())
}

/// A scenario whose tree is read and whose points are not yet checked.
struct Reader<'a> {
    world: World,
    file: &'a str,
    folder: &'a Path,
    /// The transport whose points are read alone.
    transport: Option<&'a str>,
    most_links: u64,
    sources: Sources,
    root: Table,
    axes: Vec<Axis>,
}

impl Reader<'_> {
    fn read(self) -> Result<Scenario, ScenarioError> {
        let steps = self.axes.iter().flat_map(|axis| &axis.steps);
        let swept: SweptKeys = steps.flatten().map(|set| set.key.clone()).collect();
        let mut trees = sweep::expand(&self.root, &self.axes, &self.sources)?;
        if let Some(transport) = self.transport {
            let is_of_it = |tree: &PointTree| {
                let name = tree.root.find("transport.name");
                name.and_then(|node| node.as_str()) == Some(transport)
            };
            if trees.iter().any(is_of_it) {
                trees.retain(is_of_it);
            }
        }
        let mut points = Vec::with_capacity(trees.len());
        let (mut first, mut fabric) = (None, None);
        for tree in trees {
            let whole = tree.root.clone();
            let (file, point) = self
                .point(tree, &swept, fabric.as_ref())
                .map_err(|error| self.sources.de_error(error.located_in(&whole)))?;
            first.get_or_insert(file);
            fabric = Some(Arc::clone(&point.fabric));
            points.push(point);
        }
        let Some(file) = first else {
            return Err(ScenarioError::new("the scenario has no points"));
        };
        let stem =
            Path::new(self.file).file_stem().map_or("scenario".into(), |s| s.to_string_lossy());
        let name = file.name.clone().unwrap_or_else(|| stem.into_owned());
        // Cases may have descriptions of their own, which are not the scenario's.
        let own = self.root.find("description").and_then(|node| node.as_str());
        let description = own.unwrap_or_default().trim().to_owned();
        Ok(Scenario {
            world: self.world,
            title: file.plot.title.clone().unwrap_or_else(|| name.clone()),
            name,
            description,
            seed: file.seed,
            resolved: self.resolved(self.without_sweep(file), &points)?,
            points,
        })
    }

    /// Returns the file without its sweep, if that is complete, or else the file at the first point. (A case that sets
    /// a key must not affect cases that do not set it.)
    fn without_sweep(&self, first: File) -> File {
        let mut root = self.root.clone();
        root.remove("transport");
        root.remove("background");
        let mut study = None;
        if let Some(keys) = &first.study
            && let Some(entry) = root.remove("workload")
        {
            match study::Keys::read(&entry) {
                Ok(Some(read)) if read.is_like(keys) => study = Some(read),
                _ => return first,
            }
        }
        match de::from_table::<File>(&root, START) {
            Ok(file) => File { study, ..file },
            Err(_) => first,
        }
    }

    /// Returns a point; `before` is the fabric of the previous point, which this one may share.
    fn point(
        &self,
        tree: PointTree,
        swept: &SweptKeys,
        before: Option<&Arc<Fabric>>,
    ) -> Result<(File, PointSpec), DeError> {
        let PointTree { mut root, set, arguments } = tree;
        let (transport, background) = (root.remove("transport"), root.remove("background"));
        self.refuse_unknown_tables(&root)?;
        let is_there =
            |kind: &&study::Entry| root.find(&format!("workload.{}", kind.table)).is_some();
        let kind = study::KINDS.iter().find(is_there);
        let workload = if kind.is_some() { root.remove("workload") } else { None };
        let mut file: File = de::from_table(&root, START)?;
        file.study = workload.as_ref().map(study::Keys::read).transpose()?.flatten();
        let node = transport.as_ref().map(|it| &it.node);
        let queues = transport::queues(node, swept, &file.fabric, self.world);
        let config = file.fabric.resolve(swept, &queues)?;
        let links = fabric::links(&config.topology);
        if links > self.most_links {
            let most = self.most_links;
            return Err(Problem::new(
                "fabric",
                format!("the fabric has {links} links, more than {most}"),
            )
            .into());
        }
        let fabric = match before {
            Some(before) if *before.config() == config => Arc::clone(before),
            _ => Arc::new(
                Fabric::new(&config).map_err(|error| Problem::new("fabric", error.to_string()))?,
            ),
        };
        let moves = file.fabric.moves(&fabric)?;
        if let Some(kind) = kind.filter(|kind| !kind.runs_on_pods && fabric.pod().is_some()) {
            let kind = kind.table;
            let problem = Problem::new(
                format!("workload.{kind}"),
                format!("[workload.{kind}] runs on fabrics of equal racks, not on a pod"),
            );
            return Err(problem
                .with_help("leaf-spine, fat-tree and single-switch carry it")
                .into());
        }
        let places = measure::Places {
            hosts: fabric.hosts(),
            core_links: fabric.core_links().len() as u32,
            switches: fabric.switches(),
        };
        let Some(transport) = transport else {
            return Err(Problem::new("", "`[transport]` is missing")
                .with_help("at least: [transport] name = \"homa\"")
                .into());
        };
        let faults = file.faults.iter().enumerate().map(|(i, fault)| fault.resolve(i, places));
        let faults: Vec<_> = faults.collect::<Result<_, _>>()?;
        let context = PointContext { swept, fabric: &fabric };
        let streams = match &file.study {
            Some(keys) => {
                let ground = Ground {
                    world: self.world,
                    fabric: &fabric,
                    faults: &faults,
                    measure: &file.measure,
                    seed: file.seed,
                    has_background: background.is_some(),
                };
                self.study(keys, &transport, background.as_ref(), context, &ground)?
            }
            None => self.messages(&file, &transport, background.as_ref(), context)?,
        };
        let testbed = file.testbed.resolve();
        let only_kernel_tcp = testbed.uses_only_kernel_tcp(&streams.kernel_tcp);
        let measure = file.measure.resolve(streams.endless, places)?;
        let mut config = RunConfig::new(config).with_seed(file.seed).with_measure(measure);
        config.host =
            host::resolve(file.host.as_ref(), file.fabric.receive_cost(), only_kernel_tcp)?;
        (config.streams, config.faults, config.moves) = (streams.configs, faults, moves);
        if let Study::Messages(Some(_)) = streams.study {
            transport::check_oracle(&config)?;
        }
        if let Some(stream) = config.streams.first() {
            workload::check_ramp(&stream.workload, config.measure.warmup)?;
        }
        let reacts = streams.react_to_marks || !streams.study.is_messages();
        let mut parameters = file.fabric.parameters(&fabric, &queues, reacts);
        parameters.extend(streams.parameters);
        let mut point = PointSpec {
            parameters,
            world: self.world,
            set: set.into_iter().map(|(key, node)| (key, node.to_json())).collect(),
            transport: streams.transport,
            labels: streams.labels,
            arguments,
            config,
            fabric,
            size_buckets: file.measure.size_buckets()?,
            unfinished: file.measure.unfinished,
            messages_csv: file.measure.messages_csv,
            kernel_tcp: streams.kernel_tcp,
            testbed,
            study: streams.study,
        };
        point.config.measure.offered_too_much =
            Offered::of(&point).is_some_and(|offered| offered.exceeds_a_link());
        Ok((file, point))
    }

    /// Resolves the workload of a kind and the background streams.
    fn study(
        &self,
        keys: &study::Keys,
        transport: &tree::Entry,
        background: Option<&tree::Entry>,
        context: PointContext<'_>,
        ground: &Ground<'_>,
    ) -> Result<Streams, DeError> {
        let resolved = keys.resolve(&transport.node, context.swept, ground)?;
        let mut streams = Streams {
            transport: resolved.transport.to_owned(),
            labels: vec![resolved.label],
            kernel_tcp: resolved.kernel_tcp,
            study: resolved.study,
            ..Streams::default()
        };
        let read = self.background(background, None, context)?;
        self.add_streams(&read, context, &mut streams)?;
        Ok(streams)
    }

    /// Resolves the measured messages and the background streams.
    fn messages(
        &self,
        file: &File,
        transport: &tree::Entry,
        background: Option<&tree::Entry>,
        context: PointContext<'_>,
    ) -> Result<Streams, DeError> {
        let Some(messages) = &file.workload else {
            let missing = DeError::new("`workload` is missing", "`workload` is missing here");
            return Err(missing.at(START));
        };
        let mut streams = Streams { endless: messages.is_endless(), ..Streams::default() };
        let measured =
            self.stream("workload".to_owned(), messages, ("transport", &transport.node), context)?;
        if matches!(measured.workload.pattern, Pattern::Collective(_)) {
            file.measure.check_for_many("collective", None)?;
        }
        let mut read = vec![measured];
        read.extend(self.background(background, Some(transport), context)?);
        self.add_streams(&read, context, &mut streams)?;
        Ok(streams)
    }

    /// Reads the background streams of messages.
    ///
    /// Those without a transport have that of the measured messages, if there is one.
    fn background(
        &self,
        background: Option<&tree::Entry>,
        measured: Option<&tree::Entry>,
        context: PointContext<'_>,
    ) -> Result<Vec<Stream>, DeError> {
        let Some(background) = background else { return Ok(Vec::new()) };
        let mut streams = Vec::new();
        let not_tables = |origin| {
            DeError::new("`background` must be a list of tables", "here")
                .at(origin)
                .with_help("each background stream begins with [[background]]")
        };
        let node = &background.node;
        let Value::Array(items) = &node.value else { return Err(not_tables(node.origin)) };
        for (index, item) in items.iter().enumerate() {
            let Value::Table(table) = &item.value else { return Err(not_tables(item.origin)) };
            let mut table = table.clone();
            let path = format!("background.{index}");
            let own = table.remove("transport");
            let messages: workload::Workload = de::from_table(&table, item.origin)?;
            let own_path = format!("{path}.transport");
            let transport = match (&own, measured) {
                (Some(own), _) => (&*own_path, &own.node),
                (None, Some(measured)) => ("transport", &measured.node),
                (None, None) => {
                    return Err(Problem::new(path, "this background stream has no `transport`")
                        .with_help("such as: transport = { name = \"tcp\" }")
                        .into());
                }
            };
            streams.push(self.stream(path, &messages, transport, context)?);
        }
        Ok(streams)
    }

    /// Reads a stream: its workload at `path` over the transport of the table at the other path.
    fn stream(
        &self,
        path: String,
        messages: &workload::Workload,
        transport: (&str, &tree::Node),
        context: PointContext<'_>,
    ) -> Result<Stream, DeError> {
        let PointContext { swept, fabric } = context;
        refuse_scheme(transport.1)?;
        let chosen = transport::read(transport.1, transport.0, swept)?;
        let hosts = u64::from(fabric.hosts());
        let racks = study::racks(&fabric.config().topology);
        let of_workload = workload::Context {
            folder: self.folder,
            hosts,
            host_link: fabric.host_rate(),
            racks: &racks,
        };
        let workload = messages.resolve(&path, &of_workload)?;
        if self.world == World::Testbed && matches!(workload.pattern, Pattern::Collective(_)) {
            let message = "collectives run in the simulator, and not on real hosts";
            return Err(Problem::new(format!("{path}.collective"), message).into());
        }
        Ok(Stream { path, chosen, workload })
    }

    /// Resolves the transports of streams. Those of one transport have one machine at each host, which schedules the messages of
    /// all of them, so that its configuration must be that of all.
    fn add_streams(
        &self,
        read: &[Stream],
        context: PointContext<'_>,
        streams: &mut Streams,
    ) -> Result<(), DeError> {
        let fabric = context.fabric;
        for Stream { path, chosen, workload } in read {
            // Alike are transports that would be so with the same messages.
            let alone = Carried { path, workload, all: &[workload] };
            let own = chosen.resolve(self.world, fabric, alone)?;
            let is_shared = |other: &&Stream| {
                other.chosen.resolve(self.world, fabric, alone).is_ok_and(|it| it == own)
            };
            let all: Vec<_> = read.iter().filter(is_shared).map(|other| &other.workload).collect();
            let carried = Carried { all: &all, ..alone };
            let transport = chosen.resolve(self.world, fabric, carried)?;
            chosen.check_streams(&transport, fabric, carried)?;
            if streams.transport.is_empty() {
                chosen.name.as_str().clone_into(&mut streams.transport);
            }
            if let Study::Messages(rules) = &mut streams.study {
                *rules = rules.or(chosen.oracle());
            }
            // A stream over the transport of the measured messages has their parameters.
            if chosen.path() != "transport" || streams.configs.is_empty() {
                streams.parameters.extend(chosen.parameters(fabric, carried));
            }
            streams.react_to_marks |= chosen.marking().is_some();
            streams.configs.push(StreamConfig::new(transport, workload.clone()));
            streams.labels.push(chosen.label());
            streams.kernel_tcp.push(chosen.kernel_tcp());
        }
        Ok(())
    }

    /// Reports unknown tables. Serde does not see all known tables, and so cannot suggest all of them.
    fn refuse_unknown_tables(&self, root: &Table) -> Result<(), DeError> {
        match root.0.iter().find(|entry| !TOP_LEVEL.contains(&entry.key.as_str())) {
            None => Ok(()),
            Some(entry) => {
                let message = format!("unknown key `{}`", entry.key);
                let error = DeError::new(message, "unknown key").at(entry.key_origin);
                let help = match self.paths_to(&entry.key, root).first() {
                    Some(path) => format!("did you mean `{path}`?"),
                    None => de::suggest(&entry.key, &TOP_LEVEL),
                };
                Err(error.with_help(help))
            }
        }
    }

    /// Returns the paths that end with a key, such as `workload.load` for `load`: those of the scenario, or else usual ones.
    fn paths_to(&self, key: &str, root: &Table) -> Vec<String> {
        let in_tables = root.0.iter().filter_map(|entry| {
            let Value::Table(table) = &entry.node.value else { return None };
            table.get(key).map(|_| format!("{}.{key}", entry.key))
        });
        let ends_so = |path: &&str| path.rsplit_once('.').is_some_and(|(_, last)| last == key);
        let axes = self.axes.iter().map(|axis| axis.key.as_str());
        let usual = axes.chain(USUAL_PATHS).filter(ends_so).map(str::to_owned);
        in_tables.chain(usual).collect()
    }

    /// Returns the scenario as TOML. `file` has the defaults; the tree has what serde did not read. Values that follow from other keys are
    /// comments, so that what is set later replaces them.
    fn resolved(&self, mut file: File, points: &[PointSpec]) -> Result<String, ScenarioError> {
        file.version = Some(env!("CARGO_PKG_VERSION").to_owned());
        if let Some(workload) = &mut file.workload {
            workload.make_paths_absolute(self.folder);
        }
        let failed = |error: toml::ser::Error| ScenarioError::new(error.to_string());
        let mut table = toml::Table::try_from(&file).map_err(failed)?;
        if let Some(keys) = &file.study {
            table.insert("workload".to_owned(), toml::Value::try_from(keys).map_err(failed)?);
        }
        let mut ordered = toml::Table::new();
        for key in ["name", "description", "version", "seed", "fabric", "host"] {
            ordered.extend(table.remove(key).map(|value| (key.to_owned(), value)));
        }
        for key in ["transport", "workload", "background", "faults", "measure", "testbed", "plot"] {
            let value = match table.remove(key) {
                Some(value) => Some(value),
                None => self.root.get(key).map(|entry| entry.node.to_toml()),
            };
            ordered.extend(value.map(|value| (key.to_owned(), value)));
        }
        let mut text = toml::to_string(&ordered).map_err(failed)?;
        if !self.axes.is_empty() {
            // The sweep is written by hand: a TOML table would put lists of tables last, and the order of keys has a
            // meaning.
            text.push_str("\n[sweep]\n");
            for axis in &self.axes {
                let key = toml::Value::String(axis.key.clone());
                text.push_str(&format!("{key} = {}\n", axis.to_toml()));
            }
        }
        let swept = self.axes.iter().flat_map(|axis| axis.steps.iter().flatten());
        let swept: Vec<&str> = swept.map(|set| set.key.as_str()).collect();
        let is_set = |key: &str| swept.contains(&key) || follows::value_at(&ordered, key).is_some();
        let following = follows::values(points);
        let following: Vec<_> = following.iter().filter(|(key, _)| !is_set(key)).collect();
        if !following.is_empty() {
            text.push_str(&format!("\n{}\n", follows::HEADING));
            for (key, value) in following {
                text.push_str(&format!("# {key} = {value}\n"));
            }
        }
        Ok(text)
    }
}

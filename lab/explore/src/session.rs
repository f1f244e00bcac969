//! A session: a scenario with what was set, its lanes, and the last trace.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use miette::{GraphicalReportHandler, GraphicalTheme};
use rackweave_core::{HostId, Span, Time};
use rackweave_lab::scenario::{ScenarioText, World};
use rackweave_lab::study::Study;
use rackweave_lab::{Scenario, ScenarioError, command_line};
use rackweave_workload::app::MessageStart;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::lane::{self, Outcome, Picture, Shared, Show};
use crate::layout::Layout;
use crate::trace::{self, MessageTrace, Tracing, ns};
use crate::view;

/// The most links of a fabric whose run is watched.
const MOST_LINKS: u64 = 20_000;
/// The most `--set` arguments of a request, and the most bytes of each.
const MOST_SETS: usize = 100;
const LONGEST_SET: usize = 10_000;

/// The keys that have a control of their own, with its label.
const CONTROLS: [(&str, &str); 5] = [
    ("workload.load", "load"),
    ("fabric.switch.buffer", "buffer"),
    ("fabric.switch.ecn_threshold", "K, the marking threshold"),
    ("transport.name", "transport"),
    ("seed", "seed"),
];

/// Why a request cannot be done, for people.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl From<ScenarioError> for Refusal {
    fn from(error: ScenarioError) -> Self {
        let theme = GraphicalTheme::unicode_nocolor();
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100);
        let mut text = String::new();
        if handler.render_report(&mut text, &error).is_err() {
            text = error.to_string();
        }
        Self(text)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

/// What `start` asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Start {
    /// `KEY=VALUE`, after those of the command line.
    #[serde(default)]
    sets: Vec<String>,
    /// Further ones, of a second lane.
    compare: Option<Vec<String>>,
    /// The point of a sweep.
    #[serde(default)]
    point: usize,
}

/// What `control` asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, tag = "do", rename_all = "lowercase")]
pub(crate) enum Command {
    /// Runs on at this number of simulated nanoseconds a second, or as fast as it can.
    Run {
        speed: Option<f64>,
    },
    Pause,
    /// Runs on for this simulated time, and waits.
    Step {
        ns: f64,
    },
    Stop,
}

/// The message that `trace` asks for: as it is listed, or by its line in messages.csv.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    #[serde(default)]
    lane: usize,
    number: Option<usize>,
    message: Option<Listed>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    stream: u16,
    src: u32,
    dst: u32,
    bytes: u64,
    at: u64,
    /// Shown only.
    #[serde(rename = "start_ns")]
    _start_ns: Option<f64>,
}

/// A lane of a session.
#[derive(Debug)]
struct Lane {
    scenario: Scenario,
    /// The arguments with which it was read.
    sets: Vec<String>,
    picture: Option<Arc<Picture>>,
    outcome: Option<Arc<Outcome>>,
}

#[derive(Debug)]
enum Traces {
    None,
    Running(Arc<Tracing>),
    Done(Arc<MessageTrace>),
    Failed(String),
}

#[derive(Debug)]
struct State {
    /// Counts the starts.
    generation: u64,
    /// Counts the traces.
    traces: u64,
    shared: Arc<Shared>,
    lanes: Vec<Lane>,
    /// The points of the scenario, as they are called.
    points: Vec<String>,
    point: usize,
    /// What was set on the page.
    sets: Vec<String>,
    trace: Traces,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    text: ScenarioText,
    /// `KEY=VALUE` of the command line.
    given: Vec<String>,
    state: Mutex<State>,
    /// The threads of lanes and traces.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Counts the changes of what is shown.
    changes: watch::Sender<u64>,
}

/// The lanes of one generation, as they show themselves.
#[derive(Debug)]
struct Board {
    session: Arc<Session>,
    generation: u64,
}

impl Show for Board {
    fn picture(&self, lane: usize, picture: Picture) {
        self.session.update(self.generation, lane, |lane| lane.picture = Some(Arc::new(picture)));
    }

    fn outcome(&self, lane: usize, outcome: Outcome) {
        self.session.update(self.generation, lane, |lane| lane.outcome = Some(Arc::new(outcome)));
    }
}

/// The key of a `KEY=VALUE`.
fn key(set: &str) -> &str {
    set.split('=').next().unwrap_or(set).trim()
}

/// Joins arguments: a later one replaces those of the same key.
fn joined<'a>(lists: impl IntoIterator<Item = &'a [String]>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for set in lists.into_iter().flatten() {
        all.retain(|other| key(other) != key(set));
        all.push(set.clone());
    }
    all
}

impl Session {
    pub(crate) fn new(text: ScenarioText, given: Vec<String>) -> Arc<Self> {
        let session = Self {
            text,
            given,
            state: Mutex::new(State {
                generation: 0,
                traces: 0,
                shared: Arc::new(Shared::new(0)),
                lanes: Vec::new(),
                points: Vec::new(),
                point: 0,
                sets: Vec::new(),
                trace: Traces::None,
            }),
            threads: Mutex::default(),
            changes: watch::Sender::new(0),
        };
        Arc::new(session)
    }

    /// Counts the changes of what is shown; ends with the session.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn update(&self, generation: u64, lane: usize, change: impl FnOnce(&mut Lane)) {
        let mut state = self.lock();
        if state.generation == generation
            && let Some(lane) = state.lanes.get_mut(lane)
        {
            change(lane);
            drop(state);
            self.changed();
        }
    }

    /// Reads the scenario of one point.
    fn read(&self, sets: &[String]) -> Result<Scenario, Refusal> {
        Ok(self.text.read_within(World::Simulator, sets, None, MOST_LINKS)?)
    }

    /// Reads the lanes that are asked for, and the names of all points.
    fn lanes(&self, start: &Start) -> Result<(Vec<Lane>, Vec<String>), Refusal> {
        let all = start.sets.iter().chain(start.compare.iter().flatten());
        if all.clone().count() > MOST_SETS || all.clone().any(|set| set.len() > LONGEST_SET) {
            return refuse("these are too many settings, or too long ones");
        }
        let sets = joined([&self.given[..], &start.sets]);
        let scenario = self.read(&sets)?;
        let name = |spec: &rackweave_lab::PointSpec| {
            let set = spec.set.iter().map(|(key, value)| match value {
                Value::String(text) => format!("{key} = {text}"),
                other => format!("{key} = {other}"),
            });
            set.collect::<Vec<_>>().join(", ")
        };
        let points: Vec<String> = scenario.points.iter().map(name).collect();
        let Some(chosen) = scenario.points.get(start.point) else {
            return refuse("the scenario has no such point now: choose another one");
        };
        let mut of_point = chosen.arguments.clone();
        of_point.push(format!("seed={}", chosen.config.seed));
        let sets = if points.len() > 1 { joined([&sets[..], &of_point]) } else { sets };
        let mut lanes = vec![self.lane(sets.clone())?];
        if let Some(compare) = &start.compare {
            lanes.push(self.lane(joined([&sets[..], compare]))?);
        }
        Ok((lanes, points))
    }

    fn lane(&self, sets: Vec<String>) -> Result<Lane, Refusal> {
        let scenario = self.read(&sets)?;
        let [point] = &scenario.points[..] else {
            return refuse(format!(
                "{} points are left: choose one of them",
                scenario.points.len()
            ));
        };
        if let Study::Messages(Some(_)) = point.study {
            return refuse("a central scheduler has no packets: `rackweave run` gives its results");
        }
        Ok(Lane { scenario, sets, picture: None, outcome: None })
    }

    /// Stops what runs, and starts lanes that wait at time zero.
    pub(crate) fn start(self: &Arc<Self>, start: Start) -> Result<(), Refusal> {
        let (lanes, points) = self.lanes(&start)?;
        // One start at a time: the threads stay locked.
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        self.end_lanes(&mut threads);
        let mut state = self.lock();
        state.generation += 1;
        state.shared = Arc::new(Shared::new(lanes.len()));
        (state.points, state.point, state.sets) = (points, start.point, start.sets);
        state.trace = Traces::None;
        state.lanes = lanes;
        let show: Arc<dyn Show> =
            Arc::new(Board { session: Arc::clone(self), generation: state.generation });
        for (number, lane) in state.lanes.iter().enumerate() {
            let (scenario, shared, show) =
                (lane.scenario.clone(), Arc::clone(&state.shared), Arc::clone(&show));
            let thread = std::thread::Builder::new().name(format!("lane {number}"));
            match thread.spawn(move || lane::run(scenario, number, shared, &show)) {
                Ok(thread) => threads.push(thread),
                Err(error) => return refuse(format!("the system gives no thread: {error}")),
            }
        }
        drop(state);
        self.changed();
        Ok(())
    }

    fn end_lanes(&self, threads: &mut Vec<JoinHandle<()>>) {
        let state = self.lock();
        state.shared.change(|plan, _| plan.stop = true);
        if let Traces::Running(tracing) = &state.trace {
            tracing.cancel.store(true, Ordering::Relaxed);
        }
        drop(state);
        for thread in threads.drain(..) {
            // A lane that has panicked has shown that.
            let _ = thread.join();
        }
    }

    /// Ends all that runs.
    pub(crate) fn end(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        self.end_lanes(&mut threads);
    }

    /// Runs, steps or stops the lanes.
    pub(crate) fn control(&self, command: &Command) -> Result<(), Refusal> {
        let positive = |number: f64, what: &str| match number.is_finite() && number > 0.0 {
            true => Ok(number),
            false => refuse(format!("{what} must be above zero")),
        };
        let shared = Arc::clone(&self.lock().shared);
        match *command {
            Command::Run { speed } => {
                let speed = speed.map(|speed| positive(speed, "the speed")).transpose()?;
                shared.change(|plan, _| (plan.target, plan.speed) = (Time::MAX, speed));
            }
            Command::Pause => shared.pause(),
            Command::Step { ns } => {
                let ticks = positive(ns, "a step")? / (Span::TICK.as_us_f64() * 1e3);
                let span = Span::from_ticks((ticks.round() as u64).clamp(1, 1 << 60));
                shared.change(|plan, at| (plan.target, plan.speed) = (at + span, None));
            }
            Command::Stop => shared.change(|plan, _| plan.stop = true),
        }
        self.changed();
        Ok(())
    }

    /// The message that is asked for, and the time at which its lane is.
    fn message(&self, which: &Which) -> Result<(Scenario, MessageStart, Time), Refusal> {
        let state = self.lock();
        let Some(lane) = state.lanes.get(which.lane) else { return refuse("there is no such run") };
        let Some(picture) = &lane.picture else { return refuse("the run has not begun") };
        let message = match (which.number, &which.message) {
            (Some(number), None) => {
                let Some(all) = &picture.messages else {
                    return refuse(
                        "pause the run first: a running one does not number its messages",
                    );
                };
                let Some(found) = number.checked_sub(1).and_then(|index| all.get(index)) else {
                    return refuse(format!(
                        "there is no message {number}: {} have started by now",
                        all.len()
                    ));
                };
                let (stream, src, dst) = (found.stream, found.src, found.dst);
                MessageStart { stream, src, dst, bytes: found.bytes, at: found.start }
            }
            (None, Some(it)) => MessageStart {
                stream: it.stream,
                src: HostId(it.src),
                dst: HostId(it.dst),
                bytes: it.bytes,
                at: Time::from_ticks(it.at),
            },
            _ => return refuse("name one message, by its number or as it is listed"),
        };
        Ok((lane.scenario.clone(), message, picture.at))
    }

    /// Traces a message, in place of the one before.
    pub(crate) fn trace(self: &Arc<Self>, which: &Which) -> Result<(), Refusal> {
        let (scenario, message, horizon) = self.message(which)?;
        let tracing = Arc::new(Tracing::default());
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        if let Traces::Running(before) = &state.trace {
            before.cancel.store(true, Ordering::Relaxed);
        }
        state.traces += 1;
        let (number, lane) = (state.traces, which.lane);
        state.trace = Traces::Running(Arc::clone(&tracing));
        drop(state);
        let session = Arc::clone(self);
        let run = move || {
            let taken = trace::take(scenario, message, horizon, &tracing);
            let mut state = session.lock();
            if state.traces != number || !matches!(state.trace, Traces::Running(_)) {
                return;
            }
            state.trace = match taken {
                Ok(trace) => Traces::Done(Arc::new(MessageTrace { lane, ..trace })),
                Err(why) => Traces::Failed(why),
            };
            drop(state);
            session.changed();
        };
        threads.retain(|thread| !thread.is_finished());
        match std::thread::Builder::new().name("trace".to_owned()).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => return refuse(format!("the system gives no thread: {error}")),
        }
        self.changed();
        Ok(())
    }

    /// What changes while lanes run.
    pub(crate) fn shown(&self) -> Value {
        let state = self.lock();
        let plan = state.shared.plan();
        let is_over = state.lanes.iter().all(|lane| lane.outcome.is_some());
        let waits = |lane: &Lane| {
            let waits = |it: &Arc<Picture>| it.waits && it.at >= plan.target;
            lane.outcome.is_some() || lane.picture.as_ref().is_some_and(waits)
        };
        let mode = match () {
            () if is_over => "over",
            () if state.lanes.iter().all(waits) => "paused",
            () => "running",
        };
        let lanes = state.lanes.iter().map(|lane| {
            json!({
                "picture": lane.picture.as_deref().map(view::picture),
                "outcome": lane.outcome.as_deref().map(view::outcome),
            })
        });
        json!({
            "generation": state.generation,
            "mode": mode,
            "target_ns": (plan.target < Time::MAX).then(|| ns(plan.target)),
            "lanes": lanes.collect::<Vec<_>>(),
            "trace": match &state.trace {
                Traces::None => json!({ "state": "none" }),
                Traces::Running(tracing) => {
                    let at = Time::from_ticks(tracing.at.load(Ordering::Relaxed));
                    json!({ "state": "running", "at_ns": ns(at) })
                }
                Traces::Done(_) => json!({ "state": "done", "number": state.traces }),
                Traces::Failed(why) => json!({ "state": "failed", "why": why }),
            },
        })
    }

    /// What stays the same until the next start.
    pub(crate) fn described(&self) -> Value {
        let state = self.lock();
        let lanes = state.lanes.iter().map(|lane| {
            let scenario = &lane.scenario;
            let point = &scenario.points[0];
            json!({
                "name": scenario.name,
                "command": command_line::run(&self.text.file, &lane.sets, None, None),
                "sets": lane.sets,
                "layout": Layout::new(&point.fabric),
                "streams": point.labels,
                "transport": point.transport,
                "parameters": point.parameters,
                "controls": controls(scenario),
                "warmup_ns": ns(Time::ZERO + point.config.measure.warmup),
                "has_messages": !point.config.streams.is_empty(),
                "notes": (scenario.unsuitable().into_iter().chain(scenario.overload()).collect::<Vec<_>>()),
            })
        });
        let transports = rackweave_lab::list::items(rackweave_lab::list::Topic::Transports);
        json!({
            "generation": state.generation,
            "file": self.text.file,
            "given": self.given,
            "sets": state.sets,
            "points": state.points,
            "point": state.point,
            "transports": transports.iter().map(|item| &item.name).collect::<Vec<_>>(),
            "lanes": lanes.collect::<Vec<_>>(),
        })
    }

    /// The scenario of a lane as a file.
    pub(crate) fn toml(&self, lane: usize) -> Option<(String, String)> {
        let state = self.lock();
        let scenario = &state.lanes.get(lane)?.scenario;
        let version = env!("CARGO_PKG_VERSION");
        let head = format!(
            "# Saved by rackweave explore {version}: the scenario with what was set, and all defaults.\n\n"
        );
        let name = scenario.default_out().file_name()?.to_string_lossy().into_owned();
        Some((format!("{name}.toml"), head + &scenario.resolved))
    }

    /// The last trace, with the names of its links.
    pub(crate) fn traced(&self) -> Option<(Arc<MessageTrace>, Vec<String>)> {
        let state = self.lock();
        let Traces::Done(trace) = &state.trace else { return None };
        let fabric = &state.lanes.get(trace.lane)?.scenario.points[0].fabric;
        let names = (0..fabric.links().len() as u32).map(|link| fabric.link_name(link));
        Some((Arc::clone(trace), names.collect()))
    }

    /// The summary.json of a lane that has ended.
    pub(crate) fn summary(&self, lane: usize) -> Option<String> {
        let outcome = self.lock().lanes.get(lane)?.outcome.clone()?;
        let Outcome::Finished { summary, .. } = &*outcome else { return None };
        Some(summary.clone())
    }
}

/// The keys with a control: their values now, and why.
fn controls(scenario: &Scenario) -> Value {
    let find = |path: &str| scenario.value_of(path);
    let controls = CONTROLS.iter().map(|(key, label)| {
        let parameter = scenario.points[0].parameters.iter().find(|it| it.key == *key);
        let value = match (find(key), parameter) {
            (_, Some(parameter)) => parameter.value.clone(),
            (Some(toml::Value::String(text)), _) => text,
            (Some(other), _) => other.to_string(),
            (None, None) => String::new(),
        };
        json!({
            "key": key,
            "label": label,
            "value": value,
            "default": parameter.map(|it| &it.default),
            "why": parameter.map(|it| &it.why),
        })
    });
    Value::Array(controls.collect())
}

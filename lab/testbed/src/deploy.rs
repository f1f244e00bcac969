//! From a scenario to hosts: the transport that a scenario describes, with the parameters that were simulated, for nodes of
//! [`rackweave_rpc`] and for `rackweave rpc --scenario`.
//!
//! ```no_run
//! use rackweave_testbed::deploy::FromScenario as _;
//! use rackweave_rpc::{NodeConfig, Transport};
//!
//! let transport = Transport::from_scenario("out/quickstart/scenario.resolved.toml", &["transport.name=homa"])?;
//! let config = NodeConfig::new(transport, "10.0.0.7:7000".parse()?).allow("10.0.0.0/24".parse()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use rackweave_core::{Rate, Span};
use rackweave_lab::error::ScenarioError;
use rackweave_lab::scenario::{PointSpec, ScenarioText, World};
use rackweave_scenario::path::Path;
use rackweave_sim::config::Marking;
use rackweave_transport::TransportConfig;

/// The round trip between two processes on hosts that a window should cover at least: two system calls, two wake-ups and a switch. The
/// value is the one of the profiles of [`rackweave_rpc::Transport`].
const RTT_OF_PROCESSES: Span = Span::from_us(60);

/// The transport of one point of a scenario.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// The transport's name in results: its `label`, or else its name.
    pub name: String,
    /// The parameters, as `rackweave testbed` runs them: those of the scenario, inside UDP, and with at least two seconds of patience with
    /// a silent peer.
    pub config: TransportConfig,
    /// The rate of a host's link.
    pub link: Rate,
    /// The kernel's congestion control if only the kernel has this transport (BBR).
    pub kernel_tcp: Option<&'static str>,
    /// What the operator has to know: what the scenario assumes that a network of hosts may not have.
    pub notes: Vec<String>,
}

impl Deployment {
    /// Reads a scenario, from a file or a built-in one by its name, with keys that are set as by `--set KEY=VALUE`.
    ///
    /// # Errors
    /// If it is invalid, describes several points (the message lists what selects each), or has no transport of messages.
    pub fn load<S: AsRef<str>>(scenario: &str, sets: &[S]) -> Result<Self, ScenarioError> {
        let sets: Vec<String> = sets.iter().map(|set| set.as_ref().to_owned()).collect();
        let text = ScenarioText::load(scenario)?;
        let read = text.read(World::Testbed, &sets, None)?;
        let first = read.points.first();
        let one = first.filter(|first| {
            // Points that differ in load or seed have the same transport.
            read.points.iter().all(|point| is_same_transport(point, first))
        });
        match (one, first) {
            (Some(point), _) => Self::of(scenario, point),
            (None, Some(_)) => Err(several(scenario, &read.points)),
            (None, None) => Err(ScenarioError::new(format!("`{scenario}` has no points"))),
        }
    }

    fn of(scenario: &str, point: &PointSpec) -> Result<Self, ScenarioError> {
        let measured = point.config.streams.first().zip(point.labels.first());
        let Some((stream, name)) = measured else {
            return Err(ScenarioError::new(format!(
                "`{scenario}` sends no messages over a transport"
            ))
            .with_help("casts, images and jobs have commands of their own: `rackweave cast`, `image`, `reduce`"));
        };
        let kernel_tcp = point.kernel_tcp.first().copied().flatten().filter(|name| *name == "bbr");
        let rtt = Path::longest(&point.fabric).base_rtt();
        let mut notes = Vec::new();
        if rtt < RTT_OF_PROCESSES {
            notes.push(format!(
                "the scenario's round trip is {rtt}, for which its windows are large enough; between processes it is tens of microseconds \
                 (`rackweave rpc bench --unloaded 1000` measures it): set fabric.host_send_delay and fabric.host_receive_delay accordingly"
            ));
        }
        let switch = &point.config.fabric.switch;
        let assumed = [
            (switch.trim.is_some(), "trims packets"),
            (switch.marking != Marking::Never, "marks packets (ECN)"),
        ];
        let assumed: Vec<_> =
            assumed.into_iter().filter_map(|(is, what)| is.then_some(what)).collect();
        if !assumed.is_empty() {
            notes.push(format!(
                "the scenario's switches do what those of the network must do too: {}",
                assumed.join(", ")
            ));
        }
        Ok(Self {
            name: name.clone(),
            config: stream.transport.clone(),
            link: point.fabric.host_rate(),
            kernel_tcp,
            notes,
        })
    }
}

fn is_same_transport(a: &PointSpec, b: &PointSpec) -> bool {
    let of =
        |point: &PointSpec| point.config.streams.first().map(|stream| stream.transport.clone());
    of(a) == of(b)
        && a.labels.first() == b.labels.first()
        && a.kernel_tcp.first() == b.kernel_tcp.first()
        && a.fabric.host_rate() == b.fabric.host_rate()
}

fn several(scenario: &str, points: &[PointSpec]) -> ScenarioError {
    let mut choices: Vec<String> = Vec::new();
    for point in points {
        let choice = point.arguments.iter().map(|argument| format!("--set '{argument}'"));
        let choice = choice.collect::<Vec<_>>().join(" ");
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    ScenarioError::new(format!("`{scenario}` describes several transports"))
        .with_help(format!("choose one: {}", choices.join("; ")))
}

/// Nodes with the transport of a scenario.
pub trait FromScenario: Sized {
    /// Returns the transport of a scenario: a file, such as `scenario.resolved.toml` among the results of a run, or the name of a built-in
    /// one; `sets` are keys that are set as by `--set KEY=VALUE`. All nodes need the same.
    ///
    /// # Errors
    /// Those of [`Deployment::load`].
    fn from_scenario<S: AsRef<str>>(scenario: &str, sets: &[S]) -> Result<Self, ScenarioError>;
}

impl FromScenario for rackweave_rpc::Transport {
    fn from_scenario<S: AsRef<str>>(scenario: &str, sets: &[S]) -> Result<Self, ScenarioError> {
        let Deployment { config, link, kernel_tcp, .. } = Deployment::load(scenario, sets)?;
        Ok(match kernel_tcp {
            Some(congestion) => Self::kernel_tcp(Some(congestion)),
            None => Self::custom(config, link),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [&str; 0] = [];

    #[test]
    fn the_parameters_are_those_of_the_scenario() {
        let sets = ["transport.name=polo", "fabric.host_link=25 Gbps"];
        let deployed = Deployment::load("quickstart", &sets).unwrap();
        assert_eq!((deployed.name.as_str(), deployed.link), ("polo", Rate::from_gbps(25)));
        let sets = sets.map(str::to_owned);
        let scenario = ScenarioText::load("quickstart").unwrap();
        let scenario = scenario.read(World::Testbed, &sets, None).unwrap();
        assert_eq!(deployed.config, scenario.points[0].config.streams[0].transport);
        assert_eq!(deployed.kernel_tcp, None);
        let transport = rackweave_rpc::Transport::from_scenario("quickstart", &sets).unwrap();
        assert_eq!(transport.parameters(), Some((&deployed.config, deployed.link)));
    }

    #[test]
    fn points_that_differ_in_load_only_have_one_transport() {
        let sets = ["transport.name=homa", "sweep.workload.load=[0.2, 0.5]"];
        assert_eq!(Deployment::load("quickstart", &sets).unwrap().name, "homa");
    }

    #[test]
    fn of_several_transports_one_is_to_be_chosen() {
        let error = Deployment::load("quickstart", &NONE).unwrap_err();
        assert!(error.message().contains("several transports"), "{error}");
        let help = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(
            help.contains("--set 'transport.name=\"homa\"'") || help.contains("homa"),
            "{help}"
        );
    }

    #[test]
    fn what_carries_no_messages_is_refused() {
        let text = "fabric = { topology = 'single-switch', hosts = 5, host_link = '1 Gbps' }\n\
                    workload.cast = { sender = 0, receivers = 4, files = '1 MB' }\n\
                    transport = { name = 'orca', spread = 'multicast' }\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.toml");
        std::fs::write(&file, text).unwrap();
        let error = Deployment::load(file.to_str().unwrap(), &NONE).unwrap_err();
        assert!(error.message().contains("sends no messages"), "{}", error.message());
        let help = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(help.contains("rackweave cast"), "{help}");
    }
}

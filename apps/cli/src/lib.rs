//! The `rackweave` command as a function. It parses arguments and prints results; the libraries do the work.
//!
//! A command with transports of one's own is a `main` that hands them over (`rackweave new-transport` writes one):
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     rackweave::main(&[])
//! }
//! ```

mod args;
#[cfg(feature = "hosts")]
mod calibrate;
#[cfg(feature = "hosts")]
mod cast;
#[cfg(feature = "hosts")]
mod chaos;
mod compare;
// The commands for real hosts have options too.
#[cfg(all(test, feature = "hosts"))]
mod documents;
#[cfg(feature = "explore")]
mod explore;
mod generate;
#[cfg(feature = "hosts")]
mod image;
mod new_transport;
#[cfg(feature = "hosts")]
mod node;
mod paper;
#[cfg(feature = "hosts")]
mod pod;
mod progress;
#[cfg(feature = "hosts")]
mod reduce;
mod report;
#[cfg(feature = "hosts")]
mod rpc;
mod run;
#[cfg(feature = "hosts")]
mod secret;
mod shell;
mod size;
#[cfg(feature = "hosts")]
mod switch;
#[cfg(feature = "hosts")]
mod testbed;
mod tune;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, ValueEnum as _};
use rackweave_lab::list::{self, Topic};

use crate::args::{Args, Command, ListArgs, TopicArg};
use crate::shell::{exit, is_output_lost, print};

pub use rackweave_core as core;
pub use rackweave_lab as lab;
pub use rackweave_scenario as scenario;
pub use rackweave_scenario::transport::Plugin;
pub use rackweave_sim as sim;
pub use rackweave_transport as transport;

/// Runs the command with the arguments of the process, and with these transports next to the built-in ones.
#[must_use]
pub fn main(plugins: &[Plugin]) -> ExitCode {
    if let Err(error) = rackweave_scenario::transport::plug_in(plugins) {
        // If stderr is closed, the error cannot be reported anywhere.
        let _ = writeln!(std::io::stderr().lock(), "error: {error}");
        return ExitCode::from(exit::USAGE);
    }
    generate::complete();
    let args = Args::parse();
    #[cfg(feature = "hosts")]
    {
        shell::events::start();
        log_events();
    }
    let reports = is_report(&args.command);
    let result = std::panic::catch_unwind(|| match args.command {
        Command::Run(args) => run::run(args),
        #[cfg(feature = "hosts")]
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::Merge(args) => run::merge(&args),
        #[cfg(feature = "hosts")]
        Command::Testbed(args) => testbed::testbed(&args),
        #[cfg(feature = "hosts")]
        Command::TestbedPart(args) => Ok(testbed::worker(&args)),
        #[cfg(feature = "hosts")]
        Command::Switch(args) => switch::switch(&args),
        #[cfg(feature = "explore")]
        Command::Explore(args) => explore::explore(args),
        Command::Tune(args) => tune::tune(&args),
        Command::Size(args) => size::size(&args),
        Command::List(args) => list(&args),
        Command::Compare(args) => compare::compare(&args),
        Command::Report(args) => report::report(&args),
        Command::Paper(args) => paper::paper(&args),
        #[cfg(feature = "hosts")]
        Command::Chaos(args) => chaos::chaos(&args),
        #[cfg(feature = "hosts")]
        Command::Rpc(command) => rpc::rpc(command),
        #[cfg(feature = "hosts")]
        Command::Cast(command) => cast::cast(command),
        #[cfg(feature = "hosts")]
        Command::Image(command) => image::image(command),
        #[cfg(feature = "hosts")]
        Command::Reduce(command) => reduce::reduce(&command),
        #[cfg(feature = "hosts")]
        Command::Pod(command) => pod::pod(&command),
        #[cfg(feature = "hosts")]
        Command::Node(args) => node::node(args),
        Command::Schema => print(rackweave_lab::results::SUMMARY_SCHEMA),
        Command::NewTransport(args) => new_transport::new_transport(&args),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    });
    ExitCode::from(match result {
        Ok(Ok(exit::DONE)) if reports && is_output_lost() => exit::FAILED,
        Ok(Ok(code)) => code,
        // The panic message has been printed.
        Err(_) => exit::FAILED,
        Ok(Err(error)) => {
            let mut stderr = std::io::stderr().lock();
            // If stderr is closed, the error cannot be reported anywhere.
            let _ = writeln!(stderr, "{error:?}");
            exit::USAGE
        }
    })
}

/// Prints the libraries' events on stderr, down to the level that the environment variable `RACKWEAVE_LOG` names.
#[cfg(feature = "hosts")]
fn log_events() {
    let level = std::env::var("RACKWEAVE_LOG").ok().and_then(|level| level.parse().ok());
    if let Some(level) = level {
        let level: tracing_subscriber::filter::LevelFilter = level;
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
    }
}

/// The topics of `rackweave list`, with what they are.
fn topics() -> Vec<(&'static str, String)> {
    let topic = |topic: &TopicArg| {
        let value = topic.to_possible_value()?;
        Some((topic.name(), value.get_help().map(ToString::to_string).unwrap_or_default()))
    };
    TopicArg::value_variants().iter().filter_map(topic).collect()
}

fn print_topics(as_json: bool) -> miette::Result<u8> {
    if as_json {
        let topic = |(name, help)| serde_json::json!({ "name": name, "description": help });
        let topics: Vec<_> = topics().into_iter().map(topic).collect();
        return print(&format!("{:#}\n", serde_json::json!({ "topics": topics })));
    }
    let lines = topics().into_iter().map(|(name, help)| format!("{name:<12} {help}\n"));
    print(
        &lines
            .chain(["\nrackweave list TOPIC shows one of them.\n".to_owned()])
            .collect::<String>(),
    )
}

fn list(args: &ListArgs) -> miette::Result<u8> {
    let Some(asked) = args.topic else { return print_topics(args.json) };
    let topic = match asked {
        TopicArg::Transports => Some(Topic::Transports),
        TopicArg::Fabrics => Some(Topic::Fabrics),
        TopicArg::Workloads => Some(Topic::Workloads),
        TopicArg::Scenarios => Some(Topic::Scenarios),
        TopicArg::Claims => None,
    };
    let items = match topic {
        Some(topic) => list::items(topic),
        // A file of claims that is wrong is an error of the build; tests read all of them.
        None => rackweave_papers::items(&rackweave_papers::papers().unwrap_or_default()),
    };
    if args.json {
        let name = asked.name();
        return print(&format!("{:#}\n", serde_json::json!({ name: items })));
    }
    print(
        &topic.map_or_else(
            || rackweave_papers::to_text(&items),
            |topic| list::to_text(topic, &items),
        ),
    )
}

/// Whether what a command prints is what it is for, so that it has failed if that is lost. Files and images are where they are wanted,
/// whoever reads the report.
fn is_report(command: &Command) -> bool {
    match command {
        Command::Run(_)
        | Command::Merge(_)
        | Command::Compare(_)
        | Command::Report(_)
        | Command::Tune(_)
        | Command::Size(_)
        | Command::Paper(_) => true,
        #[cfg(feature = "hosts")]
        Command::Testbed(_) | Command::Calibrate(_) | Command::Chaos(_) | Command::Rpc(_) => true,
        _ => false,
    }
}

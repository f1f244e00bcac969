//! The `rackweave` command. It parses arguments and prints results; the libraries do the work.

mod args;
mod cast;
mod chaos;
mod image;
mod paper;
mod progress;
mod reduce;
mod rpc;
mod run;
mod secret;
mod switch;
mod testbed;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use rackweave_lab::list;

use crate::args::{Args, Command, ListArgs};

/// Exit codes, which scripts depend on.
pub(crate) mod exit {
    /// The command succeeded.
    pub(crate) const DONE: u8 = 0;
    /// The command ran, and some part of it failed.
    pub(crate) const FAILED: u8 = 1;
    /// The arguments or a file are invalid.
    pub(crate) const USAGE: u8 = 2;
    /// Ctrl-C stopped the command.
    pub(crate) const INTERRUPTED: u8 = 130;
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = std::panic::catch_unwind(|| match args.command {
        Command::Run(args) => run::run(args),
        Command::Merge(args) => run::merge(&args),
        Command::Testbed(args) => testbed::testbed(&args),
        Command::TestbedPart(args) => Ok(testbed::worker(&args)),
        Command::Switch(args) => switch::switch(&args),
        Command::List(args) => list(&args),
        Command::Paper(args) => paper::paper(&args),
        Command::Chaos(args) => chaos::chaos(&args),
        Command::Rpc(command) => rpc::rpc(command),
        Command::Cast(command) => cast::cast(command),
        Command::Image(command) => image::image(command),
        Command::Reduce(command) => reduce::reduce(&command),
    });
    ExitCode::from(match result {
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

fn list(args: &ListArgs) -> miette::Result<u8> {
    let topic = args.topic.into();
    let items = list::items(topic);
    if args.json {
        let name = args.topic.name();
        print(&format!("{:#}\n", serde_json::json!({ name: items })))
    } else {
        print(&list::to_text(topic, &items))
    }
}

/// Writes to stdout. A reader that has gone away (`| head`) is not an error.
pub(crate) fn print(text: &str) -> miette::Result<u8> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(exit::DONE),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(exit::DONE),
        Err(error) => Err(miette::miette!("cannot write to standard output: {error}")),
    }
}

/// Returns a text with control characters escaped, as a path may have some that a terminal would obey, or that hide what others are.
pub(crate) fn escaped(text: &str) -> String {
    rackweave_image::visible(text)
}

/// Returns the error message for a text that is not an address.
pub(crate) fn not_an_address(text: &str) -> String {
    format!(
        "`{text}` is neither an IP address nor a resolvable host name (expected HOST or HOST:PORT)"
    )
}

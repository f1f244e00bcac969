//! The `rackweave` command. It parses arguments and prints results; the libraries do the work.

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
mod generate;
#[cfg(feature = "hosts")]
mod image;
mod paper;
mod progress;
#[cfg(feature = "hosts")]
mod reduce;
mod report;
#[cfg(feature = "hosts")]
mod rpc;
mod run;
#[cfg(feature = "hosts")]
mod secret;
#[cfg(feature = "hosts")]
mod switch;
#[cfg(feature = "hosts")]
mod testbed;

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Whether something could not be written to standard output.
static IS_INCOMPLETE: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "hosts")]
    log_events();
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
        Command::Schema => print(rackweave_lab::results::SUMMARY_SCHEMA),
        Command::Completions(args) => generate::completions(&args),
        Command::Man(args) => generate::man(&args),
    });
    ExitCode::from(match result {
        Ok(Ok(exit::DONE)) if reports && IS_INCOMPLETE.load(Ordering::Relaxed) => exit::FAILED,
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

/// Whether what a command prints is what it is for, so that it has failed if that is lost. Files and images are where they are wanted,
/// whoever reads the report.
fn is_report(command: &Command) -> bool {
    match command {
        Command::Run(_)
        | Command::Merge(_)
        | Command::Compare(_)
        | Command::Report(_)
        | Command::Paper(_) => true,
        #[cfg(feature = "hosts")]
        Command::Testbed(_) | Command::Calibrate(_) | Command::Chaos(_) | Command::Rpc(_) => true,
        _ => false,
    }
}

/// Writes to stdout, and returns the exit code of that. Where stdout cannot be written (a full disk), stderr says so, and the command goes
/// on: a receiver of files does not end because its log is full. A reader that has gone away (`| head`) is not an error.
///
/// # Errors
/// None. A command that only prints returns the result as its own; for others `main` remembers it.
pub(crate) fn print(text: &str) -> miette::Result<u8> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let mut stderr = std::io::stderr().lock();
            // If stderr is closed too, the error cannot be reported anywhere.
            let _ = writeln!(stderr, "error: cannot write to standard output: {error}");
            IS_INCOMPLETE.store(true, Ordering::Relaxed);
            Ok(exit::FAILED)
        }
        _ => Ok(exit::DONE),
    }
}

/// Returns a text with control characters escaped, as a path may have some that a terminal would obey, or that hide what others are.
pub(crate) fn escaped(text: &str) -> String {
    rackweave_core::visible(text)
}

/// Returns a text of several lines with the control characters in each line escaped.
pub(crate) fn escaped_lines(text: &str) -> String {
    text.lines().flat_map(|line| [escaped(line), "\n".to_owned()]).collect()
}

/// Parses a rate at which something is to be sent.
#[cfg(feature = "hosts")]
pub(crate) fn positive_rate(text: &str) -> Result<rackweave_core::Rate, String> {
    let rate: rackweave_core::Rate = text.parse().map_err(|error| format!("{error}"))?;
    if rate.0 > 0 { Ok(rate) } else { Err("it must be above zero".into()) }
}

/// Reads a list of hosts. A device without an end is not one, and the mark that Windows' editors put at the beginning of UTF-8 is no part of it.
#[cfg(feature = "hosts")]
pub(crate) fn read_list(path: &str) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind, Read as _};
    const MOST_BYTES: usize = 16 << 20;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MOST_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, "it has more than 16 MiB"));
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Returns the error message for a text that is not an address.
#[cfg(feature = "hosts")]
pub(crate) fn not_an_address(text: &str) -> String {
    format!(
        "`{text}` is neither an IP address nor a resolvable host name (expected HOST or HOST:PORT)"
    )
}

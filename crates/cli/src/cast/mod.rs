//! `rackweave cast`: files and streams to many hosts.

mod agent;
mod agent_client;
mod args;
mod compare;
mod control;
mod diagnose;
mod fabric;
mod flow;
mod outcome;
mod receive;
mod send;
mod sessions;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Subcommand;
use miette::miette;
use rackweave_cast::Waker;
use rackweave_cast::orca::{Admission, EngineConfig, is_group_name};
use rackweave_lab::report::number;
use rackweave_linux::sys::runtime_folder;
use rackweave_wire::orca::PORT;

use crate::exit;

#[derive(Debug, Subcommand)]
pub(crate) enum CastCommand {
    /// Send files, or standard input, to many hosts at once.
    Send(Box<args::SendArgs>),
    /// Receive files from a sender.
    Receive(Box<args::ReceiveArgs>),
    /// Serve applications of this host, and represent it towards label switches.
    Agent(Box<agent::AgentArgs>),
    /// Control a fabric with label switches.
    Control(Box<control::ControlArgs>),
    /// Show the streams of an agent, or the sessions of a controller.
    Sessions(sessions::SessionsArgs),
}

/// The name of the control socket of a user's agent, in the user's folder for running processes.
const AGENT_SOCKET: &str = "cast.sock";

/// Returns the default path of the control socket of this user's agent.
fn agent_socket() -> std::io::Result<PathBuf> {
    runtime_folder().map(|folder| folder.join(AGENT_SOCKET))
}

/// Options that senders and receivers share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CommonArgs {
    /// Key file shared by both ends, at least 16 bytes: names and content are encrypted, other packets dropped (default: no key).
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Interface for multicast, by name or address (default: the system's choice).
    #[arg(long, value_name = "IF", value_parser = interface)]
    interface: Option<Ipv4Addr>,
    /// All hosts, for labels and relays, identical on every host: one address per line, or TOML with `hosts` and `[fabric]`
    /// (default: none).
    #[arg(long, visible_alias = "hosts", value_name = "FILE")]
    fabric: Option<PathBuf>,
    /// Index of this host in --fabric, from 0 (default: the entry with an address of this machine).
    #[arg(long, value_name = "N", requires = "fabric")]
    me: Option<u32>,
    /// Print one JSON document on standard output.
    #[arg(long)]
    json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn cast(command: CastCommand) -> miette::Result<u8> {
    // If the system refuses, exceeding the file size limit ends the process, which loses nothing.
    let _ = rackweave_linux::sys::outlive_file_limit();
    match command {
        CastCommand::Send(args) => send::send(*args),
        CastCommand::Receive(args) => receive::receive(&args),
        CastCommand::Agent(args) => agent::agent(&args),
        CastCommand::Control(args) => control::control(&args),
        CastCommand::Sessions(args) => sessions::sessions(&args),
    }
}

/// Parses `HOST`, `HOST:PORT` or an address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text
        .to_socket_addrs()
        .or_else(|_| (text.trim_matches(['[', ']']), PORT).to_socket_addrs())
        .map_err(|_| crate::not_an_address(text))?;
    found.next().ok_or_else(|| crate::not_an_address(text))
}

/// Parses `HOST` into all its addresses.
fn host(text: &str) -> Result<Vec<IpAddr>, String> {
    let found = (text.trim_matches(['[', ']']), 0).to_socket_addrs();
    let found = found
        .map_err(|_| format!("`{text}` is neither an IP address nor a resolvable host name"))?;
    Ok(found.map(|address| address.ip()).collect())
}

fn interface(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().or_else(|_| {
        rackweave_linux::sys::ethtool::address_of(text)
            .map_err(|error| format!("`{text}` is not an interface with an IPv4 address: {error}"))
    })
}

/// Parses the name of a group.
fn group(text: &str) -> Result<String, String> {
    match is_group_name(text) {
        true => Ok(text.to_owned()),
        false => Err("a group name must have 1 to 64 bytes and no control characters".to_owned()),
    }
}

fn print_status(text: &str) {
    // If stderr is closed, the text cannot be reported anywhere.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

impl CommonArgs {
    /// Returns the configuration of the engine.
    fn engine(&self, bind: SocketAddr, admitted: Vec<IpAddr>) -> miette::Result<EngineConfig> {
        let secret = self.key.as_deref().map(crate::secret::read).transpose()?;
        // Everybody on this machine can send from loopback, so it is admitted only where nothing else is said.
        let loopback = secret.is_none() && admitted.is_empty();
        let admission = Admission { everyone: secret.is_some(), loopback, addresses: admitted };
        let fabric = self.fabric.as_deref().map(|path| fabric::read(path, self.me)).transpose()?;
        let interface = self.interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
        Ok(EngineConfig { secret, admission, interface, fabric, ..EngineConfig::new(bind) })
    }
}

/// A flag that Ctrl-C or SIGTERM sets, waking the engine. A second signal ends the process.
#[derive(Clone, Default)]
struct Interrupted {
    flag: Arc<AtomicBool>,
    action: Arc<Mutex<Option<OnSignal>>>,
}

/// What a signal does besides setting the flag.
enum OnSignal {
    Wake(Waker),
    /// Print this text and end the process, for waits that cannot be woken.
    Exit(&'static str),
}

impl Interrupted {
    /// Installs the signal handler, which works once per process.
    fn watch() -> miette::Result<Self> {
        let this = Self::default();
        let (flag, action) = (Arc::clone(&this.flag), Arc::clone(&this.action));
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
            match &*action.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(OnSignal::Wake(waker)) => waker.wake(),
                Some(OnSignal::Exit(text)) => {
                    print_status(text);
                    std::process::exit(i32::from(exit::INTERRUPTED));
                }
                None => {}
            }
        })
        .map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))?;
        Ok(this)
    }

    /// Sets the engine to wake on a signal.
    fn set_waker(&self, waker: Waker) {
        self.set(OnSignal::Wake(waker));
    }

    /// Makes a signal print this text and end the process.
    fn exits(&self, text: &'static str) {
        self.set(OnSignal::Exit(text));
    }

    fn set(&self, action: OnSignal) {
        *self.action.lock().unwrap_or_else(PoisonError::into_inner) = Some(action);
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

/// Creates [`Interrupted::watch`] with an engine to wake.
fn interrupted(waker: Waker) -> miette::Result<Interrupted> {
    let this = Interrupted::watch()?;
    this.set_waker(waker);
    Ok(this)
}

/// A number of bytes with three significant digits, such as "12.3 MB".
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn size(bytes: u64) -> String {
    number::bytes(bytes as f64)
}

/// A rate with three significant digits, such as "941 Mbps".
fn rate(bits_per_second: f64) -> String {
    number::rate(bits_per_second)
}

/// Lower-case hexadecimal, as `b3sum` prints hashes.
fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

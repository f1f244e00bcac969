//! `rackweave cast`: files and streams to many hosts.

mod agent;
mod control;
mod diagnose;
mod door;
mod fabric;
mod many;
mod receive;
mod send;
mod sessions;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Subcommand;
use miette::miette;
use rackweave_cast::Waker;
use rackweave_cast::engine::{Admission, EngineConfig, is_group_name};
use rackweave_wire::orca::PORT;

use crate::exit;

#[derive(Debug, Subcommand)]
pub(crate) enum CastCommand {
    /// Send files, or standard input, to many hosts at once.
    Send(Box<send::SendArgs>),
    /// Take files that are sent.
    Receive(Box<receive::ReceiveArgs>),
    /// Serve applications of this host, and relay for its rack.
    Agent(Box<agent::AgentArgs>),
    /// Be the controller of a fabric with label switches.
    Control(Box<control::ControlArgs>),
    /// Show the streams of an agent, or a controller's sessions.
    Sessions(sessions::SessionsArgs),
}

/// What both ends need to know.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CommonArgs {
    /// A file that both ends have, of 16 bytes or more: packets made without it are refused. Nothing is encrypted (default:
    /// no key).
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The interface of multicast, by its name or address (default: the system's choice).
    #[arg(long, value_name = "IF", value_parser = interface)]
    interface: Option<Ipv4Addr>,
    /// All hosts, for labels and relays, the same file for all: an address a line, or TOML with `hosts` and `[fabric]`
    /// (default: hosts know only whom they are told).
    #[arg(long, visible_alias = "hosts", value_name = "FILE")]
    fabric: Option<PathBuf>,
    /// Which of its hosts this one is, from 0 (default: the one with an address of this machine).
    #[arg(long, value_name = "N", requires = "fabric")]
    me: Option<u32>,
    /// Print one JSON document on standard output.
    #[arg(long)]
    json: bool,
    /// No progress.
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn cast(command: CastCommand) -> miette::Result<u8> {
    // A system that refuses ends this process when a file becomes too large: no harm is done.
    let _ = rackweave_linux::sys::outlive_file_limit();
    match command {
        CastCommand::Send(args) => send::send(*args),
        CastCommand::Receive(args) => receive::receive(&args),
        CastCommand::Agent(args) => agent::agent(&args),
        CastCommand::Control(args) => control::control(&args),
        CastCommand::Sessions(args) => sessions::sessions(&args),
    }
}

/// `HOST`, `HOST:PORT` or an address.
fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text
        .to_socket_addrs()
        .or_else(|_| (text.trim_matches(['[', ']']), PORT).to_socket_addrs())
        .map_err(|_| format!("`{text}` is no address, no known name, and neither with a port"))?;
    found.next().ok_or_else(|| format!("`{text}` has no address"))
}

/// `HOST`: all its addresses.
fn host(text: &str) -> Result<Vec<IpAddr>, String> {
    let found = (text.trim_matches(['[', ']']), 0).to_socket_addrs();
    let found = found.map_err(|_| format!("`{text}` is neither an address nor a known name"))?;
    Ok(found.map(|address| address.ip()).collect())
}

fn interface(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().or_else(|_| {
        rackweave_linux::sys::ethtool::address_of(text)
            .map_err(|error| format!("`{text}` is no interface with an IPv4 address: {error}"))
    })
}

/// A group's name.
fn group(text: &str) -> Result<String, String> {
    match is_group_name(text) {
        true => Ok(text.to_owned()),
        false => Err("a group's name has 1 to 64 bytes, without control characters".to_owned()),
    }
}

fn say(text: &str) {
    // Where nobody reads errors, there is no use in an error about it.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// The key file's bytes; a short one is refused.
fn read_key(path: &Path) -> miette::Result<Vec<u8>> {
    let bytes = std::fs::read(path)
        .map_err(|error| miette!("cannot read the key file {}: {error}", path.display()))?;
    if bytes.len() < 16 {
        return Err(miette!(
            "the key file {} has {} bytes: fewer than 16 can be guessed; `head -c 32 /dev/urandom > FILE` makes a good one",
            path.display(),
            bytes.len()
        ));
    }
    Ok(bytes)
}

impl CommonArgs {
    /// What the engine is told.
    fn engine(&self, bind: SocketAddr, admitted: Vec<IpAddr>) -> miette::Result<EngineConfig> {
        let secret = self.key.as_deref().map(read_key).transpose()?;
        let admission =
            Admission { anybody: secret.is_some(), loopback: true, addresses: admitted };
        let fabric = self.fabric.as_deref().map(|path| fabric::read(path, self.me)).transpose()?;
        let interface = self.interface.unwrap_or(Ipv4Addr::UNSPECIFIED);
        Ok(EngineConfig { secret, admission, interface, fabric, ..EngineConfig::new(bind) })
    }
}

/// Set by Ctrl-C or SIGTERM, which also wake who waits; the second time the process ends.
#[derive(Clone, Default)]
struct Interrupted {
    flag: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Interrupted {
    /// From now on it is noted. Once in a process.
    fn watch() -> miette::Result<Self> {
        let this = Self::default();
        let (flag, waker) = (Arc::clone(&this.flag), Arc::clone(&this.waker));
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
            if let Some(waker) = &*waker.lock().unwrap_or_else(PoisonError::into_inner) {
                waker.wake();
            }
        })
        .map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))?;
        Ok(this)
    }

    /// Who waits from now on.
    fn wakes(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

/// As [`Interrupted::watch`], for one that waits.
fn interrupted(waker: Waker) -> miette::Result<Interrupted> {
    let this = Interrupted::watch()?;
    this.wakes(waker);
    Ok(this)
}

/// "12.3 MB".
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// "941 Mbps".
fn rate(bits_per_second: f64) -> String {
    match bits_per_second {
        bits if bits >= 1e9 => format!("{:.2} Gbps", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.0} Mbps", bits / 1e6),
        bits => format!("{:.0} kbps", bits / 1e3),
    }
}

/// A hash as `b3sum` prints it.
fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

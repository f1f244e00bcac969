//! `rackweave cast`: files and streams to many hosts.

mod agent;
mod agent_client;
mod args;
mod compare;
mod control;
mod diagnose;
mod dry_run;
mod fabric;
mod failures;
mod flow;
mod items;
mod outcome;
mod receive;
mod send;
mod sessions;
mod show;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use crate::shell::signal::Interrupt;
use crate::shell::values;
use clap::Subcommand;
use rackweave_cast::Waker;
use rackweave_cast::orca::{Admission, EngineConfig, is_group_name};
use rackweave_linux::sys::runtime_folder;
use rackweave_wire::orca::PORT;

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
    /// File with a shared secret of at least 16 bytes, which encrypts names and content (default:
    /// no key).
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Interface for multicast, by name or address (default: the system's choice).
    #[arg(long, value_name = "IF", value_parser = interface)]
    interface: Option<Ipv4Addr>,
    /// All hosts, the same file on each: one address per line, or TOML with `hosts` and `[fabric]`
    /// (default: none).
    #[arg(long, visible_alias = "hosts", value_name = "FILE")]
    fabric: Option<PathBuf>,
    /// Index of this host in --fabric, from 0 (default: the entry with an address of this machine).
    #[arg(long, value_name = "N", requires = "fabric")]
    me: Option<u32>,
    /// Print the result as one line of JSON on standard output.
    #[arg(long)]
    json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    quiet: bool,
}

pub(crate) fn cast(command: CastCommand) -> miette::Result<u8> {
    // Folders that are opened for their owner stay open while they are compared. If the system refuses, they may be fewer.
    let _ = rackweave_linux::sys::raise_open_file_limit();
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
    values::address(text, PORT)
}

/// Parses `HOST` into all its addresses.
fn host(text: &str) -> Result<Vec<IpAddr>, String> {
    let found = (text.trim_matches(['[', ']']), 0).to_socket_addrs();
    let found = found
        .map_err(|_| format!("`{text}` is neither an IP address nor a resolvable host name"))?;
    Ok(found.map(|address| address.ip().to_canonical()).collect())
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

/// A flag that Ctrl-C or SIGTERM sets, waking this engine.
fn interrupted(waker: Waker) -> miette::Result<Interrupt> {
    Interrupt::watch_with(move || waker.wake())
}

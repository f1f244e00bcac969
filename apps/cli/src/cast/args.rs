//! The arguments of `cast send` and `cast receive`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use miette::miette;
use rackweave_cast::excludes::Excludes;
use rackweave_cast::format::is_manifest;
use rackweave_cast::sink::{
    Comparing, Folder, FolderConfig, Handovers, Manifests, Output, Sink, SinkError,
};
use rackweave_cast::store::Cancel;
use rackweave_core::{Bytes, Rate, Span};
use rackweave_orca::host::Spread;
use rackweave_orca::parity::MAX_CELLS;

use super::fabric::RackArgs;
use super::flow::fec_block;
use super::{CommonArgs, address, group, host};
use crate::shell::{escaped, values};

/// Send files, or standard input, to many hosts at once.
///
/// Receivers run `rackweave cast receive`. Every chunk and file is hashed; the exit code is 0 only if all receivers have
/// all files. After an interruption, the same command resumes where each receiver stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast send image.iso --to 192.0.2.7,192.0.2.8,192.0.2.9\n  \
    tar c dir | rackweave cast send - --to node1 --to node2 --key cast.key\n  \
    rackweave cast send image.iso --to node1,node2 --method chain --json\n\n\
    Exit codes: 0 all receivers have everything, 1 some do not, 2 wrong usage or file, 130 interrupted.")]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    /// Files and directories, or `-` for standard input.
    #[arg(value_name = "FILE", required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Receivers: HOST or HOST:PORT, separated by commas or repeated (default: port 6722); or
    /// @FILE, one per line.
    #[arg(id = "to", long = "to", value_name = "HOST", required_unless_present = "group", value_delimiter = ',', value_parser = receivers)]
    pub(super) named: Vec<Receivers>,
    /// All receivers: those of `named`, or the members of the group.
    #[arg(skip)]
    pub(super) to: Vec<SocketAddr>,
    /// Omit what this pattern of .gitignore matches, such as `*.o` or `/dir/cache/`; may be repeated.
    #[arg(long, value_name = "PATTERN", allow_hyphen_values = true)]
    pub(super) exclude: Vec<String>,
    /// Print what would be sent to whom; nothing is sent and no receiver changes anything.
    #[arg(long, short = 'n')]
    pub(super) dry_run: bool,
    /// Print a line for each path that is new, changed, deleted or skipped, with the reason.
    #[arg(long, short)]
    pub(super) itemize: bool,
    /// Compare files by their hashes (default: by length and time).
    #[arg(long, short)]
    pub(super) checksum: bool,
    /// Delete what receivers have in the folders sent and the sender has not (they need --allow-delete).
    #[arg(long)]
    pub(super) delete: bool,
    /// Keep extended attributes `user.*`, and ACLs at receivers that are root.
    #[arg(long)]
    pub(super) xattrs: bool,
    /// Keep owners and groups by their numbers, at receivers that are root (others: groups of theirs).
    #[arg(long)]
    pub(super) owner: bool,
    /// Send to all members of this group (`receive --group`), found by multicast.
    #[arg(long, value_name = "NAME", conflicts_with = "to", value_parser = group)]
    pub(super) group: Option<String>,
    /// Wait until N members have answered, for at most 30 s (default: for 80 ms).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) expect: Option<u32>,
    /// How copies are made (default: multicast if a probe reaches two receivers, else unicast).
    #[arg(long, value_parser = spread())]
    pub(super) spread: Option<Spread>,
    /// Orca, or for comparison the kernel's TCP (receivers need --tcp) or plain copies.
    #[arg(long, default_value = "cast")]
    pub(super) method: MethodArg,
    /// With --method unicast: threads that send copies.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) processes: u32,
    /// Maximum sending rate, such as "500 Mbps" (default: no limit).
    #[arg(long, value_name = "RATE", value_parser = values::positive_rate)]
    pub(super) rate: Option<Rate>,
    /// Largest IP packet in bytes (default: the smallest MTU of the routes).
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(256..=65_000))]
    pub(super) mtu: Option<u32>,
    /// Source address and UDP port; 0 for any.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:0")]
    pub(super) bind: SocketAddr,
    /// Packets per parity block, or "off".
    #[arg(long, value_name = "BLOCK", default_value = "64", value_parser = fec_block)]
    pub(super) fec: u8,
    /// Name that receivers give to standard input's file.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    pub(super) name: String,
    /// Directory of standard input for late receivers, in an unnamed file.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_SPOOL)]
    pub(super) spool: PathBuf,
    /// Bytes of standard input to keep, at least 2 MiB; reading pauses beyond (default: no limit).
    #[arg(long, value_name = "SIZE")]
    pub(super) spool_limit: Option<Bytes>,
    /// Controller, one of --fabric's hosts (default: this process).
    #[arg(long, value_name = "ADDR", value_parser = address, requires = "fabric")]
    pub(super) controller: Option<SocketAddr>,
    /// Without --controller: silence after which an agent is dead, 80 ms to 750 ms.
    #[arg(long, value_name = "TIME", default_value = "200 ms", conflicts_with = "controller")]
    pub(super) timeout: Span,
    /// Send through this host's agent at this socket (default: only if --fabric's port is taken).
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Seconds for which a silent receiver is invited again.
    #[arg(long, value_name = "S", default_value_t = DEFAULT_RETRY_S, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub(super) retry: u32,
}

/// The default of `--name`.
const DEFAULT_NAME: &str = "stdin";
/// The default of `--spool`.
const DEFAULT_SPOOL: &str = "/var/tmp";
/// The default of `--retry`, in seconds.
const DEFAULT_RETRY_S: u32 = 10;

/// One value of `--to`.
#[derive(Clone, Debug)]
pub(super) struct Receivers(pub(super) Vec<SocketAddr>);

/// Parses a receiver, or `@FILE`: one receiver per line, with comments after `#`.
fn receivers(text: &str) -> Result<Receivers, String> {
    let Some(path) = text.strip_prefix('@') else { return Ok(Receivers(vec![address(text)?])) };
    let content =
        values::read_list(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let mut found = Vec::new();
    for (index, line) in content.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            found.push(address(line).map_err(|error| format!("{path}:{}: {error}", index + 1))?);
        }
    }
    match found.is_empty() {
        true => Err(format!("{path} names no receiver")),
        false => Ok(Receivers(found)),
    }
}

/// Parses the value of `--spread`.
fn spread() -> impl TypedValueParser<Value = Spread> {
    let value = |spread: Spread, help: &'static str| PossibleValue::new(spread.name()).help(help);
    PossibleValuesParser::new([
        value(Spread::Multicast, "IP multicast: one packet for all receivers"),
        value(Spread::Unicast, "A copy for each receiver"),
        value(Spread::Relay, "Receivers forward to each other, in the order of --fabric"),
        value(Spread::Labels, "Label switches and agents"),
    ])
    .try_map(|name| Spread::from_name(&name).ok_or("not a spread"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MethodArg {
    /// Orca: one stream for all receivers, by --spread.
    Cast,
    /// A copy to each receiver over UDP, from --processes threads.
    Unicast,
    /// A TCP connection to each receiver, one thread per connection.
    Tcp,
    /// One TCP connection to the first receiver, which forwards to the second, and so on.
    Chain,
}

impl SendArgs {
    /// Whether the source is standard input.
    pub(super) fn is_stdin(&self) -> bool {
        self.files[0].as_os_str() == "-"
    }

    /// Returns what `--exclude` names.
    pub(super) fn excluded(&self) -> miette::Result<Excludes> {
        Excludes::new(&self.exclude)
            .map_err(|error| miette!("--exclude: {}", escaped(&error.to_string())))
    }

    /// Rejects invalid combinations of options.
    pub(super) fn check(&self) -> miette::Result<()> {
        for (index, to) in self.to.iter().enumerate() {
            if self.to[..index].contains(to) {
                return Err(miette!("{to} is named twice"));
            }
            if to.is_ipv4() != self.to[0].is_ipv4() {
                return Err(miette!("receivers must be all IPv4 or all IPv6"));
            }
        }
        if self.files.iter().any(|file| file.as_os_str() == "-") && self.files.len() > 1 {
            return Err(miette!("standard input cannot be combined with files"));
        }
        if !self.is_stdin() {
            let given = [
                ("--name", self.name != DEFAULT_NAME),
                ("--spool", self.spool.as_os_str() != DEFAULT_SPOOL),
                ("--spool-limit", self.spool_limit.is_some()),
            ];
            if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
                return Err(miette!("{option} has no effect without standard input (`-`)"));
            }
        }
        let flags =
            [self.dry_run, self.itemize, self.checksum, self.delete, self.xattrs, self.owner];
        let for_files = flags.contains(&true) || !self.exclude.is_empty();
        if self.is_stdin() && for_files {
            return Err(miette!(
                "--dry-run, --itemize, --checksum, --delete, --xattrs, --owner and --exclude are for files, not standard input"
            ));
        }
        if self.common.fabric.is_none() && self.socket.is_none() {
            match self.spread {
                Some(Spread::Relay) => {
                    return Err(miette!(
                        "--spread relay needs --fabric FILE, here and at the receivers, which forward to each other"
                    ));
                }
                Some(Spread::Labels) => {
                    return Err(miette!(
                        "--spread labels needs --fabric FILE: labels name hosts by their numbers in it"
                    ));
                }
                _ => {}
            }
        }
        let unicast = self.method == MethodArg::Unicast;
        if self.processes > 1 && !unicast {
            return Err(miette!("--processes requires --method unicast"));
        }
        if unicast && (self.is_stdin() || self.common.fabric.is_some()) {
            return Err(miette!(
                "--method unicast is a baseline for comparison: it sends files only, and takes no --fabric"
            ));
        }
        if unicast && self.bind.port() != 0 {
            return Err(miette!("--method unicast opens several sockets: use --bind ADDR:0"));
        }
        match (self.method, &self.socket) {
            (MethodArg::Cast, None) => Ok(()),
            (MethodArg::Cast, Some(_)) => self.carried_by(Way::Agent),
            (MethodArg::Unicast, _) => self.carried_by(Way::Unicast),
            (MethodArg::Tcp | MethodArg::Chain, _) => self.carried_by(Way::Tcp),
        }
    }

    /// Refuses options that a way of sending does not carry out.
    pub(super) fn carried_by(&self, way: Way) -> miette::Result<()> {
        // A new option does not compile until it says here who carries it out.
        let Self {
            common,
            files: _,
            named: _,
            to: _,
            group: _,
            expect: _,
            method: _,
            processes: _,
            // Only standard input has one, which every way sends.
            name: _,
            spool,
            spool_limit,
            // They are given with --fabric.
            controller: _,
            timeout: _,
            exclude,
            xattrs,
            owner,
            dry_run,
            itemize,
            checksum,
            delete,
            spread,
            rate,
            mtu,
            bind,
            fec,
            socket,
            retry,
        } = self;
        let (agent, tcp) = (way == Way::Agent, way == Way::Tcp);
        let refused = [
            ("--fabric", common.fabric.is_some() && !agent),
            ("--exclude", !exclude.is_empty() && !agent),
            ("--xattrs", *xattrs && !agent),
            ("--owner", *owner && !agent),
            ("--dry-run", *dry_run),
            ("--itemize", *itemize),
            ("--checksum", *checksum),
            ("--delete", *delete),
            ("--spread", spread.is_some() && !agent),
            ("--rate", rate.is_some() && tcp),
            ("--mtu", mtu.is_some() && tcp),
            ("--bind", *bind != SocketAddr::from(([0; 4], 0)) && way != Way::Unicast),
            ("--fec", *fec != MAX_CELLS && way != Way::Unicast),
            ("--socket", socket.is_some() && !agent),
            ("--retry", *retry != DEFAULT_RETRY_S),
            ("--spool", spool.as_os_str() != DEFAULT_SPOOL),
            ("--spool-limit", spool_limit.is_some()),
        ];
        match refused.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(miette!("{option} has no effect {}", way.words())),
            None => Ok(()),
        }
    }
}

/// Who sends, if it is not an engine of the command's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The agent of this host, which has its own settings.
    Agent,
    /// A copy for each receiver.
    Unicast,
    /// The kernel's TCP.
    Tcp,
}

impl Way {
    const fn words(self) -> &'static str {
        match self {
            Self::Agent => "when this host's agent sends: it has settings of its own",
            Self::Unicast => "with --method unicast",
            Self::Tcp => "with --method tcp or chain",
        }
    }
}

/// Receive files.
///
/// Accepts streams from the hosts named by --from and, with --key, from anyone who has the key; without both, from this
/// machine. A file is called NAME.part until its hash has been verified; an interrupted transfer resumes where it stopped.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast receive --from 192.0.2.1 --dir /srv/images\n  \
    rackweave cast receive --key cast.key --once --out image.iso\n  \
    rackweave cast receive --from 192.0.2.1 --once --out - | tar x\n\n\
    Exit codes: 0 ended by Ctrl-C or, with --once, received; 1 failed, 2 wrong usage, 130 interrupted with --once.")]
pub(crate) struct ReceiveArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    #[command(flatten)]
    pub(super) rack: RackArgs,
    /// Directory that files are written to.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) dir: PathBuf,
    /// Receive one file and write it here; `-` for standard output (default: files go to --dir).
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub(super) out: Option<PathBuf>,
    /// Exit after one stream.
    #[arg(long)]
    pub(super) once: bool,
    /// Accept streams from this host only; may be repeated (default: this machine, with all its
    /// users, or holders of the key).
    #[arg(long = "from", value_name = "HOST", value_parser = host)]
    pub(super) from: Vec<Vec<IpAddr>>,
    /// Join this group; may be repeated (default: none).
    #[arg(long, value_name = "NAME", value_parser = group, conflicts_with = "tcp")]
    pub(super) group: Vec<String>,
    /// Address and UDP port to listen on; port 0 for any.
    #[arg(long, value_name = "ADDR", default_value = "0.0.0.0:6722")]
    pub(super) listen: SocketAddr,
    /// Print the hash of each file.
    #[arg(long, short)]
    pub(super) verbose: bool,
    /// Replace existing files.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Let senders delete what they do not have in the folders that they send.
    #[arg(long, conflicts_with_all = ["out", "tcp", "socket"])]
    pub(super) allow_delete: bool,
    /// fsync files before renaming them into place.
    #[arg(long)]
    pub(super) sync: bool,
    /// Accept streams over the kernel's TCP instead, for comparison (see `send --method`).
    #[arg(long, conflicts_with = "key")]
    pub(super) tcp: bool,
    /// With --tcp: forward to the next receiver, for `send --method chain`.
    #[arg(long, requires = "tcp")]
    pub(super) forward: bool,
    /// Receive through this host's agent at this socket (default: only if the port is taken).
    #[arg(long, value_name = "PATH", conflicts_with_all = ["tcp", "group", "listen", "controller", "interface"])]
    pub(super) socket: Option<PathBuf>,
}

/// Destination of received streams.
#[derive(Clone)]
pub(super) enum Target {
    Folder(FolderConfig),
    Stdout(Output<std::fs::File>),
}

impl Target {
    /// Creates the sink of a stream; `cancel` ends it while it hashes existing files.
    pub(super) fn sink(&self, stream: u128, cancel: &Cancel) -> Result<Box<dyn Sink>, SinkError> {
        Ok(match self {
            Self::Folder(config) => {
                let config = FolderConfig { cancel: cancel.clone(), ..config.clone() };
                match is_manifest(stream) {
                    true => Box::new(Comparing::new(config)?),
                    false => Box::new(Folder::new(config, stream)?),
                }
            }
            Self::Stdout(_) if is_manifest(stream) => {
                Box::new(Comparing::with_nothing(Manifests::default()))
            }
            Self::Stdout(output) => output.sink(stream)?,
        })
    }
}

impl ReceiveArgs {
    pub(super) fn is_stdout(&self) -> bool {
        self.out.as_deref().is_some_and(|out| out.as_os_str() == "-")
    }

    pub(super) fn target(&self) -> miette::Result<Target> {
        let mut config = FolderConfig {
            folder: self.dir.clone(),
            only: None,
            overwrite: self.overwrite,
            sync: self.sync,
            allow_delete: self.allow_delete,
            limit: None,
            cancel: Cancel::never(),
            handovers: Handovers::default(),
            manifests: Manifests::default(),
        };
        if self.is_stdout() {
            let output = rackweave_linux::sys::standard_output()
                .map_err(|error| miette!("cannot write to standard output: {error}"))?;
            return Ok(Target::Stdout(Output::new(output)));
        }
        if let Some(out) = &self.out {
            if out.is_dir() || out.file_name().is_none() {
                return Err(miette!("{} is a directory: use --dir, or name a file", out.display()));
            }
            // A device or a pipe would be replaced by a regular file, and not written to.
            if out.metadata().is_ok_and(|it| !it.is_file()) {
                return Err(miette!(
                    help = "--out - writes to standard output, from where a pipe or a device can be written",
                    "{} is a device, a pipe or a socket, which cannot be replaced by the received file",
                    out.display()
                ));
            }
            let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
            config.folder = folder.map_or_else(|| PathBuf::from("."), PathBuf::from);
            config.only = Some(out.clone());
        }
        Ok(Target::Folder(config))
    }
}

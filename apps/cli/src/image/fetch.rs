//! `rackweave image fetch`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use miette::miette;
use rackweave_core::{Bytes, Rate, Span};
use rackweave_image::{PublicKey, TargetConfig};
use rackweave_imaging::status::Listed;
use rackweave_imaging::{FetchConfig, FetchError, FetchEvent, Fetched};
use rackweave_linux::Clock;
use rackweave_swp2p::p2p::client::Config;
use serde_json::{Value, json};

use super::{allow_many_files, bar, end_of_gpt, failed, hosts, not_accepted, read_key, watched};
use crate::progress::Progress;
use crate::shell::{escaped, events, exit, hex, print, size, status, values};

/// Fetch an image to a file or a block device.
///
/// Chunks come from the server and from other hosts that fetch the same image. Each is verified before it is written, or served to
/// others. A file appears when it is complete; a block device must not be in use. What the target holds already is not fetched, so
/// the command can be interrupted and repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave image fetch debian-13 --from images.example --to vm.img\n  \
    rackweave image fetch golden --from 192.0.2.1 --to /dev/nvme0n1 --signed-by images.pub --linger \"60 s\"\n  \
    rackweave image fetch --list --from images.example\n  \
    rackweave image fetch --frisbee 239.192.0.1:7001 --to golden.ndz\n\n\
    Exit codes: 0 every byte is there, 1 failed, 2 wrong usage, or refused, 130 interrupted.")]
pub(crate) struct FetchArgs {
    /// Name of the image, as in `rackweave image inspect`.
    #[arg(value_name = "NAME", required_unless_present_any = ["list", "frisbee"])]
    name: Option<String>,
    /// Print the images of the server, and fetch nothing.
    #[arg(long, conflicts_with_all = ["name", "to", "overwrite", "zero", "linger"])]
    list: bool,
    /// The server. Its port is used on this host, too.
    #[arg(long, value_name = "HOST[:PORT]", value_parser = hosts::address, required_unless_present = "frisbee")]
    pub(super) from: Option<SocketAddrV4>,
    /// Fetch the image file that Emulab's frisbeed sends to this group, from --from or who answers first.
    #[arg(long, value_name = "GROUP:PORT", value_parser = hosts::any_group,
        conflicts_with_all = ["name", "list", "key_file", "signed_by", "zero", "fix_gpt"])]
    frisbee: Option<(Ipv4Addr, Option<u16>)>,
    /// With --frisbee: a switch redirects requests (`rackweave image switch`), and hosts serve each other.
    #[arg(long, requires = "frisbee")]
    pub(super) switch: bool,
    /// A file or a block device.
    #[arg(long, value_name = "TARGET", required_unless_present = "list")]
    pub(super) to: Option<PathBuf>,
    /// Address of this host, without a port (default: the one from which the server is reached).
    #[arg(long, value_name = "ADDR", value_parser = hosts::host)]
    pub(super) bind: Option<Ipv4Addr>,
    /// Serve others for this time after every byte is written. Not with multicast.
    #[arg(long, value_name = "TIME", default_value = "0 s")]
    pub(super) linger: Span,
    /// File with the secret that all hosts share.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Require that the image was signed by this key.
    #[arg(long, value_name = "FILE.pub")]
    signed_by: Option<PathBuf>,
    /// Most bits per second that this host sends to others.
    #[arg(long, value_name = "RATE", value_parser = values::positive_rate)]
    pub(super) rate: Option<Rate>,
    /// Do not serve others.
    #[arg(long)]
    pub(super) no_serve: bool,
    /// Memory for chunks, half to wait for the disk and half to serve others.
    #[arg(long, value_name = "SIZE", default_value = "512 MiB")]
    pub(super) memory: Bytes,
    /// Do not use multicast, even if the server offers it.
    #[arg(long)]
    no_multicast: bool,
    /// Replace an existing file; what both have in common is not fetched.
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Overwrite the unused blocks of a device with zeros.
    #[arg(long)]
    zero: bool,
    /// Write an image to a device whose sectors have another size than those of its disk: it will not boot.
    #[arg(long)]
    force_sector_size: bool,
    /// Move the copy of the partition table to the end of a device that is larger than the image.
    #[arg(long)]
    fix_gpt: bool,
    /// Fail after this time without a chunk or an answer.
    #[arg(long, value_name = "TIME", default_value = "60 s")]
    pub(super) give_up: Span,
    /// Chunks that are requested at a time.
    #[arg(long, value_name = "N", default_value_t = Config::default().outstanding,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(super) outstanding: u16,
    /// Chunks in one request. More save requests.
    #[arg(long, value_name = "N", default_value_t = Config::default().batch,
        value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// Print events, one line of JSON each.
    #[arg(long)]
    pub(super) json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    pub(super) quiet: bool,
}

impl FetchArgs {
    /// The server, which is required here.
    fn server(&self) -> SocketAddrV4 {
        self.from.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
    }

    fn config(&self) -> miette::Result<FetchConfig> {
        let signer = match &self.signed_by {
            Some(path) => Some(read_key(path, PublicKey::from_text)?),
            None => None,
        };
        let (Some(name), Some(target)) = (&self.name, &self.to) else {
            return Err(miette!("the name of an image and --to are required"));
        };
        if name.len() > usize::from(u8::MAX) {
            return Err(miette!("the name of an image has at most 255 bytes"));
        }
        if self.give_up == Span::ZERO {
            return Err(miette!("--give-up must be above zero"));
        }
        if self.batch > self.outstanding {
            return Err(miette!("--batch must not be above --outstanding"));
        }
        Ok(FetchConfig {
            server: self.server(),
            own: self.bind,
            name: name.clone(),
            target: target.clone(),
            target_config: TargetConfig {
                overwrite: self.overwrite,
                zero_unused: self.zero,
                force_sector_size: self.force_sector_size,
                ..TargetConfig::default()
            },
            key: hosts::key(self.key_file.as_deref())?,
            signer,
            machine: Config {
                linger: self.linger,
                give_up: self.give_up,
                outstanding: self.outstanding,
                batch: self.batch,
                ..Config::default()
            },
            memory: self.memory.0,
            rate: self.rate,
            serve: !self.no_serve,
            multicast: !self.no_multicast,
            session: None,
        })
    }
}

pub(super) fn fetch(args: &FetchArgs) -> miette::Result<u8> {
    if let Some(session) = args.frisbee {
        return super::fetch_frisbee::fetch(args, session);
    }
    if args.list {
        return list(args);
    }
    let config = args.config()?;
    allow_many_files();
    let progress = watched()?;
    let mut shown = bar(&progress, args.quiet || args.json);
    let clock = Clock::start();
    // A client that has everything by multicast leaves at once.
    let mut by_multicast = false;
    let mut on_event = |event| {
        let is_written = matches!(event, FetchEvent::Written(_));
        match event {
            FetchEvent::Multicast(_) => by_multicast = true,
            FetchEvent::NoMulticast(_) => by_multicast = false,
            _ => {}
        }
        shown.suspended(|| report(args, event));
        if is_written && lingers(args) && !by_multicast {
            shown = serving(args, clock);
        }
    };
    let (fetched, result) = rackweave_imaging::fetch(&config, &progress, &mut on_event);
    drop(shown);
    match result {
        Ok(()) => {
            if let Err(error) = end_of_gpt(&config.target, args.fix_gpt, args.quiet || args.json) {
                return failed(error);
            }
            if args.json {
                events::emit("left", json!({}))?;
            }
            Ok(exit::DONE)
        }
        Err(error) => {
            if args.json {
                let mut fields = fields(&fetched);
                fields["error"] = error.to_string().into();
                let _ = events::emit("failed", fields);
            } else if !args.quiet && fetched.fetched > 0 {
                status(&so_far(&fetched));
            }
            ended(error)
        }
    }
}

const fn lingers(args: &FetchArgs) -> bool {
    args.linger.ticks() > 0 && !args.no_serve
}

/// Shows on a terminal how long the client still serves others.
fn serving(args: &FetchArgs, clock: Clock) -> Progress {
    let until = clock.now().saturating_add(args.linger);
    Progress::line(!args.quiet && !args.json, move || {
        let left = until.since(clock.now().min(until));
        format!(
            "serving others, {} s left (Ctrl-C ends it)",
            left.as_ns_ceil().div_ceil(1_000_000_000)
        )
    })
}

/// Prints the images of the server.
fn list(args: &FetchArgs) -> miette::Result<u8> {
    let key = hosts::key(args.key_file.as_deref())?;
    let images = match rackweave_imaging::list(args.server(), args.bind, key) {
        Ok(images) => images,
        Err(error) => return ended(error),
    };
    if args.json {
        let document = json!({ "server": args.from, "images": images });
        return events::emit("result", document);
    }
    let line = |image: &Listed| {
        let (name, chunks) = (escaped(&image.name), image.chunks);
        let (bytes, stored) = (size(image.bytes), size(image.stored));
        let signed = if image.signed { ", signed" } else { "" };
        format!("{name}: {bytes} in {chunks} chunks, {stored} to fetch{signed}\n")
    };
    print(&images.iter().map(line).collect::<String>())
}

/// What was fetched before the client ended.
fn so_far(fetched: &Fetched) -> String {
    let Fetched { fetched: chunks, kept, bytes, .. } = fetched;
    let bytes = size(*bytes);
    format!("{chunks} chunks with {bytes} have been fetched, and {kept} were there\n")
}

/// Reports how a client has failed.
fn ended(error: FetchError) -> miette::Result<u8> {
    match error {
        FetchError::Image(error) => failed(error),
        FetchError::Interrupted => {
            status("interrupted: the same command goes on from here\n");
            Ok(exit::INTERRUPTED)
        }
        FetchError::Bind { .. } => Err(miette!("{}", escaped(&error.to_string()))),
        error => {
            status(&format!("error: {}\n", escaped(&error.to_string())));
            Ok(exit::FAILED)
        }
    }
}

fn fields(fetched: &Fetched) -> Value {
    json!({
        "fetched": fetched.fetched, "kept": fetched.kept, "empty": fetched.empty, "bytes": fetched.bytes,
        "from": fetched.from, "to": fetched.to, "requests": fetched.requests,
        "retries": fetched.retries, "duplicates": fetched.duplicates, "damaged": fetched.damaged,
        "refused": fetched.refused, "unsent": fetched.unsent,
    })
}

/// Prints an event. What cannot be printed is not worth failing for.
fn report(args: &FetchArgs, event: FetchEvent) {
    if args.json {
        let (name, fields) = match event {
            FetchEvent::Opened { manifest, kept, empty } => {
                let (chunks, root) = (manifest.chunks(), hex(manifest.root()));
                let bytes = manifest.head().size;
                let fields = json!({ "chunks": chunks, "kept": kept, "empty": empty, "size": bytes, "root": root });
                ("joined", fields)
            }
            FetchEvent::Received => ("received", json!({})),
            FetchEvent::Written(fetched) => ("written", fields(&fetched)),
            FetchEvent::Damaged { holder, chunk } => {
                ("damaged", json!({ "holder": holder, "chunk": chunk }))
            }
            FetchEvent::DamagedBlocks { chunk } => ("damaged-blocks", json!({ "chunk": chunk })),
            FetchEvent::Multicast(group) => ("multicast", json!({ "group": group })),
            FetchEvent::NoMulticast(why) => ("no-multicast", json!({ "error": why })),
            FetchEvent::Waiting(why) => ("waiting", json!({ "error": why })),
            FetchEvent::ServerLost(why) => ("server-lost", json!({ "error": why })),
            FetchEvent::ServerBack => ("server-back", json!({})),
            FetchEvent::NotAccepted(why) => ("not-accepted", json!({ "error": why })),
        };
        let _ = events::emit(name, fields);
        return;
    }
    if args.quiet {
        return;
    }
    match event {
        FetchEvent::Opened { .. } | FetchEvent::Received | FetchEvent::Multicast(_) => {}
        FetchEvent::Written(fetched) => {
            let to = args.to.as_deref().unwrap_or(Path::new("")).to_string_lossy();
            let to = escaped(&to);
            let _ = print(&written(args, &to, events::seconds(), &fetched));
        }
        FetchEvent::Damaged { holder, chunk } => {
            status(&format!("{holder} has sent chunk {chunk} damaged, and is not used any more\n"));
        }
        FetchEvent::DamagedBlocks { chunk } => {
            let why =
                "the network has damaged it, or another host has sent blocks in the server's name";
            status(&format!(
                "chunk {chunk} has arrived damaged by multicast ({why}); requested again\n"
            ));
        }
        FetchEvent::NoMulticast(why) => {
            status(&format!("going on without multicast: {}\n", escaped(&why)));
        }
        FetchEvent::Waiting(why) => {
            let (why, most) = (escaped(&why), &args.give_up);
            status(&format!(
                "{} does not answer yet ({why}); trying for {most} (--give-up). Does `rackweave image serve` run there?\n",
                args.server()
            ));
        }
        FetchEvent::ServerLost(why) => {
            let why = escaped(&why);
            status(&format!(
                "the connection to {} is broken ({why}); trying again\n",
                args.server()
            ));
        }
        FetchEvent::ServerBack => status("the server is there again\n"),
        FetchEvent::NotAccepted(why) => status(&not_accepted(&why)),
    }
}

/// What was not fetched because there is nothing in it.
fn empty(fetched: &Fetched) -> String {
    match fetched.empty {
        0 => String::new(),
        1 => ", 1 is empty".to_owned(),
        some => format!(", {some} are empty"),
    }
}

fn written(args: &FetchArgs, to: &str, seconds: f64, fetched: &Fetched) -> String {
    let Fetched { fetched: chunks, kept, bytes, from, .. } = fetched;
    if (*chunks, *kept) == (0, 0) {
        return format!("{to}: complete: the image has no content{}\n", empty(fetched));
    }
    if *chunks == 0 {
        return format!("{to}: it holds the image already\n");
    }
    let by_server = from.get(args.server().ip()).copied().unwrap_or(0);
    let bytes = size(*bytes);
    let linger = match lingers(args) && fetched.session.is_none() {
        true => format!("; serving others for {}", args.linger),
        false => String::new(),
    };
    format!(
        "{to}: complete after {seconds:.1} s: {chunks} chunks with {bytes}, {by_server} of them from the server, \
         {kept} were there{}{linger}\n",
        empty(fetched)
    )
}

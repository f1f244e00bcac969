//! `rackweave image serve`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, ToSocketAddrs as _};
use std::path::PathBuf;

use miette::miette;
use rackweave_core::{Rate, Span};
use rackweave_image::ImageError;
use rackweave_imaging::status::{ClientStatus, ServerStatus};
use rackweave_imaging::{
    Catalog, CatalogError, FrisbeeChange, MulticastConfig, PageConfig, ServeConfig, ServeError,
    ServeEvent, Served,
};
use rackweave_swp2p::{directory, p2p};
use rackweave_wire::frisbee::PORT;
use serde_json::{Value, json};

use super::{allow_many_files, bar, failed, hosts, not_accepted, watched};
use crate::shell::{escaped, events, exit, machine_name, print, size, status, values};

/// Serve images to hosts that fetch them: send each chunk about once, and let these hosts serve each other.
///
/// The server sends a chunk to the first host that asks for it. Later requests for the chunk are redirected: by the server itself,
/// or by switches that run SWP2P's program (`rackweave image switch`).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave image serve golden.rwi\n  \
    rackweave image serve /srv/images --key-file cluster.key --rate \"2 Gbps\"\n  \
    rackweave image serve golden.rwi --multicast 239.255.67.23 --rate \"400 Mbps\"\n  \
    rackweave image serve golden.ndz --frisbee 239.192.0.1:7001\n  \
    rackweave image serve golden.rwi --to @hosts.txt --for \"1800 s\" --status 0.0.0.0:6780\n\n\
    Exit codes: 0 ended by Ctrl-C, or all hosts of --to have the image; 1 some have not, or a socket failed; \
    2 wrong usage or image; 130 interrupted before all hosts of --to have it.")]
pub(crate) struct ServeArgs {
    /// Image files (.rwi, .ndz), and folders of them.
    #[arg(value_name = "IMAGE|DIR", required = true)]
    images: Vec<PathBuf>,
    /// Address and port, UDP and TCP. All hosts use the same port.
    #[arg(long, value_name = "ADDR[:PORT]", default_value_t = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, PORT),
        value_parser = hosts::address)]
    listen: SocketAddrV4,
    /// File with the secret that all hosts share.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Most bits per second that the server sends.
    #[arg(long, value_name = "RATE", value_parser = values::positive_rate)]
    rate: Option<Rate>,
    /// Multicast the images to this group of 239.0.0.0/8 and the next ones, at --rate or 500 Mbps
    /// at most.
    #[arg(long, value_name = "GROUP[:PORT]", value_parser = hosts::group)]
    multicast: Option<(Ipv4Addr, Option<u16>)>,
    /// Serve Emulab's Frisbee clients in this group and the next ones: .ndz images only, without keys.
    #[arg(long, value_name = "GROUP[:PORT]", value_parser = hosts::group, conflicts_with = "key_file")]
    frisbee: Option<(Ipv4Addr, Option<u16>)>,
    /// With --frisbee: tell clients that name an image its group, at this TCP port, as Emulab's master server does.
    #[arg(long, value_name = "PORT", requires = "frisbee", num_args = 0..=1, require_equals = true,
        default_missing_value = "64494", value_parser = clap::value_parser!(u16).range(1..))]
    frisbee_names: Option<u16>,
    /// Hosts that may fetch the only image, or @FILE with one per line. The server ends when all
    /// have it.
    #[arg(long, value_name = "HOST,...|@FILE", value_delimiter = ',')]
    to: Vec<String>,
    /// With --to: end after this time in any case.
    #[arg(long = "for", value_name = "TIME", requires = "to")]
    time_limit: Option<Span>,
    /// The hosts that may serve others (default: all that fetch).
    #[arg(long, value_name = "HOST,...|@FILE", value_delimiter = ',')]
    holders: Vec<String>,
    /// Number of hosts that will fetch (default: those of --to, or unknown).
    #[arg(long, value_name = "N")]
    expect: Option<u16>,
    /// Switches redirect requests (`rackweave image switch`), and the server does not.
    #[arg(long)]
    switch: bool,
    /// Hosts that share these leading bits of their addresses prefer each other.
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u8).range(16..=30), conflicts_with = "switch")]
    rack_prefix: Option<u8>,
    /// Address of the live page and metrics, readable for all who reach it (default: 127.0.0.1:6780 if
    /// free).
    #[arg(long, value_name = "HOST[:PORT]|none", value_parser = page)]
    status: Option<Status>,
    /// Print events, one line of JSON each.
    #[arg(long)]
    json: bool,
    /// Print neither progress nor a report.
    #[arg(long, short)]
    quiet: bool,
}

/// Where the page is.
#[derive(Clone, Debug)]
enum Status {
    None,
    At { listen: SocketAddr, name: Option<String> },
}

/// The port of the page, unless another one is given.
const PAGE_PORT: u16 = 6780;

fn page(text: &str) -> Result<Status, String> {
    if text == "none" {
        return Ok(Status::None);
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok(Status::At { listen: (Ipv4Addr::LOCALHOST, port).into(), name: None });
    }
    let found = text.to_socket_addrs().or_else(|_| (text, PAGE_PORT).to_socket_addrs());
    let listen = found
        .ok()
        .and_then(|mut found| found.next())
        .ok_or_else(|| format!("`{text}` is neither `none` nor a port, an address, or both"))?;
    let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
    Ok(Status::At { listen, name: Some(name.to_owned()) })
}

impl ServeArgs {
    fn page(&self) -> Option<PageConfig> {
        let (listen, is_required, name) = match &self.status {
            None => (SocketAddr::from((Ipv4Addr::LOCALHOST, PAGE_PORT)), false, None),
            Some(Status::None) => return None,
            Some(Status::At { listen, name }) => (*listen, true, name.clone()),
        };
        Some(PageConfig {
            listen,
            is_required,
            names: name.into_iter().chain(machine_name()).collect(),
        })
    }

    fn config(&self) -> miette::Result<ServeConfig> {
        let receivers = hosts::hosts("to", &self.to)?;
        let expected = match (self.expect, &receivers) {
            (Some(number), _) => number,
            (None, Some(receivers)) => u16::try_from(receivers.len()).unwrap_or(0),
            (None, None) => 0,
        };
        let session = |(group, port)| {
            let pace = MulticastConfig::paced(self.rate.unwrap_or(MulticastConfig::RATE));
            MulticastConfig { group, port, pace }
        };
        let directory = directory::Config { clients: 16 << 10, ..directory::Config::default() };
        Ok(ServeConfig {
            listen: self.listen,
            key: hosts::key(self.key_file.as_deref())?,
            machine: p2p::server::Config {
                serve: p2p::Serve::default(),
                directory: (!self.switch).then_some(directory),
                expected,
            },
            rate: self.rate,
            receivers,
            holders: hosts::hosts("holders", &self.holders)?,
            time_limit: self.time_limit,
            rack_prefix: self.rack_prefix,
            multicast: self.multicast.map(session),
            frisbee: self.frisbee.map(session),
            frisbee_names: self.frisbee_names,
            page: self.page(),
        })
    }
}

pub(super) fn serve(args: &ServeArgs) -> miette::Result<u8> {
    let config = args.config()?;
    allow_many_files();
    let progress = watched()?;
    let shown = bar(&progress, args.quiet || args.json);
    let catalog = Catalog::open(&args.images, &progress);
    drop(shown);
    let catalog = match catalog {
        Ok(catalog) => catalog,
        Err(CatalogError::Image(error @ ImageError::Interrupted)) => return failed(error),
        // Nothing was attempted yet.
        Err(error) => return Err(miette!("{}", escaped(&error.to_string()))),
    };
    let images = catalog.names().count();
    if config.receivers.is_some() && images > 1 {
        let why = "--to waits until all hosts have the image: serve one image, and start another server, with a port of its own, for each of the others";
        return Err(miette!("these are {images} images, and {why}"));
    }
    if !args.json && !args.quiet {
        let list = catalog.names().map(|(name, chunks)| format!("  {name} ({chunks} chunks)\n"));
        print(&list.collect::<String>())?;
    }
    let mut on_event = |event| report(args, event);
    let served = match rackweave_imaging::serve(&config, catalog, &progress, &mut on_event) {
        Ok(served) => served,
        Err(
            error @ (ServeError::Bind { .. }
            | ServeError::Page { .. }
            | ServeError::Multicast { .. }),
        ) => {
            return Err(miette!("{}", escaped(&error.to_string())));
        }
        Err(error) => {
            status(&format!("error: {}\n", escaped(&error.to_string())));
            return Ok(exit::FAILED);
        }
    };
    if args.json {
        tell("ended", serde_json::to_value(&served.status).unwrap_or_default());
    } else if !args.quiet {
        print(&summary(&served.status))?;
    }
    Ok(outcome(&served))
}

fn outcome(served: &Served) -> u8 {
    if !served.missing.is_empty() {
        let list: Vec<String> = served.missing.iter().map(ToString::to_string).collect();
        status(&format!("without the image: {}\n", list.join(", ")));
    }
    match served {
        Served { interrupted: true, .. } => exit::INTERRUPTED,
        Served { missing, .. } if !missing.is_empty() => exit::FAILED,
        _ => exit::DONE,
    }
}

fn summary(status: &ServerStatus) -> String {
    let images = status.images.iter().map(|image| {
        let (name, chunks) = (escaped(&image.name), image.chunks_sent);
        let (sent, stored) = (size(image.bytes_sent), size(image.stored));
        let multicast = image.multicast.as_ref().map_or(String::new(), |session| {
            let (group, blocks) = (&session.group, session.blocks_sent);
            format!("; {blocks} blocks of them multicast to {group}")
        });
        let frisbee = image.frisbee.as_ref().map_or(String::new(), |it| {
            let (group, left, joined) = (&it.session.group, it.left, it.joined);
            format!("; of {joined} Frisbee clients in {group}, {left} have it")
        });
        format!(
            "{name}: {chunks} chunks with {sent} sent, {:.2} copies of its {stored}{multicast}{frisbee}\n",
            image.copies
        )
    });
    let images: String = images.collect();
    let done = status.clients.iter().filter(|client| client.complete).count();
    if status.clients.is_empty() && status.images.iter().any(|image| image.frisbee.is_some()) {
        return images;
    }
    format!("{images}{done} of {} hosts have their image\n", status.clients.len())
}

/// Prints an event. A reader that has gone is no reason to stop serving.
fn tell(event: &str, fields: Value) {
    let _ = events::emit(event, fields);
}

/// The page's URL, as seen from this machine.
fn url(page: SocketAddr) -> String {
    let ip = match page {
        SocketAddr::V4(page) if page.ip().is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(page) if page.ip().is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        page => page.ip(),
    };
    format!("http://{}/", SocketAddr::new(ip, page.port()))
}

fn no_page(address: SocketAddr, why: &str) {
    status(&format!("no live page: {address} cannot be used: {why}; choose with --status\n"));
}

fn broken(why: &str) -> String {
    format!("error: {}; this image is not served any more\n", escaped(why))
}

fn with_status(client: Ipv4Addr, status: &ClientStatus) -> Value {
    json!({ "client": client, "status": status })
}

fn report(args: &ServeArgs, event: ServeEvent) {
    if args.json {
        return match event {
            ServeEvent::Listening { address, page } => {
                let page = page.map(url);
                tell("listening", json!({ "address": address, "page": page }));
            }
            ServeEvent::NoPage { address, why } => no_page(address, &why),
            ServeEvent::Joined { client, image } => {
                tell("joined", json!({ "client": client, "image": image }));
            }
            ServeEvent::Done { client, status } => tell("done", with_status(client, &status)),
            ServeEvent::Ended { client, status } => tell("left", with_status(client, &status)),
            ServeEvent::Broken { path, chunk, why } => {
                let path = path.to_string_lossy();
                tell("failed", json!({ "path": path, "chunk": chunk, "error": why }));
                // Standard output may go to a file that nobody looks at, and this image is served to nobody any more.
                status(&broken(&why));
            }
            ServeEvent::FrisbeeSession { image, group } => {
                tell("frisbee-session", json!({ "image": image, "group": group }));
            }
            ServeEvent::Frisbee { client, image, change } => {
                let (name, seconds) = match change {
                    FrisbeeChange::Joined => ("frisbee-joined", None),
                    FrisbeeChange::Left { elapsed_s } => ("frisbee-left", Some(elapsed_s)),
                    FrisbeeChange::Silent => ("frisbee-silent", None),
                };
                tell(name, json!({ "client": client, "image": image, "elapsed_s": seconds }));
            }
            ServeEvent::NotAccepted(why) => tell("not-accepted", json!({ "error": why })),
            ServeEvent::NoMulticast { image, why } => {
                tell("no-multicast", json!({ "image": image, "error": why }));
            }
        };
    }
    match &event {
        ServeEvent::Broken { why, .. } => status(&broken(why)),
        ServeEvent::NoPage { address, why } => no_page(*address, why),
        ServeEvent::NotAccepted(why) => status(&not_accepted(why)),
        ServeEvent::NoMulticast { image, why } => {
            let (image, why) = (escaped(image), escaped(why));
            status(&format!("{image} is not multicast any more: {why}\n"));
        }
        _ => {}
    }
    if args.quiet {
        return;
    }
    let text = match event {
        ServeEvent::Listening { address, page: None } => format!("serving at {address}\n"),
        ServeEvent::Listening { address, page: Some(page) } => {
            format!("serving at {address}; live page: {}\n", url(page))
        }
        ServeEvent::Joined { client, image } => format!("{client} fetches {}\n", escaped(&image)),
        ServeEvent::FrisbeeSession { image, group } => {
            format!("Frisbee clients fetch {} from {group}\n", escaped(&image))
        }
        ServeEvent::Frisbee { client, image, change } => {
            let image = escaped(&image);
            match change {
                FrisbeeChange::Joined => format!("{client} fetches {image} with Frisbee\n"),
                FrisbeeChange::Left { elapsed_s } => {
                    format!("{client} has {image} after {elapsed_s} s, as its Frisbee says\n")
                }
                FrisbeeChange::Silent => {
                    format!("{client} is silent for five minutes, without having {image}\n")
                }
            }
        }
        ServeEvent::Done { client, status } => {
            let (fetched, bytes) = (status.fetched(), size(status.bytes));
            let seconds = status.elapsed_ms as f64 / 1e3;
            format!(
                "{client} has every byte after {seconds:.1} s: {fetched} chunks fetched with {bytes}\n"
            )
        }
        ServeEvent::Ended { client, status } if !status.phase.is_complete() => {
            let why =
                status.failure.map_or("its connection has broken".to_owned(), |it| escaped(&it));
            format!("{client} has ended with {} of {} chunks: {why}\n", status.have, status.chunks)
        }
        ServeEvent::Ended { .. }
        | ServeEvent::Broken { .. }
        | ServeEvent::NoPage { .. }
        | ServeEvent::NoMulticast { .. }
        | ServeEvent::NotAccepted(_) => return,
    };
    let _ = print(&text);
}

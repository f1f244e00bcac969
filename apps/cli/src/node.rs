//! `rackweave node`: a mirror of container registries, whose nodes fetch from each other.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use miette::miette;
use rackweave_core::Bytes;
use rackweave_node::{Credentials, Event, NodeConfig, NodeError, Service, Upstream};
use serde_json::json;

use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, status};

/// Serve container images to this host's runtime, and fetch their blobs from other nodes, or from the registry if no node has them.
///
/// The runtime uses it as a mirror, and asks the registry itself without it. One node keeps the directory that says which node has
/// which chunk, or is about to (SWP2P). A blob counts when its SHA-256 is its digest. Tags are asked of the registry each time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave node --store /var/lib/rackweave --registry docker.io=https://registry-1.docker.io \\\n    \
    --nodes 192.0.2.1:5051 --directory 192.0.2.1:5051\n  \
    rackweave node --store /var/lib/rackweave --registry docker.io=https://registry-1.docker.io \\\n    \
    --nodes 192.0.2.2:5051 --directory 192.0.2.1:5051 --rack r1\n  \
    skopeo copy --src-tls-verify=false docker://127.0.0.1:5050/library/alpine:3.20 dir:alpine\n\n\
    Exit codes: 0 ended by Ctrl-C, 1 failed, 2 wrong usage or file.")]
pub(crate) struct NodeArgs {
    /// Folder of the blobs; created if it does not exist.
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Registry that is mirrored, by the name that images have; may be repeated. The first one is asked if the runtime names none.
    #[arg(long = "registry", value_name = "NAME=URL", required = true)]
    registries: Vec<Upstream>,
    /// Where the container runtime of this host asks, by HTTP.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:5050")]
    listen: SocketAddr,
    /// Address of this host at which other nodes ask.
    #[arg(long, value_name = "ADDR")]
    nodes: Option<SocketAddr>,
    /// The node that keeps the directory: its --nodes. Without it, nothing is fetched from nodes.
    #[arg(long, value_name = "ADDR", requires = "nodes")]
    directory: Option<SocketAddr>,
    /// Name of this host's rack. Nodes of one rack serve each other first.
    #[arg(long, value_name = "NAME", default_value = "")]
    rack: String,
    /// Bytes that the store keeps. The least recently used blobs go.
    #[arg(long, value_name = "SIZE", default_value = "50 GB")]
    capacity: Bytes,
    /// Names and passwords for registries, as `docker login` writes them to config.json.
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Certificates of authorities to trust in place of the usual ones, in PEM.
    #[arg(long, value_name = "FILE")]
    certificates: Option<PathBuf>,
    /// Another name by which requests call this host; may be repeated.
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Print events as lines of JSON on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) fn node(args: NodeArgs) -> miette::Result<u8> {
    let credentials = match &args.credentials {
        Some(path) => {
            let name = escaped(&path.to_string_lossy());
            let text = std::fs::read_to_string(path)
                .map_err(|error| miette!("cannot read {name}: {error}"))?;
            Credentials::read(&text).map_err(|error| miette!("{name}: {error}"))?
        }
        None => Credentials::default(),
    };
    let is_json = args.json;
    let config = NodeConfig {
        listen: args.listen,
        nodes: args.nodes,
        directory: args.directory,
        rack: args.rack,
        store: args.store,
        capacity: args.capacity.0,
        upstreams: args.registries,
        credentials,
        certificates: args.certificates,
        names: args.names,
    };
    let stop = Interrupt::watch()?;
    // Each reader and each blob is an open file.
    let _ = rackweave_linux::sys::raise_open_file_limit();
    let service = match Service::start(config, move |event| tell(event, is_json)) {
        Ok(service) => service,
        Err(
            error @ (NodeError::NoRegistry
            | NodeError::NoAddress
            | NodeError::Unspecified(_)
            | NodeError::Certificates { .. }),
        ) => return Err(miette!("{error}")),
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let is_open = |address: SocketAddr| !address.ip().is_loopback();
    if is_open(service.address) || service.nodes.is_some_and(is_open) {
        status(
            "note: whoever reaches this host can pull what the node has, and nothing is encrypted\n",
        );
    }
    match service.nodes {
        Some(nodes) => {
            status(&format!("ready at http://{}/v2/ and for nodes at {nodes}\n", service.address));
        }
        None => status(&format!("ready at http://{}/v2/\n", service.address)),
    }
    while !stop.is_set() {
        if service.has_failed() {
            status("error: a thread of the node has failed: this is an error in Rackweave\n");
            return Ok(exit::FAILED);
        }
        pause(Duration::from_millis(100));
    }
    drop(service);
    Ok(exit::DONE)
}

/// Says what has happened.
fn tell(event: &Event, is_json: bool) {
    let (name, fields, line) = match event {
        Event::Arrived { digest, name, size, time } => (
            "arrived",
            json!({ "digest": digest.to_string(), "name": name, "bytes": size, "took_s": time.as_secs_f64() }),
            format!("{digest} of {name} is here: {} in {time}", Bytes(*size)),
        ),
        Event::Failed { digest, name, why } => (
            "failed",
            json!({ "digest": digest.to_string(), "name": name, "why": why }),
            format!("error: {digest} of {name} does not arrive: {why}"),
        ),
        Event::Damaged { digest, name } => (
            "damaged",
            json!({ "digest": digest.to_string(), "name": name }),
            format!("{digest} of {name} was damaged: it is fetched again, from the registry alone"),
        ),
        Event::Liar { node, digest } => (
            "liar",
            json!({ "node": node.to_string(), "digest": digest.to_string() }),
            format!(
                "warning: the node {node} has sent damaged chunks of {digest}: it is not asked for ten minutes"
            ),
        ),
        Event::NoDirectory { why } => (
            "no-directory",
            json!({ "why": why }),
            format!("the directory does not answer, so that the registry is asked: {why}"),
        ),
        Event::Directory => ("directory", json!({}), "the directory answers again".to_owned()),
    };
    if is_json {
        // Whoever reads it has gone.
        let _ = events::emit(name, fields);
    } else {
        status(&format!("{line}\n"));
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread that waits for a signal")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

//! `rackweave cast sessions`.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use serde_json::Value;

use super::agent_client::request;
use super::agent_socket;
use crate::shell::{events, exit, print, status};

/// Show the streams of an agent of this host, or the sessions of a controller of this host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast sessions\n  \
    rackweave cast sessions --socket /run/control.sock --json\n\n\
    Exit codes: 0 shown, 1 no agent or controller answers.")]
pub(crate) struct SessionsArgs {
    /// Control socket of `cast agent` or `cast control` (default: as of `cast agent`).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn sessions(args: &SessionsArgs) -> miette::Result<u8> {
    let path = match args.socket.clone().map_or_else(agent_socket, Ok) {
        Ok(path) => path,
        Err(error) => {
            status(&format!("error: {error}; give --socket\n"));
            return Ok(exit::FAILED);
        }
    };
    let ask = || -> std::io::Result<Value> {
        let stream = request(&path, &serde_json::json!({ "sessions": {} }))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let document: Value = serde_json::from_str(&line)?;
        match document["error"].as_str() {
            Some(error) => Err(std::io::Error::other(error.to_owned())),
            None => Ok(document),
        }
    };
    let document = match ask() {
        Ok(document) => document,
        Err(error) => {
            status(&format!(
                "error: no agent or controller answers at {}: {error}. `rackweave cast agent` starts an agent; --socket names another socket\n",
                path.display()
            ));
            return Ok(exit::FAILED);
        }
    };
    if args.json {
        return events::emit("result", document);
    }
    let mut text = String::new();
    for (kind, entries) in document.as_object().into_iter().flatten() {
        let Some(entries) = entries.as_array() else {
            text += &format!("{kind}: {entries}\n");
            continue;
        };
        text += &format!("{kind}: {}\n", entries.len());
        for entry in entries {
            let words = entry.as_object().into_iter().flatten().map(|(key, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!("{key} {value}")
            });
            text += &format!("  {}\n", words.collect::<Vec<_>>().join(", "));
        }
    }
    print(&text)
}

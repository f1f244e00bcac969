//! `rackweave cast sessions`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;

use rackweave_linux::sys::connect_to_own;
use serde_json::Value;

use super::{agent_socket, print_status};
use crate::{exit, print};

/// Show the streams of an agent of this host, or the sessions of a controller of this host.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast sessions\n  \
    rackweave cast sessions --socket /run/control.sock --json\n\n\
    Exit codes: 0 shown, 1 no agent or controller answers.")]
pub(crate) struct SessionsArgs {
    /// Control socket of `cast agent` or `cast control` (default: that of this user's agent, as in `cast agent --help`).
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

pub(crate) fn sessions(args: &SessionsArgs) -> miette::Result<u8> {
    let path = match args.socket.clone().map_or_else(agent_socket, Ok) {
        Ok(path) => path,
        Err(error) => {
            print_status(&format!("error: {error}; give --socket\n"));
            return Ok(exit::FAILED);
        }
    };
    let ask = || -> std::io::Result<Value> {
        let mut stream = connect_to_own(&path)?;
        stream.write_all(b"{\"sessions\": {}}\n")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(Into::into)
    };
    let document = match ask() {
        Ok(document) => document,
        Err(error) => {
            print_status(&format!(
                "error: no agent or controller answers at {}: {error}\n",
                path.display()
            ));
            return Ok(exit::FAILED);
        }
    };
    if args.json {
        return print(&format!("{document:#}\n"));
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

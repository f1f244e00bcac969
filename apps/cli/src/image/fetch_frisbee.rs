//! `rackweave image fetch --frisbee`: an image file from Emulab's server.

use std::net::Ipv4Addr;

use miette::miette;
use rackweave_imaging::{
    FrisbeeFetchConfig, FrisbeeFetchError, FrisbeeFetchEvent, FrisbeeFetched, fetch_frisbee,
};
use serde_json::json;

use super::fetch::FetchArgs;
use super::{bar, failed, watched};
use crate::shell::{escaped, events, exit, print, size, status};

pub(super) fn fetch(args: &FetchArgs, session: (Ipv4Addr, Option<u16>)) -> miette::Result<u8> {
    let (group, Some(port)) = session else {
        return Err(miette!("--frisbee needs the port of the session, such as {}:7001", session.0));
    };
    let Some(target) = &args.to else { return Err(miette!("--to is required")) };
    if target.extension().is_none_or(|it| it != "ndz") {
        let why = "this is an image file in Frisbee's format, which `rackweave image unpack` writes to a disk";
        return Err(miette!("--to must be named .ndz: {why}"));
    }
    let config = FrisbeeFetchConfig {
        group,
        port,
        server: args.from.map(|server| *server.ip()),
        own: args.bind,
        target: target.clone(),
        overwrite: args.overwrite,
        give_up: args.give_up,
        memory: args.memory.0,
    };
    let progress = watched()?;
    let shown = bar(&progress, args.quiet || args.json);
    let mut on_event = |event| shown.suspended(|| report(args, event));
    let fetched = fetch_frisbee(&config, &progress, &mut on_event);
    drop(shown);
    match fetched {
        Ok(fetched) => written(args, &fetched),
        Err(error) => {
            if args.json {
                let _ = events::emit("failed", json!({ "error": error.to_string() }));
            }
            ended(error)
        }
    }
}

fn ended(error: FrisbeeFetchError) -> miette::Result<u8> {
    match error {
        FrisbeeFetchError::Image(error) => failed(error),
        FrisbeeFetchError::Interrupted => {
            status("interrupted: nothing of the image stays\n");
            Ok(exit::INTERRUPTED)
        }
        FrisbeeFetchError::Socket { .. } => Err(miette!("{}", escaped(&error.to_string()))),
        error => {
            status(&format!("error: {}\n", escaped(&error.to_string())));
            Ok(exit::FAILED)
        }
    }
}

/// Prints an event. What cannot be printed is not worth failing for.
fn report(args: &FetchArgs, event: FrisbeeFetchEvent) {
    if args.json {
        let (name, fields) = match event {
            FrisbeeFetchEvent::Waiting => ("waiting", json!({})),
            FrisbeeFetchEvent::Joined { server, chunks } => {
                ("joined", json!({ "server": server, "chunks": chunks }))
            }
            FrisbeeFetchEvent::Damaged { chunk, why } => {
                ("damaged-blocks", json!({ "chunk": chunk, "error": why }))
            }
        };
        let _ = events::emit(name, fields);
        return;
    }
    if args.quiet {
        return;
    }
    match event {
        FrisbeeFetchEvent::Waiting => status(&format!(
            "nobody answers yet; trying for {} (--give-up). Does frisbeed run, and does multicast reach this host?\n",
            args.give_up
        )),
        FrisbeeFetchEvent::Joined { server, chunks } => {
            status(&format!("{server} serves {chunks} chunks\n"));
        }
        FrisbeeFetchEvent::Damaged { chunk, why } => {
            let why = escaped(&why);
            status(&format!("chunk {chunk} has arrived damaged ({why}); requested again\n"));
        }
    }
}

fn written(args: &FetchArgs, fetched: &FrisbeeFetched) -> miette::Result<u8> {
    let FrisbeeFetched { server, chunks, with_sha1, damaged, refused, counts } = fetched;
    if args.json {
        let fields = json!({
            "server": server, "chunks": chunks, "with_sha1": with_sha1, "damaged": damaged, "refused": refused,
            "requests": counts.requests, "retries": counts.rerequests,
        });
        return events::emit("written", fields);
    }
    if args.quiet {
        return Ok(exit::DONE);
    }
    let checked = if with_sha1 == chunks {
        "each has its SHA-1".to_owned()
    } else {
        format!(
            "{} have no SHA-1: zlib's checksum covers their data, and nothing where on the disk these belong",
            chunks - with_sha1
        )
    };
    let bytes = size(u64::from(*chunks) << 20);
    let to = args.to.as_deref().unwrap_or_else(|| "".as_ref()).to_string_lossy();
    print(&format!("{}: {chunks} chunks with {bytes} from {server}; {checked}\n", escaped(&to)))
}

//! `rackweave image fetch --frisbee`: an image file from Emulab's server.

use std::net::Ipv4Addr;

use miette::miette;
use rackweave_imaging::{
    FrisbeeFetchConfig, FrisbeeFetchError, FrisbeeFetchEvent, FrisbeeFetched, RedirectedConfig,
    fetch_frisbee,
};
use rackweave_swp2p::p2p::client::Config;
use serde_json::{Value, json};

use super::fetch::FetchArgs;
use super::{allow_many_files, bar, failed, watched};
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
    if !args.switch && (args.linger.ticks() > 0 || args.rate.is_some()) {
        return Err(miette!("with --frisbee, --linger and --rate are of use with --switch only"));
    }
    let machine =
        Config { linger: args.linger, outstanding: args.outstanding, ..Config::default() };
    let redirected = RedirectedConfig { machine, rate: args.rate, serve: !args.no_serve };
    if args.switch {
        allow_many_files();
    }
    let config = FrisbeeFetchConfig {
        redirected: args.switch.then_some(redirected),
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
        Ok(fetched) if args.switch && args.json => {
            events::emit("left", json!({ "from": fetched.from, "to": fetched.to }))
        }
        Ok(_) => Ok(exit::DONE),
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
            FrisbeeFetchEvent::Written(fetched) => ("written", fields(&fetched)),
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
        FrisbeeFetchEvent::Written(fetched) => written(args, &fetched),
    }
}

fn fields(fetched: &FrisbeeFetched) -> Value {
    json!({
        "server": fetched.server, "chunks": fetched.chunks, "with_sha1": fetched.with_sha1,
        "damaged": fetched.damaged, "refused": fetched.refused,
        "requests": fetched.requests, "retries": fetched.retries,
        "from": fetched.from, "to": fetched.to,
    })
}

fn written(args: &FetchArgs, fetched: &FrisbeeFetched) {
    let FrisbeeFetched { server, chunks, with_sha1, from, .. } = fetched;
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
    let by_server = from.get(server).copied().unwrap_or(0);
    let whence = match args.switch {
        true => format!("{by_server} of them from {server}"),
        false => format!("from {server}"),
    };
    let linger = match args.switch && args.linger.ticks() > 0 {
        true => format!("; serving others for {}", args.linger),
        false => String::new(),
    };
    let to = escaped(&to);
    let _ = print(&format!("{to}: {chunks} chunks with {bytes}, {whence}; {checked}{linger}\n"));
}

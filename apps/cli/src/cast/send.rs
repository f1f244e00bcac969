//! `rackweave cast send`.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};

use miette::miette;
use rackweave_cast::control::{KeyProof, SendRequest};
use rackweave_cast::format::{Delete, Purpose};
use rackweave_cast::orca::{Cast, CastConfig, Engine, FabricPlace};
use rackweave_cast::source::{Catalogue as _, Files, Keeps, Listing, Pipe, Source, Unmatched};
use rackweave_core::{HostId, Span};
use rackweave_linux::sys::route_to;
use rackweave_orca::host::Spread;

use super::args::{MethodArg, SendArgs, Way};
use super::flow::FlowArgs;
use super::items::Names;
use super::outcome::{Outcome, interruption};
use super::show::Show;
use super::{agent_client, compare, diagnose, dry_run, fabric, failures};
use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, print, status};

/// How long members of a group may take to answer.
const QUERY_TIMEOUT: Span = Span::from_ms(80);

/// How long `--expect` waits for members, which may still be starting.
const EXPECT_TIMEOUT: Span = Span::from_secs(30);

/// Finds the members of the group; returns `None` if there are too few, after reporting that.
fn members(
    args: &SendArgs,
    name: &str,
    interrupted: &Interrupt,
) -> miette::Result<Option<Vec<SocketAddr>>> {
    let mut config = args.common.engine(SocketAddr::from(([0, 0, 0, 0], 0)), Vec::new())?;
    let keyed = config.secret.is_some();
    (config.fabric, config.group_loops) = (None, true);
    // The engine accepts only answers, but from any host.
    (config.admission.loopback, config.admission.everyone) = (false, false);
    let expect = args.expect.map(|expect| expect as usize);
    let wait = if expect.is_some() { EXPECT_TIMEOUT } else { QUERY_TIMEOUT };
    let asked =
        Engine::new(config, None).map_err(|error| error.to_string()).and_then(|mut engine| {
            let waker = engine.waker();
            interrupted.on_first(move || waker.wake());
            let stop = || interrupted.is_set();
            engine.members(name, expect, wait, &stop).map_err(|error| error.to_string())
        });
    let found = match asked {
        Ok(found) => found,
        Err(error) => {
            status(&format!("error: cannot ask for members of `{name}`: {error}\n"));
            return Ok(None);
        }
    };
    if interrupted.is_set() {
        return Ok(None);
    }
    if found.is_empty() {
        status(&format!("error: {}\n", diagnose::no_members(name, keyed)));
        return Ok(None);
    }
    let list: Vec<String> = found.iter().map(ToString::to_string).collect();
    if expect.is_some_and(|expect| found.len() < expect) {
        status(&format!(
            "error: only {} of {} members of `{name}` answered within {} s: {}\n",
            found.len(),
            expect.unwrap_or_default(),
            EXPECT_TIMEOUT.as_secs_f64(),
            list.join(", ")
        ));
        return Ok(None);
    }
    if !args.common.quiet && !args.common.json {
        status(&format!("members of `{name}`: {}\n", list.join(", ")));
    }
    Ok(Some(found))
}

pub(crate) fn send(mut args: SendArgs) -> miette::Result<u8> {
    if args.expect.is_some() && args.group.is_none() {
        return Err(miette!("--expect requires --group"));
    }
    // Blocking TCP calls cannot be woken, so with TCP a signal ends the process.
    let interrupted = match args.method {
        MethodArg::Tcp | MethodArg::Chain => Interrupt::default(),
        _ => Interrupt::watch()?,
    };
    args.to = args.named.iter().flat_map(|receivers| receivers.0.iter().copied()).collect();
    if let Some(name) = &args.group {
        match members(&args, name, &interrupted)? {
            Some(found) => args.to = found,
            None if interrupted.is_set() => return Ok(exit::INTERRUPTED),
            None => return Ok(exit::FAILED),
        }
    }
    send_to(&args, &interrupted)
}

fn send_to(args: &SendArgs, interrupted: &Interrupt) -> miette::Result<u8> {
    args.check()?;
    let unicast = args.method == MethodArg::Unicast;
    if matches!(args.method, MethodArg::Tcp | MethodArg::Chain) {
        return compare::send_tcp(args);
    }
    let mut bind = args.bind;
    if !args.to[0].is_ipv4() && bind == SocketAddr::from(([0, 0, 0, 0], 0)) {
        bind = SocketAddr::from(([0; 16], 0));
    }
    let mut config = args.common.engine(bind, Vec::new())?;
    let request = SendRequest {
        to: args.to.clone(),
        name: args.name.clone(),
        spread: args.spread,
        rate: args.rate,
        mtu: args.mtu,
        records: None,
        blocks: false,
        key: config
            .secret
            .as_deref()
            .map(|secret| KeyProof::new(secret, rackweave_linux::random())),
    };
    if let Some(path) = &args.socket {
        return agent_client::send(args, path, request, files_of(args)?, interrupted);
    }
    if let Some(place) = &mut config.fabric {
        // The fabric's file gives this host's address to the others.
        config.bind = fabric::place(place, place.me).unwrap_or(config.bind);
        join_fabric(args, place)?;
    }
    // Only packets of the named receivers are accepted, even from others that have the key.
    config.admission.loopback = false;
    config.admission.everyone = false;
    config.retry = Span::from_secs(args.retry.into());
    let flow = FlowArgs { mtu: args.mtu, rate: args.rate, fec: args.fec };
    let words = config.fabric.as_ref().map_or(0, |fabric| fabric.layout.words());
    let flow = match flow.flow(&args.to, config.secret.is_some(), words) {
        Ok(flow) => flow,
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    if args.common.interface.is_none()
        && let Ok(IpAddr::V4(from)) = route_to(args.to[0]).map(|route| route.0.ip())
    {
        config.interface = from;
    }
    if unicast {
        return compare::send_copies(args, config, flow, interrupted);
    }
    // Unreadable files are reported before any receiver is contacted.
    let listing = listing(args)?;
    config.flow = flow;
    let mut engine = match Engine::new(config, None) {
        Ok(engine) => engine,
        Err(error) => {
            if let Some(path) = agent_client::fallback(&error) {
                args.carried_by(Way::Agent)?;
                let files = listing.map(|listing| all_of(&listing)).transpose()?;
                return agent_client::send(args, &path, request, files, interrupted);
            }
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let waker = engine.waker();
    interrupted.on_first(move || waker.wake());
    let hosts: Vec<HostId> = args.to.iter().map(|to| engine.add_peer(*to)).collect();
    let failed = |error| miette!("the socket failed: {error}");
    let spread = match args.spread {
        Some(spread) => spread,
        None if hosts.len() == 1 => Spread::Unicast,
        None => engine.probe(&hosts).map_err(failed)?.spread,
    };
    let itemize = args.dry_run || args.itemize;
    let names = listing.as_ref().filter(|_| itemize).map(Names::new).unwrap_or_default();
    let delete = if args.delete { Delete::Later } else { Delete::Never };
    let (dry_run, checksum) = (args.dry_run, args.checksum);
    let purpose = Purpose { dry_run, checksum, itemize, delete };
    let config = CastConfig { spread, flow, purpose };
    let cast = match listing {
        // With --checksum all files are read before anything is sent.
        Some(listing) => {
            interrupted.ends_during(|| Cast::files(&mut engine, Box::new(listing), &hosts, config))
        }
        None => Cast::stream(&mut engine, pipe(args)?, &hosts, config),
    };
    let cast = cast.map_err(|error| miette!("{}", escaped(&error.to_string())))?;
    let waker = engine.waker();
    interrupted.on_first(move || waker.wake());
    run(args, &mut engine, (cast, &names), spread, interrupted)
}

/// Configures this host's role in its fabric.
fn join_fabric(args: &SendArgs, place: &mut FabricPlace) -> miette::Result<()> {
    let mut leaves_rack = false;
    for to in &args.to {
        let host = fabric::find(place, *to)?;
        if host == place.me {
            return Err(miette!("{to} is this host itself, which cannot be among its receivers"));
        }
        leaves_rack |= place.layout.place(host).rack != place.layout.place(place.me).rack;
    }
    if args.spread != Some(Spread::Labels) {
        return Ok(());
    }
    fabric::check(&place.layout)?;
    place.tor = true;
    match args.controller {
        Some(address) => place.controller = Some(fabric::find(place, address)?),
        None => {
            fabric::check_timeout(args.timeout)?;
            place.control = Some(args.timeout);
            // For receivers in its own rack this host is the agent that holds the labels.
            place.heartbeat = (!leaves_rack).then_some(args.timeout / 5 + Span::TICK);
        }
    }
    Ok(())
}

/// Returns the stream of all files; `None` for standard input.
fn files_of(args: &SendArgs) -> miette::Result<Option<Box<dyn Source>>> {
    listing(args)?.map(|listing| all_of(&listing)).transpose()
}

/// Returns the stream of all files.
fn all_of(listing: &Listing) -> miette::Result<Box<dyn Source>> {
    Ok(Box::new(Files::of(listing, |_| true).map_err(|error| miette!("{error}"))?))
}

/// Returns standard input.
fn pipe(args: &SendArgs) -> miette::Result<Box<dyn Source>> {
    let input = rackweave_linux::sys::standard_input()
        .map_err(|error| miette!("cannot read standard input: {error}"))?;
    let input: Box<dyn Read + Send> = Box::new(input);
    let stream = rackweave_linux::random();
    let limit = args.spool_limit.map(|limit| limit.0);
    let name = args.name.as_str();
    if rackweave_cast::format::check_path(name.as_bytes()).is_err() {
        return Err(miette!("--name {name:?}: must be a relative path without `..`"));
    }
    let pipe = Pipe::new(name, input, &args.spool, stream, 1 << 18, limit);
    Ok(Box::new(pipe.map_err(|error| miette!("{error}"))?))
}

/// Returns the files to send; `None` for standard input.
fn listing(args: &SendArgs) -> miette::Result<Option<Listing>> {
    if args.is_stdin() {
        return Ok(None);
    }
    let keeps = Keeps { attributes: args.xattrs, owners: args.owner };
    let listing = Listing::list(&args.files, &args.excluded()?, keeps)
        .map_err(|error| miette!("{}", escaped(&error.to_string())))?;
    if args.delete && listing.headers().iter().all(|header| !header.is_directory()) {
        return Err(miette!(
            "--delete: no folder is sent, and only in folders anything is deleted"
        ));
    }
    for Unmatched { pattern, meant } in listing.unmatched() {
        let meant = meant.as_ref().map_or(String::new(), |meant| {
            format!(
                "; a path in a pattern begins in the folder above what is sent: {meant:?} matches"
            )
        });
        status(&format!("note: --exclude {pattern:?} matches nothing{meant}\n"));
    }
    if let Some(first) = listing.with_special_bits().first() {
        let count = listing.with_special_bits().len();
        status(&format!(
            "note: setuid, setgid and sticky bits are not sent: {} files and folders have some, {} first\n",
            count,
            escaped(&first.to_string_lossy())
        ));
    }
    if let Some(first) = listing.with_other_owners().first() {
        status(&format!(
            "note: owners are sent with --owner only: {} files, folders and links are of another user or group, {} first\n",
            listing.with_other_owners().len(),
            escaped(&first.to_string_lossy())
        ));
    }
    if let Some(first) = listing.with_too_many_attributes().first() {
        status(&format!(
            "note: more than 256 KiB of extended attributes are not sent: {} files and folders have them, {} first\n",
            listing.with_too_many_attributes().len(),
            escaped(&first.to_string_lossy())
        ));
    }
    if let Some(first) = listing.skipped().first() {
        status(&format!(
            "note: devices, pipes and sockets are not sent: the folders have {}, {} first\n",
            listing.skipped().len(),
            escaped(&first.path.to_string_lossy())
        ));
    }
    Ok(Some(listing))
}

fn run(
    args: &SendArgs,
    engine: &mut Engine,
    (mut cast, names): (Cast, &Names),
    spread: Spread,
    interrupted: &Interrupt,
) -> miette::Result<u8> {
    let shown = !args.common.quiet && !args.common.json;
    let began = engine.clock().now();
    let mut show = Show::new(shown, args, began);
    let mut stopped = false;
    loop {
        let until = match engine.turn() {
            Ok(until) => until,
            Err(error) => {
                status(&format!("error: the socket failed: {error}\n"));
                return Ok(exit::FAILED);
            }
        };
        while let Some(event) = engine.poll_event() {
            cast.handle(engine, event);
        }
        if interrupted.is_set() && !stopped {
            stopped = true;
            cast.abort(engine);
            continue;
        }
        if cast.is_over() {
            break;
        }
        let due = cast.poll(engine).map_err(|error| miette!("{error}"))?;
        let redraw = show.draw(engine, &cast);
        let until = [until, due, redraw].into_iter().flatten().min();
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    }
    let seconds = engine.clock().now().since(began).as_secs_f64();
    // The last turn sends the closing packets.
    let _ = engine.turn();
    show.end();
    let view = cast.view(engine);
    if args.dry_run && !stopped {
        let failures = failures::all(args, engine, &view);
        return dry_run::report(args, &view, names, &failures);
    }
    let error = cast.take_error();
    let link_bytes = engine.stats().sent_bytes;
    let outcome = Outcome { view, seconds, spread, link_bytes };
    let receivers = &outcome.view.receivers;
    let mut code = if args.common.json {
        let items = if args.itemize { names.events(receivers, false)? } else { exit::DONE };
        items.max(events::emit("result", outcome.json())?)
    } else if args.common.quiet {
        exit::DONE
    } else {
        let items = args.itemize.then(|| names.lines(receivers, false, true));
        print(&(items.unwrap_or_default() + &outcome.text()))?
    };
    if !args.common.quiet {
        status(&outcome.notes());
    }
    if let Some(error) = error {
        status(&format!("error: {}\n", escaped(&error.to_string())));
        return Ok(exit::FAILED);
    }
    if stopped {
        status(interruption(args, &outcome.view));
        return Ok(exit::INTERRUPTED);
    }
    for (to, text) in args.to.iter().zip(failures::all(args, engine, &outcome.view)) {
        if let Some(text) = text {
            code = exit::FAILED;
            status(&format!("error: {to}: {}\n", escaped(&text)));
        }
    }
    Ok(code)
}

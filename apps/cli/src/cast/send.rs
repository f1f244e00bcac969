//! `rackweave cast send`.

use std::io::{IsTerminal as _, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use miette::miette;
use rackweave_cast::control::{KeyProof, SendRequest};
use rackweave_cast::format::Purpose;
use rackweave_cast::orca::{
    Cast, CastConfig, CastView, Engine, FabricPlace, ReceiverProgress, SendView,
};
use rackweave_cast::source::{Catalogue as _, Files, Listing, Pipe, Source};
use rackweave_core::{HostId, Span, Time};
use rackweave_linux::sys::route_to;
use rackweave_orca::flow::ReceiverStatus;
use rackweave_orca::host::Spread;
use rackweave_wire::orca::Reason;

use super::args::{MethodArg, SendArgs, Way};
use super::flow::FlowArgs;
use super::outcome::{Outcome, interruption, is_complete, state, why};
use super::{agent_client, compare, diagnose, dry_run, fabric};
use crate::progress::PlainLines;
use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, print, rate, size, status};

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
    let (spread, by_unicast) = match args.spread {
        Some(spread) => (spread, Vec::new()),
        None if hosts.len() == 1 => (Spread::Unicast, Vec::new()),
        None => {
            let reach = engine.probe(&hosts).map_err(failed)?;
            (reach.spread, reach.by_unicast)
        }
    };
    let names: Vec<(String, u64)> = match &listing {
        Some(listing) if args.dry_run => names(listing),
        _ => Vec::new(),
    };
    let purpose = Purpose { dry_run: args.dry_run, checksum: args.checksum };
    let config = CastConfig { spread, by_unicast, flow, purpose };
    let cast = match listing {
        Some(listing) => Cast::files(&mut engine, Box::new(listing), &hosts, config),
        None => Cast::stream(&mut engine, pipe(args)?, &hosts, config),
    };
    let cast = cast.map_err(|error| miette!("{error}"))?;
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
        None if args.timeout == Span::ZERO => {
            return Err(miette!("--timeout 0: must be above zero"));
        }
        None => {
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
    let excluded = args.excluded()?;
    let is_excluded = |name: &Path, is_dir| excluded.matched(name, is_dir).is_ignore();
    let listing = Listing::without(&args.files, &is_excluded)
        .map_err(|error| miette!("{}", escaped(&error.to_string())))?;
    if let Some(first) = listing.skipped().first()
        && !args.skip_special
    {
        let others = match listing.skipped().len() - 1 {
            0 => String::new(),
            others => format!(", and {others} others"),
        };
        return Err(miette!(
            help = "--skip-special sends everything else",
            "{} is a symbolic link or a special file, which cannot be sent{others}",
            escaped(&first.to_string_lossy())
        ));
    }
    for path in listing.skipped() {
        status(&format!(
            "note: {} is a symbolic link or a special file and is not sent\n",
            escaped(&path.to_string_lossy())
        ));
    }
    Ok(Some(listing))
}

/// Returns the names and lengths of the files, for people.
fn names(listing: &Listing) -> Vec<(String, u64)> {
    let headers = listing.headers();
    let name = |path: &[u8]| escaped(&String::from_utf8_lossy(path));
    headers.iter().map(|it| (name(&it.path), it.length.unwrap_or(0))).collect()
}

fn run(
    args: &SendArgs,
    engine: &mut Engine,
    (mut cast, names): (Cast, &[(String, u64)]),
    spread: Spread,
    interrupted: &Interrupt,
) -> miette::Result<u8> {
    let keyed = args.common.key.is_some();
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
    let CastView { sent: view, lacking } = cast.view(engine);
    if args.dry_run && !stopped {
        return dry_run::report(args, &view, &lacking, names);
    }
    let error = cast.take_error();
    let outcome = Outcome { view, seconds, spread, link_bytes: engine.stats().sent_bytes };
    let mut code = if args.common.json {
        events::emit("result", outcome.json())?
    } else if args.common.quiet {
        exit::DONE
    } else {
        print(&outcome.text())?
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
    for (to, receiver) in args.to.iter().zip(&outcome.view.receivers) {
        if is_complete(receiver) {
            continue;
        }
        code = exit::FAILED;
        let ReceiverStatus::Lost(reason) = receiver.status else {
            status(&format!("error: {to}: the transfer ended before it had everything\n"));
            continue;
        };
        let never = receiver.have == 0 && receiver.from == 0;
        let text = match reason {
            Reason::Silent if never => {
                let answered = diagnose::Answered {
                    other_key: engine.has_other_key(receiver.host),
                    from: engine.foreign(),
                };
                diagnose::silent(receiver.address, keyed, &answered)
            }
            Reason::Silent if engine.has_other_key(receiver.host) => format!(
                "{}: {}, and it, or another in its place, has answered that it has another key, or that only one of the two has one",
                receiver.address,
                why(reason)
            ),
            _ => format!("{}: {}", receiver.address, why(reason)),
        };
        let text = text + &again(args, receiver, reason);
        status(&format!("error: {text}\n"));
    }
    Ok(code)
}

/// Returns what to do for a receiver that was lost: nothing that it has is sent again.
fn again(args: &SendArgs, receiver: &ReceiverProgress, reason: Reason) -> String {
    let returns = matches!(reason, Reason::Silent | Reason::Unknown | Reason::Left);
    let has = receiver.there.unwrap_or(0) + receiver.have;
    match returns && has > 0 && !args.is_stdin() {
        true => format!("; run the same command again: it goes on at {}", size(has)),
        false => String::new(),
    }
}

/// Progress: on a terminal a bar for each receiver and one for all, elsewhere a line now and then.
struct Show {
    bars: Vec<(SocketAddr, ProgressBar)>,
    total: Option<ProgressBar>,
    all: Option<MultiProgress>,
    lines: Option<PlainLines>,
    began: Time,
    next: Time,
}

/// The largest number of bars of receivers. The one for all counts further receivers too.
const BARS: usize = 32;

impl Show {
    fn new(wanted: bool, args: &SendArgs, began: Time) -> Self {
        let (mut bars, mut total, mut all, mut lines) = (Vec::new(), None, None, None);
        if wanted && std::io::stderr().is_terminal() {
            let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let add = |name: String| {
                let bar = multi.add(ProgressBar::new(1));
                let style = "{prefix:22} {bar:20} {percent:>3}%  {wide_msg}";
                if let Ok(style) = ProgressStyle::with_template(style) {
                    bar.set_style(style);
                }
                bar.set_prefix(name);
                bar
            };
            bars = args.to.iter().take(BARS).map(|to| (*to, add(to.to_string()))).collect();
            total = Some(add("total".to_owned()));
            all = Some(multi);
        } else if wanted {
            lines = Some(PlainLines::new(began));
        }
        Self { bars, total, all, lines, began, next: Time::ZERO }
    }

    /// Draws at most every 200 ms; returns when to call it again.
    fn draw(&mut self, engine: &Engine, cast: &Cast) -> Option<Time> {
        let now = engine.clock().now();
        if let Some(lines) = &mut self.lines {
            return Some(lines.print(now, || {
                let sums = Sums::of(&cast.view(engine).sent, now.since(self.began));
                (sums.have as f64 / sums.of.max(1) as f64, sums.text())
            }));
        }
        self.all.as_ref()?;
        if now >= self.next {
            self.next = now + Span::from_ms(200);
            let view = cast.view(engine).sent;
            for (address, bar) in &self.bars {
                let Some(receiver) = view.receivers.iter().find(|it| it.address == *address) else {
                    continue;
                };
                bar.set_length(receiver.of.max(1));
                bar.set_position(receiver.have);
                let speed = rate(receiver.bits_per_second as f64);
                let repairs = size(receiver.repairs);
                bar.set_message(format!("{speed}, {repairs} retransmitted, {}", state(receiver)));
            }
            if let Some(total) = &self.total {
                let sums = Sums::of(&view, now.since(self.began));
                total.set_length(sums.of.max(1));
                total.set_position(sums.have);
                total.set_message(sums.text());
            }
        }
        Some(self.next)
    }

    fn end(&self) {
        if let Some(all) = &self.all {
            // Clearing fails only if the terminal has gone.
            let _ = all.clear();
        }
    }
}

/// The progress of all receivers together.
#[derive(Debug, PartialEq, Eq)]
struct Sums {
    /// The bytes that the receivers have, and the bytes that they are to have. Lost receivers do not count.
    have: u64,
    of: u64,
    complete: usize,
    lost: usize,
    receivers: usize,
    /// The seconds until the end at the mean rate since the beginning; `None` if the length is unknown or nothing has
    /// arrived.
    left: Option<u64>,
}

impl Sums {
    fn of(view: &SendView, since: Span) -> Self {
        let is_lost = |it: &&ReceiverProgress| matches!(it.status, ReceiverStatus::Lost(_));
        let lost = view.receivers.iter().filter(is_lost).count();
        let active = || view.receivers.iter().filter(|it| !is_lost(it));
        let have: u64 = active().map(|it| it.have).sum();
        let new: u64 = active().map(|it| it.have.saturating_sub(it.from)).sum();
        let of: u64 = active().map(|it| it.of).sum();
        let missing = of.saturating_sub(have);
        let seconds = missing as f64 / new as f64 * since.as_secs_f64();
        let left = (view.length.1 && new > 0).then_some(seconds.ceil() as u64);
        let complete = view.receivers.iter().filter(|it| is_complete(it)).count();
        Self { have, of, complete, lost, receivers: view.receivers.len(), left }
    }

    fn text(&self) -> String {
        let mut text = format!("{} of {} complete", self.complete, self.receivers);
        if self.lost > 0 {
            text += &format!(", {} lost", self.lost);
        }
        match self.left {
            Some(s) if s >= 3600 => {
                text + &format!(", {}:{:02}:{:02} left", s / 3600, s / 60 % 60, s % 60)
            }
            Some(s) => text + &format!(", {}:{:02} left", s / 60, s % 60),
            None => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_orca::flow::SenderSummary;

    use super::*;

    #[test]
    fn the_total_counts_all_receivers_and_estimates_the_rest() {
        let receiver = |number: u32, have, status| {
            let address = SocketAddr::from(([192, 0, 2, number as u8], 6722));
            let none = ReceiverProgress::new(HostId(number), Some(address), status);
            ReceiverProgress { have, of: 1000, ..none }
        };
        let mut receivers: Vec<_> =
            (0..50).map(|number| receiver(number, 250, ReceiverStatus::Attached)).collect();
        receivers.push(receiver(50, 1000, ReceiverStatus::Completed));
        receivers.push(receiver(51, 10, ReceiverStatus::Lost(Reason::Silent)));
        let view = SendView {
            length: (1000, true),
            content: 1000,
            packet: 1500,
            receivers,
            summary: SenderSummary::default(),
            copies: 1,
        };
        let sums = Sums::of(&view, Span::from_secs(27));
        assert_eq!((sums.have, sums.of), (13_500, 51_000));
        assert_eq!(sums.text(), "1 of 52 complete, 1 lost, 1:15 left");
    }
}

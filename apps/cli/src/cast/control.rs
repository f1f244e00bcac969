//! `rackweave cast control`.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use miette::miette;
use rackweave_cast::control::{ControlSocket, answer};
use rackweave_cast::orca::{Engine, EngineEvent};
use rackweave_core::{HostId, Span};
use rackweave_orca::controller::{Controller, ControllerEvent};
use rackweave_wire::orca::Reason;
use serde_json::{Value, json};

use super::outcome::why;
use super::{CommonArgs, fabric, interrupted};
use crate::shell::{events, exit, status};

/// Control a fabric with label switches.
///
/// The controller knows the sessions of all senders, gives agents their labels, and promotes another agent of a rack when the
/// active one falls silent. After a restart, senders and agents report their state to it again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    rackweave cast control --fabric fabric.toml\n  \
    rackweave cast control --fabric fabric.toml --timeout \"100 ms\" --key cast.key\n\n\
    It serves until Ctrl-C. Exit codes: 0 ended by Ctrl-C, 1 the socket failed, 2 wrong usage or file.")]
pub(crate) struct ControlArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Silence after which an agent is dead, 80 ms to 750 ms.
    #[arg(long, value_name = "TIME", default_value = "200 ms")]
    timeout: Span,
    /// Path of the control socket for `rackweave cast sessions`.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(crate) fn control(args: &ControlArgs) -> miette::Result<u8> {
    let mut config = args.common.engine(([0, 0, 0, 0], 0).into(), Vec::new())?;
    let Some(place) = &mut config.fabric else {
        return Err(miette!("a controller needs --fabric FILE: the hosts to control"));
    };
    fabric::check(&place.layout)?;
    fabric::check_timeout(args.timeout)?;
    place.control = Some(args.timeout);
    place.tor = true;
    if let Some(mine) = fabric::place(place, place.me) {
        config.bind = mine;
    }
    config.admission.loopback = false;
    config.admission.everyone = false;
    let (hosts, racks) = (place.hosts.clone(), place.layout.racks());
    let name = |host: HostId| match hosts.get(host.0 as usize) {
        Some((_, address)) => address.to_string(),
        None => format!("host {}", host.0),
    };
    let mut engine = match Engine::new(config, None) {
        Ok(engine) => engine,
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let socket = match args
        .socket
        .as_ref()
        .map(|path| ControlSocket::open(path, engine.waker()))
        .transpose()
    {
        Ok(socket) => socket,
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    let interrupted = interrupted(engine.waker())?;
    if !args.common.quiet {
        status(&format!("controlling at {}\n", engine.local_addr()));
        if std::io::stderr().is_terminal() {
            status("Press Ctrl-C to stop.\n");
        }
    }
    while !interrupted.is_set() {
        let until = match engine.turn() {
            Ok(until) => until,
            Err(error) => {
                status(&format!("error: the socket failed: {error}\n"));
                return Ok(exit::FAILED);
            }
        };
        while let Some((_, mut stream)) = socket.as_ref().and_then(ControlSocket::poll) {
            if let Some(controller) = engine.controller() {
                answer(&mut stream, &state(controller, racks, &name));
            }
        }
        while let Some(event) = engine.poll_event() {
            let EngineEvent::Control(event) = event else { continue };
            if args.common.json {
                let (event, fields) = fields(event, &name);
                events::emit(event, fields)?;
            } else if !args.common.quiet {
                status(&text(event, &name));
            }
        }
        engine.wait(until).map_err(|error| miette!("cannot wait: {error}"))?;
    }
    if let (false, Some(controller)) = (args.common.quiet, engine.controller()) {
        status(&summary(controller));
    }
    Ok(exit::DONE)
}

/// Returns the document that `cast sessions` shows.
fn state(controller: &Controller, racks: u16, name: &dyn Fn(HostId) -> String) -> Value {
    let sessions = controller.sessions().map(|(session, sender, members)| {
        json!({ "session": format!("{:08x}", session.0), "sender": name(sender), "members": members })
    });
    let racks = (0..racks).map(|rack| {
        json!({
            "rack": rack, "active": controller.active(rack).map(name),
            "live": controller.live(rack).map(name).collect::<Vec<_>>(),
        })
    });
    json!({ "sessions": sessions.collect::<Vec<_>>(), "racks": racks.collect::<Vec<_>>() })
}

fn text(event: ControllerEvent, name: &dyn Fn(HostId) -> String) -> String {
    match event {
        ControllerEvent::Promoted { rack, agent: Some(agent) } => {
            format!("rack {rack}: the active agent is {}\n", name(agent))
        }
        ControllerEvent::Promoted { rack, agent: None } => {
            format!("rack {rack}: no live agent\n")
        }
        ControllerEvent::Silent { host } => format!("{} is silent\n", name(host)),
        ControllerEvent::Live { host } => format!("{} is alive\n", name(host)),
        ControllerEvent::Expired { session, sender } => {
            format!("session {:08x}: expired, {} no longer refreshes it\n", session.0, name(sender))
        }
        ControllerEvent::Denied { session, host, reason } => {
            let why = why_denied(reason);
            format!("session {:08x}: {} cannot join: {why}\n", session.0, name(host))
        }
    }
}

/// Returns why a host cannot join a session.
const fn why_denied(reason: Reason) -> &'static str {
    match reason {
        Reason::NoLabel => "the fabric has no such host",
        Reason::Silent => "its rack has no live agent",
        Reason::Unknown => "the controller does not know the session",
        other => why(other),
    }
}

/// Returns the name and the fields of an event.
fn fields(event: ControllerEvent, name: &dyn Fn(HostId) -> String) -> (&'static str, Value) {
    match event {
        ControllerEvent::Promoted { rack, agent } => {
            ("promoted", json!({ "rack": rack, "agent": agent.map(name) }))
        }
        ControllerEvent::Silent { host } => ("silent", json!({ "host": name(host) })),
        ControllerEvent::Live { host } => ("live", json!({ "host": name(host) })),
        ControllerEvent::Expired { session, sender } => {
            let session = format!("{:08x}", session.0);
            ("expired", json!({ "session": session, "host": name(sender) }))
        }
        ControllerEvent::Denied { session, host, reason } => {
            let (session, reason) = (format!("{:08x}", session.0), why_denied(reason));
            ("denied", json!({ "session": session, "host": name(host), "reason": reason }))
        }
    }
}

fn summary(controller: &Controller) -> String {
    let counters = controller.counters();
    format!(
        "{} sessions at the end; {} membership changes, {} labels sent and {} confirmed, {} commands to switches, {} pings\n",
        controller.sessions().count(),
        counters.changes,
        counters.syncs,
        counters.confirmed,
        counters.set_active,
        counters.pings,
    )
}

#[cfg(test)]
mod tests {
    use rackweave_wire::orca::Session;

    use super::*;

    #[test]
    fn a_denial_is_said_in_words() {
        let name = |host: HostId| format!("host {}", host.0);
        let denied =
            |reason| ControllerEvent::Denied { session: Session(7), host: HostId(3), reason };
        let said = text(denied(Reason::Silent), &name);
        assert_eq!(said, "session 00000007: host 3 cannot join: its rack has no live agent\n");
        let (event, fields) = fields(denied(Reason::NoLabel), &name);
        assert_eq!((event, &fields["reason"]), ("denied", &json!("the fabric has no such host")));
    }
}

//! `rackweave pod`: the control plane of P4-ORDC, and what it says.

pub(crate) mod args;
mod show;

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use miette::miette;
use rackweave_linux::random;
use rackweave_pod::{Client, ClientError, Key, PodError, Service, ServiceConfig, Tenants};
use rackweave_rackless::controller::{Config, Event, Happening};
use rackweave_rackless::fabric::{Architecture, Fabric};
use serde_json::Value;

use self::args::{AskArgs, ControlArgs, PodCommand, SubmitArgs, TopArgs};
use crate::reduce::{declaration, read_pod, token};
use crate::shell::signal::Interrupt;
use crate::shell::{escaped, events, exit, print, status};

pub(crate) fn pod(command: &PodCommand) -> miette::Result<u8> {
    match command {
        PodCommand::Control(args) => control(args),
        PodCommand::Submit(args) => submit(args),
        PodCommand::Jobs(args) => ask(args, "/v1/jobs", show::jobs),
        PodCommand::Plan(args) => ask(args, "/v1/plan", show::plan),
        PodCommand::Circuits(args) => ask(args, "/v1/circuits", show::circuits),
        PodCommand::Top(args) => top(args),
    }
}

fn control(args: &ControlArgs) -> miette::Result<u8> {
    let (pod, racks) = read_pod(&args.pod)?;
    let fabric = Fabric::new(pod, Architecture::P4Ordc).starting_from(racks);
    let controller = Config {
        period: args.period,
        horizon: usize::from(args.horizon),
        order: args.order,
        uploads: args.uploads,
        patience: args.patience,
        silence: args.silence,
        ..Config::new(fabric.with_reach(args.planner.reach), args.planner.algorithm.into())
    };
    let secret = args.key_file.as_deref().map(crate::secret::read).transpose()?;
    let key = secret.map(|secret| Key::derive(&secret)).transpose();
    let config = ServiceConfig {
        controller,
        database: args.database.clone(),
        listen: args.listen,
        agents: args.agents,
        key: key.map_err(|error| miette!("{error}"))?,
        tenants: args.tenants.as_deref().map_or_else(|| Ok(Tenants::everybody()), tenants)?,
        names: args.names.clone(),
    };
    let stop = Interrupt::watch()?;
    let is_json = args.json;
    let report = move |it: &Happening| tell(it, is_json);
    let fails =
        |why: &str| status(&format!("error: nothing is stored, so nothing is commanded: {why}\n"));
    let service = match Service::start(config, report, fails) {
        Ok(service) => service,
        Err(error @ PodError::NoKey) => {
            return Err(miette!("{error}: use --key-file, or a loopback address"));
        }
        Err(error @ PodError::NoTenants) => {
            return Err(miette!("{error}: use --tenants, or a loopback address"));
        }
        Err(error) => {
            status(&format!("error: {error}\n"));
            return Ok(exit::FAILED);
        }
    };
    status(&format!(
        "ready at http://{}/ and for switches at {}\n",
        service.address, service.agents
    ));
    while !stop.is_set() {
        if service.has_failed() {
            status("error: a thread of the controller has failed: this is an error in Rackweave\n");
            return Ok(exit::FAILED);
        }
        pause(Duration::from_millis(100));
    }
    drop(service);
    Ok(exit::DONE)
}

fn tenants(path: &Path) -> miette::Result<Tenants> {
    let name = escaped(&path.to_string_lossy());
    let text =
        std::fs::read_to_string(path).map_err(|error| miette!("cannot read {name}: {error}"))?;
    Tenants::read(&text).map_err(|error| miette!("{name}: {error}"))
}

/// Says what has happened.
fn tell(Happening { at, what }: &Happening, is_json: bool) {
    if is_json {
        let mut fields = serde_json::to_value(what).unwrap_or_default();
        let name = fields.as_object_mut().and_then(|fields| fields.remove("event"));
        let name = name.unwrap_or_default();
        fields["at_ms"] = at.as_ms().into();
        // Whoever reads it has gone.
        let _ = events::emit(name.as_str().unwrap_or("event"), fields);
        return;
    }
    // Phases are many.
    if !matches!(what, Event::Phase { .. }) {
        status(&format!("{what}\n"));
    }
}

fn client(args: &AskArgs) -> miette::Result<Client> {
    Ok(Client::new(&args.url, args.token.as_deref().map(token).transpose()?))
}

fn failed(error: &ClientError) -> u8 {
    status(&format!("error: {error}\n"));
    exit::FAILED
}

/// After what time a command says for whom it waits.
const SOON: Duration = Duration::from_secs(5);

/// Returns an answer of the controller. Says for whom it waits if that takes long; the client gives up after 15 s.
fn answer<T>(
    args: &AskArgs,
    client: &Client,
    ask: impl FnOnce(&Client) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                status(&format!("waiting for the pod's controller at {}\n", escaped(&args.url)));
            }
        });
        let answer = ask(client);
        drop(done);
        answer
    })
}

fn ask(args: &AskArgs, path: &str, shown: fn(&Value) -> String) -> miette::Result<u8> {
    match answer(args, &client(args)?, |client| client.get::<Value>(path)) {
        Ok(answer) if args.json => print(&format!("{answer:#}\n")),
        Ok(answer) => print(&shown(&answer)),
        Err(error) => Ok(failed(&error)),
    }
}

fn submit(args: &SubmitArgs) -> miette::Result<u8> {
    let declared = declaration(&args.job)?;
    let nonce = random() as u64;
    match answer(&args.ask, &client(&args.ask)?, |client| client.register(nonce, &declared)) {
        Ok(job) if args.ask.json => {
            print(&format!("{:#}\n", serde_json::json!({ "job": job.job })))
        }
        Ok(job) => print(&format!("{}\n", job.job)),
        Err(error) => Ok(failed(&error)),
    }
}

/// Shows the pod once, or once a second until Ctrl-C.
fn top(TopArgs { once, ask }: &TopArgs) -> miette::Result<u8> {
    use std::io::IsTerminal as _;
    let client = client(ask)?;
    let stop = Interrupt::watch()?;
    let clear = if std::io::stdout().is_terminal() && !once { "\x1b[H\x1b[2J" } else { "" };
    loop {
        let answer = answer(ask, &client, |client| client.get::<Value>("/v1/status"));
        let code = match answer {
            Ok(answer) if ask.json => print(&format!("{answer}\n"))?,
            Ok(answer) => print(&format!("{clear}{}", show::status(&answer)))?,
            Err(error) => failed(&error),
        };
        if *once || stop.is_set() {
            return Ok(code);
        }
        pause(Duration::from_secs(1));
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread that waits for a signal")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

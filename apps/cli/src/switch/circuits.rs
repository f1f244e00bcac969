//! The control channel of a switch whose fabric has an optical circuit switch: a Unix socket, over which a process of the same user
//! changes circuits.
//!
//! Each request is a line of JSON with one key, and each answer is a line of JSON: `docs/ops/switch.md`.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::shell::escaped;
use miette::miette;
use rackweave_core::{DropReason, Span};
use rackweave_linux::switch::Control;
use rackweave_linux::sys::{is_own, listen_privately};
use rackweave_switch::Fabric;
use rackweave_switch::config::{Circuits, Dark, Pod};
use serde_json::{Value, json};

/// The longest request in bytes: 4096 servers need less.
const LONGEST_LINE: u64 = 1 << 16;
/// The most controllers at a time.
const MOST_CONTROLLERS: u32 = 8;
/// How long a controller may leave an answer unread.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A socket that listens, and is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If it cannot be removed, the next switch replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Listener {
    /// Opens the socket.
    pub(super) fn open(path: &Path) -> miette::Result<Self> {
        let listener = listen_privately(path).map_err(|error| {
            let path = escaped(&path.to_string_lossy());
            miette!("cannot listen for controllers at `{path}`: {error}")
        })?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves controllers in threads of their own, until the process ends.
    pub(super) fn serve(&self, fabric: &Fabric, control: &Arc<Control>) -> miette::Result<()> {
        if !fabric.has_ocs() {
            return Err(miette!(
                help = "topology = \"rackless\" has one between servers and ToRs, \"tor-circuits\" one above the ToRs",
                "--control changes circuits, and the fabric has no optical circuit switch"
            ));
        }
        let listener = self.listener.try_clone();
        let listener =
            listener.map_err(|error| miette!("cannot listen for controllers: {error}"))?;
        let served = Arc::new(Served {
            fabric: fabric.clone(),
            control: Arc::clone(control),
            controllers: AtomicU32::new(0),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = Arc::clone(&served);
                std::thread::spawn(move || served.controller(stream));
            }
        });
        Ok(())
    }
}

/// What all controllers share.
struct Served {
    fabric: Fabric,
    control: Arc<Control>,
    controllers: AtomicU32,
}

impl Served {
    /// Serves a controller until it closes its connection. The circuits remain then.
    fn controller(&self, stream: UnixStream) {
        if !is_own(&stream) {
            return;
        }
        let others = self.controllers.fetch_add(1, Ordering::Relaxed);
        // A controller that is gone gets no answer.
        if others < MOST_CONTROLLERS {
            let _ = self.converse(&stream);
            self.controllers.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.controllers.fetch_sub(1, Ordering::Relaxed);
            let _ = dismiss(&stream, &format!("{MOST_CONTROLLERS} others are connected"));
        }
    }

    fn converse(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            (&mut reader).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
            match line.last() {
                // A line that is cut off is no request.
                None => return Ok(()),
                Some(b'\n') => {}
                Some(_) if (line.len() as u64) < LONGEST_LINE => return Ok(()),
                Some(_) => {
                    return dismiss(stream, &format!("a line has at most {LONGEST_LINE} bytes"));
                }
            }
            answer(stream, &self.request(&line).unwrap_or_else(|why| refused(&why)))?;
        }
    }

    fn request(&self, line: &[u8]) -> Result<Value, String> {
        let expected =
            "expected {\"circuits\": [...]}, {\"check\": [...]} or {\"show\": \"circuits\"}";
        let request: Value = serde_json::from_slice(line)
            .map_err(|error| format!("not JSON: {error}; {expected}"))?;
        let only =
            request.as_object().filter(|keys| keys.len() == 1).and_then(|keys| keys.iter().next());
        match only {
            Some((key, list)) if key == "circuits" => {
                let change = self.control.reconfigure(self.circuits(list)?);
                let change = change.map_err(|error| error.to_string())?;
                Ok(json!({
                    "ok": true,
                    "began_s": change.at.as_us_f64() / 1e6,
                    "dark_us": change.up.since(change.at).as_us_f64(),
                }))
            }
            Some((key, list)) if key == "check" => {
                let circuits = self.circuits(list)?;
                self.fabric.with_circuits(&circuits).map_err(|error| error.to_string())?;
                Ok(json!({ "ok": true }))
            }
            Some((key, Value::String(what))) if key == "show" && what == "circuits" => self.show(),
            _ => Err(expected.to_owned()),
        }
    }

    fn circuits(&self, list: &Value) -> Result<Circuits, String> {
        let tor = |value: &Value| value.as_u64().and_then(|tor| u16::try_from(tor).ok());
        let list = list.as_array();
        match self.fabric.pod().map(|pod| &pod.circuits) {
            Some(Circuits::Servers(_)) => {
                let tors: Option<Vec<u16>> = list.and_then(|list| list.iter().map(tor).collect());
                tors.map(Circuits::Servers)
                    .ok_or_else(|| "expected the ToR of each server, as in [0, 0, 1, 1]".to_owned())
            }
            _ => {
                let pair = |value: &Value| match value.as_array()?.as_slice() {
                    [a, b] => Some((tor(a)?, tor(b)?)),
                    _ => None,
                };
                let pairs: Option<Vec<_>> = list.and_then(|list| list.iter().map(pair).collect());
                pairs
                    .map(Circuits::Tors)
                    .ok_or_else(|| "expected pairs of ToRs, as in [[0, 1], [0, 2]]".to_owned())
            }
        }
    }

    fn show(&self) -> Result<Value, String> {
        let report = self.control.report().ok_or("the switch does not answer")?;
        let Some(pod) = self.fabric.pod() else { return Err("there is no pod".into()) };
        let current = report.circuits.last().map_or(Value::Null, |(_, circuits)| json_of(circuits));
        Ok(json!({
            "ok": true,
            "circuits": current,
            "changes": report.circuits.len().saturating_sub(1),
            "lost": report.counters.drops[DropReason::Reconfiguration as usize],
            "dark_us": us(pod.dark_time()),
            "dark": match pod.ocs.dark { Dark::All => "all", Dark::Moved => "moved" },
            "tors": tors(pod),
        }))
    }
}

fn us(span: Span) -> f64 {
    span.as_us_f64()
}

fn tors(pod: &Pod) -> Vec<Value> {
    let tor = |tor: &rackweave_switch::config::Tor| {
        json!({
            "server_ports": tor.server_ports,
            "uplinks": tor.uplinks,
            "circuit_ports": tor.circuit_ports,
        })
    };
    pod.tors.iter().map(tor).collect()
}

/// Circuits as they are written in scenarios and requests.
pub(super) fn json_of(circuits: &Circuits) -> Value {
    match circuits {
        Circuits::None => Value::Null,
        Circuits::Servers(tors) => json!(tors),
        Circuits::Tors(pairs) => json!(pairs),
    }
}

fn refused(why: &str) -> Value {
    json!({ "ok": false, "error": why })
}

/// Refuses a controller, and waits a little until it closes its connection: with bytes that were not read, the answer would be lost.
fn dismiss(stream: &UnixStream, why: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    answer(stream, &refused(why))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    io::copy(&mut stream.take(LONGEST_LINE), &mut io::sink()).map(drop)
}

fn answer(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}

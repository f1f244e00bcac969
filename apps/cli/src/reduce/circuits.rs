//! The circuits of a switch, which a master changes through the switch's control channel.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::shell::escaped;
use miette::miette;
use rackweave_core::Span;
use rackweave_linux::sys::connect_to_own;
use rackweave_reduce::{JobMove, OpticalSwitch};
use serde_json::{Value, json};

/// How long the switch may take to answer: it looks for requests every 20 ms, and gives up after 2 s.
const PATIENCE: Duration = Duration::from_secs(4);

/// A connection to a switch's control channel. A thread waits for the answers.
pub(super) struct Controller {
    requests: Sender<Vec<u16>>,
    answers: Receiver<Result<Span, String>>,
}

/// Parses a change of circuits: `TIME=TOR,TOR,...`.
pub(super) fn job_move(text: &str) -> Result<JobMove, String> {
    let expected = "expected a time from the start of the upload and the ToR of each server, as in 200ms=0,0,1,1";
    let (after, tors) = text.split_once('=').ok_or(expected)?;
    let after = after.trim().parse::<Span>().map_err(|error| format!("{error}; {expected}"))?;
    let tors = tors.split(',').map(|tor| tor.trim().parse::<u16>());
    let tors = tors.collect::<Result<Vec<_>, _>>().map_err(|_| expected)?;
    Ok(JobMove { after, tors })
}

impl Controller {
    /// Connects, and checks that the pod can have the circuits of all changes.
    pub(super) fn connect(path: &Path, moves: &[JobMove]) -> miette::Result<Self> {
        let name = escaped(&path.to_string_lossy());
        let connect = || {
            let stream = connect_to_own(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Lines { reader: BufReader::new(stream.try_clone()?), stream })
        };
        let mut lines = connect().map_err(|error: io::Error| {
            miette!("cannot reach a switch's control channel at `{name}`: {error}")
        })?;
        for (number, change) in (1..).zip(moves) {
            let checked = lines.ask(&json!({ "check": change.tors }));
            checked.map_err(|why| miette!("--move {number}: {why}"))?;
        }
        let (requests, wanted) = channel::<Vec<u16>>();
        let (answered, answers) = channel();
        std::thread::spawn(move || {
            for tors in wanted {
                let answer = lines.ask(&json!({ "circuits": tors }));
                let dark = answer.map(|answer| {
                    let us = answer["dark_us"].as_f64().unwrap_or(0.0);
                    Span::from_secs_f64(us / 1e6)
                });
                if answered.send(dark).is_err() {
                    return;
                }
            }
        });
        Ok(Self { requests, answers })
    }
}

impl OpticalSwitch for Controller {
    fn change(&mut self, tors: &[u16]) {
        // If the thread has ended, there is no answer either.
        let _ = self.requests.send(tors.to_vec());
    }

    fn poll(&mut self) -> Option<Result<Span, String>> {
        match self.answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err("the control channel has failed".to_owned()))
            }
        }
    }
}

/// The requests and answers of a connection.
struct Lines {
    reader: BufReader<UnixStream>,
    stream: UnixStream,
}

impl Lines {
    /// Sends a request, and returns its answer, or why it was refused.
    fn ask(&mut self, request: &Value) -> Result<Value, String> {
        let failed = |error: io::Error| format!("the switch's control channel has failed: {error}");
        self.stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
        let mut line = String::new();
        if self.reader.read_line(&mut line).map_err(failed)? == 0 {
            return Err("the switch has closed its control channel".to_owned());
        }
        let answer: Value = serde_json::from_str(&line)
            .map_err(|_| "what answers at the control channel is no switch".to_owned())?;
        if answer["ok"] == true {
            return Ok(answer);
        }
        let why = answer["error"].as_str().unwrap_or("the switch refuses, and does not say why");
        Err(escaped(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_time_and_tors() {
        let change = JobMove { after: Span::from_ms(200), tors: vec![0, 1, 1] };
        assert_eq!(job_move("200ms=0,1,1"), Ok(change.clone()));
        assert_eq!(job_move("0.2 s = 0, 1, 1"), Ok(change));
        for wrong in ["", "200ms", "200ms=", "x=0", "1s=0,-1", "1s=0,,1", "1s=70000"] {
            assert!(job_move(wrong).is_err(), "{wrong}");
        }
    }
}

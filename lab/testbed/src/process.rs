//! The processes of a run, as the coordinator sees them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rackweave_linux::sys::at_ordinary_priority;
use rustix::process::{Pid, Signal, kill_process};

use super::TestbedError;
use super::protocol::{Command, Role, Setup, WorkerMessage};

/// The command that starts a worker: this program, with arguments that make it a worker.
#[derive(Clone, Debug)]
pub struct WorkerCommand {
    /// The path of the program.
    pub program: std::path::PathBuf,
    /// The arguments up to the role.
    pub arguments: Vec<String>,
}

/// A message from a worker, or the end of its output.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) role: Role,
    /// The number of the host's incarnation, from 0.
    pub(super) incarnation: u32,
    /// The message; `None` if the worker's output has ended.
    pub(super) message: Option<WorkerMessage>,
}

/// The number of bytes kept of a worker's standard error, counted from its end.
const MAX_STDERR: usize = 4096;

/// A process of a run, which is killed on drop.
#[derive(Debug)]
pub(super) struct Worker {
    role: Role,
    incarnation: u32,
    child: Child,
    stdin: Option<ChildStdin>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

impl Worker {
    /// Starts a worker that sends its messages to `updates`.
    pub(super) fn start(
        command: &WorkerCommand,
        setup: &Setup,
        incarnation: u32,
        update: Sender<Update>,
    ) -> Result<Self, TestbedError> {
        let role = setup.role;
        let failed = |source| TestbedError::Start { what: role.to_string(), source };
        let name = match role {
            Role::Switch => "switch".to_owned(),
            Role::Host(host) => format!("host-{host}"),
        };
        let mut child = std::process::Command::new(&command.program)
            .args(&command.arguments)
            .arg(name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let kept = Arc::new(Mutex::new(Vec::new()));
        let mut worker = Self { role, incarnation, child, stdin, stderr: Arc::clone(&kept) };
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            for line in lines {
                let message = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let ended = message.is_none();
                if update.send(Update { role, incarnation, message }).is_err() || ended {
                    return;
                }
            }
            let _ = update.send(Update { role, incarnation, message: None });
        });
        std::thread::spawn(move || {
            let Some(mut stderr) = stderr else { return };
            let mut some = [0; 1024];
            while let Ok(count @ 1..) = stderr.read(&mut some) {
                let Ok(mut kept) = kept.lock() else { return };
                kept.extend_from_slice(&some[..count]);
                let surplus = kept.len().saturating_sub(MAX_STDERR);
                kept.drain(..surplus);
            }
        });
        worker.write(setup);
        Ok(worker)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) const fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Sends a command to the worker. If the worker has ended, the command is dropped; the end is reported by an
    /// update.
    pub(super) fn command(&mut self, command: &Command) {
        self.write(command);
    }

    fn write(&mut self, document: &impl serde::Serialize) {
        let Some(stdin) = &mut self.stdin else { return };
        let Ok(mut line) = serde_json::to_vec(document) else { return };
        line.push(b'\n');
        if stdin.write_all(&line).and_then(|()| stdin.flush()).is_err() {
            self.stdin = None;
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The process has not been waited for, so the number is still its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills the process and waits for its end.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = at_ordinary_priority(|| self.child.wait());
    }

    /// Describes why the process ended, for an error message.
    pub(super) fn exit_report(&mut self) -> String {
        let status = at_ordinary_priority(|| self.child.wait());
        let stderr =
            self.stderr.lock().map(|kept| String::from_utf8_lossy(&kept).trim().to_owned());
        let stderr = stderr.unwrap_or_default();
        let how = status.map_or_else(|error| error.to_string(), how);
        let process = self.child.id();
        let colon = if stderr.is_empty() { "" } else { ": " };
        format!("{} (process {process}) {how}{colon}{stderr}", self.role)
    }
}

fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended by itself with code {code}"),
        (None, None) => "ended".into(),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processes of a run by their roles.
pub(super) type Workers = BTreeMap<Role, Worker>;

/// How long a worker may take for steps that should take no time.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

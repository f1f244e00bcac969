//! The processes of a run, seen from the coordinator.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::TestbedError;
use super::protocol::{Order, Role, Said, Setup};

/// How parts are begun: this program, with arguments that make a part of it.
#[derive(Clone, Debug)]
pub struct PartCommand {
    /// The program.
    pub program: std::path::PathBuf,
    /// Its arguments, up to the role.
    pub arguments: Vec<String>,
}

/// Something that a part has said, or that it has ended.
#[derive(Debug)]
pub(super) struct News {
    pub(super) role: Role,
    /// Of a host with several lives: which.
    pub(super) life: u32,
    /// `None`: its output has ended.
    pub(super) said: Option<Said>,
}

/// Of what a part writes to stderr, the end is kept.
const MAX_STDERR: usize = 4096;

/// A process of a run. It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Part {
    role: Role,
    life: u32,
    child: Child,
    stdin: Option<ChildStdin>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

impl Part {
    /// Starts a part; what it says goes to `news`.
    pub(super) fn start(
        command: &PartCommand,
        setup: &Setup,
        life: u32,
        news: Sender<News>,
    ) -> Result<Self, TestbedError> {
        let role = setup.role;
        let failed = |source| TestbedError::Start { what: role.to_string(), source };
        let name = match role {
            Role::Switch => "switch".to_owned(),
            Role::Host(host) => format!("host-{host}"),
        };
        let mut child = Command::new(&command.program)
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
        let mut part = Self { role, life, child, stdin, stderr: Arc::clone(&kept) };
        std::thread::spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines());
            for line in lines {
                let said = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let ended = said.is_none();
                if news.send(News { role, life, said }).is_err() || ended {
                    return;
                }
            }
            let _ = news.send(News { role, life, said: None });
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
        part.write(setup);
        Ok(part)
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) const fn life(&self) -> u32 {
        self.life
    }

    /// Tells it what to do. One that has ended can't be told; that it has is news by itself.
    pub(super) fn order(&mut self, order: &Order) {
        self.write(order);
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
            // It has not been waited for: the number is still its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends it, however it is.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Why it has ended, for a person.
    pub(super) fn obituary(&mut self) -> String {
        let status = self.child.wait();
        let said = self.stderr.lock().map(|kept| String::from_utf8_lossy(&kept).trim().to_owned());
        let said = said.unwrap_or_default();
        let how = status.map_or_else(|error| error.to_string(), how);
        let process = self.child.id();
        let colon = if said.is_empty() { "" } else { ": " };
        format!("{} (process {process}) {how}{colon}{said}", self.role)
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

impl Drop for Part {
    fn drop(&mut self) {
        self.kill();
    }
}

/// All processes of a run, by role.
pub(super) type Parts = BTreeMap<Role, Part>;

/// How long a part may take for what should take no time.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

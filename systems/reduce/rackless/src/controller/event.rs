//! What happens in a pod, for logs and pages.

use std::fmt;

use rackweave_core::{Time, visible};
use serde::Serialize;

use super::job::Phase;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Happening {
    /// When.
    pub at: Time,
    /// What.
    pub what: Event,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A job has its number.
    Registered {
        /// The number.
        job: u16,
        /// Whose it is.
        tenant: String,
        /// Its name.
        name: String,
    },
    /// A job has come to a phase.
    Phase {
        /// The job.
        job: u16,
        /// The phase.
        phase: Phase,
    },
    /// A job may upload.
    Granted {
        /// The job.
        job: u16,
        /// Its slots in the programmable `ToR`; 0: the master adds up.
        slots: u32,
        /// Its circuits are not there in time, and it begins without.
        is_late: bool,
    },
    /// A job is over.
    Ended {
        /// The job.
        job: u16,
    },
    /// A job is given up.
    Dropped {
        /// The job.
        job: u16,
        /// Why.
        why: String,
    },
    /// Circuits are to change.
    Moving {
        /// The version of the command.
        version: u64,
        /// The number of servers that change their `ToR`.
        moves: usize,
        /// The servers of each `ToR` afterwards.
        racks: Vec<Vec<u32>>,
    },
    /// Circuits have changed.
    Moved {
        /// The version of the command.
        version: u64,
        /// For how long ports are dark.
        dark_ns: u64,
    },
    /// The switch has refused the change.
    NotMoved {
        /// Its reason.
        why: String,
    },
    /// There is no plan.
    NotPlanned {
        /// The reason.
        why: String,
    },
    /// An agent has reported for the first time, or after silence or a restart.
    AgentUp {
        /// Its name.
        agent: String,
    },
    /// An agent is silent.
    AgentDown {
        /// Its name.
        agent: String,
    },
    /// An agent's report is not believed.
    AgentRefused {
        /// Its name.
        agent: String,
        /// Why.
        why: String,
    },
    /// This controller commands.
    Active {
        /// Its term.
        term: u64,
    },
    /// It does not any more.
    NotActive,
}

/// A line for a reader, in which characters that could deceive one are escaped.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registered { job, tenant, name } => {
                write!(f, "job {job} of {}: {}", visible(tenant), visible(name))
            }
            Self::Phase { job, phase } => write!(f, "job {job}: {}", phase.name()),
            Self::Granted { job, slots, is_late } => {
                let late = if *is_late { ", not waiting for its circuits" } else { "" };
                match slots {
                    0 => write!(f, "job {job} uploads without a switch{late}"),
                    _ => write!(f, "job {job} uploads, {slots} slots{late}"),
                }
            }
            Self::Ended { job } => write!(f, "job {job} has ended"),
            Self::Dropped { job, why } => write!(f, "job {job} is given up: {}", visible(why)),
            Self::Moving { version, moves, racks } => {
                let servers = if *moves == 1 { "server moves" } else { "servers move" };
                write!(f, "circuits change ({version}): {moves} {servers}, {}", of_racks(racks))
            }
            Self::Moved { version, dark_ns } => {
                let ms = dark_ns / 1_000_000;
                write!(f, "circuits have changed ({version}), dark for {ms} ms")
            }
            Self::NotMoved { why } => write!(f, "circuits have not changed: {}", visible(why)),
            Self::NotPlanned { why } => write!(f, "no plan: {}", visible(why)),
            Self::AgentUp { agent } => write!(f, "switch {} reports", visible(agent)),
            Self::AgentDown { agent } => write!(f, "switch {} is silent", visible(agent)),
            Self::AgentRefused { agent, why } => {
                write!(f, "switch {} is not believed: {}", visible(agent), visible(why))
            }
            Self::Active { term } => write!(f, "this controller commands the pod, term {term}"),
            Self::NotActive => f.write_str("this controller does not command the pod any more"),
        }
    }
}

fn of_racks(racks: &[Vec<u32>]) -> String {
    let rack =
        |servers: &Vec<u32>| servers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    racks.iter().map(rack).collect::<Vec<_>>().join(" | ")
}

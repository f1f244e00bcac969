//! The fabric in virtual time with frames in it.

use std::sync::Arc;

use rackweave_core::{Packet, Port, Span, SwitchProgram, Time, Verdict};
use rackweave_group::orca;
use rackweave_group::orca::label::{LabelError, Layout};
use rackweave_switch::config::Fault;
use rackweave_switch::{Fabric, Net, NetConfig, net};

use super::config::ProgramConfig;
use super::frame::{Carried, Frames};

/// The program of one of the fabric's switches.
#[derive(Clone, Debug)]
pub enum Program {
    /// Forwarding alone.
    Plain,
    /// Orca's.
    Orca(orca::switch::Program<Carried>),
}

impl SwitchProgram for Program {
    type Header = Carried;

    #[inline]
    fn handle_packet(&mut self, now: Time, port: Port, packet: &mut Packet<Carried>) -> Verdict {
        match self {
            Self::Plain => Verdict::Route,
            Self::Orca(program) => program.handle_packet(now, port, packet),
        }
    }
}

/// The fabric in virtual time: without sockets and without a clock. Its [`Net::bodies`] are the bytes of frames.
pub type Core = Net<Program, Frames>;

/// A frame that has reached its host; its slot is the caller's to release.
pub type Departure = net::Departure<Carried>;

/// What a [`Core`] is made of.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The fabric.
    pub fabric: Fabric,
    /// What goes wrong in it. Faults of hosts are of no meaning here.
    pub faults: Vec<Fault>,
    /// Everything random follows from it.
    pub seed: u64,
    /// Repetition.
    pub run: u64,
    /// Most frames inside.
    pub frames: u32,
    /// Most bytes that wait for a host's own link.
    pub nic_queue_bytes: u64,
    /// How often queues are looked at for a series; zero: never.
    pub sample_every: Span,
    /// What its switches do.
    pub program: ProgramConfig,
}

impl CoreConfig {
    /// An idle fabric at time 0.
    ///
    /// # Errors
    /// If the program is not possible on this fabric.
    pub fn build(self) -> Result<Core, LabelError> {
        let Self { fabric, faults, seed, run, frames, nic_queue_bytes, sample_every, program } =
            self;
        let mut programs = Vec::with_capacity(fabric.switches() as usize);
        let mut frames = Frames::new(frames);
        match program {
            ProgramConfig::Plain => {
                programs.extend((0..fabric.switches()).map(|_| Program::Plain));
            }
            ProgramConfig::Orca { controller, key } => {
                let layout = Arc::new(Layout::new(&fabric)?);
                for switch in 0..fabric.switches() {
                    let program = orca::switch::Program::new(Arc::clone(&layout), &fabric, switch)?;
                    programs.push(Program::Orca(match controller {
                        Some(host) => program.with_controller(host),
                        None => program,
                    }));
                }
                frames = frames.with_key(key);
            }
        }
        let config =
            NetConfig { fabric, faults, seed, run, nic_queue_bytes, sample_every, wakes: 0 };
        Ok(Net::new(config, frames, |switch| programs[switch as usize].clone()))
    }
}

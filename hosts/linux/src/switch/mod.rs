//! The user-space switch: the simulator's fabric at real rates, in one thread.
//!
//! Hosts send their frames to UDP ports (`wire::overlay`) or to interfaces, and the kernel stamps each with the time at
//! which it was received. From then on a frame's path is that of the simulator: its host's link, the switches with
//! their queues and faults, the link to the receiver. The switch passes it to the receiver's socket when its last bit
//! would have arrived there, or a little later ([`Report::lateness`]); a late frame never delays the following ones.
//! See [`Core`].
//!
//! The switches run the programs of a group system, a [`System`]; with `()` a switch only forwards.
//!
//! `docs/ops/security.md` describes what is protected.

#[cfg(test)]
mod aggregation_tests;
mod capture;
#[doc(hidden)]
pub mod checks;
mod checksum;
mod config;
mod control;
mod core;
mod edge;
mod frame;
#[cfg(test)]
mod orca_tests;
#[cfg(test)]
mod reduce_tests;
mod stats;
#[cfg(test)]
mod swp2p_tests;
#[cfg(test)]
mod system_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackweave_core::{DropReason, Span, Time};
use rackweave_switch::Fabric;
use rackweave_switch::config::{CircuitError, Circuits};
use rackweave_switch::system::{System, SystemProgram};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub use self::config::{Edge, SwitchConfig, SwitchError};
pub use self::control::{Change, ChangeError, Control};
pub use self::core::{Core, CoreConfig, Departure, FrameProgram};
pub use self::frame::{Carried, Encapsulation, Frames, MAX_FRAME};
pub use self::stats::{Counters, Lateness, Report};
pub use rackweave_switch::net::{LinkStats, QueueSample};

use self::edge::Edges;
use self::stats::LatenessHistogram;
use crate::clock::Clock;
use crate::wait;

/// The longest sleep of [`Switch::run`], and so the longest time that it takes to stop.
const LONGEST_SLEEP: Span = Span::from_ms(20);

/// The most readable sockets that one call returns.
const EVENTS: usize = 64;

/// The interval between retries while the kernel has no room for a datagram.
const RETRY: Span = Span::from_us(200);

/// The user-space switch. Only [`Switch::wait`] and [`Switch::run`] block.
///
/// Its switches run the programs of the group system `S`; with `()` they run none.
#[derive(Debug)]
pub struct Switch<S: System = ()> {
    core: Core<S>,
    switches: u32,
    edges: Edges<S>,
    epoll: OwnedFd,
    /// The hosts whose sockets are readable.
    ready: Vec<u32>,
    clock: Clock,
    batch_window: Span,
    busy_poll: bool,
    late: LatenessHistogram,
    /// The time from which on lateness is measured.
    late_since: Time,
    /// Whether the last turn found something to do.
    busy: bool,
    /// The turns that found something to do.
    turns: u64,
    /// When captures begin.
    capture_from: Time,
}

impl<S: System> Switch<S> {
    /// Opens all sockets.
    ///
    /// # Errors
    /// If the configuration is invalid, or a socket cannot be opened.
    pub fn new(config: SwitchConfig<S>) -> Result<Self, SwitchError> {
        let fabric = config.check()?;
        let config = config.map_system(Arc::new);
        let edges = Edges::open(&config, fabric.switches())?;
        let wait = |error: Errno| SwitchError::Wait(error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(wait)?;
        for (host, socket) in edges.sockets().enumerate() {
            let data = epoll::EventData::new_u64(host as u64);
            epoll::add(&epoll, socket, data, epoll::EventFlags::IN).map_err(wait)?;
        }
        let switches = fabric.switches();
        let core = CoreConfig {
            fabric,
            faults: config.faults,
            moves: config.moves,
            seed: config.seed,
            run: config.run,
            frames: config.frames,
            nic_queue_bytes: config.nic_queue_bytes,
            sample_every: config.sample_every,
            system: config.system,
            encapsulation: edges.encapsulation(),
            mtu: config.mtu,
        }
        .build()?;
        Ok(Self {
            ready: Vec::new(),
            core,
            switches,
            edges,
            epoll,
            clock: config.clock,
            batch_window: config.batch_window,
            busy_poll: config.busy_poll,
            late: LatenessHistogram::new(),
            late_since: Time::ZERO,
            busy: false,
            turns: 0,
            capture_from: Time::ZERO,
        })
    }

    /// Returns the UDP port for each host, to which the host's endpoint sends; `None` if the host is attached by an
    /// interface.
    #[must_use]
    pub fn udp_ports(&self) -> Vec<Option<SocketAddr>> {
        self.edges.udp_ports()
    }

    /// Returns the clock to which all times refer.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// The fabric that it is.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        self.core.fabric()
    }

    /// Changes the circuits of a pod with an optical circuit switch, as of the time up to which frames have been handled. Ports go dark
    /// for the pod's dark time, and what is on them is lost: the rule is that of the simulator
    /// ([`Net::reconfigure`](rackweave_switch::Net::reconfigure)).
    ///
    /// # Errors
    /// If the fabric has no optical circuit switch, or these circuits are impossible; then nothing happens.
    pub fn reconfigure(&mut self, circuits: &Circuits) -> Result<Change, CircuitError> {
        let up = self.core.reconfigure(&mut (), circuits)?;
        Ok(Change { at: self.core.now(), up })
    }

    /// Measures links and lateness from this time on, or from now if it has passed.
    pub fn measure_from(&mut self, at: Time) {
        self.core.measure_from(at);
        self.late_since = at;
        self.late.clear();
    }

    /// Reads what hosts have sent, and sends what is due. Returns when the next turn is due if no socket becomes
    /// readable before.
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn turn(&mut self) -> Result<Option<Time>, SwitchError> {
        // The clock is read first, so that every frame stamped before `now` is already in its socket.
        let now = self.clock.now();
        self.poll_sockets()?;
        let horizon = self.edges.receive(&self.ready, self.clock, now, &mut self.core)?;
        self.core.run(horizon);
        self.edges.send(&mut self.core)?;
        let due = self.edges.due();
        self.busy = !self.ready.is_empty() || !due.is_empty();
        self.turns += u64::from(self.busy);
        if !due.is_empty() {
            let now = self.clock.now();
            for due in due.iter().filter(|due| **due >= self.late_since) {
                self.late.record(now.since(*due));
            }
        }
        let mut next = self.core.next_due();
        if self.edges.is_blocked() {
            next = Some(next.unwrap_or(Time::MAX).min(now + RETRY));
        }
        if horizon < now {
            next = Some(now);
        }
        Ok(next)
    }

    /// Determines which sockets are readable.
    fn poll_sockets(&mut self) -> Result<(), SwitchError> {
        self.ready.clear();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The kernel returns readable sockets in rotation, so the next call returns others.
        for _ in 0..=self.edges.len() / EVENTS {
            let mut room = [MaybeUninit::uninit(); EVENTS];
            let events = match epoll::wait(&self.epoll, &mut room, Some(&zero)) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(SwitchError::Wait(error.into())),
            };
            self.ready.extend(events.iter().map(|event| event.data.u64() as u32));
            if events.len() < EVENTS {
                break;
            }
        }
        Ok(())
    }

    /// Waits until a socket is readable, or until this time.
    ///
    /// # Errors
    /// If the system refuses to wait.
    pub fn wait(&self, until: Time) -> Result<(), SwitchError> {
        wait::until(self.clock, &[(self.epoll.as_fd(), false)], Some(until), Span::ZERO)
            .map_err(SwitchError::Wait)
    }

    /// Runs the switch until [`Control::stop`] is set.
    ///
    /// # Errors
    /// If a socket has failed.
    pub fn run(&mut self, control: &Control) -> Result<(), SwitchError> {
        // By default the kernel lets timers fire 50 us late to save power.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        while !control.stop.load(Ordering::Relaxed) {
            let began = self.clock.now();
            let next = self.turn()?;
            if control.take_wanted() {
                control.publish(self.report());
            }
            control.serve_changes(|circuits| self.reconfigure(circuits));
            if self.busy_poll {
                std::hint::spin_loop();
                continue;
            }
            if self.busy {
                // Frames that arrive during this sleep are handled together; they would be on their host's link for
                // some time anyway.
                self.sleep_until(began + self.batch_window);
            }
            let now = self.clock.now();
            let next = next.unwrap_or(Time::MAX).min(now + LONGEST_SLEEP);
            if next > now {
                self.wait(next)?;
            }
        }
        Ok(())
    }

    fn sleep_until(&self, at: Time) {
        let request = self.clock.timespec(at);
        // A signal may end the sleep early, which is harmless.
        let boot = rustix::thread::ClockId::Boottime;
        let _ = rustix::thread::clock_nanosleep_absolute(boot, &request);
    }

    /// Returns all statistics. This does not disturb frames in transit.
    pub fn report(&mut self) -> Report {
        let mut counters = self.edges.counters.with(self.core.counters());
        counters.kernel_drops = self.edges.kernel_drops();
        let mut program = BTreeMap::new();
        for switch in (0..self.switches).map(|number| self.core.program(number)) {
            // These drops count like those of copies; see `Net::send_copy`.
            counters.drops[DropReason::NoBuffer as usize] += switch.dropped();
            for (name, count) in switch.program().counters() {
                *program.entry(name).or_default() += count;
            }
        }
        let links = self.core.link_stats(&mut ());
        Report {
            at: self.clock.now(),
            since: self.core.since(),
            counters,
            program,
            turns: self.turns,
            links,
            queue_series: self.core.series().to_vec(),
            lateness: self.late.summary(),
            frames_inside: self.core.payloads().live(),
            circuits: self.core.circuits().to_vec(),
        }
    }
}

impl<S: System> AsFd for Switch<S> {
    /// The descriptor becomes readable when [`Switch::turn`] has something to read.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

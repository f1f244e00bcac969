//! Hosts that pause and crash; faults of links are the network's.

use rackweave_core::{DropReason, HostId, Transport as _};

use super::World;
use super::host::HostState;
use crate::config::FaultKind;
use crate::model::Model;

impl<M: Model> World<'_, M> {
    /// Applies changes of faults to hosts, which pause, crash or resume.
    pub(super) fn on_faults(&mut self) {
        for number in 0..self.hosts.all.len() as u32 {
            let host = HostId(number);
            let fault = match self.hosts.all[number as usize].node() {
                None => self.net.host_fault(host),
                // All ports of a node share its state; a crash takes precedence over a pause.
                Some((node, _)) => {
                    let hosts = self.hosts.nodes.hosts(node);
                    let faults = hosts.iter().filter_map(|host| self.net.host_fault(*host));
                    faults.reduce(|a, b| if a == FaultKind::Crash { a } else { b })
                }
            };
            self.change_host(host, fault);
        }
    }

    /// Pauses, crashes or resumes a host.
    fn change_host(&mut self, host: HostId, fault: Option<FaultKind>) {
        let number = host.0 as usize;
        let state = &mut self.hosts.all[number].state;
        match (fault, &mut *state) {
            (Some(FaultKind::Pause), HostState::Up) => {
                self.flush(host);
                self.hosts.all[number].state = HostState::Paused(Box::default());
                self.pause_app(host);
            }
            (Some(FaultKind::Crash), HostState::Up | HostState::Paused(_)) => self.crash(host),
            (None, HostState::Paused(ring)) => {
                let ring = std::mem::take(ring);
                *state = HostState::Up;
                self.resume(host);
                for packet in *ring {
                    self.handle_packet(host, &packet);
                }
                self.rouse_resumed(host);
                self.resume_app(host);
            }
            (None | Some(FaultKind::Pause), HostState::Down) => {
                let transports = (self.factory)(host);
                self.keep_counters(host);
                self.hosts.all[number].transports = transports.into();
                self.crash_node(host, false);
                if fault.is_some() {
                    self.hosts.all[number].state = HostState::Paused(Box::default());
                } else {
                    self.hosts.all[number].state = HostState::Up;
                    self.resume(host);
                }
                self.restart_app(host, fault.is_some());
            }
            _ => {}
        }
    }

    fn crash(&mut self, host: HostId) {
        self.flush(host);
        let state = &mut self.hosts.all[host.0 as usize];
        let before = std::mem::replace(&mut state.state, HostState::Down);
        if let HostState::Paused(ring) = before {
            self.net.count_drops(DropReason::HostDown, ring.len() as u64);
        }
        self.clear_tasks(host);
        self.crash_node(host, true);
        self.crash_app(host);
    }

    /// Keeps what the transports of a host have counted, before others replace them.
    fn keep_counters(&mut self, host: HostId) {
        let transports = &self.hosts.all[host.0 as usize].transports;
        self.crashed.resize_with(transports.len().max(self.crashed.len()), Default::default);
        for (sum, transport) in self.crashed.iter_mut().zip(transports.iter()) {
            *sum += transport.recovery_counters();
        }
    }

    fn crash_node(&mut self, host: HostId, down: bool) {
        let now = self.net.now();
        if let Some((node, _)) = self.hosts.all[host.0 as usize].node() {
            self.hosts.nodes.crash(node, now, down);
        }
        if down {
            self.crash_transfers(host);
        }
    }
}

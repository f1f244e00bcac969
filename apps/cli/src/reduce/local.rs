//! Jobs whose hosts are threads of one process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use miette::miette;
use rackweave_core::{Bytes, Rate};
use rackweave_linux::switch::{Control, Edge, Switch, SwitchConfig};
use rackweave_testbed::systems::{ProgramName, ProgramOptions};

use crate::switch::args::LinkArgs;
use crate::switch::{one_switch, with_program};

/// The rate of a link between threads; faster ones would be paced by the processor anyway.
const LINK: Rate = Rate::from_gbps(10);
pub(super) const LOOPBACK: [u8; 4] = [127, 0, 0, 1];

/// Passes Ctrl-C on to all hosts.
pub(super) fn watch(stop: &AtomicBool, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        if stop.load(Ordering::Relaxed) {
            over.store(true, Ordering::Relaxed);
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}

/// A switch in a thread of this process.
pub(super) struct Local {
    /// The ports of hosts 0, 1 and so on.
    pub(super) ports: Vec<SocketAddr>,
    pub(super) control: Arc<Control>,
    running: Option<JoinHandle<()>>,
}

impl Local {
    /// Starts a switch with this number of hosts' ports and of slots.
    pub(super) fn start(hosts: u32, slots: u32) -> miette::Result<Self> {
        let links = LinkArgs::of(LINK, Bytes(4 << 20));
        let edge = |_| Edge::Udp { bind: SocketAddr::from((LOOPBACK, 0)), host: None };
        let config = SwitchConfig::new(one_switch(hosts, &links), (0..hosts).map(edge).collect());
        let options = ProgramOptions { slots: Some(slots), ..ProgramOptions::default() };
        let config = with_program(config, ProgramName::Reduce, options, None)?;
        let mut switch = Switch::new(config).map_err(|error| miette!("{error}"))?;
        let ports = switch.udp_ports().into_iter().flatten().collect();
        let control = Arc::new(Control::default());
        let shared = Arc::clone(&control);
        // If it fails, the master goes on without it, and says so.
        let running = std::thread::spawn(move || drop(switch.run(&shared)));
        Ok(Self { ports, control, running: Some(running) })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
    }
}

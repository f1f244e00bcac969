//! Announcing a host's address to a switch before any packet is addressed to it.

use rackweave_wire::overlay;
use smallvec::SmallVec;

use super::{Endpoint, Peers};
use crate::driver::Platform;

impl<P: Platform> Endpoint<P> {
    /// Queues a HELLO that the host addresses to itself, from which the switch learns its address. Without it, a host that
    /// only responds would never be reachable.
    pub(super) fn announced(mut self) -> Self {
        if let Peers::Switch { port, .. } = self.config.peers {
            let host = self.config.host;
            let hello = |out: &mut Vec<u8>| overlay::encode_hello(host, host, 0, 0, out);
            self.driver.batch().push(port, 0, hello, SmallVec::new());
        }
        self
    }
}

//! Telling a switch where a host is, before anybody has a packet for it.

use rackweave_wire::overlay;
use smallvec::SmallVec;

use super::{Endpoint, Peers};

impl Endpoint {
    /// The same endpoint, with a greeting to itself for the switch, which learns its address from it and keeps
    /// it: a host that only answers would else never be found.
    pub(super) fn announced(mut self) -> Self {
        if let Peers::Switch { port, .. } = self.config.peers {
            let host = self.config.host;
            let hello = |out: &mut Vec<u8>| overlay::encode_hello(host, host, 0, 0, out);
            self.driver.batch().push(port, 0, hello, SmallVec::new());
        }
        self
    }
}

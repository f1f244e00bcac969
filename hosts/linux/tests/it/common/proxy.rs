//! A host between two others.

use std::net::{SocketAddr, UdpSocket};

use rackweave_core::Rng;

use super::local;

/// What a proxy does to datagrams, as probabilities.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    pub(crate) damage: f64,
    /// Of being sent again much later, as an attacker who has recorded it would.
    pub(crate) replay: f64,
}

/// A host between two others, which records what it forwards. Each of the two sees the proxy's address as the other's.
pub(crate) struct Proxy {
    /// The sockets that the first and the second host send to.
    sockets: [UdpSocket; 2],
    pub(crate) hosts: [SocketAddr; 2],
    pub(crate) recorded: Vec<(usize, Vec<u8>)>,
    pub(crate) faults: Faults,
    rng: Rng,
}

impl Proxy {
    pub(crate) fn new(hosts: [SocketAddr; 2], seed: u64) -> Self {
        let sockets = [0, 1].map(|_| {
            let socket = UdpSocket::bind(local()).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        });
        let rng = Rng::stream(seed, 0, 0, "proxy");
        Self { sockets, hosts, recorded: Vec::new(), faults: Faults::default(), rng }
    }

    /// The address at which a host reaches the other one.
    pub(crate) fn at(&self, host: usize) -> SocketAddr {
        self.sockets[host].local_addr().unwrap()
    }

    pub(crate) fn forward(&self, from: usize, bytes: &[u8]) {
        let _ = self.sockets[1 - from].send_to(bytes, self.hosts[1 - from]);
    }

    pub(crate) fn turn(&mut self) {
        self.pass(0);
        self.pass(1);
    }

    /// Forwards what a host has sent.
    pub(crate) fn pass(&mut self, from: usize) {
        let mut buffer = [0; 65_536];
        while let Ok((length, _)) = self.sockets[from].recv_from(&mut buffer) {
            let mut bytes = buffer[..length].to_vec();
            self.recorded.push((from, bytes.clone()));
            let (faults, rng) = (self.faults, &mut self.rng);
            if rng.chance(faults.loss) {
                continue;
            }
            let copies = 1 + u32::from(rng.chance(faults.duplication));
            if rng.chance(faults.damage) {
                let bit = rng.below(length as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let old =
                rng.chance(faults.replay).then(|| rng.below(self.recorded.len() as u64) as usize);
            for _ in 0..copies {
                self.forward(from, &bytes);
            }
            if let Some(old) = old {
                let (from, bytes) = &self.recorded[old];
                self.forward(*from, bytes);
            }
        }
    }
}

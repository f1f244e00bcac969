//! The network between the endpoints.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use rackweave_core::{Rng, Span, Time};
use rackweave_linux::sys::{ReceiveBatch, SendBatch, UdpSocket};
use rackweave_transport::testkit::Faults;
use rackweave_wire::overlay;

use crate::common::local;

/// A datagram in flight: its time of arrival, its order, its receiver, and its content.
type Flying = Reverse<(Time, u64, u32, u8, Vec<u8>)>;

/// A relay with one socket, through which all hosts send and receive.
pub(crate) struct Relay {
    pub(crate) socket: UdpSocket,
    received: ReceiveBatch,
    sending: SendBatch,
    pub(crate) hosts: Vec<SocketAddr>,
    pub(crate) down: Option<u32>,
    faults: Faults,
    damage: f64,
    rng: Rng,
    flying: BinaryHeap<Flying>,
    order: u64,
}

impl Relay {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            socket: UdpSocket::bind(local(), 4 << 20, false).unwrap(),
            received: ReceiveBatch::default(),
            sending: SendBatch::default(),
            hosts: Vec::new(),
            down: None,
            faults,
            damage: 0.01,
            rng: Rng::stream(seed, 0, 0, "relay"),
            flying: BinaryHeap::new(),
            order: 0,
        }
    }

    pub(crate) fn turn(&mut self, now: Time) {
        while self.socket.receive(&mut self.received).unwrap() > 0 {
            for datagram in self.received.datagrams() {
                let Ok(glance) = overlay::glance(datagram.bytes) else {
                    panic!("a sender's damage")
                };
                let (src, dst) = (glance.envelope.src.0, glance.envelope.dst.0);
                let rng = &mut self.rng;
                if [Some(src), Some(dst)].contains(&self.down) || rng.chance(self.faults.loss) {
                    continue;
                }
                let copies = if rng.chance(self.faults.duplication) { 2 } else { 1 };
                for _ in 0..copies {
                    let late = rng.chance(self.faults.reordering);
                    let late = if late { rng.below(self.faults.lateness.ticks() + 1) } else { 0 };
                    let mut bytes = datagram.bytes.to_vec();
                    if rng.chance(self.damage) {
                        let bit = rng.below(bytes.len() as u64 * 8) as usize;
                        bytes[bit / 8] ^= 1 << (bit % 8);
                    }
                    self.order += 1;
                    let class = datagram.traffic_class;
                    self.flying.push(Reverse((
                        now + Span::from_ticks(late),
                        self.order,
                        dst,
                        class,
                        bytes,
                    )));
                }
            }
        }
        while let Some(Reverse((at, ..))) = self.flying.peek()
            && *at <= now
        {
            let Some(Reverse((_, _, dst, class, bytes))) = self.flying.pop() else { break };
            let Some(to) = self.hosts.get(dst as usize) else { continue };
            let front = |out: &mut Vec<u8>| out.extend_from_slice(&bytes);
            self.sending.push(*to, class, front, Default::default());
        }
        self.socket.send(&mut self.sending).unwrap();
    }
}

//! The machine below a simulated endpoint or engine: its datagrams, clock and random numbers, and the work of sinks.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackweave_cast::orca::EnginePlatform;
use rackweave_cast::sink::SinkWork;
use rackweave_core::{Rng, Time};
use rackweave_linux::sys::{ReceiveBatch, SendBatch};
use rackweave_linux::{Clock, Platform};

/// A datagram with the address of its sender or receiver, and its traffic class.
pub(super) type Datagram = (SocketAddr, u8, Vec<u8>);

#[derive(Debug)]
pub(super) struct State {
    /// What the clock of the process reads.
    pub(super) now: Time,
    pub(super) realtime_ns: u64,
    pub(super) has_aes: bool,
    rng: Rng,
    /// What has arrived and was not received.
    pub(super) inbox: VecDeque<Datagram>,
    /// What was sent.
    pub(super) sent: Vec<Datagram>,
    /// The bytes that there is room for in the send buffer.
    pub(super) room: usize,
    /// Whether it receives what is sent to the multicast group.
    pub(super) in_group: bool,
    /// The work of sinks that was started and not taken yet.
    pub(super) started: Vec<SinkWork>,
}

/// What the world and the endpoint or engine of a process share.
#[derive(Clone, Debug)]
pub(super) struct Simulated(Arc<Mutex<State>>);

impl Simulated {
    pub(super) fn new(rng: Rng, realtime_ns: u64, has_aes: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            now: Time::ZERO,
            realtime_ns,
            has_aes,
            rng,
            inbox: VecDeque::new(),
            sent: Vec::new(),
            room: 0,
            in_group: false,
            started: Vec::new(),
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platform for Simulated {
    fn send(&mut self, batch: &mut SendBatch) -> io::Result<u64> {
        let mut state = self.state();
        // The last datagram that the kernel takes may exceed the buffer's size.
        while state.room > 0
            && let Some(datagram) = batch.pop()
        {
            state.room = state.room.saturating_sub(datagram.2.len());
            state.sent.push(datagram);
        }
        Ok(0)
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<()> {
        batch.fill(&mut self.state().inbox);
        Ok(())
    }

    fn now(&self, _: Clock) -> Time {
        self.state().now
    }

    fn random(&mut self) -> u128 {
        let mut state = self.state();
        let high = state.rng.next_u64();
        u128::from(high) << 64 | u128::from(state.rng.next_u64())
    }

    fn realtime_ns(&self) -> u64 {
        self.state().realtime_ns
    }

    fn has_aes(&self) -> bool {
        self.state().has_aes
    }
}

impl EnginePlatform for Simulated {
    fn set_member(&self, _: Ipv4Addr, _: Ipv4Addr, is_member: bool) -> io::Result<()> {
        self.state().in_group = is_member;
        Ok(())
    }

    fn start(&mut self, work: SinkWork) -> io::Result<()> {
        self.state().started.push(work);
        Ok(())
    }
}

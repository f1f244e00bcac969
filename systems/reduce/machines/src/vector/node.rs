//! The machines of a host with their vectors, for a driver: the simulator, tests, or sockets.
//!
//! A driver passes messages to [`VectorNode::receive`] and sends what [`VectorNode::poll`] returns, calls
//! [`VectorNode::handle_timeout`] when its time has come, and offers vectors when [`WorkerSide::poll_event`] says so.

use core::convert::Infallible;
use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{Ecn, HostId, Node, Packet, Time};
use rackweave_switch::system::SystemProgram;
use rackweave_wire::reduce::{self, Body};

use super::super::Failure;
use super::super::packet::{Header, packet};
use super::super::switch::{self, Program};
use super::layout::Layout;
use super::master::Master;
use super::values::Values;
use super::worker::{self, Event, Worker};

/// A worker and its vectors.
#[derive(Clone, Debug)]
pub struct WorkerSide {
    worker: Worker,
    /// The vectors of the present step and of the one before, by number modulo 2.
    vectors: [Option<Values>; 2],
    sums: Values,
    events: VecDeque<Event>,
    outcome: Option<Result<(), Failure>>,
    payload: Vec<u8>,
}

impl WorkerSide {
    /// A worker that joins now.
    #[must_use]
    pub fn new(config: worker::Config, now: Time) -> Self {
        Self {
            sums: Values::zeros(config.format, config.length as usize),
            worker: Worker::new(config, now),
            vectors: [None, None],
            events: VecDeque::new(),
            outcome: None,
            payload: Vec::new(),
        }
    }

    /// Returns the machine.
    #[must_use]
    pub const fn machine(&self) -> &Worker {
        &self.worker
    }

    /// Returns how the job has ended for the worker; `None` if it has not.
    #[must_use]
    pub const fn outcome(&self) -> Option<Result<(), Failure>> {
        self.outcome
    }

    /// The sums of the step that [`Event::Summed`] has named, until the next vector is offered.
    #[must_use]
    pub const fn sums(&self) -> &Values {
        &self.sums
    }

    /// Ends the worker.
    pub fn give_up(&mut self, failure: Failure) {
        self.worker.give_up(failure);
        self.events();
    }

    /// Confirms the end; see [`Worker::acknowledge`].
    pub fn acknowledge(&mut self, now: Time) {
        self.worker.acknowledge(now);
    }

    /// The worker is prepared; see [`Worker::release`].
    pub const fn release(&mut self) {
        self.worker.release();
    }

    /// The worker's result has its name; see [`Worker::name`].
    pub const fn name(&mut self, digest: u64) {
        self.worker.name(digest);
    }

    /// Ends the worker before the job has ended; see [`Worker::leave`].
    pub fn leave(&mut self) {
        self.worker.leave();
        self.events();
    }

    /// Passes the vector of a step that [`Event::Wanted`] has asked for. A worker that returns after a crash must offer the same vector for a
    /// step as it did before, as others may have its sums.
    ///
    /// # Panics
    /// If the vector is not of the configured length and format. In an open job, if it is empty.
    pub fn offer(&mut self, step: u32, vector: Values) {
        self.offer_as(step, vector, 0);
    }

    /// As [`WorkerSide::offer`]; `label` says what the application does with the vector, which must be the same at all workers of an open job.
    ///
    /// # Panics
    /// As [`WorkerSide::offer`].
    pub fn offer_as(&mut self, step: u32, vector: Values, label: u32) {
        let worker::Config { length, format, .. } = *self.worker.config();
        let (found, found_format) = (vector.len() as u64, vector.format());
        if length == 0 {
            assert!(found > 0, "a vector has at least one element");
            if (self.sums.len() as u64, self.sums.format()) != (found, found_format) {
                self.sums = Values::zeros(found_format, vector.len());
            }
        } else {
            let is_right = (found, found_format) == (length, format);
            assert!(is_right, "the vector is what the worker was configured for");
        }
        let Some(layout) = self.worker.layout_for(found, found_format) else { return };
        let exponents = vector.exponents(&layout);
        self.vectors[step as usize % 2] = Some(vector);
        self.worker.offer(step, layout, exponents, label);
    }

    /// Handles a message with its payload.
    pub fn handle(&mut self, now: Time, from: HostId, header: &reduce::Header, payload: &[u8]) {
        let stored = self.worker.handle(now, from, header, payload);
        if let Some(elements) = stored
            && let Some(layout) = self.worker.layout_of(elements.step)
        {
            self.sums.store(layout, elements.block, elements.exponent, payload);
        }
        self.events();
    }

    /// Called when the machine's timer is due.
    pub fn handle_timeout(&mut self, now: Time) {
        self.worker.handle_timeout(now);
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.worker.poll_event() {
            match event {
                Event::Complete => self.outcome = Some(Ok(())),
                Event::Failed(failure) => self.outcome = Some(Err(failure)),
                Event::Planned(_)
                | Event::Wanted { .. }
                | Event::Summed { .. }
                | Event::Committed => {}
            }
            // A step has two events, and the next step waits for the driver.
            self.events.push_back(event);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next message with its payload.
    pub fn poll(&mut self, now: Time) -> Option<(HostId, reduce::Header, &[u8])> {
        let message = self.worker.poll(now)?;
        self.payload.clear();
        if let Some(elements) = message.elements {
            if let Some(layout) = self.worker.layout_of(elements.step)
                && let Some(vector) = &self.vectors[elements.step as usize % 2]
            {
                vector.encode(layout, elements.block, elements.exponent, &mut self.payload);
            }
            // Everybody has had the sums of a vector that is kept no longer.
            self.payload.resize(message.header.payload_len() as usize, 0);
        }
        if matches!(message.header.body, Body::JoinVector { .. }) {
            let &worker::Config { length, format, .. } = self.worker.config();
            reduce::Shape { length, format }.encode(&mut self.payload);
        }
        if matches!(message.header.body, Body::VectorProgress { has_offer: true, .. }) {
            self.worker.present().encode(&mut self.payload);
        }
        Some((message.to, message.header, &self.payload))
    }
}

/// The program of a switch, run by a host where no switch adds up.
///
/// Its answers wait until the host's link is free. What has no room is dropped, as a queue of a switch would: workers ask again.
#[derive(Clone, Debug)]
pub struct Aggregator {
    program: Program,
    out: VecDeque<(HostId, reduce::Header, Arc<[u8]>)>,
    limit: usize,
    dropped: u64,
}

impl Aggregator {
    /// An aggregator at a host, with room for this number of answers.
    #[must_use]
    pub fn new(host: HostId, config: switch::Config, limit: usize) -> Self {
        Self { program: Program::at(host, config), out: VecDeque::new(), limit, dropped: 0 }
    }

    /// The limits of an aggregator that serves one job of this layout: its memory is the pool's.
    #[must_use]
    pub fn limits(layout: &Layout, secret: u64) -> switch::Config {
        let slots = 2 * u32::from(layout.pool) * u32::from(layout.elements);
        switch::Config::new(slots.next_multiple_of(8), secret)
    }

    /// Returns the program.
    #[must_use]
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the number of answers that had no room.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn handle(&mut self, now: Time, from: HostId, header: &reduce::Header, payload: &[u8]) {
        let _ = self.program.handle(now, from, *header, false, payload);
        let mut last: Option<Arc<[u8]>> = None;
        while let Some(answer) = self.program.poll_transmit(now) {
            if self.out.len() >= self.limit {
                self.dropped += 1;
                continue;
            }
            // All answers to a message have the same payload.
            let payload = last.get_or_insert_with(|| answer.payload.into());
            self.out.push_back((answer.dst, answer.header, Arc::clone(payload)));
        }
    }
}

/// What a host has of a job: a worker, the master, an aggregator, or several of them.
#[derive(Clone, Debug)]
pub struct VectorNode {
    host: HostId,
    worker: Option<WorkerSide>,
    master: Option<Master>,
    aggregator: Option<Aggregator>,
    payload: Vec<u8>,
    /// Which of the three is polled first, so that each gets its turn.
    turn: u8,
}

impl VectorNode {
    /// A host that has nothing of a job.
    #[must_use]
    pub const fn new(host: HostId) -> Self {
        let (worker, master, aggregator) = (None, None, None);
        Self { host, worker, master, aggregator, payload: Vec::new(), turn: 0 }
    }

    /// The same host with a worker.
    #[must_use]
    pub fn with_worker(self, worker: WorkerSide) -> Self {
        Self { worker: Some(worker), ..self }
    }

    /// The same host with a master.
    #[must_use]
    pub fn with_master(self, master: Master) -> Self {
        Self { master: Some(master), ..self }
    }

    /// The same host with an aggregator.
    #[must_use]
    pub fn with_aggregator(self, aggregator: Aggregator) -> Self {
        Self { aggregator: Some(aggregator), ..self }
    }

    /// Returns the worker.
    #[must_use]
    pub const fn worker(&self) -> Option<&WorkerSide> {
        self.worker.as_ref()
    }

    /// Returns the worker, to offer vectors.
    pub const fn worker_mut(&mut self) -> Option<&mut WorkerSide> {
        self.worker.as_mut()
    }

    /// Returns the master.
    #[must_use]
    pub const fn master(&self) -> Option<&Master> {
        self.master.as_ref()
    }

    /// Returns the master, to take its events.
    pub const fn master_mut(&mut self) -> Option<&mut Master> {
        self.master.as_mut()
    }

    /// Returns the aggregator.
    #[must_use]
    pub const fn aggregator(&self) -> Option<&Aggregator> {
        self.aggregator.as_ref()
    }

    /// Handles a message with its payload.
    pub fn receive(&mut self, now: Time, from: HostId, header: &reduce::Header, payload: &[u8]) {
        match header.body {
            Body::VectorState { .. }
            | Body::ChunkSum(_)
            | Body::Waiting { .. }
            | Body::Rejected { .. } => {
                if let Some(worker) = &mut self.worker {
                    worker.handle(now, from, header, payload);
                }
            }
            Body::Challenge { instance, .. } if self.is_of_worker(header, instance) => {
                if let Some(worker) = &mut self.worker {
                    worker.handle(now, from, header, payload);
                }
            }
            // A worker that ends says so to the master, which may have an aggregator at its host.
            Body::Close if from != self.host && self.master.is_some() => {
                if let Some(master) = &mut self.master {
                    master.handle(now, from, header, payload);
                }
            }
            // The room here is that of the master's own job.
            Body::OpenVector(_) if from != self.host && self.master.is_some() => {}
            Body::OpenVector(_) | Body::Chunk(_) | Body::Close => {
                if header.body == Body::Close
                    && let Some(worker) = &mut self.worker
                {
                    worker.handle(now, from, header, payload);
                }
                if let Some(aggregator) = &mut self.aggregator {
                    aggregator.handle(now, from, header, payload);
                }
            }
            _ => {
                if let Some(master) = &mut self.master {
                    master.handle(now, from, header, payload);
                }
            }
        }
    }

    /// Whether a challenge is for the worker here: the instance in it tells it from one for the master.
    fn is_of_worker(&self, header: &reduce::Header, instance: u32) -> bool {
        self.worker.as_ref().is_some_and(|side| {
            let config = side.worker.config();
            config.number == header.worker && config.instance == instance
        })
    }

    fn poll_one(&mut self, now: Time) -> Option<(HostId, reduce::Header)> {
        for offset in 0..3 {
            let turn = (self.turn + offset) % 3;
            self.payload.clear();
            let message = match turn {
                0 => self.worker.as_mut().and_then(|side| {
                    let (to, header, payload) = side.poll(now)?;
                    self.payload.extend_from_slice(payload);
                    Some((to, header))
                }),
                1 => self.master.as_mut().and_then(|master| {
                    let message = master.poll(now)?;
                    self.payload.extend_from_slice(&message.payload);
                    Some((message.to, message.header))
                }),
                _ => self.aggregator.as_mut().and_then(|aggregator| {
                    let (to, header, payload) = aggregator.out.pop_front()?;
                    self.payload.extend_from_slice(&payload);
                    Some((to, header))
                }),
            };
            if message.is_some() {
                self.turn = (turn + 1) % 3;
                return message;
            }
        }
        None
    }

    /// Returns the next message to another host or to a switch. Its payload is in [`VectorNode::payload`].
    pub fn poll(&mut self, now: Time) -> Option<(HostId, reduce::Header)> {
        loop {
            let (to, header) = self.poll_one(now)?;
            if to != self.host {
                return Some((to, header));
            }
            // Machines of one host need no network.
            let payload = core::mem::take(&mut self.payload);
            self.receive(now, self.host, &header, &payload);
        }
    }

    /// The payload of the message that was polled last.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Called when the time that [`Node::poll_timeout`] returned has come.
    pub fn expire(&mut self, now: Time) {
        if let Some(side) = &mut self.worker
            && side.worker.poll_timeout().is_some_and(|at| at <= now)
        {
            side.handle_timeout(now);
        }
        if let Some(master) = &mut self.master
            && master.poll_timeout().is_some_and(|at| at <= now)
        {
            master.handle_timeout(now);
        }
        if let Some(aggregator) = &mut self.aggregator
            && aggregator.program.poll_timeout().is_some_and(|at| at <= now)
        {
            aggregator.program.handle_timeout(now);
        }
    }

    /// Whether the job has ended for the host's worker and master, and nothing remains to be sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let worker = self.worker.as_ref();
        worker.is_none_or(|side| side.outcome.is_some() && side.worker.is_over())
            && self.master.as_ref().is_none_or(Master::is_over)
    }
}

impl Node for VectorNode {
    type Header = Header;
    type Event = Infallible;
    type Placement = ();

    fn handle_packet(&mut self, now: Time, _port: u8, packet: &Packet<Header>) {
        self.receive(now, packet.src, &packet.header.message, &[]);
    }

    fn handle_timeout(&mut self, now: Time) {
        self.expire(now);
    }

    fn poll_transmit(&mut self, now: Time, _port: u8) -> Option<Packet<Header>> {
        let (to, header) = self.poll(now)?;
        let packet = packet(self.host, to, header);
        Some(match header.body {
            Body::Chunk(_) | Body::ChunkSum(_) => packet.with_ecn(Ecn::Capable),
            // What is small and ends a wait overtakes elements.
            _ => packet.with_priority(7),
        })
    }

    fn poll_timeout(&self) -> Option<Time> {
        let worker = self.worker.as_ref().and_then(|side| side.worker.poll_timeout());
        let master = self.master.as_ref().and_then(Master::poll_timeout);
        let lease = self.aggregator.as_ref().and_then(|side| side.program.poll_timeout());
        [worker, master, lease].into_iter().flatten().min()
    }

    fn poll_event(&mut self) -> Option<Infallible> {
        None
    }
}

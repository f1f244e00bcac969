//! SWP2P's program of a switch: it reads the control messages that cross it, keeps a directory of chunks, and redirects
//! requests to clients that have them (`docs/protocols/swp2p.md#swp2p`).
//!
//! - A request ([`Body::Batch`]) that the directory sends to one holder is forwarded with another destination. Its source
//!   stays the requester, to which the holder answers. If several holders or the server share the batch, the program makes
//!   a packet for each run of chunks.
//! - A report or exit updates the directory and goes on to the server, past further switches on its path, which
//!   learn from it too. So a request climbs towards the server until a switch knows a holder. Each switch knows the
//!   holders whose reports cross it: that of a rack those of its rack, and the one next to the server all.
//! - A join goes on to the server and changes nothing here: it has the image's name, and only the server knows its number. What a
//!   client had before it crashed is forgotten with the reports of all its windows by which it starts again.
//! - A request that a holder returns ([`Body::Return`]) is redirected again.
//! - A request of Frisbee for a chunk ([`Body::session_chunks`]) is redirected likewise, if it is addressed to the server alone and not to
//!   its group. Thereby clients of a server that knows Frisbee only serve each other, and it sees what no client has.
//! - A message that is not addressed to the server is routed as it is. Thereby what one switch has redirected is final for the
//!   switches behind it, and only the server redirects what it has received.
//! - With a key, messages without its tag are dropped ([`View::is_authentic`]). What the program makes belongs to the session of the message that it
//!   is made from.
//!
//! # The processor
//! In SWP2P an access list lifts control packets to the switch's processor, an Atom with 1.74 GHz, which handles them one by
//! one. [`Config::per_second`] is its rate; packets wait in a bounded queue, and those for which there is no room are dropped.
//! Without a rate the program is part of the data plane, and packets do not wait.

use std::collections::VecDeque;

use rackweave_core::{
    DropReason, Header as AnyHeader, HostId, Packet, PayloadStore, Port, Span, Time, Verdict,
};
use rackweave_switch::system::{Outgoing, SystemProgram};
use rackweave_wire::frame;
use rackweave_wire::frisbee::{Body, Chunks, Header, REPORT_MAP_BYTES};

use super::directory::{self, Ask, Directory};
use super::p2p::CONTROL_PRIORITY;

/// How the switches of a fabric run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The server's host. Control messages are redirected only on their path to it.
    pub server: HostId,
    /// The directory of each switch.
    pub directory: directory::Config,
    /// Packets that the switch's processor handles in a second; 0 if the data plane handles them.
    pub per_second: u32,
    /// Maximum number of packets that wait for the processor.
    pub queue: u32,
}

impl Config {
    /// The program in the data plane, with the defaults of a directory.
    #[must_use]
    pub fn data_plane(server: HostId) -> Self {
        Self { server, directory: directory::Config::default(), per_second: 0, queue: 0 }
    }
}

/// What a switch reads of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The message, without its payload.
    pub message: Header,
    /// False if the hosts share a key and the message is not followed by its tag. Nobody acts on such a message.
    pub is_authentic: bool,
    /// The number of the session that the message's trailer names, if it has one.
    pub session: Option<u64>,
}

/// Counts of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Control packets that the program has handled.
    pub lifted: u64,
    /// Requests among them.
    pub requests: u64,
    /// Packets that waited for the processor.
    pub queued: u64,
    /// The longest queue.
    pub most_queued: u64,
    /// The longest wait, in microseconds.
    pub most_wait_us: u64,
    /// Packets for which the queue had no room.
    pub dropped: u64,
    /// Packets sent to a client in place of the server.
    pub redirected: u64,
    /// Batches that were divided among several holders.
    pub split: u64,
    /// Packets that were dropped because they have no tag of the key.
    pub not_authentic: u64,
}

/// A packet in the processor's queue.
#[derive(Clone, Debug)]
struct Lifted {
    arrived: Time,
    src: HostId,
    dst: HostId,
    header: Header,
    session: Option<u64>,
    payload: Vec<u8>,
}

/// A packet that the program sends.
#[derive(Clone, Debug)]
struct Made {
    src: HostId,
    dst: HostId,
    header: Header,
    session: Option<u64>,
    payload: Vec<u8>,
}

/// Maximum number of packets that one packet can lead to: more runs of a batch are left to the requester's retry.
const MOST_MADE: usize = 4096;

/// The program of one switch. See the [module](self).
#[derive(Clone, Debug)]
pub struct Program {
    config: Config,
    directory: Directory,
    queue: VecDeque<Lifted>,
    /// When the processor has handled the first packet of the queue.
    done: Option<Time>,
    made: VecDeque<Made>,
    /// The packet that was returned last by `poll_transmit`, which refers to its payload.
    current: Vec<u8>,
    /// Buffers of payloads that were sent.
    spare: Vec<Vec<u8>>,
    counters: Counters,
}

impl Program {
    /// Creates the program of a switch.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self {
            config,
            directory: Directory::new(config.directory),
            queue: VecDeque::new(),
            done: None,
            made: VecDeque::new(),
            current: Vec::new(),
            spare: Vec::new(),
            counters: Counters {
                lifted: 0,
                requests: 0,
                queued: 0,
                most_queued: 0,
                most_wait_us: 0,
                dropped: 0,
                redirected: 0,
                split: 0,
                not_authentic: 0,
            },
        }
    }

    /// Returns what has been counted.
    #[must_use]
    pub const fn counts(&self) -> &Counters {
        &self.counters
    }

    /// Returns the directory.
    #[must_use]
    pub const fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Handles a packet on its way to the server, and returns its new destination; `None` if it ends here, because
    /// packets were made from it.
    fn handle(
        &mut self,
        now: Time,
        src: HostId,
        header: &Header,
        session: Option<u64>,
        payload: &[u8],
    ) -> Option<HostId> {
        self.counters.lifted += 1;
        let server = self.config.server;
        let asked = match header.body {
            Body::Batch(chunks) => Some(chunks),
            body => body.session_chunks(),
        };
        match header.body {
            _ if let Some(chunks) = asked => {
                self.counters.requests += 1;
                let (made, redirected) = (self.made.len(), &mut self.counters.redirected);
                let mut whole = None;
                let list = &mut self.made;
                self.directory.choose(now, ask(src, chunks), |run| {
                    let to = run.to.unwrap_or(server);
                    if run.count == u32::from(chunks.count) {
                        whole = Some(to);
                    } else if list.len() < MOST_MADE {
                        list.push_back(batch(src, to, chunks, run, session));
                    }
                    *redirected += u64::from(run.to.is_some());
                });
                self.counters.split += u64::from(self.made.len() > made);
                // An empty request is the server's to judge.
                whole.or_else(|| (self.made.len() == made).then_some(server))
            }
            Body::Return { chunks, requester } => {
                self.returned(now, src, chunks, requester, session)
            }
            Body::Report { image, window } => {
                self.directory.report(now, image, src, window, payload);
                Some(server)
            }
            Body::Damaged { image, chunk, holder } => {
                if let Some(holder) = frame::host_at(holder) {
                    self.directory.accuse(now, image, src, holder, chunk);
                }
                Some(server)
            }
            Body::Exit { image, .. } => {
                self.directory.leave(image, src);
                Some(server)
            }
            _ => Some(server),
        }
    }

    /// Redirects again what a holder has returned, if it was redirected here and there is another holder. The rest goes on as a return:
    /// a switch further on the path would take a request for the requester's first one, and might choose the same holder.
    fn returned(
        &mut self,
        now: Time,
        holder: HostId,
        chunks: Chunks,
        requester: [u8; 4],
        session: Option<u64>,
    ) -> Option<HostId> {
        let server = self.config.server;
        let Some(from) = frame::host_at(requester) else { return Some(server) };
        let (made, before) = (self.made.len(), self.counters.redirected);
        let (list, redirected) = (&mut self.made, &mut self.counters.redirected);
        self.directory.returned(now, holder, ask(from, chunks), |run| {
            if list.len() < MOST_MADE {
                list.push_back(match run.to {
                    Some(to) => batch(from, to, chunks, run, session),
                    None => {
                        let (first, count) = (run.first, run.count as u16);
                        let chunks = Chunks { first, count, ..chunks };
                        let header = Header::new(holder, Body::Return { chunks, requester });
                        Made { src: holder, dst: server, header, session, payload: Vec::new() }
                    }
                });
                *redirected += u64::from(run.to.is_some());
            }
        });
        if self.counters.redirected > before {
            return None;
        }
        // The message itself says the same as the ones made from it.
        self.made.truncate(made);
        Some(server)
    }

    fn service(&self) -> Span {
        Span::from_secs(1) / u64::from(self.config.per_second.max(1))
    }

    fn lift(&mut self, now: Time, lifted: Lifted) {
        if self.queue.is_empty() {
            self.done = Some(now + self.service());
        } else {
            self.counters.queued += 1;
        }
        self.queue.push_back(lifted);
        self.counters.most_queued = self.counters.most_queued.max(self.queue.len() as u64);
    }
}

impl SystemProgram for Program {
    type View = View;
    type Made = Header;

    fn handle_packet<H: AnyHeader, S: PayloadStore<H>>(
        &mut self,
        now: Time,
        _port: Port,
        view: View,
        packet: &mut Packet<H>,
        payloads: &mut S,
    ) -> Verdict {
        let View { message, is_authentic, session } = view;
        if !is_authentic {
            self.counters.not_authentic += 1;
            return Verdict::Drop(DropReason::Program);
        }
        // What comes from the server, what was redirected before, and what is Frisbee's passes.
        let is_lifted = packet.dst == self.config.server
            && packet.src != self.config.server
            && message.is_from(packet.src)
            && (message.body.session_chunks().is_some()
                || matches!(
                    message.body,
                    Body::Enter { .. }
                        | Body::Batch(_)
                        | Body::Return { .. }
                        | Body::Report { .. }
                        | Body::Damaged { .. }
                        | Body::Exit { .. }
                ));
        if !is_lifted {
            return Verdict::Route;
        }
        let bytes = payloads.read(packet);
        // In a frame, a tag may follow the payload.
        let payload = bytes.get(..message.payload_len() as usize).unwrap_or_default();
        if matches!(message.body, Body::Report { .. }) && payload.len() < REPORT_MAP_BYTES as usize
        {
            return Verdict::Drop(DropReason::Program);
        }
        if self.config.per_second > 0 {
            if self.queue.len() >= self.config.queue as usize {
                self.counters.dropped += 1;
                return Verdict::Drop(DropReason::Program);
            }
            let mut copy = self.spare.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(payload);
            let Packet { src, dst, .. } = *packet;
            self.lift(
                now,
                Lifted { arrived: now, src, dst, header: message, session, payload: copy },
            );
            return Verdict::Consume;
        }
        match self.handle(now, packet.src, &message, session, payload) {
            Some(to) => {
                packet.dst = to;
                Verdict::Route
            }
            None => Verdict::Consume,
        }
    }

    fn handle_timeout(&mut self, now: Time) {
        while let Some(done) = self.done.filter(|done| *done <= now)
            && let Some(lifted) = self.queue.pop_front()
        {
            let waited = done.since(lifted.arrived).as_us();
            self.counters.most_wait_us = self.counters.most_wait_us.max(waited);
            self.done = (!self.queue.is_empty()).then(|| done + self.service());
            let Lifted { src, header, session, payload, .. } = lifted;
            debug_assert_eq!(lifted.dst, self.config.server);
            if let Some(dst) = self.handle(now, src, &header, session, &payload) {
                self.made.push_back(Made { src, dst, header, session, payload });
            } else if self.spare.len() < 64 {
                self.spare.push(payload);
            }
        }
    }

    fn poll_transmit(&mut self, _now: Time) -> Option<Outgoing<'_, Header>> {
        let Made { src, dst, header, session, mut payload } = self.made.pop_front()?;
        // The system seals the message with it.
        payload.extend_from_slice(session.map(u64::to_le_bytes).as_ref().map_or(&[], |it| it));
        let before = std::mem::replace(&mut self.current, payload);
        if self.spare.len() < 64 {
            self.spare.push(before);
        }
        let made = Outgoing::new(src, dst, header).with_payload(&self.current);
        Some(Outgoing { priority: CONTROL_PRIORITY, ..made })
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.done
    }

    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Counters { lifted, requests, queued, dropped, redirected, split, .. } = self.counters;
        let chunks = self.directory.counters();
        [
            ("lifted", lifted),
            ("requests", requests),
            ("queued", queued),
            ("dropped", dropped),
            ("redirected", redirected),
            ("split", split),
            ("not_authentic", self.counters.not_authentic),
            ("chunks_to_holders", chunks.to_holders),
            ("chunks_to_pending", chunks.to_pending),
            ("chunks_to_server", chunks.to_server),
            ("chunks_returned", chunks.returned),
            ("not_recorded", chunks.refused),
        ]
        .into_iter()
    }
}

fn ask(from: HostId, chunks: Chunks) -> Ask {
    let Chunks { image, first, count, tries } = chunks;
    let tries = u8::try_from(tries).unwrap_or(u8::MAX);
    Ask { image, from, first, count: u32::from(count), tries }
}

/// The request of a run of chunks, as if its requester had sent it to this destination.
fn batch(
    requester: HostId,
    to: HostId,
    chunks: Chunks,
    run: directory::Run,
    session: Option<u64>,
) -> Made {
    let (first, count) = (run.first, run.count as u16);
    let header = Header::new(requester, Body::Batch(Chunks { first, count, ..chunks }));
    Made { src: requester, dst: to, header, session, payload: Vec::new() }
}

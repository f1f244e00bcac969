//! Packets on their way out: grouped by where they go, so that runs leave as trains.

use std::net::SocketAddr;

use bytes::Bytes;
use rackweave_linux::sys::SendBatch;
use rackweave_wire::orca::{Check, Data, Parity, Session};

use crate::source::Payload;

/// Pieces that are remembered for their copies to other receivers.
const MEMO: usize = 256;

/// A piece's bytes and check, computed once for all its copies.
#[derive(Default)]
pub(super) struct Memo {
    slots: Vec<Option<(Key, Payload, Check)>>,
}

type Key = (Session, u64, u16, bool, bool, Option<Parity>);

fn key(data: &Data) -> Key {
    (data.session, data.offset, data.len, data.repair, data.end, data.parity)
}

fn slot(data: &Data) -> usize {
    let index = data.parity.map_or(0, |parity| u64::from(parity.index));
    (data.offset / u64::from(data.len.max(1)) + index) as usize % MEMO
}

impl Memo {
    pub(super) fn get(&self, data: &Data) -> Option<(Payload, Check)> {
        match self.slots.get(slot(data)) {
            Some(Some((known, payload, check))) if *known == key(data) => {
                Some((payload.clone(), *check))
            }
            _ => None,
        }
    }

    pub(super) fn put(&mut self, data: &Data, payload: &Payload, check: Check) {
        if self.slots.is_empty() {
            self.slots.resize(MEMO, None);
        }
        self.slots[slot(data)] = Some((key(data), payload.clone(), check));
    }
}

/// Datagrams that wait to be handed to the kernel.
#[derive(Default)]
pub(super) struct Staged {
    ways: Vec<Way>,
    latest: usize,
    count: usize,
}

struct Way {
    to: SocketAddr,
    fronts: Vec<u8>,
    datagrams: Vec<(u32, Payload)>,
}

impl Staged {
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Adds a datagram: `write` appends its front, `payload` follows.
    pub(super) fn push(
        &mut self,
        to: SocketAddr,
        write: impl FnOnce(&mut Vec<u8>),
        payload: Payload,
    ) {
        if self.ways.get(self.latest).is_none_or(|way| way.to != to) {
            self.latest = match self.ways.iter().position(|way| way.to == to) {
                Some(found) => found,
                None => {
                    self.ways.push(Way { to, fronts: Vec::new(), datagrams: Vec::new() });
                    self.ways.len() - 1
                }
            };
        }
        let way = &mut self.ways[self.latest];
        let before = way.fronts.len();
        write(&mut way.fronts);
        way.datagrams.push(((way.fronts.len() - before) as u32, payload));
        self.count += 1;
    }

    /// Moves everything to the kernel's batch.
    pub(super) fn unload(&mut self, batch: &mut SendBatch) {
        for way in &mut self.ways {
            let mut at = 0;
            for (len, payload) in way.datagrams.drain(..) {
                let front = &way.fronts[at..at + len as usize];
                at += len as usize;
                batch.push(way.to, 0, |out| out.extend_from_slice(front), payload);
            }
            way.fronts.clear();
        }
        // Addresses that were used once must not stay for ever.
        if self.ways.len() > 256 {
            self.ways.clear();
            self.latest = 0;
        }
        self.count = 0;
    }
}

/// A payload that this host hands on, and how often.
pub(super) struct Relayed {
    pub(super) bytes: Bytes,
    pub(super) check: Check,
    pub(super) left: u16,
}

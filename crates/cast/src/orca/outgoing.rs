//! Outgoing payloads: those that go to several receivers, and those that this host relays.

use bytes::Bytes;
use rackweave_wire::orca::{Check, Data, Parity, Session};

use crate::source::Payload;

/// The number of payloads that are cached for copies to other receivers.
const MEMO: usize = 256;

/// A cache of the payloads of data packets and their checks, which are computed once for all copies of a packet.
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
    /// Returns the payload of a packet and its check. A sealed one with a counter below `oldest` is too old: a receiver could
    /// take it for a replay.
    pub(super) fn get(&self, data: &Data, oldest: u64) -> Option<(Payload, Check)> {
        match self.slots.get(slot(data)) {
            Some(Some((known, payload, check))) if *known == key(data) => {
                let old = matches!(check, Check::Sealed { counter, .. } if *counter < oldest);
                (!old).then(|| (payload.clone(), *check))
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

/// A payload that this host relays.
pub(super) struct Relayed {
    pub(super) bytes: Bytes,
    pub(super) check: Check,
    /// How many packets with this payload have yet to be polled.
    pub(super) left: u16,
}

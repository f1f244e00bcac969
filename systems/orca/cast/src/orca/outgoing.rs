//! Outgoing payloads: to several receivers, and relayed by this host.

use bytes::Bytes;
use rackweave_core::HostId;
use rackweave_wire::orca::{Check, Data, Label, Labelled, Parity, Session, TO_GROUP};

use crate::source::Payload;

/// The number of payloads that are cached for copies to other receivers.
const MEMO: usize = 256;

/// A cache of the payloads of data packets and their checks, which are computed once for all copies of a packet.
///
/// A receiver opens each counter once. A retransmission that is byte for byte the packet that a receiver has opened before
/// would be refused as a replay, although the sender needs the report that a repeated packet triggers (a probe). A sealed payload
/// is therefore given only once to each destination, and copies to the group, to relays and to single hosts do not share one,
/// because a host may have received it from the group or from a relay.
#[derive(Default)]
pub(super) struct Memo {
    slots: Vec<Option<Slot>>,
}

#[derive(Clone)]
struct Slot {
    key: Key,
    payload: Payload,
    check: Check,
    /// The destinations of a sealed payload so far, sorted.
    given: Vec<(HostId, Label)>,
}

type Key = (Session, u64, u16, bool, bool, Option<Parity>, Labelled, bool);

fn key(data: &Data, to: HostId) -> Key {
    let Data { session, offset, len, repair, end, parity, labelled, .. } = *data;
    (session, offset, len, repair, end, parity, labelled, to == TO_GROUP)
}

fn slot(data: &Data) -> usize {
    let index = data.parity.map_or(0, |parity| u64::from(parity.index));
    (data.offset / u64::from(data.len.max(1)) + index) as usize % MEMO
}

impl Memo {
    /// Returns the payload of a packet to a destination and its check. A sealed one with a counter below `oldest` is too old: a
    /// receiver could take it for a replay.
    pub(super) fn get(&mut self, data: &Data, to: HostId, oldest: u64) -> Option<(Payload, Check)> {
        let known = self.slots.get_mut(slot(data))?.as_mut()?;
        if known.key != key(data, to) {
            return None;
        }
        if let Check::Sealed { counter, .. } = known.check {
            let to = (to, data.label);
            let Err(at) = known.given.binary_search(&to) else { return None };
            if counter < oldest {
                return None;
            }
            known.given.insert(at, to);
        }
        Some((known.payload.clone(), known.check))
    }

    /// Caches the payload of a packet that goes to a destination now.
    pub(super) fn put(&mut self, data: &Data, to: HostId, payload: &Payload, check: Check) {
        if self.slots.is_empty() {
            self.slots.resize(MEMO, None);
        }
        self.slots[slot(data)] = Some(Slot {
            key: key(data, to),
            payload: payload.clone(),
            check,
            given: vec![(to, data.label)],
        });
    }
}

/// A payload that this host relays.
pub(super) struct Relayed {
    pub(super) bytes: Bytes,
    pub(super) check: Check,
    /// How many packets with this payload have yet to be polled.
    pub(super) left: u16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_payload_is_given_once_to_each_destination() {
        let data = Data {
            labelled: Labelled::Host,
            label: Label(0),
            session: Session(1),
            offset: 2800,
            len: 100,
            repair: true,
            end: true,
            parity: None,
        };
        let sealed = Check::Sealed { counter: 5, tag: [0; 16] };
        let mut memo = Memo::default();
        memo.put(&data, HostId(2), &Payload::new(), sealed);
        assert!(memo.get(&data, HostId(1), 0).is_some());
        assert!(memo.get(&data, HostId(3), 6).is_none(), "it is too old");
        for repeated in [1, 2] {
            assert!(
                memo.get(&data, HostId(repeated), 0).is_none(),
                "host {repeated} has opened it"
            );
        }
        // A host may have the group's copy or a relay's.
        assert!(memo.get(&data, TO_GROUP, 0).is_none());
        let relayed = Data { labelled: Labelled::Pilot, ..data };
        assert!(memo.get(&relayed, HostId(4), 0).is_none());
        assert!(memo.get(&data, HostId(3), 0).is_some());
    }
}

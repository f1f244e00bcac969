//! The messages that a host has under way.

use rackweave_core::{HostId, MessageId};

use super::channel::ChannelId;

/// Names a message among those of the host that started it, for as long as the host exists.
///
/// It is a serial number with, in the low bits, the place of the message in memory: keys of one host increase,
/// and lead to the message without a search. [`MessageKey::wire_id`] makes the transport's id of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct MessageKey(pub u64);

/// Bits of a key that are the place.
const SLOT_BITS: u32 = 28;

impl MessageKey {
    /// The id of the message for the transport, where the application chooses it: the source's own number. A
    /// driver may choose another one, as long as ids of one client increase.
    #[must_use]
    pub const fn wire_id(self) -> MessageId {
        MessageId::request(self.0)
    }

    const fn serial(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    const fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    serial: u64,
    pub(super) stream: u16,
    pub(super) dst: HostId,
    pub(super) bytes: u64,
    /// Its id in the transport; `None`: not submitted, or part of a stream of bytes.
    pub(super) id: Option<MessageId>,
    /// The channel that carries it, and its sequence number there.
    pub(super) channel: Option<(ChannelId, u64)>,
}

/// The messages of one host that have not ended.
#[derive(Debug, Default)]
pub(super) struct Messages {
    slots: Vec<Option<Message>>,
    free: Vec<u32>,
    next_serial: u64,
}

impl Messages {
    pub(super) fn insert(&mut self, stream: u16, dst: HostId, bytes: u64) -> MessageKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        assert!(slot < 1 << SLOT_BITS, "fewer than 2^{SLOT_BITS} messages under way");
        let serial = self.next_serial;
        self.next_serial += 1;
        let message = Message { serial, stream, dst, bytes, id: None, channel: None };
        self.slots[slot as usize] = Some(message);
        MessageKey(serial << SLOT_BITS | u64::from(slot))
    }

    pub(super) fn get(&self, key: MessageKey) -> Option<&Message> {
        let message = self.slots.get(key.slot())?.as_ref();
        message.filter(|message| message.serial == key.serial())
    }

    pub(super) fn get_mut(&mut self, key: MessageKey) -> Option<&mut Message> {
        let message = self.slots.get_mut(key.slot())?.as_mut();
        message.filter(|message| message.serial == key.serial())
    }

    pub(super) fn remove(&mut self, key: MessageKey) -> Option<Message> {
        let message = *self.get(key)?;
        self.slots[key.slot()] = None;
        self.free.push(key.slot() as u32);
        Some(message)
    }

    /// The keys of all messages, by place.
    pub(super) fn keys(&self) -> Vec<MessageKey> {
        let slots = self.slots.iter().enumerate();
        let key = |(slot, message): (usize, &Option<Message>)| {
            let serial = message.as_ref()?.serial;
            Some(MessageKey(serial << SLOT_BITS | slot as u64))
        };
        slots.filter_map(key).collect()
    }
}

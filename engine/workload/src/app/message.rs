//! The messages of a host that are in progress.

use rackweave_core::{HostId, MessageId, Time};

use super::MessageStart;
use super::channel::ChannelId;

/// Identifies a message among those of the host that started it, for as long as the host exists.
///
/// It consists of a serial number and, in the low bits, the slot of the message in memory: the keys of one host
/// increase, and a message is found without a search. [`WireIds`] derives the transport's id from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct MessageKey(pub u64);

/// Number of bits of a key that hold the slot.
const SLOT_BITS: u32 = 28;

impl MessageKey {
    /// The key of the message with this serial number, in this slot.
    #[must_use]
    pub const fn new(serial: u64, slot: u64) -> Self {
        Self(serial << SLOT_BITS | slot)
    }

    /// The serial number, counted from 0 for each host. Messages without channels are numbered without gaps.
    #[must_use]
    pub const fn serial(self) -> u64 {
        self.0 >> SLOT_BITS
    }

    /// The slot of the message. It is unique among the messages of the host that are in progress, and slots are
    /// numbered from 0 without gaps.
    #[must_use]
    pub const fn slot(self) -> usize {
        (self.0 & ((1 << SLOT_BITS) - 1)) as usize
    }
}

/// The ids of messages in the transports if one driver chooses those of all hosts: the key of the message and
/// the number of the host that started it.
///
/// Such an id identifies one message of the whole run, which is found without a search. The ids of one host
/// increase, as transports require, and do not depend on other hosts.
#[derive(Clone, Copy, Debug)]
pub struct WireIds {
    host_bits: u32,
    slot_bits: u32,
}

/// Number of bits of a [`MessageId`] besides the direction.
const NUMBER_BITS: u32 = 63;

impl WireIds {
    /// Creates the scheme for a run with this number of hosts.
    #[must_use]
    pub fn new(hosts: u32) -> Self {
        let host_bits = u32::BITS - hosts.saturating_sub(1).leading_zeros();
        // Serial numbers and slots share the other bits: with 16,384 hosts, each may start 2^25 messages.
        Self { host_bits, slot_bits: SLOT_BITS.min((NUMBER_BITS - host_bits) / 2) }
    }

    /// The id of a message.
    ///
    /// # Panics
    ///
    /// If the host has started more messages, or has more in progress, than ids can express.
    #[must_use]
    #[inline]
    pub fn id(self, host: HostId, key: MessageKey) -> MessageId {
        let (serial, slot) = (key.serial(), key.slot() as u64);
        let above = self.host_bits + self.slot_bits;
        assert!(slot >> self.slot_bits == 0, "too many messages of {host} under way");
        assert!(serial >> (NUMBER_BITS - above) == 0, "{host} has started too many messages");
        MessageId::request(serial << above | u64::from(host.0) << self.slot_bits | slot)
    }

    /// The host that started the message, or the exchange that it belongs to; and the message's key there.
    #[must_use]
    #[inline]
    pub const fn key(self, id: MessageId) -> (HostId, MessageKey) {
        let number = id.number();
        let host = (number >> self.slot_bits) & ((1 << self.host_bits) - 1);
        let slot = number & ((1 << self.slot_bits) - 1);
        let serial = number >> (self.host_bits + self.slot_bits);
        (HostId(host as u32), MessageKey::new(serial, slot))
    }
}

/// The ids of messages in the transports, for a driver whose receivers know nothing of the senders: the message's serial number,
/// the host that started it, and the stream of messages that it belongs to.
///
/// In contrast to [`WireIds`] an id does not depend on when earlier messages ended, and a receiver learns from it what the
/// simulator would otherwise look up at the sender. The ids of one host increase, as transports require.
#[derive(Clone, Copy, Debug)]
pub struct SerialIds {
    host_bits: u32,
    stream_bits: u32,
    number_bits: u32,
}

impl SerialIds {
    /// Creates the scheme for a run with this number of hosts and of streams of messages.
    #[must_use]
    pub fn new(hosts: u32, streams: u16) -> Self {
        let bits = |count: u32| u32::BITS - count.saturating_sub(1).leading_zeros();
        Self { host_bits: bits(hosts), stream_bits: bits(u32::from(streams)), number_bits: 0 }
    }

    /// Ids also contain the numbers of messages in collectives, which are below `count`.
    #[must_use]
    pub const fn with_numbers(self, count: u64) -> Self {
        Self { number_bits: u64::BITS - count.saturating_sub(1).leading_zeros(), ..self }
    }

    /// Whether ids have room for serial numbers below `count`.
    #[must_use]
    pub const fn have_room(self, count: u64) -> bool {
        let above = self.host_bits + self.stream_bits + self.number_bits;
        above < NUMBER_BITS && count.saturating_sub(1) >> (NUMBER_BITS - above) == 0
    }

    /// Whether ids contain numbers.
    #[must_use]
    pub const fn have_numbers(self) -> bool {
        self.number_bits > 0
    }

    /// The id of a message.
    ///
    /// # Panics
    ///
    /// If the host has started more messages than ids can express.
    #[must_use]
    #[inline]
    pub fn id(self, host: HostId, stream: u16, key: MessageKey, number: u64) -> MessageId {
        let above = self.host_bits + self.stream_bits + self.number_bits;
        assert!(
            above < NUMBER_BITS && key.serial() >> (NUMBER_BITS - above) == 0,
            "{host} has started too many messages"
        );
        let low = u64::from(host.0) << self.stream_bits | u64::from(stream);
        MessageId::request(
            (key.serial() << self.number_bits | number) << (above - self.number_bits) | low,
        )
    }

    /// The host that started a message, the stream that it belongs to, and its serial number at that host.
    #[must_use]
    #[inline]
    pub const fn origin(self, id: MessageId) -> (HostId, u16, u64) {
        let number = id.number();
        let stream = number & ((1 << self.stream_bits) - 1);
        let host = (number >> self.stream_bits) & ((1 << self.host_bits) - 1);
        let above = self.host_bits + self.stream_bits + self.number_bits;
        (HostId(host as u32), stream as u16, number >> above)
    }

    /// The number of a message in its collective; 0 if ids have none.
    #[must_use]
    #[inline]
    pub const fn number(self, id: MessageId) -> u64 {
        (id.number() >> (self.host_bits + self.stream_bits)) & ((1 << self.number_bits) - 1)
    }
}

/// A message that is in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    serial: u64,
    pub(super) stream: u16,
    pub(super) dst: HostId,
    pub(super) bytes: u64,
    /// When it started; see [`MessageStart::at`].
    pub(super) start: Time,
    /// The message's id in the transport; `None` if it was not submitted, or is carried by a stream of bytes.
    pub(super) id: Option<MessageId>,
    /// The channel that carries it and its sequence number there; `None` without channels.
    pub(super) channel: Option<(ChannelId, u64)>,
    /// Its number in a collective.
    pub(super) number: u64,
}

/// The messages of one host that have not ended.
#[derive(Debug, Default)]
pub(super) struct Messages {
    slots: Vec<Option<Message>>,
    free: Vec<u32>,
    next_serial: u64,
}

impl Messages {
    pub(super) fn insert(&mut self, start: &MessageStart) -> MessageKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        assert!(slot < 1 << SLOT_BITS, "fewer than 2^{SLOT_BITS} messages under way");
        let serial = self.next_serial();
        let &MessageStart { stream, dst, bytes, at: start, .. } = start;
        let (id, channel, number) = (None, None, 0);
        let message = Message { serial, stream, dst, bytes, start, id, channel, number };
        self.slots[slot as usize] = Some(message);
        MessageKey::new(serial, u64::from(slot))
    }

    const fn next_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial - 1
    }

    /// A key that no message has.
    pub(super) const fn unused_key(&mut self) -> MessageKey {
        MessageKey::new(self.next_serial(), 0)
    }

    #[inline]
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

    /// The keys of all messages, in the order of their slots.
    pub(super) fn keys(&self) -> Vec<MessageKey> {
        let slots = self.slots.iter().enumerate();
        let key = |(slot, message): (usize, &Option<Message>)| {
            Some(MessageKey::new(message.as_ref()?.serial, slot as u64))
        };
        slots.filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_ids_name_host_and_message() {
        let start =
            |src, bytes| MessageStart { stream: 0, src, dst: HostId(1), bytes, at: Time::ZERO };
        let ids = |hosts| (WireIds::new(hosts), HostId(hosts - 1));
        for (ids, last) in [1, 2, 3, 432, 16_384, 1 << 20, u32::MAX].map(ids) {
            let mut messages = [Messages::default(), Messages::default()];
            let mut before = [None; 2];
            for n in 0..1000 {
                for (host, which) in [(HostId(0), 0), (last, 1)] {
                    let messages = &mut messages[which];
                    let key = if n % 5 == 4 {
                        messages.unused_key()
                    } else {
                        messages.insert(&start(host, n))
                    };
                    let id = ids.id(host, key);
                    assert!(
                        !id.is_response() && before[which] < Some(id),
                        "ids of a host increase"
                    );
                    before[which] = Some(id);
                    assert_eq!((ids.key(id), ids.key(id.response())), ((host, key), (host, key)));
                    assert_eq!(
                        messages.get(key).map(|message| message.bytes),
                        (n % 5 != 4).then_some(n)
                    );
                    if n % 3 == 0 {
                        messages.remove(key);
                    }
                }
            }
        }
    }

    #[test]
    fn serial_ids_name_host_stream_and_message() {
        let all = [(1, 1, 1), (2, 3, 0), (432, 1, 9), (16_384, 8, 1 << 20), (1 << 20, 1000, 2)];
        for (hosts, streams, count) in all {
            let ids = SerialIds::new(hosts, streams).with_numbers(count);
            let mut before = None;
            for serial in 0..1000 {
                let (host, stream) = (HostId(hosts - 1), (serial % u64::from(streams)) as u16);
                // The slot does not matter.
                let keys = [serial, 7].map(|slot| MessageKey::new(serial, slot));
                let number = serial * 7 % count.max(1);
                let [id, same] = keys.map(|key| ids.id(host, stream, key, number));
                assert_eq!((id, ids.number(id)), (same, number));
                assert!(before < Some(id), "ids of a host increase");
                assert_eq!(ids.origin(id), (host, stream, serial));
                before = Some(id);
            }
        }
    }

    #[test]
    #[should_panic(expected = "h3 has started too many messages")]
    fn an_id_that_does_not_fit_is_not_made() {
        let _ = WireIds::new(1 << 20).id(HostId(3), MessageKey::new(1 << 22, 0));
    }
}

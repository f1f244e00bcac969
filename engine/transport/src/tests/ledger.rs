//! What has become of each message, to say of one that does not end what its hosts have done, and which rule asks for more.

use std::collections::BTreeMap;

use rackweave_core::{Event, Framing, HostId, Kind, MessageId, RangeSet, Slice, Span, Time};

/// A message by its receiver, sender and id.
pub(super) type Key = (HostId, HostId, MessageId);

#[derive(Debug)]
struct Entry {
    bytes: u64,
    kind: Kind,
    submitted: Time,
    /// The number of its data packets that were sent, and that the receiver stored or not.
    sent: u32,
    stored: u32,
    discarded: u32,
    last_sent: Time,
    delivered: Option<Time>,
    has_ended: bool,
}

/// The data packets that a message may take in tests beyond 20 times its packets. A sender that repeats in vain would else go on until
/// nobody waits for the test.
const MOST_SENT: u64 = 5_000;

/// What has become of each message.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    messages: BTreeMap<Key, Entry>,
    /// When each host last sent a packet of any type.
    last_sent: BTreeMap<HostId, Time>,
}

/// What the network knows of the hosts of a message that has not ended.
pub(super) struct Hosts<'a> {
    /// The bytes that the receiver has stored.
    pub(super) stored: &'a RangeSet<u32>,
    /// When the sender's timer expires.
    pub(super) timer: Option<Time>,
}

fn after(time: Time) -> Span {
    time.since(Time::ZERO)
}

impl Ledger {
    pub(super) fn submitted(&mut self, key: Key, bytes: u64, kind: Kind, now: Time) {
        let entry = Entry {
            bytes,
            kind,
            submitted: now,
            sent: 0,
            stored: 0,
            discarded: 0,
            last_sent: now,
            delivered: None,
            has_ended: false,
        };
        self.messages.insert(key, entry);
    }

    /// Notes a packet of any type.
    pub(super) fn sends(&mut self, host: HostId, now: Time) {
        self.last_sent.insert(host, now);
    }

    /// Notes a data packet of a message that is sent at `now`, and how long it is on the wire.
    pub(super) fn sent(
        &mut self,
        (receiver, sender): (HostId, HostId),
        slice: Slice,
        wire_bytes: u32,
        framing: Framing,
        now: Time,
    ) {
        let Slice { message, offset, len } = slice;
        let Some(entry) = self.messages.get_mut(&(receiver, sender, message)) else { return };
        let end = u64::from(offset) + u64::from(len);
        let least = framing.packet_wire_bytes(len);
        assert!(
            end <= entry.bytes,
            "{sender} sends bytes {offset}..{end} of message {message}, which has {}",
            entry.bytes
        );
        assert!(
            wire_bytes >= least,
            "{sender} sends {len} bytes of message {message} in a packet of {wire_bytes} bytes on the wire: with headers it has {least}"
        );
        entry.sent += 1;
        entry.last_sent = now;
        let most = MOST_SENT + 20 * entry.bytes.div_ceil(u64::from(framing.max_payload));
        assert!(
            u64::from(entry.sent) <= most,
            "{sender} has sent {most} data packets of message {message} of {} bytes to {receiver}, which has stored {} of them and discarded {}: \
             what is sent again is what the receiver lacks, and in packets as it expects them (full, but for the last one)",
            entry.bytes,
            entry.stored,
            entry.discarded
        );
    }

    /// Notes that a data packet has reached its receiver, which stored it or not.
    pub(super) fn arrived(&mut self, key: Key, is_stored: bool) {
        if let Some(entry) = self.messages.get_mut(&key) {
            *(if is_stored { &mut entry.stored } else { &mut entry.discarded }) += 1;
        }
    }

    pub(super) fn note(&mut self, now: Time, host: HostId, event: &Event) {
        let mut ends = |key: Key| {
            if let Some(entry) = self.messages.get_mut(&key) {
                entry.has_ended = true;
            }
        };
        match *event {
            Event::Delivered { peer, id, kind, .. } => {
                if let Some(entry) = self.messages.get_mut(&(host, peer, id)) {
                    entry.delivered = Some(now);
                    // The response ends its request; whether a response or request was acknowledged is the transport's.
                    entry.has_ended |= kind != Kind::OneWay;
                }
            }
            Event::Sent { peer, id } => ends((peer, host, id)),
            Event::Failed { peer, id, .. } => {
                ends((peer, host, id));
                ends((host, peer, id.response()));
            }
            Event::Stream(_) => {}
        }
    }

    /// Forgets a message that an application has cancelled, in both directions.
    pub(super) fn cancelled(&mut self, host: HostId, peer: HostId, id: MessageId) {
        let is_it = |(receiver, sender, other): &Key| {
            other.number() == id.number()
                && ((*receiver, *sender) == (host, peer) || (*receiver, *sender) == (peer, host))
        };
        self.messages.retain(|key, _| !is_it(key));
    }

    /// Forgets the messages of a host that has restarted.
    pub(super) fn restarted(&mut self, host: HostId) {
        self.messages.retain(|(receiver, sender, _), _| *receiver != host && *sender != host);
    }

    /// The messages that have not ended.
    pub(super) fn open(&self) -> impl Iterator<Item = Key> + '_ {
        self.messages.iter().filter(|(_, entry)| !entry.has_ended).map(|(key, _)| *key)
    }

    /// Says what its hosts have done about a message that has not ended.
    pub(super) fn describe(&self, key: Key, hosts: &Hosts<'_>) -> String {
        let Some(entry) = self.messages.get(&key) else { return String::new() };
        let (receiver, sender, id) = key;
        let Entry { bytes, kind, submitted, sent, stored, discarded, last_sent, .. } = *entry;
        let lost = sent.saturating_sub(stored + discarded);
        let timer = match hosts.timer {
            Some(at) => format!("its next timer expires at {}", after(at)),
            None => "no timer is set (`poll_timeout` returns `None`)".to_owned(),
        };
        let what = format!(
            "message {id} ({kind:?}) of {bytes} bytes from {sender} to {receiver}, submitted at {}",
            after(submitted)
        );
        if let Some(at) = entry.delivered {
            let last = self.last_sent.get(&receiver);
            let last =
                last.map_or("never".to_owned(), |at| format!("last at {}", after(*at)).to_owned());
            return format!(
                "{what}: delivered at {}, and {sender} has no `Sent` event: {timer}. {receiver} sent packets {last}.\n  \
                 Rule: a receiver acknowledges a complete message, and does it again when a packet of it comes again.",
                after(at)
            );
        }
        let never = missing(hosts.stored, bytes);
        let rule = if sent == 0 {
            "each message may send at last: `poll_transmit` (`Scheme::next_data`) hands it out, and credit that ended messages had is given to others"
        } else if hosts.timer.is_none() {
            "until its message ends, a sender has a timer: any packet may be lost (`Scheme::sender_deadline`, `Driven::wake`)"
        } else if discarded > 0 && hosts.stored.is_empty() {
            "a data packet is full, or is the message's last one, and its header says where it belongs"
        } else if lost > 0 {
            "what has not arrived is sent again, whichever packet it is"
        } else {
            "a sender sends what the receiver lacks, and a receiver that gives credit replaces what was lost"
        };
        format!(
            "{what}: {never} never arrived. Data packets that {sender} sent: {sent}, the last at {}; that {receiver} stored: {stored}, \
             discarded: {discarded}; lost or under way: {lost}. At {sender} {timer}.\n  Rule: {rule}.",
            after(last_sent)
        )
    }
}

/// Names the bytes that are not stored.
fn missing(stored: &RangeSet<u32>, bytes: u64) -> String {
    let (mut at, mut gaps, mut sum) = (0, Vec::new(), 0);
    let end = u32::try_from(bytes).unwrap_or(u32::MAX);
    for range in stored.iter().chain(std::iter::once(end..end)) {
        if range.start > at {
            gaps.push(format!("{at}..{}", range.start));
            sum += range.start - at;
        }
        at = at.max(range.end);
    }
    match &gaps[..] {
        [] => "no byte is missing, but the event `Delivered`".to_owned(),
        [first] => format!("bytes {first}"),
        [first, .., last] => format!("{sum} bytes, of {first} to {last},"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMING: Framing =
        Framing { max_payload: 1460, header_bytes: 40, spray_above_bytes: u32::MAX };
    const KEY: Key = (HostId(1), HostId(0), MessageId::request(3));

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_us(us)
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.submitted(KEY, 10_000, Kind::OneWay, at(1));
        let slice = Slice { message: KEY.2, offset: 0, len: 1460 };
        ledger.sent((KEY.0, KEY.1), slice, 1538, FRAMING, at(2));
        ledger
    }

    fn told(ledger: &Ledger, stored: &[(u32, u32)], timer: Option<Time>) -> String {
        let mut set = RangeSet::new();
        for (from, to) in stored {
            set.insert(*from..*to);
        }
        ledger.describe(KEY, &Hosts { stored: &set, timer })
    }

    #[test]
    fn what_is_missing_and_the_rule_that_is_broken_are_named() {
        let mut ledger = ledger();
        let text = told(&ledger, &[(0, 1460), (2920, 10_000)], None);
        let begin = "message 3 (OneWay) of 10000 bytes from h0 to h1, submitted at 1 us: bytes 1460..2920 never arrived. \
                     Data packets that h0 sent: 1, the last at 2 us; that h1 stored: 0, discarded: 0; lost or under way: 1.";
        assert!(text.starts_with(begin), "{text}");
        assert!(
            text.contains("no timer is set") && text.contains("a sender has a timer"),
            "{text}"
        );
        let text = told(&ledger, &[(0, 1460)], Some(at(9)));
        assert!(text.contains("expires at 9 us") && text.contains("is sent again"), "{text}");
        ledger.arrived(KEY, false);
        let text = told(&ledger, &[], Some(at(9)));
        assert!(text.contains("is full, or is the message's last one"), "{text}");
        ledger.note(
            at(5),
            KEY.0,
            &Event::Delivered { peer: KEY.1, id: KEY.2, bytes: 1, kind: Kind::OneWay },
        );
        assert!(told(&ledger, &[], None).contains("delivered at 5 us, and h0 has no `Sent` event"));
        assert_eq!(ledger.open().collect::<Vec<_>>(), [KEY]);
        ledger.note(at(6), KEY.1, &Event::Sent { peer: KEY.0, id: KEY.2 });
        assert_eq!(ledger.open().count(), 0);
    }

    #[test]
    #[should_panic(expected = "h0 sends bytes 9000..10460 of message 3, which has 10000")]
    fn a_packet_beyond_its_message_is_refused() {
        let slice = Slice { message: KEY.2, offset: 9000, len: 1460 };
        ledger().sent((KEY.0, KEY.1), slice, 1538, FRAMING, at(3));
    }

    #[test]
    #[should_panic(expected = "with headers it has 1538")]
    fn a_packet_shorter_than_its_payload_is_refused() {
        let slice = Slice { message: KEY.2, offset: 1460, len: 1460 };
        ledger().sent((KEY.0, KEY.1), slice, 84, FRAMING, at(3));
    }

    #[test]
    fn what_was_cancelled_failed_or_lost_its_host_is_not_open() {
        let failed = Event::Failed {
            peer: KEY.0,
            id: KEY.2,
            reason: rackweave_core::FailReason::PeerSilent,
        };
        let ends: [fn(&mut Ledger, &Event); 3] = [
            |ledger, failed| ledger.note(at(5), KEY.1, failed),
            |ledger, _| ledger.cancelled(KEY.1, KEY.0, KEY.2),
            |ledger, _| ledger.restarted(KEY.0),
        ];
        for end in ends {
            let mut ledger = ledger();
            assert_eq!(ledger.open().count(), 1);
            end(&mut ledger, &failed);
            assert_eq!(ledger.open().count(), 0);
        }
    }
}

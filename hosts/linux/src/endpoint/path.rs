//! The MTU of the path to a peer: whether long datagrams arrive, and how long ones that do may be.
//!
//! The kernel learns a smaller MTU from ICMP and then divides datagrams itself; where no such message comes (a bridge, a tunnel, a
//! firewall), long datagrams vanish while short ones arrive, and a call would fail only by its deadline. This is
//! packetization layer path MTU discovery (RFC 8899) with padded probes. While long datagrams are sent, their length is
//! confirmed by a probe now and then. If probes of it do not arrive and shorter ones do, a black hole is detected (RFC
//! 8899, section 4.3). From then on longer datagrams are sent in fragments ([`super::fragments`]). The two lengths of
//! fragments stand in for a search (section 5.3): a datagram is divided evenly, so that an exact MTU would rarely save
//! one. Lengths are those of UDP payload.

use rackweave_core::{Span, Time};
use smallvec::SmallVec;

/// The lengths that are tried when longer datagrams do not arrive: `BASE_PLPMTU` of RFC 8899, section 5.1.2, and what
/// remains of the 576 bytes that every IPv4 host accepts (RFC 1122, section 3.3.2) with the longest IP header.
const LEVELS: [usize; 2] = [1200, 508];

/// Datagrams of at most this length are never divided, and cause no probes.
pub(super) const SMALL: usize = LEVELS[1];

/// How long the first round of probes waits for a reply, and the longest one; each round waits twice as long as the
/// previous one. The values are Rackweave's: a data center's round trip, and a process that waits for a processor.
const ROUND: (Span, Span) = (Span::from_ms(20), Span::from_ms(320));

/// After this many rounds a length counts as lost (`MAX_PROBES` of RFC 8899, section 5.1.2, is 3; with one more a black
/// hole is known after 300 ms, well within every transport's patience).
const ROUNDS: u32 = 4;

/// After this many rounds without any reply the peer is silent, which says nothing about the path.
const MOST_ROUNDS: u32 = 8;

/// How long a confirmation lasts while long datagrams are sent. Shorter than RFC 8899's timers, which are for the Internet: a path
/// that changes must be noticed before transports take the peer for silent, after 1.5 s.
const CONFIRM: Span = Span::from_ms(500);

/// The interval between attempts to send longer datagrams again (`PMTU_RAISE_TIMER`; 600 s in RFC 8899).
const RAISE: Span = Span::from_secs(10);

/// A probe to be sent: its number and its length.
pub(super) type Probes = SmallVec<[(u32, usize); 3]>;

/// Datagrams of one length do not arrive, or do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The length.
    pub(super) bytes: usize,
    /// The longest datagram from now on; `None` if there is no limit.
    pub(super) limit: Option<usize>,
}

/// What is known of the path to one peer.
#[derive(Debug, Default)]
pub(super) struct PathMtu {
    /// The longest datagram that is sent in one piece, if longer ones do not arrive.
    limit: Option<usize>,
    /// The longest probe that has arrived at this limit, and when the last one did.
    confirmed: (usize, Time),
    /// When a probe above the limit was last tried.
    raised_at: Time,
    search: Option<Box<Search>>,
}

/// A probe that has been sent.
#[derive(Debug)]
struct Sent {
    number: u32,
    bytes: usize,
    arrived: bool,
}

#[derive(Debug)]
struct Search {
    /// The length that is to be confirmed.
    target: usize,
    /// Whether it is above the limit.
    raises: bool,
    rounds: u32,
    gap: Span,
    due: Time,
    sent: Vec<Sent>,
}

impl PathMtu {
    /// The longest datagram that is sent in one piece.
    pub(super) const fn limit(&self) -> Option<usize> {
        self.limit
    }

    /// When [`PathMtu::advance`] is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.search.as_ref().map(|search| search.due)
    }

    /// A datagram of this length is sent. Returns whether a search has begun.
    pub(super) fn on_send(&mut self, now: Time, bytes: usize) -> bool {
        if self.search.is_some() {
            return false;
        }
        let is_old = now.since(self.confirmed.1) >= CONFIRM;
        let (target, raises) = match self.limit {
            None if is_old || bytes > self.confirmed.0 => (bytes, false),
            Some(limit) if bytes > limit && now.since(self.raised_at) >= RAISE => (bytes, true),
            Some(limit) if is_old => (limit.min(bytes), false),
            _ => return false,
        };
        if raises {
            self.raised_at = now;
        }
        let sent = Vec::new();
        let gap = ROUND.0;
        self.search = Some(Box::new(Search { target, raises, rounds: 0, gap, due: now, sent }));
        true
    }

    /// Ends the search, or returns the probes of its next round. `number` is the number of the next probe.
    pub(super) fn advance(&mut self, now: Time, number: &mut u32) -> (Probes, Option<Change>) {
        let mut probes = Probes::new();
        let Some(search) = &mut self.search else { return (probes, None) };
        if search.due > now {
            return (probes, None);
        }
        if search.rounds >= ROUNDS {
            // One that has arrived once may be an accident between losses.
            let arrived = |bytes: usize| {
                search.sent.iter().filter(|it| it.bytes == bytes && it.arrived).count()
            };
            let level = LEVELS.into_iter().find(|bytes| arrived(*bytes) >= 2);
            let target = search.target;
            if search.raises || level.is_some() || search.rounds >= MOST_ROUNDS {
                let change =
                    level.filter(|_| !search.raises).map(|level| self.lower(now, target, level));
                self.confirmed.1 = now;
                self.search = None;
                return (probes, change);
            }
        }
        // Usually the first probe arrives; only then shorter ones say whether the peer does.
        // The shortest one is first: a longer one before it would form a train with it, which is lost as a whole.
        let levels = LEVELS.into_iter().rev();
        let levels = levels.filter(|bytes| search.rounds > 0 && *bytes < search.target);
        for bytes in levels.chain([search.target]) {
            probes.push((*number, bytes));
            search.sent.push(Sent { number: *number, bytes, arrived: false });
            *number = number.wrapping_add(1);
        }
        search.rounds += 1;
        search.due = now + search.gap;
        search.gap = (search.gap * 2).min(ROUND.1);
        (probes, None)
    }

    fn lower(&mut self, now: Time, bytes: usize, limit: usize) -> Change {
        self.limit = Some(limit);
        self.confirmed = (limit, now);
        self.raised_at = now;
        Change { bytes, limit: self.limit }
    }

    /// A probe has arrived at the peer.
    pub(super) fn on_reply(&mut self, now: Time, number: u32) -> Option<Change> {
        let search = self.search.as_mut()?;
        let probe = search.sent.iter_mut().find(|probe| probe.number == number)?;
        probe.arrived = true;
        let (bytes, raises) = (probe.bytes, search.raises);
        if bytes < search.target {
            return None;
        }
        self.search = None;
        self.confirmed = (bytes.max(self.confirmed.0), now);
        if !raises {
            return None;
        }
        self.limit = None;
        Some(Change { bytes, limit: None })
    }

    /// The system has refused a datagram of this length as too long for the route.
    pub(super) fn on_refused(&mut self, now: Time, bytes: usize) -> Option<Change> {
        let level = LEVELS.into_iter().find(|level| *level < bytes)?;
        if self.limit.is_some_and(|limit| limit <= level) {
            return None;
        }
        self.search = None;
        Some(self.lower(now, bytes, level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path on which probes of up to `passes` bytes arrive after `rtt`, and a sender that sends `bytes` every millisecond.
    struct Path {
        mtu: PathMtu,
        now: Time,
        number: u32,
        replies: Vec<(Time, u32)>,
        probes: u32,
        changes: Vec<Change>,
    }

    impl Path {
        fn new() -> Self {
            let mtu = PathMtu::default();
            let now = Time::ZERO + Span::from_secs(5);
            Self { mtu, now, number: 7, replies: Vec::new(), probes: 0, changes: Vec::new() }
        }

        fn run(&mut self, ms: u64, bytes: usize, mut passes: impl FnMut(u32, usize) -> bool) {
            for _ in 0..ms {
                self.now += Span::from_ms(1);
                let now = self.now;
                let replies = std::mem::take(&mut self.replies);
                let (due, later): (Vec<_>, Vec<_>) =
                    replies.into_iter().partition(|(at, _)| *at <= now);
                self.replies = later;
                for (_, number) in due {
                    self.changes.extend(self.mtu.on_reply(now, number));
                }
                self.mtu.on_send(now, bytes);
                let (probes, change) = self.mtu.advance(now, &mut self.number);
                self.changes.extend(change);
                for (number, bytes) in probes {
                    self.probes += 1;
                    if passes(self.probes, bytes) {
                        self.replies.push((now + Span::from_us(300), number));
                    }
                }
            }
        }
    }

    #[test]
    fn an_open_path_costs_two_probes_a_second() {
        let mut path = Path::new();
        path.run(10_000, 1440, |_, _| true);
        assert!(path.changes.is_empty() && path.mtu.limit().is_none());
        assert!((15..=21).contains(&path.probes), "{}", path.probes);
        // Short datagrams need none, which is the caller's rule; a longer one is confirmed at once.
        let before = path.probes;
        path.run(1, 8000, |_, _| true);
        assert_eq!(path.probes, before + 1);
    }

    #[test]
    fn a_black_hole_is_found_within_a_third_of_a_second_and_its_end_within_ten() {
        for (passes, limit) in [(1372, 1200), (1200, 1200), (1199, 508)] {
            let mut path = Path::new();
            path.run(310, 1440, |_, bytes| bytes <= passes);
            let change = Change { bytes: 1440, limit: Some(limit) };
            assert_eq!((&path.changes[..], path.mtu.limit()), (&[change][..], Some(limit)));
            path.run(9_000, 1440, |_, bytes| bytes <= passes);
            assert_eq!(path.changes.len(), 1);
            path.run(11_000, 1440, |_, _| true);
            let restored = Change { bytes: 1440, limit: None };
            assert_eq!((path.changes.last(), path.mtu.limit()), (Some(&restored), None));
        }
    }

    #[test]
    fn a_path_that_becomes_narrower_is_noticed() {
        let mut path = Path::new();
        path.run(3000, 1440, |_, _| true);
        path.run(900, 1440, |_, bytes| bytes <= 1372);
        assert_eq!(path.mtu.limit(), Some(1200));
        path.run(900, 1440, |_, bytes| bytes <= 600);
        assert_eq!(path.mtu.limit(), Some(508));
    }

    #[test]
    fn neither_silence_nor_losses_say_anything_about_the_path() {
        let mut path = Path::new();
        path.run(20_000, 1440, |_, _| false);
        assert!(path.changes.is_empty() && path.probes < 400, "{}", path.probes);
        // The peer answers late, as after a pause.
        let mut path = Path::new();
        let mut probes = Vec::new();
        path.run(1500, 1440, |probe, _| {
            probes.push(probe);
            false
        });
        let now = path.now;
        path.changes.extend((7..path.number).filter_map(|number| path.mtu.on_reply(now, number)));
        path.run(1500, 1440, |_, _| true);
        assert!(path.changes.is_empty(), "{:?}", path.changes);
        let mut rng = rackweave_core::Rng::stream(1, 0, 0, "path");
        let mut path = Path::new();
        path.run(60_000, 1440, |_, _| rng.chance(0.95));
        assert!(path.changes.is_empty(), "{:?}", path.changes);
    }

    #[test]
    fn what_the_system_refuses_is_divided_at_once() {
        let mut mtu = PathMtu::default();
        let now = Time::ZERO + Span::from_secs(1);
        let change = |bytes, limit| Some(Change { bytes, limit: Some(limit) });
        assert_eq!(mtu.on_refused(now, 9000), change(9000, 1200));
        assert_eq!(mtu.on_refused(now, 9000), None, "it was sent before");
        assert_eq!(mtu.on_refused(now, 1200), change(1200, 508));
        assert_eq!(mtu.on_refused(now, 508), None);
    }

    #[test]
    fn no_probe_follows_a_longer_one_with_which_it_would_form_a_train() {
        let (mut mtu, mut number) = (PathMtu::default(), 1);
        let now = Time::ZERO + Span::from_secs(1);
        assert!(mtu.on_send(now, 1440));
        let lengths = |probes: &Probes| probes.iter().map(|probe| probe.1).collect::<Vec<_>>();
        assert_eq!(lengths(&mtu.advance(now, &mut number).0), [1440]);
        let due = mtu.due().unwrap();
        assert_eq!(lengths(&mtu.advance(due, &mut number).0), [508, 1200, 1440]);
    }
}

//! Who takes part in a session that Emulab's Frisbee clients may join: what a server knows of hosts without a connection to it.
//!
//! Their addresses are not validated, so nothing that matters to others depends on them, and what is kept is bounded.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use rackweave_core::{Span, Time};
use rackweave_wire::frisbee::Body;

/// What has become of a Frisbee client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrisbeeChange {
    /// It has joined, or goes on after its server was away.
    Joined,
    /// It has left, which it does when it has written the image.
    Left {
        /// How many seconds it says that it has run.
        elapsed_s: u32,
    },
    /// Nothing was heard of it for five minutes, so that it is forgotten.
    Silent,
}

/// How many clients a session has, and has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemberCounts {
    pub(super) present: u32,
    pub(super) joined: u64,
    pub(super) left: u64,
    pub(super) silent: u64,
}

/// Clients that are remembered, if no list says which ones there are. Others are served and not shown.
const MOST_MEMBERS: usize = 1024;
/// How long a silent client is remembered. One whose disk is slow is silent until a buffer is free.
const SILENCE: Span = Span::from_secs(300);
/// Changes that are reported in a second, at most: forged messages must not fill a log.
const MOST_REPORTS: u32 = 50;
/// How often the session is tidied up.
const TIDY: Span = Span::from_secs(1);

/// A client that is present.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// The number by which it has joined. One that has joined another server's session is known by its requests.
    client: Option<u32>,
    seen: Time,
}

/// The clients of a session.
#[derive(Clone, Debug)]
pub(super) struct Members {
    known: BTreeMap<Ipv4Addr, Member>,
    most: usize,
    counts: MemberCounts,
    reports: u32,
    tidied: Time,
}

impl Members {
    /// A session that this many hosts may join, or all.
    pub(super) fn new(receivers: Option<usize>) -> Self {
        Self {
            known: BTreeMap::new(),
            most: receivers.unwrap_or(MOST_MEMBERS),
            counts: MemberCounts::default(),
            reports: 0,
            tidied: Time::ZERO,
        }
    }

    pub(super) fn counts(&self) -> MemberCounts {
        MemberCounts { present: self.known.len() as u32, ..self.counts }
    }

    /// A host that may fetch has sent this. Returns what has changed.
    pub(super) fn heard(
        &mut self,
        now: Time,
        from: Ipv4Addr,
        body: &Body,
    ) -> Option<FrisbeeChange> {
        match *body {
            Body::Join { client } | Body::Join2 { reply: false, client, .. } => {
                self.present(now, from, Some(client))
            }
            Body::Request { .. } | Body::PartialRequest { .. } => self.present(now, from, None),
            Body::Leave { client, elapsed_s } | Body::Leave2 { client, elapsed_s } => {
                let is_its = |member: &Member| member.client.is_none_or(|known| known == client);
                self.known.get(&from).filter(|member| is_its(member))?;
                self.known.remove(&from);
                self.counts.left += 1;
                Some(FrisbeeChange::Left { elapsed_s })
            }
            _ => None,
        }
    }

    fn present(&mut self, now: Time, from: Ipv4Addr, client: Option<u32>) -> Option<FrisbeeChange> {
        if let Some(member) = self.known.get_mut(&from) {
            member.seen = now;
            member.client = client.or(member.client);
            return None;
        }
        if self.known.len() >= self.most {
            return None;
        }
        self.known.insert(from, Member { client, seen: now });
        self.counts.joined += 1;
        Some(FrisbeeChange::Joined)
    }

    /// Whether a change is to be reported.
    pub(super) const fn may_report(&mut self) -> bool {
        self.reports += 1;
        self.reports <= MOST_REPORTS
    }

    /// Forgets clients that have been silent for long, and returns them.
    pub(super) fn tidy(&mut self, now: Time) -> Vec<Ipv4Addr> {
        if now.since(self.tidied) < TIDY {
            return Vec::new();
        }
        (self.tidied, self.reports) = (now, 0);
        let is_silent = |_: &Ipv4Addr, member: &mut Member| now.since(member.seen) >= SILENCE;
        let silent: Vec<_> =
            self.known.extract_if(.., is_silent).map(|(address, _)| address).collect();
        self.counts.silent += silent.len() as u64;
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Body = Body::Request { chunk: 0, block: 0, count: 1024 };

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    fn host(number: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0a00_0000 + number)
    }

    #[test]
    fn a_client_joins_once_and_leaves_by_its_own_number() {
        let mut members = Members::new(None);
        let join = Body::Join { client: 7 };
        assert_eq!(members.heard(at(1), host(1), &join), Some(FrisbeeChange::Joined));
        assert_eq!(members.heard(at(2), host(1), &join), None);
        let leave = |client| Body::Leave2 { client, elapsed_s: 9 };
        assert_eq!(members.heard(at(3), host(1), &leave(8)), None, "a forged one");
        assert_eq!(members.heard(at(3), host(2), &leave(7)), None, "of nobody");
        let left = Some(FrisbeeChange::Left { elapsed_s: 9 });
        assert_eq!(members.heard(at(4), host(1), &leave(7)), left);
        // The server was away when it joined.
        assert_eq!(members.heard(at(5), host(3), &REQUEST), Some(FrisbeeChange::Joined));
        assert_eq!(members.heard(at(6), host(3), &leave(1)), left);
        let counts = MemberCounts { present: 0, joined: 2, left: 2, silent: 0 };
        assert_eq!(members.counts(), counts);
    }

    #[test]
    fn a_flood_fills_the_table_for_five_minutes_at_most() {
        let mut members = Members::new(None);
        for number in 0..100_000 {
            let body = if number % 2 == 0 { Body::Join { client: number } } else { REQUEST };
            members.heard(at(1), host(number), &body);
        }
        assert_eq!(members.counts().present as usize, MOST_MEMBERS);
        assert_eq!((0..1000).filter(|_| members.may_report()).count() as u32, MOST_REPORTS);
        members.heard(at(200), host(5), &REQUEST);
        assert!(members.tidy(at(300)).is_empty() && members.may_report());
        assert_eq!(members.tidy(at(301)).len(), MOST_MEMBERS - 1);
        assert_eq!(members.heard(at(302), host(9), &REQUEST), Some(FrisbeeChange::Joined));
        assert_eq!(members.counts().present, 2);
    }
}

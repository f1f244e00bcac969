//! Aggregation of status reports: what an agent forwards for its rack.
//!
//! NORM suppresses feedback by timers instead (RFC 5740, section 5.3), which needs no agents; merging reports at agents
//! is our choice. A summary never claims that a receiver has a byte that the receiver did not report: `have` and
//! `limit` are minima, and gaps are united. It may claim less than is known; later reports add the rest.

use rackweave_wire::orca::{GAPS, Gap, Status};

/// Upper bound of the gaps that a [`Summary`] holds.
const MAX_GAPS: usize = 8 * GAPS;

/// Merges two reports of one rack. If the racks differ, the first is returned.
///
/// The operation is commutative, and idempotent as long as no gap has to be left out. The result has at most the lowest
/// [`GAPS`] gaps.
#[must_use]
pub fn merge(a: &Status, b: &Status) -> Status {
    let mut summary = Summary::default();
    summary.add(a);
    summary.add(b);
    summary.first().unwrap_or(*a)
}

/// The merged reports of one rack's receivers in one session. An agent adds each report that arrives, and sends
/// [`Summary::statuses`] once per interval.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    status: Option<Status>,
    gaps: Vec<Gap>,
}

impl Summary {
    /// Adds a report. Returns false, and ignores the report, if it is from another rack than the first one.
    pub fn add(&mut self, other: &Status) -> bool {
        if other.who == 0 {
            return false;
        }
        match &mut self.status {
            None => self.status = Some(Status { gaps: [Gap::default(); GAPS], ..*other }),
            Some(status) if status.rack != other.rack => return false,
            Some(status) => {
                // Ties go to the lower port and to the shorter time, so that the order of reports does not matter.
                if (other.have, other.slowest) < (status.have, status.slowest) {
                    (status.have, status.slowest) = (other.have, other.slowest);
                }
                if other.seen > status.seen {
                    (status.seen, status.held_us) = (other.seen, other.held_us);
                } else if other.seen == status.seen {
                    status.held_us = status.held_us.min(other.held_us);
                }
                status.limit = status.limit.min(other.limit);
                status.who |= other.who;
            }
        }
        for gap in other.gaps {
            self.add_gap(Gap { who: gap.who & other.who, ..gap });
        }
        true
    }

    /// Returns whether nothing has been added since the last [`Summary::clear`].
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.status.is_none()
    }

    /// Removes all reports.
    pub fn clear(&mut self) {
        self.status = None;
        self.gaps.clear();
    }

    /// Returns the packets that carry the summary: one for every [`GAPS`] gaps, at least one and at most eight.
    pub fn statuses(&self) -> impl Iterator<Item = Status> + '_ {
        let packets = self.gaps.len().div_ceil(GAPS).max(1);
        self.status.into_iter().flat_map(move |status| {
            (0..packets).map(move |packet| {
                let mut gaps = [Gap::default(); GAPS];
                for (to, from) in gaps.iter_mut().zip(self.gaps.iter().skip(packet * GAPS)) {
                    *to = *from;
                }
                Status { gaps, ..status }
            })
        })
    }

    /// Returns the first packet of [`Summary::statuses`], which has the lowest gaps.
    #[must_use]
    pub fn first(&self) -> Option<Status> {
        self.statuses().next()
    }

    /// Adds a gap. Gaps are split where they overlap, so that each piece lists exactly the receivers that lack it.
    fn add_gap(&mut self, gap: Gap) {
        if gap.len == 0 || gap.who == 0 {
            return;
        }
        let (mut from, to) = (gap.offset, gap.offset.saturating_add(u64::from(gap.len)));
        let mut at = self.gaps.partition_point(|held| end(held) <= from);
        while from < to {
            let Some(&held) = self.gaps.get(at).filter(|held| held.offset < to) else {
                self.insert(at, from, to, gap.who);
                break;
            };
            if from < held.offset {
                self.insert(at, from, held.offset, gap.who);
                at += 1;
                from = held.offset;
                continue;
            }
            // `from` lies within the held gap.
            let held_end = end(&held);
            if held.who | gap.who != held.who {
                self.gaps.remove(at);
                let common = held_end.min(to);
                let parts = [
                    (held.offset, from, held.who),
                    (from, common, held.who | gap.who),
                    (common, held_end, held.who),
                ];
                for (start, stop, who) in parts {
                    if start < stop {
                        self.insert(at, start, stop, who);
                        at += 1;
                    }
                }
            } else {
                at += 1;
            }
            from = held_end;
        }
        self.join();
    }

    fn insert(&mut self, at: usize, from: u64, to: u64, who: u64) {
        self.gaps.insert(at, Gap { offset: from, len: (to - from) as u32, who });
    }

    /// Joins adjacent gaps of the same receivers, and drops the highest ones beyond the bound.
    fn join(&mut self) {
        self.gaps.dedup_by(|next, held| {
            let joins = held.who == next.who
                && end(held) == next.offset
                && held.len.checked_add(next.len).is_some();
            if joins {
                held.len += next.len;
            }
            joins
        });
        self.gaps.truncate(MAX_GAPS);
    }
}

fn end(gap: &Gap) -> u64 {
    gap.offset.saturating_add(u64::from(gap.len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A receiver that has `have` and some later bytes of a stream of 200 bytes.
    fn status() -> impl Strategy<Value = (Status, Vec<bool>)> {
        let cells = prop::collection::vec(prop::bool::weighted(0.7), 200);
        (0_u8..64, cells, 0_u32..9, 0_u64..50).prop_map(|(port, here, held_us, room)| {
            let have = here.iter().position(|here| !here).unwrap_or(200) as u64;
            let seen = here.iter().rposition(|here| *here).map_or(0, |at| at + 1) as u64;
            let mut gaps = [Gap::default(); GAPS];
            let mut from = have;
            for gap in &mut gaps {
                if from >= seen {
                    break;
                }
                let rest = &here[from as usize..seen as usize];
                let len = rest.iter().take_while(|here| !**here).count();
                *gap = Gap { offset: from, len: len as u32, who: 1 << port };
                from += (len + rest[len..].iter().take_while(|here| **here).count()) as u64;
            }
            let who = 1 << port;
            (
                Status {
                    rack: 3,
                    who,
                    have,
                    slowest: port,
                    seen,
                    held_us,
                    limit: 200 + room,
                    gaps,
                },
                here,
            )
        })
    }

    fn missed(status: &Status, port: u64, at: u64) -> bool {
        let covers = |gap: &Gap| gap.who >> port & 1 == 1 && (gap.offset..end(gap)).contains(&at);
        status.gaps.iter().any(covers)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn order_and_repetition_do_not_matter((a, _) in status(), (b, _) in status()) {
            prop_assert_eq!(merge(&a, &a), a);
            prop_assert_eq!(merge(&a, &b), merge(&b, &a));
            let once = merge(&a, &b);
            let mut whole = Summary::default();
            whole.add(&a);
            whole.add(&b);
            let twice = merge(&once, &a);
            if whole.gaps.len() <= GAPS {
                prop_assert_eq!(twice, once);
            }
            // Where gaps had to be left out, the others may grow. Nothing else changes.
            prop_assert_eq!(Status { gaps: once.gaps, ..twice }, once);
            prop_assert_eq!(twice.gaps[0].offset, once.gaps[0].offset);
        }

        /// A summary never claims that a receiver has bytes or room that it lacks, or lacks bytes that it has.
        #[test]
        fn claims_nothing_that_was_not_reported(reports in prop::collection::vec(status(), 1..12)) {
            let mut summary = Summary::default();
            for (report, _) in &reports {
                prop_assert!(summary.add(report));
            }
            let packets: Vec<_> = summary.statuses().collect();
            prop_assert!((1..=8).contains(&packets.len()));
            for summed in &packets {
                for (report, here) in &reports {
                    let port = u64::from(report.slowest);
                    prop_assert!(summed.who >> port & 1 == 1);
                    prop_assert!(summed.have <= report.have && summed.limit <= report.limit);
                    // Two reports of one port may differ. Only bytes that all of them have must not be called missing.
                    let all_have = |at: usize| {
                        reports.iter().filter(|(r, _)| r.slowest == report.slowest).all(|(_, h)| h[at])
                    };
                    for at in 0..here.len() {
                        prop_assert!(!(all_have(at) && missed(summed, port, at as u64)));
                    }
                }
                prop_assert!(reports.iter().any(|(r, _)| r.have == summed.have && r.slowest == summed.slowest));
            }
            let all: Vec<Gap> = packets.iter().flat_map(|p| p.gaps).filter(|gap| gap.len > 0).collect();
            prop_assert!(all.windows(2).all(|pair| end(&pair[0]) <= pair[1].offset));
            // The lowest gap of all is always included, since the window waits for it.
            let lowest = reports.iter().flat_map(|(r, _)| r.gaps).filter(|g| g.len > 0).map(|g| g.offset).min();
            prop_assert_eq!(all.first().map(|gap| gap.offset), lowest);
        }

        #[test]
        fn other_racks_and_any_fields_are_survived(
            fields in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), 0_u16..2), 1..40),
        ) {
            let mut summary = Summary::default();
            for (offset, len, who, rack) in fields {
                let gap = Gap { offset, len, who };
                summary.add(&Status { rack, who, have: offset, limit: offset, gaps: [gap; GAPS], ..Status::default() });
                prop_assert!(summary.gaps.len() <= MAX_GAPS);
            }
        }
    }
}

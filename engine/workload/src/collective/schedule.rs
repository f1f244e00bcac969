//! The operations of all ranks, and their dependencies.

use core::fmt::{self, Display};
use std::collections::BTreeMap;

use rackweave_core::Span;
use rackweave_core::rng::mix;

use super::cycle;
use crate::sizes::MAX_MESSAGE_BYTES;

/// The most operations of all ranks together: each takes about 40 bytes.
const MAX_OPS: u64 = 1 << 27;
/// The largest number of ranks.
pub(super) const MAX_RANKS: u32 = 1 << 20;
/// The partner of an operation that has none.
const NONE: u32 = u32::MAX;

/// What a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A message to another rank. It is done when the message has arrived.
    Send {
        /// The receiving rank.
        to: u32,
        /// The length of the message.
        bytes: u64,
        /// What tells messages between the same ranks apart.
        tag: u32,
    },
    /// The arrival of a message.
    Receive {
        /// The sending rank.
        from: u32,
        /// The length of the message.
        bytes: u64,
        /// The tag of the message.
        tag: u32,
    },
    /// Work on a processor, one piece after the other in the order in which they can begin.
    Calculate {
        /// How long it takes.
        span: Span,
        /// Which of the rank's processors does it.
        cpu: u8,
    },
}

/// An operation of a rank, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The index of the operation in the rank's order.
    pub op: u32,
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} of rank {}", self.op, self.rank)
    }
}

/// Why operations are no schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// There is nothing to do.
    Empty,
    /// There are more operations than fit in memory.
    TooMany,
    /// The peer does not exist.
    NoSuchRank {
        /// The send or receive.
        at: Place,
        /// The rank that does not exist.
        peer: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// A rank sends to itself, or receives from itself.
    ToItself {
        /// The send or receive.
        at: Place,
    },
    /// A message has too many bytes.
    Length {
        /// The send.
        at: Place,
        /// Its length.
        bytes: u64,
    },
    /// A send that no receive takes.
    NoReceive {
        /// The send.
        at: Place,
        /// The rank that does not receive.
        to: u32,
        /// The tag of the message.
        tag: u32,
    },
    /// A receive that no send fills.
    NoSend {
        /// The receive.
        at: Place,
        /// The rank that does not send.
        from: u32,
        /// The tag of the message.
        tag: u32,
    },
    /// A send and its receive have different lengths.
    Differ {
        /// The send.
        send: Place,
        /// Its length.
        sent: u64,
        /// The receive.
        receive: Place,
        /// Its length.
        received: u64,
    },
    /// Each of these operations waits for the next, and the last one for the first.
    Cycle(Vec<Place>),
}

impl ScheduleError {
    /// The operation that the error is about.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            Self::Empty | Self::TooMany => None,
            Self::NoSuchRank { at, .. }
            | Self::ToItself { at }
            | Self::Length { at, .. }
            | Self::NoReceive { at, .. }
            | Self::NoSend { at, .. }
            | Self::Differ { receive: at, .. } => Some(*at),
            Self::Cycle(places) => places.first().copied(),
        }
    }

    /// The sentence, with names for operations.
    pub(super) fn text(&self, name: &dyn Fn(Place) -> String) -> String {
        match self {
            Self::Empty => "there are no operations".to_owned(),
            Self::TooMany => format!("there are more than {MAX_OPS} operations"),
            Self::NoSuchRank { at, peer, ranks } => {
                let last = ranks.saturating_sub(1);
                format!("{}: there is no rank {peer}, only 0 to {last}", name(*at))
            }
            Self::ToItself { at } => format!("{}: a rank sends nothing to itself", name(*at)),
            Self::Length { at, bytes } => {
                format!("{}: a message has at most 2^40 bytes, not {bytes}", name(*at))
            }
            Self::NoReceive { at, to, tag } => {
                format!("{}: rank {to} receives no such message (tag {tag})", name(*at))
            }
            Self::NoSend { at, from, tag } => {
                format!("{}: rank {from} sends no such message (tag {tag})", name(*at))
            }
            Self::Differ { send, sent, receive, received } => {
                format!(
                    "{} takes {received} bytes, and {} sends {sent}",
                    name(*receive),
                    name(*send)
                )
            }
            Self::Cycle(places) => {
                const MOST: usize = 6;
                let mut names: Vec<String> = places.iter().take(MOST).map(|at| name(*at)).collect();
                if places.len() > MOST {
                    names.push(format!("{} more", places.len() - MOST));
                }
                let first = places.first().map_or_else(String::new, |at| name(*at));
                format!("{} waits for {first}: none of them can begin", names.join(" waits for "))
            }
        }
    }
}

impl Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|place| place.to_string()))
    }
}

impl std::error::Error for ScheduleError {}

/// Collects the operations of a schedule.
#[derive(Debug)]
pub struct Builder {
    ranks: Vec<Listed>,
    /// The operations that were added.
    total: u64,
}

#[derive(Clone, Debug, Default)]
struct Listed {
    ops: Vec<Op>,
    edges: Vec<Edge>,
}

/// One operation waits for another one of the same rank: for its end, or for its start.
#[derive(Clone, Copy, Debug)]
struct Edge {
    on: u32,
    op: u32,
    is_start: bool,
}

impl Builder {
    /// For this number of ranks, which do nothing yet.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        Self { ranks: vec![Listed::default(); ranks as usize], total: 0 }
    }

    /// Adds an operation, and returns its index at the rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn add(&mut self, rank: u32, op: Op) -> u32 {
        self.total += 1;
        let ops = &mut self.ranks[rank as usize].ops;
        // What is refused in the end takes no memory.
        if self.total <= MAX_OPS {
            ops.push(op);
        }
        (ops.len() as u32).saturating_sub(1)
    }

    /// An operation begins after another one of its rank has ended.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn requires(&mut self, rank: u32, op: u32, on: u32) {
        self.edge(rank, Edge { on, op, is_start: false });
    }

    /// An operation begins after another one of its rank has begun.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn starts_with(&mut self, rank: u32, op: u32, on: u32) {
        self.edge(rank, Edge { on, op, is_start: true });
    }

    fn edge(&mut self, rank: u32, edge: Edge) {
        if self.total <= MAX_OPS {
            self.ranks[rank as usize].edges.push(edge);
        }
    }

    /// Checks the operations. The sends of a rank to another with the same tag belong to the receives there in their order.
    ///
    /// # Errors
    /// If a send or receive has no partner, or operations wait for each other.
    pub fn finish(self) -> Result<Schedule, ScheduleError> {
        if self.total == 0 {
            return Err(ScheduleError::Empty);
        }
        if self.total > MAX_OPS {
            return Err(ScheduleError::TooMany);
        }
        let mut ranks: Vec<Ops> = self.ranks.into_iter().map(Ops::new).collect();
        check(&ranks)?;
        pair(&mut ranks)?;
        let mut schedule =
            Schedule { ranks, sends: 0, bytes: 0, requires_sends: false, next_waits: false };
        if let Some(cycle) = cycle::find(&schedule) {
            return Err(ScheduleError::Cycle(cycle));
        }
        schedule.count();
        Ok(schedule)
    }
}

/// The operations of a rank.
#[derive(Clone, Debug, PartialEq)]
struct Ops {
    ops: Vec<Op>,
    /// For each operation that of the peer: the receive of a send, and the send of a receive.
    partners: Vec<u32>,
    /// For each operation how many it waits for.
    requirements: Vec<u32>,
    /// For each operation where its followers begin.
    first: Vec<u32>,
    /// Operations that wait for one, times 2; plus 1 if they wait for its start.
    followers: Vec<u32>,
}

impl Ops {
    fn new(listed: Listed) -> Self {
        let Listed { ops, mut edges } = listed;
        // One order, whatever the order in which they were added.
        edges.sort_unstable_by_key(|edge| (edge.on, edge.op, edge.is_start));
        let mut requirements = vec![0; ops.len()];
        let mut first = vec![0_u32; ops.len() + 1];
        for edge in &edges {
            requirements[edge.op as usize] += 1;
            first[edge.on as usize + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        let followers = edges.iter().map(|it| it.op << 1 | u32::from(it.is_start)).collect();
        let partners = vec![NONE; ops.len()];
        Self { ops, partners, requirements, first, followers }
    }

    fn followers(&self, op: u32) -> impl Iterator<Item = (u32, bool)> {
        let range = self.first[op as usize] as usize..self.first[op as usize + 1] as usize;
        self.followers[range].iter().map(|&code| (code >> 1, code & 1 == 1))
    }
}

/// Checks each operation by itself.
fn check(ranks: &[Ops]) -> Result<(), ScheduleError> {
    let count = ranks.len() as u32;
    for (rank, of) in (0..).zip(ranks) {
        for (op, it) in (0..).zip(&of.ops) {
            let at = Place { rank, op };
            let (Op::Send { to: peer, bytes, .. } | Op::Receive { from: peer, bytes, .. }) = *it
            else {
                continue;
            };
            if peer >= count {
                return Err(ScheduleError::NoSuchRank { at, peer, ranks: count });
            }
            if peer == rank {
                return Err(ScheduleError::ToItself { at });
            }
            if !(1..=MAX_MESSAGE_BYTES).contains(&bytes) {
                return Err(ScheduleError::Length { at, bytes });
            }
        }
    }
    Ok(())
}

/// A send or a receive at the receiving rank: sender, tag, order at its own rank, length.
type End = (u32, u32, u32, u64);

/// Finds the partner of each send and receive.
fn pair(ranks: &mut [Ops]) -> Result<(), ScheduleError> {
    let mut sends: Vec<Vec<End>> = vec![Vec::new(); ranks.len()];
    for (rank, of) in (0..).zip(&*ranks) {
        for (op, it) in (0..).zip(&of.ops) {
            if let Op::Send { to, bytes, tag } = *it {
                sends[to as usize].push((rank, tag, op, bytes));
            }
        }
    }
    for (rank, sends) in (0_u32..).zip(&mut sends) {
        let mut receives: Vec<End> = Vec::new();
        for (op, it) in (0..).zip(&ranks[rank as usize].ops) {
            if let Op::Receive { from, bytes, tag } = *it {
                receives.push((from, tag, op, bytes));
            }
        }
        sends.sort_unstable();
        receives.sort_unstable();
        let (mut sends, mut receives) = (sends.iter().peekable(), receives.iter().peekable());
        loop {
            let (send, receive) = match (sends.peek(), receives.peek()) {
                (None, None) => break,
                (Some(send), Some(receive)) if send.0 == receive.0 && send.1 == receive.1 => {
                    (**send, **receive)
                }
                (Some(&&(from, tag, op, _)), other)
                    if other.is_none_or(|it| (from, tag) < (it.0, it.1)) =>
                {
                    let at = Place { rank: from, op };
                    return Err(ScheduleError::NoReceive { at, to: rank, tag });
                }
                (_, Some(&&(from, tag, op, _))) => {
                    return Err(ScheduleError::NoSend { at: Place { rank, op }, from, tag });
                }
                (Some(_), None) => break,
            };
            let (sender, _, at_sender, sent) = send;
            let (_, _, at_receiver, received) = receive;
            if sent != received {
                let send = Place { rank: sender, op: at_sender };
                let receive = Place { rank, op: at_receiver };
                return Err(ScheduleError::Differ { send, sent, receive, received });
            }
            ranks[sender as usize].partners[at_sender as usize] = at_receiver;
            ranks[rank as usize].partners[at_receiver as usize] = at_sender;
            sends.next();
            receives.next();
        }
    }
    Ok(())
}

/// The operations of all ranks, and their dependencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    ranks: Vec<Ops>,
    sends: u64,
    bytes: u64,
    requires_sends: bool,
    next_waits: bool,
}

impl Schedule {
    /// The number of ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The number of operations of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn len(&self, rank: u32) -> u32 {
        self.ranks[rank as usize].ops.len() as u32
    }

    /// The operations of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn ops(&self, rank: u32) -> &[Op] {
        &self.ranks[rank as usize].ops
    }

    /// The operations of a rank that wait for one of its operations, and whether they wait for its start only.
    ///
    /// # Panics
    /// If there is no such operation.
    pub fn followers(&self, rank: u32, op: u32) -> impl Iterator<Item = (u32, bool)> {
        self.ranks[rank as usize].followers(op)
    }

    /// The number of messages.
    #[must_use]
    pub const fn sends(&self) -> u64 {
        self.sends
    }

    /// The bytes of all messages.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of messages of each length.
    #[must_use]
    pub fn sizes(&self) -> BTreeMap<u64, u64> {
        let mut sizes = BTreeMap::new();
        for op in self.ranks.iter().flat_map(|of| &of.ops) {
            if let Op::Send { bytes, .. } = op {
                *sizes.entry(*bytes).or_default() += 1;
            }
        }
        sizes
    }

    /// Whether an operation waits for the end of a send.
    #[must_use]
    pub const fn requires_sends(&self) -> bool {
        self.requires_sends
    }

    /// Whether a rank has done its part only when its messages have arrived: if some rank receives nothing, or waits for sends. Otherwise a rank has done
    /// its part when it has received and calculated everything.
    #[must_use]
    pub const fn next_waits_for_sends(&self) -> bool {
        self.next_waits
    }

    /// A number that differs if the operations differ.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut sum = mix(u64::from(self.ranks()));
        let mut add = |value: u64| sum = mix(sum ^ value);
        for of in &self.ranks {
            add(of.ops.len() as u64);
            for op in &of.ops {
                match *op {
                    Op::Send { to, bytes, tag } => {
                        add(u64::from(to) << 32 | u64::from(tag));
                        add(bytes << 2);
                    }
                    Op::Receive { from, bytes, tag } => {
                        add(u64::from(from) << 32 | u64::from(tag));
                        add(bytes << 2 | 1);
                    }
                    Op::Calculate { span, cpu } => {
                        add(span.ticks());
                        add(u64::from(cpu) << 2 | 2);
                    }
                }
            }
            of.first.iter().chain(&of.followers).for_each(|&value| add(u64::from(value)));
        }
        sum
    }

    /// The number of operations that each operation of a rank waits for.
    pub(super) fn requirements(&self, rank: u32) -> &[u32] {
        &self.ranks[rank as usize].requirements
    }

    /// The receive of a send, at the receiver.
    pub(super) fn partner(&self, rank: u32, op: u32) -> Option<u32> {
        let partner = *self.ranks.get(rank as usize)?.partners.get(op as usize)?;
        (partner != NONE).then_some(partner)
    }

    fn count(&mut self) {
        let (mut sends, mut bytes) = (0, 0_u64);
        let (mut requires_sends, mut lacks_receives) = (false, false);
        for of in &self.ranks {
            let mut receives = false;
            for (op, it) in (0..).zip(&of.ops) {
                match it {
                    Op::Send { bytes: length, .. } => {
                        sends += 1;
                        bytes = bytes.saturating_add(*length);
                        requires_sends |= of.followers(op).any(|(_, is_start)| !is_start);
                    }
                    Op::Receive { .. } => receives = true,
                    Op::Calculate { .. } => {}
                }
            }
            lacks_receives |= !receives && !of.ops.is_empty();
        }
        (self.sends, self.bytes) = (sends, bytes);
        self.requires_sends = requires_sends;
        self.next_waits = requires_sends || lacks_receives;
    }
}

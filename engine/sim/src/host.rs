//! What hosts cost: the processors that handle packets, and how late they wake up.

use std::sync::Arc;

use rackweave_core::{Rng, Span};

/// The processors of hosts and what work costs on them. All hosts are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostConfig {
    /// Which processors there are.
    pub processors: Processors,
    /// The costs of receiving.
    pub receive: Costs,
    /// The costs of sending.
    pub send: Costs,
    /// Most packets that one system call receives, at least 1.
    pub receive_batch: u32,
    /// Most packets that one system call sends, at least 1.
    pub send_batch: u32,
    /// Where the transport runs.
    pub model: HostModel,
    /// How far ahead of its link a host passes packets to its NIC.
    pub send_ahead: Span,
    /// What it costs a thread to go to sleep and to be woken.
    pub wake_cost: Span,
    /// How late a sleeping thread runs after the event that wakes it.
    pub wake: Quantiles,
    /// The same for the switch process, which may have a higher priority.
    pub switch_wake: Quantiles,
    /// How late timers expire.
    pub timer_grain: Span,
    /// The process that emulates all switches, between the fabric and the hosts; `None` if switches are hardware.
    pub switch: Option<SwitchProcess>,
    /// Whether these costs stand in for the fabric's delays of hosts, which then only count in ideal times.
    pub replaces_delays: bool,
}

/// Where a host's transport runs, which decides when its packets pass between the transport and the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostModel {
    /// In a process, which sends and receives in turns of system calls.
    #[default]
    Turns,
    /// In the kernel, as TCP is. All packets that the transport permits are in the NIC's queue at once, where those of one connection
    /// follow each other, so that connections share the link by their windows. Packets without data are handled when they arrive, in
    /// interrupts whose time is in the costs of the switch process. A host's thread only works on data that has arrived: a batch is
    /// handed over together at its end, and acknowledged together. The thread pays for data that it has sent when that has crossed the
    /// network.
    Kernel,
}

/// The processors of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// Each host has one for receiving and one for sending.
    PerDirection,
    /// All hosts, each with a single thread, and the switch process share this number of processors, at least 1.
    Shared(u32),
}

/// What work costs in one direction, as time of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Each system call, which moves a batch of packets.
    pub system_call: Span,
    /// Each message that passes between an application and its transport.
    pub call: Span,
    /// Each packet.
    pub packet: Span,
    /// Each byte of a packet on the link.
    pub byte: Span,
    /// Each unit of work. Of receiving: in a packet ([`Header::work`](rackweave_core::Header::work)). Of sending: that a node does
    /// before it sends ([`GroupNode::poll_prepared_work`](crate::GroupNode::poll_prepared_work)). Of the switch process: in a packet
    /// that a program consumes.
    pub work: Span,
}

impl Costs {
    /// Whether all are zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// The cost of a packet with this number of bytes on the link, and this number of units of work.
    #[must_use]
    #[inline]
    pub fn of_packet(&self, wire_bytes: u32, work: u32) -> Span {
        self.packet + self.byte * u64::from(wire_bytes) + self.work * u64::from(work)
    }
}

/// A process that emulates the fabric's switches in real time, as the testbed's does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchProcess {
    /// Its costs. A turn first receives all its packets and then sends them one by one: see [`SwitchProcess::of_received`] and
    /// [`SwitchProcess::of_sent`]. Both are work of the turn in which a packet is due at its host.
    pub costs: Costs,
    /// What it costs to go to sleep and to be woken.
    pub wake_cost: Span,
    /// After a turn it sleeps until this time after the turn's beginning.
    pub window: Span,
}

impl SwitchProcess {
    /// The cost of receiving a packet, and of its work if a switch's program consumes it, which includes that of
    /// the program's answer later. That receiving is half of receiving and sending is our simplification.
    #[must_use]
    pub fn of_received(&self, wire_bytes: u32, consumed_work: u32) -> Span {
        half(self.costs.of_packet(wire_bytes, 0)) + self.costs.work * u64::from(consumed_work)
    }

    /// The cost of sending a packet, which is the only one of a packet that a switch's program has made.
    #[must_use]
    pub fn of_sent(&self, wire_bytes: u32) -> Span {
        let whole = self.costs.of_packet(wire_bytes, 0);
        whole - half(whole)
    }
}

fn half(span: Span) -> Span {
    Span::from_ticks(span.ticks() / 2)
}

/// A distribution, given by some of its quantiles; linear between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantiles(Vec<(u64, Span)>);

/// The share of a quantile is counted in millionths.
const WHOLE: u64 = 1_000_000;

impl Quantiles {
    /// From increasing shares in millionths and increasing values. Below the first share the value is the first one, and
    /// above the last share the last one; without any the value is zero. `None` if they do not increase.
    #[must_use]
    pub fn new(points: Vec<(u64, Span)>) -> Option<Self> {
        let increases =
            points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let is_whole = points.iter().all(|(share, _)| *share <= WHOLE);
        (increases && is_whole).then_some(Self(points))
    }

    /// Whether it is always zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|(_, value)| *value == Span::ZERO)
    }

    /// Draws a value.
    pub fn draw(&self, rng: &mut Rng) -> Span {
        if self.0.is_empty() {
            return Span::ZERO;
        }
        self.at(rng.below(WHOLE))
    }

    /// The value at a share in millionths.
    #[must_use]
    pub fn at(&self, share: u64) -> Span {
        let above = self.0.partition_point(|(point, _)| *point <= share);
        match (above.checked_sub(1).map(|below| self.0[below]), self.0.get(above).copied()) {
            (None, None) => Span::ZERO,
            (None, Some((_, value))) | (Some((_, value)), None) => value,
            (Some((from, low)), Some((to, high))) => {
                low + (high - low) * (share - from) / (to - from)
            }
        }
    }
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            processors: Processors::PerDirection,
            receive: Costs::default(),
            send: Costs::default(),
            receive_batch: 64,
            send_batch: 128,
            model: HostModel::Turns,
            send_ahead: Span::from_us(20),
            wake_cost: Span::ZERO,
            wake: Quantiles::default(),
            switch_wake: Quantiles::default(),
            timer_grain: Span::ZERO,
            switch: None,
            replaces_delays: false,
        }
    }
}

impl HostConfig {
    /// Hosts whose only cost is a time for each packet that they receive; `None` if that is zero.
    #[must_use]
    pub fn of_receive_cost(packet: Span) -> Option<Arc<Self>> {
        let receive = Costs { packet, ..Costs::default() };
        (packet > Span::ZERO).then(|| Arc::new(Self { receive, ..Self::default() }))
    }

    /// How packets of these hosts reach the NIC.
    #[must_use]
    pub(crate) fn sending(&self) -> Sending {
        match self.model {
            HostModel::Kernel => Sending::AtOnce,
            HostModel::Turns
                if self.send.is_zero() && self.processors == Processors::PerDirection =>
            {
                Sending::Polled
            }
            HostModel::Turns => Sending::InTurns,
        }
    }
}

/// How packets pass from a host's machines to its NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The NIC polls the machines when its link is free.
    Polled,
    /// A task polls the machines in its turns, and a packet is at the NIC when the processor has worked on it.
    InTurns,
    /// Whatever the machines permit is at the NIC at once.
    AtOnce,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_and_end_at_their_first_and_last_values() {
        let us = Span::from_us;
        let tail =
            Quantiles::new(vec![(500_000, us(10)), (900_000, us(50)), (1_000_000, us(1000))]);
        let tail = tail.unwrap();
        let at = |share| tail.at(share);
        assert_eq!(
            [at(0), at(500_000), at(700_000), at(900_000)],
            [us(10), us(10), us(30), us(50)]
        );
        assert_eq!(at(950_000), us(525));
        assert_eq!(Quantiles::new(vec![(900_000, us(50)), (500_000, us(60))]), None);
        assert_eq!(Quantiles::new(vec![(500_000, us(50)), (900_000, us(40))]), None);
        assert_eq!(Quantiles::new(vec![(500_000, us(50)), (1_000_001, us(60))]), None);
    }

    #[test]
    fn draws_have_the_mean_of_the_distribution() {
        let us = Span::from_us;
        let tail =
            Quantiles::new(vec![(0, us(0)), (500_000, us(10)), (1_000_000, us(110))]).unwrap();
        let mut rng = Rng::stream(1, 0, 0, "quantiles");
        let sum: f64 = (0..100_000).map(|_| tail.draw(&mut rng).as_us_f64()).sum();
        // Half of the draws have the mean 5 us, and half 60 us.
        assert!((sum / 100_000.0 - 32.5).abs() < 0.5, "{sum}");
    }
}

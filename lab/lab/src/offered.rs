//! The load that a scenario offers to every tier of links, hosts and receivers, before it is run.
//!
//! It follows from the streams that have a rate: Poisson traffic, periodic traffic and incasts that recur. Headers and gaps of data
//! count, and so do the other packets that a transport sends for a message ([`rackweave_transport::Profile::control`]). Packets that are sent again do not. Load is spread evenly over
//! the links of a tier, which per-flow paths do on average only.

use std::ops::Range;

use rackweave_core::{Framing, frame};
use rackweave_sim::Fabric;
use rackweave_sim::config::{StreamConfig, Topology};
use rackweave_transport::{Part, Surroundings};
use rackweave_workload::{Exchange, Pattern};
use serde::Serialize;

use crate::report::number::short;
use crate::scenario::PointSpec;

/// The share of a link from which on load has no steady state in practice: the choice is Rackweave's.
pub(crate) const NEARLY_FULL: f64 = 0.95;

/// The load that is offered to links.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offered {
    /// The load of each tier, from the hosts upwards.
    pub tiers: Vec<Tier>,
    /// The streams that have no rate, and add to this.
    pub without_rate: Vec<String>,
}

/// The load of links that are alike, as shares of what they carry.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// Which links: "hosts send", "hosts receive", "leaves up", "leaves down", ...
    pub links: &'static str,
    /// Both directions: "hosts", "leaves", ...
    #[serde(skip)]
    pub(crate) group: &'static str,
    /// The mean over all of them.
    pub mean: f64,
    /// The most at one of them.
    pub most: f64,
    /// Where that is: "host 0".
    pub at: String,
}

/// Messages that senders start at a constant rate, each to one of the receivers other than itself.
struct Flow {
    senders: Range<u32>,
    receivers: Range<u32>,
    /// By each sender.
    per_second: f64,
    /// Bytes on the link from sender to receiver, and back, for a message with its response.
    there: f64,
    back: f64,
}

fn common(a: &Range<u32>, b: &Range<u32>) -> f64 {
    f64::from(a.end.min(b.end).saturating_sub(a.start.max(b.start)))
}

fn length(range: &Range<u32>) -> f64 {
    f64::from(range.end.saturating_sub(range.start))
}

/// The hosts of a stream that has a rate, and its messages in a second at each sender.
fn rate_of(stream: &StreamConfig, fabric: &Fabric) -> Option<(Range<u32>, Range<u32>, f64)> {
    let workload = &stream.workload;
    let all = 0..fabric.hosts();
    let senders = workload.senders.clone().unwrap_or_else(|| all.clone());
    let mut receivers = workload.receivers.clone().unwrap_or(all);
    let per_second = match &workload.pattern {
        Pattern::OpenLoop { .. } => {
            1.0 / stream.mean_gap(fabric.host_rate()).ok().flatten()?.as_secs_f64()
        }
        Pattern::Periodic { rate, sizes, .. } => rate.0 as f64 / 8.0 / sizes.mean(),
        Pattern::RecurringIncast {
            senders: given, receiver, messages_per_sender, every, ..
        } => {
            receivers = receiver.map_or(receivers, |host| host.0..host.0 + 1);
            let inside = if receiver.is_some() { common(&senders, &receivers) } else { 1.0 };
            let others = (length(&senders) - inside).max(1.0);
            let of_each = given.map_or(others, f64::from) * *messages_per_sender as f64;
            of_each
                / every.as_secs_f64()
                / if receiver.is_some() { others } else { length(&senders) }
        }
        _ => return None,
    };
    Some((senders, receivers, per_second))
}

/// Returns what the control packets of a stream's messages depend on, for each [`Part`]. Other streams are left out.
pub fn surroundings(stream: &StreamConfig, fabric: &Fabric) -> impl Fn(Part) -> Surroundings {
    let smallest = Framing { max_payload: 1, header_bytes: 0, spray_above_bytes: u32::MAX };
    let control_rtt = fabric.base_rtt(smallest, frame::wire_bytes(0));
    let mut at = Surroundings::alone(fabric.host_rate(), control_rtt);
    let [mut there, mut back] = [0.0; 2];
    let sizes = stream.workload.pattern.sizes();
    if let (Some((senders, receivers, per_second)), Some(sizes)) = (rate_of(stream, fabric), sizes)
    {
        let framing = stream.transport.framing();
        let seconds = |bytes: u64| {
            framing.message_wire_bytes(bytes) as f64 * 8.0 / fabric.host_rate().0 as f64
        };
        let response = |size| stream.workload.exchange.response_bytes(size).map_or(0.0, seconds);
        let at_receiver = per_second * length(&senders) / length(&receivers).max(1.0);
        let both = common(&senders, &receivers);
        let share = |of: &Range<u32>| both / length(of).max(1.0);
        there = at_receiver * sizes.mean_of(seconds);
        back = per_second * sizes.mean_of(response);
        // A host that sends and receives has both.
        (there, back) = (there + back * share(&receivers), back + there * share(&senders));
        let others = length(&receivers) - share(&senders);
        at.per_second = per_second / others.max(1.0);
    }
    let is_answered = stream.workload.exchange != Exchange::OneWay;
    move |part| match part {
        Part::Response => Surroundings { busy: back.min(1.0), part, ..at },
        _ if is_answered => Surroundings { busy: there.min(1.0), part: Part::Request, ..at },
        _ => Surroundings { busy: there.min(1.0), ..at },
    }
}

impl Flow {
    /// Of a stream; `None` if it has no rate.
    fn of(stream: &StreamConfig, fabric: &Fabric) -> Option<Self> {
        let (senders, receivers, per_second) = rate_of(stream, fabric)?;
        let sizes = stream.workload.pattern.sizes()?;
        let at = surroundings(stream, fabric);
        let bytes = |size, part| stream.transport.wire_bytes_of(size, &at(part));
        let both = |size: u64| {
            let [there, back] = bytes(size, Part::Request);
            let response = stream.workload.exchange.response_bytes(size);
            let [back_of, there_of] = response.map_or([0.0; 2], |size| bytes(size, Part::Response));
            [there + there_of, back + back_of]
        };
        Some(Self {
            senders,
            receivers,
            per_second,
            there: sizes.mean_of(|size| both(size)[0]),
            back: sizes.mean_of(|size| both(size)[1]),
        })
    }

    /// Returns the bits in a second that leave a group of hosts, and that enter it. A group of one host has all of its own.
    fn across(&self, group: &Range<u32>) -> [f64; 2] {
        let outside = length(&self.receivers) - common(group, &self.receivers);
        // Senders that receive too have one receiver less to choose from.
        let both =
            self.senders.start.max(self.receivers.start)..self.senders.end.min(self.receivers.end);
        let (all, fewer) = (length(&self.receivers), length(&self.receivers) - 1.0);
        let chosen = |senders_of: f64, both_of: f64, to: f64| {
            let per = |others: f64| if others > 0.0 { to / others } else { 0.0 };
            self.per_second * ((senders_of - both_of) * per(all) + both_of * per(fewer))
        };
        let (own, own_both) = (common(group, &self.senders), common(group, &both));
        let out = chosen(own, own_both, outside);
        let into = chosen(
            length(&self.senders) - own,
            length(&both) - own_both,
            common(group, &self.receivers),
        );
        [out * self.there + into * self.back, into * self.there + out * self.back]
            .map(|bytes| bytes * 8.0)
    }
}

impl Offered {
    /// Of a point; `None` if no stream has a rate.
    #[must_use]
    pub fn of(point: &PointSpec) -> Option<Self> {
        let fabric = &point.fabric;
        let (mut flows, mut without_rate) = (Vec::new(), Vec::new());
        for stream in &point.config.streams {
            match Flow::of(stream, fabric) {
                Some(flow) => flows.push(flow),
                None => without_rate.push(stream.workload.pattern.name().to_owned()),
            }
        }
        if flows.is_empty() {
            return None;
        }
        let mut tiers = Vec::new();
        let mut add =
            |group, links: [&'static str; 2], name: &str, groups: Vec<Range<u32>>, bps: f64| {
                let across = |group: &Range<u32>| {
                    let flows = flows.iter().map(|flow| flow.across(group));
                    flows.fold([0.0; 2], |sum, of| [sum[0] + of[0], sum[1] + of[1]])
                };
                let shares: Vec<[f64; 2]> =
                    groups.iter().map(|group| across(group).map(|of| of / bps)).collect();
                for (nth, links) in links.into_iter().enumerate() {
                    let of = || shares.iter().map(|both| both[nth]);
                    let most = of().fold(0.0, f64::max);
                    let at = of().position(|share| share >= most * (1.0 - 1e-9)).unwrap_or(0);
                    let mean = of().sum::<f64>() / shares.len().max(1) as f64;
                    tiers.push(Tier { links, group, mean, most, at: format!("{name} {at}") });
                }
            };
        let each = |of: u32| (0..fabric.hosts() / of).map(|nth| nth * of..(nth + 1) * of).collect();
        add(
            "load of hosts",
            ["hosts send", "hosts receive"],
            "host",
            each(1),
            fabric.host_rate().0 as f64,
        );
        match fabric.config().topology {
            Topology::Dumbbell { left, right, core_link, .. } => {
                let sides = vec![0..left, left..left + right];
                add("load of core", ["core out", "core in"], "side", sides, core_link.0 as f64);
            }
            Topology::LeafSpine { hosts_per_leaf, spines, core_link, .. } => {
                let bps = f64::from(spines) * core_link.0 as f64;
                add(
                    "load of leaves",
                    ["leaves up", "leaves down"],
                    "leaf",
                    each(hosts_per_leaf),
                    bps,
                );
            }
            Topology::FatTree { k, aggregation_link, core_link, .. } => {
                let half = f64::from(k) / 2.0;
                let edge = half * aggregation_link.0 as f64;
                add("load of edges", ["edges up", "edges down"], "edge", each(k / 2), edge);
                let pod = half * half * core_link.0 as f64;
                add("load of pods", ["pods up", "pods down"], "pod", each(k * k / 4), pod);
            }
            Topology::SingleSwitch { .. } | Topology::Pod(_) => {}
        }
        Some(Self { tiers, without_rate })
    }

    /// Whether some link is offered more than it carries.
    pub(crate) fn exceeds_a_link(&self) -> bool {
        self.tiers.iter().any(|tier| tier.most > 1.0)
    }

    /// Names the links that are offered what they hardly carry, or more.
    pub(crate) fn full(&self) -> impl Iterator<Item = String> {
        let full = self.tiers.iter().filter(|tier| tier.most >= NEARLY_FULL);
        full.map(|tier| {
            let (at, times) = (&tier.at, short(tier.most));
            match tier.links {
                "hosts send" => format!("offered by {at}: {times} times its link"),
                "hosts receive" => format!("offered to {at}: {times} times its link"),
                links => format!("offered to {links} at {at}: {times} times its links"),
            }
        })
    }

    /// Returns the table's lines for a terminal, without their names.
    pub(crate) fn lines(&self) -> Vec<String> {
        let tier = |tier: &Tier| {
            let [mean, most] = [tier.mean, tier.most].map(|share| short(share * 100.0));
            let at =
                if mean == most { String::new() } else { format!(", {most} % at {}", tier.at) };
            format!("{} {mean} %{at}", tier.links)
        };
        let mut lines: Vec<String> = self
            .tiers
            .chunks(2)
            .map(|both| both.iter().map(tier).collect::<Vec<_>>().join("; "))
            .collect();
        if !self.without_rate.is_empty() {
            lines.push(format!("and what has no rate: {}", self.without_rate.join(", ")));
        }
        lines
    }

    /// Says which links are offered what they hardly carry, or more.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        self.full().map(|link| {
            format!(
                "{link}; without a steady state the run ends as overloaded, or at its time limit"
            )
        })
    }
}

#[cfg(test)]
mod tests;

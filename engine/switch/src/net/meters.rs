//! Traffic over time: the bytes of each interval on chosen links.

use rackweave_core::{HostId, PacketRef, PayloadStore, Span, SwitchProgram, Time};

use super::{METERED, Net};
use crate::fabric::Node;

/// The most intervals that a meter keeps. Later traffic is not counted.
const MAX_INTERVALS: usize = 1 << 20;

/// Which packets a meter counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// The links, as the fabric numbers them.
    pub links: Vec<u32>,
    /// Counts only while these links lead to this switch, in a fabric whose circuits change.
    pub into: Option<u32>,
    /// The hosts that have sent the packets; empty for all. What the program of a switch has made comes from no host.
    pub from: Vec<HostId>,
    /// The length of an interval.
    pub interval: Span,
}

/// The meters of a network.
#[derive(Debug, Default)]
pub(super) struct Meters(Vec<Meter>);

#[derive(Debug)]
struct Meter {
    config: MeterConfig,
    /// The bytes of each interval.
    bytes: Vec<u64>,
}

impl<P: SwitchProgram, B: PayloadStore<P::Header>> Net<P, B> {
    /// Counts the bytes on some links over time, from now on. Returns the number of the meter, counted from 0.
    pub fn add_meter(&mut self, config: MeterConfig) -> u32 {
        for &link in &config.links {
            self.links[link as usize].special |= METERED;
        }
        self.meters.0.push(Meter { config, bytes: Vec::new() });
        self.meters.0.len() as u32 - 1
    }

    /// The bytes of each interval since time 0, preamble and gap included, in each meter. A packet counts in the interval in which its
    /// first bit was sent. Intervals after the last packet are missing.
    #[must_use]
    pub fn metered(&self) -> Vec<Vec<u64>> {
        self.meters.0.iter().map(|meter| meter.bytes.clone()).collect()
    }

    /// Meters a packet that is put on a link.
    #[cold]
    pub(super) fn meter(&mut self, link: u32, packet: PacketRef, start: Time) {
        let bytes = u64::from(self.pool.wire_bytes(packet));
        let src = self.pool.get(packet).src;
        let end = self.links[link as usize].to.switch();
        for Meter { config, bytes: intervals } in &mut self.meters.0 {
            let is_counted = config.links.contains(&link)
                && (config.into.is_none() || config.into == end)
                && (config.from.is_empty() || config.from.contains(&src));
            let interval = (start.ticks() / config.interval.ticks().max(1)) as usize;
            if !is_counted || interval >= MAX_INTERVALS {
                continue;
            }
            if intervals.len() <= interval {
                intervals.resize(interval + 1, 0);
            }
            intervals[interval] += bytes;
        }
    }

    /// The links that lead to a switch, or can lead there after a change of circuits.
    #[must_use]
    pub fn links_into(&self, switch: u32) -> Vec<u32> {
        let links = self.fabric.links().iter().zip(0..);
        let leads = |link: u32, to: Node| to == Node::Switch(switch) || self.fabric.is_at_ocs(link);
        links.filter(|(spec, link)| leads(*link, spec.to)).map(|(_, link)| link).collect()
    }
}

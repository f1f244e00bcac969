//! Priority flow control (IEEE 802.1Qbb): thresholds, and the headroom that they need.

use rackweave_core::{Span, frame};

use crate::PRIORITIES;
use crate::config::{BufferConfig, FabricConfig};
use crate::fabric::{Fabric, FabricError, Node};

/// The bytes of a full packet on the link.
const FULL_PACKET: u64 = frame::wire_bytes(frame::MTU) as u64;

/// The bytes of a pause frame on the link: the smallest frame of Ethernet.
pub(crate) const PAUSE_BYTES: u32 = frame::wire_bytes(0);

/// Priority flow control of all switches: a switch counts the bytes that wait in it by the port and the priority by which
/// they came, and pauses the other end of the cable before there is no room.
///
/// The defaults follow HPCC's simulator (SIGCOMM'19, section 5.1): a dynamic threshold, and a headroom that holds what arrives before a
/// pause takes effect. Its size is our choice, and each lossless priority has its own: in that simulator a port has one for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PfcConfig {
    /// The lossless priorities, a bit each. Packets of others are dropped at the threshold.
    pub priorities: u8,
    /// XOFF: a port and priority with more bytes are paused. `None`: `alpha` times the free bytes of the buffer.
    pub xoff_bytes: Option<u64>,
    /// XON: it resumes with this many bytes less than XOFF.
    pub hysteresis_bytes: u64,
    /// The bytes that a port and priority may hold beyond XOFF. `None`: [`Fabric::headroom`].
    pub headroom_bytes: Option<u64>,
}

impl Default for PfcConfig {
    /// All priorities are lossless, and resume two packets below the threshold (HPCC's simulator: 3 KB).
    fn default() -> Self {
        Self {
            priorities: u8::MAX,
            xoff_bytes: None,
            hysteresis_bytes: 2 * FULL_PACKET,
            headroom_bytes: None,
        }
    }
}

impl PfcConfig {
    /// These priorities are lossless, a bit each.
    #[must_use]
    pub const fn with_priorities(mut self, priorities: u8) -> Self {
        self.priorities = priorities;
        self
    }

    /// A port and priority with more bytes are paused.
    #[must_use]
    pub const fn with_xoff(mut self, bytes: u64) -> Self {
        self.xoff_bytes = Some(bytes);
        self
    }

    /// A port and priority may hold this many bytes beyond the threshold.
    #[must_use]
    pub const fn with_headroom(mut self, bytes: u64) -> Self {
        self.headroom_bytes = Some(bytes);
        self
    }

    /// The lists of a port that are lossless, a bit each: without priorities a port has one.
    pub(crate) const fn classes(&self, priorities: bool) -> u8 {
        match (priorities, self.priorities) {
            (true, classes) => classes,
            (false, 0) => 0,
            (false, _) => 1,
        }
    }
}

/// The part of a buffer that thresholds divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool {
    /// Its bytes, without headroom.
    pub(crate) bytes: u64,
    pub(crate) used: u64,
    /// The threshold factor, in units of 1/256.
    alpha_256: u64,
    xoff: Option<u64>,
}

impl Pool {
    /// The bytes above which a port and priority are paused.
    pub(crate) fn threshold(&self) -> u64 {
        let free = self.bytes.saturating_sub(self.used);
        let dynamic = u128::from(free) * u128::from(self.alpha_256) / 256;
        self.xoff.unwrap_or(u64::try_from(dynamic).unwrap_or(u64::MAX))
    }

    /// The bytes at which a port and priority are paused that are alone in the buffer.
    fn threshold_alone(&self) -> u64 {
        let dynamic =
            u128::from(self.bytes) * u128::from(self.alpha_256) / u128::from(256 + self.alpha_256);
        self.xoff.unwrap_or(u64::try_from(dynamic).unwrap_or(u64::MAX))
    }

    pub(crate) fn admits(&self, held: u64, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.bytes && held + bytes <= self.threshold()
    }
}

impl Fabric {
    /// From a pause frame's last bit to its effect at the other end of a cable: the cable's delay, and the time that switches take
    /// for any packet (our choice, for hosts' NICs too). The delays of hosts beyond the NIC have no part in it.
    #[must_use]
    pub fn pause_delay(&self, link: u32) -> Span {
        let spec = &self.links()[link as usize];
        let FabricConfig { host_receive_delay, switch, .. } = self.config();
        match spec.to {
            Node::Switch(_) => spec.delay,
            Node::Host(_) => spec.delay.saturating_sub(*host_receive_delay) + switch.latency,
        }
    }

    /// The bytes of one priority that can still arrive by a link when its switch decides to pause it (IEEE 802.1Qbb, annex O): the
    /// packet that crossed the threshold; what the link carries while the pause frame waits for a full packet, is sent and takes
    /// effect; a full packet that has just begun by then; and what is on the link. All priorities may have pause frames to send.
    #[must_use]
    pub fn headroom(&self, link: u32) -> u64 {
        let Some(pfc) = self.config().switch.pfc else { return 0 };
        if let Some(bytes) = pfc.headroom_bytes {
            return bytes;
        }
        let spec = &self.links()[link as usize];
        let frames = self.lossless_classes().count_ones() * PAUSE_BYTES;
        let back = &self.links()[self.reverse(link) as usize];
        let silence = back.span_of(FULL_PACKET as u32 + frames)
            + self.pause_delay(self.reverse(link))
            + spec.delay;
        // A byte for what rounding leaves out.
        2 * FULL_PACKET + spec.rate.bytes_in(silence) + 1
    }

    /// The lists of a port that are lossless, a bit each.
    #[must_use]
    pub fn lossless_classes(&self) -> u8 {
        let switch = &self.config().switch;
        switch.pfc.map_or(0, |pfc| pfc.classes(switch.priorities))
    }

    /// The bytes above which a port and priority are paused (XOFF), if they are alone at the first switch.
    #[must_use]
    pub fn pause_threshold(&self) -> Option<u64> {
        self.config().switch.pfc?;
        self.pools().first().map(Pool::threshold_alone)
    }

    /// The headroom of the links into a switch together, all priorities.
    fn headroom_of(&self, switch: u32) -> u64 {
        let into = self.ports(switch).map(|port| self.headroom(self.reverse(port)));
        let all = into.fold(0_u64, u64::saturating_add);
        all.saturating_mul(u64::from(self.lossless_classes().count_ones()))
    }

    /// The buffers that thresholds divide: of each switch if its ports share one, otherwise of each link into a switch.
    pub(crate) fn pools(&self) -> Vec<Pool> {
        let switch = &self.config().switch;
        let xoff = switch.pfc.and_then(|pfc| pfc.xoff_bytes);
        let classes = u64::from(self.lossless_classes().count_ones());
        let pool = |buffer: u64, headroom: u64, alpha_256| Pool {
            bytes: if buffer == u64::MAX { buffer } else { buffer.saturating_sub(headroom) },
            used: 0,
            alpha_256,
            xoff,
        };
        match switch.buffer {
            BufferConfig::Shared { bytes, alpha } => {
                let alpha = (alpha * 256.0) as u64;
                let all = 0..self.switches();
                all.map(|number| pool(bytes, self.headroom_of(number), alpha)).collect()
            }
            BufferConfig::PerPort { bytes } => {
                let all = 0..self.links().len() as u32;
                all.map(|link| pool(bytes, self.headroom(link).saturating_mul(classes), 256))
                    .collect()
            }
        }
    }

    /// Checks that PFC can keep its promise.
    pub(crate) fn check_pfc(&self) -> Result<(), FabricError> {
        let switch = &self.config().switch;
        if switch.pfc.is_none() {
            return Ok(());
        }
        let unfit = [
            (switch.trim.is_some(), "trimming: its queues are never full"),
            (switch.options.by_remaining, "pFabric's queues, which have no priorities"),
            (switch.options.selective_drop, "selective dropping, which loses packets"),
            (self.pod().is_some(), "pods, whose cables change their ends"),
        ];
        if let Some((_, what)) = unfit.into_iter().find(|(is_so, _)| *is_so) {
            return Err(FabricError::PfcWith(what));
        }
        let (buffer, is_shared) = match switch.buffer {
            BufferConfig::Shared { bytes, .. } => (bytes, true),
            BufferConfig::PerPort { bytes } => (bytes, false),
        };
        let headroom = if is_shared {
            (0..self.switches()).map(|number| self.headroom_of(number)).max().unwrap_or(0)
        } else {
            self.most_headroom()
        };
        if buffer < headroom.saturating_add(2 * FULL_PACKET) {
            let place = if is_shared { "in one switch" } else { "at one port" };
            return Err(FabricError::NoHeadroom { place, headroom, buffer });
        }
        Ok(())
    }

    /// The largest headroom of a port, all priorities together.
    #[must_use]
    pub fn most_headroom(&self) -> u64 {
        let classes = u64::from(self.lossless_classes().count_ones());
        let all =
            self.links_into_switches().map(|link| self.headroom(link).saturating_mul(classes));
        all.max().unwrap_or(0)
    }

    fn links_into_switches(&self) -> impl Iterator<Item = u32> + '_ {
        let all = self.links().iter().zip(0..);
        all.filter(|(spec, _)| matches!(spec.to, Node::Switch(_))).map(|(_, link)| link)
    }
}

/// Bytes per list of a port.
pub(crate) type PerClass = [u64; PRIORITIES];

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;

    use super::*;
    use crate::config::SwitchConfig;

    /// 100 Gbps, 50 ns of cable, 250 ns in the switch, 500 ns in the host.
    #[test]
    fn the_headroom_is_what_arrives_before_a_pause_takes_effect() {
        let fabric = FabricConfig::single_switch(2, Rate::from_gbps(100));
        let one = SwitchConfig::default().with_pfc(PfcConfig::default().with_priorities(1 << 3));
        let fabric = Fabric::new(&fabric.with_switch(one)).unwrap();
        let (pause, packets) = (300, 50 + 250 + 500);
        // 12.5 bytes per nanosecond; a packet and a pause frame back, two packets beyond.
        let expected = (pause + packets) * 25 / 2 + 3 * 1538 + 84;
        assert!(fabric.headroom(0).abs_diff(expected) <= 1, "{}", fabric.headroom(0));
        // A port has 500 KB; a single priority gets half of the rest.
        assert_eq!(fabric.pause_threshold(), Some((500_000 - fabric.headroom(0)) / 2));
    }

    #[test]
    fn what_cannot_be_lossless_is_refused() {
        let with = |switch: SwitchConfig| {
            let fabric = FabricConfig::single_switch(32, Rate::from_gbps(100)).with_switch(switch);
            Fabric::new(&fabric).map(|_| ()).unwrap_err().to_string()
        };
        let pfc = SwitchConfig::default().with_pfc(PfcConfig::default());
        assert_eq!(
            with(pfc.with_pfabric()),
            "PFC does not go with pFabric's queues, which have no priorities"
        );
        let small = with(pfc.with_shared_buffer(1_000_000, 1.0));
        assert!(small.starts_with("PFC needs a headroom of "), "{small}");
        assert!(small.contains("in one switch") && small.ends_with("has 1000000 bytes"), "{small}");
    }
}

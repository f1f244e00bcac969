//! Forwarding in fabrics whose hosts are numbered leaf by leaf.
//!
//! A switch has the range of hosts below it and the number of them behind each of its down ports; packets to all
//! other hosts go up. Forwarding is a division instead of a table lookup, so a fabric of 16,000 hosts needs no
//! routing state in the cache. While links are down, a table of detours is used.

use rackweave_core::rng::mix;
use rackweave_core::{Header, HostId, Packet, Port, Rng};

/// How a switch chooses one of several equal-cost ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathChoice {
    /// As the packet requests: by its flow, at random for each packet, or by the path number that its sender
    /// has set.
    Packet,
    /// By a hash of addresses and ports, for all packets (ECMP).
    Flow,
    /// At random for each packet (packet spraying).
    Spray,
}

/// The forwarder of one switch.
#[derive(Clone, Debug)]
pub struct Forwarder {
    /// First host below this switch.
    first_host: u32,
    /// Number of hosts below it.
    host_count: u32,
    /// Number of hosts behind each down port.
    hosts_per_port: u32,
    /// Number of the first up port: the down ports come before.
    first_up: u16,
    /// Number of up ports.
    up_count: u16,
    choice: PathChoice,
    /// Number of paths below each of its up ports: a packet's path number is divided by it here.
    stride: u32,
    /// Makes switches hash differently; otherwise flows that share one link would share the next.
    salt: u64,
    rng: Rng,
    detours: Option<Box<Detours>>,
}

/// Working ports towards each group of hosts while some link is down.
#[derive(Clone, Debug)]
struct Detours {
    hosts_per_group: u32,
    ports: Vec<Vec<u16>>,
}

impl Forwarder {
    /// Forwards to `hosts_per_port` hosts through each port before `first_up`, beginning with `first_host`, and to
    /// all other hosts through the `up_count` ports from `first_up` on.
    ///
    /// # Panics
    /// If `hosts_per_port` is 0.
    #[must_use]
    pub fn new(
        first_host: HostId,
        hosts_per_port: u32,
        first_up: u16,
        up_count: u16,
        choice: PathChoice,
        rng: Rng,
    ) -> Self {
        assert!(hosts_per_port > 0, "each down port leads to a host");
        let mut rng = rng;
        let salt = rng.next_u64();
        Self {
            first_host: first_host.0,
            host_count: u32::from(first_up) * hosts_per_port,
            hosts_per_port,
            first_up,
            up_count,
            choice,
            stride: 1,
            salt,
            rng,
            detours: None,
        }
    }

    /// The same forwarder for a switch above others, which have already chosen one of `stride` paths. A path number
    /// is a number in mixed radix whose digits, the lowest first, are the up ports along the path.
    #[must_use]
    pub fn with_stride(mut self, stride: u32) -> Self {
        self.stride = stride.max(1);
        self
    }

    /// Installs detours: packets to a host leave by one of `ports[host / hosts_per_group]`, and packets to a group
    /// without ports are dropped.
    pub fn detour(&mut self, hosts_per_group: u32, ports: Vec<Vec<u16>>) {
        self.detours = Some(Box::new(Detours { hosts_per_group, ports }));
    }

    /// Removes the detours. Called when all links work.
    pub fn clear_detours(&mut self) {
        self.detours = None;
    }

    /// The random stream of this switch.
    pub const fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// The output port of a packet; `None` if there is no path.
    #[inline]
    pub fn route<H: Header>(&mut self, packet: &Packet<H>) -> Option<Port> {
        if self.detours.is_some() {
            return self.route_around(packet);
        }
        let down = self.downlink_port(packet.dst);
        if down.is_some() {
            return down;
        }
        match self.up_count {
            0 => None,
            1 => Some(Port(self.first_up)),
            n => Some(Port(self.first_up + self.pick(packet, n))),
        }
    }

    /// The port that [`Self::route`] would choose now, where all links work. A packet that is handled in between may draw the
    /// same random number, so that this is a guess.
    #[must_use]
    #[inline]
    pub fn guess<H: Header>(&self, packet: &Packet<H>) -> Option<Port> {
        let down = self.downlink_port(packet.dst);
        if down.is_some() {
            return down;
        }
        match self.up_count {
            0 => None,
            1 => Some(Port(self.first_up)),
            n => {
                let up = self.determined(packet, n);
                let up = up.unwrap_or_else(|| scale(self.rng.peek_u64(), n));
                Some(Port(self.first_up + up))
            }
        }
    }

    /// The port down to a host, if it is below this switch and all links work.
    #[must_use]
    #[inline]
    pub const fn downlink_port(&self, dst: HostId) -> Option<Port> {
        let below = dst.0.wrapping_sub(self.first_host);
        if below >= self.host_count {
            return None;
        }
        // A leaf needs no division, which costs time.
        let port = if self.hosts_per_port == 1 { below } else { below / self.hosts_per_port };
        Some(Port(port as u16))
    }

    #[cold]
    fn route_around<H: Header>(&mut self, packet: &Packet<H>) -> Option<Port> {
        // A leaf reaches its own hosts without a detour.
        let below = packet.dst.0.wrapping_sub(self.first_host);
        if self.hosts_per_port == 1 && below < self.host_count {
            return Some(Port(below as u16));
        }
        let detours = self.detours.take()?;
        let group = packet.dst.0 / detours.hosts_per_group;
        let ports = detours.ports.get(group as usize).filter(|ports| !ports.is_empty());
        let port =
            ports.map(|ports| Port(ports[usize::from(self.pick(packet, ports.len() as u16))]));
        self.detours = Some(detours);
        port
    }

    /// Chooses one of `n` equal-cost ports.
    #[inline]
    fn pick<H: Header>(&mut self, packet: &Packet<H>, n: u16) -> u16 {
        self.determined(packet, n).unwrap_or_else(|| scale(self.rng.next_u64(), n))
    }

    /// The one of `n` equal-cost ports that a packet determines by itself; `None` if it is drawn at random.
    #[inline]
    fn determined<H: Header>(&self, packet: &Packet<H>, n: u16) -> Option<u16> {
        let spray = match self.choice {
            PathChoice::Packet => packet.is_sprayed(),
            PathChoice::Flow => false,
            PathChoice::Spray => true,
        };
        if spray {
            // Path numbers are valid only while all links work.
            if self.choice == PathChoice::Packet
                && let Some(path) = packet.header.path()
                && self.detours.is_none()
            {
                return Some((u32::from(path) / self.stride % u32::from(n)) as u16);
            }
            return None;
        }
        let hosts = u64::from(packet.src.0) << 32 | u64::from(packet.dst.0);
        Some(scale(mix(mix(hosts ^ self.salt) ^ u64::from(packet.ports)), n))
    }
}

/// Maps the upper half of uniformly distributed bits to `0..n`.
#[inline]
const fn scale(random: u64, n: u16) -> u16 {
    (((random >> 32) * n as u64) >> 32) as u16
}

#[cfg(test)]
mod tests {
    use rackweave_core::Slice;

    use super::*;

    /// A test header, with or without a path number.
    #[derive(Clone, Copy, Debug)]
    struct Empty(Option<u16>);
    impl Header for Empty {
        fn payload(&self) -> Option<Slice> {
            None
        }
        fn path(&self) -> Option<u16> {
            self.0
        }
    }

    fn packet(src: u32, dst: u32, port: u16) -> Packet<Empty> {
        Packet::new(HostId(src), HostId(dst), 1500, Empty(None)).with_ports(port, 80)
    }

    fn leaf(choice: PathChoice) -> Forwarder {
        // Hosts 16..32 below, one a port; four spines above.
        Forwarder::new(HostId(16), 1, 16, 4, choice, Rng::stream(1, 0, 1, "switch"))
    }

    #[test]
    fn down_to_the_host_or_up() {
        let mut leaf = leaf(PathChoice::Packet);
        assert_eq!(leaf.route(&packet(0, 16, 1)), Some(Port(0)));
        assert_eq!(leaf.route(&packet(0, 31, 1)), Some(Port(15)));
        for dst in [0, 15, 32, u32::MAX] {
            let Port(port) = leaf.route(&packet(20, dst, 1)).unwrap();
            assert!((16..20).contains(&port));
        }
        let rng = Rng::stream(1, 0, 2, "switch");
        let mut spine = Forwarder::new(HostId(0), 16, 9, 0, PathChoice::Packet, rng);
        assert_eq!(spine.route(&packet(0, 16, 1)), Some(Port(1)));
        assert_eq!(spine.route(&packet(0, 144, 1)), None);
    }

    #[test]
    fn a_flow_keeps_its_path_and_flows_spread() {
        let mut leaf = leaf(PathChoice::Packet);
        let mut counts = [0; 4];
        for flow in 0..4000 {
            let packet = packet(20, 40, flow);
            let port = leaf.route(&packet).unwrap();
            assert_eq!(leaf.route(&packet), Some(port));
            counts[usize::from(port.0) - 16] += 1;
        }
        assert!(counts.iter().all(|c| (880..1120).contains(c)), "{counts:?}");
    }

    #[test]
    fn sprayed_packets_spread() {
        let mut leaf = leaf(PathChoice::Packet);
        let packet = packet(20, 40, 1).sprayed(true);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[usize::from(leaf.route(&packet).unwrap().0) - 16] += 1;
        }
        assert!(counts.iter().all(|c| (880..1120).contains(c)), "{counts:?}");
    }

    #[test]
    fn a_guess_is_right_if_no_other_packet_comes_first() {
        for choice in [PathChoice::Packet, PathChoice::Flow, PathChoice::Spray] {
            let mut leaf = leaf(choice);
            let mut wrong = 0;
            for flow in 0..1000 {
                let sprayed = flow % 2 == 0;
                let packet = packet(20, u32::from(flow % 64), flow).sprayed(sprayed);
                let guess = leaf.guess(&packet);
                assert_eq!(leaf.guess(&packet), guess, "a guess draws nothing");
                if flow % 5 == 0 {
                    let _ = leaf.route(&self::packet(20, 40, 1).sprayed(true));
                    wrong += u32::from(leaf.route(&packet) != guess);
                } else {
                    assert_eq!(leaf.route(&packet), guess);
                }
            }
            assert_eq!(wrong > 0, choice != PathChoice::Flow, "{wrong} of 200");
        }
    }

    #[test]
    fn only_sprayed_packets_follow_a_named_path() {
        let named = |path| {
            let mut packet = packet(20, 40, 1).sprayed(true);
            packet.header = Empty(Some(path));
            packet
        };
        let mut leaf = leaf(PathChoice::Packet);
        let mut second = leaf.clone().with_stride(4);
        for path in 0..16 {
            assert_eq!(leaf.route(&named(path)), Some(Port(16 + path % 4)));
            assert_eq!(second.route(&named(path)), Some(Port(16 + path / 4)));
        }
        assert!(leaf.route(&named(u16::MAX - 1)).is_some(), "any number is some path");
        let of_flow = leaf.route(&packet(20, 40, 1));
        assert!((0..16).all(|path| leaf.route(&named(path).sprayed(false)) == of_flow));
        let mut random = self::leaf(PathChoice::Spray);
        let ports: Vec<_> = (0..64).map(|_| random.route(&named(1))).collect();
        assert!(ports.iter().any(|port| *port != ports[0]));
    }

    #[test]
    fn detours_avoid_dead_links() {
        let mut leaf = leaf(PathChoice::Spray);
        let mut ports = vec![vec![16, 17, 18, 19]; 9];
        ports[2] = vec![17, 19];
        ports[3].clear();
        leaf.detour(16, ports);
        for _ in 0..100 {
            assert!([17, 19].contains(&leaf.route(&packet(20, 32, 1)).unwrap().0));
        }
        assert_eq!(leaf.route(&packet(20, 48, 1)), None);
        leaf.clear_detours();
        assert!(leaf.route(&packet(20, 48, 1)).is_some());
    }
}

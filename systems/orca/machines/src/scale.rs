//! The size of Orca's state, measured in the real tables: by default for a million sessions on 27,648 hosts, as in the
//! paper's simulation (NSDI '22, abstract).

mod elmo;

use std::sync::Arc;

use rackweave_core::{HostId, Node as _, Packet, Rng, Span, Time};
use rackweave_wire::orca::{Body, Control, Header, Label, Place, Session};

use super::agent::Agent;
use super::controller::{Controller, ControllerConfig};
use super::host::packet;
use super::label::{LabelError, Layout};
use super::switch::Register;
use elmo::{Elmo, Encoding};

pub use elmo::ElmoConfig;

/// How members are placed in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// Each member is at a random host.
    Uniform,
    /// This many per rack, in random racks, as with a placement that keeps tenants together.
    PerRack(u32),
}

/// The fabric and the sessions to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleConfig {
    /// The number of pods.
    pub pods: u32,
    /// The number of racks in each pod.
    pub racks_per_pod: u32,
    /// The number of hosts in each rack, all of them agents.
    pub hosts_per_rack: u32,
    /// The number of sessions.
    pub sessions: u32,
    /// The smallest and the largest number of members of a session; the number is uniform between them.
    pub members: (u32, u32),
    /// How members are placed in the fabric.
    pub placement: Members,
    /// The bits of the filter in labels; 0: none.
    pub filter_bits: u32,
    /// Elmo's parameters.
    pub elmo: ElmoConfig,
    /// The number of changes, alternately joins and leaves, that are carried out and counted.
    pub changes: u32,
    /// The seed of all random choices.
    pub seed: u64,
}

impl Default for ScaleConfig {
    /// 12 pods of 48 racks of 48 hosts (27,648, as in the paper's simulation); a million sessions of 5 to 50 members.
    fn default() -> Self {
        Self {
            pods: 12,
            racks_per_pod: 48,
            hosts_per_rack: 48,
            sessions: 1_000_000,
            members: (5, 50),
            placement: Members::Uniform,
            filter_bits: 0,
            elmo: ElmoConfig::default(),
            changes: 1000,
            seed: 1,
        }
    }
}

/// The measured sizes, which are those of the real tables when filled.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct ScaleReport {
    /// The number of hosts.
    pub hosts: u32,
    /// The number of sessions.
    pub sessions: u32,
    /// The number of members of all sessions together.
    pub members: u64,
    /// The number of bits in a label: the longer of pilot and rack label, plus one bit that distinguishes the two.
    pub label_bits: u32,
    /// The number of bits in a label in the PEEL authors' model of Orca, with its filter of 16 bits.
    pub model_bits: u32,
    /// The number of bytes of a label in packets here, where it is rounded up to words of 4 bytes.
    pub label_bytes: u32,
    /// The size of the state that packets can change in each `ToR`, in bytes.
    pub tor_state_bytes: u32,
    /// The size of the state that packets can change in each other switch, in bytes.
    pub other_state_bytes: u32,
    /// The number of entries that all `ToR`s together would need with group tables: one for each session and rack with
    /// members.
    pub group_entries: u64,
    /// The size of the controller's store in bytes.
    pub controller_bytes: u64,
    /// The number of sessions in the table of an agent: the mean, and the largest.
    pub agent_sessions: (f64, u32),
    /// The size of the largest agent table in bytes.
    pub agent_bytes: u64,
    /// The number of racks without members that a packet reaches because its pilot label names them, per rack with
    /// members, over the first [`SAMPLED`] sessions.
    pub redundant_copies: f64,
    /// What packets of the first [`SAMPLED`] sessions cost beyond an ideal tree of copies without labels: the bytes on all links over
    /// the ideal ones, less 1, with [`PAYLOAD`] bytes in a packet.
    pub overhead: f64,
    /// The same for Elmo.
    pub elmo: ElmoReport,
    /// The number of changes that were carried out.
    pub changes: u64,
    /// The number of `Sync` packets that the controller sent per change. The `ToR` replicates each to its agents.
    pub syncs_per_change: f64,
    /// The number of confirmations received per change.
    pub confirmations_per_change: f64,
}

/// The same sessions with Elmo.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct ElmoReport {
    /// The mean size of a header as the sender sends it, over all sessions, in bytes.
    pub header_bytes: f64,
    /// The size of the longest header in bytes.
    pub longest_header_bytes: u32,
    /// The number of entries in the group tables of all leaf switches together.
    pub entries: u64,
    /// The number of entries of the fullest leaf switch.
    pub fullest_entries: u32,
    /// What packets cost beyond an ideal tree, as [`ScaleReport::overhead`].
    pub overhead: f64,
}

impl ScaleReport {
    /// Returns the bytes of the controller's store per session.
    #[must_use]
    pub fn controller_bytes_per_session(&self) -> f64 {
        self.controller_bytes as f64 / f64::from(self.sessions.max(1))
    }

    /// Returns the bytes of the largest agent table per session in it.
    #[must_use]
    pub fn agent_bytes_per_session(&self) -> f64 {
        self.agent_bytes as f64 / f64::from(self.agent_sessions.1.max(1))
    }
}

/// The number of sessions whose redundant copies are counted.
pub const SAMPLED: u32 = 10_000;

/// The bytes of a packet without a label or header. Rackweave's choice: the largest of an Ethernet frame, the case in which labels cost least.
pub const PAYLOAD: u32 = 1500;

/// The bytes that packets of sessions put on links.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// One copy over each link of an ideal tree, without a label.
    ideal: f64,
    orca: f64,
    elmo: f64,
}

impl Load {
    /// Adds a packet to members at these ports of racks. Up to the core it crosses three links; then one to each pod, rack and member,
    /// as Elmo's authors count. With Orca a rack's first copy goes to its active agent, here the host at port 0, which
    /// sends it back with the rack's label if others are members. Elmo's header loses what is above a switch.
    fn add(
        &mut self,
        racks: &[(u16, u64)],
        racks_per_pod: u32,
        (label, reached): (u32, u32),
        elmo: Encoding,
    ) {
        let mut pods: Vec<u32> =
            racks.iter().map(|(rack, _)| u32::from(*rack) / racks_per_pod).collect();
        pods.dedup();
        let members: u32 = racks.iter().map(|(_, ports)| ports.count_ones()).sum();
        let (pods, racks_with) = (pods.len() as f64, racks.len() as f64);
        let payload = f64::from(PAYLOAD);
        self.ideal += payload * (3.0 + pods + racks_with + f64::from(members));
        let to_hosts: u32 = racks
            .iter()
            .map(|(_, ports)| match (ports & 1, ports.count_ones()) {
                (1, 1) => 1,
                // To the agent, back, and to the other members.
                (1, all) => all + 1,
                (_, all) => all + 2,
            })
            .sum();
        let without = f64::from(reached) - racks_with;
        let crossings = 3.0 + pods + f64::from(reached) + f64::from(to_hosts) + without;
        self.orca += (payload + f64::from(label)) * crossings;
        let bytes = |bits: u32| payload + f64::from(bits.div_ceil(8));
        self.elmo += 3.0 * bytes(elmo.header_bits)
            + pods * bytes(elmo.below_core_bits)
            + (racks_with + f64::from(elmo.redundant_racks)) * bytes(elmo.below_spine_bits)
            + f64::from(members + elmo.redundant_hosts) * payload;
    }
}

/// Builds the state and measures it. The result depends on the settings only.
///
/// # Errors
/// [`LabelError`] if the fabric has no labels.
pub fn report(config: &ScaleConfig) -> Result<ScaleReport, LabelError> {
    let ScaleConfig { pods, racks_per_pod, hosts_per_rack, .. } = *config;
    let ups = racks_per_pod.max(1);
    let layout = Layout::tree(pods, racks_per_pod, hosts_per_rack, ups, ups)?;
    let layout = Arc::new(layout.with_filter(config.filter_bits)?);
    let mut elmo = Elmo::new(config.elmo, pods, racks_per_pod, hosts_per_rack);
    let (mut load, mut header_bits, mut longest) = (Load::default(), 0_u64, 0);
    let mut settings = ControllerConfig::new(HostId(0), Arc::clone(&layout), Span::from_secs(1000));
    settings.max_sessions = config.sessions.saturating_add(1);
    let mut controller = Controller::new(settings);
    let mut rng = Rng::stream(config.seed, 0, 0, "orca scale");
    let mut members = 0;
    let (mut wanted, mut reached) = (0_u64, 0_u64);
    let mut per_rack = vec![0_u32; usize::from(layout.racks())];
    for number in 0..config.sessions {
        let session = session(number);
        let sender = HostId(rng.below(u64::from(layout.hosts())) as u32);
        let racks = draw(config, &layout, &mut rng);
        for (rack, ports) in &racks {
            per_rack[usize::from(*rack)] += 1;
            members += u64::from(ports.count_ones());
        }
        let encoding = elmo.add(&racks);
        header_bits += u64::from(encoding.header_bits);
        longest = longest.max(encoding.header_bits);
        if number < SAMPLED {
            let label = layout.pilot(sender, racks.iter().map(|(rack, _)| *rack), number);
            let led = layout.racks_of(sender, label).count() as u32;
            wanted += racks.len() as u64;
            reached += u64::from(led);
            load.add(&racks, racks_per_pod, (4 * u32::from(layout.words()), led), encoding);
        }
        controller.restore(session, sender, &racks);
    }
    let fullest = (0..layout.racks()).max_by_key(|r| per_rack[usize::from(*r)]).unwrap_or(0);
    let agent_bytes = table_bytes(&layout, &controller, fullest);
    let group_entries = per_rack.iter().map(|sessions| u64::from(*sessions)).sum();
    let controller_bytes = controller.store().bytes() as u64;
    let (changes, syncs, confirmations) = change(config, &layout, &mut controller, &mut rng);
    let beyond = |bytes: f64| if load.ideal > 0.0 { bytes / load.ideal - 1.0 } else { 0.0 };
    let (entries, fullest_entries) = elmo.entries();
    let elmo = ElmoReport {
        header_bytes: header_bits as f64 / 8.0 / f64::from(config.sessions.max(1)),
        longest_header_bytes: longest.div_ceil(8),
        entries,
        fullest_entries,
        overhead: beyond(load.elmo),
    };
    let per_change = |n: u64| n as f64 / changes.max(1) as f64;
    Ok(ScaleReport {
        hosts: layout.hosts(),
        sessions: config.sessions,
        members,
        label_bits: layout.model_bits(0),
        model_bits: layout.model_bits(16_u32.saturating_sub(config.filter_bits)),
        label_bytes: 4 * u32::from(layout.words()),
        tor_state_bytes: size_of::<Register>() as u32,
        other_state_bytes: 0,
        group_entries,
        controller_bytes,
        agent_sessions: (
            group_entries as f64 / f64::from(layout.racks().max(1)),
            per_rack[usize::from(fullest)],
        ),
        agent_bytes,
        redundant_copies: reached.saturating_sub(wanted) as f64 / wanted.max(1) as f64,
        overhead: beyond(load.orca),
        elmo,
        changes,
        syncs_per_change: per_change(syncs),
        confirmations_per_change: per_change(confirmations),
    })
}

/// Returns the number of the n-th session. The numbers are scattered like random ones, but distinct.
const fn session(number: u32) -> Session {
    Session(number.wrapping_mul(0x9e37_79b1))
}

/// Draws a session's members: racks in order, each with its ports.
fn draw(config: &ScaleConfig, layout: &Layout, rng: &mut Rng) -> Vec<(u16, u64)> {
    let (fewest, most) = config.members;
    let size = fewest + rng.below(u64::from(most.saturating_sub(fewest)) + 1) as u32;
    let mut racks = std::collections::BTreeMap::<u16, u64>::new();
    let mut left = size.min(layout.hosts() / 2);
    while left > 0 {
        let rack = rng.below(u64::from(layout.racks())) as u16;
        let together = match config.placement {
            Members::Uniform => 1,
            Members::PerRack(n) => n.clamp(1, config.hosts_per_rack).min(left),
        };
        let ports = racks.entry(rack).or_default();
        for _ in 0..together {
            let port = rng.below(u64::from(config.hosts_per_rack));
            // A host that is drawn twice is one member.
            if *ports >> port & 1 == 0 {
                *ports |= 1 << port;
                left -= 1;
            }
        }
    }
    racks.into_iter().collect()
}

/// Returns the size of the table of an agent in this rack that holds all labels of the rack.
fn table_bytes(layout: &Layout, controller: &Controller, rack: u16) -> u64 {
    let place = Place { rack, port: 0 };
    let mut agent = Agent::new(place, u32::MAX, Span::from_ms(1), None);
    let store = controller.store();
    for slot in 0..store.slots() {
        let Some((session, _)) = store.slot(slot) else { continue };
        let ports = store.ports(session, rack);
        if ports != 0 {
            let _ = agent.handle_sync(session, layout.ports(Label(u128::from(ports))), 1);
        }
    }
    agent.table().bytes() as u64
}

/// Performs joins and leaves, which all agents of their racks confirm, and returns the counts.
fn change(
    config: &ScaleConfig,
    layout: &Layout,
    controller: &mut Controller,
    rng: &mut Rng,
) -> (u64, u64, u64) {
    let mut alive = std::collections::BTreeSet::new();
    let now = Time::ZERO;
    for number in 0..config.changes {
        let session = session(rng.below(u64::from(config.sessions.max(1))) as u32);
        let Some(known) = controller.store().get(session) else { continue };
        let joins = number % 2 == 0;
        let host = HostId(rng.below(u64::from(layout.hosts())) as u32);
        let leaving = controller.store().members(session).next();
        let host = match leaving.filter(|_| !joins) {
            Some((rack, ports)) => {
                let port = ports.trailing_zeros() as u8;
                layout.host(Place { rack, port }).unwrap_or(host)
            }
            None => host,
        };
        let rack = layout.place(host).rack;
        let agents = || (0..64).filter_map(move |port| layout.host(Place { rack, port }));
        if alive.insert(rack) {
            // The agents count as holding all labels, so that no resync is counted.
            for agent in agents() {
                controller.assume_live(now, agent);
            }
            while controller.poll_transmit(now, 0).is_some() {}
        }
        let body = Body::Member { host, joins, change: known.change.wrapping_add(1) };
        deliver(controller, known.sender, session, body);
        while let Some(Packet { header: Header::Control(control), .. }) =
            controller.poll_transmit(now, 0)
        {
            if let Body::Sync { version, .. } = control.body {
                for agent in agents() {
                    let place = layout.place(agent);
                    deliver(controller, agent, session, Body::SyncDone { place, version });
                }
            }
        }
    }
    let counters = controller.counters();
    (counters.changes, counters.syncs, counters.confirmed)
}

fn deliver(controller: &mut Controller, from: HostId, session: Session, body: Body) {
    let control = Control { from, to: HostId(0), session, body };
    controller.handle_packet(Time::ZERO, 0, &packet(from, HostId(0), 1, Header::Control(control)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_fabric_with_fewer_sessions() {
        let config = ScaleConfig { sessions: 20_000, changes: 200, ..ScaleConfig::default() };
        let report = report(&config).expect("labels");
        assert_eq!(report, super::report(&config).expect("labels"), "the same again");
        println!("{report:#?}");
        assert_eq!((report.hosts, report.label_bits, report.model_bits), (27_648, 73, 89));
        assert_eq!((report.tor_state_bytes, report.other_state_bytes), (8, 0));
        assert!((5 * 20_000..=50 * 20_000).contains(&report.members));
        assert!((150..=200).contains(&report.changes), "some were no change");
        assert!((0.9..=1.0).contains(&report.syncs_per_change), "{}", report.syncs_per_change);
        let confirmed = report.confirmations_per_change / report.syncs_per_change;
        assert!((confirmed - 48.0).abs() < 1e-9, "each of 48 agents confirms once");
        assert!(report.controller_bytes_per_session() < 250.0);
        assert!(report.agent_bytes_per_session() < 25.0);
        let filtered = ScaleConfig { filter_bits: 16, ..config };
        let filtered = super::report(&filtered).expect("labels");
        assert_eq!((filtered.label_bits, filtered.label_bytes), (89, 12));
        assert!(filtered.redundant_copies <= report.redundant_copies);
        assert!(report.elmo.longest_header_bytes <= 340, "{:?}", report.elmo);
        assert!(report.elmo.overhead < report.overhead, "Orca pays for short labels by copies");
        let together = ScaleConfig { placement: Members::PerRack(10), ..config };
        let less = super::report(&together).expect("labels");
        assert!(less.group_entries < report.group_entries / 3);
        assert!(less.controller_bytes < report.controller_bytes);
    }
}

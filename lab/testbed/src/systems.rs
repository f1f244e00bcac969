//! The group systems whose programs the user-space switch can run: the only list of them.
//!
//! A new system implements [`System`](rackweave_switch::system::System) in a crate below `systems/`, and is added to [`Systems`] and
//! [`ProgramName`] here. The systems of the tuple run on the same switches, each on its own packets.

use rackweave_aggregation::switch::Config as ReduceConfig;
use rackweave_aggregation::system::Reduce;
use rackweave_core::HostId;
use rackweave_lab::study::cast::Scheme;
use rackweave_lab::study::image::{self, ImageConfig, Redirects, hosts_per_rack};
use rackweave_orca::system::Orca;
use rackweave_switch::config::{FabricConfig, Topology};
use rackweave_swp2p::multicast::Multicast;
use rackweave_swp2p::system::Swp2p;
use rackweave_swp2p::{directory, switch};
use rackweave_wire::{frisbee, orca};

/// The systems that the switches of a fabric run; `None` for systems that they do not run.
pub type Systems = ((Option<Orca>, Option<Swp2p>), (Option<Multicast>, Option<Reduce>));

/// No system: switches only forward.
const NONE: Systems = ((None, None), (None, None));

/// The slots of a switch that adds up, unless the command says otherwise: 2 MB of keys and sums.
const SLOTS: u32 = 1 << 16;

/// Returns the systems that the testbed's switches run for a cast over this scheme.
pub(crate) fn of_scheme(scheme: &Scheme) -> Systems {
    match scheme {
        Scheme::Orca(orca) => {
            let orca = Orca { controller: orca.controller, key: None };
            ((Some(orca), None), NONE.1)
        }
        Scheme::Unicast { .. } | Scheme::Streams { .. } => NONE,
    }
}

/// Returns the systems that the testbed's switches run for an image. Its switches have SWP2P's program in the data plane,
/// or copy the packets of a Frisbee session to all of its members.
pub(crate) fn of_image(image: &ImageConfig) -> Systems {
    match &image.scheme {
        image::Scheme::P2p(scheme) if matches!(scheme.redirects, Redirects::Switches { .. }) => {
            let config = switch::Config {
                directory: scheme.directory,
                ..switch::Config::data_plane(image.server)
            };
            ((None, Some(Swp2p { config, key: None })), NONE.1)
        }
        // The members are those of the run: no switch here reads IGMP.
        image::Scheme::Frisbee { .. } => {
            let clients = image.clients.iter().map(|(host, _)| *host);
            let members = clients.chain([image.server]).collect();
            (NONE.0, (Some(Multicast { members }), None))
        }
        image::Scheme::P2p(_) => NONE,
    }
}

/// Returns the systems that the testbed's switches run for jobs: aggregation in the switch that they use.
pub(crate) fn of_reduce(jobs: &rackweave_lab::study::reduce::ReduceConfig) -> Systems {
    let reduce = jobs.switches.as_ref().map(|chosen| {
        let config = ReduceConfig::new(chosen.slots, rackweave_linux::random() as u64);
        let config = ReduceConfig { ways: chosen.ways, ..config };
        Reduce { config, switches: vec![chosen.number] }
    });
    (NONE.0, (None, reduce))
}

/// The name of a system's switch programs on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramName {
    /// Forwarding without any program.
    #[default]
    Plain,
    /// The label switches of Orca.
    Orca,
    /// SWP2P's redirection of requests for chunks of images.
    Swp2p,
    /// Aggregation of the pairs of `rackweave reduce`.
    Reduce,
}

/// What the command line says about a program, besides its name.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramOptions<'a> {
    /// The host of Orca's controller.
    pub controller: Option<HostId>,
    /// The host of SWP2P's server.
    pub server: Option<HostId>,
    /// The secret of all members, from which each system derives its key.
    pub secret: Option<&'a [u8]>,
    /// The number of slots of a switch that adds up.
    pub slots: Option<u32>,
    /// The number of slots of a bucket.
    pub ways: Option<u8>,
    /// The percentage of a switch that masters at one address can have; `None`: all of it.
    pub share: Option<u8>,
    /// The switches that add up; empty: all of them.
    pub aggregate_at: &'a [u32],
}

impl ProgramName {
    /// All names, in the order in which the command lists them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Orca, Self::Swp2p, Self::Reduce];

    /// Returns the name and a short help text.
    #[must_use]
    pub const fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Plain => ("plain", "Nothing"),
            Self::Orca => ("orca", "Orca: multicast by labels in packets"),
            Self::Swp2p => ("swp2p", "SWP2P: requests for chunks go to clients that have them"),
            Self::Reduce => ("reduce", "Aggregation: values of equal keys are added up"),
        }
    }

    /// Returns the systems for this name and these options, in the switches of a fabric.
    ///
    /// # Errors
    /// If an option is missing, or is of no use to the system.
    pub fn system(
        self,
        options: ProgramOptions<'_>,
        fabric: &FabricConfig,
    ) -> Result<Systems, &'static str> {
        let ProgramOptions { controller, server, secret, slots, ways, share, aggregate_at } =
            options;
        if controller.is_some() && self != Self::Orca {
            return Err("--controller is of use with --program orca only");
        }
        if server.is_some() && self != Self::Swp2p {
            return Err("--server is of use with --program swp2p only");
        }
        let of_reduce = slots.is_some() || ways.is_some() || share.is_some();
        if (of_reduce || !aggregate_at.is_empty()) && self != Self::Reduce {
            return Err(
                "--slots, --ways, --share and --aggregate-at are of use with --program reduce only",
            );
        }
        if secret.is_some() && !matches!(self, Self::Orca | Self::Swp2p) {
            return Err("--key-file is of use with --program orca and --program swp2p only");
        }
        let is_rewired = matches!(&fabric.topology, Topology::Pod(pod) if pod.has_ocs());
        if is_rewired && matches!(self, Self::Orca | Self::Swp2p) {
            // Orca's labels are ports of racks, and SWP2P prefers holders in them.
            return Err(
                "--program orca and --program swp2p run on fabrics with fixed racks, not on one with an \
                        optical circuit switch",
            );
        }
        match self {
            Self::Plain => Ok(NONE),
            Self::Reduce => {
                let config =
                    ReduceConfig::new(slots.unwrap_or(SLOTS), rackweave_linux::random() as u64);
                let (ways, share) = (ways.unwrap_or(config.ways), share.unwrap_or(config.share));
                let config = ReduceConfig { ways, share, ..config };
                if config.slots < u32::from(config.ways) * 2 {
                    return Err("--slots: a job needs two buckets at least");
                }
                let switches = aggregate_at.to_vec();
                Ok((NONE.0, (None, Some(Reduce { config, switches }))))
            }
            Self::Orca => {
                let key = secret.map(orca::Key::derive);
                Ok(((Some(Orca { controller, key }), None), NONE.1))
            }
            Self::Swp2p => {
                let Some(server) = server else {
                    return Err("--program swp2p requires --server: requests are redirected on \
                                their way to the server");
                };
                let hosts_per_rack = hosts_per_rack(fabric);
                let directory =
                    directory::Config { hosts_per_rack, ..directory::Config::default() };
                let config = switch::Config { directory, ..switch::Config::data_plane(server) };
                let key = secret.map(frisbee::Key::derive);
                Ok(((None, Some(Swp2p { config, key })), NONE.1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rackweave_core::Rate;
    use rackweave_switch::Fabric;
    use rackweave_switch::config::SwitchConfig;
    use rackweave_switch::system::System as _;

    use super::*;

    fn fabric(topology: Topology) -> FabricConfig {
        FabricConfig::new(topology)
            .without_delays()
            .with_switch(SwitchConfig::unlimited().with_buffer(500_000))
    }

    const RATE: Rate = Rate(1_000_000_000);
    const ONE: Topology = Topology::SingleSwitch { hosts: 4, host_link: RATE };
    const LEAVES: Topology = Topology::LeafSpine {
        leaves: 2,
        hosts_per_leaf: 3,
        spines: 2,
        host_link: RATE,
        core_link: RATE,
    };

    #[test]
    fn every_program_takes_its_options_and_refuses_others() {
        let fabric = fabric(ONE);
        let host = Some(HostId(1));
        for program in ProgramName::ALL {
            for (controller, server, secret) in [
                (None, None, None),
                (host, None, None),
                (None, host, None),
                (None, None, Some(&b"key"[..])),
                (host, host, Some(b"key")),
                (host, None, Some(b"key")),
                (None, host, Some(b"key")),
            ] {
                let options =
                    ProgramOptions { controller, server, secret, ..ProgramOptions::default() };
                let fits = match program {
                    ProgramName::Plain | ProgramName::Reduce => {
                        controller.is_none() && server.is_none() && secret.is_none()
                    }
                    ProgramName::Orca => server.is_none(),
                    ProgramName::Swp2p => controller.is_none() && server.is_some(),
                };
                let system = program.system(options, &fabric);
                assert_eq!(system.is_ok(), fits, "{program:?} {options:?}: {system:?}");
                let Ok(((orca, swp2p), (multicast, reduce))) = system else { continue };
                assert_eq!(reduce.is_some(), program == ProgramName::Reduce);
                assert!(multicast.is_none(), "the command has no members for it");
                assert_eq!(orca.is_some(), program == ProgramName::Orca);
                assert_eq!(swp2p.is_some(), program == ProgramName::Swp2p);
                assert_eq!(
                    orca.is_some_and(|orca| orca.key.is_some()),
                    secret.is_some() && orca_is(program)
                );
                assert_eq!(
                    swp2p.is_some_and(|swp2p| swp2p.key.is_some()),
                    secret.is_some() && !orca_is(program)
                );
            }
        }
    }

    #[test]
    fn slots_belong_to_a_switch_that_adds_up() {
        let fabric = fabric(ONE);
        let slots = ProgramOptions { slots: Some(1 << 14), ..ProgramOptions::default() };
        let ways = ProgramOptions { ways: Some(4), aggregate_at: &[0], ..slots };
        for program in ProgramName::ALL {
            let is_reduce = program == ProgramName::Reduce;
            assert_eq!(program.system(slots, &fabric).is_ok(), is_reduce);
            let Ok((_, (_, reduce))) = program.system(ways, &fabric) else { continue };
            let Reduce { config, switches } = reduce.unwrap();
            assert_eq!((config.slots, config.ways, switches), (1 << 14, 4, vec![0]));
        }
        let few = ProgramOptions { slots: Some(15), ..ProgramOptions::default() };
        assert!(ProgramName::Reduce.system(few, &fabric).unwrap_err().contains("two buckets"));
    }

    fn orca_is(program: ProgramName) -> bool {
        program == ProgramName::Orca
    }

    #[test]
    fn all_systems_fit_on_the_same_switches() {
        for topology in [ONE, LEAVES] {
            let config = fabric(topology.clone());
            let fabric = Fabric::new(&config).unwrap();
            let server = ProgramOptions { server: Some(HostId(3)), ..ProgramOptions::default() };
            let ((_, swp2p), _) = ProgramName::Swp2p.system(server, &config).unwrap();
            let expected = if topology == ONE { None } else { Some(3) };
            assert_eq!(swp2p.unwrap().config.directory.hosts_per_rack, expected);
            let members = [HostId(0), HostId(3)].into();
            let (_, (_, reduce)) =
                ProgramName::Reduce.system(ProgramOptions::default(), &config).unwrap();
            let all: Systems =
                ((Some(Orca::default()), swp2p), (Some(Multicast { members }), reduce));
            assert_eq!(all.protocols().count(), 4);
            assert_eq!(all.programs(&fabric).unwrap().len(), fabric.switches() as usize);
            let far = ProgramOptions { aggregate_at: &[0, 9], ..ProgramOptions::default() };
            let far = ProgramName::Reduce.system(far, &config).unwrap();
            let error = far.programs(&fabric).unwrap_err().to_string();
            assert!(error.starts_with("switch 9 does not exist"), "{error}");
            let far = ProgramOptions { server: Some(HostId(6)), ..server };
            let far = ProgramName::Swp2p.system(far, &config).unwrap();
            let error = far.programs(&fabric).unwrap_err().to_string();
            assert!(error.starts_with("the server's host 6 does not exist"), "{error}");
        }
    }

    #[test]
    fn every_program_is_documented() {
        const DOCS: &str = include_str!("../../../docs/ops/switch.md");
        for program in &ProgramName::ALL[1..] {
            let (name, _) = program.describe();
            assert!(DOCS.contains(&format!("`--program {name}`")), "{name}");
        }
    }
}

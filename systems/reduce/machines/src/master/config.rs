//! What a master is configured with: the job, its timers, and the slots that it wants of a switch.

use rackweave_core::{HostId, Span};
use rackweave_wire::reduce::{Operator, Rule};

use super::super::membership;

/// The slots of a switch that a job wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregation {
    /// The switch's address.
    pub switch: HostId,
    /// The number of slots.
    pub slots: u32,
    /// Into how many copies they are divided: with 2, the sums of an epoch are fetched while the next one is sent.
    pub copies: u8,
    /// By which rule the switch adds up.
    pub rule: Rule,
    /// How many epochs there are.
    pub epochs: Epochs,
    /// How long the master waits for an answer of the switch before it goes on without.
    pub patience: Span,
}

/// How the number of epochs is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epochs {
    /// So that the estimated number of distinct keys of an epoch is this share of the slots of a copy, in percent.
    Load(u8),
    /// This number; 1 is no division.
    Fixed(u16),
}

impl Aggregation {
    /// An exact aggregation in two copies at a load of 50 %, with 3 s of patience.
    #[must_use]
    pub const fn new(switch: HostId, slots: u32) -> Self {
        let (copies, rule, epochs) = (2, Rule::Exact, Epochs::Load(50));
        Self { switch, slots, copies, rule, epochs, patience: Span::from_secs(3) }
    }

    /// The number of epochs for this number of distinct keys, if the switch has granted `slots`.
    pub(super) fn epochs(&self, slots: u32, keys: u64) -> u16 {
        match self.epochs {
            Epochs::Fixed(epochs) => epochs.max(1),
            Epochs::Load(percent) => {
                let copy = u64::from(slots / u32::from(self.copies.clamp(1, 2)));
                let room = (copy * u64::from(percent) / 100).max(1);
                u16::try_from(keys.div_ceil(room)).unwrap_or(u16::MAX).max(1)
            }
        }
    }
}

/// How a master behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The job, and how its workers are kept.
    pub members: membership::Config,
    /// The master's own address.
    pub host: HostId,
    /// How values of equal keys are combined.
    pub operator: Operator,
    /// The switch that adds up; `None` if the master does.
    pub aggregation: Option<Aggregation>,
    /// Whether the switch is asked at once if it is there, and not only when all workers have joined.
    pub probe: bool,
    /// Whether the job waits for [`Master::grant`](super::Master::grant) once its workers have joined.
    pub hold: bool,
    /// Whether the job ends only by [`Master::conclude`](super::Master::conclude), when the driver has written the sums: until then no
    /// worker hears that it has ended.
    pub holds_end: bool,
    /// The window of each worker in packets. SwitchML's is 256.
    pub window: u16,
}

impl Config {
    /// A master that adds up itself, with the timers of [`membership::Config::new`].
    #[must_use]
    pub const fn new(job: u16, host: HostId, workers: u8, token: u64, secret: u64) -> Self {
        Self {
            members: membership::Config::new(job, workers, token, secret),
            host,
            operator: Operator::Sum,
            aggregation: None,
            probe: false,
            hold: false,
            holds_end: false,
            window: 256,
        }
    }
}

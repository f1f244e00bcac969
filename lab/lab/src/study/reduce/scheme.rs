//! What adds up the pairs of jobs: `[transport]` of a scenario with `[workload.reduce]`.

use rackweave_aggregation::master::{Aggregation, Epochs};
use rackweave_aggregation::source::Order;
use rackweave_core::{Destination, Span};
use rackweave_rackless::inc;
use rackweave_rackless::pod::MAX_SERVERS;
use rackweave_scenario::de::{self, DeError};
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Chosen, divide, keys, schemes};
use rackweave_scenario::problem::Problem;
use rackweave_scenario::transport::{self, TcpKeys};
use rackweave_scenario::tree::{Origin, Table};
use rackweave_scenario::values::{AboveZero, Share, Unit, Whole};
use rackweave_sim::Fabric;
use rackweave_wire::reduce::Rule;
use serde::Deserialize;

use super::job::{self, Job};
use super::{By, Control, ReduceConfig, Switches};
use crate::study::unknown_scheme;

schemes! {
    /// The names of the schemes.
    enum Name {
        Switch: [SwitchKeys, UploadKeys, ControlKeys, TcpKeys] = About {
            name: "reduce-switch",
            description: "pairs of many workers to a master: a switch adds them up on the way",
            profiles: &[],
            sources: &["OFC 2024", "ASPLOS 2023"],
        };
        Master: [UploadKeys, ControlKeys, TcpKeys] = About {
            name: "reduce-master",
            description: "pairs of many workers to a master, which adds them up itself",
            profiles: &[],
            sources: &["OSDI 2004"],
        };
    }
    unknown: |text| unknown_scheme::<ReduceConfig>(text, "adds up no pairs")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RuleName {
    Exact,
    Counter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OrderName {
    Hash,
    FirstSeen,
    HotFirst,
}

/// Who decides when the upload of a job begins, and which circuits there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScheduleName {
    /// Nobody: uploads begin when workers are ready, and circuits remain.
    #[default]
    None,
    /// The control plane of P4-ORDC.
    Plan,
    /// That of RDC: circuits follow the measured traffic, and uploads begin when workers are ready.
    Traffic,
}

/// Which of the waiting uploads has the switch next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum GrantOrderName {
    FirstCome,
    Shortest,
    Alternating,
}

keys! {
    /// The keys of the switch that adds up.
    struct SwitchKeys {
        /// The switch that adds up. Default: 0.
        at: Whole<0, 65_535, u32>,
        /// Its slots, shared by all jobs. A job without room is added up by its master. Default:
        /// 65,536.
        slots: Whole<16, 16_777_216, u32>,
        /// Slots of a bucket. Default: 8.
        ways: Whole<1, 64, u8>,
        /// 2: sums of an epoch are fetched while the next is sent, each in half of the slots. 1:
        /// not. Default: 2.
        copies: Whole<1, 2, u8>,
        /// Distinct keys of an epoch per 100 slots of a copy. Sets the number of epochs. Default:
        /// 50.
        load: Whole<1, 100, u8>,
        /// Instead of `load`. 1 is first come, first served.
        epochs: Whole<1, 65_535, u16>,
        /// `"exact"`, or `"counter"`: P4-ORDC's published rule, which loses words and needs
        /// `combiner`. Default: `"exact"`.
        rule: RuleName,
    }
}

keys! {
    /// The keys of the upload, in addition to those of the TCP that carries the data to the workers.
    struct UploadKeys {
        /// Pairs of an epoch: `"hash"`, `"first-seen"` or `"hot-first"`. Default: `"hash"`.
        order: OrderName,
        /// Most unacknowledged packets of a worker. Default: 256.
        packets: Whole<1, 1_024, u16>,
        /// `"none"`. `"plan"`: the [controller](../ops/pod.md) gives the switch to one upload at a
        /// time. It moves an OCS's circuits, unless that takes longer than it saves. `"traffic"`: as
        /// in RDC, circuits follow the servers' traffic, and nothing is declared or granted.
        /// Default: `"none"`.
        schedule: ScheduleName,
    }
}

keys! {
    /// The keys of the control plane, with `schedule = "plan"` or `"traffic"`.
    struct ControlKeys {
        /// Interval at which masters look how far their jobs have come. Default: `"1 ms"`.
        control_interval: AboveZero<Span>,
        /// Time that a message between controller, masters and switches takes. Default: `"200 us"`.
        control_latency: Unit<Span>,
        /// Share of these messages that are lost, and repeated after 100 ms. Default: 0.
        control_loss: Share,
        /// Waiting upload that is next: `"first-come"`, `"shortest"` or `"alternating"` (groups of
        /// servers by turns). Default: `"first-come"`.
        grant_order: GrantOrderName,
        /// Uploads can pass the switch that adds up by a detour over uplinks. If not, it adds up those
        /// whose master and workers are all below it. Default: true.
        detour: bool,
        /// Length of a period of the forecast. Default: `"200 ms"`.
        plan_period: AboveZero<Span>,
        /// Periods that are planned at a time. Default: 16.
        plan_horizon: Whole<1, 256, u16>,
    }
}

impl ControlKeys {
    fn resolve(&self, by: By) -> Control {
        Control {
            by,
            detour: self.detour.unwrap_or(true),
            interval: self.control_interval.map_or(Span::from_ms(1), |it| it.0),
            latency: self.control_latency.map_or(Span::from_us(200), |it| it.0),
            loss: self.control_loss.map_or(0.0, |it| it.0),
            order: match self.grant_order {
                None | Some(GrantOrderName::FirstCome) => inc::Order::FirstCome,
                Some(GrantOrderName::Shortest) => inc::Order::Shortest,
                Some(GrantOrderName::Alternating) => inc::Order::Alternating,
            },
            period: self.plan_period.map_or(Span::from_ms(200), |it| it.0),
            horizon: self.plan_horizon.map_or(16, |it| usize::from(it.0)),
        }
    }

    /// The first of its keys that a scenario has.
    fn given(&self) -> Option<&'static str> {
        let given = [
            self.control_interval.is_some(),
            self.control_latency.is_some(),
            self.control_loss.is_some(),
            self.grant_order.is_some(),
            self.detour.is_some(),
            self.plan_period.is_some(),
            self.plan_horizon.is_some(),
        ];
        given.into_iter().zip(Self::NAMES).find(|(is_given, _)| *is_given).map(|(_, name)| *name)
    }
}

pub(crate) struct Keys {
    switch: SwitchKeys,
    upload: UploadKeys,
    control: ControlKeys,
    tcp: transport::Chosen,
}

impl Keys {
    fn read(name: Name, table: &Table, origin: Origin) -> Result<Self, DeError> {
        let switch = if name == Name::Switch { SwitchKeys::NAMES } else { &[] };
        let names = [switch, UploadKeys::NAMES, ControlKeys::NAMES, TcpKeys::NAMES];
        let [switch, upload, control, tcp] = divide(table, names)?;
        Ok(Self {
            switch: de::from_table(&switch, origin)?,
            upload: de::from_table(&upload, origin)?,
            control: de::from_table(&control, origin)?,
            tcp: transport::read_tcp(tcp, origin)?,
        })
    }
}

const DEFAULT_SLOTS: u32 = 65_536;
const DEFAULT_WAYS: u8 = 8;

/// Resolves the configuration, with defaults for missing keys.
pub(super) fn resolve(
    chosen: &Chosen<Name>,
    mut job: job::Config,
    jobs: Vec<Job>,
    fabric: &Fabric,
) -> Result<ReduceConfig, Problem> {
    let Keys { switch: keys, upload, control, tcp } = &chosen.keys;
    job.order = match upload.order {
        None | Some(OrderName::Hash) => Order::Hash,
        Some(OrderName::FirstSeen) => Order::FirstSeen,
        Some(OrderName::HotFirst) => Order::HotFirst,
    };
    if let Some(packets) = upload.packets {
        job.window = packets.0;
    }
    let carrier = tcp.tcp()?;
    let by = match upload.schedule {
        None | Some(ScheduleName::None) => None,
        Some(ScheduleName::Plan) => Some(By::Jobs),
        Some(ScheduleName::Traffic) => Some(By::Traffic),
    };
    let is_planned = by.is_some();
    if let Some(key) = control.given().filter(|_| !is_planned) {
        let message = "without schedule = \"plan\" or \"traffic\" there is no control plane";
        return Err(chosen.bad(key, message));
    }
    if is_planned && fabric.hosts() > MAX_SERVERS {
        let message = format!("a control plane has at most {MAX_SERVERS} servers");
        return Err(chosen.bad("schedule", message));
    }
    let control = by.map(|by| control.resolve(by));
    job.hold = by == Some(By::Jobs);
    if chosen.name == Name::Master {
        let (marks, groups) = (Vec::new(), Vec::new());
        let switches = None;
        return Ok(ReduceConfig { jobs, job, carrier, switches, control, marks, groups });
    }
    let number = keys.at.map_or(0, |at| at.0);
    let switches = fabric.switches();
    if number >= switches {
        let message = format!("there is no switch {number}: the fabric has {switches}");
        return Err(chosen.bad("at", message));
    }
    let slots = keys.slots.map_or(DEFAULT_SLOTS, |slots| slots.0);
    let ways = keys.ways.map_or(DEFAULT_WAYS, |ways| ways.0);
    let rule = keys.rule.unwrap_or(RuleName::Exact);
    if keys.load.is_some() && keys.epochs.is_some() {
        return Err(
            chosen.bad("load", "`epochs` is their number, and `load` computes it: one of both")
        );
    }
    let mut wanted = Aggregation::new(Destination::Switch(number).address(), slots);
    if let Some(copies) = keys.copies {
        wanted.copies = copies.0;
    }
    if let Some(load) = keys.load {
        wanted.epochs = Epochs::Load(load.0);
    }
    if let Some(epochs) = keys.epochs {
        wanted.epochs = Epochs::Fixed(epochs.0);
    }
    if rule == RuleName::Counter {
        if keys.load.is_some() || keys.epochs.is_some() || keys.copies.is_some() {
            let message = "the published rule has neither epochs nor copies of its registers";
            return Err(chosen.bad("rule", message));
        }
        (wanted.rule, wanted.copies, wanted.epochs) = (Rule::Counter, 1, Epochs::Fixed(1));
    }
    job.aggregation = Some(wanted);
    let switches = Some(Switches { number, slots, ways });
    let (marks, groups) = (Vec::new(), Vec::new());
    Ok(ReduceConfig { jobs, job, carrier, switches, control, marks, groups })
}

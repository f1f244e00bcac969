//! What each kind of workload says of itself.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use rackweave_scenario::de::DeError;
use rackweave_scenario::item::About;
use rackweave_scenario::keys::{Choice, Chosen};
use rackweave_scenario::measure::Measure;
use rackweave_scenario::problem::{Problem, SweptKeys};
use rackweave_scenario::transport;
use rackweave_scenario::tree::Node;
use rackweave_sim::Fabric;
use rackweave_sim::config::Fault;
use rackweave_sim::result::RunResult;
use rackweave_wire::pcapng::Frame;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{KINDS, Setting, Study, StudyDetail, StudyError, StudySummary};
use crate::error::nearest;
use crate::explain::Volume;
use crate::report::html::KindSection;
use crate::results::PointResult;
use crate::results::columns::Column;
use crate::scenario::World;
use crate::tables::{Sink, Table};

/// What the registry says of a kind.
pub trait Listed: Sized + 'static {
    /// The name of its table below `[workload]`, and of its object in `summary.json`.
    const TABLE: &'static str;
    /// Its object in `summary.json`.
    type Summary: Clone + Debug + Serialize + DeserializeOwned;

    /// Returns the summary, if it is of this kind.
    fn of(summary: &StudySummary) -> Option<&Self::Summary>;

    /// Returns it as what a point measures.
    fn into_study(self) -> Study;
}

/// A kind of workload. It is implemented by the configuration of its runs.
pub(crate) trait Kind: Listed + Configured {
    /// The keys of its table below `[workload]`.
    type Keys: Clone + Debug + PartialEq + Serialize + DeserializeOwned;
    /// The names from which `[transport]` chooses.
    type Scheme: Choice;

    /// What its schemes do, if they carry data and can be taken for transports: "carries files to many".
    const CARRIES: Option<&'static str> = None;
    /// Whether it runs on pods too, whose racks may differ and change.
    const RUNS_ON_PODS: bool = false;
    /// The keys that determine how long it runs: the quick runs of papers may reduce them.
    const SIZES: &'static [&'static str] = &[];
    /// The smallest scenario's table, for tests of all kinds: three hosts are enough.
    #[cfg(test)]
    const EXAMPLE: &'static str;

    /// Refuses what the scenario has in addition to the table. All of the workload is measured, unless a kind says
    /// otherwise.
    fn check(ground: &Ground<'_>) -> Result<(), Problem> {
        ground.measure.check_for_many(Self::TABLE, None)
    }

    /// Checks the keys against each other and what they run on.
    fn resolve(
        keys: &Self::Keys,
        scheme: &Chosen<Self::Scheme>,
        ground: &Ground<'_>,
    ) -> Result<Self, Problem>;

    /// Returns the name in results.
    fn label(scheme: &Chosen<Self::Scheme>) -> String {
        scheme.label()
    }

    /// Returns the kernel's names of the congestion controls of its TCP connections.
    fn kernel_tcp(_scheme: &Chosen<Self::Scheme>) -> Vec<Option<&'static str>> {
        vec![None]
    }

    /// Passes its tables to a sink.
    fn tables<S: Sink>(_points: &[PointResult], _sink: &mut S) -> Result<(), S::Error> {
        Ok(())
    }

    /// Returns what went wrong in a run in addition to missing messages, if anything.
    fn warning(_summary: &Self::Summary) -> Option<String> {
        None
    }

    /// The table that the terminal shows below the points.
    const TERMINAL: Option<TerminalTable<Self::Summary>> = None;
    /// Whether its section of the page follows the circuits and the traffic over time, in place of preceding them.
    const SECTION_AFTER_TRAFFIC: bool = false;

    /// Writes its section of the page. There is at least one point of the kind.
    fn section(_section: &mut KindSection<'_, Self>) {}

    /// The tables that charts of finished results are drawn from.
    const DRAWN: &'static [&'static str] = &[];

    /// Adds the rows of such a table to the points that they are of.
    ///
    /// # Errors
    /// If the table has no column that its rows need, with the name of the column.
    fn restore(
        _table: &Table,
        _points: &mut BTreeMap<u64, &mut PointResult>,
    ) -> Result<(), String> {
        Ok(())
    }
}

/// What a checked workload does.
pub(crate) trait Configured: Debug + Send + Sync {
    /// Runs to the end.
    ///
    /// # Errors
    /// If it cannot be run on this fabric.
    fn run(&self, setting: &Setting<'_>) -> Result<Done, StudyError>;

    /// Returns the workload in numbers, from which the cost of a run is estimated.
    fn volume(&self) -> Volume {
        Volume::default()
    }

    /// Returns the bytes of its data; 0 if it has none.
    fn data_bytes(&self) -> u64 {
        0
    }
}

/// A table for the terminal: its heading and its columns.
pub(crate) struct TerminalTable<T: 'static>(
    pub(crate) &'static str,
    pub(crate) &'static [Column<T>],
);

/// What the keys of a kind are checked against.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) world: World,
    pub(crate) fabric: &'a Arc<Fabric>,
    pub(crate) faults: &'a [Fault],
    pub(crate) measure: &'a Measure,
    pub(crate) seed: u64,
    /// Whether there are background streams.
    pub(crate) has_background: bool,
}

/// A checked workload and its names.
pub(crate) struct Resolved {
    pub(crate) study: Study,
    pub(crate) transport: &'static str,
    pub(crate) label: String,
    pub(crate) kernel_tcp: Vec<Option<&'static str>>,
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct Done {
    /// The results that every run has. Stream 0 is the workload; the streams of the configuration follow.
    pub(crate) result: RunResult,
    pub(crate) summary: StudySummary,
    pub(crate) detail: Option<StudyDetail>,
    /// The captured packets. [`RunResult::capture`] is empty, because packets of a group system have headers of their own.
    pub(crate) capture: Vec<Frame>,
}

/// A kind in the list of all kinds.
pub(crate) struct Entry {
    pub(crate) table: &'static str,
    pub(crate) carries: Option<&'static str>,
    pub(crate) runs_on_pods: bool,
    pub(crate) sizes: &'static [&'static str],
    pub(crate) section_after_traffic: bool,
    pub(crate) drawn: &'static [&'static str],
    #[cfg(test)]
    pub(crate) example: &'static str,
    pub(crate) schemes: fn() -> Vec<&'static About>,
    pub(crate) warning: fn(&StudySummary) -> Option<String>,
    pub(crate) section: fn(&mut String, &[PointResult]),
    pub(crate) terminal: fn(&[PointResult], usize, crate::report::table::Style) -> String,
    pub(crate) restore: fn(&Table, &mut BTreeMap<u64, &mut PointResult>) -> Result<(), String>,
}

impl Entry {
    pub(super) const fn of<K: Kind>() -> Self {
        Self {
            table: K::TABLE,
            carries: K::CARRIES,
            runs_on_pods: K::RUNS_ON_PODS,
            sizes: K::SIZES,
            section_after_traffic: K::SECTION_AFTER_TRAFFIC,
            drawn: K::DRAWN,
            #[cfg(test)]
            example: K::EXAMPLE,
            schemes: || K::Scheme::ALL.iter().map(|scheme| scheme.about()).collect(),
            warning: |summary| K::warning(K::of(summary)?),
            section: KindSection::<K>::write,
            terminal: crate::report::table::kind_table::<K>,
            restore: K::restore,
        }
    }

    pub(crate) fn has_scheme(&self, name: &str) -> bool {
        (self.schemes)().iter().any(|about| about.name == name)
    }
}

/// Checks the keys of a kind and its scheme.
pub(super) fn resolve<K: Kind>(
    keys: &K::Keys,
    transport: &Node,
    swept: &SweptKeys,
    ground: &Ground<'_>,
) -> Result<Resolved, DeError> {
    K::check(ground)?;
    let scheme = Chosen::<K::Scheme>::read(transport, swept)?;
    Ok(Resolved {
        study: K::resolve(keys, &scheme, ground)?.into_study(),
        transport: scheme.name.as_str(),
        label: K::label(&scheme),
        kernel_tcp: K::kernel_tcp(&scheme),
    })
}

/// Returns the error for a name that is none of a kind's schemes; `not` says what it is not.
pub(crate) fn unknown_scheme<K: Kind>(text: &str, not: &str) -> DeError {
    let table = K::TABLE;
    // What carries something may be taken for what carries something else.
    let before = KINDS.iter().take_while(|kind| kind.table != table && K::CARRIES.is_some());
    let other = before.into_iter().find(|kind| kind.carries.is_some() && kind.has_scheme(text));
    let message = if transport::Name::named(text).is_some() {
        format!("`{text}` carries messages between two hosts, and no [workload.{table}]")
    } else if let Some(other) = other {
        format!("`{text}` carries [workload.{}], and no [workload.{table}]", other.table)
    } else {
        format!("unknown scheme `{text}`")
    };
    let names = K::Scheme::names();
    let help = match nearest(text, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("for [workload.{table}] there are {}", names.join(", ")),
    };
    DeError::new(message, not).with_help(help)
}

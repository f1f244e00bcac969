//! Handling of `[sweep]` and `--set`: from one tree to the trees of all points.

use std::collections::BTreeSet;

use super::source::Sources;
use super::tree::{Entry, Node, Origin, Table, Value, parse_value};
use crate::error::ScenarioError;

/// The largest number of points in a sweep. More are taken for a mistake.
const MAX_POINTS: usize = 10_000;

/// One dimension of a sweep.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The swept key, or [`CASES`].
    pub key: String,
    /// Where the key is.
    pub key_origin: Origin,
    /// The assignments at each step along the dimension.
    pub steps: Vec<Vec<Assignment>>,
}

/// A key and the value that it is set to.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The dotted path of the key.
    pub key: String,
    /// Where the key is.
    pub key_origin: Origin,
    /// Its value.
    pub node: Node,
}

impl Axis {
    /// Returns the value as a resolved scenario writes it.
    pub fn to_toml(&self) -> toml::Value {
        let step = |step: &Vec<Assignment>| {
            if self.key == CASES {
                let sets = step.iter().map(|set| (set.key.clone(), set.node.to_toml()));
                toml::Value::Table(sets.collect())
            } else {
                step.iter().map(|set| set.node.to_toml()).next().unwrap_or(false.into())
            }
        };
        toml::Value::Array(self.steps.iter().map(step).collect())
    }
}

/// The key of `[sweep]` that is not a key of the scenario: a list of tables; each sets several keys at once.
pub const CASES: &str = "cases";

/// Removes `[sweep]` from the tree and returns its axes. Keys may be quoted ("transport.name") or nested.
pub fn take_axes(root: &mut Table, sources: &Sources) -> Result<Vec<Axis>, ScenarioError> {
    let Some(sweep) = root.remove("sweep") else { return Ok(Vec::new()) };
    let Value::Table(table) = sweep.node.value else {
        return Err(sources.error("`sweep` must be a table", "not a table", sweep.node.origin));
    };
    let mut axes = Vec::new();
    read_axes(table, "", &mut axes, sources)?;
    Ok(axes)
}

fn read_axes(
    table: Table,
    prefix: &str,
    axes: &mut Vec<Axis>,
    sources: &Sources,
) -> Result<(), ScenarioError> {
    for entry in table.0 {
        let Entry { key, key_origin, node } = entry;
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match node.value {
            Value::Array(values) if values.is_empty() => {
                let message = format!("the sweep over `{key}` has no values");
                return Err(sources.error(&message, "an empty list", node.origin));
            }
            Value::Array(values) => {
                let steps = values.into_iter().map(|node| {
                    if key == CASES {
                        case(node, sources)
                    } else {
                        Ok(vec![Assignment { key: key.clone(), key_origin, node }])
                    }
                });
                let steps = steps.collect::<Result<_, _>>()?;
                let axis = Axis { key, key_origin, steps };
                refuse_equal_steps(&axis, sources)?;
                axes.push(axis);
            }
            Value::Table(inner) => read_axes(inner, &key, axes, sources)?,
            _ => {
                let message = format!("the sweep over `{key}` needs a list of values");
                return Err(sources.error(&message, "not a list", node.origin).with_help(format!(
                    "write it as \"{key}\" = [...]; a single value belongs into its table"
                )));
            }
        }
    }
    match repeated(axes) {
        None => Ok(()),
        Some(again) => {
            let message = format!("`{}` is swept twice", again.key);
            let help = format!(
                "a key stands in one list of the sweep, its own or `cases`, not in both; `--set {}=VALUE` replaces its own list",
                again.key
            );
            Err(sources.error(&message, "again here", again.key_origin).with_help(help))
        }
    }
}

/// Returns the assignments of a step, as its file could have them.
fn text_of(step: &[Assignment]) -> String {
    let sets = step.iter().map(|set| format!("{} = {}", set.key, set.node.to_toml()));
    sets.collect::<Vec<_>>().join(", ")
}

/// Refuses a value that is there twice: its points would be one run, counted as two.
fn refuse_equal_steps(axis: &Axis, sources: &Sources) -> Result<(), ScenarioError> {
    let texts: Vec<String> = axis.steps.iter().map(|step| text_of(step)).collect();
    let mut seen = BTreeSet::new();
    let Some(again) = texts.iter().position(|text| !seen.insert(text)) else { return Ok(()) };
    let Some(set) = axis.steps[again].first() else { return Ok(()) };
    let message = match axis.key.as_str() {
        CASES => format!("two cases are the same: {}", texts[again]),
        key => format!("the sweep over `{key}` has the value {} twice", set.node.to_toml()),
    };
    Err(sources.error(&message, "again here", set.node.origin))
}

/// Returns an assignment of a key that another axis sets too.
fn repeated(axes: &[Axis]) -> Option<&Assignment> {
    let keys = |axis: &Axis| -> Vec<String> {
        axis.steps.iter().flatten().map(|set| set.key.clone()).collect()
    };
    (1..axes.len()).find_map(|later| {
        let before: Vec<String> = axes[..later].iter().flat_map(keys).collect();
        axes[later].steps.iter().flatten().find(|set| before.contains(&set.key))
    })
}

/// Returns the assignments of one of the [`CASES`]. Nested tables are paths.
fn case(node: Node, sources: &Sources) -> Result<Vec<Assignment>, ScenarioError> {
    fn walk(table: Table, prefix: &str, into: &mut Vec<Assignment>) {
        for Entry { key, key_origin, node } in table.0 {
            let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            match node.value {
                Value::Table(inner) => walk(inner, &key, into),
                _ => into.push(Assignment { key, key_origin, node }),
            }
        }
    }
    let Value::Table(table) = node.value else {
        let message = "each of the cases is a table of keys and values";
        return Err(sources
            .error(message, "not a table", node.origin)
            .with_help("such as { workload.sizes = \"W5\", measure.messages = 10_000 }"));
    };
    let mut assignments = Vec::new();
    walk(table, "", &mut assignments);
    Ok(assignments)
}

/// Applies `--set key=value`, which replaces the value in the file and a sweep over this key.
pub fn apply_set(
    argument: &str,
    root: &mut Table,
    axes: &mut Vec<Axis>,
    sources: &mut Sources,
) -> Result<(), ScenarioError> {
    let source = sources.add("--set", argument);
    let whole = Origin::new(source, 0..argument.len());
    let Some((path, text)) = argument.split_once('=') else {
        return Err(sources
            .error("`--set` needs a key and a value", "no `=` in it", whole)
            .with_help("write it as --set workload.load=0.5"));
    };
    let key = path.trim().replace(['"', '\''], "");
    let key_origin = Origin::new(source, 0..path.trim_end().len());
    let parts: Vec<&str> = key.split('.').collect();
    if parts.iter().any(|part| part.trim().is_empty()) {
        return Err(sources.error(
            "`--set` needs a key such as `workload.load`",
            "no key",
            key_origin,
        ));
    }
    let node = read_value(text, path.len() + 1, source, sources)?;
    if let ["sweep", rest @ ..] = &parts[..] {
        let mut table = Table::default();
        let name = rest.join(".");
        table.set(&[&name], key_origin, node).map_err(|_| {
            sources.error("`--set sweep` needs a key", "such as sweep.workload.load", key_origin)
        })?;
        axes.retain(|axis| axis.key != name);
        return read_axes(table, "", axes, sources);
    }
    let below = format!("{key}.");
    for step in axes.iter_mut().flat_map(|axis| &mut axis.steps) {
        step.retain(|set| set.key != key && !set.key.starts_with(&below));
    }
    axes.retain(|axis| axis.steps.iter().any(|step| !step.is_empty()));
    // Cases that differed in this key only are one now.
    for axis in axes.iter_mut().filter(|axis| axis.key == CASES) {
        let mut seen = BTreeSet::new();
        axis.steps.retain(|step| seen.insert(text_of(step)));
    }
    root.set(&parts, key_origin, node).map_err(|error| {
        let message = format!("`{key}` can't be set: `{}` is not a table", error.at);
        sources.error(&message, "this key", key_origin)
    })
}

/// Reads a TOML value, or else takes the text itself: `--set fabric.host_link="25 Gbps"` arrives from the shell without
/// quotes.
fn read_value(
    text: &str,
    shift: usize,
    source: usize,
    sources: &Sources,
) -> Result<Node, ScenarioError> {
    match parse_value(text, source, shift) {
        Ok(node) => Ok(node),
        Err(mut error) if text.trim_start().starts_with(['[', '{', '"', '\'']) => {
            error.span = error.span.start + shift..error.span.end + shift;
            Err(sources.not_toml(source, error))
        }
        Err(_) => {
            let end = shift + text.len();
            let start = end - text.trim_start().len();
            let origin = Origin::new(source, start..end);
            Ok(Node { value: Value::String(text.trim().to_owned()), origin })
        }
    }
}

/// Returns the argument of `--set` that leaves only this step of an axis. The seed has a separate option.
fn argument(axis: &Axis, step: &[Assignment]) -> Option<String> {
    let one = |set: &Assignment| format!("{}={}", set.key, set.node.to_toml());
    if axis.key == CASES {
        // The whole case must be set at once: other cases may have other keys, which would remain.
        let sets: Vec<String> = step.iter().map(one).collect();
        Some(format!("sweep.{CASES}=[{{{}}}]", sets.join(", ")))
    } else {
        step.iter().find(|set| set.key != "seed").map(one)
    }
}

/// The tree of one point and its assignments.
pub struct PointTree {
    /// The scenario at this point, without its sweep.
    pub root: Table,
    /// The swept keys and their values at this point.
    pub set: Vec<(String, Node)>,
    /// The arguments of `--set` that select this point.
    pub arguments: Vec<String>,
}

/// Returns the points for all combinations of steps; the first axis varies slowest.
pub fn expand(
    root: &Table,
    axes: &[Axis],
    sources: &Sources,
) -> Result<Vec<PointTree>, ScenarioError> {
    let mut count: usize = 1;
    for axis in axes {
        count = count.saturating_mul(axis.steps.len());
        if count > MAX_POINTS {
            let message = format!("the sweep has more than {MAX_POINTS} points");
            return Err(sources.error(&message, "too many with this key", axis.key_origin));
        }
    }
    (0..count).map(|index| point(root, axes, index, sources)).collect()
}

fn point(
    root: &Table,
    axes: &[Axis],
    index: usize,
    sources: &Sources,
) -> Result<PointTree, ScenarioError> {
    let mut rest = index;
    let mut chosen: Vec<&Vec<Assignment>> = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        chosen.push(&axis.steps[rest % axis.steps.len()]);
        rest /= axis.steps.len();
    }
    let assignments = || chosen.iter().rev().flat_map(|step| step.iter());
    let mut tree = root.clone();
    for Assignment { key, key_origin, node } in assignments() {
        let parts: Vec<&str> = key.split('.').collect();
        tree.set(&parts, *key_origin, node.clone()).map_err(|error| {
            let message = format!("`{key}` can't be swept: `{}` is not a table", error.at);
            sources.error(&message, "this key", *key_origin)
        })?;
    }
    let set = assignments().map(|set| (set.key.clone(), set.node.clone())).collect();
    let arguments =
        axes.iter().zip(chosen.iter().rev()).flat_map(|(axis, step)| argument(axis, step));
    Ok(PointTree { root: tree, set, arguments: arguments.collect() })
}

//! `[sweep]` and `--set`: from one tree to the trees of all points.

use super::source::Sources;
use super::tree::{Node, Origin, Table, Value, parse_value};
use crate::error::ScenarioError;

/// Most points of a sweep: beyond it is a slip of the hand.
const MAX_POINTS: usize = 10_000;

/// A swept key and its values.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) key: String,
    pub(crate) key_origin: Origin,
    pub(crate) values: Vec<Node>,
}

/// Takes `[sweep]` out of the tree. Keys may be quoted ("transport.name") or nested.
pub(crate) fn take_axes(root: &mut Table, sources: &Sources) -> Result<Vec<Axis>, ScenarioError> {
    let Some(sweep) = root.remove("sweep") else { return Ok(Vec::new()) };
    let Value::Table(table) = sweep.node.value else {
        return Err(sources.error("`sweep` must be a table", "not a table", sweep.node.origin));
    };
    let mut axes = Vec::new();
    flatten(table, "", &mut axes, sources)?;
    Ok(axes)
}

fn flatten(table: Table, prefix: &str, axes: &mut Vec<Axis>, sources: &Sources) -> Result<(), ScenarioError> {
    for entry in table.0 {
        let key = if prefix.is_empty() { entry.key } else { format!("{prefix}.{}", entry.key) };
        match entry.node.value {
            Value::Array(values) if values.is_empty() => {
                let message = format!("the sweep over `{key}` has no values");
                return Err(sources.error(&message, "an empty list", entry.node.origin));
            }
            Value::Array(values) => {
                if axes.iter().any(|axis| axis.key == key) {
                    let message = format!("`{key}` is swept twice");
                    return Err(sources.error(&message, "again here", entry.key_origin));
                }
                axes.push(Axis { key, key_origin: entry.key_origin, values });
            }
            Value::Table(inner) => flatten(inner, &key, axes, sources)?,
            _ => {
                let message = format!("the sweep over `{key}` needs a list of values");
                let help = format!("write it as \"{key}\" = [...]; a single value belongs into its table");
                return Err(sources.error(&message, "not a list", entry.node.origin).with_help(help));
            }
        }
    }
    Ok(())
}

/// Applies `--set key=value`: it replaces what the file says, also a sweep over this key.
pub(crate) fn apply_set(
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
        return Err(sources.error("`--set` needs a key such as `workload.load`", "no key", key_origin));
    }
    let node = read_value(text, path.len() + 1, source, sources)?;
    if let ["sweep", rest @ ..] = &parts[..] {
        let mut table = Table::default();
        let name = rest.join(".");
        table.set(&[&name], key_origin, node).map_err(|_| {
            sources.error("`--set sweep` needs a key", "such as sweep.workload.load", key_origin)
        })?;
        axes.retain(|axis| axis.key != name);
        return flatten(table, "", axes, sources);
    }
    axes.retain(|axis| axis.key != key && !axis.key.starts_with(&format!("{key}.")));
    root.set(&parts, key_origin, node).map_err(|error| {
        let message = format!("`{key}` can't be set: `{}` is not a table", error.at);
        sources.error(&message, "this key", key_origin)
    })
}

/// A TOML value, or else the text itself: `--set fabric.host_link="25 Gbps"` comes without quotes
/// from the shell.
fn read_value(text: &str, shift: usize, source: usize, sources: &Sources) -> Result<Node, ScenarioError> {
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

/// The tree of one point, and what is particular to it.
pub(crate) struct PointTree {
    pub(crate) root: Table,
    pub(crate) set: Vec<(String, Node)>,
}

/// All combinations; the first axis varies slowest.
pub(crate) fn expand(
    root: &Table,
    axes: &[Axis],
    sources: &Sources,
) -> Result<Vec<PointTree>, ScenarioError> {
    let mut count: usize = 1;
    for axis in axes {
        count = count.saturating_mul(axis.values.len());
        if count > MAX_POINTS {
            let message = format!("the sweep has more than {MAX_POINTS} points");
            return Err(sources.error(&message, "too many with this key", axis.key_origin));
        }
    }
    let mut points = Vec::with_capacity(count);
    for index in 0..count {
        let mut rest = index;
        let mut chosen: Vec<(&Axis, &Node)> = Vec::with_capacity(axes.len());
        for axis in axes.iter().rev() {
            chosen.push((axis, &axis.values[rest % axis.values.len()]));
            rest /= axis.values.len();
        }
        chosen.reverse();
        let mut tree = root.clone();
        for (axis, value) in &chosen {
            let parts: Vec<&str> = axis.key.split('.').collect();
            tree.set(&parts, axis.key_origin, (*value).clone()).map_err(|error| {
                let message = format!("`{}` can't be swept: `{}` is not a table", axis.key, error.at);
                sources.error(&message, "this key", axis.key_origin)
            })?;
        }
        let set = chosen.into_iter().map(|(axis, node)| (axis.key.clone(), node.clone())).collect();
        points.push(PointTree { root: tree, set });
    }
    Ok(points)
}

//! What differs at receivers, path by path: what `cast send --itemize` and `--dry-run` print.

use std::collections::BTreeMap;

use rackweave_cast::format::{Deleted, Difference, RecordKind};
use rackweave_cast::orca::CastReceiver;
use rackweave_cast::source::{Catalogue as _, Listing, Skipped};
use serde_json::json;

use super::outcome::{deleted, is_complete, others};
use crate::shell::{escaped, events, exit, size};

/// The most paths of a dry run that are printed for people; `--itemize` prints all.
const PATHS: usize = 20;

/// The names of what is sent, and of what is not.
#[derive(Debug, Default)]
pub(super) struct Names {
    entries: Vec<Name>,
    skipped: Vec<(String, &'static str)>,
}

#[derive(Debug)]
struct Name {
    path: String,
    kind: &'static str,
    bytes: u64,
    /// The text of a symbolic link.
    target: Option<String>,
}

/// A path, and at which receivers something is done there.
struct Item<'a> {
    action: &'static str,
    why: Option<&'static str>,
    path: &'a str,
    name: Option<&'a Name>,
    receivers: Vec<&'a CastReceiver>,
}

/// Returns bytes of names as text, in which nothing is escaped yet: JSON does it in its way.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns what is done at a receiver, and why; `None` for nothing.
const fn action(difference: Difference) -> Option<(&'static str, Option<&'static str>)> {
    let why = match difference {
        Difference::None => return None,
        Difference::New => return Some(("new", None)),
        Difference::Kind => "type",
        Difference::Length => "size",
        Difference::Content => "content",
        Difference::Target => "target",
        Difference::Link => "link",
        Difference::Time => "time",
        Difference::Mode => "mode",
        Difference::Owner => "owner",
    };
    Some(("changed", Some(why)))
}

impl Names {
    pub(super) fn new(listing: &Listing) -> Self {
        let name = |header: rackweave_cast::format::FileHeader| {
            let (kind, target) = match &header.kind {
                RecordKind::File | RecordKind::WithHoles(_) => ("file", None),
                RecordKind::Directory => ("folder", None),
                RecordKind::HardLink(_) => ("hard link", None),
                RecordKind::SymbolicLink(target) => ("symbolic link", Some(text(target))),
            };
            Name { path: text(&header.path), kind, bytes: header.length.unwrap_or(0), target }
        };
        let skipped = |it: &Skipped| (text(&it.name), it.kind);
        Self {
            entries: listing.headers().into_iter().map(name).collect(),
            skipped: listing.skipped().iter().map(skipped).collect(),
        }
    }

    /// Returns what is done at the receivers: entries, then what they delete, then what is not sent. Only a receiver that has everything
    /// has got all of it.
    fn items<'a>(
        &'a self,
        receivers: &'a [CastReceiver],
        deletions: &'a BTreeMap<String, Vec<&'a CastReceiver>>,
        dry_run: bool,
    ) -> impl Iterator<Item = Item<'a>> {
        let counts = move |it: &&CastReceiver| dry_run || is_complete(&it.progress);
        let changes = self.entries.iter().enumerate().flat_map(move |(number, name)| {
            let mut groups: Vec<Item<'a>> = Vec::new();
            for receiver in receivers.iter().filter(counts) {
                let differences = receiver.differences.as_deref().unwrap_or_default();
                let found = differences.get(number).and_then(|it| action(*it));
                let Some((action, why)) = found else { continue };
                match groups.iter_mut().find(|it| (it.action, it.why) == (action, why)) {
                    Some(item) => item.receivers.push(receiver),
                    None => groups.push(Item {
                        action,
                        why,
                        path: &name.path,
                        name: Some(name),
                        receivers: vec![receiver],
                    }),
                }
            }
            groups
        });
        let deletions = deletions.iter().map(|(path, at)| {
            let (action, receivers) = ("deleted", at.clone());
            Item { action, why: None, path, name: None, receivers }
        });
        let skipped = self.skipped.iter().map(|(path, kind)| {
            let (action, why, receivers) = ("skipped", Some(*kind), Vec::new());
            Item { action, why, path, name: None, receivers }
        });
        changes.chain(deletions).chain(skipped)
    }

    /// Returns a line for each item, for people. Without `all` there are only some.
    pub(super) fn lines(&self, receivers: &[CastReceiver], dry_run: bool, all: bool) -> String {
        let (mut text, of, mut count) = (String::new(), receivers.len(), 0);
        let deletions = deletions(receivers);
        for item in self.items(receivers, &deletions, dry_run) {
            count += 1;
            if count <= PATHS || all {
                text += &item.line(of);
            }
        }
        if count > PATHS && !all {
            let others = others((count - PATHS) as u64);
            text += &format!("and {others}, which --itemize prints\n");
        }
        for receiver in receivers {
            let unnamed = deleted(&receiver.deletion).map_or(0, Deleted::unnamed);
            if unnamed > 0 {
                text += &format!(
                    "and {} at {}, whose names its answer has no room for\n",
                    others(unnamed),
                    receiver.progress.address
                );
            }
        }
        text
    }

    /// Prints an event for each item.
    pub(super) fn events(&self, receivers: &[CastReceiver], dry_run: bool) -> miette::Result<u8> {
        let mut code = exit::DONE;
        let deletions = deletions(receivers);
        for item in self.items(receivers, &deletions, dry_run) {
            let hosts = item.receivers.iter().map(|it| it.progress.address.to_string());
            let hosts: Vec<String> = hosts.collect();
            let name = item.name;
            let fields = json!({
                "path": item.path, "action": item.action, "why": item.why,
                "kind": name.map(|it| it.kind), "bytes": name.map(|it| it.bytes),
                "target": name.and_then(|it| it.target.as_deref()), "hosts": hosts,
                "dry_run": dry_run,
            });
            code = code.max(events::emit("item", fields)?);
        }
        Ok(code)
    }
}

impl Item<'_> {
    fn line(&self, of: usize) -> String {
        let Self { action, path, .. } = self;
        let mut line = format!("{action:7}  {}", escaped(path));
        if let Some(name) = self.name {
            match (&name.target, name.kind) {
                (Some(target), _) => line += &format!(" -> {}", escaped(target)),
                (None, "file") => line += &format!("  {}", size(name.bytes)),
                (None, _) => {}
            }
        }
        if let Some(why) = self.why {
            line += &format!("  ({why})");
        }
        if !self.receivers.is_empty() {
            line += &format!("  at {} of {of}", self.receivers.len());
        }
        line + "\n"
    }
}

/// Returns the paths that receivers have deleted, or would delete, and where.
fn deletions(receivers: &[CastReceiver]) -> BTreeMap<String, Vec<&CastReceiver>> {
    let mut paths: BTreeMap<String, Vec<&CastReceiver>> = BTreeMap::new();
    for receiver in receivers {
        for path in deleted(&receiver.deletion).into_iter().flat_map(|it| &it.paths) {
            paths.entry(text(path)).or_default().push(receiver);
        }
    }
    paths
}

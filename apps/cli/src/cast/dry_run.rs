//! What `cast send --dry-run` prints.

use rackweave_cast::format::Deleted;
use rackweave_cast::orca::{CastReceiver, CastView};
use serde_json::json;

use super::args::SendArgs;
use super::items::Names;
use super::outcome::{amount, deleted, hidden, shortfall};
use crate::shell::{escaped, events, exit, print, size, status};

/// Reports what would be sent to whom. `failures` says for each receiver why it would get nothing, or not delete.
pub(super) fn report(
    args: &SendArgs,
    view: &CastView,
    names: &Names,
    failures: &[Option<String>],
) -> miette::Result<u8> {
    let receivers = &view.receivers[..];
    let code = if failures.iter().all(Option::is_none) { exit::DONE } else { exit::FAILED };
    for (to, why) in args.to.iter().zip(failures) {
        if let Some(why) = why {
            status(&format!("error: {to}: {}\n", escaped(why)));
        }
    }
    if args.common.json {
        let printed = names.events(receivers, true)?;
        return Ok(printed.max(result(receivers, view.content)?).max(code));
    }
    let mut text = names.lines(receivers, true, args.itemize);
    for CastReceiver { progress, deletion, lacking, .. } in receivers {
        let Some(there) = progress.there else { continue };
        let lacks = view.content.saturating_sub(there);
        let address = progress.address;
        let lacks = amount(lacks, lacking.as_ref());
        text += &format!("{address}  would get {lacks}, already there {}", size(there));
        if let Some(deleted) = deleted(deletion) {
            text += &format!(", would delete {}{}", deleted.entries, hidden(deleted));
        }
        text += "\n";
    }
    text += "dry run: nothing was sent\n";
    if args.common.quiet {
        return Ok(code);
    }
    Ok(print(&text)?.max(code))
}

/// Prints the event with the numbers of each receiver.
fn result(receivers: &[CastReceiver], content: u64) -> miette::Result<u8> {
    let receivers: Vec<_> = receivers
        .iter()
        .map(|receiver| {
            let CastReceiver { progress, lacking, deletion, .. } = receiver;
            let deleted = deleted(deletion);
            let files = lacking.as_ref().map(|lacking| lacking.iter().count());
            json!({
                "host": progress.address.to_string(), "entries": files,
                "bytes": progress.there.map(|there| content.saturating_sub(there)),
                "there_bytes": progress.there, "deleted": deleted.map(|it| it.entries),
                "not_deleted": deleted.map(|it| it.failed), "unnamed": deleted.map(Deleted::unnamed),
                "closed": deleted.map(|it| it.hidden),
                "error": shortfall(receiver),
            })
        })
        .collect();
    events::emit("result", json!({ "dry_run": true, "bytes": content, "receivers": receivers }))
}

//! What `cast send --dry-run` prints.

use rackweave_cast::format::Lacking;
use rackweave_cast::orca::{ReceiverProgress, SendView};
use serde_json::json;

use super::args::SendArgs;
use super::outcome::{failure, is_complete};
use crate::shell::{events, exit, print, size, status};

/// The most names that are printed for people; `--verbose` prints all.
const NAMES: usize = 20;

/// Reports what would be sent to whom.
pub(super) fn report(
    args: &SendArgs,
    view: &SendView,
    lacking: &[Option<Lacking>],
    names: &[(String, u64)],
) -> miette::Result<u8> {
    let all_answered = view.receivers.iter().all(is_complete);
    let code = if all_answered { exit::DONE } else { exit::FAILED };
    let answers: Vec<(&ReceiverProgress, Option<&Lacking>)> =
        view.receivers.iter().zip(lacking.iter().map(Option::as_ref)).collect();
    if args.common.json {
        for (entry, (name, bytes)) in (0..).zip(names) {
            let to: Vec<String> = (answers.iter())
                .filter(|(_, lacking)| lacking.is_some_and(|it| it.contains(entry)))
                .map(|(receiver, _)| receiver.address.to_string())
                .collect();
            if !to.is_empty() {
                let fields = json!({ "path": name, "bytes": bytes, "to": to });
                let _ = events::emit("would_send", fields)?;
            }
        }
        let receivers: Vec<_> = answers
            .iter()
            .map(|(receiver, lacking)| {
                let files = lacking.map(|lacking| lacking.iter().count());
                json!({
                    "host": receiver.address.to_string(), "entries": files,
                    "bytes": receiver.there.map(|there| view.content - there),
                    "there_bytes": receiver.there, "error": failure(receiver),
                })
            })
            .collect();
        let fields = json!({ "dry_run": true, "bytes": view.content, "receivers": receivers });
        return Ok(events::emit("result", fields)?.max(code));
    }
    let mut text = String::new();
    let mut shown = 0;
    for (entry, (name, bytes)) in (0..).zip(names) {
        let by = answers.iter().filter(|(_, lacking)| lacking.is_some_and(|it| it.contains(entry)));
        let count = by.count();
        if count > 0 {
            shown += 1;
            if shown <= NAMES || args.verbose {
                let of = answers.len();
                text += &format!("{name}  {}  to {count} of {of}\n", size(*bytes));
            }
        }
    }
    if shown > NAMES && !args.verbose {
        text += &format!("and {} others, which --verbose prints\n", shown - NAMES);
    }
    for (receiver, _) in &answers {
        if let Some(there) = receiver.there {
            let lacks = view.content.saturating_sub(there);
            text += &format!(
                "{}  would get {}, already there {}\n",
                receiver.address,
                size(lacks),
                size(there)
            );
        } else if let Some(why) = failure(receiver) {
            status(&format!("error: {}: {why}\n", receiver.address));
        }
    }
    text += "dry run: nothing was sent\n";
    if args.common.quiet {
        return Ok(code);
    }
    Ok(print(&text)?.max(code))
}

//! The result of a transfer, as text and as JSON.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;

use rackweave_cast::format::{Delete, Deleted, Deletion, Lacking, Obstacle, ObstacleKind};
use rackweave_cast::orca::{CastReceiver, CastView, ReceiverProgress};
use rackweave_cast::sink::{Comparison, FileDone, SinkError};
use rackweave_orca::flow::{ReceiverStatus, SlowReason};
use rackweave_orca::host::Spread;
use rackweave_wire::orca::Reason;
use serde_json::json;

use super::args::{ReceiveArgs, SendArgs};
use crate::shell::{escaped, events, exit, hex, print, rate, size, status};

/// Describes what is kept after an interrupted transfer.
pub(super) fn interruption(args: &SendArgs, view: &CastView) -> &'static str {
    match args.is_stdin() {
        _ if view.receivers.iter().all(|it| is_complete(&it.progress)) => {
            "interrupted: all receivers already have everything\n"
        }
        true => "interrupted: a transfer of standard input cannot be resumed\n",
        false => {
            "interrupted: receivers keep what they have; the same `cast send` resumes from there\n"
        }
    }
}

pub(super) fn is_complete(receiver: &ReceiverProgress) -> bool {
    receiver.status == ReceiverStatus::Completed
}

/// Describes to the sender's user why a receiver was lost.
pub(super) const fn why(reason: Reason) -> &'static str {
    match reason {
        Reason::Left => "the receiver was stopped; it keeps what it has and can resume",
        Reason::Refused => {
            "the receiver refused the files, and its own messages say why: something else has one of their names, another transfer is \
             writing them, its disk is read-only or not its user's to write, or it takes one file only"
        }
        Reason::Busy => "the receiver is taking another stream",
        Reason::Unknown => "the receiver was restarted and did not come back",
        Reason::Silent => "the receiver stopped responding",
        Reason::Damaged => "the receiver got other bytes than were sent",
        Reason::TooLate => "the bytes that the receiver lacks are no longer available",
        Reason::NoLabel => "the fabric has no label for this receiver",
        Reason::Stalled => {
            "it answers, but no packets of data arrive there, of whatever size: a switch or a firewall on the path drops them"
        }
        Reason::Unresponsive => {
            "the receiver answers, but the application that takes the files from its agent, or its disk, does not: it is stopped, or hangs"
        }
        Reason::Exists => {
            "the receiver needs --overwrite: another file has the name of one that is sent"
        }
        Reason::Full => "the receiver's disk is full",
    }
}

/// Returns why a receiver does not have everything, in a few words for JSON; `None` if it has.
pub(super) fn failure(receiver: &ReceiverProgress) -> Option<&'static str> {
    match receiver.status {
        ReceiverStatus::Completed => None,
        ReceiverStatus::Lost(reason) => Some(why(reason)),
        _ => Some("the transfer ended before it had everything"),
    }
}

/// Returns how much a receiver lacks in words: without bytes of files that is the number of entries.
pub(super) fn amount(bytes: u64, lacking: Option<&Lacking>) -> String {
    match lacking.map_or(0, |lacking| lacking.iter().count()) {
        1 if bytes == 0 => "1 link, folder or empty file".to_owned(),
        count if bytes == 0 && count > 0 => format!("{count} links, folders or empty files"),
        _ => size(bytes),
    }
}

/// Returns a number of others in words.
pub(super) fn others(count: u64) -> String {
    format!("{count} other{}", if count == 1 { "" } else { "s" })
}

/// Returns why a receiver took nothing, the option that helps first; `None` if nothing was in the way. Paths are as they are: JSON escapes
/// them, and who prints the text for people.
pub(super) fn blocked(obstacle: Option<&Obstacle>) -> Option<String> {
    let Obstacle { kind, path, entries } = obstacle?;
    let path = String::from_utf8_lossy(path);
    let others = match entries.saturating_sub(1) {
        0 => String::new(),
        count => format!(", and at {}", others(count)),
    };
    Some(match kind {
        ObstacleKind::Exists => {
            format!(
                "it needs --overwrite (`cast receive`): another file is at {path}{others}; nothing was sent"
            )
        }
        ObstacleKind::IsDirectory => {
            format!("a folder is in the way of {path}{others}; nothing was sent")
        }
        ObstacleKind::NotDirectory => {
            format!("a file or a link is in the way of the folder {path}{others}; nothing was sent")
        }
        ObstacleKind::Several => {
            format!(
                "it takes one file only (`cast receive --out`), and {path} is not it; nothing was sent"
            )
        }
    })
}

/// Returns why a receiver has not deleted what it was asked to; `None` if it has, or was not asked.
pub(super) fn undeleted(deletion: &Deletion) -> Option<String> {
    match deletion {
        Deletion::Refused => Some(
            "the receiver does not allow --delete (receive --allow-delete), and got nothing".into(),
        ),
        Deletion::Done(deleted) => failures(deleted),
        Deletion::NotDone(_) => Some(
            "the receiver had everything and lacks something again: its files were changed meanwhile, and what the sender has not \
             stays there; run the same command again"
                .into(),
        ),
        Deletion::None => None,
    }
}

/// Returns in words what a dry run has not looked into.
pub(super) fn hidden(deleted: &Deleted) -> String {
    match deleted.hidden {
        0 => String::new(),
        1 => " and what 1 folder has, which is closed to its owner".to_owned(),
        count => format!(" and what {count} folders have, which are closed to their owner"),
    }
}

/// Returns what could not be deleted, and why that may be.
fn failures(deleted: &Deleted) -> Option<String> {
    let first = deleted.failures.first().map(|path| String::from_utf8_lossy(path));
    (deleted.failed > 0).then(|| {
        let others = match deleted.failed {
            1 => String::new(),
            count => format!(" and {}", others(count - 1)),
        };
        format!(
            "cannot delete {}{others}: not its user's to delete or to look into, on another file system or mount, or deeper than 200 folders",
            first.unwrap_or_default()
        )
    })
}

/// The result of a finished transfer.
pub(super) struct Outcome {
    pub(super) view: CastView,
    pub(super) seconds: f64,
    pub(super) spread: Spread,
    pub(super) link_bytes: u64,
}

/// Returns a receiver's state in a few words, as tables and JSON show it.
pub(super) fn state(receiver: &ReceiverProgress) -> String {
    match receiver.status {
        ReceiverStatus::Invited => "invited".into(),
        ReceiverStatus::Preparing => "preparing (hashes what it has)".into(),
        ReceiverStatus::Attached => "receiving".into(),
        ReceiverStatus::Detached => match receiver.slow_reason {
            Some(SlowReason::NoMulticast) => "detached (no multicast)".into(),
            Some(SlowReason::Silent) => "detached (stopped responding)".into(),
            Some(SlowReason::Window) => "detached (slow disk or reader)".into(),
            Some(SlowReason::Path) => "detached (smaller packets)".into(),
            Some(SlowReason::Rate) => "detached (slow link or host)".into(),
            None => "catching up (joined late)".into(),
        },
        ReceiverStatus::Completed => "complete".into(),
        ReceiverStatus::Lost(reason) => match reason {
            Reason::Left => "left",
            Reason::Refused => "refused",
            Reason::Busy => "busy",
            Reason::Unknown => "forgotten",
            Reason::Silent => "silent",
            Reason::Damaged => "damaged",
            Reason::TooLate => "too late",
            Reason::NoLabel => "no label",
            Reason::Stalled => "unreached",
            Reason::Unresponsive => "unresponsive",
            Reason::Exists => "refused",
            Reason::Full => "disk full",
        }
        .into(),
    }
}

/// Returns what a receiver has deleted.
pub(super) const fn deleted(deletion: &Deletion) -> Option<&Deleted> {
    match deletion {
        Deletion::Done(deleted) | Deletion::NotDone(deleted) => Some(deleted),
        Deletion::None | Deletion::Refused => None,
    }
}

/// Returns why a receiver has not done what was asked, in a few words for JSON; `None` if it has.
pub(super) fn shortfall(receiver: &CastReceiver) -> Option<String> {
    let CastReceiver { progress, deletion, obstacle, .. } = receiver;
    let why = undeleted(deletion).or_else(|| blocked(obstacle.as_ref()));
    why.or_else(|| failure(progress).map(str::to_owned))
}

impl Outcome {
    pub(super) fn json(&self) -> serde_json::Value {
        let receivers = self.view.receivers.iter().map(|it| {
            let (receiver, deleted) = (&it.progress, deleted(&it.deletion));
            let bytes = receiver.have.saturating_sub(receiver.from);
            let seconds = receiver.seconds.unwrap_or(self.seconds);
            json!({
                "host": receiver.address.to_string(), "state": state(receiver), "bytes": bytes,
                "there_bytes": receiver.there,
                "resumed_at": receiver.from, "wall_s": seconds,
                "bits_per_second": (bytes as f64 * 8.0 / seconds.max(1e-9)) as u64,
                "repair_bytes": receiver.repairs, "mtu": receiver.mtu,
                "multicast": if self.spread == Spread::Multicast { receiver.multicast } else { Some(false) },
                "deleted": deleted.map(|it| it.entries), "not_deleted": deleted.map(|it| it.failed),
                "error": shortfall(it),
            })
        });
        let summary = &self.view.summary;
        json!({
            "wall_s": self.seconds, "spread": self.spread.name(), "bytes": self.view.content,
            "link_bytes": self.link_bytes, "copies": self.view.copies,
            "repaired_bytes": summary.repaired_all + summary.repaired_one,
            "parity_bytes": summary.parity, "catch_up_bytes": summary.catch_up, "receivers": receivers.collect::<Vec<_>>(),
        })
    }

    /// Returns a note for each receiver that full packets, multicast or labels do not reach.
    pub(super) fn notes(&self) -> String {
        let mut text = String::new();
        for receiver in self.view.receivers.iter().map(|it| &it.progress) {
            if let Some(mtu) = receiver.mtu {
                text += &format!(
                    "note: {}: packets of {} bytes do not arrive: --mtu {mtu}; it got copies in smaller ones\n",
                    receiver.address, self.view.packet
                );
            }
            if self.spread == Spread::Multicast && receiver.multicast == Some(false) {
                text += &format!(
                    "note: {}: multicast does not reach it; it got copies of its own\n",
                    receiver.address
                );
            }
            if receiver.unlabelled {
                text += &format!(
                    "note: {}: no label reached it, and it got copies of its own: its rack has no agent (`cast receive --fabric FILE \
                     --controller ADDR` at one of its hosts), or the controller does not answer\n",
                    receiver.address
                );
            }
        }
        text
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let width =
            self.view.receivers.iter().map(|it| it.progress.address.to_string().len()).max();
        for CastReceiver { progress: receiver, deletion, .. } in &self.view.receivers {
            let bytes = receiver.have.saturating_sub(receiver.from);
            let seconds = receiver.seconds.unwrap_or(self.seconds);
            let speed = rate(bytes as f64 * 8.0 / seconds.max(1e-6));
            let address = receiver.address.to_string();
            let width = width.unwrap_or(0);
            text += &format!(
                "{address:width$}  {:8}  {}",
                state(receiver),
                match (bytes, receiver.there.unwrap_or(0)) {
                    (0, 0) if !is_complete(receiver) => "sent 0".to_owned(),
                    (0, there) => format!("sent 0, already there {}", size(there)),
                    _ => format!(
                        "{} in {seconds:.2} s, {speed}, {} retransmitted",
                        size(bytes),
                        size(receiver.repairs)
                    ),
                },
            );
            if let Some(there) = receiver.there.filter(|there| bytes > 0 && *there > 0) {
                text += &format!(", already there {}", size(there));
            }
            if let Some(deleted) = deleted(deletion) {
                text += &format!(", deleted {}", deleted.entries);
            }
            if receiver.from > 0 && bytes > 0 {
                text += &format!(", resumed at {}", size(receiver.from));
            }
            text += "\n";
        }
        let content = self.view.content.max(1);
        let of = self.view.receivers.len();
        let has_all = |it: &&CastReceiver| it.lacking.as_ref().is_some_and(Lacking::is_empty);
        let there = self.view.receivers.iter().filter(has_all).count();
        if there == of {
            text += &format!(
                "sent 0, already there {} at {there} of {of} receivers\n",
                size(self.view.content)
            );
            return text;
        }
        if there > 0 {
            text += &format!("{there} of {of} receivers had everything; ");
        }
        let has_content = |it: &CastReceiver| it.progress.there == Some(self.view.content);
        let (what, times) = match self.view.receivers.iter().all(has_content) {
            // What is sent has no bytes of files.
            true => ("links, folders or empty files".to_owned(), String::new()),
            false => {
                let times = self.link_bytes as f64 / content as f64;
                (size(self.view.content), format!(" ({times:.2} x the files)"))
            }
        };
        text += &format!(
            "{what} by {} in {:.2} s; the sender's link carried {}{times}\n",
            self.spread.name(),
            self.seconds,
            size(self.link_bytes),
        );
        text
    }
}

/// Reports what a sender's files and the files of this host have in common.
pub(super) fn report_comparison(
    args: &ReceiveArgs,
    from: SocketAddr,
    comparison: &Comparison,
) -> miette::Result<()> {
    let Comparison { purpose, files, bytes, lacking_files, lacking_bytes, is_complete, .. } =
        comparison;
    let refusal = refusal(args, comparison);
    let deletion = &comparison.deletion;
    if args.common.json {
        let deleted = deleted(deletion);
        let document = json!({
            "from": from.to_string(), "files": files, "bytes": bytes,
            "lacking_files": lacking_files, "lacking_bytes": lacking_bytes, "dry_run": purpose.dry_run,
            "deleted": deleted.map(|it| it.entries), "not_deleted": deleted.map(|it| it.failed),
            "closed": deleted.map(|it| it.hidden),
            "error": refusal.or_else(|| deleted.and_then(failures)),
        });
        let line = events::line("compared", document);
        if args.is_stdout() {
            status(&line);
        } else {
            print(&line)?;
        }
        return Ok(());
    }
    let mut text = String::new();
    if let Some(refusal) = refusal {
        status(&format!("error: {from}: {}\n", escaped(&refusal)));
        return Ok(());
    }
    // What is lacking is reported when it has been received.
    let there = size(bytes - lacking_bytes);
    if purpose.dry_run {
        text += &format!(
            "dry run of {from}: {lacking_files} of {files} files ({}) would be sent, already there {there}\n",
            size(*lacking_bytes)
        );
    } else if *is_complete && purpose.delete != Delete::Now {
        text += &format!("{from}: nothing to receive, already there {there} in {files} files\n");
    }
    if let Deletion::Done(deleted) = deletion {
        for path in deleted.paths.iter().filter(|_| args.verbose) {
            text += &format!("deleted {}\n", escaped(&String::from_utf8_lossy(path)));
        }
        let would = if purpose.dry_run { "would delete" } else { "deleted" };
        let hidden = hidden(deleted);
        text += &format!("{from}: {would} {} files and folders{hidden}\n", deleted.entries);
        if let Some(failures) = failures(deleted) {
            status(&format!("error: {from}: {}\n", escaped(&failures)));
        }
    }
    if args.is_stdout() {
        status(&text);
    } else {
        print(&text)?;
    }
    Ok(())
}

/// Returns why nothing of a cast is taken.
fn refusal(args: &ReceiveArgs, comparison: &Comparison) -> Option<String> {
    if comparison.deletion == Deletion::Refused {
        let text = "the sender asks to delete files here (send --delete), which needs --allow-delete; nothing is received";
        return Some(text.into());
    }
    if let Deletion::NotDone(_) = comparison.deletion {
        let text = "files of the cast were changed here since all of them were there, and what the sender has not stays";
        return Some(text.into());
    }
    let Obstacle { kind, path, entries } = comparison.obstacle.as_ref()?;
    let path = match &args.out {
        Some(out) => out.clone(),
        None => args.dir.join(OsStr::from_bytes(path)),
    };
    let path = path.to_string_lossy();
    let others = match entries.saturating_sub(1) {
        0 => String::new(),
        1 => ", and so does 1 other".to_owned(),
        count => format!(", and so do {count} others"),
    };
    Some(match kind {
        ObstacleKind::Exists => {
            format!(
                "{path} exists already{others}: --overwrite replaces files; nothing is received"
            )
        }
        ObstacleKind::IsDirectory => {
            format!("{path} is a directory and cannot be replaced by a file; nothing is received")
        }
        ObstacleKind::NotDirectory => {
            format!("{path} is not a directory, and links are not followed; nothing is received")
        }
        ObstacleKind::Several => SinkError::Several.to_string(),
    })
}

/// Reports a received stream, or why it failed.
pub(super) fn report(
    args: &ReceiveArgs,
    from: SocketAddr,
    bytes: u64,
    files: &[FileDone],
    seconds: f64,
    error: Option<&str>,
) -> miette::Result<u8> {
    let to_stdout = args.is_stdout();
    if args.common.json {
        let files: Vec<_> = files
            .iter()
            .map(
                |file| json!({ "path": file.path.to_string_lossy(), "bytes": file.bytes, "blake3": hex(&file.hash) }),
            )
            .collect();
        let document = json!({
            "from": from.to_string(), "bytes": bytes, "wall_s": seconds,
            "state": if error.is_some() { "failed" } else { "received" },
            "error": error, "files": files,
        });
        let line = events::line("received", document);
        if to_stdout {
            status(&line);
            return Ok(exit::DONE);
        }
        return print(&line);
    }
    if let Some(error) = error {
        status(&format!("error: {from}: {}\n", escaped(error)));
        return Ok(exit::DONE);
    }
    let speed = rate(bytes as f64 * 8.0 / seconds.max(1e-6));
    let mut text = String::new();
    for file in files.iter().filter(|_| args.verbose || files.len() == 1) {
        let hash = hex(&file.hash[..8]);
        text += &format!(
            "{}  {}  blake3 {hash}...\n",
            escaped(&file.path.to_string_lossy()),
            size(file.bytes)
        );
    }
    let of = if files.len() > 1 { format!(" in {} files", files.len()) } else { String::new() };
    text += &format!("received {}{of} from {from} in {seconds:.2} s, {speed}\n", size(bytes));
    if to_stdout {
        status(&text);
        return Ok(exit::DONE);
    }
    print(&text)
}

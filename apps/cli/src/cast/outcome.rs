//! The result of a transfer, as text and as JSON.

use std::net::SocketAddr;

use rackweave_cast::orca::{ReceiverProgress, SendView};
use rackweave_cast::sink::{Comparison, FileDone};
use rackweave_orca::flow::{ReceiverStatus, SlowReason};
use rackweave_orca::host::Spread;
use rackweave_wire::orca::Reason;
use serde_json::json;

use super::args::{ReceiveArgs, SendArgs};
use crate::shell::{escaped, events, exit, hex, print, rate, size, status};

/// Describes what is kept after an interrupted transfer.
pub(super) fn interruption(args: &SendArgs, view: &SendView) -> &'static str {
    match args.is_stdin() {
        _ if view.receivers.iter().all(is_complete) => {
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
            "the receiver refused the files, and its own messages say why: others with their names exist there (receive --overwrite \
             replaces them), a directory or a link is in the way, another transfer is writing them, its disk is full, read-only or not \
             its user's to write, or it takes one file only"
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

/// The result of a finished transfer.
pub(super) struct Outcome {
    pub(super) view: SendView,
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
        }
        .into(),
    }
}

impl Outcome {
    pub(super) fn json(&self) -> serde_json::Value {
        let receivers = self.view.receivers.iter().map(|receiver| {
            let bytes = receiver.have.saturating_sub(receiver.from);
            let seconds = receiver.seconds.unwrap_or(self.seconds);
            json!({
                "host": receiver.address.to_string(), "state": state(receiver), "bytes": bytes,
                "there_bytes": receiver.there,
                "resumed_at": receiver.from, "wall_s": seconds,
                "bits_per_second": (bytes as f64 * 8.0 / seconds.max(1e-9)) as u64,
                "repair_bytes": receiver.repairs, "mtu": receiver.mtu,
                "multicast": self.spread == Spread::Multicast && receiver.slow_reason != Some(SlowReason::NoMulticast),
                "error": failure(receiver),
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

    /// Returns a note for each receiver that full packets, or multicast, do not reach.
    pub(super) fn notes(&self) -> String {
        let mut text = String::new();
        for receiver in &self.view.receivers {
            if let Some(mtu) = receiver.mtu {
                text += &format!(
                    "note: {}: packets of {} bytes do not arrive: --mtu {mtu}; it got copies in smaller ones\n",
                    receiver.address, self.view.packet
                );
            }
            if receiver.slow_reason == Some(SlowReason::NoMulticast) {
                text += &format!(
                    "note: {}: multicast does not reach it; it got copies of its own\n",
                    receiver.address
                );
            }
        }
        text
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let width = self.view.receivers.iter().map(|it| it.address.to_string().len()).max();
        for receiver in &self.view.receivers {
            let bytes = receiver.have.saturating_sub(receiver.from);
            let seconds = receiver.seconds.unwrap_or(self.seconds);
            let speed = rate(bytes as f64 * 8.0 / seconds.max(1e-6));
            let address = receiver.address.to_string();
            let width = width.unwrap_or(0);
            text += &format!(
                "{address:width$}  {:8}  {}",
                state(receiver),
                match (bytes, receiver.there) {
                    (0, Some(there)) => format!("sent 0, already there {}", size(there)),
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
            if receiver.from > 0 {
                text += &format!(", resumed at {}", size(receiver.from));
            }
            text += "\n";
        }
        let content = self.view.content.max(1);
        let of = self.view.receivers.len();
        let has_all = |it: &&ReceiverProgress| it.there == Some(self.view.content);
        let there = self.view.receivers.iter().filter(has_all).count();
        if there == of {
            text += &format!(
                "sent 0, already there {} at {there} of {of} receivers\n",
                size(self.view.content)
            );
            return text;
        }
        if there > 0 {
            text += &format!("already there at {there} of {of} receivers; ");
        }
        text += &format!(
            "{} by {} in {:.2} s; the sender's link carried {} ({:.2} x the files)\n",
            size(self.view.content),
            self.spread.name(),
            self.seconds,
            size(self.link_bytes),
            self.link_bytes as f64 / content as f64,
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
    let Comparison { purpose, files, bytes, lacking_files, lacking_bytes, is_complete } =
        *comparison;
    if args.common.json {
        let document = json!({
            "from": from.to_string(), "files": files, "bytes": bytes,
            "lacking_files": lacking_files, "lacking_bytes": lacking_bytes, "dry_run": purpose.dry_run,
        });
        let line = events::line("compared", document);
        if args.is_stdout() {
            status(&line);
        } else {
            print(&line)?;
        }
        return Ok(());
    }
    // What is lacking is reported when it has been received.
    if purpose.dry_run || is_complete {
        let there = size(bytes - lacking_bytes);
        let text = match purpose.dry_run {
            true => format!(
                "dry run of {from}: {lacking_files} of {files} files ({}) would be sent, already there {there}\n",
                size(lacking_bytes)
            ),
            false => {
                format!("{from}: nothing to receive, already there {there} in {files} files\n")
            }
        };
        if args.is_stdout() {
            status(&text);
        } else {
            print(&text)?;
        }
    }
    Ok(())
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

//! Why receivers do not have everything, for the sender's user.

use rackweave_cast::format::Deletion;
use rackweave_cast::orca::{CastReceiver, CastView, Engine, ReceiverProgress};
use rackweave_orca::flow::ReceiverStatus;
use rackweave_wire::orca::Reason;

use super::args::SendArgs;
use super::diagnose;
use super::outcome::{blocked, is_complete, undeleted, why};
use crate::shell::size;

/// Returns for each receiver what it has not done, and what to do.
pub(super) fn all(args: &SendArgs, engine: &Engine, view: &CastView) -> Vec<Option<String>> {
    view.receivers.iter().map(|receiver| of(args, engine, receiver, view.content)).collect()
}

fn of(args: &SendArgs, engine: &Engine, receiver: &CastReceiver, content: u64) -> Option<String> {
    let CastReceiver { progress, deletion, obstacle, .. } = receiver;
    let undone = undeleted(deletion).or_else(|| blocked(obstacle.as_ref()));
    if is_complete(progress) || *deletion == Deletion::Refused || obstacle.is_some() {
        return undone;
    }
    let ReceiverStatus::Lost(reason) = progress.status else {
        return Some("the transfer ended before it had everything".into());
    };
    let other_key = engine.has_other_key(progress.host);
    let lost = match reason {
        Reason::Silent if progress.have == 0 && progress.from == 0 => {
            let answered = diagnose::Answered { other_key, from: engine.foreign() };
            diagnose::silent(progress.address, args.common.key.is_some(), &answered)
        }
        Reason::Silent if other_key => format!(
            "{}, and it, or another in its place, has answered that it has another key, or that only one of the two has one",
            why(reason)
        ),
        _ => why(reason).to_owned(),
    };
    let lost = lost + &again(args, progress, reason, content);
    Some(undone.map_or_else(|| lost.clone(), |undone| format!("{undone}; {lost}")))
}

/// Returns what to do for a receiver that was lost: nothing that it has is sent again.
fn again(args: &SendArgs, receiver: &ReceiverProgress, reason: Reason, content: u64) -> String {
    let returns = matches!(reason, Reason::Silent | Reason::Unknown | Reason::Left);
    let has = receiver.there.unwrap_or(0) + receiver.have;
    let has_all = receiver.seconds.is_some() || receiver.there == Some(content);
    if returns && args.delete && has_all {
        return "; run the same command again: it has everything, and may have deleted a part already".into();
    }
    match returns && has > 0 && !args.is_stdin() {
        true => format!("; run the same command again: it goes on at {}", size(has)),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::Parser;
    use rackweave_core::HostId;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        send: SendArgs,
    }

    #[test]
    fn the_advice_for_a_lost_receiver_tells_that_a_part_may_be_deleted() {
        let advice = |options: &[&str], there, seconds| {
            let words = [&["send", "tree", "--to", "192.0.2.1"], options].concat();
            let args = Command::try_parse_from(words).unwrap().send;
            let lost = ReceiverStatus::Lost(Reason::Silent);
            let at = SocketAddr::from(([192, 0, 2, 1], 6722));
            let none = ReceiverProgress::new(HostId(1), Some(at), lost);
            let receiver = ReceiverProgress { there, seconds, ..none };
            again(&args, &receiver, Reason::Silent, 195)
        };
        let partly = "; run the same command again: it goes on at 100 B";
        let all =
            "; run the same command again: it has everything, and may have deleted a part already";
        assert_eq!(advice(&["--delete"], Some(100), None), partly);
        assert_eq!(advice(&["--delete"], Some(195), None), all);
        assert_eq!(advice(&["--delete"], Some(100), Some(1.0)), all);
        assert_eq!(advice(&[], Some(100), Some(1.0)), partly);
        assert_eq!(advice(&[], None, None), "");
    }
}

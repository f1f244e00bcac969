//! Faults in words: what a scenario does to its fabric, before a run and next to its numbers.

use rackweave_core::{HostId, Span, Time};
use rackweave_sim::Fabric;
use rackweave_sim::config::{Fault, FaultKind, FaultPlace};
use rackweave_switch::fabric::Node;

use crate::report::number::{micros, short};

/// Describes each fault: what fails, when, and whom it cuts off.
pub(crate) fn told(faults: &[Fault], fabric: &Fabric) -> Vec<String> {
    faults.iter().map(|fault| of(fault, fabric)).collect()
}

/// Whether faults lose packets, so that more are sent than without them.
pub(crate) fn lose_packets(faults: &[Fault]) -> bool {
    let loses = |fault: &Fault| match fault.kind {
        FaultKind::Loss(share) | FaultKind::Corruption(share) => share > 0.0,
        _ => false,
    };
    faults.iter().any(loses)
}

/// Whether a fault cuts hosts off for at least this time, from before `until` on: messages to them then fail.
pub(crate) fn outlast(faults: &[Fault], fabric: &Fabric, patience: Span, until: Time) -> bool {
    let is_away = |fault: &Fault| {
        fault.from < until
            && fault.until.since(fault.from) >= patience
            && whom(fault, fabric).is_some()
    };
    faults.iter().any(is_away)
}

/// Names the hosts that were cut off at the end of a run, and since when.
pub(crate) fn cut_off(faults: &[Fault], end: Time) -> Vec<String> {
    let is_on = |fault: &&Fault| fault.from <= end && end < fault.until;
    let words = |fault: &Fault| {
        let since = micros(fault.from.as_us_f64());
        match (fault.kind, fault.place) {
            (FaultKind::Down, FaultPlace::HostLink(host)) => {
                Some(format!("host {} is cut off: its link is down since {since}", host.0))
            }
            (FaultKind::Down, FaultPlace::AllLinks) => {
                Some(format!("all hosts are cut off: their links are down since {since}"))
            }
            (FaultKind::Down, FaultPlace::CoreLinks) => {
                Some(format!("all core links are down since {since}"))
            }
            (FaultKind::Down, FaultPlace::CoreLink(cable)) => {
                Some(format!("core link {cable} is down since {since}"))
            }
            (FaultKind::Pause, FaultPlace::Host(host)) => {
                Some(format!("host {} is paused since {since}", host.0))
            }
            (FaultKind::Crash, FaultPlace::Host(host)) => {
                Some(format!("host {} is down since {since}", host.0))
            }
            _ => None,
        }
    };
    faults.iter().filter(is_on).filter_map(words).collect()
}

fn of(fault: &Fault, fabric: &Fabric) -> String {
    let place = place(fault.place);
    let share = |share: f64| format!("{} % of the packets", short(share * 100.0));
    let what = match fault.kind {
        FaultKind::Loss(of) => format!("{place}: {} lost", share(of)),
        FaultKind::Corruption(of) => format!("{place}: {} damaged", share(of)),
        FaultKind::Duplication(of) => format!("{place}: {} twice", share(of)),
        FaultKind::Reordering { probability, delay } => {
            format!("{place}: {} late by up to {}", share(probability), micros(delay.as_us_f64()))
        }
        FaultKind::Down => format!("{place} down"),
        FaultKind::Pause => format!("{place} paused"),
        FaultKind::Crash => format!("{place} crashed"),
    };
    let from = micros(fault.from.as_us_f64());
    let is_for_good = fault.until == Time::MAX;
    let when = match (fault.from == Time::ZERO, is_for_good) {
        (true, true) => "all the time".to_owned(),
        (false, true) => format!("from {from} on"),
        (true, false) => format!("until {}", micros(fault.until.as_us_f64())),
        _ => format!("from {from} to {}", micros(fault.until.as_us_f64())),
    };
    let long = if is_for_good { " for good" } else { "" };
    let whom =
        whom(fault, fabric).map_or_else(String::new, |whom| format!("; cuts {whom} off{long}"));
    format!("{what} {when}{whom}")
}

fn place(place: FaultPlace) -> String {
    match place {
        FaultPlace::AllLinks => "all links".to_owned(),
        FaultPlace::CoreLinks => "core links".to_owned(),
        FaultPlace::HostLink(host) => format!("link of host {}", host.0),
        FaultPlace::CoreLink(cable) => format!("core link {cable}"),
        FaultPlace::Host(host) => format!("host {}", host.0),
    }
}

/// Whom a fault cuts off from the others.
fn whom(fault: &Fault, fabric: &Fabric) -> Option<String> {
    match (fault.kind, fault.place) {
        (FaultKind::Down, FaultPlace::AllLinks) => Some("all hosts".to_owned()),
        (FaultKind::Down, FaultPlace::HostLink(HostId(host)))
        | (FaultKind::Pause | FaultKind::Crash, FaultPlace::Host(HostId(host))) => {
            Some(format!("host {host}"))
        }
        (FaultKind::Down, FaultPlace::CoreLinks) => parted(fabric, &fabric.core_links()),
        (FaultKind::Down, FaultPlace::CoreLink(cable)) => {
            parted(fabric, fabric.core_links().get(cable as usize..=cable as usize)?)
        }
        _ => None,
    }
}

/// The hosts that cannot reach all others without these cables. Circuits of a pod move, so that nothing is said of them.
fn parted(fabric: &Fabric, cables: &[(u32, u32)]) -> Option<String> {
    if fabric.pod().is_some() {
        return None;
    }
    let works = |link: u32| !cables.iter().any(|(up, down)| link == *up || link == *down);
    let (size, tables) = fabric.detours(works);
    let groups = fabric.hosts().div_ceil(size);
    let switch = |group: u32| match fabric.links()[(group * size) as usize].to {
        Node::Switch(switch) => Some(switch),
        Node::Host(_) => None,
    };
    let reaches = |from: u32, to: u32| {
        switch(from)
            .is_none_or(|at| switch(to) == Some(at) || !tables[at as usize][to as usize].is_empty())
    };
    let is_parted = |group: &u32| (0..groups).any(|other| !reaches(other, *group));
    let reached = |group: u32| (0..groups).filter(|other| reaches(*other, group)).count() as u32;
    let parted: Vec<u32> = (0..groups).filter(is_parted).collect();
    // One that nobody else reaches parts all from it: it is the one to name.
    let alone: Vec<u32> = parted.iter().copied().filter(|group| reached(*group) == 1).collect();
    match (&*alone, parted.len()) {
        (_, 0) => None,
        ([group], _) => {
            let last = ((group + 1) * size).min(fabric.hosts()) - 1;
            Some(format!("hosts {} to {last}", group * size))
        }
        _ => Some("the hosts of different switches".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rackweave_sim::Control;

    use crate::results::PointResult;
    use crate::scenario::Scenario;

    /// Runs DCTCP on four hosts with a fault of host 3.
    fn warning(fault: &str) -> String {
        let text = format!(
            "fabric = {{ topology = 'single-switch', hosts = 4, host_link = '10 Gbps' }}\n\
             transport.name = 'dctcp'\nmeasure = {{ warmup = '0 s', messages = 100 }}\n\
             workload = {{ arrivals = 'poisson', sizes = '10 KB', load = 0.01 }}\n\
             faults = [{{ {fault}, from = '100 us' }}]"
        );
        let folder = std::path::Path::new(".");
        let scenario = Scenario::parse("test.toml", &text, folder, &[], None).unwrap();
        let point = &scenario.points[0];
        let result = rackweave_sim::run(&point.config, &Control::default()).unwrap();
        PointResult::new(0, point, result, 0.0).summary.warning().expect("messages are missing")
    }

    #[test]
    fn a_run_says_which_host_was_cut_off() {
        let down = warning("kind = 'down', place = 'link of host 3'");
        assert!(
            down.contains(" failed, host 3 is cut off: its link is down since 100 us"),
            "{down}"
        );
        assert!(down.ends_with("(all done)"), "{down}");
        let paused = warning("kind = 'pause', place = 'host 3'");
        assert!(paused.contains("host 3 is paused since 100 us"), "{paused}");
        assert!(paused.ends_with("(cut off)"), "{paused}");
    }
}

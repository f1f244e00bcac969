//! Starting points of the local search: racks that are grown along the heaviest edges, or joined by a matching.

use super::matching::max_weight_matching;
use super::search::Prepared;
use crate::config::Configuration;
use crate::demand::Upload;
use crate::fabric::Fabric;

/// Groups the servers of some periods: the upload that a programmable `ToR` can absorb most of first, then from each heaviest
/// remaining pair, adding the server that exchanges most with the rack until it is full.
pub(crate) fn heavy_edges(fabric: &Fabric, periods: &[&Prepared<'_>]) -> Configuration {
    let servers = fabric.pod().servers() as usize;
    let mut affinity = vec![0.0; servers * servers];
    periods.iter().for_each(|prepared| prepared.add_affinity(&mut affinity));
    let tors = fabric.pod().tors();
    let mut order: Vec<usize> = (0..tors.len()).collect();
    let aggregates = fabric.architecture().aggregates();
    order.sort_by_key(|&tor| {
        (!(aggregates && tors[tor].is_programmable()), u32::MAX - tors[tor].ports, tor)
    });
    let mut tor_of: Vec<Option<u16>> = vec![None; servers];
    for tor in order {
        let mut to_rack = vec![0.0; servers];
        let mut room = tors[tor].ports;
        let seed = if aggregates && tors[tor].is_programmable() {
            largest_upload(periods, &tor_of)
        } else {
            None
        };
        let mut next = seed.or_else(|| heaviest(&affinity, &tor_of));
        while room > 0 {
            let Some(server) = next else { break };
            tor_of[server] = Some(tor as u16);
            room -= 1;
            for (other, value) in to_rack.iter_mut().enumerate() {
                *value += affinity[server * servers + other];
            }
            next = most(&to_rack, &tor_of);
        }
    }
    let tor_of: Vec<u16> = tor_of.into_iter().map(|tor| tor.unwrap_or(0)).collect();
    Configuration::trusted(&tor_of)
}

/// The racks in use, but with the servers of an upload below a programmable `ToR`, in exchange for others; for each `ToR` that has
/// the ports.
pub(crate) fn gathered(fabric: &Fabric, upload: &Upload) -> Vec<Configuration> {
    let is_member = |server: usize| {
        let it = server as u32;
        it == upload.master() || upload.workers().iter().any(|&(worker, _)| worker == it)
    };
    let tors = (0_u16..).zip(fabric.pod().tors());
    let large = tors
        .filter(|(_, tor)| tor.is_programmable() && upload.servers() <= tor.ports as usize)
        .map(|(number, tor)| (number, tor.ports as usize));
    let gather = |(number, ports): (u16, usize)| {
        let mut tor_of = fabric.initial().tor_of().to_vec();
        for server in (0..tor_of.len()).filter(|&it| is_member(it)) {
            let from = tor_of[server];
            if from == number {
                continue;
            }
            if tor_of.iter().filter(|&&it| it == number).count() >= ports {
                let other = (0..tor_of.len()).find(|&it| tor_of[it] == number && !is_member(it));
                tor_of[other?] = from;
            }
            tor_of[server] = number;
        }
        Some(Configuration::trusted(&tor_of))
    };
    large.filter_map(gather).collect()
}

/// The master of the upload that aggregation shortens most, if it has no rack yet.
fn largest_upload(periods: &[&Prepared<'_>], tor_of: &[Option<u16>]) -> Option<usize> {
    let uploads = periods.iter().flat_map(|prepared| prepared.period().uploads());
    let free = uploads.filter(|upload| tor_of[upload.master() as usize].is_none());
    let saved = free.map(|upload| {
        let bytes: u64 = upload.workers().iter().map(|&(_, bytes)| bytes).sum();
        (bytes - upload.distinct(), u32::MAX - upload.master())
    });
    saved.max().map(|(_, master)| (u32::MAX - master) as usize)
}

/// The free server with the heaviest edge to a free one, or any free server.
fn heaviest(affinity: &[f64], tor_of: &[Option<u16>]) -> Option<usize> {
    let servers = tor_of.len();
    let mut best: Option<(usize, f64)> = None;
    for a in (0..servers).filter(|&it| tor_of[it].is_none()) {
        for b in (a + 1..servers).filter(|&it| tor_of[it].is_none()) {
            let value = affinity[a * servers + b];
            if best.is_none_or(|(_, most)| value > most) {
                best = Some((a, value));
            }
        }
    }
    best.map(|(server, _)| server).or_else(|| tor_of.iter().position(Option::is_none))
}

/// The free server with the largest value.
fn most(values: &[f64], tor_of: &[Option<u16>]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for server in (0..values.len()).filter(|&it| tor_of[it].is_none()) {
        if best.is_none_or(|(_, most)| values[server] > most) {
            best = Some((server, values[server]));
        }
    }
    best.map(|(server, _)| server)
}

/// Where every `ToR` has two ports: pairs the servers by a matching of maximum weight, which keeps as many bytes as possible inside
/// racks. `None` for other pods.
pub(crate) fn pairs(fabric: &Fabric, periods: &[&Prepared<'_>]) -> Option<Configuration> {
    let tors = fabric.pod().tors();
    if tors.iter().any(|tor| tor.ports != 2) {
        return None;
    }
    let servers = fabric.pod().servers() as usize;
    let mut affinity = vec![0.0; servers * servers];
    periods.iter().for_each(|prepared| prepared.add_affinity(&mut affinity));
    let heaviest = affinity.iter().copied().fold(1.0, f64::max);
    let scale = (1_u64 << 40) as f64 / heaviest;
    let partner = max_weight_matching(servers, |a, b| (affinity[a * servers + b] * scale) as u64);
    let mut pairs = Vec::new();
    let mut single = Vec::new();
    for (a, partner) in partner.iter().enumerate() {
        match *partner {
            Some(b) if a < b => pairs.push((a, b)),
            Some(_) => {}
            None => single.push(a),
        }
    }
    let mut order: Vec<usize> = (0..tors.len()).collect();
    order.sort_by_key(|&tor| (!tors[tor].is_programmable(), tor));
    let master = largest_upload(periods, &vec![None; servers]);
    pairs.sort_by_key(|&(a, b)| (master != Some(a) && master != Some(b), a));
    let mut tor_of = vec![0; servers];
    let singles = single.chunks(2).map(|two| (two[0], *two.last().unwrap_or(&two[0])));
    for (tor, (a, b)) in order.into_iter().zip(pairs.into_iter().chain(singles)) {
        (tor_of[a], tor_of[b]) = (tor as u16, tor as u16);
    }
    Some(Configuration::trusted(&tor_of))
}

//! Random demand, to compare plans with: groups of servers that shuffle, upload, broadcast or compute, next to
//! background flows.

use rackweave_core::Rng;

use crate::demand::{Broadcast, DemandError, Flow, JobId, Period, Upload};

/// Draws periods in which each of several groups of random servers shuffles, uploads, broadcasts or computes. In each period after the
/// first the groups are drawn again with a probability of 0.3. Transfers are up to 100 MB, background flows up to 40 MB.
///
/// # Errors
/// If a period of that many servers has more bytes than a number of 64 bits can hold.
pub fn periods(
    rng: &mut Rng,
    servers: u32,
    count: u64,
    groups: u64,
) -> Result<Vec<Period>, DemandError> {
    let mut order: Vec<u32> = (0..servers).collect();
    let mut periods = Vec::new();
    for period in 0..count {
        if period == 0 || rng.chance(0.3) {
            rng.shuffle(&mut order);
        }
        let size = (u64::from(servers) / groups.max(1)).max(2) as usize;
        let (mut flows, mut uploads, mut broadcasts) = (Vec::new(), Vec::new(), Vec::new());
        for (job, group) in (1..).zip(order.chunks(size)) {
            if group.len() < 2 {
                continue;
            }
            let (master, workers) = (group[0], &group[1..]);
            let bytes = 1_000_000 * (1 + rng.below(100));
            match rng.below(4) {
                0 => {
                    for &src in group {
                        for &dst in group.iter().filter(|&&dst| dst != src) {
                            flows.push(Flow { src, dst, bytes: bytes / group.len() as u64 });
                        }
                    }
                }
                1 | 2 => {
                    let size = |rng: &mut Rng| bytes / 2 + rng.below(bytes);
                    let workers = workers.iter().map(|&it| (it, size(rng))).collect();
                    let exponent = rng.unit();
                    uploads.push(Upload::estimated(JobId(job), master, workers, exponent)?);
                }
                _ => broadcasts.push(Broadcast::new(JobId(job), master, workers.to_vec(), bytes)?),
            }
        }
        for _ in 0..rng.below(u64::from(servers)) {
            let (src, dst) = (rng.below(u64::from(servers)), rng.below(u64::from(servers)));
            if src != dst {
                let bytes = 1 + rng.below(40_000_000);
                flows.push(Flow { src: src as u32, dst: dst as u32, bytes });
            }
        }
        periods.push(Period::new(servers, flows, uploads, broadcasts)?);
    }
    Ok(periods)
}

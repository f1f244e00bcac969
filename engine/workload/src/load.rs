//! The mean gap between a host's messages for a given load of its link.

use rackweave_core::time::TICKS_PER_SECOND;
use rackweave_core::{Framing, Rate, Span};

use crate::error::WorkloadError;
use crate::pattern::{LoadCounts, Pattern, WorkloadConfig};
use crate::sizes::SizeDist;

/// Returns the mean gap between the messages of one host that puts `load` on its link.
///
/// With [`LoadCounts::Wire`] every byte on the link counts: `framing`'s headers and gaps, and
/// `extra(size)` bytes of further traffic that a message of this size causes (grants,
/// acknowledgements; a response, which loads the link too where every host is client and server). With [`LoadCounts::Payload`] only message bytes count
/// and `framing` and `extra` are ignored.
///
/// # Errors
/// If the load is not in (0, 1], the rate is zero, or the gap is below a tick.
pub fn open_loop_gap(
    sizes: &SizeDist,
    load: f64,
    counts: LoadCounts,
    link: Rate,
    framing: Framing,
    extra: impl Fn(u64) -> f64,
) -> Result<Span, WorkloadError> {
    check_load(load)?;
    if link.0 == 0 {
        return Err(WorkloadError::NoRate);
    }
    let bytes = match counts {
        LoadCounts::Payload => sizes.mean(),
        LoadCounts::Wire => {
            sizes.mean_of(|size| framing.message_wire_bytes(size) as f64 + extra(size))
        }
    };
    let gap = bytes * 8.0 * TICKS_PER_SECOND as f64 / (load * link.0 as f64);
    let gap = Span::from_ticks((gap + 0.5) as u64);
    if gap == Span::ZERO { Err(WorkloadError::NoGap) } else { Ok(gap) }
}

/// Returns the mean gap between the messages that a host starts under a workload, or `None` if the workload is not an
/// open loop.
///
/// Responses load a host's link as its own messages do. `feedback(size)` is what the receiver of a message of this size sends back, in
/// bytes on the link: with uniform destinations every host sends as much of it as it causes.
///
/// # Errors
/// See [`open_loop_gap`].
pub fn mean_gap(
    workload: &WorkloadConfig,
    link: Rate,
    framing: Framing,
    feedback: impl Fn(u64) -> f64,
) -> Result<Option<Span>, WorkloadError> {
    let Pattern::OpenLoop { sizes, load, counts } = &workload.pattern else { return Ok(None) };
    let exchange = workload.exchange;
    let extra = |size: u64| {
        let response = exchange.response_bytes(size);
        let response =
            response.map_or(0.0, |size| framing.message_wire_bytes(size) as f64 + feedback(size));
        feedback(size) + response
    };
    let gap = open_loop_gap(sizes, *load, *counts, link, framing, extra)?;
    match counts {
        LoadCounts::Wire => Ok(Some(gap)),
        // Without headers, but with the response: it loads the links just as much.
        LoadCounts::Payload => {
            let with_response =
                sizes.mean_of(|size| (size + exchange.response_bytes(size).unwrap_or(0)) as f64);
            Ok(Some(Span::from_ticks((gap.ticks() as f64 * with_response / sizes.mean()) as u64)))
        }
    }
}

pub(crate) fn check_load(load: f64) -> Result<(), WorkloadError> {
    // This form of the condition also rejects NaN.
    if load > 0.0 && load <= 1.0 { Ok(()) } else { Err(WorkloadError::Load(load)) }
}

//! The same work on all chunks, on all cores.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::{ImageError, Progress};

/// Does something with each chunk, on all cores, and returns the results in order. Each thread has a state of its own.
///
/// # Errors
/// The error of the first chunk that has one; or that a state could not be made; or that the work was interrupted.
pub(crate) fn for_each_chunk<S, T: Send>(
    chunks: u32,
    progress: &Progress,
    state: impl Fn() -> Result<S, ImageError> + Sync,
    work: impl Fn(&mut S, u32) -> Result<T, ImageError> + Sync,
) -> Result<Vec<T>, ImageError> {
    let (next, failed) = (AtomicU32::new(0), AtomicBool::new(false));
    let run = || {
        let mut done = Vec::new();
        let mut state = match state() {
            Ok(state) => state,
            Err(error) => return vec![(0, Err(error))],
        };
        // Chunks are taken in order, so all before the first that fails are done.
        while !failed.load(Ordering::Relaxed) {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                break;
            }
            let result = match progress.is_stopped() {
                true => Err(ImageError::Interrupted),
                false => work(&mut state, chunk),
            };
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((chunk, result));
        }
        done
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(chunks as usize);
    let mut all: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let joined = threads.into_iter().flat_map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    all.sort_by_key(|(chunk, _)| *chunk);
    all.into_iter().map(|(_, result)| result).collect()
}

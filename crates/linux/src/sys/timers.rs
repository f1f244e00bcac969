//! How exact a thread's waiting is.

use std::cell::Cell;

use rustix::thread::{current_timer_slack, set_current_timer_slack};

thread_local! {
    static TIGHT: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread's waits end within a microsecond of their time instead of the usual fifty, by which
/// the kernel saves power. Cheap to call again.
pub fn tighten_timers() {
    if !TIGHT.replace(true) && current_timer_slack().is_ok_and(|ns| ns > 1000) {
        // A kernel that refuses waits longer: later, not wrong.
        let _ = set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

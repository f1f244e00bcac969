//! How exact a thread's waiting is.

use std::cell::Cell;
use std::io;

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

/// Lets the calling thread, and threads that it starts from now on, go before all ordinary ones: of those at this
/// priority (1 to 99) each has its turn.
///
/// # Errors
/// Without the right to do so.
pub fn go_first(priority: i32) -> io::Result<()> {
    let wanted = libc::sched_param { sched_priority: priority };
    // SAFETY: it reads the struct, which lives until the call returns; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const wanted) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

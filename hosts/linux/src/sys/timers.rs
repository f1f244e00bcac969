//! Timer slack and scheduling priority of threads.

use std::cell::Cell;
use std::io;

use rustix::thread::{current_timer_slack, set_current_timer_slack};

thread_local! {
    static TIGHT: Cell<bool> = const { Cell::new(false) };
}

/// Sets the timer slack of the calling thread to the minimum, so that its waits end within a microsecond of their time
/// instead of the default of 50 µs. Cheap to call repeatedly.
pub fn tighten_timers() {
    if !TIGHT.replace(true) && current_timer_slack().is_ok_and(|ns| ns > 1000) {
        // If the kernel refuses, waits end later.
        let _ = set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}

/// Schedules the calling thread, and threads that it starts afterwards, by SCHED_RR at this priority (1 to 99), before all
/// ordinary threads.
///
/// # Errors
/// If the process lacks CAP_SYS_NICE.
pub fn set_realtime_priority(priority: i32) -> io::Result<()> {
    set_scheduler(libc::SCHED_RR, priority)
}

/// Schedules the calling thread by its niceness, as ordinary threads are, also if it was started by one with
/// [`set_realtime_priority`].
///
/// # Errors
/// If the system refuses it.
pub fn set_ordinary_priority() -> io::Result<()> {
    set_scheduler(libc::SCHED_OTHER, 0)
}

fn set_scheduler(policy: i32, priority: i32) -> io::Result<()> {
    // The system call, because musl's function refuses all calls. The kernel's `sched_param` is one int.
    // SAFETY: it reads the int, which lives until the call returns; 0 is the calling thread.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

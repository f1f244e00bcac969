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

/// Runs this as an ordinary thread, and then goes on at the priority from before.
///
/// A thread that waits for the end of a process removes its entries from /proc, in a loop of the kernel that goes on while others read
/// them. At real-time priority the loop can keep these others from running: with one such thread on each processor, forever.
pub fn at_ordinary_priority<T>(work: impl FnOnce() -> T) -> T {
    let mut priority: i32 = 0;
    // SAFETY: the second call writes an int, which lives until it returns; 0 is the calling thread.
    let known = unsafe {
        libc::syscall(libc::SYS_sched_getscheduler, 0) == libc::c_long::from(libc::SCHED_RR)
            && libc::syscall(libc::SYS_sched_getparam, 0, &raw mut priority) == 0
    };
    let is_realtime = known && set_ordinary_priority().is_ok();
    let result = work();
    if is_realtime {
        // Permitted a moment ago; if not any more, the thread stays an ordinary one.
        let _ = set_realtime_priority(priority);
    }
    result
}

fn set_scheduler(policy: i32, priority: i32) -> io::Result<()> {
    // The system call, because musl's function refuses all calls. The kernel's `sched_param` is one int.
    // SAFETY: it reads the int, which lives until the call returns; 0 is the calling thread.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i64 {
        // SAFETY: it takes no pointer; 0 is the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) }
    }

    #[test]
    fn an_ordinary_part_of_a_realtime_thread_ends_with_its_work() {
        std::thread::spawn(|| {
            assert_eq!(at_ordinary_priority(policy), i64::from(libc::SCHED_OTHER));
            if set_realtime_priority(5).is_err() {
                return; // no privileges
            }
            assert_eq!(at_ordinary_priority(policy), i64::from(libc::SCHED_OTHER));
            assert_eq!(policy(), i64::from(libc::SCHED_RR));
            let mut priority: i32 = 0;
            // SAFETY: it writes an int, which lives until the call returns.
            unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut priority) };
            assert_eq!(priority, 5);
        })
        .join()
        .unwrap();
    }
}

//! The clock, timers and wake-ups of this machine, which need no privileges.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rackweave_core::{Span, Time};
use rackweave_linux::sys::{set_realtime_priority, tighten_timers};
use rackweave_linux::{Clock, wait};

use crate::SWITCH_PRIORITY;

/// Times of a machine in microseconds, except for the clock's grain.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    /// The smallest step of the clock that was seen.
    pub(super) clock_grain_ns: f64,
    /// How late each timer was.
    pub(super) timers_us: Vec<f64>,
    /// How late the receiver of each datagram ran, after it was sent.
    pub(super) wakes_us: Vec<f64>,
    /// The same for a thread with the real-time priority of the switch process, or with the priority that it has without
    /// privileges.
    pub(super) switch_wakes_us: Vec<f64>,
    /// The processor time in nanoseconds that a thread needs to sleep in `poll` and to wake up, without what it does then.
    pub(super) wake_cost_ns: f64,
    /// The same with the priority of the switch process.
    pub(super) switch_wake_cost_ns: f64,
}

/// What waking up costs a thread.
#[derive(Debug, Default)]
struct Wakes {
    late_us: Vec<f64>,
    cost_ns: f64,
}

/// The time between two events, long enough for the processor to become idle.
const GAP: Span = Span::from_us(400);

/// The niceness of the testbed's hosts, for whose threads those of this module stand.
const NICENESS: i32 = -10;

/// Takes this number of samples of each, in threads of their own, whose priority is that of the testbed's hosts where privileges allow it.
pub(super) fn measure(samples: usize, is_cancelled: &AtomicBool) -> io::Result<Times> {
    let measuring = || {
        be_a_host();
        let clock = Clock::start();
        let of_host = wakes(clock, samples, is_cancelled, be_a_host)?;
        let of_switch = wakes(clock, samples, is_cancelled, be_the_switch)?;
        Ok(Times {
            clock_grain_ns: clock_grain_ns(clock),
            timers_us: timers(clock, samples, is_cancelled)?,
            wakes_us: of_host.late_us,
            switch_wakes_us: of_switch.late_us,
            wake_cost_ns: of_host.cost_ns,
            switch_wake_cost_ns: of_switch.cost_ns,
        })
    };
    std::thread::scope(|threads| joined(threads.spawn(measuring)))
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has failed")))
}

/// Gives the calling thread the timers and the priority of a host of the testbed.
fn be_a_host() {
    tighten_timers();
    // On Linux the niceness is a thread's.
    let _ = rustix::process::setpriority_process(None, NICENESS);
}

/// The same for the switch process.
fn be_the_switch() {
    be_a_host();
    let _ = set_realtime_priority(SWITCH_PRIORITY);
}

fn clock_grain_ns(clock: Clock) -> f64 {
    let mut least = u64::MAX;
    for _ in 0..20_000 {
        let before = clock.now();
        let mut after = clock.now();
        while after == before {
            after = clock.now();
        }
        least = least.min(after.since(before).as_ns());
    }
    least as f64
}

fn timers(clock: Clock, samples: usize, is_cancelled: &AtomicBool) -> io::Result<Vec<f64>> {
    let mut late = Vec::with_capacity(samples);
    while late.len() < samples && !is_cancelled.load(Ordering::Relaxed) {
        let due = clock.now() + GAP;
        wait::until(clock, &[], Some(due), Span::ZERO)?;
        late.push(clock.now().since(due).as_us_f64());
    }
    Ok(late)
}

/// Another thread, which `prepare` gives its priority, sleeps in `poll` until a datagram arrives, as the testbed's
/// processes do. The processor time of such a wake-up is what is left of the thread's when reading the datagrams is subtracted,
/// which costs what it costs to read a queue of as many.
fn wakes(
    clock: Clock,
    samples: usize,
    is_cancelled: &AtomicBool,
    prepare: fn(),
) -> io::Result<Wakes> {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0")?;
    receiver.set_nonblocking(true)?;
    let sender = std::net::UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(receiver.local_addr()?)?;
    std::thread::scope(|threads| {
        let receiving = threads.spawn(move || -> io::Result<Wakes> {
            prepare();
            let mut late_us = Vec::with_capacity(samples);
            let mut silent_since = clock.now();
            let (began_ns, mut waits) = (thread_cpu_ns(), 0_u32);
            while late_us.len() < samples && clock.now().since(silent_since) < Span::from_secs(2) {
                let until = clock.now() + Span::from_ms(100);
                wait::until(clock, &[(receiver.as_fd(), false)], Some(until), Span::ZERO)?;
                waits += 1;
                let now = clock.now();
                while let Some(stamp) = read(&receiver) {
                    late_us.push(now.since(Time::from_ticks(stamp)).as_us_f64());
                    silent_since = now;
                }
            }
            let (used_ns, read_count) = (thread_cpu_ns() - began_ns, late_us.len());
            let reading_ns = reading_cost_ns(read_count, waits)?;
            let cost_ns = ((used_ns - reading_ns) / f64::from(waits.max(1))).max(0.0);
            Ok(Wakes { late_us, cost_ns })
        });
        for _ in 0..samples {
            if is_cancelled.load(Ordering::Relaxed) {
                break;
            }
            wait::until(clock, &[], Some(clock.now() + GAP), Span::ZERO)?;
            sender.send(&clock.now().ticks().to_le_bytes())?;
        }
        joined(receiving)
    })
}

/// Reads a datagram, if there is one.
fn read(receiver: &std::net::UdpSocket) -> Option<u64> {
    let mut stamp = [0; 8];
    (receiver.recv(&mut stamp).ok()? == stamp.len()).then(|| u64::from_le_bytes(stamp))
}

/// The processor time to read this number of datagrams that are there, and this number of times to find none.
fn reading_cost_ns(datagrams: usize, vain: u32) -> io::Result<f64> {
    /// Fewer than any socket's buffer has room for.
    const QUEUED: usize = 64;
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0")?;
    receiver.set_nonblocking(true)?;
    let sender = std::net::UdpSocket::bind("127.0.0.1:0")?;
    sender.connect(receiver.local_addr()?)?;
    let mut used_ns = 0.0;
    let mut left = datagrams;
    while left > 0 {
        let queued = left.min(QUEUED);
        for _ in 0..queued {
            sender.send(&[0; 8])?;
        }
        let began_ns = thread_cpu_ns();
        for _ in 0..queued {
            read(&receiver);
        }
        used_ns += thread_cpu_ns() - began_ns;
        left -= queued;
    }
    let began_ns = thread_cpu_ns();
    for _ in 0..vain {
        read(&receiver);
    }
    Ok(used_ns + (thread_cpu_ns() - began_ns))
}

/// The processor time of the calling thread.
fn thread_cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_a_time_of_this_machine() {
        let times = measure(50, &AtomicBool::new(false)).unwrap();
        assert_eq!((times.timers_us.len(), times.wakes_us.len()), (50, 50));
        assert_eq!(times.switch_wakes_us.len(), 50);
        assert!(times.timers_us.iter().chain(&times.wakes_us).all(|late| *late < 1e6));
        assert!(
            times.wakes_us.iter().all(|late| *late > 0.0),
            "no thread wakes up before the datagram is sent"
        );
        assert!((1.0..1e6).contains(&times.clock_grain_ns));
        // A wake-up is at least a system call that sleeps, and costs less time than it takes.
        assert!((100.0..1e6).contains(&times.wake_cost_ns), "{}", times.wake_cost_ns);
        assert!((100.0..1e6).contains(&times.switch_wake_cost_ns));
    }

    #[test]
    fn it_stops_when_it_is_cancelled() {
        let times = measure(1_000_000, &AtomicBool::new(true)).unwrap();
        assert!(times.timers_us.is_empty() && times.wakes_us.is_empty());
    }
}

//! What SWP2P reaches with its defaults, beyond the paper: one copy from the server, and little more than the ideal time of one
//! copy over one link. The bounds are what was measured: the sum of the waits for first chunks and of TCP's reactions
//! to full queues.

use super::*;

/// Returns the mean and the longest time over the ideal time, and the copies that the server sent.
fn measure(setup: &Setup) -> (f64, f64, f64) {
    let outcome = setup.run();
    outcome.check_complete();
    let slowdowns = outcome.slowdowns();
    let mean = slowdowns.iter().sum::<f64>() / slowdowns.len() as f64;
    (mean, slowdowns.iter().copied().fold(0.0, f64::max), outcome.copies())
}

#[test]
fn eight_clients_at_once_take_one_copy() {
    for (chunks, mbps) in [(128, 200), (256, 1000)] {
        // A server that redirects itself also sends a message for each request.
        for (assist, most) in [(Assist::Switch, 1.2), (Assist::Server, 1.3)] {
            let setup = Setup { assist, ..Setup::new(8, chunks, mbps) };
            let (mean, worst, copies) = measure(&setup);
            println!(
                "{assist:?} at {mbps} Mbps: mean {mean:.3}, worst {worst:.3}, copies {copies:.3}"
            );
            assert!(worst <= most && copies <= 1.05, "{assist:?} {mbps}: {mean} {worst} {copies}");
        }
    }
}

#[test]
fn clients_that_start_one_after_the_other_are_served_by_those_before() {
    for (apart, most) in [(2, 1.25), (6, 1.1)] {
        let mut setup = Setup::new(8, 128, 200);
        setup.starts = (0..8).map(|n| Span::from_secs(n * apart)).collect();
        setup.client.linger = Span::from_secs(600);
        let (mean, worst, copies) = measure(&setup);
        println!("{apart} s apart: mean {mean:.3}, worst {worst:.3}, copies {copies:.3}");
        assert!(worst <= most && copies <= 1.05, "{apart} s: {mean} {worst} {copies}");
    }
}
